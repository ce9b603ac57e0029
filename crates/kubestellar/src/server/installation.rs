//! An installation as it runs: spaces, components, kubeconfig; started, grown and stopped as a whole.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use space::listener::{Listener, Router};
use space::{Space, SpaceConfig, pki};
use store::Engine;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::control::{ServerStatus, SpaceStatus};
use crate::datadir::{DataDir, write_atomically};
use crate::exit::{Exit, Failure, OrFail};
use crate::kubeconfig::{Entry, Kubeconfig};
use crate::shape::Shape;

use super::control_socket::{Ask, ControlSocket};
use super::{Components, Reporter, wiring};

/// Longest time components get to stop before the process ends anyway.
const STOP: Duration = Duration::from_secs(5);

/// Serves the installation until `stop`. Everything started here has ended when this returns.
pub(crate) async fn run(
    data: &DataDir,
    shape: Shape,
    report: Reporter,
    stop: CancellationToken,
) -> Result<(), Failure> {
    data.create()?;
    let lock = data.lock()?;
    let begun = Instant::now();
    let listener = bind(&shape).await?;
    let mut shape = shape;
    shape.listen = listener.address();
    shape.save(data)?;
    let engine = open(data).await?;
    let serving = pki::serving(data.path(), &[], SystemTime::now()).or_fail("preparing the certificates")?;
    let ca_pem = serving.ca_pem.clone();
    let socket = ControlSocket::bind(data)?;
    let router = Arc::new(Router::default());
    report.step(
        format!("server started (pid {}, https://{})", std::process::id(), shape.listen),
        begun.elapsed(),
    );

    let (listening, draining) = (CancellationToken::new(), CancellationToken::new());
    let mut tasks = tokio::task::JoinSet::new();
    let serve = listener.serve(serving, router.clone(), listening.clone(), draining.clone());
    tasks.spawn(async move { serve.await.map_err(|error| error.to_string()) });
    let (asks, inbox) = mpsc::channel(16);
    let done = CancellationToken::new();
    let (socket_stop, socket_done) = (stop.clone(), done.clone());
    let control = tokio::spawn(async move { socket.serve(asks, socket_stop, socket_done).await });

    let mut installation = Installation {
        data: data.clone(),
        shape: Shape { its: vec![], wds: vec![], clusters: vec![], ..shape.clone() },
        engine,
        router,
        ca_pem,
        spaces: Vec::new(),
        components: Components::new(),
        begun,
    };
    let outcome = installation.live(shape, inbox, report, &stop, &mut tasks).await;
    installation.close(&listening, &draining, tasks).await;
    done.cancel();
    let _ = control.await;
    // The lock goes with the process: `down` returns, and another server starts, only when this one is gone.
    std::mem::forget(lock);
    outcome
}

async fn bind(shape: &Shape) -> Result<Listener, Failure> {
    Listener::bind(shape.listen).await.map_err(|error| {
        let what = format!("listening on {}", shape.listen);
        if error.kind() == std::io::ErrorKind::AddrInUse {
            Failure::new(Exit::Conflict, what, "the port is in use by another program").hint(
                "choose another with --listen 127.0.0.1:PORT, or any free one with --listen 127.0.0.1:0",
            )
        } else {
            Failure::new(Exit::Failed, what, error)
        }
    })
}

async fn open(data: &DataDir) -> Result<Engine, Failure> {
    let dir = data.store();
    let what = format!("opening the store {}", dir.display());
    let opened = tokio::task::spawn_blocking(move || Engine::open(&dir)).await.or_fail(&what)?;
    opened.or_fail(what)
}

