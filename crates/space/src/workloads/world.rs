//! A cluster in a map, for tests. Controllers decide in any order, about states that may be stale when the write
//! arrives; limits are checked after every write, and in the end no controller may want a write.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::object::{
    Kind, Plan, Pod, Write, annotation, generation, is_deleting, label, name, number, replicas, set, text,
    uid,
};
use super::{daemonset, deployment, job, node, pods, replicaset, statefulset};

const NODE: &str = "node";
type Id = (Kind, String);

/// A random generator with a fixed seed.
struct SeededRandom(u64);

impl SeededRandom {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % sides.max(1) as u64).unwrap_or_default()
    }
}

#[derive(Default)]
struct World {
    objects: BTreeMap<Id, Value>,
    pending: Vec<(Id, Vec<Write>)>,
    counter: u64,
    log: Vec<String>,
}

impl World {
    fn with(object: Value) -> Self {
        let mut world = Self::default();
        world.apply(Write::Create(Kind::Node, node::node(NODE, "t")));
        let kind =
            Kind::ALL.into_iter().find(|kind| kind.name() == text(&object, "/kind")).expect("a known kind");
        world.apply(Write::Create(kind, object));
        world
    }

    fn tick(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn get(&self, kind: Kind, name: &str) -> &Value {
        &self.objects[&(kind, name.to_owned())]
    }

    fn all(&self, kind: Kind) -> Vec<Value> {
        self.objects.iter().filter(|((k, _), _)| *k == kind).map(|(_, object)| object.clone()).collect()
    }

    fn pods(&self) -> Vec<Pod> {
        self.all(Kind::Pod).into_iter().map(|pod| serde_json::from_value(pod).expect("a pod")).collect()
    }

    fn children(&self, owner: &Value, kind: Kind) -> Vec<Value> {
        let mut all = self.all(kind);
        all.retain(|one| text(one, "/metadata/ownerReferences/0/uid") == uid(owner));
        all
    }

    fn edit(&mut self, kind: Kind, name: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.get(kind, name).clone();
        change(&mut object);
        self.apply(Write::Update(kind, object));
    }

    fn plan(&self, id: &Id) -> Plan {
        let Some(object) = self.objects.get(id) else { return Plan::default() };
        let pods = || -> Vec<Pod> {
            let children = self.children(object, Kind::Pod).into_iter();
            children.map(|pod| serde_json::from_value(pod).expect("a pod")).collect()
        };
        let revisions = || self.children(object, Kind::ControllerRevision);
        let now = "2026-01-01T00:00:00Z";
        match id.0 {
            Kind::Deployment => {
                let taken = |name: &str| self.objects.contains_key(&(Kind::ReplicaSet, name.to_owned()));
                deployment::decide(object, &self.children(object, Kind::ReplicaSet), taken, now).into()
            }
            Kind::ReplicaSet => replicaset::decide(object, &pods(), NODE).into(),
            Kind::StatefulSet => statefulset::decide(object, &pods(), &revisions(), NODE).into(),
            Kind::DaemonSet => {
                daemonset::decide(object, &pods(), &revisions(), self.get(Kind::Node, NODE)).into()
            }
            Kind::Job => job::decide(object, &pods(), NODE, now),
            Kind::Pod => pods::decide(object, NODE, now).into_iter().collect::<Vec<_>>().into(),
            _ => Plan::default(),
        }
    }

    fn current(&self, kind: Kind, object: &Value) -> Option<Value> {
        let stored = self.objects.get(&(kind, name(object).to_owned()))?;
        let same = |field: &str| text(stored, field) == text(object, field);
        (same("/metadata/resourceVersion") && same("/metadata/uid")).then(|| stored.clone())
    }

    /// Applies a write as a server does: sets names, versions and generations, and refuses stale writes.
    fn apply(&mut self, write: Write) {
        let version = self.tick().to_string();
        match write {
            Write::Create(kind, mut object) => {
                let prefix = text(&object, "/metadata/generateName").to_owned();
                if !prefix.is_empty() {
                    set(&mut object, &["metadata"], "name", format!("{prefix}{version}"));
                }
                set(&mut object, &["metadata"], "uid", format!("uid-{version}"));
                set(&mut object, &["metadata"], "creationTimestamp", format!("{version:0>8}"));
                set(&mut object, &["metadata"], "generation", 1);
                set(&mut object, &["metadata"], "resourceVersion", version);
                if kind == Kind::Pod {
                    set(&mut object, &[], "status", json!({"phase": "Pending", "qosClass": "BestEffort"}));
                }
                self.objects.entry((kind, name(&object).to_owned())).or_insert(object);
            }
            Write::Update(kind, mut object) => {
                let Some(stored) = self.current(kind, &object) else { return };
                set(&mut object, &[], "status", stored.get("status").cloned().unwrap_or(json!({})));
                if object.get("spec") != stored.get("spec") {
                    set(&mut object, &["metadata"], "generation", generation(&stored) + 1);
                }
                set(&mut object, &["metadata"], "resourceVersion", version);
                self.objects.insert((kind, name(&object).to_owned()), object);
            }
            Write::Status(kind, mut object) => {
                let Some(stored) = self.current(kind, &object) else { return };
                set(&mut object, &[], "spec", stored.get("spec").cloned().unwrap_or_default());
                set(&mut object, &["metadata"], "resourceVersion", version);
                self.objects.insert((kind, name(&object).to_owned()), object);
            }
            Write::Patch { kind, name, patch, .. } => {
                if let Some(stored) = self.objects.get_mut(&(kind, name)) {
                    machinery::patch::merge(stored, &patch);
                    set(stored, &["metadata"], "resourceVersion", version);
                }
            }
            Write::Delete { kind, name, uid: id, .. } => {
                self.log.push(format!("- {name}"));
                self.objects.retain(|key, object| *key != (kind, name.clone()) || uid(object) != id);
            }
            Write::Bind { name, node, .. } => {
                if let Some(stored) = self.objects.get_mut(&(Kind::Pod, name)) {
                    set(stored, &["spec"], "nodeName", node);
                }
            }
        }
    }

    /// One controller decides about one object, or one of the pending writes is applied.
    fn step(&mut self, dice: &mut SeededRandom) {
        if !self.pending.is_empty() && dice.roll(3) > 0 {
            let at = dice.roll(self.pending.len());
            let write = self.pending[at].1.pop();
            if self.pending[at].1.is_empty() {
                self.pending.swap_remove(at);
            }
            if let Some(write) = write {
                self.apply(write);
            }
            return;
        }
        let ids: Vec<Id> = self.objects.keys().cloned().collect();
        let id = ids[dice.roll(ids.len())].clone();
        if self.pending.iter().all(|(busy, _)| *busy != id) {
            let mut writes = self.plan(&id).writes;
            if !writes.is_empty() {
                let turn = dice.roll(writes.len());
                writes.rotate_left(turn);
                self.pending.push((id, writes));
            }
        }
    }

    /// Runs until no controller wants a write.
    fn settle(&mut self) {
        for (_, writes) in std::mem::take(&mut self.pending) {
            for write in writes {
                self.apply(write);
            }
        }
        for _ in 0..2000 {
            let ids: Vec<Id> = self.objects.keys().cloned().collect();
            let mut quiet = true;
            for id in ids {
                for write in self.plan(&id).writes {
                    quiet = false;
                    self.apply(write);
                }
            }
            if quiet {
                return;
            }
        }
        panic!("does not come to rest: {:#?}", self.objects);
    }
}

fn object(kind: Kind, name: &str, mut spec: Value) -> Value {
    set(&mut spec, &["selector"], "matchLabels", json!({"app": name}));
    set(&mut spec, &["template", "metadata"], "labels", json!({"app": name}));
    set(&mut spec, &["template", "spec"], "containers", json!([{"name": "c", "image": "one"}]));
    // The API takes Jobs with this or OnFailure only, and the others with Always.
    let restart = if kind == Kind::Job { "Never" } else { "Always" };
    set(&mut spec, &["template", "spec"], "restartPolicy", restart);
    json!({"apiVersion": kind.api_version(), "kind": kind.name(), "metadata": {"name": name, "namespace": "n"},
        "spec": spec})
}

fn web(replicas: i64, strategy: Value) -> Value {
    object(
        Kind::Deployment,
        "web",
        json!({"replicas": replicas, "revisionHistoryLimit": 2, "strategy": strategy,
        "progressDeadlineSeconds": 600}),
    )
}

fn rolling(surge: Value, unavailable: Value) -> Value {
    json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}})
}

