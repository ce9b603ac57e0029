//! The registration agent's part in add-ons: identities of their agents on the hub, and health by lease (4.3,
//! 4.6).
//!
//! One task per add-on and identity maintains a Secret in the add-on's namespace, by the same rules as the
//! agent's own. [`super::addon_rules`] decides.
//!
//! Cost: on the hub a watch of the cluster's ManagedClusterAddOns and one of its add-ons' signing requests.
//! In the cluster a watch of each Secret, and one of the leases of each namespace with add-ons whose health
//! is determined by lease.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use apis::{
    constants::{
        ADDON_GROUP, ADDON_HOSTING_ANNOTATION, ADDON_NAME_LABEL, BUILT_IN_ADDONS_ANNOTATION,
        CLUSTER_NAME_LABEL,
    },
    ocm::{
        ManagedCluster, ManagedClusterAddOn,
        cluster::{CONDITION_AVAILABLE, CONDITION_HUB_ACCEPTED},
    },
};
use k8s_openapi::api::{
    certificates::v1::CertificateSigningRequest, coordination::v1::Lease, core::v1::Secret,
};
use runtime::{
    Queue, Source, Store,
    failure::{code_of, is_clash, is_not_found},
    informer,
    rest::{Gvr, Removal, Rest},
};
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{
    Agent, BuiltIn,
    addon_api::{Member, Version},
    addon_identity::Holder,
    addon_report::report,
    addon_rules::{WantedIdentity, by_lease, health, wanted, with_driver},
    managed_clusters,
};
use ocm_shared::{clock::FutureTimes, cluster::status};

/// How often a hub without the add-on API is asked for it (OCM-002).
const PROBE: Duration = Duration::from_secs(300);

/// An identity that is maintained.
struct Kept {
    of: WantedIdentity,
    stop: CancellationToken,
    task: JoinHandle<()>,
    /// Whether there is a valid certificate.
    certified: Arc<AtomicBool>,
}

