//! Feedback, conditions by rules, completion.

use kubestellar_ocm_agent::work_agent::{Config, feedback::Raw};
use serde_json::{Value, json};

use crate::world::*;

fn value<'a>(work: &'a Value, ordinal: usize, name: &str) -> Option<&'a Value> {
    let values = &work["status"]["resourceStatus"]["manifests"][ordinal]["statusFeedback"]["values"];
    Some(&values.as_array()?.iter().find(|v| v["name"] == name)?["fieldValue"])
}

/// OCM-A-60, OCM-A-51; OCM-077, OCM-087, OCM-090, OCM-161: changed values are reported without waiting for a
/// poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_090_feedback_follows_the_object() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let mut spec = holding(&[deployment("web", 3)]);
    let id = |name: &str| json!({"group": "apps", "resource": "deployments", "namespace": "*", "name": name});
    spec["manifestConfigs"] = json!([
        {"resourceIdentifier": id("*"), "feedbackScrapeType": "Watch", "feedbackRules": [{"type": "WellKnownStatus"}]},
        {"resourceIdentifier": id("web"), "feedbackRules": [
            {"type": "JSONPaths", "jsonPaths": [{"name": "late", "path": ".spec.replicas"}]}]}]);
    w.work("reef", spec).await;
    let first = w.settled("reef").await;
    assert!(value(&first, 0, "late").is_none(), "the first entry that has rules is the one");
    for ready in [2, 3] {
        let status = json!({"status": {"replicas": 3, "readyReplicas": ready, "availableReplicas": ready}});
        w.cluster.merge_status(DEPLOYMENTS, "sea", "web", status).await;
        let seen = w
            .reported("reef", "the values", |w| {
                value(w, 0, "ReadyReplicas") == Some(&json!({"type": "Integer", "integer": ready}))
            })
            .await;
        assert_eq!(value(&seen, 0, "Replicas"), Some(&json!({"type": "Integer", "integer": 3})));
        assert_eq!(value(&seen, 0, "AvailableReplicas"), Some(&json!({"type": "Integer", "integer": ready})));
        let synced = condition(manifest(&seen, 0), "StatusFeedbackSynced").expect("one");
        assert_eq!((&synced["status"], &synced["reason"]), (&json!("True"), &json!("StatusFeedbackSynced")));
        let applied =
            |w: &Value| condition(manifest(w, 0), "Applied").expect("one")["lastTransitionTime"].clone();
        assert_eq!(applied(&seen), applied(&first));
    }
    agent.end().await;
    w.end().await;
}

/// OCM-A-60; OCM-090: a value that cannot be reported causes an error condition, the others are reported, and
/// the objects are applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_090_values_that_can_not_be_reported() {
    let w = World::start().await;
    let paths = json!([{"name": "list", "path": ".spec.template.spec.containers"}, {"name": "want", "path": ".spec.replicas"},
        {"name": "broken", "path": ".spec["}]);
    let rules = json!({"feedbackRules": [{"type": "JSONPaths", "jsonPaths": paths}]});
    let spec = configured(&[deployment("web", 3), map("a", "1")], "apps/deployments", "web", rules);
    let agent = w.agent(World::config()).await;
    w.work("reef", spec).await;
    let report = w.settled("reef").await;
    let synced = condition(manifest(&report, 0), "StatusFeedbackSynced").expect("one");
    assert_eq!((&synced["status"], &synced["reason"]), (&json!("False"), &json!("StatusFeedbackSyncFailed")));
    let message = synced["message"].as_str().expect("text");
    assert!(message.starts_with("Sync status feedback failed with error ["), "{message}");
    assert!(message.contains("of the value for list is not found"), "{message}");
    assert!(message.contains("failed to parse json path .spec[ of broken"), "{message}");
    assert_eq!(value(&report, 0, "want"), Some(&json!({"type": "Integer", "integer": 3})));
    agent.end().await;
    // The same with JSON allowed.
    let agent = w.agent(Config { raw_feedback: Raw::UpTo(1024), ..World::config() }).await;
    let report = w.reported("reef", "JSON", |w| value(w, 0, "list").is_some()).await;
    let raw = value(&report, 0, "list").expect("a value");
    assert_eq!(raw["type"], "JsonRaw");
    assert!(raw["jsonRaw"].as_str().is_some_and(|text| text.starts_with("[{")), "{raw}");
    agent.end().await;
    w.end().await;
}

