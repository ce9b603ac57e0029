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
use kubestellar_runtime::{
    Event, ObjectKey, PartialObject, Source, Store, Watched, feed, informer, informer::PartialMeta,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A request that the server expects, in short, and its response: a code and lines. With `open`, the watch
/// stays open after the last line.
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
    store: Store<PartialObject>,
    left: Left,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

type Left = Arc<Mutex<VecDeque<Exchange>>>;

/// A client of a server that follows this script. Further requests are never answered.
fn serve(script: Vec<Exchange>) -> (Client, Left) {
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
    (Client::new(service, "default"), left)
}

fn play(source: Source, script: Vec<Exchange>) -> Script {
    let (client, left) = serve(script);
    let (store, stop, (sender, events)) =
        (Store::default(), CancellationToken::new(), mpsc::unbounded_channel());
    let reported = store.clone();
    let tell = move |event: Event<PartialObject>| {
        let name =
            |object: &PartialObject| format!("{}@{}", object.metadata.name, object.metadata.resource_version);
        let text = match event {
            Event::Added(new) => format!("+{}", name(&new)),
            Event::Updated { old, new } => format!("{} to {}", name(&old), name(&new)),
            Event::Deleted(old) => format!("-{}", name(&old)),
            Event::Synced => {
                assert!(reported.is_synced(), "who is told finds it so");
                "synced".to_owned()
            }
        };
        sender.send(text).unwrap();
    };
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

fn feed_of_maps() -> Source {
    Source::all(kubestellar_runtime::rest::Gvr::new("", "v1", "configmaps"))
}

/// An object whose labels cannot be decoded.
fn bad(name: &str, version: u32) -> Value {
    let mut map = map(name, version);
    map["metadata"]["labels"] = json!({"a": 5});
    map
}

fn list(version: u32, items: &[Value]) -> Value {
    json!({"metadata": {"resourceVersion": version.to_string()}, "items": items})
}

const STREAM: &str = "watch=true&sendInitialEvents=true&resourceVersion=";

/// MC-191: bookmarks move the version from which a watch continues.
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

/// MC-191: pages have 500 objects.
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

/// MC-191: a 410 is followed by another list.
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

/// After a version that the server does not accept any more, the client lists again.
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

/// A response that is not a list deletes nothing; the client asks again.
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
    // If one of the four responses were taken for a list, the script would not be followed to its end.
    script.tells(&["+a@1", "synced", "-a@1", "+b@8"]).await;
    script.end().await;
}

/// The object type of the feeds in these tests.
#[derive(Clone, serde::Deserialize)]
struct Whole {
    metadata: PartialMeta,
    #[serde(default, rename = "data")]
    _data: Value,
}

impl Watched for Whole {
    fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.metadata.namespace, &self.metadata.name)
    }

    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

fn reported(change: feed::Change<Whole>) -> String {
    match change {
        feed::Change::Put(item) => item.metadata.name.to_string(),
        feed::Change::Gone(key) => format!("-{}", key.name),
        feed::Change::Synced => "synced".to_owned(),
    }
}

