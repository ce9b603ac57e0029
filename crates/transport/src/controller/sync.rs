//! What is done about one Binding: read its workload, plan, write, report.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{Arc, OnceLock},
};

use apis::{constants::BINDING_FINALIZER, control::Binding};
use futures::{StreamExt, stream};
use runtime::rest::{code_of, is_not_found, message_of};
use serde_json::{Value, json};

use super::{Controller, Memory, Reported, SyncError, Work, bindings};
use crate::{
    content::Wrapee,
    customize::OnError,
    objects,
    plan::{self, Step, Wanted},
    plugin::{Envelope, Item},
    shard::{self, Names, Piece},
    wrapped::{Origin, Seen},
    write::{Target, WriteError, whose},
};

/// An envelope to be, for one or all destinations.
struct Planned {
    wanted: Wanted,
    members: Vec<Wrapee>,
    envelope: OnceLock<Envelope>,
    contents: OnceLock<Arc<Vec<Item>>>,
}

/// What became of one mailbox.
#[derive(Default)]
struct Outcome {
    place: String,
    /// What went wrong, and will be tried again.
    failure: Option<String>,
    /// Names that are in use for objects of others, and whose those are (KS-098).
    taken: BTreeMap<String, Origin>,
}

type PlannedShards = BTreeMap<String, Planned>;

impl Controller {
    /// KS-085 … KS-099.
    pub(super) async fn sync(&self, name: &str) -> Result<(), SyncError> {
        let Some(mut binding) = self.bindings.lock().get(name).cloned() else {
            self.clashes(name, &[]);
            return Ok(());
        };
        if binding.metadata.deletion_timestamp.is_some() {
            return self.withdraw(&binding).await;
        }
        if !has_finalizer(&binding) {
            binding = self.set_finalizer(&binding, true).await.map_err(SyncError::Binding)?;
        }
        let memory = self.memories.lock().entry(name.to_owned()).or_default().clone();
        let mut memory = memory.lock().await;
        let wrapees =
            objects::collect(&self.wds, name, &binding.spec, &*self.config.customizer, &mut memory.known)
                .await
                .map_err(SyncError::Workload)?;
        let mut errors = Vec::new();
        let outcomes = self.deliver(&binding, wrapees, &mut errors).await;
        let clashes = self.clashes(name, &outcomes);
        let failures: Vec<String> = outcomes
            .iter()
            .filter_map(|o| Some(format!("destination {}: {}", o.place, o.failure.as_ref()?)))
            .collect();
        errors.extend(failures.iter().chain(&clashes).cloned());
        errors.extend(self.index.lock().double_deliveries(&self.origin(&binding)));
        errors.sort();
        errors.dedup();
        self.report(&binding, errors, &mut memory).await.map_err(SyncError::Binding)?;
        match failures.into_iter().chain(clashes).next() {
            Some(problem) => Err(SyncError::Wrapped(problem)),
            None => Ok(()),
        }
    }