fn job(name: &str, image: &str) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "sea"}, "spec": {"template": {
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": image}]}}}})
}

/// OCM-A-61; OCM-091, OCM-092: a finished Job completes manifest and work, which are not changed from then
/// on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_092_a_complete_work_is_frozen() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let rules = json!({"conditionRules": [{"type": "WellKnownConditions", "condition": "Complete"}]});
    let spec = |more: &[Value]| {
        let manifests: Vec<Value> =
            [job("once", "example.invalid/a")].into_iter().chain(more.to_vec()).collect();
        configured(&manifests, "batch/jobs", "once", rules.clone())
    };
    w.work("reef", spec(&[])).await;
    let early = w.reported("reef", "not complete", |w| is(manifest(w, 0), "Complete", "False")).await;
    assert_eq!(condition(manifest(&early, 0), "Complete").expect("one")["message"], "Job is not finished");
    assert!(is(&early["status"]["conditions"], "Complete", "False"));
    let now = "2026-01-02T03:04:05Z";
    let done = |type_: &str| json!({"type": type_, "status": "True", "lastTransitionTime": now, "lastProbeTime": now});
    let finished = json!({"status": {"startTime": now, "completionTime": now, "succeeded": 1,
        "conditions": [done("SuccessCriteriaMet"), done("Complete")]}});
    w.cluster.merge_status("batch/v1/jobs", "sea", "once", finished).await;
    let complete = |w: &Value| {
        is(manifest(w, 0), "Complete", "True") && is(&w["status"]["conditions"], "Complete", "True")
    };
    let report = w.reported("reef", "complete", complete).await;
    let of_work = condition(&report["status"]["conditions"], "Complete").expect("one");
    assert_eq!(
        (&of_work["reason"], &of_work["message"]),
        (&json!("ConditionRulesAggregated"), &json!("Job is finished"))
    );
    w.edit("reef", spec(&[map("late", "1")])).await;
    // Another work shows that the agent has seen the edit and continued.
    w.work("other", holding(&[map("b", "1")])).await;
    w.settled("other").await;
    assert!(w.cluster.get(MAPS, "sea", "late").await.is_none());
    w.hub.delete(WORKS, CLUSTER, "reef").await;
    w.hub.until_gone(WORKS, CLUSTER, "reef").await;
    assert!(w.cluster.get("batch/v1/jobs", "sea", "once").await.is_none(), "frozen, but still removed");
    agent.end().await;
    w.end().await;
}

/// OCM-A-61; OCM-091: conditions follow their rules and objects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_091_conditions_by_rules() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let rule = |type_: &str, expression: &str| json!({"type": "CEL", "condition": type_, "celExpressions": [expression]});
    let mut spec = holding(&[map("a", "1"), map("b", "1")]);
    let config = |name: &str, rules: Value| json!({"resourceIdentifier": {"resource": "configmaps", "namespace": "sea", "name": name}, "conditionRules": rules});
    let ready = "'lit' in object.data && object.data.lit == 'yes'";
    spec["manifestConfigs"] = json!([
        config("a", json!([rule("Ready", ready), rule("Odd", "object.data.")])),
        config("b", json!([rule("Ready", "has(object.data.a)")]))
    ]);
    // `a` is only created: its content is left to the cluster.
    spec["manifestConfigs"][0]["updateStrategy"] = json!({"type": "CreateOnly"});
    w.work("reef", spec.clone()).await;
    let first = w.reported("reef", "evaluated", |w| is(manifest(w, 0), "Ready", "False")).await;
    assert_eq!(condition(manifest(&first, 0), "Ready").expect("one")["message"], "Manifest is not Ready");
    assert_eq!(condition(manifest(&first, 0), "Odd").expect("one")["reason"], "ConditionRuleExpressionError");
    let of_work = condition(&first["status"]["conditions"], "Ready").expect("one");
    assert_eq!(
        (&of_work["status"], &of_work["message"]),
        (&json!("False"), &json!("Aggregated from 2 manifest conditions"))
    );
    w.cluster.merge(MAPS, "sea", "a", json!({"data": {"lit": "yes"}})).await;
    w.reported("reef", "ready", |w| is(&w["status"]["conditions"], "Ready", "True")).await;
    // A removed rule removes its condition, at both levels.
    spec["manifestConfigs"][0]["conditionRules"] = json!([rule("Ready", ready)]);
    w.edit("reef", spec).await;
    let gone = |w: &Value| {
        condition(manifest(w, 0), "Odd").is_none() && condition(&w["status"]["conditions"], "Odd").is_none()
    };
    let pruned = w.reported("reef", "pruned", gone).await;
    assert!(is(manifest(&pruned, 0), "Ready", "True"));
    agent.end().await;
    w.end().await;
}

/// OCM-092: a complete manifest is not created again while the rest of its work is processed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_092_a_complete_manifest_is_left_alone() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let mut spec = holding(&[map("done", "1"), map("going", "1"), map("c", "1")]);
    let config = |name: &str, wanted: &str| {
        json!({"resourceIdentifier": {"resource": "configmaps", "namespace": "sea", "name": name}, "conditionRules": [
            {"type": "CEL", "condition": "Complete", "celExpressions": [format!("object.data.a == '{wanted}'")]}]})
    };
    spec["manifestConfigs"] = json!([config("done", "1"), config("going", "never")]);
    w.work("reef", spec.clone()).await;
    let complete = |w: &Value| {
        is(manifest(w, 0), "Complete", "True") && is(&w["status"]["conditions"], "Complete", "False")
    };
    w.reported("reef", "one is complete", complete).await;
    w.cluster.delete(MAPS, "sea", "done").await;
    w.reported("reef", "it is missed", |w| is(manifest(w, 0), "Available", "False")).await;
    spec["workload"]["manifests"][2]["data"]["a"] = json!("2");
    w.edit("reef", spec).await;
    w.cluster.until(MAPS, "sea", "c", "the others go on", |m| (m?["data"]["a"] == "2").then_some(())).await;
    w.reported("reef", "still complete", complete).await;
    assert!(w.cluster.get(MAPS, "sea", "done").await.is_none());
    agent.end().await;
    w.end().await;
}
