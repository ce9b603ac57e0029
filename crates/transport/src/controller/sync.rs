//! Processes one Binding: reads its workload, delivers it, writes its status.

use std::sync::Arc;

use apis::{
    constants::BINDING_FINALIZER,
    control::{Binding, CustomTransform, bounded_errors},
};
use futures::{StreamExt, stream};
use runtime::{
    Next, ObjectKey,
    failure::{is_lasting, is_not_found, message_of},
    rest::{Gvr, Rest},
};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    deliver::Delivered,
    mailbox::{Mailboxes, Outcome},
    memory::{BindingMemory, ReportedStatus},
    shared::Shared,
    work::{SyncError, Work},
};
use crate::{objects, wrapped::KnownEnvelope, write::whose};

/// Log target of messages that appear once in the life of an object; visible from verbosity 2 (KS-212).
const LIFECYCLE: &str = "lifecycle";

/// Processes the work items.
pub(super) struct Syncer {
    wds: Rest,
    mailboxes: Mailboxes,
}

impl Syncer {
    pub(super) fn new(wds: Rest, mailboxes: Mailboxes) -> Self {
        Self { wds, mailboxes }
    }

    fn shared(&self) -> &Shared {
        &self.mailboxes.shared
    }

    /// Processes one work item.
    pub(super) async fn process(&self, work: Work) -> Result<Next, SyncError> {
        match work {
            Work::Sync(name) => self.sync(&name).await?,
            Work::Judge(name) => self.judge(&name).await?,
        }
        Ok(Next::OnChange)
    }

    /// KS-085 … KS-099.
    async fn sync(&self, name: &str) -> Result<(), SyncError> {
        let Some(mut binding) = self.shared().with(|state| state.binding(name)) else {
            self.shared().with(|state| state.forget(name));
            return Ok(());
        };
        tracing::debug!(binding = name, "looking at a Binding");
        self.shared().gauges.observe(&binding);
        if binding.metadata.deletion_timestamp.is_some() {
            self.shared().with(|state| state.adaptation_mut().forget(name));
            return self.withdraw(&binding).await;
        }
        if !has_finalizer(&binding) {
            tracing::info!(target: LIFECYCLE, binding = name, "starting to deliver a Binding");
            binding = self.set_finalizer(&binding, true).await.map_err(SyncError::Binding)?;
        }
        let mut memory = self.shared().with(|state| state.take_memory(name, &binding));
        let outcome = self.sync_with(name, &binding, &mut memory).await;
        self.shared().with(|state| state.keep_memory(name, memory));
        outcome
    }

    async fn sync_with(
        &self,
        name: &str,
        binding: &Binding,
        memory: &mut BindingMemory,
    ) -> Result<(), SyncError> {
        let (rules, todo) = self.shared().with(|state| state.rules(name, binding));
        todo.enqueue(&self.shared().queue);
        let wrapees = match objects::collect(&self.wds, &binding.spec, &rules, &mut memory.known).await {
            Ok(wrapees) => wrapees,
            Err(error) => {
                // A kind that is not served or may not be read can stay so for long, so the reason is
                // reported on the Binding (KS-088).
                if is_lasting(&error.source) {
                    let line = format!("the workload can't be read, so nothing is changed: {error}");
                    self.report(binding, vec![line], memory).await.map_err(SyncError::Binding)?;
                }
                return Err(error.into());
            }
        };
        let generation = binding.metadata.generation.unwrap_or_default();
        let reported = memory.reported_for(binding).map(|reported| reported.generation);
        if memory.layout.is_none() || reported != Some(generation) {
            self.schedule_refresh(name);
        }
        let Delivered { outcomes, mut errors } = self.mailboxes.deliver(binding, wrapees, memory).await?;
        let clashes = self.note_clashes(name, &outcomes);
        let line = |place: &str, problem: &String| format!("destination {place}: {problem}");
        let failures: Vec<String> =
            outcomes.iter().filter_map(|o| Some(line(&o.place, o.failure.as_ref()?))).collect();
        errors.extend(failures.iter().chain(&clashes).cloned());
        errors.extend(outcomes.iter().filter_map(|o| Some(line(&o.place, o.withheld.as_ref()?))));
        errors.extend(self.shared().with(|state| state.envelopes().double_deliveries(&state.origin(name))));
        errors.sort();
        errors.dedup();
        self.report(binding, errors, memory).await.map_err(SyncError::Binding)?;
        match failures.into_iter().chain(clashes).next() {
            Some(problem) => Err(SyncError::Wrapped(problem)),
            None => Ok(()),
        }
    }

