//! What is followed, and which ControlPlane gets a pass for what.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use apis::tenancy::{ControlPlane, PostCreateHook};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::Client;
use parking_lot::Mutex;
use runtime::events::{self, Events, Recorder};
use runtime::limiter::Rate;
use runtime::mapper::Mapper;
use runtime::rest::{Gvr, Rest};
use runtime::{Event, InformerSet, Inputs, PartialObject, Queue, Source, Store, Tasks, work};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::names::{EVENT_SOURCE, control_plane_of};
use crate::{Config, Error, hooks};

/// Label of the namespaces and Secrets of ControlPlanes: they are made again if somebody deletes them. Ours.
pub(crate) const OWNED: &str = "kubestellar.io/control-plane";
/// ControlPlanes that get a pass at the same time. A pass waits for the disk most of the time.
const WORKERS: usize = 16;
/// Bounds of the pause after a failure (SP-020).
const RETRIES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Events about one ControlPlane.
const EVENTS: Rate = Rate { qps: 0.1, burst: 25 };

/// A work item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// A ControlPlane.
    Plane(String),
    /// The status of a PostCreateHook.
    Hook(String),
}

/// What is remembered about a ControlPlane between passes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    /// Health checks of an external cluster that failed in a row.
    pub(crate) misses: u32,
    /// One of its hooks waits for an ITS.
    pub(crate) wants_its: bool,
    /// Its hooks made objects that are awaited.
    pub(crate) awaits_objects: bool,
    /// The hook failure that was reported last.
    pub(crate) reported: Option<String>,
}

pub(crate) struct Manager {
    pub(crate) rest: Rest,
    pub(crate) config: Config,
    pub(crate) queue: Queue<Key>,
    pub(crate) planes: Store<ControlPlane>,
    pub(crate) hooks: Store<PostCreateHook>,
    pub(crate) events: Events,
    pub(crate) mapper: Mapper,
    /// The kinds of objects that hooks await.
    pub(crate) awaited: InformerSet<PartialObject>,
    pub(crate) memory: Mutex<HashMap<String, Memory>>,
}

impl Manager {
    /// Changes what is remembered about a ControlPlane.
    pub(crate) fn remember<T>(&self, plane: &str, change: impl FnOnce(&mut Memory) -> T) -> T {
        change(self.memory.lock().entry(plane.to_owned()).or_default())
    }

    /// Adds the ControlPlanes of which `which` is true.
    fn add_those(&self, which: impl Fn(&Memory) -> bool) {
        let names: Vec<String> = {
            let memory = self.memory.lock();
            memory.iter().filter(|(_, one)| which(one)).map(|(name, _)| name.clone()).collect()
        };
        for name in names {
            self.queue.add(Key::Plane(name));
        }
    }

    fn on_plane(&self, event: &Event<ControlPlane>) {
        let Some(plane) = event.object() else { return };
        self.queue.add(Key::Plane(plane.metadata.name.clone().unwrap_or_default()));
        // It may be the ITS for which a WDS waits, or the one too many.
        self.add_those(|one| one.wants_its);
    }

    fn on_hook(&self, event: &Event<PostCreateHook>) {
        let Some(hook) = event.object() else { return };
        let name = hook.metadata.name.as_deref().unwrap_or_default();
        self.queue.add(Key::Hook(name.to_owned()));
        for plane in self.planes.list() {
            if hooks::uses(&plane.spec).iter().any(|one| one.hook == name) {
                self.queue.add(Key::Plane(plane.metadata.name.clone().unwrap_or_default()));
            }
        }
    }

    /// A namespace or Secret of a ControlPlane changed.
    fn on_owned(&self, event: &Event<PartialObject>) {
        let name = event.object().and_then(|object| object.metadata.labels.get(OWNED));
        if let Some(name) = name {
            self.queue.add(Key::Plane(name.to_string()));
        }
    }

