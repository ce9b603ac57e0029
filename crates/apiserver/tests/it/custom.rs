//! Custom resources through the same handler as built-in kinds.

use crate::common::TestServer;
use serde_json::{Value, json};

const WIDGETS: &str = "/apis/ex.com/v1/namespaces/t/widgets";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn definition(status: bool) -> Value {
    let spec = json!({"type": "object", "required": ["color"], "properties": {
        "color": {"type": "string", "enum": ["red", "blue"]},
        "replicas": {"type": "integer", "default": 3, "minimum": 0},
    }});
    let schema = json!({"type": "object", "properties": {
        "spec": spec,
        "status": {"type": "object", "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}}},
    }});
    let subresources = if status {
        json!({"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}})
    } else {
        json!({})
    };
    json!({"metadata": {"name": "widgets.ex.com"}, "spec": {
        "group": "ex.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
            "subresources": subresources, "selectableFields": [{"jsonPath": ".spec.color"}]}],
    }})
}

async fn with_widgets() -> TestServer {
    let s = TestServer::start().await;
    let mut watch = s.watch(&format!("{CRDS}?watch=1")).await;
    s.post(CRDS, definition(true)).await.expect(201);
    loop {
        let event = watch.next().await.expect("an open watch");
        let conditions = event["object"]["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True") {
            break;
        }
    }
    while s.server.catalog().resource("ex.com", "v1", "widgets").is_none() {
        tokio::task::yield_now().await;
    }
    s
}

fn widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "ex.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

/// AS-041, AS-042, AS-043, AS-046: pruned, defaulted, validated, with status and scale, selected by field.
#[tokio::test]
async fn as_a_136_142_and_147_custom_resources_are_served() {
    let s = with_widgets().await;
    let mut body = widget("a", json!({"color": "red", "junk": 1}));
    body["status"] = json!({"phase": "x"});
    let made = s.post(WIDGETS, body.clone()).await.expect(201);
    assert_eq!(made.body["spec"], json!({"color": "red", "replicas": 3}));
    assert_eq!(made.body.get("status"), None);
    assert_eq!(made.body["metadata"]["generation"], 1);
    assert_eq!(made.warnings(), [r#"299 - "unknown field \"spec.junk\"""#]);
    let list = s.get(WIDGETS).await.expect(200);
    assert_eq!(list.body["items"][0]["kind"], "Widget", "items of custom resources name their kind");
    let path = format!("{WIDGETS}/a");
    let change = json!({"status": {"phase": "up"}, "spec": {"color": "blue"}});
    let status = s.patch("merge", &format!("{path}/status"), change).await.expect(200);
    assert_eq!(
        (&status.body["status"]["phase"], &status.body["spec"]["color"]),
        (&json!("up"), &json!("red"))
    );
    assert_eq!(status.body["metadata"]["generation"], 1);
    let changed = s.patch("merge", &path, json!({"spec": {"color": "blue"}})).await.expect(200);
    assert_eq!(changed.body["metadata"]["generation"], 2);
    let unversioned = s.put(&path, widget("a", json!({"color": "red"}))).await.expect(422);
    assert!(unversioned.message().starts_with("widgets.ex.com \"a\" is invalid: metadata.resourceVersion"));
    let invalid = s.post(WIDGETS, widget("b", json!({"color": "green", "replicas": -1}))).await.expect(422);
    assert!(
        invalid
            .message()
            .contains("spec.color: Unsupported value: \"green\": supported values: \"red\", \"blue\"")
    );
    let strategic = s.patch("strategic", &path, json!({})).await.expect(415);
    assert!(strategic.message().contains("application/merge-patch+json"));
    let blue = s.get(&format!("{WIDGETS}?fieldSelector=spec.color%3Dblue")).await.expect(200);
    assert_eq!(blue.names(), ["a"]);
    let unknown = s.get(&format!("{WIDGETS}?fieldSelector=spec.size%3D1")).await.expect(400);
    assert_eq!(unknown.message(), "field label not supported: spec.size");
    let scaled =
        s.patch("merge", &format!("{path}/scale"), json!({"spec": {"replicas": 7}})).await.expect(200);
    assert_eq!(scaled.body["spec"]["replicas"], 7);
    assert_eq!(s.get(&path).await.body["spec"]["replicas"], 7);
    let kind = json!({"apiVersion": "ex.com/v1", "kind": "Gadget", "metadata": {"name": "g"}});
    assert!(
        s.post(WIDGETS, kind)
            .await
            .expect(422)
            .message()
            .ends_with("kind: Invalid value: \"Gadget\": must be Widget")
    );
    let protobuf = [("accept", "application/vnd.kubernetes.protobuf")];
    s.send("GET", &path, &protobuf, "").await.expect(406);
    s.get("/apis/ex.com/v1/gadgets").await.expect(404);
}

/// AS-041: stored objects are defaulted when read.
#[tokio::test]
async fn as_a_142_new_defaults_show_on_old_objects_and_end_watches() {
    let s = with_widgets().await;
    let made = s.post(WIDGETS, widget("a", json!({"color": "red"}))).await.expect(201);
    let mut watch = s.watch(&format!("{WIDGETS}?watch=1&resourceVersion={}", made.rv())).await;
    let before = s.server.catalog().generation;
    let add = json!([{"op": "add", "value": {"type": "string", "default": "m"},
        "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size"}]);
    s.patch("json", &format!("{CRDS}/widgets.ex.com"), add).await.expect(200);
    while s.server.catalog().generation == before {
        tokio::task::yield_now().await;
    }
    let read = s.get(&format!("{WIDGETS}/a")).await.expect(200);
    assert_eq!((&read.body["spec"]["size"], read.rv()), (&json!("m"), made.rv()));
    assert_eq!(s.get(WIDGETS).await.body["items"][0]["spec"]["size"], "m");
    assert_eq!(watch.brief().await, "end");
}
