//! Tests of the binding controller's decisions: tables, and comparison with a naive model.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apis::control::{BindingPolicy, BindingSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use runtime::{PartialObject, informer::PartialMeta};
use serde_json::{Value, json};

use super::{
    matching::{Labels, matching, selects},
    policy::Policy,
    resolution::SpecDigest,
    verdict::{Progress, policy_status},
    world::{Changes, Request, Served, World},
};
use crate::identity::{GroupResource, ObjectId};

fn labels(of: &[(&str, &str)]) -> Labels {
    of.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}

fn policy(name: &str, spec: Value) -> Policy {
    let object: BindingPolicy = serde_json::from_value(
        json!({"metadata": {"name": name, "uid": format!("uid-{name}")}, "spec": spec}),
    )
    .unwrap();
    Policy::new(&object)
}

fn id(group: &str, plural: &str, namespace: &str, name: &str) -> ObjectId {
    ObjectId::new(Arc::new(GroupResource::new(group, plural)), namespace, name)
}

/// KS-040…KS-047.
#[test]
fn ks_040_to_047_one_object_against_one_clause() {
    let web = id("apps", "deployments", "shop", "web");
    let map = id("", "configmaps", "shop", "web");
    let space = id("", "namespaces", "", "shop");
    let is = |key: &str, value: &str| json!([{"matchLabels": {key: value}}]);
    let cases = [
        ("KS-041 no group is any", json!({"resources": ["deployments"]}), &web, true),
        ("KS-041 a group", json!({"apiGroup": "apps"}), &web, true),
        ("KS-041 the empty group is core", json!({"apiGroup": ""}), &web, false),
        ("KS-041 the empty group is core", json!({"apiGroup": ""}), &map, true),
        ("KS-042 plural names only", json!({"resources": ["deployment"]}), &web, false),
        ("KS-042 in lower case", json!({"resources": ["Deployments"]}), &web, false),
        ("KS-043 a star among others", json!({"resources": ["pods", "*"]}), &web, true),
        ("KS-043 no globs", json!({"objectNames": ["w*"]}), &web, false),
        ("KS-040 members are alternatives", json!({"objectNames": ["db", "web"]}), &web, true),
        ("KS-040 criteria are cumulative", json!({"objectNames": ["web"], "apiGroup": ""}), &web, false),
        ("KS-040 namespaces", json!({"namespaces": ["shop"]}), &web, true),
        ("KS-044 cluster-scoped are in none", json!({"namespaces": ["shop"]}), &space, false),
        ("KS-044 but in any", json!({"namespaces": ["*"]}), &space, true),
        ("KS-044 or the one without a name", json!({"namespaces": [""]}), &space, true),
        (
            "KS-045 a Namespace by name",
            json!({"resources": ["namespaces"], "objectNames": ["shop"]}),
            &space,
            true,
        ),
        ("KS-046 labels of the namespace", json!({"namespaceSelectors": is("team", "a")}), &web, true),
        ("KS-046 labels of the namespace", json!({"namespaceSelectors": is("team", "b")}), &web, false),
        ("KS-046 cluster-scoped have none", json!({"namespaceSelectors": is("team", "a")}), &space, false),
        (
            "KS-046 an empty selector passes",
            json!({"namespaceSelectors": [{"matchLabels": {"a": "b"}}, {}]}),
            &space,
            true,
        ),
        ("KS-047 own labels", json!({"objectSelectors": is("app", "web")}), &web, true),
        ("KS-047 own labels", json!({"objectSelectors": is("app", "db")}), &web, false),
        (
            "KS-047 an unreadable one never matches",
            json!({"objectSelectors": [{"matchExpressions": [{"key": "app", "operator": "In"}]}]}),
            &web,
            false,
        ),
        (
            "KS-047 the others count",
            json!({"objectSelectors": [{"matchExpressions": [{"key": "app", "operator": "In"}]}, {"matchLabels": {"app": "web"}}]}),
            &web,
            true,
        ),
        (
            "empty lists are any",
            json!({"apiGroup": "apps", "resources": [], "objectSelectors": []}),
            &web,
            true,
        ),
    ];
    let team = labels(&[("team", "a")]);
    for (why, clause, id, expected) in cases {
        let policy = policy("p", json!({"downsync": [clause]}));
        let own = labels(&[("app", "web")]);
        let matched = matching(&policy.clauses, id, &own, |name| (name == "shop").then_some(&team));
        assert_eq!(matched.is_some(), expected, "{why}: {clause} on {id}");
    }
}

