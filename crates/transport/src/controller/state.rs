//! What the controller knows. Each watch event is one call that returns what is to be done about it. Pure: no client, no
//! lock, no waiting.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use apis::control::Binding;
use runtime::{ObjectKey, ResourceVersion};
use tokio::time::Instant;

use super::{adaptation::Adaptation, memory::BindingMemory, work::Todo};
use crate::{
    content::Digest,
    customize::properties::Inventory,
    objects::Rules,
    wrapped::{EnvelopeIndex, KnownEnvelope, Mailbox, Origin},
};

/// An input that must be completely listed before anything is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Input {
    Bindings,
    Envelopes,
    Transforms,
    Clusters,
    PropertyMaps,
}

impl Input {
    const ALL: [Self; 5] =
        [Self::Bindings, Self::Envelopes, Self::Transforms, Self::Clusters, Self::PropertyMaps];
}

/// The state of the controller.
pub(super) struct State {
    /// Name of the WDS. Envelopes of other WDSs cause no work (KS-083).
    wds: String,
    missing: BTreeSet<Input>,
    bindings: HashMap<String, Arc<Binding>>,
    envelopes: EnvelopeIndex,
    /// The digest that each envelope should have. A watch event that agrees with it causes no work (KS-084).
    expected: HashMap<ObjectKey, Digest>,
    /// Bindings that wait until an envelope of another Binding is gone (KS-098).
    blocked: HashMap<ObjectKey, BTreeSet<String>>,
    /// CustomTransforms and properties, with their caches.
    adaptation: Adaptation,
    memories: HashMap<String, BindingMemory>,
    /// Bindings with outdated annotations, and when they last became outdated.
    outdated: HashMap<String, Instant>,
}

impl State {
    /// Nothing is known of this WDS yet.
    pub(super) fn new(wds: &str) -> Self {
        Self {
            wds: wds.to_owned(),
            missing: Input::ALL.into(),
            bindings: HashMap::new(),
            envelopes: EnvelopeIndex::default(),
            expected: HashMap::new(),
            blocked: HashMap::new(),
            adaptation: Adaptation::default(),
            memories: HashMap::new(),
            outdated: HashMap::new(),
        }
    }

    /// An input is completely listed. Returns whether all are.
    pub(super) fn listed(&mut self, input: Input) -> bool {
        self.missing.remove(&input);
        self.missing.is_empty()
    }

    /// Returns the origin of a Binding of this WDS.
    pub(super) fn origin(&self, binding: &str) -> Origin {
        Origin { wds: self.wds.clone(), binding: binding.to_owned() }
    }

    fn of_this_wds<'a>(&self, origins: impl IntoIterator<Item = &'a Origin>) -> Todo {
        let own = origins.into_iter().filter(|origin| origin.wds == self.wds);
        Todo::sync(own.map(|origin| origin.binding.clone()))
    }
}

/// Bindings.
impl State {
    /// A Binding changed. It is processed, unless only fields changed that this or the status controller writes.
    pub(super) fn put_binding(&mut self, binding: Binding) -> Todo {
        let name = binding.metadata.name.clone().unwrap_or_default();
        let essence = |b: &Binding| {
            let m = &b.metadata;
            (m.uid.clone(), m.generation, m.deletion_timestamp.is_some(), m.finalizers.clone())
        };
        let fresh = essence(&binding);
        let old = self.bindings.insert(name.clone(), Arc::new(binding));
        if old.is_none_or(|old| essence(&old) != fresh) {
            Todo::sync_at_once([name])
        } else {
            Todo::nothing()
        }
    }

    /// A Binding is gone.
    pub(super) fn gone_binding(&mut self, name: String) -> Todo {
        self.bindings.remove(&name);
        Todo::sync([name])
    }

    /// Number of Bindings.
    pub(super) fn bindings(&self) -> usize {
        self.bindings.len()
    }

    /// Returns a Binding as it is known.
    pub(super) fn binding(&self, name: &str) -> Option<Arc<Binding>> {
        self.bindings.get(name).cloned()
    }

