//! State and history of all spaces, rebuilt from records.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::format::{RecordHeader, RecordKind};
use crate::record;
use crate::ring::Ring;
use crate::state::State;
use crate::{Entry, Event, EventKind, Revision};

/// A space as it was read.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) ring: Ring,
    /// Revision of the last record.
    last: u64,
}

/// All spaces by id.
#[derive(Debug, Default)]
pub(crate) struct Spaces(pub(crate) BTreeMap<u32, Loaded>);

impl Spaces {
    /// Does what the record says. Values are copied once, into the memory they stay in.
    ///
    /// # Errors
    /// Why the record cannot stand where it does.
    pub(crate) fn apply(&mut self, header: RecordHeader, body: &[u8]) -> Result<(), &'static str> {
        let RecordHeader { kind, space, revision, .. } = header;
        match kind {
            RecordKind::Space => {
                let name = std::str::from_utf8(body).map_err(|_| "a space's name is no text")?;
                let loaded = self.0.entry(space).or_insert_with(|| Loaded::new(space, name));
                loaded.forget_through(Revision(revision));
            }
            RecordKind::SpaceRemoved => drop(self.0.remove(&space)),
            RecordKind::Put | RecordKind::Deleted => {
                let entry = record::decode(Revision(revision), body).ok_or("it is no object")?;
                let loaded = self.0.get_mut(&space).ok_or("its space is not there")?;
                if revision <= loaded.last {
                    return Err("its revision is out of order");
                }
                loaded.replay(kind == RecordKind::Deleted, entry);
            }
            RecordKind::End => {}
        }
        Ok(())
    }
}

impl Loaded {
    pub(crate) fn new(id: u32, name: &str) -> Self {
        Self { id, name: name.to_owned(), state: State::default(), ring: Ring::default(), last: 0 }
    }

    /// Drops the history up to `floor`.
    pub(crate) fn forget_through(&mut self, floor: Revision) {
        self.ring.prune_through(floor);
        self.ring.floor = self.ring.floor.max(floor);
        self.state.revision = self.state.revision.max(floor);
    }

    /// Takes the next version of an object, or its deletion.
    pub(crate) fn replay(&mut self, deleted: bool, entry: Entry) {
        let revision = entry.revision;
        self.last = revision.0;
        let Some(content) = self.state.content_mut(&entry.key.collection) else { return };
        let entry = content.share(entry);
        let previous = if deleted {
            content.tree.remove(&entry.key.namespace, &entry.key.name)
        } else {
            content.tree.insert(entry.clone())
        };
        self.state.revision = self.state.revision.max(revision);
        if revision > self.ring.floor {
            let kind = match (deleted, &previous) {
                (true, _) => EventKind::Deleted,
                (false, Some(_)) => EventKind::Updated,
                (false, None) => EventKind::Created,
            };
            self.ring.push(Arc::new(Event { kind, entry, previous }));
        }
    }
}
