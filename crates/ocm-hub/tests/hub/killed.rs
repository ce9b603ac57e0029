//! A cluster's registration and work agent in one process that is killed at any moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use kube::{Client, client::Body, core::PartialObjectMeta};
use ocm_agent::{
    registration::{self, Endpoint},
    work_agent,
};
use ocm_shared::rbac::Subject;
use parking_lot::Mutex;
use runtime::{
    Source,
    feed::{Change, follow},
    rest::{Removal, Rest},
};
use serde_json::{Value, json};
use space::Identity;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use testkit::killing::{Rng, contents, setting, standing};

use crate::world::*;

/// Number of changes of works; `AGENT_CHANGES` overrides it.
const CHANGES: usize = 60;
const NAMES: [&str; 4] = ["w0", "w1", "w2", "w3"];

/// Counts requests.
fn counting(inner: Client, count: Arc<watch::Sender<usize>>) -> Client {
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let inner = inner.clone();
        count.send_modify(|count| *count += 1);
        async move { inner.send(request).await.map_err(tower::BoxError::from) }
    });
    Client::new(service, "default")
}

/// The process, in a runtime of its own, so that it can be killed at any await.
struct Process {
    runtime: tokio::runtime::Runtime,
    requests: Arc<watch::Sender<usize>>,
}

impl Process {
    /// Starts it. Its clock is fast, so that each certificate is due at once, but not expired.
    fn start(w: &World) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let requests = Arc::new(watch::Sender::new(0));
        let (its, count) = (w.spaces[0].clone(), requests.clone());
        let config = registration::Config {
            cluster_name: Some("c1".into()),
            agent_name: Some("one".into()),
            certificate_seconds: Some(3600),
            connect: Arc::new(move |credential| {
                let client =
                    its.client_ahead_by_certificate(&credential.certificate).map_err(|e| e.to_string());
                let count = count.clone();
                Box::pin(async move { client.map(|client| counting(client, count)) })
            }),
            timers: registration::Timers {
                secret: Duration::from_millis(100),
                health: Duration::from_millis(300),
                ..registration::Timers::default()
            },
            clock: Arc::new(|| jiff::Timestamp::now() + jiff::SignedDuration::from_secs(3000)),
            ..registration::Config::new(Endpoint::new(HUB, "CA"))
        };
        let acting = |who: &Subject| {
            let groups: Vec<&str> = who.groups.iter().map(String::as_str).collect();
            counting(w.spaces[1].client(&Identity::component(&who.user, &groups)), requests.clone())
        };
        let (register_in, deliver_in) =
            (acting(&Subject::registration_account()), acting(&Subject::work_agent_account()));
        let bootstrap = counting(w.bootstrap(), requests.clone());
        let (mut accepted, hub) = (config.accepted.subscribe(), config.connection.client());
        let stop = CancellationToken::new();
        let token = stop.clone();
        runtime.spawn(async move {
            registration::run(bootstrap, register_in, config, token).await.expect("the agent");
        });
        runtime.spawn(async move {
            if accepted.wait_for(|yes| *yes).await.is_ok() {
                let config = work_agent::Config::new("c1", HUB);
                work_agent::run(hub, deliver_in, config, stop).await.expect("the work agent");
            }
        });
        Self { runtime, requests }
    }

    /// Waits until it has sent this many more requests; an idle process sends none.
    async fn busy(&self, requests: usize) {
        let mut count = self.requests.subscribe();
        let before = *count.borrow();
        let enough = count.wait_for(|now| *now >= before + requests);
        let _ = tokio::time::timeout(Duration::from_millis(200), enough).await;
    }

    async fn kill(self) {
        let end = move || self.runtime.shutdown_timeout(Duration::from_secs(60));
        tokio::task::spawn_blocking(end).await.expect("its end");
    }
}

/// The expected state: works with their objects and the values of these.
#[derive(Default)]
struct ExpectedState {
    works: BTreeMap<&'static str, BTreeMap<String, u64>>,
    /// How often each work was created.
    lives: BTreeMap<&'static str, usize>,
}

impl ExpectedState {
    fn manifests(&self, name: &str) -> Vec<Value> {
        let objects = self.works.get(name).into_iter().flatten();
        objects.map(|(name, value)| map(name, &value.to_string())).collect()
    }

    /// Makes one change, in the expected state and on the hub.
    async fn change(&mut self, w: &World, rng: &mut Rng) {
        let (hub, works) = (w.hub(), gvr("manifestworks"));
        let name = NAMES[rng.roll(NAMES.len() as u64) as usize];
        let value = rng.roll(1000);
        if let Some(objects) = self.works.get_mut(name) {
            if rng.roll(5) == 0 {
                self.works.remove(name);
                hub.delete(&works, "c1", name, &Removal::default()).await.expect("deleted");
                return;
            }
            let other = format!("{name}-{}", rng.roll(4));
            if objects.remove(&other).is_none() {
                objects.insert(other, value);
            }
            objects.insert(format!("{name}-keep"), value);
            let patch = json!({"spec": {"workload": {"manifests": self.manifests(name)}}});
            hub.merge::<Value>(&works, "c1", name, &patch).await.expect("changed");
        } else if !w.exists("manifestworks", "c1", name).await {
            // A work of that name may still be in deletion.
            self.works.insert(name, BTreeMap::from([(format!("{name}-keep"), value)]));
            *self.lives.entry(name).or_default() += 1;
            let body = holding(name, &self.manifests(name));
            create(&hub, &works, "c1", body).await.expect("a work");
        }
    }
}

