use std::sync::Arc;

use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::{content::Original, controller::Config};

/// An API server with one wrapped object; reports the methods of the requests it received.
pub(in crate::controller) struct FakeIts {
    pub(in crate::controller) client: Client,
    pub(in crate::controller) methods: Arc<Mutex<Vec<String>>>,
    _server: AbortOnDropHandle<()>,
}

pub(in crate::controller) async fn its_with(live: Value) -> FakeIts {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let methods = Arc::new(Mutex::new(Vec::new()));
    let seen = methods.clone();
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !complete(&request) {
                match stream.read_buf(&mut request).await {
                    Ok(0) | Err(_) => break,
                    Ok(_) => {}
                }
            }
            let text = String::from_utf8_lossy(&request);
            let method = text.split(' ').next().unwrap_or_default().to_owned();
            let (status, body) = match method.as_str() {
                "POST" | "DELETE" => ("409 Conflict", conflict()),
                _ => ("200 OK", live.clone()),
            };
            seen.lock().push(method);
            let body = body.to_string();
            let answer = format!(
                "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await.ok();
        }
    });
    let uri = format!("http://{address}").parse().expect("a URI");
    let client = Client::try_from(kube::Config::new(uri)).expect("a client");
    FakeIts { client, methods, _server: AbortOnDropHandle::new(server) }
}

fn complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")).unwrap_or("0");
    body.len() >= length.parse().expect("a length")
}

fn conflict() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "AlreadyExists",
        "message": "already exists", "code": 409})
}

fn live(labels: &Value) -> Value {
    json!({"metadata": {"namespace": "wec", "name": "a-b-c-0", "uid": "u1", "resourceVersion": "7", "labels": labels}})
}

fn labels(binding: &str, wds: &str) -> Value {
    json!({"transport.kubestellar.io/originOwnerReferenceBindingKey": binding,
        "transport.kubestellar.io/originWdsName": wds})
}

fn origin(binding: &str, wds: &str) -> Origin {
    Origin { binding: binding.into(), wds: wds.into() }
}

async fn settle(its: &FakeIts, controller: &Controller) -> Outcome {
    let wanted = DesiredEnvelope { items: Arc::default(), fingerprint: [1; 32] };
    let planned =
        PlannedEnvelope { wanted, members: Vec::new(), envelope: OnceLock::new(), contents: OnceLock::new() };
    let shards = PlannedShards::from([("a-b-c-0".to_owned(), planned)]);
    its.methods.lock().clear();
    controller.settle("wec", &origin("a-b", "c"), "1", &shards, &Mailbox::default(), Scope::Everything).await
}

#[tokio::test]
async fn ks_098_an_object_of_another_under_the_wanted_name_is_left_alone_and_reported() {
    let cases = [
        (labels("a", "b-c"), "belongs to Binding a of WDS b-c"),
        (labels("a-b", "other"), "belongs to Binding a-b of WDS other"),
        (json!({}), "belongs to no Binding"),
    ];
    for (labels, owner) in cases {
        let its = its_with(live(&labels)).await;
        let controller = Controller::new(&its.client, &its.client, Config::new("c"));
        let outcome = settle(&its, &controller).await;
        assert_eq!(*its.methods.lock(), ["POST", "GET"], "nothing is written: {labels}");
        assert_eq!(outcome.failure, None);
        assert_eq!(
            controller.clashes("a-b", &[outcome]),
            [format!(
                "ManifestWork wec/a-b-c-0 is in the way: it {owner}; what it was to hold is not delivered"
            )]
        );
        assert!(controller.expected.lock().is_empty());
        assert!(controller.queue.is_empty());
        controller.unblock(&("wec".into(), "a-b-c-0".into()));
        assert_eq!(controller.queue.len(), 1, "tried again once the object is gone");
        assert!(controller.clashes("a-b", &[]).is_empty());
        assert!(controller.blocked.lock().is_empty());
    }
}

