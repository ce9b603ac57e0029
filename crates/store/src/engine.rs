//! The engine: many spaces over one log.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::committer::{Committer, Order, Request};
use crate::core::{Core, Registry};
use crate::journal::Journal;
use crate::log::{self, Loaded, Log, Repaired};
use crate::published::Shared;
use crate::ring::Ring;
use crate::space::SpaceStore;
use crate::state::State;
use crate::{Limits, ReadLevel, StoreError};

/// Many spaces over one log. Cloning is cheap. Dropping the last handle (of the engine or of a space) ends the
/// journal.
#[derive(Clone, Debug)]
pub struct Engine {
    core: Arc<Core>,
}

impl Engine {
    /// Opens the store in `dir`, making both if absent. The directory is locked until the engine is closed. Every byte of
    /// the store is read and verified. A store of an older version (`spaces.redb`) is taken over first.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::Access`] or [`StoreError::Corrupt`], each naming the path.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_with(dir, Limits::default())
    }

    /// [`Engine::open`] with other bounds.
    ///
    /// # Errors
    /// As for [`Engine::open`].
    pub fn open_with(dir: &Path, limits: Limits) -> Result<Self, StoreError> {
        let (log, loaded) = log::open(dir, false)?;
        Self::start(Some(log), loaded, limits)
    }

    /// [`Engine::open`] for an installation that has been in use: an absent or empty directory is an error, since
    /// starting without the data would take it for deleted.
    ///
    /// # Errors
    /// [`StoreError::Missing`], and as for [`Engine::open`].
    pub fn open_existing(dir: &Path) -> Result<Self, StoreError> {
        let (log, loaded) = log::open(dir, true)?;
        Self::start(Some(log), loaded, Limits::default())
    }

    /// Drops exactly what is damaged in the store in `dir` and keeps the rest. Damaged files are kept as `*.damaged`. The
    /// spaces concerned lose their history, so that their clients list again. An older version of an object comes back
    /// where a newer one is dropped. An undamaged store is not changed; an absent one is made, empty, and listed.
    ///
    /// # Errors
    /// [`StoreError::Locked`]; [`StoreError::Access`]: a file cannot be read or written; [`StoreError::Corrupt`]: a
    /// store of an older version of which nothing can be read.
    pub fn repair(dir: &Path) -> Result<Repaired, StoreError> {
        log::repair(dir)
    }

    /// An engine without a disk: the same in every other respect.
    pub fn in_memory() -> Self {
        Self::in_memory_with(Limits::default())
    }

    /// [`Engine::in_memory`] with other bounds.
    pub fn in_memory_with(limits: Limits) -> Self {
        match Self::start(None, Vec::new(), limits.clone()) {
            Ok(engine) => engine,
            // Only a thread that cannot be started: an engine that refuses writes and says why.
            Err(error) => Self::dead(error, limits),
        }
    }

    fn dead(error: StoreError, limits: Limits) -> Self {
        let failure = Arc::new(Mutex::new(Some(error)));
        let committer = Committer::new(failure.clone());
        Self { core: Arc::new(Core::new(committer, failure, Registry::default(), None, limits)) }
    }

    pub(crate) fn start(log: Option<Log>, loaded: Vec<Loaded>, limits: Limits) -> Result<Self, StoreError> {
        let mut registry = Registry::default();
        let mut persisted = Vec::new();
        for Loaded { id, name, state, ring, .. } in loaded {
            let shared = Arc::new(Shared::new(id, &name, state, ring, limits.queue));
            shared.persisted.store(true, Ordering::Relaxed);
            registry.next_id = registry.next_id.max(id + 1);
            registry.spaces.insert(shared.name.clone(), shared.clone());
            persisted.push(shared);
        }
        let failure = Arc::new(Mutex::new(None));
        let path = log.as_ref().map(|log| log.medium().path("")).unwrap_or_default();
        let committer = Committer::new(failure.clone());
        let deciding = Arc::downgrade(&committer);
        let roll_back = move || {
            if let Some(committer) = deciding.upgrade() {
                committer.submit(Request::Order(Order::RollBack));
            }
        };
        let (journal, thread) =
            Journal::start(log, Box::new(roll_back), failure.clone(), limits.clone(), persisted)
                .map_err(|source| StoreError::Access { path, source: Arc::new(source) })?;
        committer.start(journal);
        Ok(Self { core: Arc::new(Core::new(committer, failure, registry, Some(thread), limits)) })
    }

    /// Opens the space, or creates it. A new space reaches the disk with its first write.
    ///
    /// # Errors
    /// [`StoreError::Closed`].
    pub fn space(&self, name: &str) -> Result<SpaceStore, StoreError> {
        if self.core.is_stopping() {
            return Err(StoreError::Closed);
        }
        let mut registry = self.core.registry.lock();
        let shared = match registry.spaces.get(name) {
            Some(shared) => shared.clone(),
            None => {
                let id = registry.next_id;
                registry.next_id += 1;
                let queue = self.core.limits.queue;
                let shared = Arc::new(Shared::new(id, name, State::default(), Ring::default(), queue));
                registry.spaces.insert(shared.name.clone(), shared.clone());
                shared
            }
        };
        Ok(SpaceStore { shared, core: self.core.clone(), level: ReadLevel::Durable, seen: None })
    }

    /// Names of all spaces, in order.
    pub fn spaces(&self) -> Vec<String> {
        self.core.registry.lock().spaces.keys().map(|name| name.to_string()).collect()
    }

    /// Removes a space with all its data. Its watches end and its handles accept no more writes. A space
    /// opened under the name afterwards starts empty. Nothing happens when there is none.
    ///
    /// # Errors
    /// [`StoreError::Disk`], [`StoreError::ReadOnly`]: the disk refused, the space is as it was. [`StoreError::Closed`].
    pub async fn remove_space(&self, name: &str) -> Result<(), StoreError> {
        let Some(space) = self.core.registry.lock().spaces.remove(name) else { return Ok(()) };
        let (answer, answered) = oneshot::channel();
        self.core.send(Request::Order(Order::Remove { space: space.clone(), answer }))?;
        let removed = answered.await.unwrap_or_else(|_| Err(self.core.why_closed()));
        if removed.is_err() {
            self.core.registry.lock().spaces.entry(space.name.clone()).or_insert(space);
        }
        removed
    }

    /// Fails while no writes are accepted. For readiness checks.
    ///
    /// # Errors
    /// Why.
    pub fn check(&self) -> Result<(), StoreError> {
        self.core.check()
    }

    /// Why the disk takes no writes at present, if so. Reads go on. For `/readyz` and status displays.
    pub fn failure(&self) -> Option<StoreError> {
        self.core.failure()
    }

    /// Commits what is waiting, releases the directory and ends the journal. Watches end; reads go on.
    ///
    /// # Errors
    /// The disk refused writes to the end.
    pub async fn close(&self) -> Result<(), StoreError> {
        let (answer, answered) = oneshot::channel();
        self.core.stop(answer);
        // An error means that it had ended before: there is nothing left to wait for.
        let _ = answered.await;
        self.core.end();
        match self.check() {
            Err(StoreError::Closed) | Ok(()) => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}
