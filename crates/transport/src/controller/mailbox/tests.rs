use std::sync::{Arc, OnceLock};

use kube::Client;
use parking_lot::Mutex;
use runtime::rest::Rest;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::{
    controller::{config::Config, inputs::put_envelope},
    plan::DesiredEnvelope,
};

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

pub(in crate::controller) fn live(labels: &Value) -> Value {
    json!({"metadata": {"namespace": "wec", "name": "a-b-c-0", "uid": "u1", "resourceVersion": "7", "labels": labels}})
}

pub(in crate::controller) fn labels(binding: &str, wds: &str) -> Value {
    json!({"transport.kubestellar.io/originOwnerReferenceBindingKey": binding,
        "transport.kubestellar.io/originWdsName": wds})
}

/// The part of a controller of the WDS `c` that writes into mailboxes.
pub(in crate::controller) fn mailboxes(its: &FakeIts) -> Mailboxes {
    mailboxes_of(its.client.clone())
}

/// The same, with any client of the ITS.
pub(in crate::controller) fn mailboxes_of(its: Client) -> Mailboxes {
    let config = Config::new("c");
    let writer = Writer::new(Rest::with_manager(its, "test"), config.transport.kind());
    Mailboxes { shared: Arc::new(Shared::new(config)), writer }
}

fn origin(binding: &str, wds: &str) -> Origin {
    Origin { binding: binding.into(), wds: wds.into() }
}

pub(in crate::controller) async fn settle(its: &FakeIts, mailboxes: &Mailboxes) -> Outcome {
    let wanted = DesiredEnvelope { items: Arc::default(), fingerprint: [1; 32] };
    let planned =
        PlannedEnvelope { wanted, members: Vec::new(), envelope: OnceLock::new(), contents: OnceLock::new() };
    let shards = PlannedShards::from([("a-b-c-0".to_owned(), planned)]);
    its.methods.lock().clear();
    let (origin, seen) = (origin("a-b", "c"), Mailbox::default());
    let order = Order {
        place: "wec",
        origin: &origin,
        generation: "1",
        shards: &shards,
        seen: &seen,
        scope: Scope::Everything,
    };
    mailboxes.settle(order).await
}

#[tokio::test]
async fn ks_098_a_known_object_of_another_is_not_even_asked_for() {
    let its = its_with(live(&json!({}))).await;
    let mailboxes = mailboxes(&its);
    let other = serde_json::from_value(live(&labels("a", "b-c"))).expect("a wrapped object");
    put_envelope(&mailboxes.shared, "spec", other);
    let outcome = settle(&its, &mailboxes).await;
    assert!(its.methods.lock().is_empty());
    assert_eq!(outcome.taken, BTreeMap::from([("a-b-c-0".to_owned(), origin("a", "b-c"))]));
}

#[tokio::test]
async fn ks_098_an_own_object_under_the_wanted_name_is_taken_over() {
    let its = its_with(live(&labels("a-b", "c"))).await;
    let outcome = settle(&its, &mailboxes(&its)).await;
    assert_eq!(*its.methods.lock(), ["POST", "GET", "PUT"]);
    assert!(outcome.taken.is_empty() && outcome.failure.is_none());
}

#[tokio::test]
async fn ks_098_deleting_means_one_incarnation() {
    let its = its_with(live(&labels("a", "b-c"))).await;
    let writer = mailboxes(&its).writer;
    assert!(writer.delete("wec", "a-b-c-0", "u0").await.is_ok(), "ours is gone already");
    assert!(writer.delete("wec", "a-b-c-0", "u1").await.is_err(), "it is still there");
}
