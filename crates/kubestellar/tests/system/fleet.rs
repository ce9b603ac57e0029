//! A WDS, an ITS and four clusters in memory, with controllers that stop and die while users keep them busy.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use space::{Identity, Space, SpaceConfig};
use store::Engine;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::support::{Random, create, dynamic, uid, until, within};

const CLUSTERS: [&str; 4] = ["wec0", "wec1", "wec2", "wec3"];
const NAMESPACES: [&str; 3] = ["n0", "n1", "n2"];
const POLICIES: [&str; 4] = ["p0", "p1", "p2", "p3"];
const GROUPS: u64 = 5;
const WRITERS: u64 = 16;
const POLICY: (&str, &str) = ("control.kubestellar.io/v1alpha1", "BindingPolicy");
const CLUSTER: (&str, &str) = ("cluster.open-cluster-management.io/v1", "ManagedCluster");

/// One controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Controllers,
    Transport,
    Agent(&'static str),
}

const PARTS: [Part; 6] = [
    Part::Controllers,
    Part::Transport,
    Part::Agent(CLUSTERS[0]),
    Part::Agent(CLUSTERS[1]),
    Part::Agent(CLUSTERS[2]),
    Part::Agent(CLUSTERS[3]),
];

/// A controller in a runtime of its own, so that it can be killed at any await.
struct Running {
    runtime: Runtime,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

struct Fleet {
    spaces: BTreeMap<&'static str, Space>,
    clients: BTreeMap<&'static str, Client>,
    running: BTreeMap<Part, Running>,
    _data: tempfile::TempDir,
}

impl Fleet {
    async fn start() -> Self {
        let (data, engine) = (tempfile::tempdir().unwrap(), Engine::in_memory());
        let (mut spaces, mut clients) = (BTreeMap::new(), BTreeMap::new());
        for name in ["wds1", "its1"].into_iter().chain(CLUSTERS) {
            let url = format!("https://127.0.0.1:9443/spaces/{name}");
            let config = SpaceConfig { name, data: data.path(), url, advertise: "127.0.0.1:9443".into() };
            let space = Space::start(&engine, config).await.unwrap();
            clients.insert(name, space.client(&Identity::admin()));
            spaces.insert(name, space);
        }
        let fleet = Self { spaces, clients, running: BTreeMap::new(), _data: data };
        let hub = [apis::crds::ocm_hub(), apis::crds::work_status()].concat();
        runtime::install(&fleet.client("its1"), &hub, "test").await.unwrap();
        runtime::install(&fleet.client("wds1"), &apis::crds::control(), "test").await.unwrap();
        for name in CLUSTERS {
            runtime::install(&fleet.client(name), &apis::crds::ocm_spoke(), "test").await.unwrap();
            let labels = json!({"fleet": "yes", "name": name, "zone": "a"});
            let spec = json!({"hubAcceptsClient": true});
            create(
                &fleet.client("its1"),
                json!({"apiVersion": CLUSTER.0, "kind": CLUSTER.1, "metadata": {"name": name, "labels": labels}, "spec": spec}),
            )
            .await;
            create(&fleet.client("its1"), namespace(name)).await;
            for inside in NAMESPACES {
                create(&fleet.client(name), namespace(inside)).await;
            }
        }
        for inside in NAMESPACES {
            create(&fleet.client("wds1"), namespace(inside)).await;
        }
        fleet
    }

    fn client(&self, space: &str) -> Client {
        self.clients[space].clone()
    }

