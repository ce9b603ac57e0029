//! Informers against a server that answers from a script.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use http::{Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Client, client::Body};
use kubestellar_runtime::{Event, Light, Source, Store, feed, informer};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// What the server is asked, in short, and what it answers: a code and lines. Without lines left, a watch stays open.
struct Exchange {
    asked: &'static str,
    code: u16,
    lines: Vec<Value>,
    open: bool,
}

fn exchange(asked: &'static str, lines: Vec<Value>) -> Exchange {
    Exchange { asked, code: 200, lines, open: false }
}

fn refusal(asked: &'static str, code: u16) -> Exchange {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no", "reason": "x"});
    Exchange { asked, code, lines: vec![status], open: false }
}

fn short(uri: &http::Uri) -> String {
    let query = uri.query().unwrap_or("");
    let is_list = !query.contains("watch=");
    assert_eq!(is_list, query.contains("limit=500"), "{query}");
    assert_ne!(is_list, query.contains("allowWatchBookmarks=true"), "{query}");
    let keep = ["resourceVersion=", "continue=", "sendInitialEvents=", "watch=", "labelSelector="];
    let parts: Vec<_> =
        query.split('&').filter(|part| keep.iter().any(|key| part.starts_with(key))).collect();
    parts.join("&")
}

struct Script {
    events: mpsc::UnboundedReceiver<String>,
    store: Store<Light>,
    left: Arc<Mutex<VecDeque<Exchange>>>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

fn play(source: Source, script: Vec<Exchange>) -> Script {
    let left = Arc::new(Mutex::new(VecDeque::from(script)));
    let todo = left.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let next = todo.lock().unwrap().pop_front();
        async move {
            let Some(next) = next else { return std::future::pending().await };
            assert_eq!(short(request.uri()), next.asked, "{}", request.uri());
            let text: String =
                next.lines.iter().flat_map(|line| [line.to_string(), "\n".to_owned()]).collect();
            let head = futures::stream::iter([Ok::<_, Infallible>(bytes::Bytes::from(text))]);
            let stream: futures::stream::BoxStream<'static, Result<bytes::Bytes, Infallible>> = if next.open {
                Box::pin(futures::StreamExt::chain(head, futures::stream::pending()))
            } else {
                Box::pin(head)
            };
            let frames = futures::StreamExt::map(stream, |chunk| chunk.map(http_body::Frame::data));
            let body = http_body_util::StreamBody::new(frames);
            Ok::<_, Infallible>(Response::builder().status(next.code).body(body).unwrap())
        }
    });
    let (store, stop, (sender, events)) =
        (Store::default(), CancellationToken::new(), mpsc::unbounded_channel());
    let told = store.clone();
    let tell = move |event: Event<Light>| {
        let name = |object: &Light| format!("{}@{}", object.metadata.name, object.metadata.resource_version);
        let text = match event {
            Event::Added(new) => format!("+{}", name(&new)),
            Event::Updated { old, new } => format!("{} to {}", name(&old), name(&new)),
            Event::Deleted(old) => format!("-{}", name(&old)),
            Event::Synced => {
                assert!(told.is_synced(), "who is told finds it so");
                "synced".to_owned()
            }
        };
        sender.send(text).unwrap();
    };
    let client = Client::new(service, "default");
    let task = tokio::spawn(informer::run(client, source, store.clone(), tell, stop.clone()));
    Script { events, store, left, stop, task }
}

impl Script {
    async fn tells(&mut self, expected: &[&str]) {
        for expected in expected {
            assert_eq!(self.events.recv().await.unwrap(), *expected);
        }
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
        assert_eq!(self.left.lock().unwrap().len(), 0, "not everything was asked");
    }
}

fn map(name: &str, version: u32) -> Value {
    json!({"metadata": {"name": name, "namespace": "n", "resourceVersion": version.to_string()}})
}

fn event(type_: &str, object: Value) -> Value {
    json!({"type": type_, "object": object})
}

