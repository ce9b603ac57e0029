//! Carries out what is planned for one mailbox.

use std::{collections::BTreeMap, sync::Arc};

use futures::{StreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use runtime::ObjectKey;

use super::{
    layout::Scope,
    mailbox_plan::MailboxPlan,
    packing::{Packing, PlannedEnvelope, PlannedShards},
    shared::Shared,
};
use crate::{
    content::{Wrapee, generations},
    plan::Step,
    plugin::Item,
    wrapped::{KnownEnvelope, Mailbox, Origin},
    write::{Target, WriteError, Writer},
};

/// Number of envelopes of one mailbox that are written at a time.
const PARALLEL_WRITES: usize = 8;

/// The result for one mailbox.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) place: String,
    /// What failed and will be retried.
    pub(super) failure: Option<String>,
    /// Why something is not delivered and not retried.
    pub(super) withheld: Option<String>,
    /// Names that belong to objects of another Binding, with that Binding (KS-098).
    pub(super) taken: BTreeMap<String, Origin>,
}

impl Outcome {
    pub(super) fn is_in_order(&self) -> bool {
        self.failure.is_none() && self.withheld.is_none() && self.taken.is_empty()
    }
}

/// What is to be in one mailbox, as seen from one Binding.
pub(super) struct Order<'a> {
    /// The mailbox.
    pub(super) place: &'a str,
    pub(super) origin: &'a Origin,
    /// The Binding's generation.
    pub(super) generation: &'a str,
    /// The envelopes as they should be.
    pub(super) shards: &'a PlannedShards,
    /// The envelopes as they are.
    pub(super) seen: &'a Mailbox,
    /// Which of them to look at.
    pub(super) scope: Scope,
}

/// Writes into mailboxes.
pub(super) struct Mailboxes {
    pub(super) shared: Arc<Shared>,
    pub(super) writer: Writer,
}

impl Mailboxes {
    /// Brings one mailbox into the desired state, as far as the names are free.
    pub(super) async fn settle(&self, order: Order<'_>) -> Outcome {
        let mut plan = self.plan(&order);
        let (place, mut failure) = (order.place, None);
        for number in 0..plan.phases() {
            let steps: Vec<_> = plan
                .phase(number)
                .iter()
                .map(|step| async { (step.name().to_owned(), self.execute(&order, step).await) })
                .collect();
            let results: Vec<(String, Result<(), WriteError>)> =
                stream::iter(steps).buffer_unordered(PARALLEL_WRITES).collect().await;
            for (name, result) in results {
                let Err(error) = result else { continue };
                // The write may have succeeded in spite of the error. Without an expectation, its event causes a new
                // look.
                self.shared.with(|state| state.expect_nothing(place, &name));
                match error {
                    WriteError::Taken(owner) => drop(plan.taken.insert(name, owner)),
                    WriteError::Request(_) | WriteError::Gone => {
                        failure.get_or_insert_with(|| error.to_string());
                    }
                }
            }
            if failure.is_some() {
                break;
            }
        }
        let withheld = plan
            .is_withheld
            .then(|| "its ManagedCluster is being deleted; nothing new goes there".to_owned());
        Outcome { place: place.to_owned(), failure, withheld, taken: plan.taken }
    }

    /// Plans the writes, and tells the state which envelopes to expect.
    fn plan(&self, order: &Order<'_>) -> MailboxPlan {
        let Order { place, origin, shards, seen, scope, .. } = order;
        let existing = seen.iter().filter(|(name, _)| scope.covers(name));
        let existing = existing.map(|(name, seen)| (name.clone(), seen.existing())).collect();
        let wanted = shards.iter().filter(|(name, _)| scope.covers(name));
        let wanted: BTreeMap<_, _> =
            wanted.map(|(name, planned)| (name.clone(), planned.wanted.clone())).collect();
        let (taken, is_terminating) = self.shared.with(|state| {
            let taken = state.owned_by_others(place, origin, wanted.keys());
            (taken, state.adaptation().properties.is_terminating(place))
        });
        let plan = MailboxPlan::new(existing, wanted, taken, is_terminating);
        self.shared.with(|state| {
            for (name, want) in &plan.wanted {
                if plan.is_withheld {
                    state.expect_nothing(place, name);
                } else if !plan.taken.contains_key(name) {
                    state.expect(place, name, want.fingerprint);
                }
            }
        });
        plan
    }

    async fn execute(&self, order: &Order<'_>, step: &Step) -> Result<(), WriteError> {
        let Order { place, origin, generation, shards, seen, .. } = *order;
        let (name, create) = match step {
            Step::Delete(name) => {
                self.shared.with(|state| state.expect_nothing(place, name));
                let Some(old) = seen.get(name) else { return Ok(()) };
                return Ok(self.writer.delete(place, name, &old.uid).await?);
            }
            Step::Create(name) => (name, true),
            Step::Update(name) | Step::Extend(name) => (name, false),
        };
        let Some(planned) = shards.get(name) else { return Ok(()) };
        let config = &self.shared.config;
        let extended = matches!(step, Step::Extend(_))
            .then(|| Packing::new(config).extended(planned, seen.get(name), shards));
        let planned = extended.as_ref().unwrap_or(planned);
        let envelope = planned
            .envelope
            .get_or_init(|| config.transport.wrap(&planned.members.iter().collect::<Vec<_>>()));
        let objects = config.object_generations.then(|| generations(&planned.members)).flatten();
        let target =
            Target { namespace: place, name, origin, generation, objects, payload: &envelope.payload };
        let key = ObjectKey::new(place, name);
        self.shared.with(|state| state.envelopes_mut().begin(&key));
        let written = if create {
            self.writer.create(&target).await
        } else {
            let old = seen.get(name);
            let version = old.map(|old| old.resource_version.as_str().to_owned());
            let finalizers = old.map(|old| old.finalizers.clone());
            self.writer.update(&target, version, finalizers).await
        };
        let remembered = match written {
            Ok(written) => self.remember(&key, &written, planned, origin).await,
            Err(error) => Err(error),
        };
        self.shared.with(|state| state.envelopes_mut().end(&key));
        remembered
    }

    /// Records what was written, unless the object was deleted in the meantime.
    async fn remember(
        &self,
        key: &ObjectKey,
        written: &ObjectMeta,
        planned: &PlannedEnvelope,
        origin: &Origin,
    ) -> Result<(), WriteError> {
        let contents = planned.contents.get_or_init(|| {
            let item = |w: &Wrapee| Item {
                identity: w.content.identity.clone(),
                digest: w.content.digest,
                create_only: w.create_only,
            };
            Arc::new(planned.members.iter().map(item).collect())
        });
        let wanted = &planned.wanted;
        loop {
            let recorded = self.shared.with(|state| {
                let was_deleted = state.envelopes_mut().take_deleted(key);
                (!was_deleted).then(|| {
                    let (contents, items) = (contents.clone(), wanted.items.clone());
                    let now = KnownEnvelope::new(written, wanted.fingerprint, contents, items);
                    state.wrote_envelope(key, now, origin)
                })
            });
            if let Some(todo) = recorded {
                todo.enqueue(&self.shared.queue);
                return Ok(());
            }
            // An object of that name was deleted during the write: the one just written, or its predecessor.
            let uid = written.uid.as_deref().unwrap_or_default();
            if !self.writer.is_there(&key.namespace, &key.name, uid).await? {
                return Err(WriteError::Gone);
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
