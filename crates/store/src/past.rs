//! A collection as it was.

use std::sync::Arc;

use crate::space::Face;
use crate::state::{State, View};
use crate::tree::Tree;
use crate::{Collection, Revision, StoreError};

/// A collection on its way back to an older revision: a newer state, with the events since then undone one after
/// the other, newest first.
///
/// The events are taken from the hub a stride at a time: a writer, who needs the hub to show what has been
/// decided, never waits for a whole history. What is written meanwhile is newer than where this began.
pub(crate) struct Past<'a> {
    face: &'a Face,
    collection: &'a Collection,
    wanted: Revision,
    reached: Revision,
    tree: Tree,
}

impl<'a> Past<'a> {
    /// Begins at the present.
    pub(crate) fn begin(
        face: &'a Face,
        collection: &'a Collection,
        wanted: Revision,
    ) -> Result<Self, StoreError> {
        // Read before the hub is locked: whoever sees a state finds its events there.
        let state: Arc<State> = face.published.load_full();
        if wanted > state.revision {
            return Err(StoreError::Future { asked: wanted, current: state.revision });
        }
        let tree = state.content(collection).map(|content| content.tree.clone()).unwrap_or_default();
        Ok(Self { face, collection, wanted, reached: state.revision, tree })
    }

    /// Undoes a stride; `true` once there is nothing left to undo.
    pub(crate) fn step(&mut self) -> Result<bool, StoreError> {
        let (events, reached) =
            self.face.hub.lock().events_before(self.collection, self.wanted, self.reached)?;
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