fn bookmark(version: u32, end: bool) -> Value {
    let annotations = if end { json!({"k8s.io/initial-events-end": "true"}) } else { json!({}) };
    let metadata = json!({"resourceVersion": version.to_string(), "annotations": annotations});
    event("BOOKMARK", json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}))
}

fn maps() -> Source {
    Source::of::<ConfigMap>().metadata()
}

const STREAM: &str = "watch=true&sendInitialEvents=true&resourceVersion=";

/// MC-191: bookmarks move the point from which a watch goes on.
#[tokio::test(start_paused = true)]
async fn a_streamed_list_goes_over_into_the_watch() {
    let lines = vec![
        event("ADDED", map("a", 1)),
        event("ADDED", map("b", 2)),
        bookmark(5, true),
        event("MODIFIED", map("a", 6)),
        event("DELETED", map("b", 7)),
        bookmark(9, false),
    ];
    let open = Exchange {
        open: true,
        ..exchange("watch=true&resourceVersion=9", vec![event("ADDED", map("c", 10))])
    };
    let again = refusal("watch=true&resourceVersion=9", 500);
    let mut script = play(maps(), vec![exchange(STREAM, lines), again, open]);
    script.tells(&["+a@1", "+b@2", "synced", "a@1 to a@6", "-b@7", "+c@10"]).await;
    let keys: Vec<_> = script.store.keys().iter().map(ToString::to_string).collect();
    assert_eq!(keys, ["n/a", "n/c"]);
    assert!(script.store.is_synced());
    script.end().await;
}

/// MC-191: pages are of 500.
#[tokio::test(start_paused = true)]
async fn a_server_without_streamed_lists_is_listed_by_pages() {
    let pages = [
        json!({"metadata": {"resourceVersion": "5", "continue": "next/page"}, "items": [map("a", 1)]}),
        json!({"metadata": {"resourceVersion": "5"}, "items": [map("b", 2)]}),
    ];
    let [first, second] = pages;
    let mut script = play(
        maps().labels("a in (b)"),
        vec![
            refusal("labelSelector=a%20in%20%28b%29&watch=true&sendInitialEvents=true&resourceVersion=", 422),
            exchange("labelSelector=a%20in%20%28b%29", vec![first]),
            exchange("labelSelector=a%20in%20%28b%29&continue=next%2Fpage", vec![second]),
            Exchange {
                open: true,
                ..exchange("labelSelector=a%20in%20%28b%29&watch=true&resourceVersion=5", vec![])
            },
        ],
    );
    script.tells(&["+a@1", "+b@2", "synced"]).await;
    tokio::task::yield_now().await;
    while !script.left.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    script.end().await;
}

/// MC-191: 410 is answered by another list.
#[tokio::test(start_paused = true)]
async fn what_vanished_behind_a_gap_is_deleted() {
    let expired = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"});
    let mut script = play(
        maps(),
        vec![
            exchange(
                STREAM,
                vec![
                    event("ADDED", map("a", 1)),
                    event("ADDED", map("b", 2)),
                    bookmark(5, true),
                    event("ERROR", expired),
                ],
            ),
            Exchange {
                open: true,
                ..exchange(
                    STREAM,
                    vec![event("ADDED", map("b", 2)), event("ADDED", map("c", 8)), bookmark(9, true)],
                )
            },
        ],
    );
    script.tells(&["+a@1", "+b@2", "synced", "+c@8", "-a@1"]).await;
    script.end().await;
}