/// A namespace whose leases are followed.
struct Leases {
    store: Store<Lease>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Running {
    /// By add-on and digest.
    identities: HashMap<(String, [u8; 32]), Kept>,
    leases: HashMap<String, Leases>,
    /// Leases that were renewed in the future.
    ahead: FutureTimes,
}

struct IdentityKeeper {
    agent: Arc<Agent>,
    hub: Rest,
    api: Version,
    addons: Store<Member>,
    requests: Store<CertificateSigningRequest>,
    /// Incremented with every event about signing requests.
    news: watch::Sender<u64>,
    /// Incremented with every event about add-ons.
    told: watch::Sender<u64>,
    queue: Queue<String>,
}

/// Runs until `stop`.
pub(super) async fn run(agent: Arc<Agent>, hub: Rest, stop: CancellationToken) {
    if !is_accepted(&agent, &stop).await {
        return;
    }
    let Some(api) = version(&hub, &agent.names.cluster, PROBE, &stop).await else { return };
    let keeper = Arc::new(IdentityKeeper {
        agent,
        hub,
        api,
        addons: Store::default(),
        requests: Store::default(),
        news: watch::Sender::new(0),
        told: watch::Sender::new(0),
        queue: Queue::new(Duration::from_millis(20), Duration::from_secs(30)),
    });
    let cluster = keeper.agent.names.cluster.clone();
    let me = keeper.clone();
    let addons = informer::run(
        keeper.hub.client().clone(),
        api.source(&cluster),
        keeper.addons.clone(),
        move |event: runtime::Event<Member>| {
            me.told.send_modify(|n| *n = n.wrapping_add(1));
            if let Some(addon) = event.object() {
                me.queue.add(addon.metadata.name.clone().unwrap_or_default());
            }
        },
        stop.clone(),
    );
    let me = keeper.clone();
    let requests = informer::run(
        keeper.hub.client().clone(),
        Source::of::<CertificateSigningRequest>()
            .labels(format!("{CLUSTER_NAME_LABEL}={cluster},{ADDON_NAME_LABEL}")),
        keeper.requests.clone(),
        move |_| me.news.send_modify(|n| *n = n.wrapping_add(1)),
        stop.clone(),
    );
    tokio::join!(addons, requests, keeper.work(&stop));
}

/// Waits until the agent has the permission to read add-ons. Returns false if it is stopped before.
async fn is_accepted(agent: &Agent, stop: &CancellationToken) -> bool {
    loop {
        let mine = agent.mine.get("", &agent.names.cluster);
        if mine.is_some_and(|cluster| status(&cluster, CONDITION_HUB_ACCEPTED) == Some("True")) {
            return true;
        }
        tokio::select! {
            () = agent.rejudge.notified() => {}
            () = stop.cancelled() => return false,
        }
    }
}

/// Waits until the hub has the add-on API, and returns the version to use (OCM-002); `None` if the agent is
/// stopped before.
async fn version(hub: &Rest, cluster: &str, probe: Duration, stop: &CancellationToken) -> Option<Version> {
    let mut reported = false;
    let mut backoff = runtime::Backoff::for_server();
    loop {
        let request = http::Request::get(format!("/apis/{ADDON_GROUP}")).body(Vec::new()).ok()?;
        let pause = match hub.client().request::<Value>(request).await.map(|group| Version::of(&group)) {
            Ok(Some(version)) => return Some(version),
            Err(error) if code_of(&error) != 404 => backoff.pause(),
            _ => {
                if !std::mem::replace(&mut reported, true) {
                    tracing::info!(cluster, "the hub has no add-on API; continuing without add-ons");
                }
                probe
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => return None,
        }
    }
}

impl IdentityKeeper {
    async fn work(self: &Arc<Self>, stop: &CancellationToken) {
        let mut running = Running::default();
        loop {
            tokio::select! {
                lease = self.queue.next(stop) => {
                    let Some(lease) = lease else { break };
                    let name = lease.key().clone();
                    match self.look_after(&name, &mut running, stop).await {
                        Ok(next) => {
                            self.queue.forget(&name);
                            if let Some(pause) = next {
                                self.queue.add_after(name, pause);
                            }
                        }
                        Err(error) => {
                            if !is_clash(&error) {
                                tracing::warn!(%error, addon = name, "processing the add-on; will be tried again");
                            }
                            self.queue.retry(name);
                        }
                    }
                    drop(lease);
                }
                () = self.agent.rejudge.notified() => {
                    for key in self.addons.keys() {
                        self.queue.add(key.name.to_string());
                    }
                }
                () = stop.cancelled() => break,
            }
        }
        for kept in running.identities.into_values() {
            end(kept.stop, kept.task).await;
        }
        for leases in running.leases.into_values() {
            end(leases.stop, leases.task).await;
        }
        for own in &self.agent.config.built_in {
            own.granted.send_replace(None);
        }
    }

    /// Processes one add-on. Returns when to process it again.
    async fn look_after(
        self: &Arc<Self>,
        name: &str,
        running: &mut Running,
        stop: &CancellationToken,
    ) -> Result<Option<Duration>, kube::Error> {
        self.introduce_built_in().await?;
        let addon = self.addons.get(&self.agent.names.cluster, name);
        let leaving = addon.as_ref().is_some_and(|a| a.metadata.deletion_timestamp.is_some());
        if !leaving {
            self.identities(name, addon.as_deref().map(|member| &**member), running, stop).await?;
        }
        let own = self.agent.config.built_in.iter().find(|own| own.name() == name);
        let Some(addon) = addon else {
            running.ahead.forget(name);
            if let Some(own) = own {
                grant(own, None);
            }
            return Ok(None);
        };
        if let Some(own) = own {
            let hub = running.identities.iter().find(|((of, _), kept)| of == name && kept.of.is_for_hub());
            let certified = hub.filter(|(_, kept)| kept.certified.load(Ordering::SeqCst));
            // An add-on whose status does not mention health has not been processed by its manager yet.
            let reported = addon
                .status
                .as_ref()
                .is_some_and(|s| s.health_check.mode == "Lease" && !s.registrations.is_empty());
            grant(own, certified.filter(|_| reported).map(|(_, kept)| kept.of.namespace.clone()));
        }
        self.health(name, &addon, running, stop).await
    }

    /// Writes the annotation about the add-ons in this process on the own ManagedCluster, if it lacks it.
    async fn introduce_built_in(&self) -> Result<(), kube::Error> {
        let agent = &self.agent;
        let Some(cluster) = agent.mine.get("", &agent.names.cluster) else { return Ok(()) };
        let Some((key, value)) = agent.config.built_in_annotation() else { return Ok(()) };
        let have = cluster.metadata.annotations.as_ref().and_then(|all| all.get(BUILT_IN_ADDONS_ANNOTATION));
        if have == Some(&value) {
            return Ok(());
        }
        let mut cluster: ManagedCluster = cluster.as_ref().clone();
        cluster.metadata.annotations.get_or_insert_default().insert(key, value);
        let body = serde_json::to_vec(&cluster).map_err(kube::Error::SerdeError)?;
        // An agent may update its ManagedCluster, but not patch it (OCM-003).
        self.hub.replace::<Value>(&managed_clusters(), "", &agent.names.cluster, body).await.map(drop)
    }

    async fn identities(
        self: &Arc<Self>,
        name: &str,
        addon: Option<&ManagedClusterAddOn>,
        running: &mut Running,
        stop: &CancellationToken,
    ) -> Result<(), kube::Error> {
        let hosted = addon.and_then(|a| a.metadata.annotations.as_ref()?.get(ADDON_HOSTING_ANNOTATION));
        let hosted = hosted.is_some_and(|host| !host.is_empty());
        let config = &self.agent.config;
        let tokens = config.addon_tokens.filter(|_| !config.built_in.iter().any(|own| own.name() == name));
        let all = addon.map(|addon| wanted(addon, tokens)).unwrap_or_default();
        let all: HashMap<[u8; 32], WantedIdentity> = all.into_iter().map(|w| (w.digest(hosted), w)).collect();
        let gone: Vec<(String, [u8; 32])> = running
            .identities
            .keys()
            .filter(|(of, digest)| of == name && !all.contains_key(digest))
            .cloned()
            .collect();
        for key in gone {
            if let Some(kept) = running.identities.remove(&key) {
                tracing::info!(addon = name, secret = kept.of.secret, "the identity is not wanted any more");
                let place = (kept.of.namespace.clone(), kept.of.secret.clone());
                end(kept.stop, kept.task).await;
                self.forget(&place.0, &place.1).await?;
            }
        }
        let Some(addon) = addon else { return Ok(()) };
        if let Some(told) = with_driver(addon, tokens.is_some()) {
            let patch = json!({"metadata": {"uid": addon.metadata.uid, "resourceVersion": addon.metadata.resource_version},
                "status": self.api.registrations(&told)});
            let members = self.api.members();
            self.hub.merge_status::<Value>(&members, &self.agent.names.cluster, name, &patch).await?;
        }
        for (digest, of) in all {
            let key = (name.to_owned(), digest);
            if running.identities.contains_key(&key) {
                continue;
            }
            let (token, certified) = (stop.child_token(), Arc::new(AtomicBool::new(false)));
            let (me, wake) = (self.clone(), name.to_owned());
            let holder = Holder {
                agent: self.agent.clone(),
                hub: self.hub.clone(),
                addon: name.to_owned(),
                of: of.clone(),
                addons: self.addons.clone(),
                api: self.api,
                requests: self.requests.clone(),
                certified: certified.clone(),
                changed: Box::new(move || me.queue.add(wake.clone())),
            };
            let news = if of.tokens.is_some() { &self.told } else { &self.news };
            let task = tokio::spawn(holder.keep(news.subscribe(), token.clone()));
            running.identities.insert(key, Kept { of, stop: token, task, certified });
        }
        Ok(())
    }

    async fn forget(&self, namespace: &str, secret: &str) -> Result<(), kube::Error> {
        let gvr = Gvr::of::<Secret>();
        match self.agent.cluster.delete(&gvr, namespace, secret, &Removal::default()).await {
            Err(error) if !is_not_found(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Reports the health according to the lease. Reports nothing while the cluster's own lease has expired,
    /// because then the hub sets the status.
    async fn health(
        self: &Arc<Self>,
        name: &str,
        addon: &ManagedClusterAddOn,
        running: &mut Running,
        stop: &CancellationToken,
    ) -> Result<Option<Duration>, kube::Error> {
        let mine = self.agent.mine.get("", &self.agent.names.cluster);
        let heard = mine.is_some_and(|cluster| {
            status(&cluster, CONDITION_HUB_ACCEPTED) == Some("True")
                && matches!(status(&cluster, CONDITION_AVAILABLE), Some("True" | "False"))
        });
        if !by_lease(addon) || !heard || addon.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        let reported = addon.status.as_ref().map(|s| s.namespace.clone()).filter(|n| !n.is_empty());
        let namespace = reported.unwrap_or_else(|| ocm_shared::addon::namespace(addon, None));
        let leases =
            running.leases.entry(namespace.clone()).or_insert_with(|| self.follow_leases(&namespace, stop));
        if !leases.store.is_synced() {
            return Ok(None);
        }
        let lease = leases.store.get(&namespace, name);
        let (news, left) = health(name, lease.as_deref(), &mut running.ahead, self.agent.now());
        report(&self.hub, self.api, addon, news).await?;
        Ok(left)
    }

    fn follow_leases(self: &Arc<Self>, namespace: &str, stop: &CancellationToken) -> Leases {
        let (store, token) = (Store::default(), stop.child_token());
        let source = Source::of::<Lease>().namespaced(namespace);
        let (me, client) = (self.clone(), self.agent.cluster.client().clone());
        let (into, until) = (store.clone(), token.clone());
        let task = tokio::spawn(async move {
            let on = |event: runtime::Event<Lease>| match event.object() {
                Some(lease) => me.queue.add(lease.metadata.name.clone().unwrap_or_default()),
                None => {
                    for key in me.addons.keys() {
                        me.queue.add(key.name.to_string());
                    }
                }
            };
            informer::run(client, source, into, on, until).await;
        });
        Leases { store, stop: token, task }
    }
}

fn grant(own: &BuiltIn, namespace: Option<String>) {
    own.granted.send_if_modified(|have| {
        let news = *have != namespace;
        *have = namespace;
        news
    });
}

async fn end(stop: CancellationToken, task: JoinHandle<()>) {
    stop.cancel();
    if let Err(error) = task.await {
        tracing::error!(%error, "a task of an add-on ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::VecDeque, convert::Infallible};

    use parking_lot::Mutex;

    type Answers = VecDeque<(u16, Value)>;

    /// A hub that answers discovery requests from a list of responses.
    fn hub(answers: Vec<(u16, Value)>) -> (Rest, Arc<Mutex<Answers>>) {
        let left = Arc::new(Mutex::new(VecDeque::from(answers)));
        let todo = left.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            assert_eq!(request.uri().path(), "/apis/addon.open-cluster-management.io");
            let (code, body) = todo.lock().pop_front().expect("asked once too often");
            let body = kube::client::Body::from(body.to_string().into_bytes());
            let answer = http::Response::builder().status(code).body(body).unwrap();
            async move { Ok::<_, Infallible>(answer) }
        });
        (Rest::new(kube::Client::new(service, "default")), left)
    }

    /// OCM-002: a hub without the add-on API, or whose discovery fails, is asked again until it has it; the
    /// rest of the agent does not wait for that.
    #[tokio::test]
    async fn ocm_002_the_api_may_come_later() {
        let status = |code: u16| json!({"kind": "Status", "status": "Failure", "code": code, "reason": "x", "message": "x"});
        let group = |version: &str| json!({"kind": "APIGroup", "versions": [{"version": version}]});
        let (rest, left) = hub(vec![
            (503, status(503)),
            (404, status(404)),
            (404, status(404)),
            (200, group("v9")),
            (200, group("v1beta1")),
        ]);
        let stop = CancellationToken::new();
        let soon = Duration::from_millis(1);
        assert_eq!(version(&rest, "c1", soon, &stop).await, Some(Version::Beta));
        assert!(left.lock().is_empty());
        assert!(PROBE <= Duration::from_secs(300));
        stop.cancel();
        let (rest, _) = hub(vec![(404, status(404))]);
        assert_eq!(version(&rest, "c1", soon, &stop).await, None);
    }
}
