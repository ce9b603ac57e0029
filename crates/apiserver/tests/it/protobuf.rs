//! Protobuf on the wire, both ways (AS-030).

use crate::common::{CM, TestServer, cm};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use kubestellar_apiserver::codec::protobuf::{self, Envelope};
use kubestellar_apiserver::response::Body;
use serde_json::{Value, json};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const SEND: (&str, &str) = ("content-type", PROTOBUF);
const ONLY: (&str, &str) = ("accept", PROTOBUF);

fn encode(value: &Value) -> Bytes {
    protobuf::encode(value).expect("a built-in kind").into()
}

fn decode(bytes: &[u8]) -> Value {
    Envelope::open(bytes).and_then(|e| e.decode("", "")).expect("a protobuf object")
}

/// Sends a request; returns status, Content-Type and the decoded body.
async fn ask(test: &TestServer, method: &str, path: &str, body: Bytes) -> (u16, String, Value) {
    let response = test.raw(method, path, &[SEND, ONLY], body).await;
    let (parts, body) = response.into_parts();
    let kind = parts.headers["content-type"].to_str().expect("text").to_owned();
    (parts.status.as_u16(), kind, decode(&body.into_bytes().expect("finite")))
}

/// The next event: its type and object.
async fn event(body: &mut Body, buffer: &mut Vec<u8>) -> (String, Value) {
    loop {
        if let Some((length, rest)) = buffer.split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*length) as usize;
            if rest.len() >= length {
                let message: Vec<u8> = buffer.drain(..4 + length).skip(4).collect();
                let size = usize::from(message[1]);
                let kind = String::from_utf8_lossy(&message[2..2 + size]).into_owned();
                let start = message.windows(4).position(|w| w == b"k8s\0").expect("an envelope");
                return (kind, decode(&message[start..]));
            }
        }
        let frame = body.frame().await.expect("a frame").expect("no error");
        buffer.extend_from_slice(frame.data_ref().expect("data"));
    }
}

#[tokio::test]
async fn as_030_built_in_kinds_are_written_in_protobuf() {
    let test = TestServer::start().await;
    let body = encode(&cm("a", json!({"k": "v"})));
    let accept = ("accept", "application/vnd.kubernetes.protobuf,application/json");
    let made = test.send("POST", CM, &[SEND, accept], body).await.expect(201);
    assert_eq!(made.header("content-type"), "application/json");
    assert_eq!(made.body["data"], json!({"k": "v"}));

    let mut object = made.body.clone();
    object["data"]["k"] = "w".into();
    let (status, kind, updated) = ask(&test, "PUT", &format!("{CM}/a"), encode(&object)).await;
    assert_eq!((status, kind.as_str()), (200, PROTOBUF));
    assert_eq!(updated["data"], json!({"k": "w"}));
    assert_eq!(updated["metadata"]["uid"], made.body["metadata"]["uid"]);
}