async fn all(rest: &Rest, plural: &str, namespace: &str) -> Vec<Value> {
    let list: Value = rest.list(&gvr(plural), namespace, "").await.expect("a list");
    list["items"].as_array().cloned().unwrap_or_default()
}

fn listed(applied: &Value) -> Vec<&str> {
    let resources = applied["status"]["appliedResources"].as_array();
    resources.into_iter().flatten().filter_map(|one| one["name"].as_str()).collect()
}

/// Every delivered object belongs to an AppliedManifestWork that lists it.
async fn check(w: &World) {
    let cluster = w.admin(1);
    let objects = all(&cluster, "configmaps", "default").await;
    let applied = all(&cluster, "appliedmanifestworks", "").await;
    let after = all(&cluster, "configmaps", "default").await;
    // An object that exists before and after existed, with its owner, when the owners were listed.
    for object in objects.iter().filter(|object| after.iter().any(|later| standing(object, later))) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let owners = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        assert!(!owners.is_empty(), "{name} is nobody's");
        for owner in owners {
            let found = applied.iter().find(|a| a["metadata"]["uid"] == owner["uid"]);
            let found = found.unwrap_or_else(|| panic!("{name} belongs to what is gone: {applied:#?}"));
            assert!(listed(found).contains(&name), "{name} is not listed: {found:#}");
        }
    }
}

/// OCM-057, OCM-093, OCM-015, OCM-A-36: the whole agent of a cluster is killed again and again while it
/// joins, while it renews its certificate (which it does all the time), and while works are created, changed
/// and deleted. It joins once, nothing is left behind, no wanted object is recreated, and everything it
/// creates is listed. There is no garbage collector.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_057_a_killed_agent_joins_once_and_orphans_nothing() {
    let w = World::start_as(Setting { bare: true, ..Setting::default() }, trusting).await;
    let seed = setting("AGENT_SEED", 20_261_122) as u64;
    let (mut rng, mut wanted) = (Rng(seed | 1), ExpectedState::default());
    let incarnations: Arc<Mutex<BTreeMap<String, BTreeSet<String>>>> = Arc::default();
    let (stop, seen, client) = (CancellationToken::new(), incarnations.clone(), w.admin(1));
    let token = stop.clone();
    let observer = tokio::spawn(async move {
        let source = Source::all(gvr("configmaps")).namespaced("default").metadata();
        follow(client.client(), &source, &token, |change: Change<PartialObjectMeta>| {
            if let Change::Put(PartialObjectMeta { metadata, .. }) = change {
                let (name, uid) = (metadata.name.unwrap_or_default(), metadata.uid.unwrap_or_default());
                seen.lock().entry(name).or_default().insert(uid);
            }
        })
        .await;
    });

    // It joins, with very little time in each of its lives.
    let kills = AtomicUsize::new(0);
    let joins = async {
        while w.secret(1).await.is_none() {
            let process = Process::start(&w);
            process.busy(1 + rng.roll(12) as usize).await;
            process.kill().await;
            kills.fetch_add(1, Ordering::SeqCst);
        }
    };
    tokio::time::timeout(Duration::from_secs(120), joins).await.expect("it joins");
    until("its mailbox", || w.exists("namespaces", "", "c1")).await;

    let changes = setting("AGENT_CHANGES", CHANGES);
    let (mut done, mut first) = (0, w.secret(1).await);
    let mut renewed = 0;
    while done < changes {
        let process = Process::start(&w);
        for _ in 0..=rng.roll(6) {
            wanted.change(&w, &mut rng).await;
            done += 1;
        }
        // At a random moment: after some requests, or in the pause after the last.
        process.busy(1 + rng.roll(80) as usize).await;
        process.kill().await;
        kills.fetch_add(1, Ordering::SeqCst);
        check(&w).await;
        let now = w.secret(1).await;
        renewed += usize::from(now != first);
        first = now;
    }

    let process = Process::start(&w);
    let expected = contents(&wanted.works);
    until("what is wanted and nothing else", || async {
        let have = all(&w.admin(1), "configmaps", "default").await;
        let have: BTreeMap<String, Value> = have
            .iter()
            .map(|o| (o["metadata"]["name"].as_str().unwrap_or_default().to_owned(), o["data"].clone()))
            .collect();
        have == expected
    })
    .await;
    until("what is wanted is listed, and nothing else", || async {
        let applied = all(&w.admin(1), "appliedmanifestworks", "").await;
        let names: BTreeSet<&str> = applied.iter().flat_map(listed).collect();
        applied.len() == wanted.works.len() && names.iter().copied().eq(expected.keys().map(String::as_str))
    })
    .await;
    // It renews its certificate as long as it runs.
    let last = w.secret(1).await;
    until("another certificate", || async { w.secret(1).await != last }).await;
    process.kill().await;
    check(&w).await;
    stop.cancel();
    observer.await.expect("no panic");

    let kills = kills.load(Ordering::SeqCst);
    for (name, lives) in &wanted.lives {
        let uids = incarnations.lock().get(&format!("{name}-keep")).map_or(0, BTreeSet::len);
        assert!(
            uids <= *lives,
            "{name}-keep was made {uids} times in {lives} lives (seed {seed}, {kills} kills)"
        );
    }
    let requests = w.requests("c1").await;
    let joined = requests.iter().filter(|r| r["spec"]["username"] == BOOTSTRAP).count();
    assert_eq!(joined, 1, "it asked to join once ({kills} kills, {renewed} renewals)");
    w.end().await;
}
