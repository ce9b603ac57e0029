//! Works that are applied with the permissions of a service account.

use std::time::Duration;

use kubestellar_ocm_agent::work_agent::Config;
use serde_json::{Value, json};

use crate::world::*;

const ROLES: &str = "rbac.authorization.k8s.io/v1/roles";
const BINDINGS: &str = "rbac.authorization.k8s.io/v1/rolebindings";

fn acting(mut spec: Value) -> Value {
    spec["executor"] = json!({"subject": {"type": "ServiceAccount", "serviceAccount": {"namespace": "sea", "name": "mate"}}});
    spec
}

fn role(name: &str, rules: Value) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": name, "namespace": "sea"}, "rules": rules})
}

fn rule(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
}

/// Gives the service account these permissions and no others.
async fn grant(w: &World, rules: Value) {
    let _: Value = w
        .cluster
        .0
        .apply(&gvr(ROLES), "sea", "mate", &role("mate", rules), "test", true)
        .await
        .expect("a role");
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "mate", "namespace": "sea"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "mate"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "sea", "name": "mate"}]});
    let _: Value =
        w.cluster.0.apply(&gvr(BINDINGS), "sea", "mate", &binding, "test", true).await.expect("a binding");
}

const ALL_BUT_DELETE: [&str; 4] = ["create", "update", "patch", "get"];
const ALL: [&str; 5] = ["create", "update", "patch", "get", "delete"];

fn hasty() -> Config {
    Config { executor_retry: Duration::from_secs(1), ..World::config() }
}

/// OCM-A-59; OCM-076, OCM-086: what the executor may not do is not done, reported, and retried; other
/// manifests are applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_086_an_executor_without_rights() {
    let w = World::start().await;
    let agent = w.agent(hasty()).await;
    w.work("reef", acting(holding(&[map("a", "1")]))).await;
    w.work("other", holding(&[map("b", "1")])).await;
    let denied = w.reported("reef", "denied", |w| is(manifest(w, 0), "Applied", "False")).await;
    assert_eq!(
        failure(&denied, 0),
        "Failed to apply manifest: not allowed to apply the resource  configmaps, sea a, will try again in 1s"
    );
    w.settled("other").await;
    assert!(w.cluster.get(MAPS, "sea", "a").await.is_none());
    grant(&w, json!([rule("", "configmaps", &ALL)])).await;
    w.settled("reef").await;
    w.cluster.until_there(MAPS, "sea", "a").await;
    agent.end().await;
    w.end().await;
}

/// OCM-A-59; OCM-086: the executor must be able to delete what the work owns, but not what it orphans.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_086_the_right_to_delete() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    grant(&w, json!([rule("", "configmaps", &ALL_BUT_DELETE)])).await;
    w.work("reef", acting(holding(&[map("a", "1")]))).await;
    let denied = w.reported("reef", "denied", |w| is(manifest(w, 0), "Applied", "False")).await;
    assert!(failure(&denied, 0).ends_with("sea a, will try again in 1m0s"), "{}", failure(&denied, 0));
    let mut orphan = acting(holding(&[map("a", "1")]));
    orphan["deleteOption"] = json!({"propagationPolicy": "Orphan"});
    w.edit("reef", orphan).await;
    w.settled("reef").await;
    agent.end().await;
    w.end().await;
}

/// OCM-A-59; OCM-086: an executor cannot gain permissions through roles that it may write but not grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_086_escalation_is_refused() {
    let w = World::start().await;
    let agent = w.agent(hasty()).await;
    let roles = rule("rbac.authorization.k8s.io", "roles", &ALL);
    grant(&w, json!([roles, rule("", "configmaps", &ALL)])).await;
    let within = role("within", json!([rule("", "configmaps", &["get"])]));
    let beyond = role("beyond", json!([rule("", "secrets", &["get"])]));
    w.work("reef", acting(holding(&[within, beyond]))).await;
    let report = w.reported("reef", "one is refused", |w| is(manifest(w, 1), "Applied", "False")).await;
    assert!(is(manifest(&report, 0), "Applied", "True"), "{report:#}");
    assert_eq!(
        failure(&report, 1),
        "Failed to apply manifest: not allowed to apply the resource rbac.authorization.k8s.io roles, sea beyond, \
         error: permission escalation, will try again in 1s"
    );
    assert!(w.cluster.get(ROLES, "sea", "beyond").await.is_none());
    agent.end().await;
    w.end().await;
}

