//! StatusCollectors and CombinedStatus objects.

use serde_json::{Value, json};

use crate::reporting::{COLLECTORS, TIDE, WEB, collector, downsync, fleet, only};
use crate::scene::{BINDINGS, NAMESPACES, POLICIES, Scene, condition, policy};

const COMBINED: &str = "/apis/control.kubestellar.io/v1alpha1/namespaces/n/combinedstatuses";

async fn scene() -> Scene {
    let scene = Scene::start().await;
    scene.mailboxes().await;
    scene
}

pub(crate) fn collecting(names: &[&str]) -> Value {
    json!({"statusCollectors": names})
}

fn count() -> Value {
    json!({"combinedFields": [{"name": "total", "type": "COUNT"}], "limit": 10})
}

fn whole() -> Value {
    json!({"select": [{"name": "wec", "def": "inventory.name"}, {"name": "st", "def": "returned.status"}], "limit": 10})
}

fn sum() -> Value {
    json!({"combinedFields": [{"name": "n", "type": "SUM", "subject": "returned.status.availableReplicas"}], "limit": 10})
}

pub(crate) fn string(text: &str) -> Value {
    json!({"type": "String", "string": text})
}

fn number(text: &str) -> Value {
    json!({"type": "Number", "float": text})
}

pub(crate) fn result<'a>(combined: &'a Value, name: &str) -> &'a Value {
    let results = combined["results"].as_array().into_iter().flatten();
    results.clone().find(|it| it["name"] == name).unwrap_or(&Value::Null)
}

/// The first row of a result.
fn first(combined: &Value, name: &str) -> Value {
    result(combined, name)["rows"][0]["columns"].clone()
}

pub(crate) fn columns(combined: &Value, name: &str) -> Vec<Value> {
    let rows = result(combined, name)["rows"].as_array().into_iter().flatten();
    rows.map(|row| row["columns"].clone()).collect()
}

pub(crate) fn path_of(policy: &Value, object: &Value) -> String {
    let uid = |of: &Value| of["metadata"]["uid"].as_str().unwrap().to_owned();
    format!("{COMBINED}/{}.{}", uid(object), uid(policy))
}