    fn run(&mut self, part: Part) {
        if self.running.contains_key(&part) {
            return;
        }
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (stop, its) = (CancellationToken::new(), self.client("its1"));
        let (token, wds) = (stop.clone(), self.client("wds1"));
        let task = match part {
            Part::Controllers => runtime.spawn(async move {
                let config = controller_manager::Config::new("wds1", "its1");
                controller_manager::run(wds, its, config, token).await.unwrap();
            }),
            Part::Transport => runtime.spawn(async move {
                transport::run(wds, its, transport::Config::new("wds1"), token).await.unwrap();
            }),
            Part::Agent(name) => {
                let (cluster, url) = (self.client(name), self.spaces["its1"].url().to_owned());
                runtime.spawn(async move {
                    let config = ocm_agent::work_agent::Config::new(name, &url);
                    ocm_agent::work_agent::run(its, cluster, config, token).await.unwrap();
                })
            }
        };
        self.running.insert(part, Running { runtime, stop, task });
    }

    fn run_all(&mut self) {
        for part in PARTS {
            self.run(part);
        }
    }

    /// The end of a process: whatever was under way is dropped where it was.
    fn kill(&mut self, part: Part) {
        if let Some(running) = self.running.remove(&part) {
            running.runtime.shutdown_background();
        }
    }

    /// An orderly end.
    async fn stop(&mut self, part: Part) {
        let Some(running) = self.running.remove(&part) else { return };
        running.stop.cancel();
        within(&format!("the stop of {part:?}"), running.task).await.unwrap();
        running.runtime.shutdown_background();
    }

    async fn end(mut self) {
        for part in PARTS {
            self.stop(part).await;
        }
        for space in self.spaces.values() {
            space.stop().await;
        }
    }

    /// What each cluster should have by a naive evaluation of what WDS and ITS say: `namespace/name` and value.
    async fn model(&self) -> BTreeMap<&'static str, BTreeMap<String, String>> {
        let all = ListParams::default();
        let wds = self.client("wds1");
        let maps: Api<ConfigMap> = Api::all(wds.clone());
        let maps = maps.list(&all).await.unwrap().items;
        let policies = dynamic(&wds, POLICY.0, POLICY.1, None).list(&all).await.unwrap().items;
        let namespaces = dynamic(&wds, "v1", "Namespace", None).list(&all).await.unwrap().items;
        let clusters =
            dynamic(&self.client("its1"), CLUSTER.0, CLUSTER.1, None).list(&all).await.unwrap().items;
        let zones: BTreeMap<_, _> = namespaces.iter().map(|it| (it.name_any(), it.labels())).collect();
        let mut model: BTreeMap<_, _> = CLUSTERS.map(|name| (name, BTreeMap::new())).into();
        for policy in policies.iter().filter(|it| it.metadata.deletion_timestamp.is_none()) {
            let spec = &policy.data["spec"];
            let chosen = clusters.iter().filter(|it| any(&spec["clusterSelectors"], it.labels()));
            let chosen: BTreeSet<String> = chosen.map(ResourceExt::name_any).collect();
            for map in &maps {
                let inside = map.namespace().unwrap();
                let clauses = spec["downsync"].as_array().unwrap();
                if clauses.iter().any(|it| matches(it, map.labels(), &inside, zones[&inside])) {
                    let wanted = model.iter_mut().filter(|(name, _)| chosen.contains(**name));
                    for (_, there) in wanted {
                        there.insert(format!("{inside}/{}", map.name_any()), value(map));
                    }
                }
            }
        }
        model
    }

    /// Waits until every cluster has what the model says, and nothing else.
    async fn settled(&self, what: &str) {
        for (cluster, wanted) in self.model().await {
            let maps: Api<ConfigMap> = Api::all(self.client(cluster));
            let what = format!("{what}: {} objects in {cluster}", wanted.len());
            let settled = until(&maps, &what, |all| {
                all.len() == wanted.len() && all.iter().all(|(name, it)| wanted.get(name) == Some(&value(it)))
            });
            if let Err(never) = AssertUnwindSafe(settled).catch_unwind().await {
                self.show(cluster, &wanted).await;
                std::panic::resume_unwind(never);
            }
        }
    }