/// OCM-086: a change of a work asks again whether the executor may apply the manifests that did not change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_086_revoked_rights_are_noticed_for_unchanged_manifests() {
    let w = World::start().await;
    let agent = w.agent(hasty()).await;
    grant(&w, json!([rule("", "configmaps", &ALL)])).await;
    w.work("reef", acting(holding(&[map("a", "1")]))).await;
    w.settled("reef").await;
    grant(&w, json!([])).await;
    w.edit("reef", acting(holding(&[map("a", "1"), map("b", "1")]))).await;
    let denied = w.reported("reef", "denied", |w| is(manifest(w, 1), "Applied", "False")).await;
    assert!(is(manifest(&denied, 0), "Applied", "False"), "{denied:#}");
    assert!(is(manifest(&denied, 0), "Available", "True"), "what was applied stays: {denied:#}");
    grant(&w, json!([rule("", "configmaps", &ALL)])).await;
    w.settled("reef").await;
    agent.end().await;
    w.end().await;
}

/// OCM-086, OCM-075: a work may bring the rights of its executor along, in any order, without a retry a minute later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_086_a_work_that_brings_the_rights_of_its_executor() {
    let w = World::start().await;
    let agent = w.agent(Config { executor_retry: Duration::from_secs(3600), ..World::config() }).await;
    let (roles, bindings) = (
        rule(
            "rbac.authorization.k8s.io",
            "roles",
            &["create", "update", "patch", "get", "delete", "escalate", "bind"],
        ),
        rule("rbac.authorization.k8s.io", "rolebindings", &ALL),
    );
    grant(&w, json!([roles, bindings])).await;
    let sailor = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "sailor", "namespace": "sea"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "sailor"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "sea", "name": "mate"}]});
    let manifests = [map("a", "1"), sailor, role("sailor", json!([rule("", "configmaps", &ALL)]))];
    w.work("reef", acting(holding(&manifests))).await;
    w.settled("reef").await;
    agent.end().await;
    w.end().await;
}

fn secret() -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chest", "namespace": "sea"},
        "data": {"gold": "aGlkZGVu"}})
}

/// A work that reads the Secret, by feedback and by the message of a condition.
fn spying() -> Value {
    let options = json!({"updateStrategy": {"type": "ReadOnly"},
        "feedbackRules": [{"type": "JSONPaths", "jsonPaths": [{"name": "gold", "path": ".data.gold"}]}],
        "conditionRules": [{"type": "CEL", "condition": "Rich", "celExpressions": ["has(object.data.gold)"],
            "messageExpression": "object.data.gold"}]});
    acting(configured(&[secret()], "secrets", "chest", options))
}

/// OCM-086, OCM-090, OCM-091: a work learns nothing of an object that its executor may not `get`; once it may, it does.
///
/// CVE-2026-41050: Fleet's agent looked objects up with its own rights for tenants without them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_086_cve_2026_41050_feedback_is_no_way_around_missing_rights() {
    let w = World::start().await;
    w.cluster.create("v1/secrets", "sea", secret()).await;
    let agent = w.agent(hasty()).await;
    w.work("reef", spying()).await;
    let seen = w.reported("reef", "withheld", |w| is(manifest(w, 0), "StatusFeedbackSynced", "False")).await;
    assert!(!seen["status"].to_string().contains("aGlkZGVu"), "{seen:#}");
    assert!(
        is(manifest(&seen, 0), "Available", "True") && is(manifest(&seen, 0), "Rich", "Unknown"),
        "{seen:#}"
    );
    let why = condition(manifest(&seen, 0), "StatusFeedbackSynced").expect("a condition")["message"].clone();
    assert_eq!(
        why,
        "Sync status feedback failed with error the executor sea/mate may not get secrets sea/chest"
    );
    grant(&w, json!([rule("", "secrets", &["get"])])).await;
    let read = w.reported("reef", "read", |w| is(manifest(w, 0), "StatusFeedbackSynced", "True")).await;
    let message = condition(manifest(&read, 0), "Rich").expect("a condition")["message"].clone();
    assert_eq!(message, "aGlkZGVu", "{read:#}");
    // The right is asked for again whenever the object is read.
    grant(&w, json!([])).await;
    w.cluster.merge("v1/secrets", "sea", "chest", json!({"data": {"gold": "bW9yZQ=="}})).await;
    let after = w.reported("reef", "withheld", |w| is(manifest(w, 0), "StatusFeedbackSynced", "False")).await;
    assert!(!after["status"].to_string().contains("aGlkZGVu"), "{after:#}");
    assert!(!after["status"].to_string().contains("bW9yZQ"), "{after:#}");
    agent.end().await;
    w.end().await;
}

/// OCM-090: `--unchecked-feedback` reports as OCM's agent does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_090_feedback_without_a_check_on_request() {
    let w = World::start().await;
    w.cluster.create("v1/secrets", "sea", secret()).await;
    let agent = w.agent(Config { unchecked_feedback: true, ..hasty() }).await;
    w.work("reef", spying()).await;
    let seen = w.reported("reef", "read", |w| is(manifest(w, 0), "StatusFeedbackSynced", "True")).await;
    assert!(seen["status"].to_string().contains("aGlkZGVu"), "{seen:#}");
    agent.end().await;
    w.end().await;
}