/// KS-A-17: E1 … E12 with two clusters, and changes of collectors, policies and objects by users. KS-015,
/// KS-190, KS-191.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_17_combined_status() {
    let scene = scene().await;
    let web = scene.deployment("web").await;
    scene.collector("whole", whole()).await;
    scene.collector("sum", sum()).await;
    let filter = "obj.spec.replicas == returned.status.availableReplicas";
    scene
        .collector(
            "full",
            json!({"filter": filter, "select": [{"name": "wec", "def": "inventory.name"}], "limit": 10}),
        )
        .await;
    let nothing = json!({"filter": "false", "limit": 10, "combinedFields": [{"name": "count", "type": "COUNT"},
        {"name": "avg", "type": "AVG", "subject": "2"}]});
    scene.collector("nothing", nothing).await;
    let tide = scene.tide(fleet(), collecting(&["whole", "sum", "full", "nothing", "late"])).await;
    let path = path_of(&tide, &web);
    // No cluster has reported yet (KS-175).
    let silent = [
        json!([string("cluster1"), {"type": "Object", "object": {}}]),
        json!([string("cluster2"), {"type": "Object", "object": {}}]),
    ];
    let combined = scene.wds.until(&path, |it| columns(it, "whole") == silent).await;
    assert_eq!(
        combined["metadata"]["labels"],
        json!({
            "status.kubestellar.io/api-group": "apps", "status.kubestellar.io/resource": "deployments",
            "status.kubestellar.io/namespace": "n", "status.kubestellar.io/name": "web",
            "status.kubestellar.io/binding-policy": "tide",
        })
    );
    assert_eq!(
        combined["metadata"]["ownerReferences"],
        json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": web["metadata"]["uid"]}])
    );
    assert_eq!(columns(&combined, "nothing"), [json!([number("0"), number("NaN")])]);
    assert_eq!(
        result(&combined, "nothing")["aggregationErrors"],
        json!([{"columnName": "avg", "error": "no values to average"}])
    );
    assert!(result(&combined, "late").is_null(), "KS-192");

    scene.report("cluster1", json!({"availableReplicas": 2})).await;
    scene.report("cluster2", json!({"availableReplicas": 2})).await;
    let combined = scene.wds.until(&path, |it| first(it, "sum") == json!([number("4")])).await;
    let object = |wec: &str| json!([string(wec), {"type": "Object", "object": {"availableReplicas": 2}}]);
    assert_eq!(columns(&combined, "whole"), [object("cluster1"), object("cluster2")]);
    assert_eq!(columns(&combined, "full"), [json!([string("cluster1")]), json!([string("cluster2")])]);
    let uid = combined["metadata"]["uid"].clone();

    // The table that kubectl shows.
    let request = http::Request::get("/apis/control.kubestellar.io/v1alpha1/combinedstatuses");
    let request = request.header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let table: Value = scene.wds.client.request(request.body(Vec::new()).unwrap()).await.unwrap();
    let names = table["columnDefinitions"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap());
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["Name", "SUBJECT_GROUP", "SUBJECT_RSC", "SUBJECT_NS", "SUBJECT_NAME", "BINDINGPOLICY"]
    );
    let cells = table["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(cells[1..], ["apps", "deployments", "n", "web", "tide"].map(Value::from));

    // A collector that is created later, and one that is changed.
    scene.collector("late", count()).await;
    scene.wds.until(&path, |it| first(it, "late") == json!([number("2")])).await;
    let half = json!({"spec": {"combinedFields": [{"name": "n", "type": "SUM", "subject": "returned.status.availableReplicas / 2"}]}});
    scene.wds.patch(&format!("{COLLECTORS}/sum"), half).await;
    let combined = scene.wds.until(&path, |it| first(it, "sum") == json!([number("2")])).await;
    assert_eq!(combined["metadata"]["uid"], uid);

    // KS-187: the object counts, too, and so do destinations.
    scene.wds.patch(WEB, json!({"spec": {"replicas": 3}})).await;
    scene.wds.until(&path, |it| columns(it, "full").is_empty()).await;
    scene.point("tide", only("cluster2")).await;
    scene.wds.until(&path, |it| columns(it, "whole") == [object("cluster2")]).await;

    // KS-191: without collectors there is no CombinedStatus.
    scene.wds.patch(TIDE, json!({"spec": {"downsync": downsync(json!({}))}})).await;
    scene.wds.until_any(&path, |it| it.is_none()).await;
    scene.wds.patch(TIDE, json!({"spec": {"downsync": downsync(collecting(&["whole"]))}})).await;
    scene.wds.until(&path, |it| columns(it, "whole").len() == 1).await;
    scene.wds.delete(WEB).await;
    scene.wds.until_any(&path, |it| it.is_none()).await;
    scene.end().await;
}

/// KS-A-18, with KS-170 to KS-173.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_18_missing_collector() {
    const AVAILABLE: &str = "StatusCollectorsAvailable";
    let scene = scene().await;
    scene.deployment("web").await;
    scene.tide(fleet(), collecting(&["ghost", "also"])).await;
    let message = |it: &Value| {
        let mut all = it["status"]["conditions"].as_array().unwrap().iter();
        all.find(|it| it["type"] == AVAILABLE).map(|it| it["message"].clone())
    };
    for path in [&format!("{BINDINGS}/tide"), TIDE] {
        let it = scene.wds.until(path, |it| condition(it, AVAILABLE) == "False").await;
        assert_eq!(message(&it), Some(json!("Missing StatusCollector(s) [also ghost]")), "{path}");
    }
    scene.collector("also", count()).await;
    let ghost = format!("{COLLECTORS}/ghost");
    scene
        .collector(
            "ghost",
            json!({"filter": "returned.status. ==", "select": [{"name": "a", "def": "1"}], "limit": 1}),
        )
        .await;
    let it = scene.wds.until(&ghost, |it| it["status"]["errors"].is_array()).await;
    let errors = it["status"]["errors"].as_array().unwrap();
    assert_eq!((errors.len(), &it["status"]["observedGeneration"]), (1, &json!(1)));
    assert!(errors[0].as_str().unwrap().starts_with("filter expression invalid"), "{errors:?}");
    let it = scene
        .wds
        .until(TIDE, |it| message(it).is_some_and(|it| it.as_str().unwrap().ends_with("[ghost]")))
        .await;
    assert_eq!(condition(&it, AVAILABLE), "False", "KS-171: an invalid one is missing");
    scene.wds.patch(&ghost, json!({"spec": {"filter": "true"}})).await;
    scene.wds.until(&ghost, |it| it["status"] == json!({"observedGeneration": 2})).await;
    scene.wds.until(TIDE, |it| condition(it, AVAILABLE) == "True").await;
    scene.wds.delete(&ghost).await;
    scene.wds.until(TIDE, |it| condition(it, AVAILABLE) == "False").await;
    scene.end().await;
}

