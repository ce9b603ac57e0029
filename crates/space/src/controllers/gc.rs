//! The garbage collector (AS-051).
//!
//! The graph holds only objects that have owners or wait for their dependents; owners are looked up in the store. One
//! event costs a visit of the object's metadata, plus one of each dependent when an owner is deleted. No cost is
//! proportional to the number of objects.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use store::{Entry, Key, Revision, Snapshot};

use crate::kinds::{Kinds, Resource};

/// Unique identifier of an object.
pub(crate) type Uid = Arc<str>;

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// An owner reference.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Owner {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
    uid: Uid,
    #[serde(default)]
    block_owner_deletion: Option<bool>,
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    owner_references: Vec<Owner>,
    #[serde(default)]
    finalizers: Vec<String>,
    #[serde(default)]
    deletion_timestamp: Option<String>,
}

/// An object that has owners, or that waits for its dependents.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    key: Key,
    revision: Revision,
    owners: Vec<Owner>,
    deleting: bool,
    foreground: bool,
    orphan: bool,
}

impl Node {
    /// `None` for objects that garbage collection does not concern.
    fn of(entry: &Entry) -> Option<Self> {
        let Object { metadata } = serde_json::from_slice(&entry.value).ok()?;
        let deleting = metadata.deletion_timestamp.is_some();
        let has = |finalizer: &str| metadata.finalizers.iter().any(|one| one == finalizer);
        let node = Self {
            key: entry.key.clone(),
            revision: entry.revision,
            deleting,
            foreground: has(FOREGROUND),
            orphan: has(ORPHAN),
            owners: metadata.owner_references,
        };
        (!node.owners.is_empty() || node.waits_for_dependents() || node.orphans_dependents()).then_some(node)
    }

    fn waits_for_dependents(&self) -> bool {
        self.deleting && self.foreground
    }

    fn orphans_dependents(&self) -> bool {
        self.deleting && self.orphan
    }
}

/// The state of an owner when a dependent is visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerState {
    Solid,
    Absent,
    /// It is being deleted in the foreground.
    Waiting,
    /// Its kind is not served (yet).
    Unknown,
    /// The dependent is cluster-scoped and the owner is in a namespace, which is not allowed.
    Impossible,
}

/// The next action for one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Delete {
        key: Key,
        uid: Uid,
        revision: Revision,
        policy: &'static str,
    },
    /// Remove the references to these owners.
    Prune {
        key: Key,
        uid: Uid,
        owners: Vec<Uid>,
    },
    /// Unset `blockOwnerDeletion`: the object waits for dependents that wait for it.
    Unblock {
        key: Key,
        uid: Uid,
        then: Box<Action>,
    },
    /// Remove the finalizer: nothing blocks the owner any more.
    Finish {
        key: Key,
        uid: Uid,
        finalizer: &'static str,
    },
    /// Remove the reference to `owner` from each of these dependents, then the finalizer.
    Orphan {
        owner: Key,
        uid: Uid,
        dependents: Vec<(Key, Uid)>,
    },
    /// Warn the user that the owner reference is invalid.
    Warn {
        key: Key,
        uid: Uid,
        owner: String,
    },
    /// The kind of an owner is not known: visit the object again later.
    Later,
}

/// The graph of owners and dependents.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    nodes: HashMap<Uid, Node>,
    dependents: HashMap<Uid, BTreeSet<Uid>>,
}