    /// Where it is that the objects of a cluster are not as they should be.
    async fn show(&self, cluster: &str, wanted: &BTreeMap<String, String>) {
        let all = ListParams::default();
        let (wds, its, wec) = (self.client("wds1"), self.client("its1"), self.client(cluster));
        let maps = Api::<ConfigMap>::all(wec.clone()).list(&all).await.unwrap().items;
        let there: BTreeMap<_, _> = maps
            .iter()
            .map(|it| (format!("{}/{}", it.namespace().unwrap(), it.name_any()), value(it)))
            .collect();
        println!(
            "wanted, and not there: {:?}",
            wanted.iter().filter(|it| there.get(it.0) != Some(it.1)).collect::<Vec<_>>()
        );
        println!(
            "there, and not wanted: {:?}",
            there.iter().filter(|it| !wanted.contains_key(it.0)).collect::<Vec<_>>()
        );
        for (client, version, kind, namespace) in [
            (&wds, POLICY.0, POLICY.1, None),
            (&wds, POLICY.0, "Binding", None),
            (&its, "work.open-cluster-management.io/v1", "ManifestWork", Some(cluster)),
            (&wec, "work.open-cluster-management.io/v1", "AppliedManifestWork", None),
        ] {
            for it in dynamic(client, version, kind, namespace).list(&all).await.unwrap().items {
                let text = json!({"metadata": {
                    "generation": it.metadata.generation, "finalizers": it.metadata.finalizers,
                    "deletion": it.metadata.deletion_timestamp, "version": it.metadata.resource_version,
                }, "spec": it.data["spec"], "status": it.data["status"]});
                println!("{kind} {}: {text}", it.name_any());
            }
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for part in PARTS {
            self.kill(part);
        }
    }
}

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"name": name}}})
}

fn policy(name: &str, spec: Value) -> Value {
    json!({"apiVersion": POLICY.0, "kind": POLICY.1, "metadata": {"name": name}, "spec": spec})
}

fn config_map(namespace: &str, name: &str, labels: Value, value: &str) -> ConfigMap {
    serde_json::from_value(json!({
        "metadata": {"namespace": namespace, "name": name, "labels": labels}, "data": {"value": value},
    }))
    .unwrap()
}

fn value(map: &ConfigMap) -> String {
    map.data.as_ref().and_then(|data| data.get("value")).cloned().unwrap_or_default()
}

fn any(selectors: &Value, labels: &BTreeMap<String, String>) -> bool {
    selectors.as_array().into_iter().flatten().any(|selector| {
        let exact = selector["matchLabels"].as_object();
        exact.into_iter().flatten().all(|(key, value)| labels.get(key).map(String::as_str) == value.as_str())
    })
}

fn matches(
    clause: &Value,
    labels: &BTreeMap<String, String>,
    namespace: &str,
    zone: &BTreeMap<String, String>,
) -> bool {
    let given = |key: &str| clause.get(key).is_some();
    (!given("objectSelectors") || any(&clause["objectSelectors"], labels))
        && (!given("namespaces") || clause["namespaces"].as_array().unwrap().contains(&json!(namespace)))
        && (!given("namespaceSelectors") || any(&clause["namespaceSelectors"], zone))
}

/// Follows the objects of a cluster that must stay, and tells when one goes or comes again.
async fn guard(cluster: &'static str, client: Client, broken: Arc<Mutex<Vec<String>>>) {
    let maps: Api<ConfigMap> = Api::all(client);
    let mut events = watcher(maps, watcher::Config::default().labels("stay=yes")).boxed();
    let mut uids: BTreeMap<String, String> = BTreeMap::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(map) | Event::InitApply(map)) => {
                let name = format!("{}/{}", map.namespace().unwrap(), map.name_any());
                let (now, before) = (uid(&map), uids.get(&name));
                if before.is_some_and(|before| *before != now) {
                    broken.lock().push(format!("{cluster}: {name} was made anew"));
                }
                if map.metadata.deletion_timestamp.is_some() {
                    broken.lock().push(format!("{cluster}: {name} is being deleted"));
                }
                uids.insert(name, now);
            }
            Ok(Event::Delete(map)) => {
                broken.lock().push(format!("{cluster}: {} was deleted", map.name_any()));
            }
            _ => {}
        }
    }
}

