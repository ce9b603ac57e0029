//! The controllers between two whole spaces in memory, as a user of the WDS sees them.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use kubestellar_controller_manager::{AllowedGroups, Config};
use serde_json::{Value, json};
use store::Engine;
use testkit::side::Side;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

struct Running {
    wds: Side,
    its: Side,
    stop: CancellationToken,
    task: JoinHandle<()>,
    _data: tempfile::TempDir,
}

const POLICIES: &str = "/apis/control.kubestellar.io/v1alpha1/bindingpolicies";
const BINDINGS: &str = "/apis/control.kubestellar.io/v1alpha1/bindings";
const MAPS: &str = "/api/v1/namespaces/tide/configmaps";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WORK_STATUSES: &str = "/apis/control.kubestellar.io/v1alpha1/namespaces/cluster1/workstatuses";
const WEB: &str = "/apis/apps/v1/namespaces/tide/deployments/web";

fn under(path: &str, name: &str) -> String {
    format!("{path}/{name}")
}

impl Running {
    async fn start() -> Self {
        Self::with(AllowedGroups::default()).await
    }

    async fn with(groups: AllowedGroups) -> Self {
        let data = tempfile::tempdir().unwrap();
        let engine = Engine::in_memory();
        let wds = Side::start(&engine, data.path(), "wds1").await;
        let its = Side::start(&engine, data.path(), "its1").await;
        let crds = [apis::crds::ocm_hub(), apis::crds::work_status()].concat();
        runtime::install(&its.client, &crds, "test").await.unwrap();
        for name in ["cluster1", "cluster2"] {
            its.post(
                "/apis/cluster.open-cluster-management.io/v1/managedclusters",
                json!({
                    "apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
                    "metadata": {"name": name, "labels": {"location-group": "edge", "name": name}},
                    "spec": {"hubAcceptsClient": true},
                }),
            )
            .await;
            its.post("/api/v1/namespaces", json!({"metadata": {"name": name}})).await;
        }
        let (stop, task) = Self::run(&wds, &its, groups).await;
        wds.post("/api/v1/namespaces", json!({"metadata": {"name": "tide", "labels": {"app": "tide"}}}))
            .await;
        Self { wds, its, stop, task, _data: data }
    }

    async fn run(wds: &Side, its: &Side, groups: AllowedGroups) -> (CancellationToken, JoinHandle<()>) {
        let config = Config { api_groups: groups, ..Config::new("wds1", "its1") };
        let mut ready = config.ready.subscribe();
        let stop = CancellationToken::new();
        let all =
            kubestellar_controller_manager::run(wds.client.clone(), its.client.clone(), config, stop.clone());
        let task = tokio::spawn(async move { all.await.unwrap() });
        ready.wait_for(|ready| *ready).await.unwrap();
        (stop, task)
    }

    async fn restart(&mut self) {
        self.stop.cancel();
        (&mut self.task).await.unwrap();
        (self.stop, self.task) = Self::run(&self.wds, &self.its, AllowedGroups::default()).await;
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
        self.wds.space.stop().await;
        self.its.space.stop().await;
    }

    async fn config_map(&self, name: &str) -> Value {
        self.wds.post(MAPS, config_map(name)).await
    }

    async fn policy(&self, cluster: Value, more: Value) {
        let mut clause = json!({"objectSelectors": [{"matchLabels": {"app": "tide"}}]});
        clause.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let spec = json!({"clusterSelectors": [{"matchLabels": cluster}], "downsync": [clause]});
        self.wds.post(POLICIES, policy("tide", spec)).await;
    }

    async fn deployment(&self) {
        self.wds
            .post(
                "/apis/apps/v1/namespaces/tide/deployments",
                json!({
                    "apiVersion": "apps/v1", "kind": "Deployment",
                    "metadata": {"name": "web", "namespace": "tide", "labels": {"app": "tide"}},
                    "spec": {
                        "replicas": 2, "selector": {"matchLabels": {"run": "web"}},
                        "template": {
                            "metadata": {"labels": {"run": "web"}},
                            "spec": {"containers": [{"name": "c", "image": "example.invalid/app:1"}]},
                        },
                    },
                }),
            )
            .await;
    }

    async fn report(&self, name: &str, status: Value) {
        let work = json!({
            "apiVersion": "control.kubestellar.io/v1alpha1", "kind": "WorkStatus",
            "metadata": {"name": name, "labels": {"transport.kubestellar.io/originWdsName": "wds1"}},
            "spec": {"sourceRef": {
                "group": "apps", "version": "v1", "resource": "deployments", "kind": "Deployment",
                "namespace": "tide", "name": "web",
            }},
        });
        self.its.post(WORK_STATUSES, work).await;
        self.set_report(name, status).await;
    }