impl Graph {
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Records the current state of an object.
    pub(crate) fn put(&mut self, entry: &Entry, enqueue: &mut dyn FnMut(Uid)) {
        let uid: Uid = entry.meta.uid.as_ref().into();
        let Some(node) = Node::of(entry) else {
            self.forget(&uid, enqueue);
            return;
        };
        let before = self.nodes.get(&uid).cloned();
        for owner in before.iter().flat_map(|before| &before.owners) {
            if !node.owners.contains(owner) {
                self.unlink(&uid, &owner.uid);
                self.look_if_waiting(&owner.uid, enqueue);
            }
        }
        for owner in &node.owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(uid.clone());
        }
        let waits =
            node.waits_for_dependents() && !before.is_some_and(|before| before.waits_for_dependents());
        self.nodes.insert(uid.clone(), node);
        if waits {
            for dependent in self.dependents_of(&uid) {
                enqueue(dependent);
            }
        }
        enqueue(uid);
    }

    /// Records the deletion of an object.
    pub(crate) fn remove(&mut self, uid: &str, enqueue: &mut dyn FnMut(Uid)) {
        let uid: Uid = uid.into();
        self.forget(&uid, enqueue);
        for dependent in self.dependents_of(&uid) {
            enqueue(dependent);
        }
    }

    fn forget(&mut self, uid: &Uid, enqueue: &mut dyn FnMut(Uid)) {
        let Some(node) = self.nodes.remove(uid) else { return };
        for owner in &node.owners {
            self.unlink(uid, &owner.uid);
            self.look_if_waiting(&owner.uid, enqueue);
        }
    }

    fn unlink(&mut self, dependent: &Uid, owner: &Uid) {
        if let Some(dependents) = self.dependents.get_mut(owner) {
            dependents.remove(dependent);
            if dependents.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }

    fn look_if_waiting(&self, owner: &Uid, enqueue: &mut dyn FnMut(Uid)) {
        if self.nodes.get(owner).is_some_and(Node::waits_for_dependents) {
            enqueue(owner.clone());
        }
    }

    fn dependents_of(&self, owner: &Uid) -> Vec<Uid> {
        self.dependents.get(owner).into_iter().flatten().cloned().collect()
    }

    /// The dependents that block the foreground deletion of `owner`. A reference from another namespace is not valid: nobody
    /// may keep an object of others by naming its uid.
    fn blocking(&self, owner: &Uid) -> impl Iterator<Item = &Node> {
        let place = self.nodes.get(owner).map_or("", |node| &*node.key.namespace);
        self.dependents.get(owner).into_iter().flatten().filter_map(|uid| self.nodes.get(uid)).filter(
            move |node| {
                let names = |one: &Owner| one.uid == *owner && one.block_owner_deletion == Some(true);
                (place.is_empty() || *node.key.namespace == *place) && node.owners.iter().any(names)
            },
        )
    }

    fn owner_state(node: &Node, owner: &Owner, kinds: &Kinds, all: &Snapshot) -> OwnerState {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let Some(resource) = kinds.of_kind(group, &owner.kind) else { return OwnerState::Unknown };
        if resource.namespaced && node.key.namespace.is_empty() {
            return OwnerState::Impossible;
        }
        let namespace = if resource.namespaced { node.key.namespace.clone() } else { "".into() };
        let key =
            Key { collection: resource.collection.clone(), namespace, name: owner.name.as_str().into() };
        match all.get(&key) {
            Some(found) if *found.meta.uid == *owner.uid => {
                let waits = Node::of(&found).is_some_and(|found| found.waits_for_dependents());
                if waits { OwnerState::Waiting } else { OwnerState::Solid }
            }
            _ => OwnerState::Absent,
        }
    }

    /// The next action for the object, if it needs one.
    pub(crate) fn next_action(&self, uid: &Uid, kinds: &Kinds, all: &Snapshot) -> Option<Action> {
        let node = self.nodes.get(uid)?;
        if node.orphans_dependents() {
            let dependents = self.dependents_of(uid);
            let dependents =
                dependents.into_iter().filter_map(|uid| Some((self.nodes.get(&uid)?.key.clone(), uid)));
            return Some(Action::Orphan {
                owner: node.key.clone(),
                uid: uid.clone(),
                dependents: dependents.collect(),
            });
        }
        if node.waits_for_dependents() {
            let free = self.blocking(uid).next().is_none();
            return free.then(|| Action::Finish {
                key: node.key.clone(),
                uid: uid.clone(),
                finalizer: FOREGROUND,
            });
        }
        if node.deleting {
            return None;
        }
        let states: Vec<_> =
            node.owners.iter().map(|owner| (owner, Self::owner_state(node, owner, kinds, all))).collect();
        self.decide(uid, node, &states)
    }

    fn decide(&self, uid: &Uid, node: &Node, owners: &[(&Owner, OwnerState)]) -> Option<Action> {
        let is = |wanted: OwnerState| {
            owners.iter().filter(move |(_, state)| *state == wanted).map(|(owner, _)| *owner)
        };
        let key = || node.key.clone();
        if let Some(owner) = is(OwnerState::Impossible).next() {
            let owner = format!("{} {}", owner.kind, owner.name);
            return Some(Action::Warn { key: key(), uid: uid.clone(), owner });
        }
        if is(OwnerState::Unknown).next().is_some() {
            return Some(Action::Later);
        }
        let waiting = is(OwnerState::Waiting).next().is_some();
        let lost: Vec<Uid> =
            is(OwnerState::Absent).chain(is(OwnerState::Waiting)).map(|o| o.uid.clone()).collect();
        if lost.is_empty() {
            return None;
        }
        if is(OwnerState::Solid).next().is_some() {
            return Some(Action::Prune { key: key(), uid: uid.clone(), owners: lost });
        }
        let delete =
            |policy| Action::Delete { key: key(), uid: uid.clone(), revision: node.revision, policy };
        let dependents = self.dependents_of(uid);
        if waiting && !dependents.is_empty() {
            // A cycle of objects that wait for each other would never end.
            let circle =
                dependents.iter().any(|uid| self.nodes.get(uid).is_some_and(Node::waits_for_dependents));
            let delete = delete("Foreground");
            return Some(if circle {
                Action::Unblock { key: key(), uid: uid.clone(), then: Box::new(delete) }
            } else {
                delete
            });
        }
        Some(delete(match (node.orphan, node.foreground) {
            (true, _) => "Orphan",
            (false, true) => "Foreground",
            (false, false) => "Background",
        }))
    }
}

/// A merge patch that sets `metadata.<list>` to `kept`, with uid and revision as preconditions.
pub(crate) fn list_patch(uid: &str, revision: Revision, list: &str, kept: Vec<Value>) -> Value {
    json!({"metadata": {"uid": uid, "resourceVersion": revision.to_string(), list: kept}})
}

/// The owner references of a stored object that `keep` accepts.
pub(crate) fn kept_owners(entry: &Entry, keep: impl Fn(&str) -> bool) -> Vec<Value> {
    let uid = |owner: &Value| owner.get("uid").and_then(Value::as_str).unwrap_or_default().to_owned();
    list(entry, "ownerReferences").into_iter().filter(|owner| keep(&uid(owner))).collect()
}

/// A list in `metadata`.
pub(crate) fn list(entry: &Entry, field: &str) -> Vec<Value> {
    let object: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
    object.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Path of an object, if its kind is served.
pub(crate) fn path(kinds: &Kinds, key: &Key) -> Option<String> {
    let resource: Arc<Resource> = kinds.of_collection(&key.collection)?;
    Some(resource.object_path(key))
}

#[cfg(test)]
#[path = "gc_tests.rs"]
mod tests;
