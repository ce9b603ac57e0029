//! A hook server that records every request, answers from a function, and can hold its answers back.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::wait::quiet;
use tokio::{net::TcpListener, sync::watch, task::JoinSet, time::Instant};

/// A received request.
#[derive(Clone, Debug)]
pub struct Seen {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Value,
    pub at: Instant,
}

impl Seen {
    pub fn key(&self) -> &str {
        self.body["mapKey"].as_str().unwrap_or_default()
    }
}

/// The answer.
pub enum Reply {
    Json(Value),
    Raw {
        status: u16,
        headers: Vec<(&'static str, String)>,
        body: Bytes,
    },
    /// Endless bytes.
    Endless,
    /// Never answers.
    Hang,
}

impl Reply {
    pub fn status(status: u16, body: &'static str) -> Self {
        Self::Raw { status, headers: vec![], body: body.into() }
    }
    pub fn with(status: u16, headers: Vec<(&'static str, String)>, body: &Value) -> Self {
        Self::Raw { status, headers, body: body.to_string().into() }
    }
}

type Script = Arc<dyn Fn(&Seen) -> Reply + Send + Sync>;

struct State {
    script: Mutex<Script>,
    seen: watch::Sender<Vec<Seen>>,
    flying: Mutex<(usize, usize)>,
    /// Requests with this text in path or key wait.
    held: watch::Sender<Option<String>>,
}

pub struct Hook {
    pub url: String,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

impl Hook {
    pub async fn start(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::serve(listener, script)
    }

    pub fn serve(listener: TcpListener, script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::serve_script(listener, Arc::new(script))
    }

    /// Not generic, so that the server is compiled once and not for each test.
    fn serve_script(listener: TcpListener, script: Script) -> Self {
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State {
            script: Mutex::new(script),
            seen: watch::Sender::default(),
            flying: Mutex::default(),
            held: watch::Sender::new(None),
        });
        let mut tasks = JoinSet::new();
        let shared = state.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let state = shared.clone();
                connections.spawn(async move {
                    let service = hyper::service::service_fn(move |request| answer(state.clone(), request));
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { url, state, _tasks: tasks }
    }

    /// Answers with `script` from now on.
    pub fn script(&self, script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) {
        *self.state.script.lock() = Arc::new(script);
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.state.seen.borrow().clone()
    }

    pub fn count(&self) -> usize {
        self.state.seen.borrow().len()
    }

    pub fn calls(&self, path: &str, key: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.path == path && seen.key() == key).collect()
    }

    pub fn paths(&self, path: &str) -> usize {
        self.seen().iter().filter(|seen| seen.path == path).count()
    }

    pub fn clear(&self) {
        self.state.seen.send_replace(Vec::new());
    }

    /// Most concurrent calls so far.
    pub fn most(&self) -> usize {
        self.state.flying.lock().1
    }

    /// Holds back the answers to requests whose path and key contain `text`.
    pub fn hold(&self, text: &str) {
        self.state.held.send_replace(Some(text.to_owned()));
    }

    pub fn release(&self) {
        self.state.held.send_replace(None);
    }

    /// Waits until no request has come for a while.
    pub async fn quiet(&self) {
        quiet("an end of the requests", &mut self.state.seen.subscribe()).await;
    }
}

struct InFlight(Arc<State>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.flying.lock().0 -= 1;
    }
}

async fn answer(
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let (head, body) = request.into_parts();
    let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let seen = Seen {
        path: head.uri.path().to_owned(),
        headers: head.headers,
        body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        at: Instant::now(),
    };
    state.seen.send_modify(|all| all.push(seen.clone()));
    {
        let mut flying = state.flying.lock();
        flying.0 += 1;
        flying.1 = flying.1.max(flying.0);
    }
    let _flying = InFlight(state.clone());
    let what = format!("{} {}", seen.path, seen.key());
    let free = |held: &Option<String>| held.as_ref().is_none_or(|text| !what.contains(text.as_str()));
    let _ = state.held.subscribe().wait_for(free).await;
    let script = state.script.lock().clone();
    let whole = |bytes: Bytes| http_body_util::Full::new(bytes).boxed();
    let response = match script(&seen) {
        Reply::Json(value) => Response::builder().status(200).body(whole(value.to_string().into())),
        Reply::Raw { status, headers, body } => {
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            response.body(whole(body))
        }
        Reply::Endless => {
            let chunk = Bytes::from(vec![b' '; 1 << 20]);
            let endless = futures::stream::repeat(chunk).map(|chunk| Ok(Frame::data(chunk)));
            Response::builder().status(200).body(BodyExt::boxed(StreamBody::new(endless)))
        }
        Reply::Hang => std::future::pending().await,
    };
    Ok(response.unwrap())
}

/// Returns a ConfigMap with the same data for each input ConfigMap; keeps no detached outputs.
pub fn copier(seen: &Seen) -> Reply {
    Reply::Json(copy_of(seen, |name| format!("{name}-copy")))
}

pub fn copy_of(seen: &Seen, name: impl Fn(&str) -> String) -> Value {
    if seen.body.get("input").is_none() {
        return json!({"outputs": []});
    }
    let input = &seen.body["input"];
    let name = name(input["metadata"]["name"].as_str().unwrap());
    json!({"outputs": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": input["data"]}]})
}

/// Keeps all detached outputs.
pub fn keeper(seen: &Seen) -> Reply {
    if seen.path == "/map" {
        return copier(seen);
    }
    Reply::Json(json!({"outputs": outputs(seen)}))
}

/// The ConfigMaps of the request.
pub fn outputs(seen: &Seen) -> Vec<Value> {
    seen.body["outputs"]["ConfigMap.v1"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(_, object)| object.clone())
        .collect()
}