#[test]
fn ks_051_what_matching_clauses_ask_for_adds_up() {
    let policy = policy(
        "p",
        json!({"downsync": [
            {"apiGroup": "", "createOnly": true, "statusCollectors": ["b"]},
            {"resources": ["configmaps"], "wantSingletonReportedState": true, "statusCollectors": ["a", "b"]},
            {"resources": ["secrets"], "wantMultiWECReportedState": true},
        ]}),
    );
    let map = id("", "configmaps", "n", "x");
    let sum = matching(&policy.clauses, &map, &Labels::new(), |_| None).unwrap().to_api();
    assert_eq!(
        (sum.create_only, sum.want_singleton_reported_state, sum.want_multi_wec_reported_state),
        (true, true, false)
    );
    assert_eq!(sum.status_collectors, ["a", "b"]);
}

#[test]
fn ks_007_ks_047_what_is_wrong_with_a_policy_is_told() {
    let bad = json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]});
    let policy = policy(
        "p",
        json!({
            "clusterSelectors": [{}, bad],
            "downsync": [{"resources": ["*"]}, {"apiGroup": "", "objectSelectors": [bad]}],
        }),
    );
    assert_eq!(policy.errors.len(), 3, "{:?}", policy.errors);
    assert!(policy.errors[0].starts_with("clusterSelectors[1]: "), "{:?}", policy.errors);
    assert!(policy.errors[1].starts_with("downsync[1].objectSelectors[0]: "), "{:?}", policy.errors);
    assert_eq!(policy.errors[2], "downsync[0]: every criterion matches all objects");
}

struct Scene {
    world: World,
}

impl Scene {
    fn new() -> Self {
        let mut world = World::default();
        for (group, plural, version, kind) in RESOURCES {
            let served = Served { version: version.into(), kind: kind.into() };
            world.put_resource(&Arc::new(GroupResource::new(group, plural)), served);
        }
        Self { world }
    }

    fn object(&mut self, id: &ObjectId, version: u32, of: &[(&str, &str)]) -> BTreeSet<String> {
        let changes = self.world.put_object(id, light(id, version, labels(of)));
        changes.bindings.iter().map(ToString::to_string).collect()
    }

    fn spec(&self, policy: &str) -> BindingSpec {
        self.world.resolution(policy).unwrap().render(|resource| self.world.version(resource))
    }
}

const RESOURCES: [(&str, &str, &str, &str); 4] = [
    ("", "namespaces", "v1", "Namespace"),
    ("", "configmaps", "v1", "ConfigMap"),
    ("apps", "deployments", "v1", "Deployment"),
    ("g.example", "things", "v2", "Thing"),
];

fn light(id: &ObjectId, version: u32, labels: Labels) -> Arc<PartialObject> {
    Arc::new(PartialObject {
        metadata: PartialMeta {
            name: id.name().into(),
            namespace: id.namespace().into(),
            uid: format!("uid-{id}").into(),
            resource_version: version.to_string().into(),
            labels,
            ..PartialMeta::default()
        },
    })
}