    /// Lines about names that others have, and a note to come back when those objects go (KS-098).
    fn clashes(&self, binding: &str, outcomes: &[Outcome]) -> Vec<String> {
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

    fn origin(&self, binding: &Binding) -> Origin {
        Origin {
            wds: self.config.wds_name.clone(),
            binding: binding.metadata.name.clone().unwrap_or_default(),
        }
    }

    /// Shards, plans and writes. Gives what became of each destination (KS-093).
    async fn deliver(
        &self,
        binding: &Binding,
        wrapees: Vec<Wrapee>,
        errors: &mut Vec<String>,
    ) -> Vec<Outcome> {
        let origin = self.origin(binding);
        let uid = binding.metadata.uid.clone().unwrap_or_default();
        let names = Names { binding: &origin.binding, binding_uid: &uid, wds: &origin.wds };
        if let Some(problem) = names.problem(&self.config.limits) {
            errors.push(problem);
            return Vec::new();
        }
        let mut there: BTreeMap<String, BTreeMap<String, Arc<Seen>>> = BTreeMap::new();
        for ((namespace, name), seen) in self.index.lock().of(&origin) {
            there.entry(namespace).or_default().insert(name, seen);
        }
        let wrapees = self.without_oversized(wrapees, errors);
        let destinations: BTreeSet<&str> = binding
            .spec
            .destinations
            .iter()
            .map(|d| d.cluster_id.as_str())
            .filter(|d| !d.is_empty())
            .collect();
        let (shards, frozen) = self.shards(&names, &destinations, wrapees, &there, errors);
        let generation = binding.metadata.generation.unwrap_or_default().to_string();
        let (no_shards, no_seen) = (PlannedShards::new(), BTreeMap::new());
        let places: BTreeSet<&str> =
            destinations.iter().copied().chain(there.keys().map(String::as_str)).collect();
        let mut jobs = Vec::new();
        for place in places {
            let listed = destinations.contains(place);
            if frozen && listed {
                continue;
            }
            let wanted = if listed { shards.of(place) } else { &no_shards };
            let seen = there.get(place).unwrap_or(&no_seen);
            jobs.push(self.settle(place, &origin, &generation, wanted, seen));
        }
        let mut outcomes: Vec<Outcome> =
            stream::iter(jobs).buffer_unordered(self.config.parallel_destinations.max(1)).collect().await;
        outcomes.sort_by(|a, b| a.place.cmp(&b.place));
        outcomes
    }

    /// KS-141.
    fn without_oversized(&self, wrapees: Vec<Wrapee>, errors: &mut Vec<String>) -> Vec<Wrapee> {
        let max = self.config.limits.max_size;
        wrapees
            .into_iter()
            .filter(|wrapee| {
                let size = wrapee.content.json.len();
                if size > max {
                    errors
                        .push(format!("{}: size {size} exceeds the maximum {max}", wrapee.content.identity));
                }
                size <= max
            })
            .collect()
    }

    /// KS-125: one set of shards for all destinations, or one for each when an object wants customisation.
    fn shards(
        &self,
        names: &Names<'_>,
        destinations: &BTreeSet<&str>,
        wrapees: Vec<Wrapee>,
        there: &BTreeMap<String, BTreeMap<String, Arc<Seen>>>,
        errors: &mut Vec<String>,
    ) -> (Shards, bool) {
        if !wrapees.iter().any(|w| w.content.wants_expansion) {
            return (Shards::Same(self.shard(names, wrapees, there.values())), false);
        }
        let mut each = BTreeMap::new();
        let mut troubled = HashSet::new();
        let mut failed = false;
        for destination in destinations {
            let mut own = Vec::with_capacity(wrapees.len());
            for wrapee in &wrapees {
                if !wrapee.content.wants_expansion {
                    own.push(wrapee.clone());
                    continue;
                }
                match self.config.customizer.customize(destination, &wrapee.content) {
                    Ok(content) => own.push(Wrapee { content, create_only: wrapee.create_only }),
                    Err(problem) => {
                        failed = true;
                        // KS-097: one destination is enough to say what is wrong with an object.
                        if troubled.insert(wrapee.content.identity.clone()) {
                            errors.push(problem);
                        }
                    }
                }
            }
            each.insert((*destination).to_owned(), self.shard(names, own, there.get(*destination)));
        }
        (Shards::Each(each), failed && self.config.customizer.on_error() == OnError::Freeze)
    }

    fn shard<'a>(
        &self,
        names: &Names<'_>,
        wrapees: Vec<Wrapee>,
        there: impl IntoIterator<Item = &'a BTreeMap<String, Arc<Seen>>>,
    ) -> PlannedShards {
        let transport = &*self.config.transport;
        let mut current = BTreeMap::new();
        for envelopes in there {
            for (name, seen) in envelopes {
                let Some(number) = names.number(name) else { continue };
                for identity in seen.items.iter() {
                    current.entry(identity.clone()).or_insert(number);
                }
            }
        }
        let pieces: Vec<Piece> = wrapees
            .iter()
            .map(|w| Piece {
                identity: w.content.identity.clone(),
                uid: w.content.uid.clone(),
                size: w.content.json.len() + transport.extra_size(w),
            })
            .collect();
        shard::assign(&pieces, &current, names, &self.config.limits, transport.base_size())
            .into_iter()
            .map(|shard| {
                let members: Vec<Wrapee> =
                    shard.members.iter().filter_map(|index| wrapees.get(*index).cloned()).collect();
                let items = members.iter().map(|w| w.content.identity.clone()).collect();
                let fingerprint = transport.fingerprint(&members.iter().collect::<Vec<_>>());
                let wanted = Wanted { items: Arc::new(items), fingerprint };
                (
                    shard.name,
                    Planned { wanted, members, envelope: OnceLock::new(), contents: OnceLock::new() },
                )
            })
            .collect()
    }