/// A server that forgets versions at once is not listed without pauses, neither by an informer nor by a feed;
/// both use the same follower.
#[tokio::test(start_paused = true)]
async fn a_server_that_forgets_at_once_is_given_time() {
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
    let client = Client::new(service, "default");
    let source = feed_of_maps();
    let following = feed::follow(&client, &source, &stop, |change| heard.push(reported(change)));
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

/// Servers that do not know streamed lists take the request for a watch: they send the existing objects and
/// never say that the list is complete.
#[tokio::test(start_paused = true)]
async fn a_streamed_list_that_never_ends_is_followed_by_a_paged_one() {
    for open in [false, true] {
        let endless = Exchange { open, ..exchange(STREAM, vec![event("ADDED", map("a", 1))]) };
        let watch = Exchange { open: true, ..exchange("watch=true&resourceVersion=5", vec![]) };
        let mut script = play(maps(), vec![endless, exchange("", vec![list(5, &[map("a", 1)])]), watch]);
        script.tells(&["+a@1", "synced"]).await;
        while !script.left.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        script.end().await;
    }
}

/// An object that cannot be decoded keeps its last state, and delays neither the rest of the list nor the
/// watch. Its deletion is reported like any other.
#[tokio::test(start_paused = true)]
async fn an_unreadable_object_keeps_nothing_else_from_an_informer() {
    let first = vec![
        event("ADDED", bad("never", 1)),
        event("ADDED", map("a", 2)),
        event("ADDED", map("b", 3)),
        bookmark(5, true),
        event("MODIFIED", bad("a", 6)),
    ];
    let second = vec![
        event("DELETED", bad("a", 7)),
        event("MODIFIED", bad("b", 8)),
        event("DELETED", bad("never", 9)),
        event("ADDED", bad("c", 10)),
        event("MODIFIED", map("c", 11)),
        event("MODIFIED", map("b", 12)),
    ];
    // That the first watch ends early counts as a failure, but the next one continues from its version.
    let open = Exchange { open: true, ..exchange("watch=true&resourceVersion=6", second) };
    let mut script = play(maps(), vec![exchange(STREAM, first), open]);
    script.tells(&["+a@2", "+b@3", "synced", "-a@2", "+c@11", "b@3 to b@12"]).await;
    script.end().await;
}

/// An undecodable object in a list is not taken for deleted, and does not hide that other objects are.
#[tokio::test(start_paused = true)]
async fn an_unreadable_object_of_a_list_is_not_gone() {
    let gone = |version: &'static str| refusal(version, 410);
    let mut script = play(
        maps(),
        vec![
            refusal(STREAM, 422),
            exchange("", vec![list(5, &[map("a", 1), map("b", 2), bad("c", 3)])]),
            gone("watch=true&resourceVersion=5"),
            // As many objects as before, and as many as are stored.
            exchange("", vec![list(9, &[bad("a", 6), bad("c", 3)])]),
            gone("watch=true&resourceVersion=9"),
            exchange("", vec![list(12, &[map("c", 11)])]),
            Exchange { open: true, ..exchange("watch=true&resourceVersion=12", vec![]) },
        ],
    );
    script.tells(&["+a@1", "+b@2", "synced", "-b@2", "+c@11", "-a@1"]).await;
    while !script.left.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    script.end().await;
}

/// The same for a feed. JSON is decoded up to 127 levels of nesting, and an object of that depth is deeper
/// inside an event or a list.
#[tokio::test(start_paused = true)]
async fn an_unreadable_object_keeps_nothing_else_from_a_feed() {
    let deep = |name: &str, version: u32, depth: usize| {
        let mut map = map(name, version);
        map["data"] = (1..depth).fold(json!(1), |inner, _| json!([inner]));
        map
    };
    let first = vec![
        event("ADDED", deep("deepest", 1, 127)),
        event("ADDED", deep("deeper", 2, 128)),
        event("ADDED", map("a", 3)),
        bookmark(5, true),
        event("MODIFIED", deep("a", 6, 128)),
        event("ERROR", json!({"kind": "Status", "status": "Failure", "code": 410, "message": "too old"})),
    ];
    let items = [deep("deepest", 1, 127), deep("a", 6, 128), map("b", 8)];
    let second = vec![event("DELETED", deep("a", 10, 128)), event("ADDED", map("c", 11))];
    let (client, left) = serve(vec![
        exchange(STREAM, first),
        refusal(STREAM, 422),
        exchange("", vec![list(9, &items)]),
        Exchange { open: true, ..exchange("watch=true&resourceVersion=9", second) },
    ]);
    let (stop, (sender, mut events)) = (CancellationToken::new(), mpsc::unbounded_channel());
    let token = stop.clone();
    let task = tokio::spawn(async move {
        let tell = move |change| sender.send(reported(change)).unwrap();
        feed::follow(&client, &feed_of_maps(), &token, tell).await;
    });
    for expected in ["deepest", "a", "synced", "deepest", "b", "-deeper", "synced", "-a", "c"] {
        assert_eq!(events.recv().await.unwrap(), expected);
    }
    stop.cancel();
    task.await.unwrap();
    assert!(left.lock().unwrap().is_empty(), "not everything was asked");
}
