//! A running installation: starts, extends and stops its spaces, components and kubeconfig.

mod hosting;
mod leaving;
mod owners;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde_json::json;
use space::listener::{Certificate, Listener, Router};
use space::pki::{self, Term};
use space::{Space, SpaceConfig};
use store::{Engine, Repaired, StoreError};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::datadir::{DataDir, write_atomically};
use crate::exit::{Exit, Failure, OrFail};
use crate::kubeconfig::{Entry, Gone, Kubeconfig};
use crate::shape::{Cluster, HOST, Shape, SpaceName, space_url};

use self::owners::Owners;
use super::clock::Clock;
use super::control_socket::{Ask, ControlSocket};
use super::hosted::{Hosted, Order};
use super::overview::Overview;
use super::wiring::Departure;
use super::{Components, Elsewhere, Reporter, admission, wiring};

/// Options of one run of the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// Components that other processes run.
    pub(crate) without: Vec<Elsewhere>,
    /// Trust the clock, although an earlier run saw a later time.
    pub(crate) trust_clock: bool,
    /// Drop damaged records from the store.
    pub(crate) repair: bool,
}

/// Longest time components get to stop before the process ends anyway.
const STOP: Duration = Duration::from_secs(5);
/// Number of clusters that join at a time. If hundreds joined at once, none would be ready before nearly all are.
const JOINING_TOGETHER: usize = 50;
/// Number of spaces that start at a time, per core. A starting space makes keys and waits for the disk.
const STARTING_ON_EACH_CORE: usize = 4;
/// Bounds of the pause between two checks of the clock and of the certificates. The clock may be set meanwhile, and a check is
/// cheap.
const RENEWALS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));
/// Pause after a renewal that failed.
const RENEW_AGAIN: Duration = Duration::from_secs(600);