#[test]
fn ks_060_a_binding_is_sorted() {
    let mut scene = Scene::new();
    scene.world.put_cluster("c2", labels(&[]));
    scene.world.put_cluster("c1", labels(&[]));
    scene
        .world
        .put_policy(policy("p", json!({"clusterSelectors": [{}], "downsync": [{"resources": ["*"]}]})));
    for (n, id) in [
        id("g.example", "things", "", "t"),
        id("apps", "deployments", "a", "web"),
        id("", "configmaps", "a", "z"),
        id("", "configmaps", "a-b", "z"),
        id("", "namespaces", "", "a"),
    ]
    .iter()
    .enumerate()
    {
        scene.object(id, n as u32, &[]);
    }
    let spec = scene.spec("p");
    let names = |list: Vec<(&str, &str)>| list.iter().map(|(r, n)| format!("{r}:{n}")).collect::<Vec<_>>();
    let cluster = spec.workload.cluster_scope.iter().map(|it| (it.resource.as_str(), it.name.as_str()));
    assert_eq!(names(cluster.collect()), ["namespaces:a", "things:t"]);
    let inside = spec.workload.namespace_scope.iter().map(|it| (it.resource.as_str(), it.namespace.as_str()));
    assert_eq!(names(inside.collect()), ["configmaps:a-b", "configmaps:a", "deployments:a"]);
    let clusters: Vec<_> = spec.destinations.iter().map(|it| it.cluster_id.as_str()).collect();
    assert_eq!(clusters, ["c1", "c2"]);
}

#[test]
fn ks_053_only_what_says_something_new_is_a_change() {
    let mut scene = Scene::new();
    let map = id("", "configmaps", "n", "x");
    assert_eq!(scene.object(&map, 1, &[("app", "a")]), BTreeSet::new());
    let by_label = json!({"downsync": [{"objectSelectors": [{"matchLabels": {"app": "a"}}]}]});
    assert_eq!(scene.world.put_policy(policy("p", by_label.clone())).bindings.len(), 1);
    assert_eq!(scene.world.put_policy(policy("p", by_label)).bindings.len(), 0, "KS-074");
    let p = BTreeSet::from(["p".to_owned()]);
    assert_eq!(scene.object(&map, 1, &[("app", "a")]), BTreeSet::new(), "KS-074");
    assert_eq!(scene.object(&map, 2, &[("app", "a")]), p, "a new version");
    assert_eq!(scene.object(&map, 3, &[("app", "b")]), p, "no longer matched");
    assert_eq!(scene.object(&map, 4, &[("app", "b")]), BTreeSet::new());
}

#[test]
fn ks_035_objects_of_a_resource_that_is_no_longer_served_leave_the_bindings() {
    let mut scene = Scene::new();
    scene.object(&id("g.example", "things", "n", "x"), 1, &[]);
    scene.object(&id("", "configmaps", "n", "x"), 1, &[]);
    scene.world.put_policy(policy("p", json!({"downsync": [{"objectNames": ["x"]}]})));
    assert_eq!(scene.spec("p").workload.namespace_scope.len(), 2);
    let things = Arc::new(GroupResource::new("g.example", "things"));
    assert_eq!(scene.world.remove_resource(&things).bindings.len(), 1);
    assert_eq!(scene.spec("p").workload.namespace_scope.len(), 1);
}

#[test]
fn ks_036_another_version_changes_the_entries_and_nothing_else() {
    let mut scene = Scene::new();
    let thing = id("g.example", "things", "n", "x");
    scene.object(&thing, 7, &[]);
    scene.world.put_policy(policy("p", json!({"downsync": [{"apiGroup": "g.example"}]})));
    let served = Served { version: "v3".into(), kind: "Thing".into() };
    let changes = scene.world.put_resource(&Arc::new(GroupResource::new("g.example", "things")), served);
    assert_eq!(changes.bindings.len(), 1);
    let spec = scene.spec("p");
    assert_eq!(spec.workload.namespace_scope.len(), 1);
    assert_eq!(spec.workload.namespace_scope[0].version, "v3");
    assert_eq!(scene.world.resolution("p").unwrap().digest(), SpecDigest::of(&spec));
}