#[tokio::test]
async fn as_030_protobuf_and_json_store_the_same() {
    let test = TestServer::start().await;
    let fixtures = [
        (include_str!("../../testdata/protobuf/deployment.json"), "/apis/apps/v1/namespaces/t/deployments"),
        (include_str!("../../testdata/protobuf/secret.json"), "/api/v1/namespaces/t/secrets"),
        (
            include_str!("../../testdata/protobuf/lease.json"),
            "/apis/coordination.k8s.io/v1/namespaces/t/leases",
        ),
        (
            include_str!("../../testdata/protobuf/role.json"),
            "/apis/rbac.authorization.k8s.io/v1/namespaces/t/roles",
        ),
        (
            include_str!("../../testdata/protobuf/clusterrole.json"),
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        ),
        (
            include_str!("../../testdata/protobuf/controllerrevision.json"),
            "/apis/apps/v1/namespaces/t/controllerrevisions",
        ),
        (include_str!("../../testdata/protobuf/resourcequota.json"), "/api/v1/namespaces/t/resourcequotas"),
        (
            include_str!("../../testdata/protobuf/validatingwebhookconfiguration.json"),
            "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        ),
        (
            include_str!("../../testdata/protobuf/selfsubjectaccessreview.json"),
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        ),
    ];
    for (text, path) in fixtures {
        let fixture: Value = serde_json::from_str(text).expect("a fixture");
        let mut object = fixture["json"].clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        let bytes = STANDARD.decode(fixture["protobuf"].as_str().expect("bytes")).expect("base64");
        let mut other = decode(&bytes);
        if let Some(metadata) = other["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        let path = format!("{path}?dryRun=All");
        let json = test.post(&path, object).await;
        let proto = test.send("POST", &path, &[SEND], encode(&other)).await;
        let plain = |mut answer: Value| {
            if let Some(metadata) = answer["metadata"].as_object_mut() {
                metadata.retain(|key, _| !matches!(key.as_str(), "uid" | "creationTimestamp"));
                if let Some(entries) = metadata.get_mut("managedFields").and_then(Value::as_array_mut) {
                    for entry in entries {
                        entry["time"] = Value::Null;
                    }
                }
            }
            answer
        };
        assert_eq!(proto.status, json.status, "{path}: {}", proto.text);
        assert_eq!(plain(proto.body), plain(json.body), "{path}");
    }
}

#[tokio::test]
async fn as_030_reads_are_in_protobuf_for_those_who_take_nothing_else() {
    let test = TestServer::start().await;
    test.post(CM, cm("a", json!({"k": "v"}))).await.expect(201);
    test.post(CM, cm("b", json!({}))).await.expect(201);

    let (status, kind, one) = ask(&test, "GET", &format!("{CM}/a"), Bytes::new()).await;
    assert_eq!((status, kind.as_str()), (200, PROTOBUF));
    assert_eq!(one, test.get(&format!("{CM}/a")).await.body);

    let (_, kind, list) = ask(&test, "GET", CM, Bytes::new()).await;
    assert_eq!(kind, PROTOBUF);
    assert_eq!(list, test.get(CM).await.body);

    let (status, kind, missing) = ask(&test, "GET", &format!("{CM}/no"), Bytes::new()).await;
    assert_eq!((status, kind.as_str()), (404, PROTOBUF));
    assert_eq!(missing, test.get(&format!("{CM}/no")).await.body);

    let partial = format!("{PROTOBUF};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
    let response = test.raw("GET", CM, &[("accept", &partial)], "").await;
    let list = decode(&response.into_body().into_bytes().expect("finite"));
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["metadata"]["name"], "a");
    assert_eq!(list["items"][0].get("data"), None);
}

#[tokio::test]
async fn as_030_watches_are_framed() {
    let test = TestServer::start().await;
    test.post(CM, cm("a", json!({"k": "v"}))).await.expect(201);
    let accept = ("accept", "application/vnd.kubernetes.protobuf;stream=watch");
    let response = test.raw("GET", &format!("{CM}?watch=1"), &[accept], "").await;
    assert_eq!(response.headers()["content-type"], "application/vnd.kubernetes.protobuf;stream=watch");
    let (mut body, mut buffer) = (response.into_body(), Vec::new());
    let (kind, object) = event(&mut body, &mut buffer).await;
    assert_eq!((kind.as_str(), &object["metadata"]["name"]), ("ADDED", &json!("a")));
    let deleted =
        encode(&json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Orphan"}));
    let (status, _, answer) = ask(&test, "DELETE", &format!("{CM}/a"), deleted).await;
    assert_eq!(status, 200, "{answer}");
    let (kind, object) = event(&mut body, &mut buffer).await;
    // The message asks for orphaning, which first shows as a finalizer.
    assert_eq!((kind.as_str(), &object["metadata"]["finalizers"]), ("MODIFIED", &json!(["orphan"])));
}

#[tokio::test]
async fn as_030_questions_are_asked_in_protobuf() {
    let test = TestServer::start().await;
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {},
        "spec": {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "t"}},
    });
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let (status, _, answer) = ask(&test, "POST", path, encode(&review)).await;
    assert_eq!((status, &answer["status"]["allowed"]), (201, &json!(true)), "{answer}");
}

#[tokio::test]
async fn as_030_bad_bodies_are_bad_requests() {
    let test = TestServer::start().await;
    let answer = test.send("POST", CM, &[SEND], "{}").await.expect(400);
    assert_eq!(
        answer.message(),
        "the object provided is unrecognized (must be of type ConfigMap): provided data does not appear to be a \
         protobuf message, expected prefix [107 56 115 0] ({})"
    );
    let mut cut = encode(&cm("a", json!({"k": "v"}))).to_vec();
    let at = cut.windows(2).position(|w| w == b"k\x12").expect("the entry");
    cut[at - 1] = 0x7f;
    let answer = test.send("POST", CM, &[SEND], cut).await.expect(400);
    assert_eq!(
        answer.message(),
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: unexpected EOF"
    );
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}});
    let answer = test.send("POST", CM, &[SEND], encode(&secret)).await.expect(400);
    assert!(answer.message().contains("cannot be handled as a ConfigMap"), "{}", answer.text);
}

/// AS-030: 406.
#[tokio::test]
async fn as_a_119_custom_resources_have_no_protobuf() {
    let test = TestServer::start().await;
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    });
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let mut watch = test.watch(&format!("{path}?watch=1")).await;
    let (status, _, made) = ask(&test, "POST", path, encode(&definition)).await;
    assert_eq!(status, 201, "{made}");
    let things = "/apis/example.com/v1/namespaces/t/things";
    while test.get(things).await.status != 200 {
        watch.next().await.expect("a status update");
    }
    let accept = ("accept", "application/vnd.kubernetes.protobuf,application/json");
    let list = test.send("GET", things, &[accept], "").await.expect(200);
    assert_eq!(list.header("content-type"), "application/json");
    let (status, kind, refused) = ask(&test, "GET", things, Bytes::new()).await;
    assert_eq!((status, kind.as_str()), (406, PROTOBUF));
    assert_eq!(refused["reason"], "NotAcceptable");
    test.send("POST", things, &[SEND], "k8s\0").await.expect(415);
}