    /// An object of a kind that hooks make changed.
    fn on_awaited(&self, event: &Event<PartialObject>) {
        let Some(object) = event.object() else { return };
        match control_plane_of(&object.metadata.namespace) {
            Some(name) if self.planes.get("", name).is_some() => self.queue.add(Key::Plane(name.to_owned())),
            Some(_) => {}
            None if object.metadata.namespace.is_empty() => self.add_those(|one| one.awaits_objects),
            None => {}
        }
    }
}

pub(crate) async fn drive(hosting: Client, config: Config, stop: CancellationToken) -> Result<(), Error> {
    runtime::install(&hosting, &apis::crds::tenancy(), "kubestellar").await?;
    let mut tasks = Tasks::new(&stop);
    let token = tasks.token().clone();
    let (events, to_write) = Events::new();
    let recorder = Recorder::new(Rest::new(hosting.clone()), EVENT_SOURCE, EVENTS);
    tasks.spawn_endless("events", events::write(recorder, to_write, token.clone()));
    let changes = config.spaces.as_ref().map(|spaces| spaces.changes());
    let counted = config.metrics.queue("ControlPlane");
    let manager = Arc::new_cyclic(|me: &std::sync::Weak<Manager>| {
        let me = me.clone();
        let handler = Arc::new(move |_: &_, event: Event<PartialObject>| {
            if let Some(me) = me.upgrade() {
                me.on_awaited(&event);
            }
        });
        Manager {
            rest: Rest::new(hosting.clone()),
            queue: Queue::new(RETRIES.0, RETRIES.1).observed(counted),
            planes: Store::default(),
            hooks: Store::default(),
            events,
            mapper: Mapper::new(hosting.clone()),
            awaited: InformerSet::new(hosting.clone(), &token, handler),
            memory: Mutex::default(),
            config,
        }
    });
    tasks.depend_on("informers of objects of hooks", manager.awaited.tasks());
    let (planes, hook_store) = (manager.planes.clone(), manager.hooks.clone());
    let (namespaces, secrets) = (Store::<PartialObject>::default(), Store::<PartialObject>::default());
    let mut inputs = Inputs::new(&mut tasks);
    let me = manager.clone();
    inputs.follow(&hosting, Source::of::<ControlPlane>(), &planes, move |event| me.on_plane(&event));
    let me = manager.clone();
    inputs.follow(&hosting, Source::of::<PostCreateHook>(), &hook_store, move |event| me.on_hook(&event));
    for (source, store) in [(Source::of::<Namespace>(), &namespaces), (Source::of::<Secret>(), &secrets)] {
        let me = manager.clone();
        inputs.follow(&hosting, source.labels(OWNED).metadata(), store, move |event| me.on_owned(&event));
    }
    let synced = inputs.synced();
    if let Some(mut changes) = changes {
        let (me, token) = (manager.clone(), token.clone());
        tasks.spawn_endless("changes of spaces", async move {
            loop {
                let changed = tokio::select! {
                    () = token.cancelled() => return,
                    changed = changes.recv() => changed,
                };
                match changed {
                    Ok(space) => me.queue.add(Key::Plane(space.to_string())),
                    Err(RecvError::Closed) => return,
                    Err(RecvError::Lagged(_)) => {
                        for plane in me.planes.keys() {
                            me.queue.add(Key::Plane(plane.name.to_string()));
                        }
                    }
                }
            }
        });
    }
    let me = manager.clone();
    tasks.spawn_endless("work", async move {
        tokio::select! {
            () = synced => {}
            () = token.cancelled() => return,
        }
        me.config.ready.send_replace(true);
        let worker = me.clone();
        work("control planes", &me.queue, WORKERS, &token, move |key| {
            let me = worker.clone();
            async move { me.act(key).await }
        })
        .await;
    });
    let outcome = tasks.finish().await;
    manager.awaited.shutdown().await;
    manager.config.ready.send_replace(false);
    Ok(outcome?)
}

/// The collection of ControlPlanes.
pub(crate) fn planes() -> Gvr {
    Gvr::of::<ControlPlane>()
}

/// The collection of PostCreateHooks.
pub(crate) fn hooks_gvr() -> Gvr {
    Gvr::of::<PostCreateHook>()
}
