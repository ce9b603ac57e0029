//! The facts that `status` shows. They can be read at any time, also while the installation starts or grows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use parking_lot::RwLock;
use space::Space;
use store::Engine;

use crate::control::{ComponentStatus, ServerStatus, SpaceStatus};
use crate::datadir::DataDir;
use crate::exit::chain;
use crate::shape::Shape;

use super::clock::Clock;
use super::components::States;

/// Shared by the installation, which adds to it, and the control socket, which answers from it.
pub(super) struct Overview {
    data: DataDir,
    begun: Instant,
    url: String,
    simulated_workloads: bool,
    spaces: RwLock<Vec<(Arc<Space>, &'static str)>>,
    /// Names, roles and addresses of suspended spaces.
    suspended: RwLock<BTreeMap<String, (&'static str, String)>>,
    /// Components that do not run because the space that they work with does not.
    waiting: RwLock<Vec<ComponentStatus>>,
    components: States,
    engine: Engine,
    clock: Arc<Clock>,
}

impl Overview {
    /// The overview of an installation with the address of `shape`, in which nothing runs yet.
    pub(super) fn new(
        data: &DataDir,
        shape: &Shape,
        begun: Instant,
        components: States,
        engine: &Engine,
        clock: &Arc<Clock>,
    ) -> Self {
        Self {
            data: data.clone(),
            begun,
            url: format!("https://{}", shape.listen),
            simulated_workloads: shape.simulate_workloads,
            spaces: RwLock::default(),
            suspended: RwLock::default(),
            waiting: RwLock::default(),
            components,
            engine: engine.clone(),
            clock: clock.clone(),
        }
    }

    pub(super) fn add(&self, space: &Arc<Space>, role: &'static str) {
        self.suspended.write().remove(space.name());
        self.spaces.write().push((space.clone(), role));
    }

    /// Forgets a space that was deleted.
    pub(super) fn remove(&self, space: &str) {
        self.suspended.write().remove(space);
        self.spaces.write().retain(|(known, _)| known.name() != space);
    }

    /// Shows a space as suspended, in the role that it had.
    pub(super) fn suspend(&self, space: &str, role: &'static str) {
        let had = self.spaces.read().iter().find(|(known, _)| known.name() == space).map(|(_, role)| *role);
        self.spaces.write().retain(|(known, _)| known.name() != space);
        let url = format!("{}/spaces/{space}", self.url);
        self.suspended.write().entry(space.to_owned()).or_insert((had.unwrap_or(role), url));
    }

    /// Returns whether a space is suspended.
    pub(super) fn is_suspended(&self, space: &str) -> bool {
        self.suspended.read().contains_key(space)
    }

    /// Shows which components do not run because the space that they work with does not.
    pub(super) fn wait(&self, waiting: Vec<ComponentStatus>) {
        *self.waiting.write() = waiting;
    }

    /// The spaces, first those that run.
    fn spaces(&self) -> Vec<SpaceStatus> {
        let mut all: Vec<SpaceStatus> =
            self.spaces.read().iter().map(|(space, role)| space_status(space, role)).collect();
        all.extend(self.suspended.read().iter().map(|(name, (role, url))| SpaceStatus {
            name: name.clone(),
            role: (*role).to_owned(),
            ready: false,
            suspended: true,
            url: url.clone(),
            objects: 0,
        }));
        all
    }

    pub(super) fn status(&self) -> ServerStatus {
        let store_failure = self.engine.failure().map(|failure| chain(&failure));
        let mut components = self.components.status();
        components.extend(self.waiting.read().iter().cloned());
        if let Some(cause) = &store_failure {
            // While the store refuses writes, no component can do its work.
            for component in &mut components {
                component.ready = false;
                component.last_error.get_or_insert_with(|| cause.clone());
            }
        }
        ServerStatus {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.begun.elapsed().as_secs(),
            memory_bytes: resident_memory(),
            store_bytes: directory_size(&self.data.store()),
            url: self.url.clone(),
            simulated_workloads: self.simulated_workloads,
            spaces: self.spaces(),
            components,
            store_failure,
            clock: self.clock.complaint(SystemTime::now()),
        }
    }
}

fn space_status(space: &Space, role: &str) -> SpaceStatus {
    let snapshot = space.server().store().snapshot();
    let objects = snapshot.collections().map(|c| snapshot.view(c).len(None)).sum();
    SpaceStatus {
        name: space.name().to_owned(),
        role: role.to_owned(),
        ready: space.server().ready(),
        suspended: false,
        url: space.url().to_owned(),
        objects,
    }
}

/// Resident set size in bytes; `None` without `/proc`.
fn resident_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn directory_size(dir: &std::path::Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries.flatten().filter_map(|e| e.metadata().ok()).map(|m| m.len()).sum()
}