/// A version that the server can't make sense of any more is answered by another list.
#[tokio::test(start_paused = true)]
async fn a_refused_version_is_not_asked_for_for_ever() {
    for code in [400, 422] {
        let mut script = play(
            maps(),
            vec![
                exchange(STREAM, vec![event("ADDED", map("a", 1)), bookmark(5, true)]),
                refusal("watch=true&resourceVersion=5", code),
                Exchange {
                    open: true,
                    ..exchange(STREAM, vec![event("ADDED", map("b", 2)), bookmark(9, true)])
                },
            ],
        );
        script.tells(&["+a@1", "synced", "+b@2", "-a@1"]).await;
        script.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_is_not_served_is_waited_for() {
    let mut script = play(
        maps(),
        vec![
            refusal(STREAM, 404),
            refusal(STREAM, 404),
            Exchange { open: true, ..exchange(STREAM, vec![bookmark(1, true)]) },
        ],
    );
    script.tells(&["synced"]).await;
    script.end().await;
}

/// What a server, or something before it, answers instead of a list deletes nothing: it is asked again.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_list_deletes_nothing() {
    let no_stream = || refusal(STREAM, 422);
    let gone = || refusal("watch=true&resourceVersion=5", 410);
    let list = |object: Value| exchange("", vec![object]);
    let full = json!({"metadata": {"resourceVersion": "5"}, "items": [map("a", 1)]});
    let empty = json!({"metadata": {"resourceVersion": "7"}, "items": null});
    let mut script = play(
        maps(),
        vec![
            no_stream(),
            list(full),
            gone(),
            list(json!({})),
            list(json!({"metadata": {"resourceVersion": "6"}})),
            list(json!({"items": []})),
            list(json!({"metadata": {}, "items": []})),
            list(empty),
            Exchange {
                open: true,
                ..exchange("watch=true&resourceVersion=7", vec![event("ADDED", map("b", 8))])
            },
        ],
    );
    // Were one of the four taken for a list, the script would not be followed to its end.
    script.tells(&["+a@1", "synced", "-a@1", "+b@8"]).await;
    script.end().await;
}

/// A server that forgets at once is not listed without pause, neither for an informer nor for a feed: both follow in
/// the same way.
#[tokio::test(start_paused = true)]
async fn a_server_that_forgets_at_once_is_given_time() {
    #[derive(Clone, serde::Deserialize)]
    struct Named(Light);
    impl feed::Keyed for Named {
        fn key(&self) -> feed::Key {
            (self.0.metadata.namespace.to_string(), self.0.metadata.name.to_string())
        }
        fn resource_version(&self) -> &str {
            &self.0.metadata.resource_version
        }
    }
    let asked = Arc::new(Mutex::new(Vec::new()));
    let list = json!({"metadata": {"resourceVersion": "5"}, "items": [map("a", 1)]}).to_string();
    let counted = asked.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (query, list) = (short(request.uri()), list.clone());
        counted.lock().unwrap().push(query.clone());
        async move {
            let no = |code: u16| {
                let status = json!({"kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": "x"});
                (code, status.to_string())
            };
            let (code, body) = match query.as_str() {
                "" => (200, list),
                query if query.contains("sendInitialEvents") => no(422),
                _ => no(410),
            };
            Ok::<_, Infallible>(Response::builder().status(code).body(Body::from(body.into_bytes())).unwrap())
        }
    });
    let (stop, mut heard) = (CancellationToken::new(), Vec::new());
    let source = feed::Source::all(kubestellar_runtime::rest::Gvr::new("", "v1", "configmaps"));
    let client = Client::new(service, "default");
    let following = feed::follow(&client, &source, &stop, |change: feed::Change<Named>| {
        heard.push(match change {
            feed::Change::Put(item) => item.0.metadata.name.to_string(),
            feed::Change::Gone((_, name)) => format!("-{name}"),
            feed::Change::Synced => "synced".to_owned(),
        });
    });
    let end = async {
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        stop.cancel();
    };
    tokio::join!(following, end);
    let lists = asked.lock().unwrap().iter().filter(|query| query.is_empty()).count();
    assert!((2..200).contains(&lists), "{lists} lists in a minute");
    assert_eq!(heard[..2], ["a", "synced"]);
    assert!(!heard.contains(&"-a".to_owned()));
}