#[test]
fn ks_049_labels_of_a_namespace_count_afresh() {
    let mut scene = Scene::new();
    scene.object(&id("", "configmaps", "n", "x"), 1, &[]);
    let teams = json!({"downsync": [{"namespaceSelectors": [{"matchLabels": {"team": "a"}}]}]});
    scene.world.put_policy(policy("p", teams));
    assert_eq!(scene.spec("p").workload.namespace_scope.len(), 0);
    assert_eq!(scene.world.put_namespace("n", labels(&[("team", "a")])).bindings.len(), 1);
    assert_eq!(scene.spec("p").workload.namespace_scope.len(), 1);
    assert_eq!(scene.world.put_namespace("n", labels(&[("team", "b")])).bindings.len(), 1);
    assert_eq!(scene.spec("p").workload.namespace_scope.len(), 0);
}

#[test]
fn ks_058_a_policy_made_anew_starts_afresh() {
    let mut scene = Scene::new();
    let map = id("", "configmaps", "n", "x");
    scene.object(&map, 1, &[]);
    let first =
        policy("p", json!({"downsync": [{"resources": ["configmaps"], "wantSingletonReportedState": true}]}));
    let mut second = first.clone();
    second.uid = "other".into();
    scene.world.put_policy(first);
    let changes = scene.world.put_policy(second);
    assert!(changes.bindings.contains("p") && changes.requests.contains(&map));
    assert_eq!(scene.world.policies_of(&map).len(), 1);
}

#[test]
fn ks_064_wrong_numbers_of_clusters_are_told() {
    let mut scene = Scene::new();
    for name in ["e", "d", "c", "b", "a"] {
        scene.object(&id("apps", "deployments", "n", name), 1, &[]);
    }
    let spec = json!({
        "clusterSelectors": [{"matchLabels": {"site": "edge"}}],
        "downsync": [{"apiGroup": "apps", "wantSingletonReportedState": true}],
    });
    scene.world.put_policy(policy("p", spec));
    let errors = |world: &World| {
        let now = Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
        policy_status(world, "p", 1, &Progress { synced: true, ..Progress::default() }, None, &now).errors
    };
    let start = "Singleton reported status return is requested but some objects have the wrong number of associated WECs, for example: ";
    let reported = errors(&scene.world);
    let examples: Value = serde_json::from_str(reported[0].strip_prefix(start).unwrap()).unwrap();
    assert_eq!(examples.as_array().unwrap().len(), 4);
    assert!(reported[0].contains(
        r#"[{"ObjectID":{"GVK":{"Group":"apps","Version":"v1","Kind":"Deployment"},"Resource":"deployments","ObjectName":{"Namespace":"n","Name":"a"}},"NumWECs":0}"#
    ), "{reported:?}");
    scene.world.put_cluster("c1", labels(&[("site", "edge")]));
    assert_eq!(errors(&scene.world), Vec::<String>::new());
    // Policies that ask for the aggregated status do not count, whatever clusters they add to the qualified
    // ones.
    let multi = json!({
        "clusterSelectors": [{"matchLabels": {"site": "far"}}],
        "downsync": [{"apiGroup": "apps", "wantMultiWECReportedState": true}],
    });
    scene.world.put_policy(policy("all", multi));
    scene.world.put_cluster("c9", labels(&[("site", "far")]));
    assert_eq!(scene.world.request(&id("apps", "deployments", "n", "a")).clusters.len(), 2);
    assert_eq!(errors(&scene.world), Vec::<String>::new());
    scene.world.remove_policy("all");
    scene.world.put_cluster("c2", labels(&[("site", "edge")]));
    assert!(errors(&scene.world)[0].ends_with(r#""NumWECs":2}]"#));
}

/// A status that the WDS refuses is reported on the policies that ask for it, with the names of a few
/// objects, until it is accepted.
#[test]
fn refused_statuses_are_told_on_the_policies_that_ask_for_them() {
    let mut scene = Scene::new();
    let names = ["a", "b", "c", "d", "e", "f"];
    for name in names {
        scene.object(&id("apps", "deployments", "n", name), 1, &[]);
    }
    let spec = |more: Value| {
        let mut clause = json!({"apiGroup": "apps"});
        clause.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"downsync": [clause]})
    };
    scene.world.put_policy(policy("asks", spec(json!({"wantMultiWECReportedState": true}))));
    scene.world.put_policy(policy("not", spec(json!({}))));
    let errors = |world: &World, policy: &str| {
        let now = Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
        policy_status(world, policy, 1, &Progress { synced: true, ..Progress::default() }, None, &now).errors
    };
    let a = id("apps", "deployments", "n", "a");
    assert_eq!(scene.world.put_refusal(&a, Some("too low")).len(), 2);
    assert!(scene.world.put_refusal(&a, Some("too low")).is_empty(), "no news");
    assert_eq!(
        errors(&scene.world, "asks"),
        ["deployments.apps n/a: the status that is reported for it is refused: too low"]
    );
    assert!(errors(&scene.world, "not").is_empty());
    for name in names {
        scene.world.put_refusal(&id("apps", "deployments", "n", name), Some("no"));
    }
    let reported = errors(&scene.world, "asks");
    assert_eq!(
        (reported.len(), reported[4].as_str()),
        (5, "the statuses that are reported for 2 more objects are refused")
    );
    for name in names {
        scene.world.put_refusal(&id("apps", "deployments", "n", name), None);
    }
    assert!(errors(&scene.world, "asks").is_empty());
}

