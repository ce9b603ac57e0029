//! What StatusCollectors can learn about Secrets.

use serde_json::{Value, json};

use crate::collected::{collecting, columns, path_of, result, string};
use crate::reporting::fleet;
use crate::scene::{NAMESPACES, Scene};

const SECRETS: &str = "/api/v1/namespaces/n/secrets";
const SECRET: &str = "c2VjcmV0";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Collectors that want the contents of a Secret, and one that wants its name.
fn collectors() -> [(&'static str, Value); 4] {
    let select = |def: &str| json!({"select": [{"name": "a", "def": def}], "limit": 10});
    [
        ("name", select("obj.metadata.name")),
        ("data", select("obj.data.password")),
        ("copy", select(&format!("'{LAST_APPLIED}' in obj.metadata.annotations"))),
        (
            "guess",
            json!({"filter": format!("obj.data.password == '{SECRET}'"),
                "combinedFields": [{"name": "a", "type": "COUNT"}], "limit": 10}),
        ),
    ]
}

/// Publishes what the collectors make of a Secret, by `kubectl apply`.
async fn combined(scene: &Scene, enough: impl Fn(&Value) -> bool) -> Value {
    scene.wds.post(NAMESPACES, json!({"metadata": {"name": "n"}})).await;
    scene.mailboxes().await;
    let names: Vec<&str> = collectors().iter().map(|(name, _)| *name).collect();
    for (name, spec) in collectors() {
        scene.collector(name, spec).await;
    }
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "data": {"password": SECRET}, "metadata": {
        "name": "s", "namespace": "n", "labels": {"app": "tide"},
        "annotations": {LAST_APPLIED: format!("{{\"data\":{{\"password\":\"{SECRET}\"}}}}")}}});
    let secret = scene.wds.post(SECRETS, secret).await;
    let policy = scene.tide(fleet(), collecting(&names)).await;
    scene.wds.until(&path_of(&policy, &secret), enough).await
}

/// KS-176: a user who may write StatusCollectors and policies learns nothing about the content of Secrets, neither by an
/// expression nor by a copy. The answer says why, and how to allow it.
#[tokio::test(flavor = "multi_thread")]
async fn ks_176_collectors_do_not_read_secrets() {
    let mut scene = Scene::without_controllers().await;
    scene.run().await;
    let found = combined(&scene, |it| it["results"].as_array().is_some_and(|all| all.len() == 4)).await;
    assert!(!found.to_string().contains(SECRET), "{found:#}");
    assert_eq!(columns(&found, "name"), [json!([string("s")]), json!([string("s")])]);
    assert_eq!(columns(&found, "copy")[0], json!([{"type": "Bool", "bool": false}]), "{found:#}");
    assert_eq!(columns(&found, "data")[0], json!([{"type": "Null"}]));
    assert_eq!(columns(&found, "guess"), [json!([{"type": "Number", "float": "0"}])], "nobody is counted");
    for (collector, column) in [("data", "a"), ("guess", "")] {
        let error = &result(&found, collector)["rowErrors"][0];
        assert_eq!(error["columnName"].as_str().unwrap_or_default(), column, "{found:#}");
        let text = error["error"].as_str().unwrap();
        assert!(text.contains("Secret") && text.contains("--collectors-read-secrets"), "{text}");
    }
    scene.end().await;
}

/// KS-176: with `--collectors-read-secrets` they do, as in the original.
#[tokio::test(flavor = "multi_thread")]
async fn ks_176_collectors_read_secrets_if_told() {
    let mut scene = Scene::without_controllers().await;
    scene.run_reading_secrets().await;
    let found = combined(&scene, |it| !columns(it, "data").is_empty()).await;
    assert_eq!(columns(&found, "data")[0], json!([string(SECRET)]));
    scene.end().await;
}