impl Random {
    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn group(&mut self) -> String {
        format!("g{}", self.below(GROUPS))
    }

    /// Some objects for some clusters, now and then with those that stay.
    fn spec(&mut self) -> Value {
        let clusters = match self.below(4) {
            0 => json!([{}]),
            1 => json!([{"matchLabels": {"zone": "a"}}]),
            _ => json!([{"matchLabels": {"name": self.pick(&CLUSTERS)}}, {"matchLabels": {"zone": "b"}}]),
        };
        let mut clauses = vec![match self.below(4) {
            0 => json!({"resources": ["configmaps"], "namespaces": [self.pick(&NAMESPACES)],
                "objectSelectors": [{"matchLabels": {"group": self.group()}}]}),
            1 => json!({"resources": ["configmaps"], "namespaceSelectors": [{"matchLabels": {"team": "x"}}],
                "objectSelectors": [{"matchLabels": {"group": self.group()}}, {"matchLabels": {"group": self.group()}}]}),
            _ => json!({"apiGroup": "", "objectSelectors": [{"matchLabels": {"group": self.group()}}]}),
        }];
        if self.below(2) == 0 {
            clauses.push(
                json!({"resources": ["configmaps"], "objectSelectors": [{"matchLabels": {"stay": "yes"}}]}),
            );
        }
        json!({"clusterSelectors": clusters, "downsync": clauses})
    }
}

/// KS-A-23, KS-A-24, KS-021, KS-066, KS-069: binding, transport and work agents are killed, stopped and started at random
/// while objects, labels, namespaces, clusters and policies change. The clusters end with what a naive evaluation says, and
/// no object that some policy wanted there all the time was ever deleted or made anew.
///
/// `KUBESTELLAR_TEST_OBJECTS` sets how many objects there are, `KUBESTELLAR_TEST_SEED` what happens.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_23_the_fleet_survives_churn_and_dying_controllers() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("KUBESTELLAR_TEST_SEED").unwrap_or_else(clock);
    let objects = number("KUBESTELLAR_TEST_OBJECTS").unwrap_or(1000);
    println!("KUBESTELLAR_TEST_SEED={seed} KUBESTELLAR_TEST_OBJECTS={objects}");
    let mut random = Random(seed);
    let mut fleet = Fleet::start().await;
    fleet.run_all();
    let stay = json!({"clusterSelectors": [{"matchLabels": {"fleet": "yes"}}], "downsync": [
        {"resources": ["configmaps"], "objectSelectors": [{"matchLabels": {"stay": "yes"}}]},
    ]});
    create(&fleet.client("wds1"), policy("stay", stay)).await;
    write(fleet.client("wds1"), objects, Random(seed), Phase::Fill, watch::Sender::new(0)).await;
    fleet.settled("before the churn").await;

    let broken = Arc::new(Mutex::new(Vec::new()));
    let mut guards = JoinSet::new();
    for cluster in CLUSTERS {
        guards.spawn(guard(cluster, fleet.client(cluster), broken.clone()));
    }
    let answers = watch::Sender::new(0);
    let churn =
        tokio::spawn(write(fleet.client("wds1"), objects, Random(seed ^ 1), Phase::Churn, answers.clone()));
    let (mut written, mut deaths) = (answers.subscribe(), 0);
    for (at, act) in chaos_plan(&mut random, objects) {
        written.wait_for(|answers| *answers >= at).await.unwrap();
        deaths += u32::from(matches!(act, Act::Kill(part) if fleet.running.contains_key(&part)));
        perform(act, &mut fleet, &mut random).await;
    }
    churn.await.unwrap();
    println!("{objects} changes, {deaths} kills");
    fleet.run_all();
    fleet.settled("after the churn").await;
    assert_eq!(*broken.lock(), Vec::<String>::new(), "KUBESTELLAR_TEST_SEED={seed}");
    guards.shutdown().await;
    fleet.end().await;
}