    /// The server answered our write of a Binding. The watch may have reported a later version, another Binding of this
    /// name, or the deletion in the meantime.
    pub(super) fn wrote_binding(&mut self, answer: &Arc<Binding>) {
        let now = &answer.metadata;
        let Some(known) = now.name.as_ref().and_then(|name| self.bindings.get_mut(name)) else { return };
        let then = &known.metadata;
        if then.uid == now.uid && !ResourceVersion::of(now).is_before(&ResourceVersion::of(then)) {
            *known = answer.clone();
        }
    }

    /// Takes out what is remembered of a Binding, empty if that is another Binding of this name. The queue gives one
    /// Binding to one worker at a time; it puts the memory back with [`keep_memory`](Self::keep_memory).
    pub(super) fn take_memory(&mut self, name: &str, binding: &Binding) -> BindingMemory {
        let mut memory = self.memories.remove(name).unwrap_or_default();
        memory.is_about(binding);
        memory
    }

    pub(super) fn keep_memory(&mut self, name: &str, memory: BindingMemory) {
        self.memories.insert(name.to_owned(), memory);
    }

    /// Forgets a Binding that is gone.
    pub(super) fn forget(&mut self, name: &str) {
        self.set_blocked(name, []);
        self.memories.remove(name);
        self.outdated.remove(name);
        self.adaptation.forget(name);
        let origin = self.origin(name);
        self.envelopes.forget(&origin);
    }

    /// Sets the envelopes of others that a Binding waits for; it is processed when they go (KS-098).
    pub(super) fn set_blocked(&mut self, binding: &str, by: impl IntoIterator<Item = ObjectKey>) {
        self.blocked.retain(|_, waiting| {
            waiting.remove(binding);
            !waiting.is_empty()
        });
        for key in by {
            self.blocked.entry(key).or_default().insert(binding.to_owned());
        }
    }

    /// A name changed its owner or became free: Bindings that wait for it try again (KS-098).
    fn unblock(&mut self, key: &ObjectKey) -> Todo {
        Todo::sync_at_once(self.blocked.remove(key).into_iter().flatten())
    }

    /// Annotations of this Binding's envelopes are outdated since `now`, or became so again.
    pub(super) fn set_outdated(&mut self, binding: &str, now: Instant) {
        self.outdated.insert(binding.to_owned(), now);
    }

    /// Returns since when annotations of a Binding's envelopes are outdated.
    pub(super) fn outdated_since(&self, binding: &str) -> Option<Instant> {
        self.outdated.get(binding).copied()
    }

    /// The annotations are refreshed, unless they became outdated again after `since`.
    pub(super) fn refreshed(&mut self, binding: &str, since: Instant) {
        if self.outdated.get(binding) == Some(&since) {
            self.outdated.remove(binding);
        }
    }
}

/// CustomTransforms, clusters and their properties.
impl State {
    pub(super) fn adaptation(&self) -> &Adaptation {
        &self.adaptation
    }

    pub(super) fn adaptation_mut(&mut self) -> &mut Adaptation {
        &mut self.adaptation
    }

    /// A ManagedCluster changed, or with `None` is gone.
    pub(super) fn put_cluster(&mut self, name: &str, now: Option<Inventory>) -> Todo {
        let (todo, is_back) = self.adaptation.put_cluster(name, now);
        if !is_back {
            return todo;
        }
        // The cluster was deleted, which is rare. Looking at all Bindings finds those that still list it.
        let lists = |binding: &Binding| binding.spec.destinations.iter().any(|d| d.cluster_id == name);
        let listing = self.bindings.iter().filter(|(_, binding)| lists(binding));
        todo.and(Todo::sync(listing.map(|(binding, _)| binding.clone())))
    }

    /// Returns the instructions for a Binding's objects; see [`Adaptation::rules`].
    pub(super) fn rules(&mut self, name: &str, binding: &Binding) -> (Rules, Todo) {
        self.adaptation.rules(name, binding)
    }
}

/// Envelopes.
impl State {
    pub(super) fn envelopes(&self) -> &EnvelopeIndex {
        &self.envelopes
    }

    pub(super) fn envelopes_mut(&mut self) -> &mut EnvelopeIndex {
        &mut self.envelopes
    }

