//! Reads of a collection at an older revision.

use std::sync::Arc;

use crate::published::Published;
use crate::state::{State, View};
use crate::tree::Tree;
use crate::{Collection, Revision, StoreError};

/// Restores a collection at an older revision: takes the current state and undoes later events, newest first.
///
/// Events are read from the hub in strides, so that a writer, which needs the hub to publish, never waits for a whole
/// history. Writes after the start are newer than the state that this began with, and are ignored.
pub(crate) struct HistoricalRead<'a> {
    published: &'a Published,
    collection: &'a Collection,
    wanted: Revision,
    reached: Revision,
    tree: Tree,
}

impl<'a> HistoricalRead<'a> {
    /// Begins with the current state.
    pub(crate) fn begin(
        published: &'a Published,
        collection: &'a Collection,
        wanted: Revision,
    ) -> Result<Self, StoreError> {
        // Read before the hub is locked: the hub holds the events of every published state.
        let state: Arc<State> = published.state.load_full();
        if wanted > state.revision {
            return Err(StoreError::Future { asked: wanted, current: state.revision });
        }
        let tree = state.content(collection).map(|content| content.tree.clone()).unwrap_or_default();
        Ok(Self { published, collection, wanted, reached: state.revision, tree })
    }

    /// Undoes a stride of events. Returns `true` when no events are left.
    pub(crate) fn step(&mut self) -> Result<bool, StoreError> {
        let (events, reached) =
            self.published.hub.lock().events_before(self.collection, self.wanted, self.reached)?;
        for event in events {
            match &event.previous {
                Some(previous) => drop(self.tree.insert(previous.clone())),
                None => drop(self.tree.remove(&event.entry.key.namespace, &event.entry.key.name)),
            }
        }
        self.reached = reached;
        Ok(reached <= self.wanted)
    }

    pub(crate) fn finish(mut self) -> Result<View, StoreError> {
        while !self.step()? {}
        Ok(View { revision: self.wanted, tree: self.tree })
    }
}
