//! The facts that `status` shows. They can be read at any time, also while the installation starts or grows.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use parking_lot::RwLock;
use space::Space;
use store::Engine;

use crate::control::{ServerStatus, SpaceStatus};
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
            components,
            engine: engine.clone(),
            clock: clock.clone(),
        }
    }

    pub(super) fn add(&self, space: &Arc<Space>, role: &'static str) {
        self.spaces.write().push((space.clone(), role));
    }

    pub(super) fn remove(&self, space: &str) {
        self.spaces.write().retain(|(known, _)| known.name() != space);
    }

    pub(super) fn status(&self) -> ServerStatus {
        let store_failure = self.engine.failure().map(|failure| chain(&failure));
        let mut components = self.components.status();
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
            spaces: self.spaces.read().iter().map(|(space, role)| space_status(space, role)).collect(),
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