    /// The watch reported an envelope. If it is as this controller means it to be, only the Bindings of which it delivers
    /// an object twice are processed (KS-084, KS-147).
    pub(super) fn put_envelope(&mut self, key: ObjectKey, seen: KnownEnvelope) -> Todo {
        let (old, origin) = (self.envelopes.get(&key), seen.origin.clone());
        let others = old.iter().map(|old| &old.origin).find(|old| **old != origin).cloned();
        let as_meant = others.is_none()
            && match self.expected.get(&key) {
                Some(digest) => *digest == seen.fingerprint && seen.exactly_labelled && !seen.deleting,
                None => seen.deleting,
            };
        if as_meant {
            let touched = self.envelopes.put(key, seen);
            return self.of_this_wds(&touched);
        }
        // Envelopes of other WDSs do not concern this controller, and it would never forget them.
        for origin in [Some(&origin), others.as_ref()].into_iter().flatten() {
            if origin.wds == self.wds {
                self.envelopes.note_foreign_change(origin, &key.namespace);
            }
        }
        let touched = self.envelopes.put(key.clone(), seen);
        let todo = self.of_this_wds(touched.iter().chain([&*origin]).chain(others.as_deref()));
        if others.is_some() { todo.and(self.unblock(&key)) } else { todo }
    }

    /// An envelope is gone. One that this controller deleted is expected to go; any other must be created again (KS-084).
    pub(super) fn gone_envelope(&mut self, key: &ObjectKey) -> Todo {
        let wanted = self.expected.contains_key(key);
        let Some((old, touched)) = self.envelopes.remove(key) else { return Todo::nothing() };
        if wanted {
            self.envelopes.note_foreign_change(&old.origin, &key.namespace);
        }
        let lost = wanted.then_some(&*old.origin);
        self.of_this_wds(touched.iter().chain(lost)).and(self.unblock(key))
    }

    /// The watch has listed all envelopes. One that this controller made and that was not in the list is gone: it was
    /// deleted while the watch was interrupted. If it was made after the list, its Binding finds it again.
    pub(super) fn envelopes_listed(&mut self) -> Todo {
        let missing = self.envelopes.unreported();
        missing.iter().fold(Todo::nothing(), |todo, key| todo.and(self.gone_envelope(key)))
    }

    /// The server answered our write of an envelope of `origin`. Other Bindings are processed if this changes what is
    /// delivered twice.
    pub(super) fn wrote_envelope(
        &mut self,
        key: &ObjectKey,
        written: KnownEnvelope,
        origin: &Origin,
    ) -> Todo {
        let touched = self.envelopes.wrote(key.clone(), written);
        self.of_this_wds(touched.iter().filter(|other| *other != origin))
    }

    /// Returns the counters of foreign changes by mailbox, and the envelopes of a Binding by mailbox.
    pub(super) fn delivered(&self, origin: &Origin) -> (HashMap<String, u64>, BTreeMap<String, Mailbox>) {
        (self.envelopes.foreign_changes(origin), self.envelopes.of(origin))
    }

    /// Returns those of the names in a mailbox that belong to other Bindings, with these.
    pub(super) fn owned_by_others<'a>(
        &self,
        mailbox: &str,
        origin: &Origin,
        names: impl Iterator<Item = &'a String>,
    ) -> BTreeMap<String, Origin> {
        let other = |name: &String| {
            let known = self.envelopes.get(&ObjectKey::new(mailbox, name))?;
            (*known.origin != *origin).then(|| (name.clone(), (*known.origin).clone()))
        };
        names.filter_map(other).collect()
    }

    /// An envelope should have this digest from now on.
    pub(super) fn expect(&mut self, mailbox: &str, name: &str, digest: Digest) {
        self.expected.insert(ObjectKey::new(mailbox, name), digest);
    }

    /// From now on every event of an envelope but its deletion causes a new look.
    pub(super) fn expect_nothing(&mut self, mailbox: &str, name: &str) {
        self.expected.remove(&ObjectKey::new(mailbox, name));
    }
}

#[cfg(test)]
impl State {
    pub(super) fn expects_nothing(&self) -> bool {
        self.expected.is_empty()
    }

    pub(super) fn blocks_nothing(&self) -> bool {
        self.blocked.is_empty()
    }
}

#[cfg(test)]
mod tests;
