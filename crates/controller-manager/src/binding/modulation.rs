//! How a matched object is treated.

use std::collections::BTreeSet;

use apis::control::DownsyncModulation;

/// The four knobs of a matched object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Modulation {
    /// Create in the clusters, never update.
    pub create_only: bool,
    /// Bring the status back from the only cluster.
    pub singleton: bool,
    /// Bring the status back from all clusters together.
    pub multi: bool,
    /// StatusCollectors by name.
    pub collectors: BTreeSet<Box<str>>,
}

impl Modulation {
    /// Takes over what another matching clause asks for (KS-051).
    pub fn merge(&mut self, other: &Self) {
        self.create_only |= other.create_only;
        self.singleton |= other.singleton;
        self.multi |= other.multi;
        self.collectors.extend(other.collectors.iter().cloned());
    }

    /// Whether any status is asked to come back into the object.
    pub fn wants_status(&self) -> bool {
        self.singleton || self.multi
    }

    /// As it stands in a Binding.
    pub fn to_api(&self) -> DownsyncModulation {
        DownsyncModulation {
            create_only: self.create_only,
            status_collectors: self.collectors.iter().map(|name| name.to_string()).collect(),
            want_singleton_reported_state: self.singleton,
            want_multi_wec_reported_state: self.multi,
        }
    }
}