#[test]
fn ks_008_synced_and_ready_tell_how_far_it_is() {
    let mut scene = Scene::new();
    scene.world.put_policy(policy("p", json!({"downsync": [{"apiGroup": "apps"}]})));
    let now = Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
    let see = |progress: &Progress| {
        let status = policy_status(&scene.world, "p", 3, progress, None, &now);
        assert_eq!(status.observed_generation, 3);
        status
            .conditions
            .iter()
            .map(|it| format!("{}={}/{}", it.type_, it.status, it.reason))
            .collect::<Vec<_>>()
    };
    let mut progress = Progress::default();
    assert_eq!(see(&progress), ["Synced=False/ReconcileError", "Ready=False/Unavailable"]);
    progress.synced = true;
    progress.generation = 5;
    progress.status.observed_generation = 4;
    assert_eq!(see(&progress), ["Synced=True/ReconcileSuccess", "Ready=False/Unavailable"]);
    progress.status.observed_generation = 5;
    assert_eq!(see(&progress), ["Synced=True/ReconcileSuccess", "Ready=True/Available"]);
    progress.status.errors = vec!["no".into()];
    assert_eq!(see(&progress), ["Synced=False/ReconcileError", "Ready=False/Unavailable"]);
}

// A naive model: everything is computed from scratch.

#[derive(Clone, Debug, Default)]
struct Model {
    /// Version in which [`THINGS`] are served.
    things: Option<String>,
    objects: BTreeMap<ObjectId, Arc<PartialObject>>,
    policies: BTreeMap<String, Policy>,
    clusters: BTreeMap<String, Labels>,
    namespaces: BTreeMap<String, Labels>,
}

impl Model {
    fn version(&self, resource: &GroupResource) -> &str {
        if resource.is(THINGS.0, THINGS.1) { self.things.as_deref().unwrap_or_default() } else { "v1" }
    }

    fn spec(&self, policy: &Policy) -> Value {
        let mut entries = BTreeSet::new();
        for (id, object) in &self.objects {
            let found =
                matching(&policy.clauses, id, &object.metadata.labels, |name| self.namespaces.get(name));
            if let Some(modulation) = found {
                entries.insert(format!(
                    "{id} {} {} {modulation:?}",
                    self.version(id.resource()),
                    object.metadata.resource_version
                ));
            }
        }
        json!({"entries": entries, "destinations": self.destinations(policy)})
    }

    fn destinations(&self, policy: &Policy) -> BTreeSet<String> {
        let chosen = self.clusters.iter();
        let chosen =
            chosen.filter(|(_, labels)| policy.cluster_selectors.iter().any(|it| selects(it, labels)));
        chosen.map(|(name, _)| name.clone()).collect()
    }