/// KS-193, KS-A-29: changes of a CombinedStatus by users are undone.
#[tokio::test(flavor = "multi_thread")]
async fn ks_193_a_combined_status_is_repaired() {
    let scene = scene().await;
    let web = scene.deployment("web").await;
    scene.collector("n", count()).await;
    let tide = scene.tide(fleet(), collecting(&["n"])).await;
    let path = path_of(&tide, &web);
    let right = |it: &Value| first(it, "n") == json!([number("2")]);
    let before = scene.wds.until(&path, right).await;
    scene.wds.patch(&path, json!({"results": []})).await;
    scene.wds.until(&path, right).await;
    let tampered = json!({"metadata": {"labels": {"status.kubestellar.io/name": "other", "more": "x"}, "ownerReferences": null}});
    scene.wds.patch(&path, tampered).await;
    scene
        .wds
        .until(&path, |it| {
            it["metadata"]["labels"] == before["metadata"]["labels"]
                && it["metadata"]["ownerReferences"] == before["metadata"]["ownerReferences"]
        })
        .await;
    for _ in 0..5 {
        let uid = scene.wds.get(&path).await.unwrap()["metadata"]["uid"].clone();
        scene.wds.delete(&path).await;
        scene.wds.until(&path, |it| it["metadata"]["uid"] != uid && right(it)).await;
    }
    // A CombinedStatus that no pair requests is deleted.
    let stray = json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "CombinedStatus", "metadata": {"name": "stray"}});
    scene.wds.post(COMBINED, stray).await;
    scene.wds.until_any(&format!("{COMBINED}/stray"), |it| it.is_none()).await;
    scene.end().await;
}

/// KS-191, KS-194: after a restart leftovers are deleted, and what is right is not even written.
#[tokio::test(flavor = "multi_thread")]
async fn ks_194_a_restart_removes_leftovers_only() {
    let mut scene = scene().await;
    let web = scene.deployment("web").await;
    scene.collector("n", count()).await;
    scene.collector("st", whole()).await;
    let tide = scene.tide(fleet(), collecting(&["n", "st"])).await;
    let clause = downsync(collecting(&["n"]));
    let other =
        scene.policy("other", json!({"clusterSelectors": only("cluster1"), "downsync": clause})).await;
    scene.report("cluster1", json!({"availableReplicas": 1})).await;
    let (ours, theirs) = (path_of(&tide, &web), path_of(&other, &web));
    // KS-197: two policies, two objects, each with its own destinations and collectors.
    let before =
        scene.wds.until(&ours, |it| columns(it, "st")[0][1]["object"]["availableReplicas"] == 1).await;
    assert_eq!(first(&before, "n"), json!([number("2")]));
    let it = scene.wds.until(&theirs, |it| first(it, "n") == json!([number("1")])).await;
    assert_eq!(it["results"].as_array().unwrap().len(), 1);
    scene.kill();
    scene.wds.patch(&format!("{POLICIES}/other"), json!({"metadata": {"finalizers": null}})).await;
    scene.wds.delete(&format!("{POLICIES}/other")).await;
    scene.run().await;
    scene.wds.until_any(&theirs, |it| it.is_none()).await;
    // Once a new object has its CombinedStatus, everything before it has been processed.
    let db = scene.deployment("db").await;
    scene.wds.until(&path_of(&tide, &db), |it| first(it, "n") == json!([number("2")])).await;
    assert_eq!(scene.wds.get(&ours).await.unwrap(), before);
    scene.end().await;
}

