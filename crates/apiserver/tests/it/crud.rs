//! Create, read, update, patch, apply, delete over [`kubestellar_apiserver::server::ApiServer::call`].

use crate::common::{CM, TestServer, cm};
use serde_json::json;

/// AS-003, AS-019, AS-031: headers of the answer, metadata of the object, 409 for the second.
#[tokio::test]
async fn as_a_026_create_fills_metadata_and_as_a_027_refuses_a_second() {
    let s = TestServer::start().await;
    let created = s.post(CM, cm("a", json!({"x": "1"}))).await.expect(201);
    let metadata = &created.body["metadata"];
    assert_eq!(metadata["namespace"], "t");
    assert_eq!(metadata["uid"].as_str().map(str::len), Some(36));
    assert!(created.rv() > 0);
    assert!(metadata["creationTimestamp"].as_str().is_some_and(|t| t.ends_with('Z')));
    assert_eq!(created.header("cache-control"), "no-cache, private");
    assert_eq!(created.header("audit-id").len(), 36);
    let again = s.post(CM, cm("a", json!({}))).await.expect(409);
    assert_eq!(again.message(), "configmaps \"a\" already exists");
    assert_eq!(again.body["details"], json!({"name": "a", "kind": "configmaps"}));
    let read = s.get(&format!("{CM}/a")).await.expect(200);
    assert_eq!(read.body, created.body);
    assert!(read.text.starts_with(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"#), "{}", read.text);
}

/// AS-019: `generateName`.
#[tokio::test]
async fn as_a_028_names_are_generated() {
    let s = TestServer::start().await;
    let made = s.post(CM, json!({"metadata": {"generateName": "gen-"}})).await.expect(201);
    let name = made.body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let suffix = name.strip_prefix("gen-").unwrap_or_default();
    assert!(suffix.len() == 5 && suffix.chars().all(|c| "bcdfghjklmnpqrstvwxz2456789".contains(c)), "{name}");
    let long = s.post(CM, json!({"metadata": {"generateName": "x".repeat(71)}})).await.expect(201);
    assert_eq!(long.body["metadata"]["name"].as_str().map(str::len), Some(63));
}

/// AS-002, AS-019, AS-031: creates that are refused, and metadata that is not taken from the client.
#[tokio::test]
async fn as_a_029_to_034_bad_creates_are_refused() {
    let s = TestServer::start().await;
    let nameless = s.post(CM, json!({"data": {}})).await.expect(422);
    assert_eq!(
        nameless.message(),
        "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required"
    );
    let other = s.post(CM, json!({"metadata": {"name": "a", "namespace": "other"}})).await.expect(400);
    assert_eq!(
        other.message(),
        "the namespace of the provided object does not match the namespace sent on the request"
    );
    let versioned = s.post(CM, json!({"metadata": {"name": "a", "resourceVersion": "1"}})).await.expect(500);
    assert_eq!(versioned.message(), "resourceVersion should not be set on objects to be created");
    assert_eq!(versioned.body.get("reason"), None);
    let nowhere = s.post("/api/v1/namespaces/zzz/configmaps", cm("a", json!({}))).await.expect(404);
    assert_eq!(nowhere.message(), "namespaces \"zzz\" not found");
    let mine = json!({"metadata": {"name": "b", "uid": "u", "creationTimestamp": "2001-01-01T00:00:00Z",
        "deletionTimestamp": "2001-01-01T00:00:00Z", "selfLink": "/x"}});
    let made = s.post(CM, mine).await.expect(201);
    let metadata = &made.body["metadata"];
    assert!(metadata["uid"] != "u" && metadata["creationTimestamp"] != "2001-01-01T00:00:00Z");
    assert!(metadata.get("deletionTimestamp").is_none() && metadata.get("selfLink").is_none());
}

/// AS-002: texts of decoding errors.
#[tokio::test]
async fn as_a_035_to_037_bodies_that_cannot_be_decoded() {
    let s = TestServer::start().await;
    let json = [("content-type", "application/json")];
    let broken = s.send("POST", CM, &json, "{\"metadata\":").await.expect(400);
    assert_eq!(
        broken.message(),
        "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: \
         unexpected end of JSON input ({\"metadata\":)"
    );
    let empty = s.send("POST", CM, &json, "").await.expect(400);
    assert!(empty.message().ends_with("(<empty>)"), "{}", empty.message());
    let secret = s
        .post(CM, json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}))
        .await
        .expect(400);
    assert_eq!(
        secret.message(),
        "Secret in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion"
    );
    let number = s.post(CM, cm("a", json!({"x": 5}))).await.expect(400);
    assert!(
        number
            .message()
            .contains("cannot unmarshal number into Go struct field ConfigMap.data of type string")
    );
    let text = s.send("POST", CM, &[("content-type", "text/plain")], "{}").await.expect(415);
    assert!(text.message().starts_with("the body of the request was in an unknown format"));
    let bare = s.send("POST", CM, &[], r#"{"metadata":{"name":"bare"}}"#).await;
    assert_eq!(bare.status, 201, "as_a_019");
}

/// AS-038: 413.
#[tokio::test]
async fn as_a_023_large_bodies_are_refused() {
    let s = TestServer::start().await;
    let answer = s.post(CM, cm("a", json!({"x": "x".repeat(3_300_000)}))).await.expect(413);
    assert_eq!(answer.message(), "Request entity too large: limit is 3145728");
}

/// AS-001: 404, 405 and 406 before any handler.
#[tokio::test]
async fn as_a_010_and_015_routing_errors() {
    let s = TestServer::start().await;
    let plain = s.get("/apis/nope/v1/foos").await.expect(404);
    assert_eq!(plain.text, "404 page not found\n");
    let status = s.get("/api/v1/foos").await.expect(404);
    assert_eq!(status.message(), "the server could not find the requested resource");
    assert_eq!(status.body["details"], json!({}));
    for (method, path) in [
        ("PUT", "/api/v1/namespaces"),
        ("POST", "/api/v1/configmaps"),
        ("HEAD", CM),
        ("DELETE", "/api/v1/namespaces"),
        ("PATCH", CM),
    ] {
        let answer = s.send(method, path, &[], "").await.expect(405);
        assert_eq!(answer.message(), "the server does not allow this method on the requested resource");
    }
    let dots = s.get(&format!("{CM}/%2e%2e")).await.expect(400);
    assert_eq!(dots.message(), "Name parameter invalid: \"..\": may not be '..'");
    s.get(&format!("{CM}/a%2fb")).await.expect(404);
    let html = s.send("GET", CM, &[("accept", "text/html")], "").await.expect(406);
    assert!(html.message().contains("Available representations"));
}

/// AS-003, AS-028, AS-029: indented and compact, YAML, PartialObjectMetadata.
#[tokio::test]
async fn as_a_020_and_021_representations() {
    let s = TestServer::start().await;
    s.post(CM, cm("a", json!({"x": "<&>"}))).await.expect(201);
    let path = format!("{CM}/a");
    let curl = s.send("GET", &path, &[("user-agent", "curl/8")], "").await;
    assert!(curl.text.contains("\n  \"kind\": \"ConfigMap\""), "{}", curl.text);
    let compact = s.get(&path).await;
    assert!(!compact.text.contains('\n') && compact.text.contains(r"\u003c\u0026\u003e"));
    assert!(s.get(&format!("{path}?pretty=true")).await.text.contains('\n'));
    let yaml = s.send("GET", &path, &[("accept", "application/yaml")], "").await.expect(200);
    assert!(yaml.text.starts_with("apiVersion: v1\n"), "{}", yaml.text);
    let partial = [("accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")];
    let metadata = s.send("GET", &path, &partial, "").await.expect(200);
    assert_eq!(metadata.body["kind"], "PartialObjectMetadata");
    assert_eq!(metadata.body["metadata"], compact.body["metadata"]);
    assert_eq!(metadata.body.get("data"), None);
}

/// AS-015, AS-020, AS-031: PUT: optimistic concurrency, writes that change nothing, create on update.
#[tokio::test]
async fn as_a_049_to_054_put() {
    let s = TestServer::start().await;
    let path = format!("{CM}/a");
    s.put(&path, cm("a", json!({}))).await.expect(404);
    let created = s.post(CM, cm("a", json!({"x": "1"}))).await.expect(201);
    let updated = s.put(&path, cm("a", json!({"x": "2"}))).await.expect(200);
    assert!(updated.rv() > created.rv());
    assert_eq!(updated.body["metadata"]["uid"], created.body["metadata"]["uid"]);
    let mut stale = created.body.clone();
    stale["data"]["x"] = "3".into();
    let conflict = s.put(&path, stale).await.expect(409);
    assert_eq!(
        conflict.message(),
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to \
         the latest version and try again"
    );
    let same = s.put(&path, updated.body.clone()).await.expect(200);
    assert_eq!(same.rv(), updated.rv(), "a write that changes nothing keeps the version");
    let other = s.put(&path, cm("b", json!({}))).await.expect(400);
    assert_eq!(other.message(), "the name of the object (b) does not match the name on the URL (a)");
    let nameless = s.put(&path, json!({"metadata": {}})).await.expect(400);
    assert!(nameless.message().contains("undeterminable"));
    let uid = s.put(&path, json!({"metadata": {"name": "a", "uid": "x"}})).await.expect(409);
    assert!(uid.message().contains("Precondition failed: UID in precondition: x"));
    let word = s.put(&path, json!({"metadata": {"name": "a", "resourceVersion": "xx"}})).await.expect(500);
    assert_eq!(word.message(), "strconv.ParseUint: parsing \"xx\": invalid syntax");
    let lease = "/apis/coordination.k8s.io/v1/namespaces/t/leases/l";
    s.put(lease, json!({"metadata": {"name": "l"}})).await.expect(201);
    let unversioned = s.put(lease, json!({"metadata": {"name": "l"}})).await.expect(422);
    assert!(
        unversioned
            .message()
            .ends_with("metadata.resourceVersion: Invalid value: 0: must be specified for an update")
    );
}

/// AS-032: JSON patch and merge patch.
#[tokio::test]
async fn as_a_055_to_060_and_065_patches() {
    let s = TestServer::start().await;
    let path = format!("{CM}/a");
    s.patch("merge", &path, json!({})).await.expect(404);
    let created = s.post(CM, cm("a", json!({"x": "1", "y": "2"}))).await.expect(201);
    let merged = s.patch("merge", &path, json!({"data": {"x": null, "z": "3"}})).await.expect(200);
    assert_eq!(merged.body["data"], json!({"y": "2", "z": "3"}));
    let failing = json!([{"op": "test", "path": "/data/y", "value": "9"}]);
    let failed = s.patch("json", &path, failing).await.expect(422);
    assert_eq!(failed.message(), "the server rejected our request due to an error in our request");
    let object = s.patch("json", &path, json!({})).await.expect(400);
    assert!(object.message().starts_with("error decoding patch: json: cannot unmarshal object"));
    let add = json!([{"op": "add", "path": "/data/n", "value": "1"}]);
    assert_eq!(s.patch("json", &path, add).await.expect(200).body["data"]["n"], "1");
    let many: Vec<_> =
        (0..10_001).map(|_| json!({"op": "test", "path": "/kind", "value": "ConfigMap"})).collect();
    let many = s.patch("json", &path, json!(many)).await.expect(413);
    assert!(many.message().contains("The allowed maximum operations in a JSON patch is 10000, got 10001"));
    let stale = json!({"metadata": {"resourceVersion": created.rv().to_string()}, "data": {"q": "1"}});
    s.patch("merge", &path, stale).await.expect(409);
    s.patch("merge", &path, json!({"metadata": {"name": "b"}})).await.expect(400);
    s.patch("merge", &path, json!({"metadata": {"namespace": "b"}})).await.expect(400);
    s.patch("merge", &path, json!({"metadata": {"uid": "b"}})).await.expect(422);
    let kind = s.send("PATCH", &path, &[("content-type", "application/json")], "{}").await.expect(415);
    assert_eq!(kind.message(), "415: Unsupported Media Type");
    let wrong = s.patch("merge", &path, json!({"data": {"a": 1}})).await.expect(422);
    assert!(wrong.message().starts_with(" \"\" is invalid: patch: Invalid value: "), "{}", wrong.message());
}

/// AS-032: a patch is retried after a conflict.
#[tokio::test]
async fn as_a_067_concurrent_patches_all_win() {
    let s = TestServer::start().await;
    s.post(CM, cm("a", json!({}))).await.expect(201);
    let path = format!("{CM}/a");
    let patches = (0..5).map(|n| s.patch("merge", &path, json!({"data": {format!("k{n}"): "v"}})));
    for answer in futures::future::join_all(patches).await {
        answer.expect(200);
    }
    let data = s.get(&path).await.body["data"].as_object().map(serde_json::Map::len);
    assert_eq!(data, Some(5));
}

/// AS-037: warnings, 400 and 422 for fields that are unknown or there twice.
#[tokio::test]
async fn as_a_068_to_071_field_validation() {
    let s = TestServer::start().await;
    let body = r#"{"metadata":{"name":"a"},"data":{"a":"1","a":"2"},"x":1}"#;
    let json = [("content-type", "application/json")];
    let strict = s.send("POST", &format!("{CM}?fieldValidation=Strict"), &json, body).await.expect(400);
    assert_eq!(
        strict.message(),
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: duplicate field \"data.a\", unknown field \"x\""
    );
    let warned = s.send("POST", CM, &json, body).await.expect(201);
    let expected = vec![r#"299 - "duplicate field \"data.a\"""#, r#"299 - "unknown field \"x\"""#];
    assert_eq!(warned.warnings(), expected);
    assert_eq!(warned.body["data"]["a"], "2");
    let path = format!("{CM}/a?fieldValidation=Strict");
    let patch = s.patch("merge", &path, json!({"x": 1})).await.expect(422);
    assert!(patch.message().ends_with("strict decoding error: unknown field \"x\""));
    assert_eq!(patch.body["details"]["causes"][0]["field"], "patch");
    let foo = s.post(&format!("{CM}?fieldValidation=Foo"), cm("b", json!({}))).await.expect(422);
    assert!(foo.message().ends_with(r#"supported values: "", "Ignore", "Strict", "Warn""#));
}

/// AS-073: requests of every verb for a deprecated kind are answered with its warning, once.
#[tokio::test]
async fn as_073_deprecated_kinds_warn_on_every_verb() {
    let s = TestServer::start().await;
    let all = "/api/v1/namespaces/t/endpoints";
    let one = &format!("{all}/e");
    let expected = [r#"299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice""#];
    let body = json!({"metadata": {"name": "e"}});
    assert_eq!(s.post(all, body).await.expect(201).warnings(), expected);
    assert_eq!(s.get(one).await.expect(200).warnings(), expected);
    assert_eq!(s.get(all).await.expect(200).warnings(), expected);
    assert_eq!(s.patch("merge", one, json!({"subsets": []})).await.expect(200).warnings(), expected);
    assert_eq!(s.delete(one).await.expect(200).warnings(), expected);
    assert_eq!(s.delete(one).await.expect(404).warnings(), expected);
    let statuses = s.get("/api/v1/componentstatuses").await;
    assert_eq!(statuses.warnings(), [r#"299 - "v1 ComponentStatus is deprecated in v1.19+""#]);
}

/// AS-036: create, patch and delete.
#[tokio::test]
async fn as_a_072_dry_run_stores_nothing() {
    let s = TestServer::start().await;
    let shown = s.post(&format!("{CM}?dryRun=All"), cm("a", json!({}))).await.expect(201);
    assert_eq!(shown.body["metadata"].get("resourceVersion"), None);
    assert!(shown.body["metadata"]["uid"].is_string());
    s.get(&format!("{CM}/a")).await.expect(404);
    let bad = s.post(&format!("{CM}?dryRun=Foo"), cm("a", json!({}))).await.expect(422);
    assert_eq!(
        bad.message(),
        "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"Foo\"]: supported values: \"All\""
    );
    let live = s.post(CM, cm("a", json!({"x": "1"}))).await.expect(201);
    let path = format!("{CM}/a?dryRun=All");
    let patched = s.patch("merge", &path, json!({"data": {"x": "2"}})).await.expect(200);
    assert_eq!(patched.body["data"]["x"], "2");
    s.delete(&path).await.expect(200);
    assert_eq!(s.get(&format!("{CM}/a")).await.body, live.body);
}

/// AS-034, AS-035: owners of a create; apply, conflict, force, removal, refusals.
#[tokio::test]
async fn as_a_074_to_085_field_ownership_and_apply() {
    let s = TestServer::start().await;
    let made = s.post(CM, cm("u", json!({"x": "1"}))).await.expect(201);
    let entry = &made.body["metadata"]["managedFields"][0];
    assert_eq!((&entry["manager"], &entry["operation"]), (&json!("tester"), &json!("Update")));
    let path = format!("{CM}/a");
    let applied = |data| cm("a", data);
    let nobody = s.patch("apply", &path, applied(json!({"x": "1"}))).await.expect(422);
    assert!(nobody.message().contains("fieldManager: Required value: is required for apply patch"));
    let one = format!("{path}?fieldManager=one");
    let created = s.patch("apply", &one, applied(json!({"x": "1"}))).await.expect(201);
    assert_eq!(created.body["metadata"]["managedFields"][0]["operation"], "Apply");
    let again = s.patch("apply", &one, applied(json!({"x": "1"}))).await.expect(200);
    assert_eq!(again.rv(), created.rv(), "as_a_081");
    let two = format!("{path}?fieldManager=two");
    let conflict = s.patch("apply", &two, applied(json!({"x": "2"}))).await.expect(409);
    assert_eq!(conflict.message(), "Apply failed with 1 conflict: conflict with \"one\": .data.x");
    let cause = &conflict.body["details"]["causes"][0];
    assert_eq!((&cause["reason"], &cause["field"]), (&json!("FieldManagerConflict"), &json!(".data.x")));
    let forced = s.patch("apply", &format!("{two}&force=true"), applied(json!({"x": "2"}))).await.expect(200);
    assert_eq!(forced.body["data"]["x"], "2");
    let fewer = s.patch("apply", &two, json!({"apiVersion": "v1", "kind": "ConfigMap"})).await.expect(200);
    assert_eq!(fewer.body.get("data"), None, "as_a_080: {}", fewer.text);
    let kind = json!({"apiVersion": "v1", "kind": "Secret"});
    let kind = s.patch("apply", &one, kind).await.expect(400);
    assert_eq!(kind.message(), "invalid object type: /v1, Kind=Secret");
    let managed = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"managedFields": [{}]}});
    let managed = s.patch("apply", &one, managed).await.expect(400);
    assert_eq!(managed.message(), "metadata.managedFields must be nil");
    let unknown = json!({"apiVersion": "v1", "kind": "ConfigMap", "foo": 1});
    let unknown = s.patch("apply", &one, unknown).await.expect(500);
    assert!(unknown.message().ends_with(".foo: field not declared in schema"), "{}", unknown.message());
    let uid = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n", "uid": "123"}});
    let uid = s.patch("apply", &format!("{CM}/n?fieldManager=one"), uid).await.expect(409);
    assert!(uid.message().contains("uid mismatch: the provided object specified uid 123"));
    let force = s.patch("merge", &format!("{CM}/u?force=true"), json!({})).await.expect(422);
    assert!(force.message().ends_with("force: Forbidden: may not be specified for non-apply patch"));
}

/// AS-021: preconditions, propagation policies, finalizers.
#[tokio::test]
async fn as_a_120_to_123_deletion() {
    let s = TestServer::start().await;
    let made = s.post(CM, cm("a", json!({}))).await.expect(201);
    let path = format!("{CM}/a");
    let uid = &made.body["metadata"]["uid"];
    let wrong =
        s.send("DELETE", &path, &[], json!({"preconditions": {"uid": "123"}}).to_string()).await.expect(409);
    assert!(
        wrong.message().starts_with(
            "Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition (123)"
        )
    );
    let bad = s.delete(&format!("{path}?propagationPolicy=Foo")).await.expect(422);
    assert_eq!(
        bad.message(),
        "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"Foo\": supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
    );
    let both =
        s.delete(&format!("{path}?propagationPolicy=Background&orphanDependents=true")).await.expect(422);
    assert!(both.message().ends_with("orphanDependents and deletionPropagation cannot be both set"));
    let gone = s.delete(&path).await.expect(200);
    assert_eq!(gone.body["status"], "Success");
    assert_eq!(gone.body["details"], json!({"name": "a", "kind": "configmaps", "uid": uid}));
    s.delete(&path).await.expect(404);

    let held = json!({"metadata": {"name": "f", "finalizers": ["x.y/z"]}});
    s.post(CM, held).await.expect(201);
    let path = format!("{CM}/f");
    let marked = s.delete(&path).await.expect(200);
    assert_eq!(marked.body["metadata"]["deletionGracePeriodSeconds"], 0);
    assert!(marked.body["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(s.delete(&path).await.expect(200).rv(), marked.rv());
    s.delete(&format!("{path}?orphanDependents=false")).await.expect(202);
    let more = s
        .patch("json", &path, json!([{"op": "add", "path": "/metadata/finalizers/-", "value": "n.w/f"}]))
        .await;
    assert!(more.expect(422).message().contains("no new finalizers can be added"));
    let last = s.patch("merge", &path, json!({"metadata": {"finalizers": null}})).await.expect(200);
    assert_eq!(last.body["metadata"].get("finalizers"), None);
    s.get(&path).await.expect(404);

    s.post(CM, cm("o", json!({}))).await.expect(201);
    let path = format!("{CM}/o");
    let foreground = s.delete(&format!("{path}?propagationPolicy=Foreground")).await.expect(200);
    assert_eq!(foreground.body["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    let background = s.delete(&format!("{path}?propagationPolicy=Background")).await.expect(200);
    assert_eq!(background.body["kind"], "Status");
    let kept = s.delete("/api/v1/namespaces/default").await.expect(403);
    assert_eq!(kept.message(), "namespaces \"default\" is forbidden: this namespace may not be deleted");
}

/// AS-021: deletecollection.
#[tokio::test]
async fn as_a_124_collections_are_deleted() {
    let s = TestServer::start().await;
    for (name, label) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
        s.post(CM, json!({"metadata": {"name": name, "labels": {"g": label}}})).await.expect(201);
    }
    let gone = s.delete(&format!("{CM}?labelSelector=g%3Da")).await.expect(200);
    assert_eq!(gone.body["kind"], "ConfigMapList");
    assert_eq!(gone.names(), ["a1", "a2"]);
    assert_eq!(s.get(CM).await.names(), ["b1"]);
    let none = s.delete(&format!("{CM}?fieldSelector=metadata.name%3Dnone")).await.expect(200);
    assert_eq!(none.body["items"], json!([]));
}

/// AS-050: 403 with its cause.
#[tokio::test]
async fn as_a_127_nothing_is_created_in_a_terminating_namespace() {
    let s = TestServer::start().await;
    s.post("/api/v1/namespaces", json!({"metadata": {"name": "n1", "finalizers": ["x.y/z"]}}))
        .await
        .expect(201);
    let marked = s.delete("/api/v1/namespaces/n1").await.expect(200);
    assert!(marked.body["metadata"]["deletionTimestamp"].is_string());
    let refused = s.post("/api/v1/namespaces/n1/configmaps", cm("g", json!({}))).await.expect(403);
    assert_eq!(
        refused.message(),
        "configmaps \"g\" is forbidden: unable to create new content in namespace n1 because it is being terminated"
    );
    assert_eq!(refused.body["details"]["causes"][0]["reason"], "NamespaceTerminating");
}

/// AS-011, AS-034: the scale subresource of a Deployment, and who owns its replicas.
#[tokio::test]
async fn as_a_148_scale_of_a_deployment() {
    let s = TestServer::start().await;
    let path = "/apis/apps/v1/namespaces/t/deployments";
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "s"}},
        "template": {"metadata": {"labels": {"app": "s"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    s.post(path, deployment).await.expect(201);
    let scale_path = format!("{path}/d/scale");
    let scale = s.get(&scale_path).await.expect(200);
    assert_eq!(scale.body["spec"], json!({"replicas": 2}));
    assert_eq!(scale.body["status"], json!({"replicas": 0, "selector": "app=s"}));
    let put =
        s.put(&scale_path, json!({"metadata": {"name": "d"}, "spec": {"replicas": 5}})).await.expect(200);
    assert_eq!((&put.body["kind"], &put.body["spec"]["replicas"]), (&json!("Scale"), &json!(5)));
    let object = s.get(&format!("{path}/d")).await;
    assert_eq!(
        (&object.body["spec"]["replicas"], &object.body["metadata"]["generation"]),
        (&json!(5), &json!(2))
    );
    let entries = object.body["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let scaled: Vec<_> = entries.iter().filter(|e| e["subresource"] == "scale").collect();
    assert_eq!(scaled.len(), 1, "as_a_091: {entries:?}");
    assert_eq!(scaled[0]["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
    assert!(
        entries
            .iter()
            .all(|e| e["subresource"] == "scale" || e["fieldsV1"]["f:spec"].get("f:replicas").is_none())
    );
    let negative = s.patch("merge", &scale_path, json!({"spec": {"replicas": -1}})).await.expect(422);
    assert_eq!(
        negative.message(),
        "Scale.autoscaling \"d\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0"
    );
}

const PODS: &str = "/api/v1/namespaces/t/pods";

/// Creates running pods with these names, and their account.
async fn pods(s: &TestServer, names: &[&str]) {
    let account = json!({"metadata": {"name": "default"}});
    s.post("/api/v1/namespaces/t/serviceaccounts", account).await.expect(201);
    for name in names {
        let pod = json!({"metadata": {"name": name, "labels": {"app": "a"}},
            "spec": {"containers": [{"name": "c", "image": "registry.example/app:1"}]}});
        s.post(PODS, pod).await.expect(201);
        let running = json!({"status": {"phase": "Running"}});
        s.patch("merge", &format!("{PODS}/{name}/status"), running).await.expect(200);
    }
}

/// AS-012: an eviction decrements the budget; an eviction without budget is refused.
#[tokio::test]
async fn as_012_an_eviction_spends_the_budget() {
    let s = TestServer::start().await;
    pods(&s, &["p", "q"]).await;
    let budgets = "/apis/policy/v1/namespaces/t/poddisruptionbudgets";
    let budget = json!({"metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}});
    s.post(budgets, budget).await.expect(201);
    let status = json!({"status": {"disruptionsAllowed": 1, "desiredHealthy": 1, "currentHealthy": 2,
        "expectedPods": 2, "observedGeneration": 1}});
    s.patch("merge", &format!("{budgets}/b/status"), status).await.expect(200);
    let evict = async |name: &str, query: &str| {
        s.post(&format!("{PODS}/{name}/eviction{query}"), json!({"metadata": {"name": name}})).await
    };
    evict("p", "?dryRun=All").await.expect(201);
    let live = s.get(&format!("{budgets}/b")).await.expect(200);
    assert_eq!(live.body["status"]["disruptionsAllowed"], 1, "nothing is spent by a dry run");
    evict("p", "").await.expect(201);
    let live = s.get(&format!("{budgets}/b")).await.expect(200);
    assert_eq!(live.body["status"]["disruptionsAllowed"], 0);
    assert!(live.body["status"]["disruptedPods"]["p"].is_string());
    let refused = evict("q", "").await.expect(429);
    assert_eq!(refused.body["details"]["causes"][0]["reason"], "DisruptionBudget");
    let path = format!("{PODS}/q/eviction");
    let other = s.post(&path, json!({"metadata": {"name": "x"}})).await.expect(400);
    assert_eq!(other.message(), "name in URL does not match name in Eviction object");
    evict("nobody", "").await.expect(404);
    let nobody = s.post(&format!("{PODS}/nobody/eviction"), json!({"metadata": {"name": "x"}})).await;
    nobody.expect(400);
}

/// AS-012: a binding assigns a pod to its node, once, and sets the PodScheduled condition.
#[tokio::test]
async fn as_012_a_binding_schedules_a_pod_once() {
    let s = TestServer::start().await;
    pods(&s, &["p"]).await;
    let path = format!("{PODS}/p/binding");
    let target = json!({"apiVersion": "v1", "kind": "Node", "name": "n1"});
    let binding = |metadata: serde_json::Value| json!({"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target});
    s.post(&path, json!({"metadata": {"name": "p"}, "target": {}})).await.expect(422);
    let uid = s.post(&path, binding(json!({"name": "p", "uid": "other"}))).await.expect(409);
    assert!(uid.message().contains("UID in precondition: other"), "{}", uid.message());
    s.post(&format!("{path}?dryRun=All"), binding(json!({"name": "p"}))).await.expect(201);
    assert_eq!(s.get(&format!("{PODS}/p")).await.body["spec"].get("nodeName"), None);
    let noted = json!({"name": "p", "annotations": {"a": "b"}});
    s.post(&path, binding(noted)).await.expect(201);
    let pod = s.get(&format!("{PODS}/p")).await.expect(200);
    assert_eq!(
        (&pod.body["spec"]["nodeName"], &pod.body["metadata"]["annotations"]["a"]),
        (&json!("n1"), &json!("b"))
    );
    let scheduled = &pod.body["status"]["conditions"][0];
    assert_eq!((&scheduled["type"], &scheduled["status"]), (&json!("PodScheduled"), &json!("True")));
    let again = s.post(&path, binding(json!({"name": "p"}))).await.expect(409);
    assert!(again.message().contains("pod p is already assigned to node \"n1\""), "{}", again.message());
}