    /// A world that has received every event once.
    fn world(&self, policies_first: bool) -> World {
        let mut world = World::default();
        for (group, plural, version, kind) in RESOURCES {
            let resource = GroupResource::new(group, plural);
            if !resource.is(THINGS.0, THINGS.1) || self.things.is_some() {
                let version = if resource.is(THINGS.0, THINGS.1) { self.version(&resource) } else { version };
                world.put_resource(
                    &Arc::new(resource.clone()),
                    Served { version: version.into(), kind: kind.into() },
                );
            }
        }
        let policies = |world: &mut World| {
            for policy in self.policies.values() {
                world.put_policy(policy.clone());
            }
        };
        if policies_first {
            policies(&mut world);
        }
        for (id, object) in &self.objects {
            world.put_object(id, object.clone());
        }
        for (name, labels) in &self.namespaces {
            world.put_namespace(name, labels.clone());
        }
        for (name, labels) in &self.clusters {
            world.put_cluster(name, labels.clone());
        }
        if !policies_first {
            policies(&mut world);
        }
        world
    }

    /// The request for status, and the number of clusters that a singleton status would come from.
    fn request(&self, id: &ObjectId) -> (Request, Option<usize>) {
        let (mut request, mut singletons) = (Request::default(), None);
        let Some(object) = self.objects.get(id) else { return (request, None) };
        for policy in self.policies.values() {
            let found =
                matching(&policy.clauses, id, &object.metadata.labels, |name| self.namespaces.get(name));
            let Some(modulation) = found.filter(|it| it.wants_status()) else { continue };
            request.singleton |= modulation.singleton;
            request.multi |= modulation.multi;
            let destinations = self.destinations(policy);
            request.clusters.extend(destinations.iter().map(|it| it.as_str().into()));
            if modulation.singleton {
                singletons.get_or_insert_with(BTreeSet::new).extend(destinations);
            }
        }
        (request, singletons.map(|clusters| clusters.len()))
    }
}

fn seen(world: &World, policy: &str) -> Value {
    let resolution = world.resolution(policy).unwrap();
    let entries: BTreeSet<_> = resolution
        .objects()
        .iter()
        .map(|(id, it)| {
            let version = world.version(id.resource());
            format!("{id} {version} {} {:?}", it.object.metadata.resource_version, it.modulation)
        })
        .collect();
    let destinations: BTreeSet<_> = resolution.destinations().iter().map(ToString::to_string).collect();
    json!({"entries": entries, "destinations": destinations})
}

#[derive(Clone, Debug)]
enum Op {
    Put(ObjectId, u32, Labels),
    Remove(ObjectId),
    Policy(String, u8, Value),
    RemovePolicy(String),
    Cluster(String, Labels),
    RemoveCluster(String),
    Namespace(String, Labels),
    RemoveNamespace(String),
    /// A CRD is created or changes its version.
    Resource(u8),
    /// A CRD is deleted.
    RemoveResource,
    /// The controller restarts and receives the policies first, or last.
    Restart(bool),
}

/// The resource whose CRD is created and deleted.
const THINGS: (&str, &str) = ("g.example", "things");

fn any_labels() -> impl Strategy<Value = Labels> {
    let value = || proptest::option::of(prop_oneof!["1", "2"]);
    (value(), value()).prop_map(|(app, env)| {
        let pairs = [("app", app), ("env", env)].into_iter();
        pairs.filter_map(|(key, value)| Some((key.into(), value?.into()))).collect()
    })
}

fn any_id() -> impl Strategy<Value = ObjectId> {
    (0..RESOURCES.len(), prop_oneof!["", "a", "b"], prop_oneof!["x", "y"]).prop_map(
        |(resource, namespace, name)| {
            let (group, plural, ..) = RESOURCES[resource];
            id(group, plural, if plural == "namespaces" { "" } else { &namespace }, &name)
        },
    )
}

