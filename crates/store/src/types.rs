//! Identifiers, values and events.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// Revision of one space: strictly increasing over all its writes; 0 is the empty space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// All objects of one (API group, resource) of a space, whatever version they are served in.
///
/// Shape: `group/plural`, for the core group `/plural` (`/configmaps`, `apps/deployments`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Collection(Arc<str>);

impl Collection {
    /// The collection of `plural` in `group` (empty for core).
    pub fn new(group: &str, plural: &str) -> Self {
        Self(format!("{group}/{plural}").into())
    }

    /// The text form, `group/plural`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Where an object is stored. `namespace` is empty for cluster-scoped objects.
///
/// Order within a collection: namespace, then name, bytewise (the order of Kubernetes lists).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub collection: Collection,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

/// The metadata that is searched without parsing a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    pub uid: Box<str>,
    /// Label values by key (`metadata.labels`).
    pub labels: BTreeMap<Box<str>, Box<str>>,
}

/// An object's JSON text around its resource version, which is only known when it is committed:
/// the stored value is `head`, the decimal revision, `tail`.
#[derive(Clone, Debug)]
pub struct Encoded {
    pub head: Bytes,
    pub tail: Bytes,
    pub meta: Meta,
}

/// One stored version of an object. For a deletion event: the last state, at the revision of the deletion.
#[derive(Clone, Debug)]
pub struct Entry {
    pub key: Key,
    /// Revision of the write that made this version; equals `metadata.resourceVersion` inside `value`.
    pub revision: Revision,
    /// The object as JSON text, as served.
    pub value: Bytes,
    pub meta: Meta,
}

/// What must be true of the key for a write to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing is stored under the key.
    Absent,
    /// The stored version is exactly this one.
    At(Revision),
}

/// One conditional write.
#[derive(Clone, Debug)]
pub struct Write {
    pub key: Key,
    pub expect: Expect,
    pub action: Action,
}

impl Write {
    /// Bytes of the text it carries.
    pub(crate) fn size(&self) -> usize {
        let (Action::Put(encoded) | Action::Delete(encoded)) = &self.action;
        encoded.head.len() + encoded.tail.len()
    }
}

#[derive(Clone, Debug)]
pub enum Action {
    Put(Encoded),
    /// Removes the object; the text is its last state, which the deletion event carries.
    Delete(Encoded),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Created,
    Updated,
    Deleted,
}

/// One committed change.
#[derive(Clone, Debug)]
pub struct Event {
    pub kind: EventKind,
    /// The new state, or for `Deleted` the last one, at the event's revision.
    pub entry: Arc<Entry>,
    /// The version before, absent for `Created`.
    pub previous: Option<Arc<Entry>>,
}

/// What a watch covers: a collection, or less of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope {
    pub collection: Collection,
    pub namespace: Option<Arc<str>>,
    pub only: Option<Only>,
}

/// A restriction that is looked up rather than tried, so that a watch costs nothing while others change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Only {
    /// Objects of this name.
    Name(Arc<str>),
    /// Objects that have, or had before the event, this label.
    Label { key: Arc<str>, value: Arc<str> },
}

impl Scope {
    /// A whole collection.
    pub fn all(collection: Collection) -> Self {
        Self { collection, namespace: None, only: None }
    }

    pub(crate) fn covers(&self, event: &Event) -> bool {
        let key = &event.entry.key;
        key.collection == self.collection
            && self.namespace.as_ref().is_none_or(|namespace| key.namespace == *namespace)
            && self.only.as_ref().is_none_or(|only| only.covers(event))
    }
}

impl Only {
    fn covers(&self, event: &Event) -> bool {
        match self {
            Self::Name(name) => event.entry.key.name == *name,
            Self::Label { key, value } => {
                let has = |entry: &Entry| entry.meta.labels.get(&**key).is_some_and(|v| **v == **value);
                has(&event.entry) || event.previous.as_ref().is_some_and(|previous| has(previous))
            }
        }
    }
}

/// Which writes a handle reads, and when its own writes are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadLevel {
    /// Reads what is on the disk; a write is done when it is there.
    Durable,
    /// Reads as `Ahead`, writes as `Durable`.
    Deciding,
    /// Reads what has been decided; a write is done when it has its place in the order of all writes.
    Ahead,
}