    /// Some annotations of this Binding's envelopes may be outdated.
    fn schedule_refresh(&self, binding: &str) {
        self.shared().with(|state| state.set_outdated(binding, Instant::now()));
        self.shared().refreshes.add_after(binding.to_owned(), self.shared().config.refresh_after);
    }

    /// Returns lines about names that other Bindings have, and arranges a retry when those objects go
    /// (KS-098).
    fn note_clashes(&self, binding: &str, outcomes: &[Outcome]) -> Vec<String> {
        let taken =
            || outcomes.iter().flat_map(|o| o.taken.iter().map(|(name, owner)| (&o.place, name, owner)));
        let keys = taken().map(|(place, name, _)| ObjectKey::new(place, name));
        self.shared().with(|state| state.set_blocked(binding, keys));
        let kind = self.mailboxes.writer.kind();
        let line = |(place, name, owner): (&String, &String, _)| {
            let whose = whose(owner);
            format!("{kind} {place}/{name} is in the way: it {whose}; what it was to hold is not delivered")
        };
        taken().map(line).collect()
    }

    /// KS-086, KS-079: deletes everything that a deleted Binding delivered, wherever it is.
    ///
    /// Deletes the known envelopes first. Then asks the server, because there may be an envelope whose
    /// creation was never answered and that no watch has reported yet.
    async fn withdraw(&self, binding: &Binding) -> Result<(), SyncError> {
        if !has_finalizer(binding) {
            return Ok(());
        }
        let name = binding.metadata.name.as_deref().unwrap_or_default();
        let (origin, mailboxes) = self.shared().with(|state| {
            let origin = state.origin(name);
            let mailboxes = state.envelopes().of(&origin);
            for (mailbox, envelopes) in &mailboxes {
                for name in envelopes.keys() {
                    state.expect_nothing(mailbox, name);
                }
            }
            (origin, mailboxes)
        });
        let all = mailboxes.iter().flat_map(|(mailbox, envelopes)| {
            envelopes.iter().map(move |(name, seen): (&String, &Arc<KnownEnvelope>)| (mailbox, name, seen))
        });
        let deletions = all
            .filter(|(_, _, seen)| !seen.deleting)
            .map(|(mailbox, name, seen)| (mailbox.clone(), name.clone(), seen.uid.clone()));
        self.delete_all(deletions.collect()).await?;
        let unheard = self.mailboxes.writer.of(&origin).await;
        let unheard = unheard.map_err(|error| SyncError::Wrapped(message_of(&error)))?;
        let unheard = unheard.into_iter().filter(|it| it.deletion_timestamp.is_none()).map(|it| {
            (it.namespace.unwrap_or_default(), it.name.unwrap_or_default(), it.uid.unwrap_or_default())
        });
        self.delete_all(unheard.collect()).await?;
        tracing::info!(target: LIFECYCLE, binding = origin.binding, "withdrew everything that a deleted Binding had delivered");
        match self.set_finalizer(binding, false).await {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(SyncError::Binding(error)),
        }
    }