/// KS-191: a recreated object or policy has a new CombinedStatus.
#[tokio::test(flavor = "multi_thread")]
async fn ks_191_a_policy_made_anew_has_a_new_combined_status() {
    let scene = scene().await;
    let web = scene.deployment("web").await;
    scene.collector("n", count()).await;
    let tide = scene.tide(fleet(), collecting(&["n"])).await;
    let old = path_of(&tide, &web);
    scene.wds.until(&old, |_| true).await;
    scene.wds.delete(TIDE).await;
    scene.wds.until_any(&old, |it| it.is_none()).await;
    scene.wds.until_any(TIDE, |it| it.is_none()).await;
    let clause = downsync(collecting(&["n"]));
    let tide = scene
        .wds
        .post(POLICIES, policy("tide", json!({"clusterSelectors": fleet(), "downsync": clause})))
        .await;
    let new = path_of(&tide, &web);
    assert_ne!(old, new);
    scene.wds.until(&new, |it| first(it, "n") == json!([number("2")])).await;
    scene.end().await;
}

/// E12 and KS-A-00: the CombinedStatuses of cluster-scoped objects have a namespace of their own, which is
/// created again if it is deleted.
#[tokio::test(flavor = "multi_thread")]
async fn ks_015_cluster_scoped_objects_have_a_namespace_for_reports() {
    let scene = scene().await;
    let reports = format!("{NAMESPACES}/kubestellar-report");
    scene.wds.until(&reports, |_| true).await;
    scene.wds.patch(&format!("{NAMESPACES}/n"), json!({"metadata": {"labels": {"app": "tide"}}})).await;
    let namespace = scene.wds.get(&format!("{NAMESPACES}/n")).await.unwrap();
    scene.collector("n", count()).await;
    let tide = scene.tide(fleet(), collecting(&["n"])).await;
    let path = path_of(&tide, &namespace).replace("/namespaces/n/", "/namespaces/kubestellar-report/");
    let it = scene.wds.until(&path, |it| first(it, "n") == json!([number("2")])).await;
    assert_eq!(it["metadata"]["labels"]["status.kubestellar.io/api-group"], json!(""));
    assert_eq!(it["metadata"]["ownerReferences"][0]["kind"], json!("Namespace"));
    scene.end().await;
}

/// KS-013: no writer of a status overwrites the part of another. KS-199: neither broken expressions nor
/// broken reports stop anything.
#[tokio::test(flavor = "multi_thread")]
async fn ks_199_bad_expressions_stop_nobody() {
    let scene = scene().await;
    let web = scene.deployment("web").await;
    let range = "lists.range(3000)";
    let runaway = format!("{range}.all(a, {range}.all(b, {range}.all(c, a + b + c >= 0)))");
    let select = |def: &str| json!({"select": [{"name": "a", "def": def}], "limit": 5});
    scene.collector("runaway", select(&runaway)).await;
    scene.collector("missing", select("returned.status.none.such[7]")).await;
    scene.collector("odd", select("Thing{a: 1}")).await;
    scene.collector("n", count()).await;
    let tide = scene.tide(fleet(), collecting(&["runaway", "missing", "odd", "n"])).await;
    scene.report("cluster1", json!({"n": [1, {"deep": [[[]]]}]})).await;
    let path = path_of(&tide, &web);
    let it = scene.wds.until(&path, |it| first(it, "n") == json!([number("2")])).await;
    let error = &result(&it, "runaway")["rowErrors"][0];
    assert_eq!(
        error["error"],
        json!("failed to evaluate expression: operation cancelled: actual cost limit exceeded")
    );
    assert!(result(&it, "missing")["rowErrors"][0]["error"].as_str().unwrap().contains("no such key"));
    assert!(result(&it, "odd").is_null());
    let faulty = |it: &Value| it["status"]["errors"].as_array().is_some_and(|all| all.len() == 1);
    scene.wds.until(&format!("{COLLECTORS}/odd"), faulty).await;
    scene.wds.patch(&format!("{COLLECTORS}/odd"), json!({"spec": collector("odd", count())["spec"]})).await;
    scene.wds.patch(&format!("{COLLECTORS}/odd"), json!({"spec": {"select": null}})).await;
    scene.wds.until(&path, |it| first(it, "odd") == json!([number("2")])).await;
    scene.end().await;
}