    async fn set_report(&self, name: &str, status: Value) {
        let path = format!("{WORK_STATUSES}/{name}/status");
        self.its.patch(&path, json!({"status": null})).await;
        self.its.patch(&path, json!({"status": status})).await;
    }
}

fn config_map(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "tide", "labels": {"app": "tide"}}, "data": {"a": "1"},
    })
}

fn policy(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "control.kubestellar.io/v1alpha1", "kind": "BindingPolicy",
        "metadata": {"name": name}, "spec": spec,
    })
}

/// The spec without the versions of objects.
fn spec(binding: &Value) -> Value {
    let mut spec = binding["spec"].clone();
    for scope in ["clusterScope", "namespaceScope"] {
        for entry in spec["workload"].get_mut(scope).and_then(Value::as_array_mut).into_iter().flatten() {
            assert!(entry.as_object_mut().unwrap().remove("resourceVersion").is_some());
        }
    }
    spec
}

fn names(binding: &Value) -> Vec<String> {
    let scopes = ["clusterScope", "namespaceScope"].into_iter();
    let entries =
        scopes.flat_map(|scope| binding["spec"]["workload"][scope].as_array().into_iter().flatten());
    entries.map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
}

fn condition<'a>(object: &'a Value, type_: &str) -> &'a str {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.filter(|it| it["type"] == type_).find_map(|it| it["status"].as_str()).unwrap_or("")
}

