//! Single hook calls: the order of checks, lenient parsing, late answers, proxies (MC §5.1).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use kubestellar_metacontroller::hooks::{Call, CredentialData, HookClient, HookError, HookKind, Settings};
use runtime::proxies::Proxies;
use serde_json::{Value, json};
use testkit::wait::until;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

use crate::hook::{Hook, Reply};

fn client(webhook: Value, proxies: &Proxies) -> HookClient {
    let hook = serde_json::from_value(json!({"webhook": webhook})).unwrap();
    let settings = Settings::read(HookKind::Map, &hook, &[]).unwrap();
    let fields = HookKind::Map.answer_fields(false);
    HookClient::new(settings, fields, &CredentialData::default(), proxies).unwrap()
}

async fn call(client: &HookClient) -> Result<Arc<Value>, HookError> {
    let body = json!({"mapKey": "k"});
    client.call(Call { key: (HookKind::Map, "p".into(), "k".into()), body: &body }).await
}

fn raw(status: u16, headers: Vec<(&'static str, String)>, body: &'static str) -> Reply {
    Reply::Raw { status, headers, body: Bytes::from_static(body.as_bytes()) }
}

/// Returns whether it is the expected error.
type Is = fn(&HookError) -> bool;

/// MC-103: a failed exchange comes first, then 429, other codes, the ETag, JSON, strictness.
#[tokio::test]
async fn mc_103_the_order_of_evaluation() {
    let good = "{\"outputs\": []}";
    let hook = Hook::start(|_| raw(200, vec![], "")).await;
    let strict = json!({"url": hook.url, "etag": {"enabled": true}, "responseUnMarshallMode": "strict"});
    let client = client(strict, &Proxies::default());
    let cases: Vec<(Reply, Is)> = vec![
        (raw(429, vec![("retry-after", "7".into())], "not json"), |error| {
            *error == HookError::TooManyRequests(Some(Duration::from_secs(7)))
        }),
        (raw(500, vec![("etag", "\"e\"".into())], good), |error| {
            matches!(error, HookError::Status { code: 500, .. })
        }),
        // Nothing was cached so far, so this is a failure like any other code.
        (raw(304, vec![], good), |error| matches!(error, HookError::Status { code: 304, .. })),
        (raw(200, vec![("etag", "\"e\"".into())], "{\"unknown\": 1, "), |error| {
            matches!(error, HookError::Decode(_))
        }),
        (raw(200, vec![], "{\"outputs\": [], \"unknown\": 1}"), |error| {
            matches!(error, HookError::Validation(_))
        }),
    ];
    for (index, (reply, is)) in cases.into_iter().enumerate() {
        let reply = std::sync::Mutex::new(Some(reply));
        hook.script(move |_| reply.lock().unwrap().take().unwrap());
        let error = call(&client).await.unwrap_err();
        assert!(is(&error), "case {index}: {error:?}");
    }
    assert!(
        hook.seen().iter().all(|seen| !seen.headers.contains_key("if-none-match")),
        "no fault was cached"
    );
    drop(hook);
    let text = call(&client).await.unwrap_err().to_string();
    assert!(text.starts_with("http error: "), "{text}");
}

/// MC-104: in loose mode, unknown and duplicate fields are ignored. Names are case-sensitive, and wrong types
/// are errors in both modes.
#[tokio::test]
async fn mc_104_loose_is_not_careless() {
    let hook = Hook::start(|_| raw(200, vec![], "")).await;
    for mode in ["loose", "strict"] {
        let client = client(json!({"url": hook.url, "responseUnMarshallMode": mode}), &Proxies::default());
        for (body, loose, strict) in [
            ("{\"outputs\": [], \"more\": 1}", true, false),
            ("{\"outputs\": [1], \"outputs\": []}", true, false),
            ("{\"Outputs\": []}", true, false),
            ("{\"outputs\": []}", true, true),
            ("[]", true, true),
        ] {
            hook.script(move |_| raw(200, vec![], body));
            let answer = call(&client).await;
            assert_eq!(answer.is_ok(), if mode == "loose" { loose } else { strict }, "{mode}: {body}");
        }
    }
    // The parsed answer is then validated: a misspelt `outputs` is missing, a list is not an object, a text
    // is not a list.
    let context = kubestellar_metacontroller::map::answer::MapAnswerContext {
        outputs: &[],
        parent: &json!({"metadata": {"namespace": "n"}}),
        input_namespace: "n",
    };
    for bad in [
        json!({"Outputs": []}),
        json!([]),
        json!({"outputs": "x"}),
        json!({"outputs": [], "resyncAfterSeconds": "1"}),
    ] {
        assert!(kubestellar_metacontroller::map::answer::mapped(context, &bad).is_err(), "{bad}");
    }
}

async fn read_head(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while !text.windows(4).any(|four| four == b"\r\n\r\n") {
        let byte = stream.read_u8().await.unwrap();
        text.push(byte);
    }
    String::from_utf8(text).unwrap()
}

fn answer(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// MC-076: an answer that arrives after the timeout is dropped: the next call gets its own.
#[tokio::test]
async fn mc_076_a_late_answer_is_nobodys() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/map", listener.local_addr().unwrap());
    let late = Arc::new(Notify::new());
    let go = late.clone();
    let server = tokio::spawn(async move {
        let (mut first, _) = listener.accept().await.unwrap();
        read_head(&mut first).await;
        go.notified().await;
        let _ = first.write_all(answer("{\"outputs\": [\"late\"]}").as_bytes()).await;
        let (mut second, _) = listener.accept().await.unwrap();
        read_head(&mut second).await;
        second.write_all(answer("{\"outputs\": [\"right\"]}").as_bytes()).await.unwrap();
        // Until the client has sent it.
        let _ = second.read(&mut [0; 4096]).await;
    });
    let client = client(json!({"url": url, "timeout": "10s"}), &Proxies::default());
    let impatient = tokio::time::timeout(Duration::from_millis(300), call(&client)).await;
    assert!(impatient.is_err(), "given up");
    late.notify_one();
    assert_eq!(*call(&client).await.unwrap(), json!({"outputs": ["right"]}));
    drop(client);
    server.await.unwrap();
}

/// MC-070, MC-075: a server that dies before, in the head of, or in the middle of its response, or that never
/// ends the response, has given no answer.
#[tokio::test]
async fn mc_070_servers_that_die_while_they_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/map", listener.local_addr().unwrap());
    let parts = ["", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"outputs\": ["];
    let server = async {
        for part in parts {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_head(&mut stream).await;
            stream.write_all(part.as_bytes()).await.unwrap();
        }
        let (mut stream, _) = listener.accept().await.unwrap();
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n").await.unwrap();
        // A byte from time to time, until the client gives up.
        until("the client gives up", async || stream.write_all(b" ").await.is_err()).await;
    };
    let client = client(json!({"url": url, "timeout": "2s"}), &Proxies::default());
    let calls = async {
        for part in parts {
            let error = call(&client).await.unwrap_err();
            assert!(matches!(error, HookError::Connect(_)), "{part:?}: {error:?}");
        }
        assert_eq!(call(&client).await.unwrap_err(), HookError::Timeout(Duration::from_secs(2)));
    };
    tokio::join!(server, calls);
    assert_eq!(*client.metrics().failures.lock(), [("connect", 3), ("timeout", 1)].into());
}