    /// Brings one mailbox into the wanted state, as far as names are free.
    async fn settle(
        &self,
        place: &str,
        origin: &Origin,
        generation: &str,
        shards: &PlannedShards,
        seen: &BTreeMap<String, Arc<Seen>>,
    ) -> Outcome {
        let existing = seen.iter().map(|(name, seen)| (name.clone(), seen.existing(generation))).collect();
        let wanted = shards.iter().map(|(name, planned)| (name.clone(), planned.wanted.clone())).collect();
        let mut plan = plan::plan(&existing, &wanted);
        let mut outcome = Outcome {
            place: place.to_owned(),
            taken: self.taken(place, origin, &wanted),
            ..Outcome::default()
        };
        {
            let mut expected = self.expected.lock();
            for (name, want) in wanted.iter().filter(|(name, _)| !outcome.taken.contains_key(*name)) {
                expected.insert((place.to_owned(), name.clone()), want.fingerprint);
            }
        }
        if !plan.outdated.is_empty() {
            self.schedule_refresh(&origin.binding);
        }
        for number in 0..plan.phases.len() {
            plan.hold_back(&outcome.taken.keys().cloned().collect(), &existing, &wanted);
            let steps: Vec<_> = plan
                .phases
                .get(number)
                .into_iter()
                .flatten()
                .map(|step| async move {
                    (
                        step.name().to_owned(),
                        self.execute(place, origin, generation, step, shards, seen).await,
                    )
                })
                .collect();
            let results: Vec<(String, Result<(), WriteError>)> =
                stream::iter(steps).buffer_unordered(8).collect().await;
            for (name, result) in results {
                match result {
                    Ok(()) => {}
                    Err(WriteError::Taken(owner)) => {
                        self.expected.lock().remove(&(place.to_owned(), name.clone()));
                        outcome.taken.insert(name, owner);
                    }
                    Err(WriteError::Request(error)) => {
                        outcome.failure.get_or_insert_with(|| message_of(&error));
                    }
                }
            }
            if outcome.failure.is_some() {
                break;
            }
        }
        outcome
    }

    /// Wanted names that the index knows to be in use for others: no need to ask.
    fn taken(
        &self,
        place: &str,
        origin: &Origin,
        wanted: &BTreeMap<String, Wanted>,
    ) -> BTreeMap<String, Origin> {
        let index = self.index.lock();
        wanted
            .keys()
            .filter_map(|name| {
                let other = index.get(&(place.to_owned(), name.clone()))?;
                (*other.origin != *origin).then(|| (name.clone(), (*other.origin).clone()))
            })
            .collect()
    }

    async fn execute(
        &self,
        place: &str,
        origin: &Origin,
        generation: &str,
        step: &Step,
        shards: &PlannedShards,
        seen: &BTreeMap<String, Arc<Seen>>,
    ) -> Result<(), WriteError> {
        let (name, create) = match step {
            Step::Delete(name) => {
                self.expected.lock().remove(&(place.to_owned(), name.clone()));
                let Some(old) = seen.get(name) else { return Ok(()) };
                return Ok(self.writer.delete(place, name, &old.uid).await?);
            }
            Step::Create(name) => (name, true),
            Step::Update(name) => (name, false),
        };
        let Some(planned) = shards.get(name) else { return Ok(()) };
        let envelope = planned
            .envelope
            .get_or_init(|| self.config.transport.wrap(&planned.members.iter().collect::<Vec<_>>()));
        let target = Target { namespace: place, name, origin, generation, spec: &envelope.spec };
        let written = if create {
            self.writer.create(&target).await?
        } else {
            let old = seen.get(name);
            let version = old.map(|old| old.resource_version.clone());
            let finalizers = old.map(|old| old.finalizers.clone());
            self.writer.update(&target, version, finalizers).await?
        };
        let contents = planned.contents.get_or_init(|| {
            let item = |w: &Wrapee| Item {
                identity: w.content.identity.clone(),
                digest: w.content.digest,
                create_only: w.create_only,
            };
            Arc::new(planned.members.iter().map(item).collect())
        });
        let fingerprint = planned.wanted.fingerprint;
        let fresh = Seen::new(&written, fingerprint, contents.clone(), planned.wanted.items.clone());
        let touched = self.index.lock().put((place.to_owned(), name.clone()), fresh);
        self.enqueue_all(touched.into_iter().filter(|o| o != origin).collect());
        Ok(())
    }

