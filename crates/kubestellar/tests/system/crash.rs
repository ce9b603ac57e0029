//! kill -9 at random points under a burst of writes, with a checker of what was promised.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchParams};
use kube::core::WatchEvent;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::support::{
    Installation, Random, any_seed, config_map, create, namespace, policy, resource_version, until, within,
};

/// How often the server is killed, and under which load.
#[derive(Clone, Copy)]
struct Load {
    rounds: u64,
    writers: u64,
    /// Objects a round would write if nobody killed the server.
    objects: u64,
    /// Every so many rounds, the server is also killed while it starts; 0 for never.
    killed_at_start_every: u64,
}

/// What one writer asked for.
#[derive(Clone, Debug, PartialEq)]
enum Write {
    /// The value the object has afterwards.
    Put(String),
    Delete,
}

/// What is known about one object: the last answered write, and the one that was under way when the server died.
#[derive(Debug, Default)]
struct Promise {
    answered: Option<(Write, Option<u64>)>,
    pending: Option<Write>,
}

/// The promises of all rounds, by name.
#[derive(Default)]
struct Ledger {
    promises: BTreeMap<String, Promise>,
    /// Name and resourceVersion of every answered create and update.
    versions: BTreeSet<(String, u64)>,
    /// Number of answered writes.
    answers: u64,
}

/// SP-A-05, SP-042, design "a crash at any instant loses no acknowledged write": across three kills every answered
/// write is there, nothing else is, all of it gets to both clusters, and watchers that go on from the last
/// resourceVersion they saw get every event once and in order.
#[tokio::test(flavor = "multi_thread")]
async fn sp_a_05_kill_at_random_points() {
    kill_under(Load { rounds: 3, writers: 32, objects: 2000, killed_at_start_every: 0 }).await;
}

