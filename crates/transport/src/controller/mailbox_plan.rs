//! What is written into one mailbox, decided before and corrected between the phases. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    plan::{self, DesiredEnvelope, ExistingEnvelope, Plan, Step},
    wrapped::Origin,
};

/// What is written into one mailbox.
pub(super) struct MailboxPlan {
    existing: BTreeMap<String, ExistingEnvelope>,
    pub(super) wanted: BTreeMap<String, DesiredEnvelope>,
    plan: Plan,
    /// Names that belong to objects of another Binding, with that Binding (KS-098).
    pub(super) taken: BTreeMap<String, Origin>,
    /// The cluster is being deleted, so nothing new goes there. The hub empties its mailbox; filling it again would never
    /// end.
    pub(super) is_withheld: bool,
}

impl MailboxPlan {
    /// Plans the writes that turn `existing` into `wanted`. `taken` are the wanted names that other Bindings have.
    pub(super) fn new(
        existing: BTreeMap<String, ExistingEnvelope>,
        wanted: BTreeMap<String, DesiredEnvelope>,
        taken: BTreeMap<String, Origin>,
        is_terminating: bool,
    ) -> Self {
        let mut plan = plan::plan(&existing, &wanted);
        let is_withheld = is_terminating && plan.only_deletions();
        Self { existing, wanted, plan, taken, is_withheld }
    }

    /// Number of phases.
    pub(super) fn phases(&self) -> usize {
        self.plan.phases.len()
    }

    /// Returns the steps of a phase, without those that would lose an object because a name is taken. In debug builds
    /// panics if the plan would lose an object nevertheless.
    pub(super) fn phase(&mut self, number: usize) -> &[Step] {
        let taken: BTreeSet<String> = self.taken.keys().cloned().collect();
        self.plan.hold_back(&taken, &self.existing, &self.wanted);
        if cfg!(debug_assertions) && !self.is_withheld {
            let problems = plan::check_plan(&self.plan, &self.existing, &self.wanted);
            assert!(problems.is_empty(), "{problems:?} in {:?}", self.plan);
        }
        self.plan.phases.get(number).map(Vec::as_slice).unwrap_or_default()
    }
}