/// KS-167: the aggregated status and the answers of collectors are independent. KS-157: a refused write is
/// retried.
#[tokio::test(flavor = "multi_thread")]
async fn ks_167_aggregate_and_answers_are_independent() {
    let scene = scene().await;
    let web = scene.deployment("web").await;
    scene.collector("sum", sum()).await;
    scene.faults.refuse("combinedstatuses?", 500);
    let tide =
        scene.tide(fleet(), json!({"statusCollectors": ["sum"], "wantMultiWECReportedState": true})).await;
    let up = |n: u32| json!({"replicas": n, "readyReplicas": n, "availableReplicas": n});
    scene.report("cluster1", up(1)).await;
    scene.report("cluster2", up(3)).await;
    scene.wds.until(WEB, |it| it["status"]["availableReplicas"] == 1).await;
    scene.faults.heal();
    let path = path_of(&tide, &web);
    scene.wds.until(&path, |it| first(it, "sum") == json!([number("4")])).await;
    scene.wds.patch(TIDE, json!({"spec": {"downsync": downsync(collecting(&["sum"]))}})).await;
    scene.wds.until(WEB, |it| it["status"] == json!({})).await;
    scene.report("cluster2", up(2)).await;
    scene.wds.until(&path, |it| first(it, "sum") == json!([number("3")])).await;
    scene.end().await;
}

/// KS-197: two policies that select one object have two CombinedStatus objects, each with its own
/// destinations and collectors. Deleting one policy deletes its CombinedStatus and leaves the other.
#[tokio::test(flavor = "multi_thread")]
async fn ks_197_two_policies_give_two_combined_statuses() {
    let scene = scene().await;
    let web = scene.deployment("web").await;
    scene.collector("n", count()).await;
    scene.collector("st", whole()).await;
    let tide = scene.tide(fleet(), collecting(&["n"])).await;
    let clause = downsync(collecting(&["st", "n"]));
    let other =
        scene.policy("other", json!({"clusterSelectors": only("cluster2"), "downsync": clause})).await;
    scene.report("cluster1", json!({"availableReplicas": 1})).await;
    scene.report("cluster2", json!({"availableReplicas": 2})).await;
    let (ours, theirs) = (path_of(&tide, &web), path_of(&other, &web));
    let two = json!([string("cluster2"), {"type": "Object", "object": {"availableReplicas": 2}}]);
    let it = scene.wds.until(&theirs, |it| first(it, "st") == two).await;
    assert_eq!((columns(&it, "st").len(), first(&it, "n")), (1, json!([number("1")])));
    assert_eq!(it["metadata"]["labels"]["status.kubestellar.io/binding-policy"], "other");
    let it = scene.wds.until(&ours, |it| first(it, "n") == json!([number("2")])).await;
    assert!(result(&it, "st").is_null(), "it did not ask for that");
    assert_eq!(it["metadata"]["labels"]["status.kubestellar.io/binding-policy"], "tide");
    scene.wds.delete(&format!("{POLICIES}/other")).await;
    scene.wds.until_any(&theirs, |it| it.is_none()).await;
    let still = scene.wds.get(&ours).await.unwrap();
    assert_eq!(still["metadata"]["uid"], it["metadata"]["uid"]);
    scene.end().await;
}

/// KS-196: a Binding that is gone when its condition is to be written is no error and causes no retry.
#[tokio::test(flavor = "multi_thread")]
async fn ks_196_a_binding_that_is_gone_is_no_error() {
    let mut scene = Scene::without_controllers().await;
    scene.mailboxes().await;
    let metrics = runtime::metrics::Metrics::default();
    // Every write of a Binding's conditions comes too late.
    scene.faults.refuse("/bindings/tide/status", 404);
    scene.run_counted(metrics.clone()).await;
    scene.wds.post(NAMESPACES, json!({"metadata": {"name": "n"}})).await;
    scene.deployment("web").await;
    scene.tide(fleet(), collecting(&["ghost"])).await;
    scene.wds.until(&format!("{BINDINGS}/tide"), |_| true).await;
    scene.faults.until_asked(1, &["PATCH", "/bindings/tide/status"]).await;
    scene.wds.delete(TIDE).await;
    scene.wds.until_any(&format!("{BINDINGS}/tide"), |it| it.is_none()).await;
    // Later work is done, and until then nothing was retried.
    scene.collector("late", count()).await;
    scene.wds.until(&format!("{COLLECTORS}/late"), |it| it["status"]["observedGeneration"] == 1).await;
    let text = metrics.text();
    let retries = "workqueue_retries_total{name=\"Status-wds1\"} 0";
    assert!(text.lines().any(|line| line == retries), "{text}");
    scene.end().await;
}