#[tokio::test]
async fn ks_098_a_known_object_of_another_is_not_even_asked_for() {
    let its = its_with(live(&json!({}))).await;
    let controller = Controller::new(&its.client, &its.client, Config::new("c"));
    let other: crate::wrapped::WrappedObject =
        serde_json::from_value(live(&labels("a", "b-c"))).expect("a wrapped object");
    controller.note_wrapped(other);
    let outcome = settle(&its, &controller).await;
    assert!(its.methods.lock().is_empty());
    assert_eq!(outcome.taken, BTreeMap::from([("a-b-c-0".to_owned(), origin("a", "b-c"))]));
}

#[tokio::test]
async fn ks_098_an_own_object_under_the_wanted_name_is_taken_over() {
    let its = its_with(live(&labels("a-b", "c"))).await;
    let controller = Controller::new(&its.client, &its.client, Config::new("c"));
    let outcome = settle(&its, &controller).await;
    assert_eq!(*its.methods.lock(), ["POST", "GET", "PUT"]);
    assert!(outcome.taken.is_empty() && outcome.failure.is_none());
}

#[tokio::test]
async fn ks_098_deleting_means_one_incarnation() {
    let its = its_with(live(&labels("a", "b-c"))).await;
    let controller = Controller::new(&its.client, &its.client, Config::new("c"));
    assert!(controller.writer.delete("wec", "a-b-c-0", "u0").await.is_ok(), "ours is gone already");
    assert!(controller.writer.delete("wec", "a-b-c-0", "u1").await.is_err(), "it is still there");
}

/// An object of this name that requests customisation.
fn templated(name: &str) -> Wrapee {
    let object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": name, "namespace": "n", "annotations": {"control.kubestellar.io/expand-templates": "true"}}});
    let original = Original { resource: "roles".into(), uid: name.into(), ..Original::default() };
    let content = Content {
        templated: crate::customize::expand::Templated::of(&object).map(Arc::new),
        ..Content::new(&object, original).expect("complete")
    };
    Wrapee { content: Arc::new(content), create_only: false }
}

/// KS-126, KS-097: two objects whose templates expand to the same object would overwrite each other in the
/// cluster. The second is reported, with the first destination where that happens.
#[tokio::test]
async fn ks_126_two_objects_that_expand_to_one_are_told() {
    let its = its_with(json!({})).await;
    let controller = Controller::new(&its.client, &its.client, Config::new("c"));
    for (cluster, a, b) in [("atlas", "x", "y"), ("boreas", "x", "x"), ("cygnus", "y", "x")] {
        let properties = [("a".to_owned(), a.to_owned()), ("b".to_owned(), b.to_owned())];
        controller.adaptation.lock().properties.put_map(cluster, Some(properties.into()));
    }
    let names = Names { binding: "b", binding_uid: "u", wds: "c" };
    let none = BTreeMap::new();
    let all = [templated("{{.a}}"), templated("plain"), templated("{{.b}}"), templated("{{.b}}")];
    let (plain_last, plain_first) =
        ([templated("{{.b}}"), templated("y")], [templated("x"), templated("{{.a}}")]);
    for (wrapees, places, reported) in [
        (&all[..3], vec!["atlas"], vec![]),
        (&all[..3], vec!["atlas", "boreas"], vec!["boreas/Role.rbac.authorization.k8s.io(n/{{.b}}): it and"]),
        (&all[2..], vec!["boreas"], vec![]),
        (&plain_last[..], vec!["atlas"], vec!["atlas/Role.rbac.authorization.k8s.io(n/y): it and"]),
        (
            &plain_first[..],
            vec!["atlas", "boreas", "cygnus"],
            vec!["atlas/Role.rbac.authorization.k8s.io(n/{{.a}}): it and"],
        ),
    ] {
        let (mut memory, mut errors) = (BindingMemory::default(), Vec::new());
        let destinations = places.iter().copied().collect();
        let done =
            controller.shards_each(&names, &destinations, wrapees, &none, &mut memory, &mut errors).await;
        let (_, frozen) = done.expect("expanded");
        assert_eq!(frozen, !reported.is_empty(), "KS-127: nothing new is propagated then");
        assert_eq!(errors.len(), reported.len(), "{errors:?}");
        for (line, about) in errors.iter().zip(reported) {
            assert!(line.starts_with(&format!("template: {about}")), "{line}");
        }
    }
}