enum Act {
    Kill(Part),
    Stop(Part),
    Run(Part),
    /// Someone edits policies, clusters or namespaces.
    Users,
}

/// What happens after how many writes.
fn chaos_plan(random: &mut Random, writes: u64) -> Vec<(u64, Act)> {
    let mut plan = Vec::new();
    for _ in 0..(writes / 30).clamp(20, 200) {
        let (at, part) = (random.below(writes), random.pick(&PARTS));
        plan.push((at, if random.below(3) == 0 { Act::Stop(part) } else { Act::Kill(part) }));
        plan.push((writes.min(at + random.below(writes / 10 + 1)), Act::Run(part)));
    }
    for _ in 0..40 {
        plan.push((random.below(writes), Act::Users));
    }
    plan.sort_by_key(|(at, _)| *at);
    plan
}

async fn perform(act: Act, fleet: &mut Fleet, random: &mut Random) {
    match act {
        Act::Kill(part) => fleet.kill(part),
        Act::Stop(part) => fleet.stop(part).await,
        Act::Run(part) => fleet.run(part),
        Act::Users => users(fleet, random).await,
    }
}

/// One edit. What is refused, since it is there or not there, does not happen.
async fn users(fleet: &Fleet, random: &mut Random) {
    let (wds, its) = (fleet.client("wds1"), fleet.client("its1"));
    let policies = dynamic(&wds, POLICY.0, POLICY.1, None);
    let name = random.pick(&POLICIES);
    let merge = PatchParams::default();
    match random.below(8) {
        0..3 => {
            let object: DynamicObject = serde_json::from_value(policy(name, random.spec())).unwrap();
            drop(policies.create(&PostParams::default(), &object).await);
        }
        3..5 => {
            let patch = Patch::Merge(json!({"spec": random.spec()}));
            drop(policies.patch(name, &merge, &patch).await);
        }
        5 => drop(policies.delete(name, &DeleteParams::default()).await),
        6 => {
            let patch =
                Patch::Merge(json!({"metadata": {"labels": {"zone": random.pick(&["a", "b", "c"])}}}));
            let clusters = dynamic(&its, CLUSTER.0, CLUSTER.1, None);
            clusters.patch(random.pick(&CLUSTERS), &merge, &patch).await.unwrap();
        }
        _ => {
            let patch = Patch::Merge(json!({"metadata": {"labels": {"team": random.pick(&["x", "y"])}}}));
            let namespaces = dynamic(&wds, "v1", "Namespace", None);
            namespaces.patch(random.pick(&NAMESPACES), &merge, &patch).await.unwrap();
        }
    }
}

#[derive(Clone, Copy)]
enum Phase {
    /// Creates all objects.
    Fill,
    /// Changes each once, in one way or another.
    Churn,
}