pub(super) struct Installation {
    data: DataDir,
    /// What runs now.
    shape: Shape,
    engine: Engine,
    router: Arc<Router>,
    ca_pem: String,
    spaces: Vec<(Arc<Space>, &'static str)>,
    components: Components,
    begun: Instant,
}

impl Installation {
    async fn live(
        &mut self,
        wanted: Shape,
        mut inbox: mpsc::Receiver<Ask>,
        report: Reporter,
        stop: &CancellationToken,
        tasks: &mut tokio::task::JoinSet<Result<(), String>>,
    ) -> Result<(), Failure> {
        tokio::select! {
            grown = self.grow(wanted, &report) => grown?,
            () = stop.cancelled() => return Ok(()),
        }
        report.ready();
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                Some(ended) = tasks.join_next() => {
                    let why = ended.map_err(|e| e.to_string()).and_then(|r| r).err();
                    let why = why.unwrap_or_else(|| "it ended".into());
                    return Err(Failure::new(Exit::Failed, "serving", why));
                }
                Some(ask) = inbox.recv() => self.answer(ask, stop).await,
            }
        }
    }

    async fn answer(&mut self, ask: Ask, stop: &CancellationToken) {
        match ask {
            Ask::Status(reply) => drop(reply.send(self.status())),
            Ask::Grow(wanted, report, finished) => {
                let grown = tokio::select! {
                    grown = self.grow(*wanted, &report) => grown,
                    () = stop.cancelled() => {
                        Err(Failure::new(Exit::Failed, "changing the running server", "it is being stopped"))
                    }
                };
                match grown {
                    Ok(()) => report.ready(),
                    Err(failure) => report.failed(&failure),
                }
                let _ = finished.send(());
            }
        }
    }

    /// Starts what `wanted` has and this has not, and waits until all of it is ready. Cost: the difference.
    async fn grow(&mut self, wanted: Shape, report: &Reporter) -> Result<(), Failure> {
        let mut ready: Vec<(String, watch::Receiver<bool>)> = Vec::new();
        let begun = Instant::now();
        let names: Vec<(String, &'static str)> = wanted
            .spaces()
            .into_iter()
            .filter(|(name, _)| self.space(name.as_str()).is_none())
            .map(|(name, role)| (name.to_string(), role))
            .collect();
        self.start_spaces(&names).await?;
        if !names.is_empty() {
            let list: Vec<&str> = names.iter().map(|(name, _)| name.as_str()).take(8).collect();
            let more = names.len().saturating_sub(list.len());
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            report.step(format!("spaces {}{more} serve", list.join(", ")), begun.elapsed());
        }
        self.write_kubeconfig(&wanted)?;
        let begun = Instant::now();
        wiring::start(self, &wanted, &mut ready).await?;
        wait_ready(&self.components, ready).await?;
        report.step("controllers and agents are ready", begun.elapsed());
        self.shape = wanted;
        self.shape.save(&self.data)
    }

    /// Starts spaces side by side: making keys and loading data keep a core busy, and there may be hundreds. What
    /// could be started is kept when another one could not.
    async fn start_spaces(&mut self, names: &[(String, &'static str)]) -> Result<(), Failure> {
        let mut starting = tokio::task::JoinSet::new();
        for (index, (name, role)) in names.iter().enumerate() {
            let (engine, data, address) = (self.engine.clone(), self.data.clone(), self.shape.listen);
            let (name, role) = (name.clone(), *role);
            starting.spawn(async move {
                let config = SpaceConfig {
                    name: &name,
                    data: data.path(),
                    url: format!("https://{address}/spaces/{name}"),
                    advertise: address.to_string(),
                };
                let started = Space::start(&engine, config).await;
                started
                    .or_fail(format!("starting the space {name}"))
                    .map(|space| (index, Arc::new(space), role))
            });
        }
        let (mut started, mut outcome) = (Vec::new(), Ok(()));
        while let Some(joined) = starting.join_next().await {
            match joined.or_fail("starting the spaces").and_then(|space| space) {
                Ok(space) => started.push(space),
                Err(failure) => outcome = outcome.and(Err(failure)),
            }
        }
        started.sort_by_key(|(index, ..)| *index);
        for (_, space, role) in started {
            self.router.add(space.name(), space.server().service());
            self.spaces.push((space, role));
        }
        outcome
    }

    fn write_kubeconfig(&self, wanted: &Shape) -> Result<(), Failure> {
        let mut config = Kubeconfig::empty();
        let current = wanted.wds.first().map(|w| w.name.as_str());
        config.merge(&wanted.installation, &self.entries(), current);
        write_atomically(&self.data.kubeconfig(), config.to_yaml()?.as_bytes(), 0o600)
            .or_fail(format!("writing {}", self.data.kubeconfig().display()))
    }

    fn entries(&self) -> Vec<Entry> {
        use base64::Engine as _;
        let encode = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
        let entry = |(space, _): &(Arc<Space>, &str)| Entry {
            space: space.name().to_owned(),
            cluster: json!({
                "server": space.url(),
                "certificate-authority-data": encode(&self.ca_pem),
            }),
            user: json!({
                "client-certificate-data": encode(&space.keys().admin_cert),
                "client-key-data": encode(&space.keys().admin_key),
            }),
        };
        self.spaces.iter().map(entry).collect()
    }

    fn status(&self) -> ServerStatus {
        ServerStatus {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.begun.elapsed().as_secs(),
            memory_bytes: resident_memory(),
            store_bytes: directory_size(&self.data.store()),
            url: format!("https://{}", self.shape.listen),
            simulated_workloads: self.shape.simulate_workloads,
            spaces: self.spaces.iter().map(|(space, role)| space_status(space, role)).collect(),
            components: self.components.status(),
        }
    }

    /// Listener, components, watches, requests under way, store: in this order, none left behind.
    async fn close(
        mut self,
        listening: &CancellationToken,
        draining: &CancellationToken,
        mut tasks: tokio::task::JoinSet<Result<(), String>>,
    ) {
        listening.cancel();
        if tokio::time::timeout(STOP, self.components.stop()).await.is_err() {
            tracing::warn!("components were still running after {STOP:?}");
        }
        futures::future::join_all(self.spaces.iter().map(|(space, _)| space.stop())).await;
        draining.cancel();
        while tasks.join_next().await.is_some() {}
        if let Err(error) = self.engine.close().await {
            tracing::error!(%error, "closing the store");
        }
    }
}

impl Installation {
    pub(super) fn space(&self, name: &str) -> Option<&Arc<Space>> {
        self.spaces.iter().map(|(space, _)| space).find(|s| s.name() == name)
    }

    pub(super) fn components(&mut self) -> &mut Components {
        &mut self.components
    }

    pub(super) fn running(&self) -> &Shape {
        &self.shape
    }

    pub(super) fn ca_pem(&self) -> &str {
        &self.ca_pem
    }
}

/// Waits for each channel. A component that fails is restarted by its supervisor; what keeps it from being
/// ready is in its status and in the log.
async fn wait_ready(
    components: &Components,
    ready: Vec<(String, watch::Receiver<bool>)>,
) -> Result<(), Failure> {
    const PATIENCE: Duration = Duration::from_secs(50);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    for (name, mut receiver) in ready {
        if tokio::time::timeout_at(deadline, receiver.wait_for(|r| *r)).await.is_err() {
            let status = components.status();
            let failed =
                status.iter().find_map(|c| c.last_error.as_ref().map(|e| format!("{}: {e}", c.name)));
            let why = failed.unwrap_or_else(|| format!("{name} is not ready after {} s", PATIENCE.as_secs()));
            return Err(Failure::new(Exit::TimedOut, "starting the components", why));
        }
    }
    Ok(())
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

/// Resident set size in bytes, where `/proc` tells.
fn resident_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn directory_size(dir: &std::path::Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries.flatten().filter_map(|e| e.metadata().ok()).map(|m| m.len()).sum()
}