fn any_selectors() -> impl Strategy<Value = Value> {
    let key = || prop_oneof!["app", "env"];
    let one = prop_oneof![
        (key(), prop_oneof!["1", "2"]).prop_map(|(key, value)| json!({"matchLabels": {key: value}})),
        key().prop_map(|key| json!({"matchExpressions": [{"key": key, "operator": "Exists"}]})),
        key().prop_map(
            |key| json!({"matchExpressions": [{"key": key, "operator": "NotIn", "values": ["1"]}]})
        ),
        key().prop_map(
            |key| json!({"matchExpressions": [{"key": key, "operator": "In", "values": ["1", "2"]}]})
        ),
        Just(json!({})),
        Just(json!({"matchExpressions": [{"key": "app", "operator": "In"}]})),
    ];
    proptest::collection::vec(one, 0..3).prop_map(Value::from)
}

fn any_clause() -> impl Strategy<Value = Value> {
    let opt = |strategy| proptest::option::weighted(0.3, strategy);
    let names = |of: &'static [&'static str]| {
        proptest::collection::vec(proptest::sample::select(of), 0..3).prop_map(|list| json!(list))
    };
    (
        proptest::option::weighted(0.3, proptest::sample::select(&["", "apps", "g.example"][..])),
        proptest::option::weighted(0.3, names(&["configmaps", "deployments", "things", "*"])),
        proptest::option::weighted(0.3, names(&["a", "b", "*", ""])),
        proptest::option::weighted(0.3, names(&["x", "y", "*"])),
        opt(any_selectors().boxed()),
        opt(any_selectors().boxed()),
        any::<[bool; 3]>(),
    )
        .prop_map(|(group, resources, namespaces, objects, own, inside, [create, single, multi])| {
            let mut clause = json!({
                "createOnly": create, "wantSingletonReportedState": single, "wantMultiWECReportedState": multi,
            });
            let fields = [
                ("apiGroup", group.map(Value::from)),
                ("resources", resources),
                ("namespaces", namespaces),
                ("objectNames", objects),
                ("objectSelectors", own),
                ("namespaceSelectors", inside),
            ];
            for (key, value) in fields {
                if let Some(value) = value {
                    clause[key] = value;
                }
            }
            clause
        })
}

fn any_op() -> impl Strategy<Value = Op> {
    let policy = || prop_oneof!["p", "q"];
    let spec = (any_selectors(), proptest::collection::vec(any_clause(), 0..3))
        .prop_map(|(clusters, clauses)| json!({"clusterSelectors": clusters, "downsync": clauses}));
    prop_oneof![
        6 => (any_id(), 0..4_u32, any_labels()).prop_map(|(id, version, labels)| Op::Put(id, version, labels)),
        2 => any_id().prop_map(Op::Remove),
        4 => (policy(), 0..2_u8, spec).prop_map(|(name, uid, spec)| Op::Policy(name, uid, spec)),
        1 => policy().prop_map(Op::RemovePolicy),
        2 => (prop_oneof!["c1", "c2"], any_labels()).prop_map(|(name, labels)| Op::Cluster(name, labels)),
        1 => prop_oneof!["c1", "c2"].prop_map(Op::RemoveCluster),
        2 => (prop_oneof!["a", "b"], any_labels()).prop_map(|(name, labels)| Op::Namespace(name, labels)),
        1 => prop_oneof!["a", "b"].prop_map(Op::RemoveNamespace),
        2 => (1..3_u8).prop_map(Op::Resource),
        1 => Just(Op::RemoveResource),
        1 => any::<bool>().prop_map(Op::Restart),
    ]
}