/// A policy for a Namespace, a ConfigMap and a Deployment, as in the golden scenario `basic`. KS-009: the
/// finalizer. KS-011: the owner. KS-013, KS-065: what the transport controller writes into the Binding's
/// status stays, and shows in the policy.
#[tokio::test(flavor = "multi_thread")]
async fn ks_071_a_policy_becomes_a_binding() {
    let all = Running::start().await;
    all.config_map("settings").await;
    all.deployment().await;
    all.policy(json!({"location-group": "edge"}), json!({})).await;
    let path = under(BINDINGS, "tide");
    let binding = all.wds.until(&path, |it| names(it).len() == 3).await;
    assert_eq!(
        spec(&binding),
        json!({
            "destinations": [{"clusterId": "cluster1"}, {"clusterId": "cluster2"}],
            "workload": {
                "clusterScope": [{"group": "", "version": "v1", "resource": "namespaces", "name": "tide"}],
                "namespaceScope": [
                    {"group": "", "version": "v1", "resource": "configmaps", "namespace": "tide", "name": "settings"},
                    {"group": "apps", "version": "v1", "resource": "deployments", "namespace": "tide", "name": "web"},
                ],
            },
        })
    );
    let policy = all.wds.until(&under(POLICIES, "tide"), |it| condition(it, "Synced") == "True").await;
    assert_eq!(policy["metadata"]["finalizers"], json!(["bindingpolicy.kubestellar.io/kscontroller"]));
    assert_eq!(policy["status"]["observedGeneration"], policy["metadata"]["generation"]);
    assert!(policy["status"].get("errors").is_none());
    assert_eq!(
        binding["metadata"]["ownerReferences"],
        json!([{
            "apiVersion": "control.kubestellar.io/v1alpha1", "kind": "BindingPolicy", "name": "tide",
            "uid": policy["metadata"]["uid"], "controller": true, "blockOwnerDeletion": false,
        }])
    );
    let managers = binding["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(managers[0]["manager"], json!("Binding"));
    let live = all.wds.get(&under(MAPS, "settings")).await.unwrap();
    let entry = &binding["spec"]["workload"]["namespaceScope"][0];
    assert_eq!(entry["resourceVersion"], live["metadata"]["resourceVersion"]);

    // The transport controller has processed it.
    let generation = binding["metadata"]["generation"].clone();
    assert_eq!(condition(&policy, "Ready"), "False");
    all.wds.patch(&format!("{path}/status"), json!({"status": {"observedGeneration": generation}})).await;
    all.wds.until(&under(POLICIES, "tide"), |it| condition(it, "Ready") == "True").await;
    let binding = all.wds.until(&path, |it| condition(it, "StatusCollectorsAvailable") == "True").await;
    assert_eq!(binding["status"]["observedGeneration"], generation, "KS-013");
    all.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ks_063_no_cluster_and_no_object_make_a_binding_all_the_same() {
    let all = Running::start().await;
    all.config_map("settings").await;
    all.policy(json!({"name": "nowhere"}), json!({})).await;
    let binding = all.wds.until(&under(BINDINGS, "tide"), |it| names(it).len() == 2).await;
    assert!(binding["spec"].get("destinations").is_none());
    let nothing = json!({"clusterSelectors": [{}], "downsync": [{"objectNames": ["nothing"]}]});
    all.wds.post(POLICIES, policy("nothing", nothing)).await;
    let binding = all.wds.until(&under(BINDINGS, "nothing"), |_| true).await;
    assert_eq!(
        binding["spec"],
        json!({"destinations": [{"clusterId": "cluster1"}, {"clusterId": "cluster2"}], "workload": {}})
    );
    // The policy's last entry is removed from the Binding, too.
    all.wds.patch(&under(POLICIES, "nothing"), json!({"spec": {"clusterSelectors": null}})).await;
    all.wds.until(&under(BINDINGS, "nothing"), |it| it["spec"] == json!({"workload": {}})).await;
    all.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ks_051_create_only_stands_in_the_binding() {
    let all = Running::start().await;
    all.policy(json!({"location-group": "edge"}), json!({"createOnly": true})).await;
    let binding = all.wds.until(&under(BINDINGS, "tide"), |it| names(it).len() == 1).await;
    assert_eq!(binding["spec"]["workload"]["clusterScope"][0]["createOnly"], json!(true));
    all.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ks_050_objects_come_change_and_go() {
    let all = Running::start().await;
    all.policy(json!({"location-group": "edge"}), json!({})).await;
    let path = under(BINDINGS, "tide");
    all.wds.until(&path, |it| names(it) == ["tide"]).await;
    all.config_map("a").await;
    all.wds.until(&path, |it| names(it) == ["tide", "a"]).await;
    let changed = all.wds.patch(&under(MAPS, "a"), json!({"data": {"b": "2"}})).await;
    let version = &changed["metadata"]["resourceVersion"];
    all.wds
        .until(&path, |it| it["spec"]["workload"]["namespaceScope"][0]["resourceVersion"] == *version)
        .await;
    all.wds.patch(&under(MAPS, "a"), json!({"metadata": {"finalizers": ["example.org/wait"]}})).await;
    all.wds.delete(&under(MAPS, "a")).await;
    let going = all.wds.get(&under(MAPS, "a")).await.unwrap();
    let version = &going["metadata"]["resourceVersion"];
    all.wds
        .until(&path, |it| it["spec"]["workload"]["namespaceScope"][0]["resourceVersion"] == *version)
        .await;
    all.wds.patch(&under(MAPS, "a"), json!({"metadata": {"finalizers": null}})).await;
    all.wds.until(&path, |it| names(it) == ["tide"]).await;
    all.its
        .patch(
            "/apis/cluster.open-cluster-management.io/v1/managedclusters/cluster2",
            json!({"metadata": {"labels": {"location-group": "core"}}}),
        )
        .await;
    all.wds.until(&path, |it| it["spec"]["destinations"] == json!([{"clusterId": "cluster1"}])).await;
    all.end().await;
}

/// KS-056, KS-072.
#[tokio::test(flavor = "multi_thread")]
async fn ks_056_a_deleted_policy_takes_its_binding_along() {
    let all = Running::start().await;
    all.policy(json!({"location-group": "edge"}), json!({})).await;
    all.wds.until(&under(BINDINGS, "tide"), |_| true).await;
    all.wds.delete(&under(POLICIES, "tide")).await;
    all.wds.until_any(&under(POLICIES, "tide"), |it| it.is_none()).await;
    all.wds.until_any(&under(BINDINGS, "tide"), |it| it.is_none()).await;
    all.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ks_061_what_users_do_to_a_binding_is_undone() {
    let all = Running::start().await;
    all.policy(json!({"location-group": "edge"}), json!({})).await;
    let path = under(BINDINGS, "tide");
    let first = all.wds.until(&path, |it| names(it) == ["tide"]).await;
    all.wds.patch(&path, json!({"spec": {"destinations": [{"clusterId": "mine"}]}})).await;
    let again = all.wds.until(&path, |it| it["spec"] == first["spec"]).await;
    // The policy may have been seen before its namespace, so the number of writes of the Binding up to now is
    // not fixed.
    let generation = |it: &Value| it["metadata"]["generation"].as_i64().unwrap();
    assert_eq!(generation(&again), generation(&first) + 2);
    let mut uid = first["metadata"]["uid"].clone();
    let mut anew = again;
    for _ in 0..20 {
        // Immediately, so that the response to the write before may arrive after the event of this one.
        all.wds.delete(&path).await;
        anew = all.wds.until(&path, |it| it["metadata"]["uid"] != uid).await;
        uid = anew["metadata"]["uid"].clone();
    }
    assert_eq!(anew["spec"], first["spec"]);
    all.end().await;
}

/// KS-062, KS-066, KS-069: a restart does not write what is as it should be, and processes what it missed.
#[tokio::test(flavor = "multi_thread")]
async fn ks_066_a_restart_leaves_the_bindings_alone() {
    let mut all = Running::start().await;
    for n in 0..50 {
        all.config_map(&format!("map-{n}")).await;
    }
    all.policy(json!({"location-group": "edge"}), json!({})).await;
    let path = under(BINDINGS, "tide");
    all.wds.until(&path, |it| names(it).len() == 51).await;
    all.wds.until(&under(POLICIES, "tide"), |it| condition(it, "StatusCollectorsAvailable") == "True").await;
    let before = all.wds.get(&path).await.unwrap();
    all.restart().await;
    // Once a new object is in the Binding, everything before it has been processed.
    all.config_map("new").await;
    let after = all.wds.until(&path, |it| names(it).len() == 52).await;
    let generation = |it: &Value| it["metadata"]["generation"].as_i64().unwrap();
    assert_eq!(generation(&after), generation(&before) + 1);

    all.stop.cancel();
    (&mut all.task).await.unwrap();
    all.wds.delete(&under(MAPS, "new")).await;
    all.wds.delete(&under(MAPS, "map-7")).await;
    (all.stop, all.task) = Running::run(&all.wds, &all.its, AllowedGroups::default()).await;
    let later = all.wds.until(&path, |it| names(it).len() == 50).await;
    assert_eq!(generation(&later), generation(&after) + 1);
    all.end().await;
}

/// KS-038, KS-074: a thousand objects at once cost few writes.
#[tokio::test(flavor = "multi_thread")]
async fn ks_038_a_burst_of_objects_is_written_together() {
    let all = Running::start().await;
    all.policy(json!({"location-group": "edge"}), json!({})).await;
    let path = under(BINDINGS, "tide");
    all.wds.until(&path, |_| true).await;
    let started = std::time::Instant::now();
    let writes = (0..1000).map(|n| all.wds.post(MAPS, config_map(&format!("map-{n}"))));
    futures::future::join_all(writes).await;
    let binding = all.wds.until(&path, |it| names(it).len() == 1001).await;
    // On a slow machine the objects may arrive one by one. Single changes are written at once, but at most
    // three within a tenth of a window (`runtime::Coalescer`), whatever the time was spent on.
    let most = started.elapsed().as_millis() / 5 + 8;
    let generation = binding["metadata"]["generation"].as_i64().unwrap();
    assert!(i128::from(generation) <= most as i128, "{generation} writes, at most {most} expected");
    all.end().await;
}

fn crd(versions: &[&str]) -> Value {
    let version = |name: &&str| {
        json!({
            "name": name, "served": true, "storage": *name == versions[0],
            "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            }},
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.org"},
        "spec": {
            "group": "example.org", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": versions.iter().map(version).collect::<Vec<_>>(),
        },
    })
}

/// KS-034, KS-035, KS-036: the objects of a CRD appear and disappear with it, once each, in the preferred
/// version.
#[tokio::test(flavor = "multi_thread")]
async fn ks_034_custom_resources_come_and_go_with_their_definition() {
    let all = Running::start().await;
    let spec = json!({"clusterSelectors": [{}], "downsync": [{"apiGroup": "example.org"}]});
    all.wds.post(POLICIES, policy("tide", spec)).await;
    all.wds.post(CRDS, crd(&["v1alpha1", "v1"])).await;
    all.wds.until(&under(CRDS, "things.example.org"), |it| condition(it, "Established") == "True").await;
    let thing = json!({"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"name": "one"}});
    all.wds.post("/apis/example.org/v1/namespaces/tide/things", thing).await;
    let path = under(BINDINGS, "tide");
    let binding = all.wds.until(&path, |it| names(it) == ["one"]).await;
    assert_eq!(binding["spec"]["workload"]["namespaceScope"][0]["version"], json!("v1"));
    all.wds
        .patch(
            &under(CRDS, "things.example.org"),
            json!({"spec": {"versions": crd(&["v1alpha1"])["spec"]["versions"]}}),
        )
        .await;
    let binding =
        all.wds.until(&path, |it| it["spec"]["workload"]["namespaceScope"][0]["version"] == "v1alpha1").await;
    assert_eq!(names(&binding), ["one"]);
    all.wds.delete(&under(CRDS, "things.example.org")).await;
    all.wds.until(&path, |it| names(it).is_empty()).await;
    all.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ks_213_groups_that_are_not_allowed_are_not_seen() {
    let all = Running::with(AllowedGroups::parse("apps")).await;
    all.config_map("settings").await;
    all.deployment().await;
    all.policy(json!({"location-group": "edge"}), json!({})).await;
    all.wds.until(&under(BINDINGS, "tide"), |it| names(it) == ["web"]).await;
    all.end().await;
}

/// The golden scenario `singleton`, and back again (KS-150, KS-151).
#[tokio::test(flavor = "multi_thread")]
async fn ks_150_the_status_of_the_only_cluster_returns() {
    let all = Running::start().await;
    all.deployment().await;
    all.policy(json!({"name": "cluster1"}), json!({"wantSingletonReportedState": true})).await;
    let binding = all.wds.until(&under(BINDINGS, "tide"), |it| names(it).len() == 2).await;
    assert_eq!(binding["spec"]["workload"]["namespaceScope"][0]["wantSingletonReportedState"], json!(true));
    let counted = |it: &Value| it["metadata"]["labels"]["kubestellar.io/executing-count"].clone();
    all.wds.until(WEB, |it| counted(it) == "1").await;

    all.report("one", json!({"replicas": 2, "readyReplicas": 2, "observedGeneration": 1})).await;
    let web = all.wds.until(WEB, |it| it["status"]["readyReplicas"] == 2).await;
    assert_eq!(web["status"], json!({"replicas": 2, "readyReplicas": 2, "observedGeneration": 1}));
    assert_eq!(web["metadata"]["labels"]["managed-by.kubestellar.io/singletonstatus"], json!("true"));
    assert_eq!(web["metadata"]["generation"], json!(1));
    all.set_report("one", json!({"replicas": 1})).await;
    all.wds.until(WEB, |it| it["status"] == json!({"replicas": 1})).await;

    // KS-151: a second cluster makes the request void at once.
    all.wds
        .patch(
            &under(POLICIES, "tide"),
            json!({"spec": {"clusterSelectors": [{"matchLabels": {"location-group": "edge"}}]}}),
        )
        .await;
    let web = all.wds.until(WEB, |it| it["status"] == json!({}) && counted(it) == "2").await;
    assert!(web["metadata"]["labels"].get("managed-by.kubestellar.io/singletonstatus").is_none());
    let policy = all.wds.until(&under(POLICIES, "tide"), |it| it["status"]["errors"].is_array()).await;
    let text = policy["status"]["errors"][0].as_str().unwrap();
    assert!(text.starts_with("Singleton reported status return is requested but"), "{text}");

    all.wds
        .patch(
            &under(POLICIES, "tide"),
            json!({"spec": {"clusterSelectors": [{"matchLabels": {"name": "cluster1"}}]}}),
        )
        .await;
    all.wds.until(WEB, |it| it["status"] == json!({"replicas": 1}) && counted(it) == "1").await;

    // After the policy is deleted nothing of ours is left.
    all.wds.delete(&under(POLICIES, "tide")).await;
    let web = all.wds.until(WEB, |it| it["status"] == json!({}) && counted(it).is_null()).await;
    assert_eq!(web["metadata"]["labels"], json!({"app": "tide"}));
    all.end().await;
}

/// KS-152: a status that became void while the controller was down is cleared when it restarts.
#[tokio::test(flavor = "multi_thread")]
async fn ks_152_a_stale_status_is_cleared_after_a_restart() {
    let mut all = Running::start().await;
    all.deployment().await;
    all.policy(json!({"name": "cluster1"}), json!({"wantSingletonReportedState": true})).await;
    all.report("one", json!({"replicas": 2})).await;
    all.wds.until(WEB, |it| it["status"]["replicas"] == 2).await;
    all.stop.cancel();
    (&mut all.task).await.unwrap();
    all.wds
        .patch(&under(POLICIES, "tide"), json!({"spec": {"downsync": [{"objectNames": ["other"]}]}}))
        .await;
    (all.stop, all.task) = Running::run(&all.wds, &all.its, AllowedGroups::default()).await;
    let web = all.wds.until(WEB, |it| it["status"] == json!({})).await;
    all.wds.until(WEB, |it| it["metadata"]["labels"] == json!({"app": "tide"})).await;
    assert_eq!(web["spec"]["replicas"], json!(2));
    all.end().await;
}