/// MC-101: a request to a plain hook goes to the proxy with its whole URL and the proxy's credential, a
/// request to a TLS hook through a tunnel, and a request to this machine directly.
#[tokio::test]
async fn mc_101_proxies() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let proxies = Proxies::new(&format!("http://user:word@{address}"), &format!("http://{address}"), "");
    let server = tokio::spawn(async move {
        let (mut plain, _) = listener.accept().await.unwrap();
        let first = read_head(&mut plain).await;
        plain.write_all(answer("{\"outputs\": []}").as_bytes()).await.unwrap();
        let (mut secure, _) = listener.accept().await.unwrap();
        let second = read_head(&mut secure).await;
        secure.write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        (first, second)
    });
    let plain = client(json!({"url": "http://hook.example:8080/map"}), &proxies);
    assert_eq!(*call(&plain).await.unwrap(), json!({"outputs": []}));
    let secure = client(json!({"url": "https://hook.example/map", "caBundle": null}), &proxies);
    let refused = call(&secure).await.unwrap_err().to_string();
    assert!(refused.starts_with("http error: "), "{refused}");
    let (first, second) = server.await.unwrap();
    assert!(first.starts_with("POST http://hook.example:8080/map HTTP/1.1\r\n"), "{first}");
    assert!(first.to_ascii_lowercase().contains("proxy-authorization: basic dxnlcjp3b3jk"), "{first}");
    assert!(second.starts_with("CONNECT hook.example:443 HTTP/1.1\r\n"), "{second}");
    // Directly: the proxy is gone by now.
    let hook = Hook::start(|_| raw(200, vec![], "{\"outputs\": []}")).await;
    let near = client(json!({"url": hook.url}), &proxies);
    assert_eq!(*call(&near).await.unwrap(), json!({"outputs": []}));
    assert!(!hook.seen()[0].headers.contains_key("proxy-authorization"));
}