fn act(op: Op, world: &mut World, model: &mut Model) -> Changes {
    let things = || Arc::new(GroupResource::new(THINGS.0, THINGS.1));
    match op {
        Op::Resource(version) => {
            let version = format!("v{version}");
            model.things = Some(version.clone());
            world.put_resource(&things(), Served { version: version.into(), kind: "Thing".into() })
        }
        Op::RemoveResource => {
            model.things = None;
            model.objects.retain(|id, _| !id.resource().is(THINGS.0, THINGS.1));
            world.remove_resource(&things())
        }
        Op::Restart(policies_first) => {
            *world = model.world(policies_first);
            Changes::default()
        }
        // There are no events for objects whose resource is not served.
        Op::Put(id, ..) if world.served(id.resource()).is_none() => Changes::default(),
        Op::Put(id, version, labels) => {
            let object = light(&id, version, labels);
            model.objects.insert(id.clone(), object.clone());
            world.put_object(&id, object)
        }
        Op::Remove(id) => {
            model.objects.remove(&id);
            world.remove_object(&id)
        }
        Op::Policy(name, uid, spec) => {
            let mut policy = policy(&name, spec);
            policy.uid = uid.to_string().into();
            model.policies.insert(name, policy.clone());
            world.put_policy(policy)
        }
        Op::RemovePolicy(name) => {
            model.policies.remove(&name);
            world.remove_policy(&name)
        }
        Op::Cluster(name, labels) => {
            model.clusters.insert(name.clone(), labels.clone());
            world.put_cluster(&name, labels)
        }
        Op::RemoveCluster(name) => {
            model.clusters.remove(&name);
            world.remove_cluster(&name)
        }
        Op::Namespace(name, labels) => {
            model.namespaces.insert(name.clone(), labels.clone());
            world.put_namespace(&name, labels)
        }
        Op::RemoveNamespace(name) => {
            model.namespaces.remove(&name);
            world.remove_namespace(&name)
        }
    }
}

proptest! {
    /// KS-071, KS-074, KS-001, KS-033, KS-036, KS-075: after any events the resolutions equal those of the
    /// naive model (which a restart computes, too), exactly the changed ones are reported, and their digest
    /// is that of the Binding they render to. The same holds for requests for status.
    #[test]
    fn ks_071_the_world_follows_the_naive_model(ops in proptest::collection::vec(any_op(), 1..40)) {
        let (mut world, mut model) =
            (Scene::new().world, Model { things: Some("v2".into()), ..Model::default() });
        let ids: Vec<ObjectId> = RESOURCES.iter().flat_map(|(group, plural, ..)| {
            ["", "a", "b"].into_iter().flat_map(move |ns| ["x", "y"].map(|name| id(group, plural, ns, name)))
        }).collect();
        for op in ops {
            let before: BTreeMap<String, Value> =
                model.policies.keys().map(|name| (name.clone(), seen(&world, name))).collect();
            let asked: Vec<_> = ids.iter().map(|id| (world.request(id), world.singletons(id))).collect();
            let changes = act(op, &mut world, &mut model);
            for name in ["p", "q"] {
                prop_assert_eq!(world.resolution(name).is_some(), model.policies.contains_key(name));
            }
            for (name, policy) in &model.policies {
                let now = seen(&world, name);
                prop_assert_eq!(&now, &model.spec(policy));
                let resolution = world.resolution(name).unwrap();
                let spec = resolution.render(|resource| world.version(resource));
                prop_assert_eq!(resolution.digest(), SpecDigest::of(&spec));
                let reported = changes.bindings.contains(name.as_str());
                prop_assert!(reported || before.get(name) == Some(&now), "{} changed silently", name);
            }
            let mut clauses = model.policies.values().flat_map(|policy| &policy.clauses);
            prop_assert_eq!(world.wants_singletons(), clauses.any(|it| it.modulation.singleton));
            for (id, asked) in ids.iter().zip(asked) {
                let now = (world.request(id), world.singletons(id));
                prop_assert_eq!(&now, &model.request(id));
                prop_assert!(now == asked || changes.requests.contains(id), "request for {} changed silently", id);
                prop_assert_eq!(world.is_requested(id), now.0.singleton || now.0.multi);
                prop_assert_eq!(world.wants_multi(id), now.0.multi);
            }
        }
    }
}
