//! Processes one Binding: reads its workload, delivers it, writes its status.

use std::sync::Arc;

use apis::{
    constants::BINDING_FINALIZER,
    control::{Binding, bounded_errors},
};
use futures::{StreamExt, stream};
use runtime::{
    ResourceVersion,
    failure::{is_lasting, is_not_found, message_of},
};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::{BindingMemory, Controller, ReportedStatus, SyncError, bindings, deliver::Outcome};
use crate::{
    objects,
    wrapped::{KnownEnvelope, Origin},
    write::whose,
};

/// Log target of messages that appear once in the life of an object; visible from verbosity 2 (KS-212).
const LIFECYCLE: &str = "lifecycle";

impl Controller {
    /// KS-085 … KS-099.
    pub(super) async fn sync(&self, name: &str) -> Result<(), SyncError> {
        let Some(mut binding) = self.bindings.lock().get(name).cloned() else {
            self.forget(name);
            return Ok(());
        };
        tracing::debug!(binding = name, "looking at a Binding");
        self.gauges.observe(&binding);
        if binding.metadata.deletion_timestamp.is_some() {
            self.forget_adaptation(name);
            return self.withdraw(&binding).await;
        }
        if !has_finalizer(&binding) {
            tracing::info!(target: LIFECYCLE, binding = name, "starting to deliver a Binding");
            binding = self.set_finalizer(&binding, true).await.map_err(SyncError::Binding)?;
        }
        let memory = self.memories.lock().entry(name.to_owned()).or_default().clone();
        let mut memory = memory.lock().await;
        memory.is_about(&binding);
        let rules = self.rules(name, &binding);
        let wrapees = match objects::collect(&self.wds, &binding.spec, &rules, &mut memory.known).await {
            Ok(wrapees) => wrapees,
            Err(error) => {
                // A kind that is not served or may not be read can stay so for long, so the reason is
                // reported on the Binding (KS-088).
                if is_lasting(&error.source) {
                    let line = format!("the workload can't be read, so nothing is changed: {error}");
                    self.report(&binding, vec![line], &mut memory).await.map_err(SyncError::Binding)?;
                }
                return Err(error.into());
            }
        };
        let generation = binding.metadata.generation.unwrap_or_default();
        let reported = memory.reported_for(&binding).map(|reported| reported.generation);
        if memory.layout.is_none() || reported != Some(generation) {
            self.schedule_refresh(name);
        }
        let mut errors = Vec::new();
        let outcomes = self.deliver(&binding, wrapees, &mut memory, &mut errors).await?;
        let clashes = self.clashes(name, &outcomes);
        let line = |place: &str, problem: &String| format!("destination {place}: {problem}");
        let failures: Vec<String> =
            outcomes.iter().filter_map(|o| Some(line(&o.place, o.failure.as_ref()?))).collect();
        errors.extend(failures.iter().chain(&clashes).cloned());
        errors.extend(outcomes.iter().filter_map(|o| Some(line(&o.place, o.withheld.as_ref()?))));
        errors.extend(self.index.lock().double_deliveries(&self.origin(name)));
        errors.sort();
        errors.dedup();
        self.report(&binding, errors, &mut memory).await.map_err(SyncError::Binding)?;
        match failures.into_iter().chain(clashes).next() {
            Some(problem) => Err(SyncError::Wrapped(problem)),
            None => Ok(()),
        }
    }

    /// Forgets a deleted Binding.
    fn forget(&self, name: &str) {
        self.clashes(name, &[]);
        self.memories.lock().remove(name);
        self.outdated.lock().remove(name);
        self.forget_adaptation(name);
        self.index.lock().forget(&self.origin(name));
    }

    /// Returns lines about names that other Bindings have, and arranges a retry when those objects go
    /// (KS-098).
    pub(super) fn clashes(&self, binding: &str, outcomes: &[Outcome]) -> Vec<String> {
        let mut blocked = self.blocked.lock();
        blocked.retain(|_, waiting| {
            waiting.remove(binding);
            !waiting.is_empty()
        });
        let mut lines = Vec::new();
        for outcome in outcomes {
            let place = &outcome.place;
            for (name, owner) in &outcome.taken {
                blocked.entry((place.clone(), name.clone())).or_default().insert(binding.to_owned());
                lines.push(format!(
                    "{} {place}/{name} is in the way: it {}; what it was to hold is not delivered",
                    self.writer.kind(),
                    whose(owner)
                ));
            }
        }
        lines
    }

    pub(super) fn origin(&self, binding: &str) -> Origin {
        Origin { wds: self.config.wds_name.clone(), binding: binding.to_owned() }
    }

    /// KS-086, KS-079: deletes everything that a deleted Binding delivered, wherever it is.
    ///
    /// Deletes the known envelopes first. Then asks the server, because there may be an envelope whose
    /// creation was never answered and that no watch has reported yet.
    async fn withdraw(&self, binding: &Binding) -> Result<(), SyncError> {
        if !has_finalizer(binding) {
            return Ok(());
        }
        let origin = self.origin(&binding.metadata.name.clone().unwrap_or_default());
        let mailboxes = self.index.lock().of(&origin);
        let all: Vec<(&String, &String, &Arc<KnownEnvelope>)> = mailboxes
            .iter()
            .flat_map(|(mailbox, envelopes)| envelopes.iter().map(move |(name, seen)| (mailbox, name, seen)))
            .collect();
        {
            let mut expected = self.expected.lock();
            for (mailbox, name, _) in &all {
                expected.remove(&((*mailbox).clone(), (*name).clone()));
            }
        }
        let deletions: Vec<_> = all
            .iter()
            .filter(|(_, _, seen)| !seen.deleting)
            .map(|(mailbox, name, seen)| ((*mailbox).clone(), (*name).clone(), seen.uid.clone()))
            .collect();
        self.delete_all(deletions).await?;
        let unheard =
            self.writer.of(&origin).await.map_err(|error| SyncError::Wrapped(message_of(&error)))?;
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
        let mut deletions = Vec::with_capacity(all.len());
        for (mailbox, name, uid) in &all {
            self.expected.lock().remove(&(mailbox.clone(), name.clone()));
            deletions.push(self.writer.delete(mailbox, name, uid));
        }
        let outcomes: Vec<Result<(), kube::Error>> = stream::iter(deletions)
            .buffer_unordered(self.config.parallel_destinations.max(1))
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
        let patched: Binding = self.wds.merge(&bindings(), "", &name, &patch).await?;
        let patched = Arc::new(patched);
        if present {
            let mut all = self.bindings.lock();
            // The watch may have reported a later version, or the deletion, in the meantime.
            if all.get(&name).is_some_and(|known| !supersedes(known, &patched)) {
                all.insert(name, patched.clone());
            }
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
        match self.wds.merge_status::<IgnoredAny>(&bindings(), "", &name, &patch).await {
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
}

fn has_finalizer(binding: &Binding) -> bool {
    binding.metadata.finalizers.as_ref().is_some_and(|f| f.iter().any(|f| f == BINDING_FINALIZER))
}

/// Returns whether the known Binding is another object of the same name, or a later version.
fn supersedes(known: &Binding, answer: &Binding) -> bool {
    let (known, answer) = (&known.metadata, &answer.metadata);
    known.uid != answer.uid || ResourceVersion::of(answer) < ResourceVersion::of(known)
}

#[cfg(test)]
mod tests;