    /// Deletes by mailbox, name and UID. Tries all, then returns the first failure.
    async fn delete_all(&self, all: Vec<(String, String, String)>) -> Result<(), SyncError> {
        self.shared().with(|state| {
            for (mailbox, name, _) in &all {
                state.expect_nothing(mailbox, name);
            }
        });
        let writer = &self.mailboxes.writer;
        let deletions = all.iter().map(|(mailbox, name, uid)| writer.delete(mailbox, name, uid));
        let deletions: Vec<_> = deletions.collect();
        let outcomes: Vec<Result<(), kube::Error>> = stream::iter(deletions)
            .buffer_unordered(self.shared().config.parallel_destinations.max(1))
            .collect()
            .await;
        match outcomes.into_iter().find_map(Result::err) {
            Some(error) => Err(SyncError::Wrapped(message_of(&error))),
            None => Ok(()),
        }
    }

    async fn set_finalizer(&self, binding: &Binding, present: bool) -> Result<Arc<Binding>, kube::Error> {
        let metadata = &binding.metadata;
        let mut finalizers = metadata.finalizers.clone().unwrap_or_default();
        finalizers.retain(|f| f != BINDING_FINALIZER);
        if present {
            finalizers.push(BINDING_FINALIZER.to_owned());
        }
        let patch = json!({"metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version,
            "finalizers": finalizers}});
        let name = metadata.name.clone().unwrap_or_default();
        let patched: Binding = self.wds.merge(&Gvr::of::<Binding>(), "", &name, &patch).await?;
        let patched = Arc::new(patched);
        if present {
            self.shared().with(|state| state.wrote_binding(&patched));
        }
        Ok(patched)
    }

    /// KS-094, KS-013: writes only this controller's two fields, and only if they differ.
    async fn report(
        &self,
        binding: &Binding,
        errors: Vec<String>,
        memory: &mut BindingMemory,
    ) -> Result<(), kube::Error> {
        let generation = binding.metadata.generation.unwrap_or_default();
        let uid = binding.metadata.uid.clone().unwrap_or_default();
        let wanted = ReportedStatus { uid, generation, errors: bounded_errors(errors) };
        if memory.reported_for(binding) == Some(&wanted) {
            return Ok(());
        }
        let errors = if wanted.errors.is_empty() { Value::Null } else { json!(wanted.errors) };
        let patch = json!({"metadata": {"uid": binding.metadata.uid},
            "status": {"observedGeneration": generation, "errors": errors}});
        let name = binding.metadata.name.clone().unwrap_or_default();
        match self.wds.merge_status::<IgnoredAny>(&Gvr::of::<Binding>(), "", &name, &patch).await {
            Ok(_) => {
                memory.reported = Some(wanted);
                Ok(())
            }
            // The Binding is gone; its own event reports that. A conflict is retried (KS-095), also if the
            // Binding was recreated under its old name: the next try knows the new one.
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// KS-115, KS-116: writes the status of a CustomTransform if it differs from what it should be.
    async fn judge(&self, name: &str) -> Result<(), SyncError> {
        let due = self.shared().with(|state| state.adaptation().status_due(name));
        let Some((uid, status)) = due else { return Ok(()) };
        let list = |lines: Vec<String>| if lines.is_empty() { Value::Null } else { json!(lines) };
        let patch = json!({"metadata": {"uid": uid}, "status": {"observedGeneration": status.observed_generation,
            "errors": list(status.errors), "warnings": list(status.warnings)}});
        match self.wds.merge_status::<IgnoredAny>(&Gvr::of::<CustomTransform>(), "", name, &patch).await {
            Ok(_) => Ok(()),
            // The CustomTransform is gone; its own event reports that. The server also refuses if it was
            // recreated under the same name; the next try knows the new one.
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(SyncError::Transform(error)),
        }
    }
}

fn has_finalizer(binding: &Binding) -> bool {
    binding.metadata.finalizers.as_ref().is_some_and(|f| f.iter().any(|f| f == BINDING_FINALIZER))
}

#[cfg(test)]
mod tests;