/// Serves the installation until `stop`. Everything started here has ended when this returns.
pub(crate) async fn run(
    data: &DataDir,
    shape: Shape,
    options: Options,
    report: Reporter,
    stop: CancellationToken,
) -> Result<(), Failure> {
    data.create()?;
    let lock = data.lock().await?;
    let begun = Instant::now();
    let clock = Arc::new(Clock::open(&data.clock(), SystemTime::now(), options.trust_clock));
    let listener = bind(&shape).await?;
    let mut shape = shape;
    shape.listens(listener.address());
    shape.save(data)?;
    let engine = open(data, options.repair, &report).await?;
    let serving = pki::serving(data.path(), &[], SystemTime::now()).or_fail("preparing the certificates")?;
    let certificate = Arc::new(Certificate::new(&serving).or_fail("preparing the certificates")?);
    let socket = ControlSocket::bind(data)?;
    let router = Arc::new(Router::default());
    report.step(
        format!("server started (pid {}, https://{})", std::process::id(), shape.listen),
        begun.elapsed(),
    );

    let (listening, draining) = (CancellationToken::new(), CancellationToken::new());
    let mut tasks = tokio::task::JoinSet::new();
    let serve = listener.serve(certificate.clone(), router.clone(), listening.clone(), draining.clone());
    tasks.spawn(async move { serve.await.map_err(|error| error.to_string()) });
    let (asks, inbox) = mpsc::channel(16);
    let (ordering, orders) = mpsc::channel(Hosted::WAITING);
    let (departures, departed) = mpsc::channel(DEPARTURES);
    let done = CancellationToken::new();
    let components = Components::new();
    let overview = Arc::new(Overview::new(data, &shape, begun, components.states(), &engine, &clock));
    let (shown, socket_stop, socket_done) = (overview.clone(), stop.clone(), done.clone());
    let control = tokio::spawn(async move { socket.serve(asks, shown, socket_stop, socket_done).await });

    let hosted = Arc::new(Hosted::new(ordering, components.changes()));
    let owners = Owners::read(data).or_fail("reading the owners of the spaces")?;
    let mut installation = Installation {
        hosted,
        owners,
        data: data.clone(),
        shape: Shape { its: vec![], wds: vec![], clusters: vec![], ..shape.clone() },
        engine,
        router,
        certificate,
        ca_pem: serving.ca_pem,
        term: serving.term,
        clock,
        spaces: Vec::new(),
        components,
        overview,
        without: options.without,
        departures,
        repaired: options.repair,
    };
    let heard = Heard { inbox, orders, departed };
    let outcome = installation.live(shape, heard, report, &stop, &mut tasks).await;
    installation.close(&listening, &draining, tasks).await;
    done.cancel();
    let _ = control.await;
    // The lock is released when the process ends: only then `down` returns and another server can start.
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

/// Opens the store. If the installation has served before, the store must exist: certificates are made after the store.
async fn open(data: &DataDir, repair: bool, report: &Reporter) -> Result<Engine, Failure> {
    let dir = data.store();
    let what = format!("opening the store {}", dir.display());
    let (served, begun) = (data.pki().exists(), Instant::now());
    let opened = tokio::task::spawn_blocking(move || {
        let repaired = if repair { Engine::repair(&dir)? } else { Repaired::default() };
        let engine = if served { Engine::open_existing(&dir) } else { Engine::open(&dir) };
        Ok::<_, StoreError>((engine?, repaired))
    });
    let (engine, repaired) = opened.await.or_fail(&what)?.or_fail(what)?;
    for dropped in &repaired.dropped {
        tracing::warn!(%dropped, "dropped from the store");
        report.step(format!("dropped from the store: {dropped}"), begun.elapsed());
    }
    for file in &repaired.kept_aside {
        tracing::warn!(file = %file.display(), "a damaged file is kept aside");
    }
    Ok(engine)
}

struct Installation {
    data: DataDir,
    /// The shape of what runs now.
    shape: Shape,
    engine: Engine,
    router: Arc<Router>,
    certificate: Arc<Certificate>,
    ca_pem: String,
    /// The time in which the serving certificate and its CA need no renewal.
    term: Term,
    clock: Arc<Clock>,
    spaces: Vec<(Arc<Space>, &'static str)>,
    components: Components,
    overview: Arc<Overview>,
    /// The components that other processes run.
    without: Vec<Elsewhere>,
    /// By this the Space Manager gives its orders.
    hosted: Arc<Hosted>,
    owners: Owners,
    /// Takes the news about embedded clusters that somebody took out of the inventory.
    departures: mpsc::Sender<Departure>,
    /// Records of the store may have been dropped at the start.
    repaired: bool,
}

/// What an installation is told while it runs.
struct Heard {
    inbox: mpsc::Receiver<Ask>,
    orders: mpsc::Receiver<Order>,
    departed: mpsc::Receiver<Departure>,
}

/// Most departures of clusters that wait.
const DEPARTURES: usize = 64;
/// Most orders of the Space Manager that are carried out together.
const ORDERS: usize = 64;

impl Installation {
    async fn live(
        &mut self,
        wanted: Shape,
        Heard { mut inbox, mut orders, mut departed }: Heard,
        report: Reporter,
        stop: &CancellationToken,
        tasks: &mut tokio::task::JoinSet<Result<(), String>>,
    ) -> Result<(), Failure> {
        tokio::select! {
            grown = async {
                self.grow(wanted, &report).await?;
                self.open_known_spaces().await
            } => grown?,
            () = stop.cancelled() => return Ok(()),
        }
        report.ready();
        let mut renewal = Box::pin(tokio::time::sleep(self.until_renewal(SystemTime::now())));
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = &mut renewal => {
                    let pause = self.look_after_certificates(SystemTime::now()).await;
                    renewal.as_mut().reset(tokio::time::Instant::now() + pause);
                }
                Some(ended) = tasks.join_next() => {
                    let why = ended.map_err(|e| e.to_string()).and_then(|r| r).err();
                    let why = why.unwrap_or_else(|| "it ended".into());
                    return Err(Failure::new(Exit::Failed, "serving", why));
                }
                Some(news) = departed.recv() => self.let_go(news).await,
                Some(ask) = inbox.recv() => self.answer(ask, stop).await,
                _ = orders.recv_many(&mut batch, ORDERS) => tokio::select! {
                    () = self.obey(std::mem::take(&mut batch)) => {}
                    () = stop.cancelled() => return Ok(()),
                },
            }
        }
    }

    async fn answer(&mut self, ask: Ask, stop: &CancellationToken) {
        let Ask { shape, report, finished } = ask;
        let grown = tokio::select! {
            grown = self.grow(*shape, &report) => grown,
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

    /// Returns the time in which no certificate needs a renewal.
    fn term(&self) -> Term {
        self.spaces.iter().fold(self.term, |all, (space, _)| all.and(space.keys().term))
    }

    /// Returns the time until a certificate is due, within [`RENEWALS`].
    fn until_renewal(&self, now: SystemTime) -> Duration {
        let term = self.term();
        let left = if term.is_over(now) {
            Duration::ZERO
        } else {
            term.until.duration_since(now).unwrap_or_default()
        };
        left.clamp(RENEWALS.0, RENEWALS.1)
    }

    /// Renews the certificates that are due and returns the pause until the next check (SP-062).
    async fn look_after_certificates(&mut self, now: SystemTime) -> Duration {
        self.clock.observe(now);
        if !self.term().is_over(now) {
            return self.until_renewal(now);
        }
        match self.renew(now) {
            Ok(changed) => {
                if changed {
                    self.follow_kubeconfigs(Gone::Only(HashSet::new())).await;
                }
                self.until_renewal(now)
            }
            Err(failure) => {
                tracing::error!(what = failure.what, why = failure.why, "certificates could not be renewed");
                RENEW_AGAIN
            }
        }
    }

    /// Renews certificates that end soon, uses them for new connections, and writes them into the kubeconfig of the
    /// data directory. `kube-root-ca.crt` gets a renewed CA with the next start: the old one is valid for two more
    /// years. Returns whether something changed.
    fn renew(&mut self, now: SystemTime) -> Result<bool, Failure> {
        const WHAT: &str = "renewing certificates";
        let serving = pki::serving(self.data.path(), &[], now).or_fail(WHAT)?;
        self.certificate.replace(&serving).or_fail(WHAT)?;
        self.term = serving.term;
        let mut changed = std::mem::replace(&mut self.ca_pem, serving.ca_pem) != self.ca_pem;
        for (space, _) in &self.spaces {
            let renewed =
                space.renew(self.data.path(), now).or_fail(format!("{WHAT} of {}", space.name()))?;
            if renewed {
                tracing::info!(space = space.name(), "renewed the administrator's certificate");
                self.hosted.changed(space.name());
            }
            changed |= renewed;
        }
        if changed {
            self.write_kubeconfig(&self.shape)?;
        }
        Ok(changed)
    }

    fn parts(&mut self) -> wiring::Parts<'_> {
        wiring::Parts {
            components: &mut self.components,
            spaces: &self.spaces,
            running: &self.shape,
            without: &self.without,
            ca_pem: &self.ca_pem,
            departures: &self.departures,
            repaired: self.repaired,
        }
    }

    /// Starts everything in `wanted` that does not run yet, and waits until it is ready. Cost: the difference.
    async fn grow(&mut self, wanted: Shape, report: &Reporter) -> Result<(), Failure> {
        let begun = Instant::now();
        self.check_names(&wanted)?;
        let all = wanted.spaces().into_iter().map(|(name, role)| (name.to_string(), role));
        let names: Vec<(String, &'static str)> =
            all.chain([(HOST.to_owned(), "host")]).filter(|(name, _)| self.find(name).is_none()).collect();
        self.start_spaces(&names).await?;
        if !names.is_empty() {
            let list: Vec<&str> = names.iter().map(|(name, _)| name.as_str()).take(8).collect();
            let more = names.len().saturating_sub(list.len());
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            report.step(format!("spaces {}{more} serve", list.join(", ")), begun.elapsed());
        }
        self.write_kubeconfig(&wanted)?;
        // The server, and not the command, knows the first address. What was asked for is kept before it is ready: if something
        // does not become ready in time, it is there after a restart nevertheless.
        let wanted = Shape { first_listen: self.shape.first_listen, ..wanted };
        wanted.save(&self.data)?;
        let begun = Instant::now();
        let mut ready = wiring::Ready::new();
        self.start_host(&mut ready)?;
        wiring::start(self.parts(), &wanted, &mut ready).await?;
        let new: Vec<&Cluster> =
            wanted.clusters.iter().filter(|c| !c.detached && !self.has_joined(c)).collect();
        let names: Vec<String> = new.iter().map(|cluster| cluster.name.to_string()).collect();
        for name in &names {
            wiring::stay(self.parts(), name).await;
        }
        for cluster in wanted.clusters.iter().filter(|cluster| cluster.leaving) {
            wiring::leave(self.parts(), cluster).await?;
        }
        let mut joined = 0;
        for some in new.chunks(JOINING_TOGETHER) {
            wiring::join(self.parts(), some, &mut ready)?;
            wait_ready(&self.components, std::mem::take(&mut ready)).await?;
            joined += some.len();
            if joined < new.len() {
                report.step(format!("{joined} of {} clusters have joined", new.len()), begun.elapsed());
            }
        }
        let known: HashMap<&SpaceName, &Cluster> =
            self.shape.clusters.iter().map(|cluster| (&cluster.name, cluster)).collect();
        let same = wanted.clusters.iter().filter_map(|cluster| Some((cluster, known.get(&cluster.name)?)));
        let same: Vec<Cluster> = same
            .map(|(cluster, known)| {
                let given = cluster.given.clone().or_else(|| known.given.clone());
                Cluster { given, ..cluster.clone() }
            })
            .collect();
        for cluster in &same {
            wiring::relabel(&self.parts(), cluster).await?;
        }
        wait_ready(&self.components, ready).await?;
        report.step("controllers and agents are ready", begun.elapsed());
        self.shape = wanted;
        self.show_waiting();
        // The server knows the labels that the clusters have been given.
        for cluster in self.shape.clusters.iter_mut().filter(|cluster| !cluster.detached) {
            cluster.given = Some(cluster.labels.clone());
        }
        self.shape.save(&self.data)?;
        self.show_own_spaces().await
    }

    /// Returns a space that serves.
    fn find(&self, name: &str) -> Option<&Arc<Space>> {
        self.spaces.iter().map(|(space, _)| space).find(|space| space.name() == name)
    }

    /// Starts spaces, several at a time. If hundreds started at once, each would take as long as all together, and time
    /// out. A space that could be started is kept if another one could not.
    async fn start_spaces(&mut self, names: &[(String, &'static str)]) -> Result<(), Failure> {
        self.try_start_spaces(names).await.into_iter().next().map_or(Ok(()), |(_, failure)| Err(failure))
    }

    /// [`Installation::start_spaces`], with the failure of each space that could not be started, by its name.
    async fn try_start_spaces(&mut self, names: &[(String, &'static str)]) -> Vec<(String, Failure)> {
        let mut starting = tokio::task::JoinSet::new();
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let places = Arc::new(Semaphore::new(cores * STARTING_ON_EACH_CORE));
        for (index, (name, role)) in names.iter().enumerate() {
            let places = places.clone();
            let (engine, data, address) = (self.engine.clone(), self.data.clone(), self.shape.listen);
            let (name, role) = (name.clone(), *role);
            starting.spawn(async move {
                // The semaphore is never closed.
                let _place = places.acquire().await;
                let config = SpaceConfig {
                    name: &name,
                    data: data.path(),
                    url: space_url(address, &name),
                    advertise: address.to_string(),
                };
                let started = Space::start_with(&engine, config, admission::of_role(role)).await;
                let started = started.or_fail(format!("starting the space {name}"));
                started.map(|space| (index, Arc::new(space), role)).map_err(|failure| (name.clone(), failure))
            });
        }
        let (mut started, mut failures) = (Vec::new(), Vec::new());
        while let Some(joined) = starting.join_next().await {
            match joined.or_fail("starting the spaces") {
                Ok(Ok(space)) => started.push(space),
                Ok(Err(failure)) => failures.push(failure),
                Err(panicked) => failures.push((String::new(), panicked)),
            }
        }
        started.sort_by_key(|(index, ..)| *index);
        for (_, space, role) in started {
            self.router.add(space.name(), space.server().service());
            self.overview.add(&space, role);
            self.spaces.push((space, role));
        }
        failures
    }

    fn write_kubeconfig(&self, wanted: &Shape) -> Result<(), Failure> {
        let mut config = Kubeconfig::empty();
        let current = wanted.wds.first().map(|w| w.name.as_str());
        config.merge(&wanted.installation, &self.entries(), current);
        write_atomically(&self.data.kubeconfig(), config.to_yaml()?.as_bytes(), 0o600)
            .or_fail(format!("writing {}", self.data.kubeconfig().display()))
    }

    /// The TLS server name of a space in kubeconfigs: by it, programs that lose the path of the URL reach the space all the same
    /// (SP-056).
    fn server_name(&self, space: &str) -> Option<String> {
        self.shape.listen.ip().is_loopback().then(|| space::server_name(space))
    }

    fn entries(&self) -> Vec<Entry> {
        use base64::Engine as _;
        let encode = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
        let entry = |(space, _): &(Arc<Space>, &str)| {
            let keys = space.keys();
            let mut cluster = json!({
                "server": space.url(),
                "certificate-authority-data": encode(&self.ca_pem),
            });
            if let Some(name) = self.server_name(space.name()) {
                cluster["tls-server-name"] = name.into();
            }
            Entry {
                space: space.name().to_owned(),
                cluster,
                user: json!({
                    "client-certificate-data": encode(&keys.admin_cert),
                    "client-key-data": encode(&keys.admin_key),
                }),
            }
        };
        self.spaces.iter().map(entry).collect()
    }

    /// Stops listener, components, watches, requests in progress and store, in this order, and waits for each.
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

/// Waits until all components are ready. A component that fails is restarted by its supervisor; what keeps it from being
/// ready is in its status and in the log. Gives up if no further component becomes ready for a long time.
async fn wait_ready(components: &Components, ready: wiring::Ready) -> Result<(), Failure> {
    const PATIENCE: Duration = Duration::from_secs(50);
    let mut waiting: BTreeSet<String> = ready.iter().map(|(name, _)| name.clone()).collect();
    let mut coming: FuturesUnordered<_> = ready
        .into_iter()
        .map(|(name, mut receiver)| async move {
            let is_ready = receiver.wait_for(|ready| *ready).await.is_ok();
            (name, is_ready)
        })
        .collect();
    loop {
        match tokio::time::timeout(PATIENCE, coming.next()).await {
            Ok(None) => return Ok(()),
            // A component whose sender is gone will never be ready. The wait for the others goes on.
            Ok(Some((name, _))) => drop(waiting.remove(&name)),
            Err(_) => {
                let failed = components
                    .status()
                    .into_iter()
                    .find_map(|c| c.last_error.map(|e| format!("{}: {e}", c.name)));
                let first = waiting.first().map_or("a component", String::as_str);
                let why =
                    failed.unwrap_or_else(|| format!("{first} is not ready after {} s", PATIENCE.as_secs()));
                return Err(Failure::new(Exit::TimedOut, "starting the components", why));
            }
        }
    }
}

#[cfg(test)]
mod rights;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::shape::Wish;

    /// An installation of this shape in memory, without listener, that serves nothing yet.
    pub(super) fn in_memory(data: &DataDir, wanted: &Shape) -> Installation {
        let now = SystemTime::now();
        let serving = pki::serving(data.path(), &[], now).unwrap();
        let components = Components::new();
        let (engine, clock) = (Engine::in_memory(), Arc::new(Clock::open(&data.clock(), now, false)));
        let overview = Overview::new(data, wanted, Instant::now(), components.states(), &engine, &clock);
        let hosted = Arc::new(Hosted::new(mpsc::channel(1).0, components.changes()));
        let owners = Owners::read(data).unwrap();
        Installation {
            hosted,
            owners,
            data: data.clone(),
            shape: Shape { its: vec![], wds: vec![], clusters: vec![], ..wanted.clone() },
            engine,
            router: Arc::default(),
            certificate: Arc::new(Certificate::new(&serving).unwrap()),
            ca_pem: serving.ca_pem,
            term: serving.term,
            clock,
            without: Vec::new(),
            departures: mpsc::channel(1).0,
            repaired: false,
            spaces: Vec::new(),
            components,
            overview: Arc::new(overview),
        }
    }

    /// The certificates in the kubeconfig of the data directory, by user.
    fn handed_out(data: &DataDir) -> BTreeMap<String, String> {
        let file: serde_json::Value =
            serde_saphyr::from_str(&std::fs::read_to_string(data.kubeconfig()).unwrap()).unwrap();
        let users = file["users"].as_array().unwrap().iter();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        users.map(|u| (text(&u["name"]), text(&u["user"]["client-certificate-data"]))).collect()
    }

    /// SP-062: certificates are renewed while the server runs, at 80 % of their life and not before.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sp_062_certificates_are_renewed_while_running() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::resolve(Some(dir.path())).unwrap();
        data.create().unwrap();
        let wanted = Shape::fulfil(None, &Wish { clusters: Some(0), ..Wish::default() }, "id").unwrap();
        let now = SystemTime::now();
        let mut installation = in_memory(&data, &wanted);
        installation.start_spaces(&[("its1".into(), "its"), ("wds1".into(), "wds")]).await.unwrap();
        installation.shape = wanted.clone();
        installation.write_kubeconfig(&wanted).unwrap();
        let first = handed_out(&data);
        assert_eq!(first.len(), 2);
        let day = Duration::from_secs(24 * 3600);
        installation.renew(now + 280 * day).unwrap();
        assert_eq!(handed_out(&data), first, "not before its time");
        assert_eq!(installation.until_renewal(now + 280 * day), RENEWALS.1);
        installation.renew(now + 300 * day).unwrap();
        let second = handed_out(&data);
        assert_eq!(second.keys().collect::<Vec<_>>(), first.keys().collect::<Vec<_>>());
        assert!(second.iter().all(|(name, certificate)| first[name] != *certificate));
        assert_eq!(installation.until_renewal(now + 300 * day), RENEWALS.1);
        assert_eq!(installation.until_renewal(now + 3650 * day), RENEWALS.0, "long overdue");
        assert_eq!(installation.until_renewal(now), RENEWALS.0, "the clock was ahead");
        installation.look_after_certificates(now).await;
        assert!(handed_out(&data).iter().all(|(name, certificate)| second[name] != *certificate));
        assert!(!installation.term().is_over(now));
        for (space, _) in &installation.spaces {
            space.stop().await;
        }
    }
}