    fn schedule_refresh(&self, binding: &str) {
        if self.refreshing.lock().insert(binding.to_owned()) {
            self.queue.add_after(Work::Refresh(binding.to_owned()), self.config.refresh_after);
        }
    }

    /// Brings generation annotations up to date, some time after the changes that made them old (KS-091).
    pub(super) async fn refresh(&self, name: &str) {
        self.refreshing.lock().remove(name);
        let Some(binding) = self.bindings.lock().get(name).cloned() else { return };
        if binding.metadata.deletion_timestamp.is_some() {
            return;
        }
        let generation = binding.metadata.generation.unwrap_or_default().to_string();
        let all = self.index.lock().of(&self.origin(&binding));
        for ((namespace, name), seen) in all {
            if seen.deleting || seen.binding_generation == generation {
                continue;
            }
            if let Err(error) = self.writer.refresh(&namespace, &name, &seen.uid, &generation).await {
                tracing::debug!(%namespace, %name, %error, "generation annotation not refreshed");
            }
        }
    }

    /// KS-086, KS-079: nothing of a Binding that goes stays behind, wherever it is.
    async fn withdraw(&self, binding: &Binding) -> Result<(), SyncError> {
        if !has_finalizer(binding) {
            return Ok(());
        }
        let all = self.index.lock().of(&self.origin(binding));
        {
            let mut expected = self.expected.lock();
            for (key, _) in &all {
                expected.remove(key);
            }
        }
        let deletions: Vec<_> = all
            .iter()
            .filter(|(_, seen)| !seen.deleting)
            .map(|((namespace, name), seen)| self.writer.delete(namespace, name, &seen.uid))
            .collect();
        let outcomes: Vec<Result<(), kube::Error>> = stream::iter(deletions)
            .buffer_unordered(self.config.parallel_destinations.max(1))
            .collect()
            .await;
        if let Some(error) = outcomes.into_iter().find_map(Result::err) {
            return Err(SyncError::Wrapped(message_of(&error)));
        }
        match self.set_finalizer(binding, false).await {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(SyncError::Binding(error)),
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
            self.bindings.lock().insert(name, patched.clone());
        }
        Ok(patched)
    }

    /// KS-094, KS-013: only our two fields, and only when they differ.
    async fn report(
        &self,
        binding: &Binding,
        errors: Vec<String>,
        memory: &mut Memory,
    ) -> Result<(), kube::Error> {
        let generation = binding.metadata.generation.unwrap_or_default();
        let uid = binding.metadata.uid.clone().unwrap_or_default();
        let wanted = Reported { uid, generation, errors };
        if memory.reported_for(binding) == Some(&wanted) {
            return Ok(());
        }
        let errors = if wanted.errors.is_empty() { Value::Null } else { json!(wanted.errors) };
        let patch = json!({"metadata": {"uid": binding.metadata.uid},
            "status": {"observedGeneration": generation, "errors": errors}});
        let name = binding.metadata.name.clone().unwrap_or_default();
        match self.wds.merge_status::<Value>(&bindings(), "", &name, &patch).await {
            Ok(_) => {
                memory.reported = Some(wanted);
                Ok(())
            }
            // Gone, or another of the same name: its own event will tell.
            Err(error) if is_not_found(&error) || code_of(&error) == 409 => Ok(()),
            Err(error) => Err(error),
        }
    }
}

enum Shards {
    Same(PlannedShards),
    Each(BTreeMap<String, PlannedShards>),
}

impl Shards {
    fn of(&self, destination: &str) -> &PlannedShards {
        static NONE: PlannedShards = BTreeMap::new();
        match self {
            Self::Same(shards) => shards,
            Self::Each(each) => each.get(destination).unwrap_or(&NONE),
        }
    }
}

fn has_finalizer(binding: &Binding) -> bool {
    binding.metadata.finalizers.as_ref().is_some_and(|f| f.iter().any(|f| f == BINDING_FINALIZER))
}

#[cfg(test)]
mod tests;
