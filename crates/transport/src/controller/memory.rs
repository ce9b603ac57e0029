//! What is remembered of a Binding between two runs. Only its worker uses it.

use apis::control::Binding;

use super::{expansion::Expansions, layout::Layout, older_forms::OlderForms};
use crate::objects::Known;

/// What the controller remembers of a Binding between two runs.
#[derive(Default)]
pub(super) struct BindingMemory {
    /// UID of the Binding that this belongs to.
    pub(super) uid: String,
    pub(super) known: Known,
    /// The status as this controller last wrote it.
    pub(super) reported: Option<ReportedStatus>,
    /// How the objects were distributed, if that is the same for all destinations.
    pub(super) layout: Option<Layout>,
    /// Results of the expansion of objects that request customisation.
    pub(super) expansions: Expansions,
    /// Older forms of objects that cannot be delivered in their present form.
    pub(super) older_forms: OlderForms,
}

/// This controller's part of a Binding's status. A Binding that was recreated under an old name starts
/// without it (KS-013).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReportedStatus {
    pub(super) uid: String,
    pub(super) generation: i64,
    pub(super) errors: Vec<String>,
}

impl BindingMemory {
    /// Resets the memory if the Binding was recreated under an old name: the objects that the old one
    /// delivered are gone or will be removed.
    pub(super) fn is_about(&mut self, binding: &Binding) {
        let uid = binding.metadata.uid.as_deref().unwrap_or_default();
        if self.uid != uid {
            *self = Self { uid: uid.to_owned(), ..Self::default() };
        }
    }

    /// Returns the status of this very Binding, from memory or as it was read (KS-013).
    pub(super) fn reported_for(&mut self, binding: &Binding) -> Option<&ReportedStatus> {
        let uid = binding.metadata.uid.clone().unwrap_or_default();
        if self.reported.as_ref().is_none_or(|reported| reported.uid != uid) {
            self.reported = binding.status.as_ref().map(|status| ReportedStatus {
                uid,
                generation: status.observed_generation,
                errors: status.errors.clone(),
            });
        }
        self.reported.as_ref()
    }
}