/// Writes all objects, by several writers.
async fn write(wds: Client, objects: u64, random: Random, phase: Phase, answers: watch::Sender<u64>) {
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let (wds, answers) = (wds.clone(), answers.clone());
        let mut random = Random(random.0.wrapping_add(writer));
        writers.spawn(async move {
            for n in (writer..objects).step_by(WRITERS as usize) {
                write_one(&wds, n, &mut random, phase).await;
                answers.send_modify(|answers| *answers += 1);
            }
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
}

async fn write_one(wds: &Client, n: u64, random: &mut Random, phase: Phase) {
    let inside = NAMESPACES[(n % NAMESPACES.len() as u64) as usize];
    let maps: Api<ConfigMap> = Api::namespaced(wds.clone(), inside);
    let stays = n.is_multiple_of(3);
    let name = if stays { format!("stay-{n}") } else { format!("churn-{n}") };
    let mut labels = json!({"group": random.group()});
    if stays {
        labels["stay"] = json!("yes");
    }
    if let Phase::Fill = phase {
        maps.create(&PostParams::default(), &config_map(inside, &name, labels, "one")).await.unwrap();
        return;
    }
    let update = json!({"metadata": {"labels": labels}, "data": {"value": format!("two {n}")}});
    let patch = Patch::Merge(match random.below(3) {
        0 => json!({"metadata": {"labels": labels}}),
        1 => json!({"data": {"value": format!("two {n}")}}),
        _ => update,
    });
    match random.below(4) {
        0 if !stays => drop(maps.delete(&name, &DeleteParams::default()).await.unwrap()),
        1 if !stays => {
            maps.delete(&name, &DeleteParams::default()).await.unwrap();
            maps.create(&PostParams::default(), &config_map(inside, &name, labels, "again")).await.unwrap();
        }
        _ => drop(maps.patch(&name, &PatchParams::default(), &patch).await.unwrap()),
    }
}

/// KS-A-24, KS-069: what changes while nobody looks is done when the controllers come back, and nothing else is touched.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_24_changes_while_the_controllers_are_down() {
    let mut fleet = Fleet::start().await;
    fleet.run_all();
    let wds = fleet.client("wds1");
    let to = |zone: &str, app: &str| {
        json!({"clusterSelectors": [{"matchLabels": {"zone": zone}}],
            "downsync": [{"resources": ["configmaps"], "objectSelectors": [{"matchLabels": {"app": app}}]}]})
    };
    create(&wds, policy("kept", to("a", "x"))).await;
    create(&wds, policy("goes", to("a", "y"))).await;
    let maps: Api<ConfigMap> = Api::namespaced(wds.clone(), "n0");
    for (name, app) in [("kept", "x"), ("deleted", "x"), ("relabelled", "x"), ("other", "y")] {
        let mut map = config_map("n0", name, json!({"app": app}), "one");
        map.labels_mut().insert("stay".into(), if name == "kept" { "yes" } else { "no" }.into());
        maps.create(&PostParams::default(), &map).await.unwrap();
    }
    fleet.settled("the first delivery").await;
    let broken = Arc::new(Mutex::new(Vec::new()));
    let mut guards = JoinSet::new();
    for cluster in CLUSTERS {
        guards.spawn(guard(cluster, fleet.client(cluster), broken.clone()));
    }
    for kill in [false, true] {
        for part in PARTS {
            if kill {
                fleet.kill(part);
            } else {
                fleet.stop(part).await;
            }
        }
        let policies = dynamic(&wds, POLICY.0, POLICY.1, None);
        if kill {
            let back = Patch::Merge(json!({"metadata": {"labels": {"app": "x"}}}));
            maps.patch("relabelled", &PatchParams::default(), &back).await.unwrap();
            policies.delete("new", &DeleteParams::default()).await.unwrap();
        } else {
            maps.delete("deleted", &DeleteParams::default()).await.unwrap();
            let relabel = Patch::Merge(json!({"metadata": {"labels": {"app": "z"}}}));
            maps.patch("relabelled", &PatchParams::default(), &relabel).await.unwrap();
            policies.delete("goes", &DeleteParams::default()).await.unwrap();
            create(&wds, policy("new", to("a", "z"))).await;
        }
        fleet.run_all();
        fleet.settled(if kill { "after a kill" } else { "after a stop" }).await;
    }
    let gone = dynamic(&wds, "control.kubestellar.io/v1alpha1", "Binding", None);
    until(&gone, "the Bindings of deleted policies", |all| all.keys().map(String::as_str).eq(["kept"])).await;
    assert_eq!(*broken.lock(), Vec::<String>::new());
    guards.shutdown().await;
    fleet.end().await;
}

fn clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |t| t.as_nanos() as u64)
}