/// SP-A-05, SP-042: the same over many rounds with few writers, where most groups hold one write, and with kills during the
/// start. `cargo test -p kubestellar --test system -- --ignored --nocapture two_hundred`; `KILL_ROUNDS` is the number of rounds.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half an hour"]
async fn sp_a_05_two_hundred_kills_with_three_writers() {
    let rounds = std::env::var("KILL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    kill_under(Load { rounds, writers: 3, objects: 120, killed_at_start_every: 4 }).await;
}

async fn kill_under(load: Load) {
    let mut random = Random(any_seed());
    let ks = Installation::new();
    let mut server = ks.serve(&["--listen", "127.0.0.1:0"]).await;
    let wds = ks.client("wds1").await;
    create(&wds, policy("tide", ("location-group", "edge"), false)).await;
    create(&wds, namespace("tide")).await;
    let mut watchers = watchers(&wds).await;
    let mut ledger = Ledger::default();
    for round in 0..load.rounds {
        let killed_after = load.objects / 20 + random.below(load.objects * 3 / 4);
        println!("round {round}: killed after {killed_after} answers");
        let mut following = JoinSet::new();
        for mut watcher in watchers {
            let client = ks.client("wds1").await;
            following.spawn(async move {
                watcher.follow(&client, |_| false).await;
                watcher
            });
        }
        let answers = Arc::new(Semaphore::new(0));
        let mut writers = JoinSet::new();
        for writer in 0..load.writers {
            writers.spawn(write(ks.client("wds1").await, load, round, writer, answers.clone()));
        }
        let enough = within("the burst", answers.acquire_many(killed_after as u32)).await;
        enough.unwrap().forget();
        server.kill().await;
        while let Some(log) = within("the writers", writers.join_next()).await {
            ledger.add(log.unwrap());
        }
        watchers = within("the watchers", following.join_all()).await;
        if load.killed_at_start_every > 0 && round % load.killed_at_start_every == 0 {
            let half_started = ks.spawn("serve", &["serve"]);
            // Somewhere in the start: any moment will do, and none is waited for.
            tokio::time::sleep(Duration::from_millis(random.below(1500))).await;
            half_started.kill().await;
        }
        server = ks.serve(&[]).await;
        ledger = check(&ks, ledger, &mut watchers).await;
    }
    println!(
        "{} kills, {} answered writes, {} of them with a resourceVersion that all watchers saw; nothing lost",
        load.rounds,
        ledger.answers,
        ledger.versions.len()
    );
    server.stop().await;
}

/// What a writer did, in order: name, write, and the answered resourceVersion, or nothing for no answer.
type Log = Vec<(String, Write, Option<Option<u64>>)>;

/// Creates its share of the objects, updates some and deletes some, until the server is gone.
async fn write(client: Client, load: Load, round: u64, writer: u64, answers: Arc<Semaphore>) -> Log {
    let maps: Api<ConfigMap> = Api::namespaced(client, "tide");
    let mut log = Log::new();
    for n in (writer..load.objects).step_by(load.writers as usize) {
        let name = format!("r{round}-{n}");
        let value = format!("{name} {}", "x".repeat(200));
        let object = serde_json::from_value(config_map("tide", &name, &value)).unwrap();
        let created = maps.create(&PostParams::default(), &object).await;
        log.push((name.clone(), Write::Put(value), created.as_ref().ok().map(|o| Some(resource_version(o)))));
        if died(created.err()) {
            return log;
        }
        answers.add_permits(1);
        let error = match n / load.writers % 8 {
            3 => {
                let value = format!("{name} {}", "y".repeat(300));
                let patch = Patch::Merge(json!({"data": {"value": value}}));
                let patched = maps.patch(&name, &PatchParams::default(), &patch).await;
                log.push((name, Write::Put(value), patched.as_ref().ok().map(|o| Some(resource_version(o)))));
                patched.err()
            }
            6 => {
                let deleted = maps.delete(&name, &DeleteParams::default()).await;
                log.push((name, Write::Delete, deleted.as_ref().ok().map(|_| None)));
                deleted.err()
            }
            _ => continue,
        };
        if died(error) {
            return log;
        }
        answers.add_permits(1);
    }
    // All written before the kill came: wait for it like everybody else.
    log
}

/// Whether the connection broke. A server that lives has no reason to refuse any of this.
fn died(error: Option<kube::Error>) -> bool {
    match error {
        Some(kube::Error::Api(status)) => panic!("refused: {status:?}"),
        error => error.is_some(),
    }
}

impl Ledger {
    fn add(&mut self, log: Log) {
        for (name, write, answer) in log {
            let promise = self.promises.entry(name.clone()).or_default();
            match answer {
                Some(version) => {
                    self.answers += 1;
                    promise.answered = Some((write, version));
                    self.versions.extend(version.map(|v| (name, v)));
                }
                None => promise.pending = Some(write),
            }
        }
    }
}

/// Compares everything with what was promised; what an unanswered write came to is settled from then on.
async fn check(ks: &Installation, mut ledger: Ledger, watchers: &mut [Watcher]) -> Ledger {
    let wds = ks.client("wds1").await;
    let maps: Api<ConfigMap> = Api::namespaced(wds.clone(), "tide");
    let listed = maps.list(&ListParams::default().labels("app.kubernetes.io/part-of=tide")).await.unwrap();
    let there: BTreeMap<String, (u64, String)> =
        listed.iter().map(|o| (o.name_any(), (resource_version(o), value(o)))).collect();
    for (name, promise) in &mut ledger.promises {
        let found = there.get(name);
        let now = found.map_or(Write::Delete, |(_, value)| Write::Put(value.clone()));
        let answered = promise.answered.take();
        let untouched = (Write::Delete, None);
        let (wanted, version) = answered.as_ref().unwrap_or(&untouched);
        if now == *wanted {
            // Whole and as answered; the version is the answered one unless nothing was ever answered.
            assert!(
                version.is_none_or(|v| found.is_some_and(|(f, _)| *f == v)),
                "{name}: {found:?}, promised {version:?}"
            );
        } else {
            assert_eq!(
                Some(&now),
                promise.pending.as_ref(),
                "{name}: neither as answered ({wanted:?}) nor as sent last"
            );
            assert!(found.is_none_or(|(f, _)| version.is_none_or(|v| *f > v)), "{name} went back in time");
        }
        *promise = Promise { answered: Some((now, found.map(|(v, _)| *v))), pending: None };
    }
    let unknown: Vec<_> = there.keys().filter(|name| !ledger.promises.contains_key(*name)).collect();
    assert!(unknown.is_empty(), "nobody sent {unknown:?}");

    let versions: BTreeMap<String, u64> = there.iter().map(|(name, (v, _))| (name.clone(), *v)).collect();
    for watcher in watchers.iter_mut() {
        let what = format!("{} to catch up from {}", watcher.name, watcher.last);
        within(&what, watcher.follow(&wds, |state| *state == versions)).await;
        let missed: Vec<_> = ledger.versions.iter().filter(|v| !watcher.seen.contains(*v)).collect();
        assert!(missed.is_empty(), "{} never saw {missed:?}", watcher.name);
    }
    let values: BTreeMap<String, String> =
        there.into_iter().map(|(name, (_, value))| (name, value)).collect();
    for cluster in ["cluster1", "cluster2"] {
        let maps: Api<ConfigMap> = Api::namespaced(ks.client(cluster).await, "tide");
        let mut difference = Difference(String::new());
        until(&maps, &format!("delivery of all to {cluster}"), |all| {
            let ours = all.values().filter(|o| o.labels().contains_key("app.kubernetes.io/part-of"));
            let ours: BTreeMap<String, String> = ours.map(|o| (o.name_any(), value(o))).collect();
            difference.note(&values, &ours);
            ours == values
        })
        .await;
    }
    ledger
}

/// What was last seen to differ; told when the test fails.
struct Difference(String);

impl Difference {
    fn note(&mut self, wanted: &BTreeMap<String, String>, found: &BTreeMap<String, String>) {
        let of = |one: &BTreeMap<String, String>, other: &BTreeMap<String, String>| -> Vec<String> {
            one.iter().filter(|(k, v)| other.get(*k) != Some(v)).map(|(k, _)| k.clone()).collect()
        };
        let (missing, other) = (of(wanted, found), of(found, wanted));
        self.0 = format!(
            "{} of {} are not there as wanted, among them {:?}; {} are there otherwise, among them {:?}",
            missing.len(),
            wanted.len(),
            &missing[..missing.len().min(20)],
            other.len(),
            &other[..other.len().min(20)]
        );
    }
}

impl Drop for Difference {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

fn value(map: &ConfigMap) -> String {
    map.data.as_ref().and_then(|d| d.get("value")).cloned().unwrap_or_default()
}

/// Follows one watch over all restarts and rebuilds the state from its events alone.
struct Watcher {
    name: &'static str,
    everywhere: bool,
    parameters: WatchParams,
    last: u64,
    state: BTreeMap<String, u64>,
    /// Name and resourceVersion of every addition and change.
    seen: BTreeSet<(String, u64)>,
}

async fn watchers(wds: &Client) -> Vec<Watcher> {
    let maps: Api<ConfigMap> = Api::namespaced(wds.clone(), "tide");
    let now = maps.list(&ListParams::default()).await.unwrap();
    let last = now.metadata.resource_version.unwrap().parse().unwrap();
    let labelled = WatchParams::default().labels("app.kubernetes.io/part-of=tide");
    let watcher = |name, everywhere, parameters| Watcher {
        name,
        everywhere,
        parameters,
        last,
        state: BTreeMap::new(),
        seen: BTreeSet::new(),
    };
    let unlabelled = WatchParams { bookmarks: false, ..WatchParams::default() };
    vec![
        watcher("the labelled watch of the namespace", false, labelled.clone()),
        watcher("the labelled watch of all namespaces", true, labelled),
        watcher("the watch without bookmarks", false, unlabelled),
    ]
}

impl Watcher {
    /// Goes on after the last event seen until `enough` or the connection ends.
    async fn follow(&mut self, client: &Client, enough: impl Fn(&BTreeMap<String, u64>) -> bool) {
        let maps: Api<ConfigMap> =
            if self.everywhere { Api::all(client.clone()) } else { Api::namespaced(client.clone(), "tide") };
        if enough(&self.state) {
            return;
        }
        let mut events = match maps.watch(&self.parameters, &self.last.to_string()).await {
            Ok(events) => events.boxed(),
            Err(kube::Error::Api(status)) => panic!("{}: from {}: {status:?}", self.name, self.last),
            // Killed before it came to us.
            Err(_) => return,
        };
        while let Some(Ok(event)) = events.next().await {
            self.take(event);
            if enough(&self.state) {
                return;
            }
        }
    }

    fn take(&mut self, event: WatchEvent<ConfigMap>) {
        let name = self.name;
        match event {
            WatchEvent::Added(o) => {
                let old = self.put(&o);
                assert!(old.is_none(), "{name}: {} added twice", o.name_any());
            }
            WatchEvent::Modified(o) => {
                let old = self.put(&o);
                assert!(old.is_some(), "{name}: {} changed before it was added", o.name_any());
            }
            WatchEvent::Deleted(o) => {
                self.advance(resource_version(&o), &o.name_any());
                assert!(
                    self.state.remove(&o.name_any()).is_some(),
                    "{name}: {} deleted unseen",
                    o.name_any()
                );
            }
            WatchEvent::Bookmark(mark) => {
                let version = mark.metadata.resource_version.parse().unwrap();
                assert!(version >= self.last, "{name}: bookmark {version} after {}", self.last);
                self.last = version;
            }
            WatchEvent::Error(status) => panic!("{name}: after {}: {status:?}", self.last),
        }
    }

    /// Notes an object; the watch of a namespace also has the one with its CA, which nobody of ours wrote.
    fn put(&mut self, object: &ConfigMap) -> Option<u64> {
        let (name, version) = (object.name_any(), resource_version(object));
        self.advance(version, &name);
        if name == "kube-root-ca.crt" {
            return None;
        }
        self.seen.insert((name.clone(), version));
        self.state.insert(name, version)
    }

    fn advance(&mut self, version: u64, what: &str) {
        assert!(version > self.last, "{}: {what} at {version} after {}", self.name, self.last);
        self.last = version;
    }
}
