//! How a matched object is delivered.

use std::collections::BTreeSet;

use apis::control::DownsyncModulation;

/// The four settings of a matched object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Modulation {
    /// Create the object in the clusters and never update it.
    pub create_only: bool,
    /// Return the status if there is exactly one cluster.
    pub singleton: bool,
    /// Return a status that is aggregated from all clusters.
    pub multi: bool,
    /// StatusCollectors by name.
    pub collectors: BTreeSet<Box<str>>,
}

impl Modulation {
    /// Adds the settings of another matching clause (KS-051).
    pub fn merge(&mut self, other: &Self) {
        self.create_only |= other.create_only;
        self.singleton |= other.singleton;
        self.multi |= other.multi;
        self.collectors.extend(other.collectors.iter().cloned());
    }

    /// Returns whether any status is returned into the object.
    pub fn wants_status(&self) -> bool {
        self.singleton || self.multi
    }

    /// Converts the settings to the form in a Binding.
    pub fn to_api(&self) -> DownsyncModulation {
        DownsyncModulation {
            create_only: self.create_only,
            status_collectors: self.collectors.iter().map(|name| name.to_string()).collect(),
            want_singleton_reported_state: self.singleton,
            want_multi_wec_reported_state: self.multi,
        }
    }
}
