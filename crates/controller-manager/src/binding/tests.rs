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

mod model;

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