/// MC-204: the resolution of a hook's name is measured; an address needs none.
#[tokio::test]
async fn mc_204_names_are_timed() {
    let hook = Hook::start(|_| raw(200, vec![], "{\"outputs\": []}")).await;
    let metrics = kubestellar_metacontroller::Metrics::default();
    let shown = |url: &str, client: &HookClient| {
        metrics.hook(("MapController", url), HookKind::Map, url, client.metrics().clone());
        metrics.text()
    };
    let near = client(json!({"url": hook.url}), &Proxies::default());
    call(&near).await.unwrap();
    assert!(!shown("address", &near).contains("dns_done"));
    let named = hook.url.replace("127.0.0.1", "localhost");
    let named = client(json!({"url": named}), &Proxies::default());
    // If that name resolves to another address first, the call fails, but the name was resolved.
    let _ = call(&named).await;
    let text = shown("name", &named);
    for event in ["dns_start", "dns_done"] {
        let count = format!("event=\"{event}\"}} 1");
        let line = text
            .lines()
            .find(|line| line.contains("dns_duration_histogram_seconds_count") && line.contains(event));
        assert!(line.is_some_and(|line| line.ends_with(&count)), "{event}: {text}");
    }
}

/// MC-070, MC-103, MC-104: malicious answers are rejected with a message of limited length: endless nesting,
/// numbers out of range, a hundred thousand duplicate fields.
#[tokio::test]
async fn mc_104_answers_made_to_hurt() {
    let doubled = format!("{{{}\"outputs\": []}}", "\"a\": 1, ".repeat(100_000));
    let strange = format!("{{\"{}\": 1, \"outputs\": []}}", "x".repeat(1 << 20));
    let cases: Vec<(Vec<u8>, Is)> = vec![
        ("[".repeat(1 << 20).into_bytes(), |error| matches!(error, HookError::Decode(_))),
        (b"{\"outputs\": [1e999999]}".to_vec(), |error| matches!(error, HookError::Decode(_))),
        (b"{\"outputs\": []} trailing".to_vec(), |error| matches!(error, HookError::Decode(_))),
        (doubled.into_bytes(), |error| matches!(error, HookError::Validation(_))),
        (strange.into_bytes(), |error| matches!(error, HookError::Validation(_))),
    ];
    let hook = Hook::start(|_| raw(200, vec![], "")).await;
    let strict = json!({"url": hook.url, "responseUnMarshallMode": "strict"});
    let client = client(strict, &Proxies::default());
    for (index, (body, is)) in cases.into_iter().enumerate() {
        let body = Bytes::from(body);
        hook.script(move |_| Reply::Raw { status: 200, headers: vec![], body: body.clone() });
        let error = call(&client).await.unwrap_err();
        let text = error.to_string();
        assert!(is(&error) && text.len() < 20_000, "case {index}: {} bytes, {text:.200}", text.len());
    }
}
