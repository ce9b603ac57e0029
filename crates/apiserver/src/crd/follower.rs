//! Follows the CustomResourceDefinitions of a space.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use serde_json::Value;
use store::{
    Action, Collection, Entry, EventKind, Expect, Revision, Scope, SpaceStore, StoreError, Watch, Write,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::server_writes::{API_VERSION, KIND, track};
use super::status::{self, GrantedNames};
use super::strategy::CustomStrategy;
use super::{GROUP, PLURAL, cleanup, compile, versions};
use crate::admission::Admission;
use crate::catalog::{Catalog, Group};
use crate::descriptor::Descriptor;
use crate::encode;
use crate::kinds::value::{at, has, text};

/// Pause before a failed pass is tried again.
const RETRY: std::time::Duration = std::time::Duration::from_millis(200);

/// A definition and its compiled resources.
struct KnownDefinition {
    entry: Arc<Entry>,
    crd: Value,
    /// The parts of the definition that the descriptors were compiled from.
    compiled_from: Value,
    descriptors: Vec<Arc<Descriptor>>,
}

#[derive(Default)]
struct State {
    known: BTreeMap<String, KnownDefinition>,
    revision: Revision,
    /// Definitions whose conditions may need a write.
    dirty: BTreeSet<String>,
    /// Converts custom resources between versions.
    conversion: Option<Arc<dyn Admission>>,
}

impl State {
    /// Records a stored definition.
    fn learn(&mut self, entry: &Arc<Entry>) {
        let name = entry.key.name.to_string();
        let before = self.known.remove(&name);
        if let Some(known) = learn(entry, before, self.conversion.as_ref()) {
            self.mark_group_dirty(text(&known.crd, "spec.group"));
            self.known.insert(name.clone(), known);
            self.dirty.insert(name);
        }
    }

    fn forget(&mut self, name: &str) {
        if let Some(known) = self.known.remove(name) {
            self.mark_group_dirty(text(&known.crd, "spec.group"));
        }
    }

    /// Marks the definitions of a group whose names were refused: a change of another definition may have freed the names.
    fn mark_group_dirty(&mut self, group: &str) {
        let refused = |known: &KnownDefinition| {
            text(&known.crd, "spec.group") == group && !status::is_true(&known.crd, "NamesAccepted")
        };
        self.dirty.extend(self.known.iter().filter(|(_, k)| refused(k)).map(|(name, _)| name.clone()));
    }
}

/// Follows the CustomResourceDefinitions of a space: keeps the catalog current, writes their conditions, and deletes
/// the instances of deleted ones (AS-040, AS-049).
pub struct Follower {
    store: SpaceStore,
    catalog: Arc<ArcSwap<Catalog>>,
    state: Mutex<State>,
}

impl Follower {
    /// A follower that has not read anything yet. `conversion` converts custom resources between versions.
    pub fn new(
        store: SpaceStore,
        catalog: Arc<ArcSwap<Catalog>>,
        conversion: Option<Arc<dyn Admission>>,
    ) -> Self {
        Self { store, catalog, state: Mutex::new(State { conversion, ..State::default() }) }
    }

    /// Loads all CustomResourceDefinitions into the catalog and writes missing conditions.
    pub async fn sync(&self) {
        let mut state = std::mem::take(&mut *self.state.lock());
        self.load(&mut state);
        if let Err(error) = self.write_conditions(&mut state).await {
            tracing::warn!(%error, "conditions of custom resource definitions could not be written");
        }
        *self.state.lock() = state;
    }

    /// Follows changes until `stop` is cancelled. Returns when its clean-up tasks have ended.
    pub async fn run(self, stop: CancellationToken) {
        let mut state = std::mem::take(&mut *self.state.lock());
        let mut cleaning = Cleanups::default();
        while !stop.is_cancelled() {
            match self.follow(&mut state, &mut cleaning, &stop).await {
                Ok(()) | Err(StoreError::Closed) => break,
                Err(StoreError::Compacted { .. }) => self.load(&mut state),
                Err(error) => {
                    tracing::warn!(%error, "following custom resource definitions");
                    tokio::select! {
                        () = stop.cancelled() => break,
                        () = tokio::time::sleep(RETRY) => self.load(&mut state),
                    }
                }
            }
        }
        cleaning.tasks.shutdown().await;
    }

    async fn follow(
        &self,
        state: &mut State,
        cleaning: &mut Cleanups,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let scope = Scope::all(collection());
        let mut watch = self.store.watch(scope, state.revision)?;
        loop {
            self.write_conditions(state).await?;
            cleaning.start(&self.store, state);
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                Some(done) = cleaning.tasks.join_next() => cleaning.finished(done),
                event = watch.next() => {
                    let event = event?;
                    apply(state, &event);
                    drain(state, &mut watch)?;
                    self.publish(state);
                }
            }
        }
    }

    /// Reads everything again from the store.
    fn load(&self, state: &mut State) {
        let snapshot = self.store.snapshot();
        state.revision = snapshot.revision();
        let view = snapshot.view(&collection());
        state.known.retain(|name, _| view.get("", name).is_some());
        view.iter(None, None).for_each(|entry| state.learn(entry));
        self.publish(state);
    }

    /// Publishes the known definitions in the catalog.
    fn publish(&self, state: &State) {
        let current = self.catalog.load();
        let next = assemble(state.known.values(), current.generation + 1);
        let same = next.groups() == current.groups() && same_resources(&next, &current);
        if !same {
            self.catalog.store(Arc::new(next));
        }
    }

    /// Decides and writes pending conditions. A definition is served before its condition says so.
    async fn write_conditions(&self, state: &mut State) -> Result<(), StoreError> {
        while let Some(name) = state.dirty.pop_first() {
            let Some((entry, new)) = pending_write(state, &name) else { continue };
            let first = state.known.get(&name).is_some_and(|known| !status::is_served(&known.crd));
            if first && status::is_served(&new) {
                self.delete_leftovers(&new).await?;
            }
            let conversion = state.conversion.clone();
            if let Some(known) = state.known.get_mut(&name) {
                let stored = std::mem::replace(&mut known.crd, new.clone());
                recompile(known, conversion.as_ref());
                track(&stored, &mut known.crd);
            }
            self.publish(state);
            let Some(tracked) = state.known.get(&name).map(|known| &known.crd) else { continue };
            let encoded = encode::encode(tracked, API_VERSION, KIND);
            let write = Write {
                key: entry.key.clone(),
                expect: Expect::At(entry.revision),
                action: Action::Put(encoded),
            };
            match self.store.commit(write).await {
                Ok(stored) => {
                    if let Some(known) = state.known.get_mut(&name) {
                        known.entry = stored;
                    }
                    state.mark_group_dirty(text(&new, "spec.group"));
                }
                Err(StoreError::Conflict { actual: Some(actual), .. }) => state.learn(&actual),
                Err(StoreError::Conflict { actual: None, .. }) => {
                    state.forget(&name);
                    self.publish(state);
                }
                Err(error) => {
                    state.dirty.insert(name);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Deletes instances left over by a former definition of the same name, so that a new one starts empty (AS-049).
    async fn delete_leftovers(&self, crd: &Value) -> Result<(), StoreError> {
        let left = cleanup::instances(crd);
        let entries: Vec<Arc<Entry>> = self.store.snapshot().view(&left).iter(None, None).cloned().collect();
        cleanup::remove_all(&self.store, &entries).await
    }
}

pub(super) fn collection() -> Collection {
    Collection::new(GROUP, PLURAL)
}

fn drain(state: &mut State, watch: &mut Watch) -> Result<(), StoreError> {
    while let Some(event) = watch.try_next()? {
        apply(state, &event);
    }
    Ok(())
}

fn apply(state: &mut State, event: &store::Event) {
    let entry = &event.entry;
    state.revision = entry.revision;
    let name = &*entry.key.name;
    if event.kind == EventKind::Deleted {
        // Skip the deletion of a former definition if the name has been created again.
        if state.known.get(name).is_some_and(|known| known.entry.revision <= entry.revision) {
            state.forget(name);
        }
        return;
    }
    if state.known.get(name).is_none_or(|known| known.entry.revision < entry.revision) {
        state.learn(entry);
    }
}

/// Reads a stored definition. Reuses the compiled descriptors if they are current.
fn learn(
    entry: &Arc<Entry>,
    before: Option<KnownDefinition>,
    conversion: Option<&Arc<dyn Admission>>,
) -> Option<KnownDefinition> {
    let crd: Value = match serde_json::from_slice(&entry.value) {
        Ok(crd) => crd,
        Err(error) => {
            tracing::error!(name = %entry.key.name, %error, "a stored definition cannot be read");
            return None;
        }
    };
    let (compiled_from, descriptors) = before.map(|b| (b.compiled_from, b.descriptors)).unwrap_or_default();
    let mut known = KnownDefinition { entry: entry.clone(), crd, compiled_from, descriptors };
    recompile(&mut known, conversion);
    Some(known)
}

/// The parts of a definition that its descriptors depend on.
fn compile_input(crd: &Value) -> Value {
    Value::Array(vec![
        at(crd, "spec").clone(),
        at(crd, "status.acceptedNames").clone(),
        at(crd, "metadata.uid").clone(),
        status::is_served(crd).into(),
        at(crd, "metadata.annotations").clone(),
        has(crd, "metadata.deletionTimestamp").into(),
    ])
}

fn recompile(known: &mut KnownDefinition, conversion: Option<&Arc<dyn Admission>>) {
    let compile_input = compile_input(&known.crd);
    if compile_input == known.compiled_from {
        return;
    }
    known.compiled_from = compile_input;
    let conversion = conversion.filter(|by| by.converts(&known.crd));
    known.descriptors = if status::is_served(&known.crd) {
        match compile::compile(&known.crd, known.entry.revision.0) {
            Ok(descriptors) => descriptors.into_iter().map(|d| Arc::new(converting(d, conversion))).collect(),
            Err(errors) => {
                let name = text(&known.crd, "metadata.name");
                tracing::error!(name, ?errors, "a stored definition cannot be served");
                Vec::new()
            }
        }
    } else {
        Vec::new()
    };
}

/// The descriptor with the converter of its versions.
fn converting(mut descriptor: Descriptor, conversion: Option<&Arc<dyn Admission>>) -> Descriptor {
    if let (Some(by), Some(resource)) = (conversion, &descriptor.custom) {
        let conversion = Some((by.clone(), descriptor.group.clone()));
        descriptor.strategy = Arc::new(CustomStrategy { resource: resource.clone(), conversion });
    }
    descriptor
}

/// The definition with pending conditions; `None` if nothing is pending.
fn pending_write(state: &State, name: &str) -> Option<(Arc<Entry>, Value)> {
    let known = state.known.get(name)?;
    let mut new = known.crd.clone();
    let now = machinery::time::now();
    if has(&new, "metadata.deletionTimestamp") {
        if status::is_true(&new, "Terminating") || status::is_served(&new) {
            status::set(&mut new, &now, &status::IN_PROGRESS);
        }
    } else {
        let mut taken = GrantedNames::default();
        let group = text(&new, "spec.group");
        state
            .known
            .iter()
            .filter(|(other, k)| *other != name && text(&k.crd, "spec.group") == group)
            .for_each(|(_, k)| taken.add(&k.crd));
        status::decide(&mut new, &taken, &now);
    }
    (new != known.crd).then(|| (known.entry.clone(), new))
}

/// The catalog of the built-in resources and those of the definitions.
fn assemble<'a>(known: impl Iterator<Item = &'a KnownDefinition>, generation: u64) -> Catalog {
    let base = crate::builtin::catalog();
    let custom: Vec<Arc<Descriptor>> = known.flat_map(|k| k.descriptors.iter().cloned()).collect();
    let mut custom_groups: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for descriptor in &custom {
        if seen.insert((&descriptor.group, &descriptor.version)) {
            custom_groups.entry(&descriptor.group).or_default().push(descriptor.version.clone());
        }
    }
    let mut groups = base.groups().to_vec();
    let places: BTreeMap<&str, usize> =
        base.groups().iter().enumerate().map(|(place, group)| (group.name.as_str(), place)).collect();
    for (name, mut added) in custom_groups {
        match places.get(name).and_then(|place| groups.get_mut(*place)) {
            Some(group) => {
                // Built-in groups have few versions.
                added.retain(|v| !group.versions.contains(v));
                group.versions.append(&mut added);
            }
            None => {
                versions::sort(&mut added);
                groups.push(Group { name: name.to_owned(), versions: added });
            }
        }
    }
    Catalog::new(groups, base.all().cloned().chain(custom), generation)
}

fn same_resources(a: &Catalog, b: &Catalog) -> bool {
    a.all().count() == b.all().count() && a.all().zip(b.all()).all(|(a, b)| Arc::ptr_eq(a, b))
}

/// Clean-up tasks by the uid of their definition. A task ends when the definition is gone.
#[derive(Default)]
struct Cleanups {
    tasks: JoinSet<(String, Result<(), StoreError>)>,
    running: BTreeSet<String>,
}

impl Cleanups {
    fn start(&mut self, store: &SpaceStore, state: &State) {
        for known in state.known.values() {
            let uid = text(&known.crd, "metadata.uid").to_owned();
            if !cleanup::is_due(&known.crd) || !self.running.insert(uid.clone()) {
                continue;
            }
            let (store, key, crd) = (store.clone(), known.entry.key.clone(), known.crd.clone());
            self.tasks.spawn(async move {
                let outcome = cleanup::run(&store, key, &crd).await;
                if outcome.is_err() {
                    tokio::time::sleep(RETRY).await;
                }
                (uid, outcome)
            });
        }
    }

    fn finished(&mut self, done: Result<(String, Result<(), StoreError>), tokio::task::JoinError>) {
        match done {
            Ok((uid, outcome)) => {
                self.running.remove(&uid);
                if let Err(error) = outcome {
                    tracing::warn!(%error, "removing the instances of a deleted definition");
                }
            }
            Err(error) => tracing::error!(%error, "a clean-up task ended badly"),
        }
    }
}

/// The key of a definition.
#[cfg(test)]
pub(super) fn key(name: &str) -> store::Key {
    store::Key { collection: collection(), namespace: "".into(), name: name.into() }
}