fn use_image(world: &mut World, kind: Kind, name: &str, image: &str) {
    world.edit(kind, name, |object| {
        object["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
    });
}

fn images(world: &World) -> Vec<String> {
    let pods = world.all(Kind::Pod);
    pods.iter().map(|pod| text(pod, "/spec/containers/0/image").to_owned()).collect()
}

fn conditions(object: &Value) -> Vec<(&str, &str, &str, &str)> {
    let all = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter()
        .map(|c| (text(c, "/type"), text(c, "/status"), text(c, "/reason"), text(c, "/message")))
        .collect()
}

#[test]
fn a_deployment_comes_to_the_status_of_a_healthy_cluster() {
    let mut world = World::with(web(3, rolling(json!("25%"), json!("25%"))));
    world.settle();
    let web = world.get(Kind::Deployment, "web");
    let [set] = &world.all(Kind::ReplicaSet)[..] else { panic!("one ReplicaSet") };
    let hash = label(set, "pod-template-hash");
    assert_eq!(name(set), format!("web-{hash}"));
    assert_eq!(set["spec"]["selector"]["matchLabels"]["pod-template-hash"], hash);
    for (key, value) in [("revision", "1"), ("desired-replicas", "3"), ("max-replicas", "4")] {
        assert_eq!(annotation(set, &format!("deployment.kubernetes.io/{key}")), value);
    }
    assert!(world.all(Kind::Pod).iter().all(|pod| label(pod, "pod-template-hash") == hash));
    assert_eq!(annotation(web, "deployment.kubernetes.io/revision"), "1");
    assert_eq!(generation(web), 1, "bookkeeping doesn't count as a change");
    let progressed = format!("ReplicaSet \"web-{hash}\" has successfully progressed.");
    assert_eq!(
        conditions(web),
        [
            ("Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability."),
            ("Progressing", "True", "NewReplicaSetAvailable", progressed.as_str()),
        ]
    );
    let mut status = web["status"].clone();
    status.as_object_mut().expect("a status").remove("conditions");
    assert_eq!(
        status,
        json!({"observedGeneration": 1, "replicas": 3, "updatedReplicas": 3, "readyReplicas": 3,
            "availableReplicas": 3, "terminatingReplicas": 0})
    );
}

#[test]
fn rolling_updates_stay_within_their_limits_whatever_the_order() {
    for seed in 0..60 {
        let mut dice = SeededRandom(seed);
        let replicas = 1 + dice.roll(8) as i64;
        let margin = |dice: &mut SeededRandom| match dice.roll(3) {
            0 => json!(format!("{}%", 10 * dice.roll(11))),
            _ => json!(dice.roll(4)),
        };
        let (surge, unavailable) = (margin(&mut dice), margin(&mut dice));
        let mut world = World::with(web(replicas, rolling(surge, unavailable)));
        world.settle();
        let margins = super::rollout::margins(world.get(Kind::Deployment, "web"));
        for change in 0..=dice.roll(4) {
            use_image(&mut world, Kind::Deployment, "web", ["two", "three", "one", "four"][change % 4]);
            for _ in 0..dice.roll(150) {
                world.step(&mut dice);
                let pods = world.pods();
                let active = pods.iter().filter(|pod| pod.active()).count() as i64;
                let ready = pods.iter().filter(|pod| pod.active() && pod.ready()).count() as i64;
                assert!(
                    active <= replicas + margins.surge,
                    "seed {seed}: {active} pods of {replicas}, {margins:?}"
                );
                assert!(
                    ready >= replicas - margins.unavailable,
                    "seed {seed}: {ready} ready of {replicas}, {margins:?}"
                );
            }
        }
        world.settle();
        let wanted =
            text(world.get(Kind::Deployment, "web"), "/spec/template/spec/containers/0/image").to_owned();
        assert_eq!(images(&world), vec![wanted; replicas as usize], "seed {seed}");
        let web = world.get(Kind::Deployment, "web");
        assert_eq!(conditions(web)[1].2, "NewReplicaSetAvailable", "seed {seed}");
        assert_eq!(number(web, "/status/observedGeneration"), generation(web));
    }
}

#[test]
fn recreate_never_mixes_versions() {
    for seed in 0..25 {
        let mut dice = SeededRandom(seed);
        let mut world = World::with(web(3, json!({"type": "Recreate"})));
        world.settle();
        use_image(&mut world, Kind::Deployment, "web", "two");
        for _ in 0..200 {
            world.step(&mut dice);
            let images = images(&world);
            assert!(images.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}: {images:?}");
        }
        world.settle();
        assert_eq!(images(&world), ["two", "two", "two"]);
    }
}

#[test]
fn whatever_is_done_to_it_a_deployment_comes_to_rest() {
    for seed in 0..40 {
        let mut dice = SeededRandom(seed);
        let mut world = World::with(web(3, rolling(json!(1), json!(1))));
        for _ in 0..8 {
            match dice.roll(5) {
                0 => {
                    let size = dice.roll(9);
                    world.edit(Kind::Deployment, "web", |web| web["spec"]["replicas"] = json!(size));
                }
                1 => use_image(&mut world, Kind::Deployment, "web", ["one", "two", "three"][dice.roll(3)]),
                2 => {
                    let paused = dice.roll(2) == 0;
                    world.edit(Kind::Deployment, "web", |web| web["spec"]["paused"] = json!(paused));
                }
                3 => {
                    let recreate = dice.roll(2) == 0;
                    let strategy =
                        if recreate { json!({"type": "Recreate"}) } else { rolling(json!(2), json!(0)) };
                    world.edit(Kind::Deployment, "web", |web| web["spec"]["strategy"] = strategy);
                }
                _ => {
                    if let Some(pod) = world.pods().first() {
                        world.apply(pod.delete());
                    }
                }
            }
            for _ in 0..dice.roll(60) {
                world.step(&mut dice);
            }
        }
        world.settle();
        world.edit(Kind::Deployment, "web", |web| web["spec"]["paused"] = json!(false));
        world.settle();
        let web = world.get(Kind::Deployment, "web");
        let (size, image) = (replicas(web), text(web, "/spec/template/spec/containers/0/image").to_owned());
        assert_eq!(images(&world), vec![image; size as usize], "seed {seed}");
        assert_eq!(number(web, "/status/availableReplicas"), size, "seed {seed}");
        assert_eq!(number(web, "/status/updatedReplicas"), size, "seed {seed}");
        let all = conditions(web);
        assert!(
            all.iter().any(|c| c.0 == "Progressing" && c.2 == "NewReplicaSetAvailable"),
            "seed {seed}: {all:?}"
        );
        assert!(world.all(Kind::ReplicaSet).len() <= 3, "seed {seed}: history");
    }
}

#[test]
fn going_back_reuses_the_replica_set_and_makes_it_the_newest_revision() {
    let mut world = World::with(web(2, rolling(json!(1), json!(0))));
    for image in ["one", "two", "one"] {
        use_image(&mut world, Kind::Deployment, "web", image);
        world.settle();
    }
    let sets = world.all(Kind::ReplicaSet);
    let mut revisions: Vec<(&str, i64)> =
        sets.iter().map(|set| (annotation(set, deployment::REVISION), replicas(set))).collect();
    revisions.sort_unstable();
    assert_eq!(revisions, [("2", 0), ("3", 2)]);
    let back = sets.iter().find(|set| replicas(set) == 2).expect("the first one");
    assert_eq!(annotation(back, "deployment.kubernetes.io/revision-history"), "1");
    assert_eq!(annotation(world.get(Kind::Deployment, "web"), deployment::REVISION), "3");
}

#[test]
fn history_is_cut_to_its_limit() {
    let mut world = World::with(web(1, rolling(json!(1), json!(0))));
    for image in ["one", "two", "three", "four", "five"] {
        use_image(&mut world, Kind::Deployment, "web", image);
        world.settle();
    }
    let mut revisions: Vec<String> = world
        .all(Kind::ReplicaSet)
        .iter()
        .map(|set| annotation(set, deployment::REVISION).to_owned())
        .collect();
    revisions.sort_unstable();
    assert_eq!(revisions, ["3", "4", "5"]);
}

#[test]
fn a_paused_deployment_scales_but_does_not_roll() {
    let mut world = World::with(web(2, rolling(json!(1), json!(0))));
    world.settle();
    world.edit(Kind::Deployment, "web", |web| {
        web["spec"]["paused"] = json!(true);
        web["spec"]["replicas"] = json!(4);
    });
    use_image(&mut world, Kind::Deployment, "web", "two");
    world.settle();
    assert_eq!(images(&world), ["one"; 4]);
    let written = conditions(world.get(Kind::Deployment, "web"));
    assert!(
        written.contains(&("Progressing", "Unknown", "DeploymentPaused", "Deployment is paused")),
        "{written:?}"
    );
}

#[test]
fn a_taken_name_is_avoided() {
    let mut world = World::with(web(1, rolling(json!(1), json!(0))));
    let Write::Create(_, first) = world.plan(&(Kind::Deployment, "web".into())).writes.remove(0) else {
        panic!("a ReplicaSet")
    };
    let foreign = json!({"kind": "ReplicaSet", "metadata": {"name": name(&first), "namespace": "n"},
        "spec": {"replicas": 0}});
    world.apply(Write::Create(Kind::ReplicaSet, foreign));
    world.settle();
    let web = world.get(Kind::Deployment, "web");
    assert_eq!(number(web, "/status/collisionCount"), 1);
    assert_eq!(number(web, "/status/availableReplicas"), 1);
}

fn db(replicas: i64) -> Value {
    object(
        Kind::StatefulSet,
        "db",
        json!({"replicas": replicas, "serviceName": "db",
        "podManagementPolicy": "OrderedReady", "updateStrategy": {"type": "RollingUpdate"}}),
    )
}

#[test]
fn a_stateful_set_starts_in_order_and_rolls_backwards() {
    for seed in 0..25 {
        let mut dice = SeededRandom(seed);
        let mut world = World::with(db(3));
        for _ in 0..200 {
            world.step(&mut dice);
            let pods = world.pods();
            for pod in pods.iter().filter(|pod| !pod.ready()) {
                let last = pods.iter().map(|pod| pod.metadata.name.clone()).max();
                assert_eq!(
                    Some(&pod.metadata.name),
                    last.as_ref(),
                    "seed {seed}: none behind one that starts"
                );
            }
        }
        world.settle();
        let first = text(world.get(Kind::StatefulSet, "db"), "/status/updateRevision").to_owned();
        assert_eq!(
            world.get(Kind::StatefulSet, "db")["status"],
            json!({"observedGeneration": 1, "replicas": 3, "readyReplicas": 3, "availableReplicas": 3,
                "currentReplicas": 3, "updatedReplicas": 3, "collisionCount": 0,
                "currentRevision": first, "updateRevision": first})
        );
        world.log.clear();
        use_image(&mut world, Kind::StatefulSet, "db", "two");
        for _ in 0..300 {
            world.step(&mut dice);
            let ready = world.pods().iter().filter(|pod| pod.ready()).count();
            assert!(ready >= 2, "seed {seed}: one at a time");
        }
        world.settle();
        assert_eq!(world.log, ["- db-2", "- db-1", "- db-0"], "seed {seed}");
        assert_eq!(images(&world), ["two"; 3]);
        let status = &world.get(Kind::StatefulSet, "db")["status"];
        assert_ne!(status["currentRevision"], first);
        assert_eq!(status["currentRevision"], status["updateRevision"]);
        assert_eq!(world.all(Kind::ControllerRevision).len(), 2);
    }
}

#[test]
fn pods_below_the_partition_keep_their_revision_even_when_made_anew() {
    let mut world = World::with(db(3));
    world.settle();
    world.edit(Kind::StatefulSet, "db", |db| {
        db["spec"]["updateStrategy"]["rollingUpdate"] = json!({"partition": 2});
    });
    use_image(&mut world, Kind::StatefulSet, "db", "two");
    world.settle();
    assert_eq!(images(&world), ["one", "one", "two"]);
    let pods = world.pods();
    world.apply(pods.iter().find(|pod| pod.metadata.name == "db-0").expect("the first").delete());
    world.settle();
    assert_eq!(images(&world), ["one", "one", "two"]);
    let status = &world.get(Kind::StatefulSet, "db")["status"];
    assert_eq!((&status["currentReplicas"], &status["updatedReplicas"]), (&json!(2), &json!(1)));
}

#[test]
fn a_stateful_set_shrinks_from_the_end_and_names_its_pods() {
    let mut world = World::with(db(3));
    world.settle();
    let pod = world.get(Kind::Pod, "db-1");
    assert_eq!(label(pod, "statefulset.kubernetes.io/pod-name"), "db-1");
    assert_eq!(label(pod, "apps.kubernetes.io/pod-index"), "1");
    assert_eq!((&pod["spec"]["hostname"], &pod["spec"]["subdomain"]), (&json!("db-1"), &json!("db")));
    world.edit(Kind::StatefulSet, "db", |db| db["spec"]["replicas"] = json!(1));
    world.settle();
    assert_eq!(world.log, ["- db-2", "- db-1"]);
    assert_eq!(world.get(Kind::StatefulSet, "db")["status"]["currentReplicas"], 1);
}

#[test]
fn claims_are_made_with_their_pods() {
    let mut set_of = db(1);
    set_of["spec"]["volumeClaimTemplates"] =
        json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]);
    let mut world = World::with(set_of);
    world.settle();
    let claim = world.get(Kind::PersistentVolumeClaim, "data-db-0");
    assert_eq!(claim["metadata"]["labels"], json!({"app": "db"}));
    let volume = &world.get(Kind::Pod, "db-0")["spec"]["volumes"][0];
    assert_eq!(*volume, json!({"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}}));
}

#[test]
fn a_daemon_set_has_one_pod_and_replaces_it_when_its_template_changes() {
    let mut world =
        World::with(object(Kind::DaemonSet, "agent", json!({"updateStrategy": {"type": "RollingUpdate"}})));
    world.settle();
    let wanted = json!({"currentNumberScheduled": 1, "desiredNumberScheduled": 1, "numberMisscheduled": 0,
        "numberReady": 1, "numberAvailable": 1, "updatedNumberScheduled": 1, "observedGeneration": 1});
    assert_eq!(world.get(Kind::DaemonSet, "agent")["status"], wanted);
    use_image(&mut world, Kind::DaemonSet, "agent", "two");
    world.settle();
    assert_eq!(images(&world), ["two"]);
    assert_eq!(world.get(Kind::DaemonSet, "agent")["status"]["updatedNumberScheduled"], 1);
    world.edit(Kind::DaemonSet, "agent", |agent| {
        agent["spec"]["template"]["spec"]["nodeSelector"] = json!({"gpu": "yes"});
    });
    world.settle();
    assert_eq!(images(&world), Vec::<String>::new());
    assert_eq!(world.get(Kind::DaemonSet, "agent")["status"]["desiredNumberScheduled"], 0);
}

#[test]
fn jobs_complete_whatever_the_order() {
    for seed in 0..25 {
        let mut dice = SeededRandom(seed);
        let completions = 1 + dice.roll(5);
        let mode = if dice.roll(2) == 0 { "Indexed" } else { "NonIndexed" };
        let parallelism = 1 + dice.roll(3);
        let mut world = World::with(object(
            Kind::Job,
            "once",
            json!({"completions": completions,
            "parallelism": parallelism, "completionMode": mode}),
        ));
        for _ in 0..100 {
            world.step(&mut dice);
            let active = world.pods().iter().filter(|pod| pod.active()).count();
            assert!(active <= parallelism, "seed {seed}");
        }
        world.settle();
        assert!(world.pods().iter().all(|pod| pod.status.phase == "Succeeded"));
        assert_eq!(world.pods().len(), completions, "seed {seed}: no more than asked for");
        let job = world.get(Kind::Job, "once");
        assert_eq!(job["status"]["succeeded"], json!(completions));
        assert_eq!(conditions(job)[1].0, "Complete");
        assert!(!is_deleting(job));
    }
}
