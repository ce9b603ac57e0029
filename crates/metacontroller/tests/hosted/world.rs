//! A space with a Metacontroller whose requests are counted and can be made to fail.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use kubestellar_metacontroller::{Config, Strategy};
use parking_lot::Mutex;
use runtime::rest::{Removal, Rest};
use serde_json::{Value, json};
use space::{Identity, Space};
use testkit::side;
pub use testkit::wait::{equals, found, quiet, when, within};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::hook::{Hook, copier};
pub use crate::objects::*;

pub struct World {
    pub rest: Rest,
    space: Space,
    stop: CancellationToken,
    generic: Option<JoinHandle<()>>,
    meta: Option<(CancellationToken, JoinHandle<()>)>,
    traffic: Arc<Traffic>,
    pub strategy: Strategy,
    _data: tempfile::TempDir,
}

#[derive(Default)]
struct Traffic {
    /// Method and path of the writes by Metacontroller, without events and its own status.
    writes: watch::Sender<Vec<String>>,
    /// Bodies of the deletions.
    deletions: Mutex<Vec<Value>>,
    /// URIs of what it reads.
    reads: Mutex<Vec<String>>,
    /// Open watches by path.
    watches: Mutex<BTreeMap<String, usize>>,
    broken: Mutex<Option<Broken>>,
}

/// Requests that get an error from the test.
#[derive(Clone)]
struct Broken {
    /// Empty for any.
    method: &'static str,
    /// Part of the URI; with a dollar at its end, the end of the path.
    text: String,
    code: u16,
    /// How often.
    times: usize,
}

impl Broken {
    fn covers(&self, method: &Method, uri: &http::Uri) -> bool {
        let here = match self.text.strip_suffix('$') {
            Some(end) => uri.path().ends_with(end),
            None => uri.to_string().contains(&self.text),
        };
        here && self.times > 0 && (self.method.is_empty() || method.as_str() == self.method)
    }
}

/// The body of a response. That of a watch decreases the count when it is dropped.
struct Watched {
    body: Body,
    of: Option<(String, Arc<Traffic>)>,
}

impl http_body::Body for Watched {
    type Data = bytes::Bytes;
    type Error = <Body as http_body::Body>::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        std::pin::Pin::new(&mut self.body).poll_frame(context)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some((path, traffic)) = &self.of
            && let Some(count) = traffic.watches.lock().get_mut(path)
        {
            *count -= 1;
        }
    }
}

impl World {
    /// A space with the kinds of the tests and the namespaces `ns1` and `ns2`, and a Metacontroller.
    pub async fn start() -> Self {
        Self::start_with(Strategy::Dynamic).await
    }

    /// A world with a hook that copies: for parent `p` the controller `mc1` has copied input `a`.
    pub async fn copying() -> (Hook, Self) {
        let hook = Hook::start(copier).await;
        let world = Self::start().await;
        world.controller("mc1", &hook.url, json!({})).await;
        world.foo("p", app("x")).await;
        world.input("a", json!({"app": "x"}), "1").await;
        world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
        (hook, world)
    }

    pub async fn start_with(strategy: Strategy) -> Self {
        let data = tempfile::tempdir().unwrap();
        let engine = store::Engine::in_memory();
        let space = side::space(&engine, data.path(), "test").await;
        let client = space.client(&Identity::admin());
        let mut crds = apis::crds::metacontroller();
        for definition in [
            crd("Foo", "foos", "example.com", "Namespaced", open()),
            crd("Bar", "bars", "example.com", "Cluster", open()),
            crd("Thing", "things", "example.com", "Cluster", open()),
            crd(
                "Shut",
                "shuts",
                "example.com",
                "Namespaced",
                json!({"type": "object", "properties": {"phase": {"type": "string"}}}),
            ),
            crd("SnapshotSchedule", "snapshotschedules", "backup.example.com", "Namespaced", open()),
            crd("VolumeSnapshot", "volumesnapshots", "snapshot.storage.k8s.io", "Namespaced", open()),
        ] {
            crds.push(serde_json::from_value(definition).unwrap());
        }
        runtime::install(&client, &crds, "test").await.unwrap();
        let rest = Rest::new(client);
        for name in ["ns1", "ns2"] {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            rest.create::<Value>(&gvr("v1/namespaces"), "", namespace.to_string().into_bytes())
                .await
                .unwrap();
        }
        let mut world = Self {
            rest,
            space,
            stop: CancellationToken::new(),
            generic: None,
            meta: None,
            traffic: Arc::default(),
            strategy,
            _data: data,
        };
        world.run_meta();
        world
    }

    fn meta_client(&self) -> Client {
        let (client, traffic) = (
            self.space.client(&Identity::component("metacontroller", &["system:masters"])),
            self.traffic.clone(),
        );
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, traffic) = (client.clone(), traffic.clone());
            async move {
                let path = request.uri().to_string();
                let (method, uri) = (request.method().clone(), request.uri().clone());
                let own = path.contains("/events") || path.contains("metacontroller.k8s.io");
                if request.method() != Method::GET && !own {
                    traffic.writes.send_modify(|all| all.push(format!("{} {path}", request.method())));
                }
                let broken = traffic.broken.lock().as_mut().filter(|it| it.covers(&method, &uri)).map(|it| {
                    it.times -= 1;
                    it.code
                });
                let request = if method == Method::DELETE && !own {
                    let (head, body) = request.into_parts();
                    let body = body.collect().await?.to_bytes();
                    traffic.deletions.lock().push(serde_json::from_slice(&body).unwrap_or_default());
                    Request::from_parts(head, Body::from(body.to_vec()))
                } else {
                    request
                };
                if let Some(code) = broken {
                    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "broken by the test", "reason": "Broken"});
                    return Ok::<_, tower::BoxError>(
                        Response::builder()
                            .status(StatusCode::from_u16(code).unwrap())
                            .body(Watched { body: Body::from(status.to_string().into_bytes()), of: None })
                            .unwrap(),
                    );
                }
                if method == Method::GET {
                    traffic.reads.lock().push(path.clone());
                }
                let answer = client.send(request).await?;
                let watch = path.contains("watch=true").then(|| uri.path().to_owned());
                if let Some(path) = &watch {
                    *traffic.watches.lock().entry(path.clone()).or_default() += 1;
                }
                Ok(answer.map(|body| Watched { body, of: watch.map(|path| (path, traffic)) }))
            }
        });
        Client::new(service, "default")
    }

    fn run_meta(&mut self) {
        let stop = self.stop.child_token();
        let config = Config {
            strategy: self.strategy.clone(),
            discovery_interval: Duration::from_secs(1),
            ..Config::default()
        };
        self.meta = Some((stop.clone(), self.spawn_meta(config, stop)));
    }

    fn spawn_meta(&self, config: Config, stop: CancellationToken) -> JoinHandle<()> {
        let run = kubestellar_metacontroller::run(self.meta_client(), config, stop);
        tokio::spawn(async move { run.await.unwrap() })
    }

    /// Starts another Metacontroller beside the first; the token stops it.
    pub fn another(&self, config: Config) -> (CancellationToken, JoinHandle<()>) {
        let stop = self.stop.child_token();
        (stop.clone(), self.spawn_meta(config, stop))
    }

    /// Stops Metacontroller; every part of it must end.
    pub async fn stop_meta(&mut self) {
        if let Some((stop, task)) = self.meta.take() {
            stop.cancel();
            within("the end that was asked for", task).await.unwrap();
        }
    }

    pub async fn restart(&mut self) {
        self.stop_meta().await;
        self.run_meta();
    }

    /// Starts garbage collection and the other controllers of every control plane.
    pub async fn collect_garbage(&mut self) {
        let client = self.space.client(&Identity::admin());
        let (run, mut is_ready) = side::controllers(&self.space, client, None, self.stop.clone());
        self.generic = Some(tokio::spawn(run));
        is_ready.wait_for(|ready| *ready).await.unwrap();
    }

    pub async fn end(mut self) {
        self.stop_meta().await;
        self.stop.cancel();
        if let Some(task) = self.generic.take() {
            task.await.unwrap();
        }
        self.space.stop().await;
    }

    /// Changes a parent or input of `ns1` without effect: the hook is called, and nothing is written.
    pub async fn rests(&self, hook: &Hook, (resource, name): (&str, &str), why: &str) {
        // A status is written up to a second after the answer that it tells of.
        hook.quiet().await;
        self.quiet().await;
        self.clear_writes();
        hook.clear();
        self.merge(resource, "ns1", name, json!({"metadata": {"annotations": {"poke": "1"}}})).await;
        when("asked", || hook.count() > 0).await;
        hook.quiet().await;
        self.quiet().await;
        assert_eq!(self.writes(), Vec::<String>::new(), "{why}");
    }

    /// Writes of Metacontroller so far, without events and its own objects.
    pub fn writes(&self) -> Vec<String> {
        self.traffic.writes.borrow().clone()
    }

    /// Waits until Metacontroller has written nothing for a while.
    pub async fn quiet(&self) {
        quiet("an end of the writes", &mut self.traffic.writes.subscribe()).await;
    }

    pub fn clear_writes(&self) {
        self.traffic.writes.send_replace(Vec::new());
    }

    /// Makes Metacontroller's requests with this text in their URI fail from now on; open watches continue.
    pub fn break_requests(&self, text: &str, code: u16) {
        self.break_some("", text, code, usize::MAX);
    }

    /// The same for the next `times` requests of a method.
    pub fn break_some(&self, method: &'static str, text: &str, code: u16, times: usize) {
        *self.traffic.broken.lock() = Some(Broken { method, text: text.to_owned(), code, times });
    }

    /// How many of these requests have not come yet.
    pub fn left_to_break(&self) -> usize {
        self.traffic.broken.lock().as_ref().map_or(0, |broken| broken.times)
    }

    /// Bodies of Metacontroller's deletions so far.
    pub fn deletions(&self) -> Vec<Value> {
        self.traffic.deletions.lock().clone()
    }

    /// URIs of Metacontroller's reads so far.
    pub fn reads(&self) -> Vec<String> {
        self.traffic.reads.lock().clone()
    }

    /// Number of open watches of a path.
    pub fn watches(&self, path: &str) -> usize {
        self.traffic.watches.lock().get(path).copied().unwrap_or_default()
    }

    pub fn mend_requests(&self) {
        *self.traffic.broken.lock() = None;
    }

    pub async fn create(&self, resource: &str, object: Value) -> Value {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        self.rest.create(&gvr(resource), &namespace, object.to_string().into_bytes()).await.unwrap()
    }

    pub async fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        self.rest.find(&gvr(resource), namespace, name).await.unwrap()
    }

    pub async fn list(&self, resource: &str, namespace: &str) -> Vec<Value> {
        let list: Value = self.rest.list(&gvr(resource), namespace, "").await.unwrap();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    pub async fn names(&self, resource: &str, namespace: &str) -> Vec<String> {
        self.list(resource, namespace)
            .await
            .iter()
            .map(|o| o["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    }

    pub async fn merge(&self, resource: &str, namespace: &str, name: &str, patch: Value) -> Value {
        self.rest.merge(&gvr(resource), namespace, name, &patch).await.unwrap()
    }

    pub async fn merge_status(&self, resource: &str, namespace: &str, name: &str, patch: Value) -> Value {
        self.rest.merge_status(&gvr(resource), namespace, name, &patch).await.unwrap()
    }

    pub async fn delete(&self, resource: &str, namespace: &str, name: &str) {
        self.rest.delete(&gvr(resource), namespace, name, &Removal::default()).await.unwrap();
    }

    /// Waits until an object satisfies `holds`.
    pub async fn sees(
        &self,
        what: &str,
        resource: &str,
        namespace: &str,
        name: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
        self.sees_such(what, resource, namespace, name, &holds).await
    }

    /// Not generic, so that it is compiled once.
    async fn sees_such(
        &self,
        what: &str,
        resource: &str,
        namespace: &str,
        name: &str,
        holds: &dyn Fn(&Value) -> bool,
    ) -> Value {
        found(what, || async { self.get(resource, namespace, name).await.filter(|o| holds(o)) }).await
    }

    /// Waits for exactly these objects.
    pub async fn has(&self, resource: &str, namespace: &str, mut expected: Vec<&str>) {
        expected.sort_unstable();
        let expected: Vec<String> = expected.into_iter().map(str::to_owned).collect();
        equals(resource, &expected, async || self.names(resource, namespace).await).await;
    }

    /// Waits for the status of a parent.
    pub async fn status(&self, resource: &str, namespace: &str, name: &str, expected: Value) {
        equals(&format!("status of {name}"), &expected, async || {
            self.get(resource, namespace, name).await.map(|o| o["status"].clone()).unwrap_or_default()
        })
        .await;
    }

    pub async fn events(&self, reason: &str) -> Vec<Value> {
        let all = [self.list("v1/events", "ns1").await, self.list("v1/events", "default").await].concat();
        all.into_iter().filter(|event| event["reason"] == json!(reason)).collect()
    }

    /// Waits for an event whose message contains `text`.
    pub async fn event(&self, reason: &str, text: &str) -> Value {
        let what = format!("event {reason} {text}");
        found(&what, || async {
            self.events(reason)
                .await
                .into_iter()
                .find(|event| event["message"].as_str().unwrap_or_default().contains(text))
        })
        .await
    }

    /// Waits until a MapController has this reason.
    pub async fn reason(&self, name: &str, reason: &str) -> Value {
        let holds = |o: &Value| {
            o["status"]["conditions"][0]["reason"] == json!(reason)
                && o["status"]["observedGeneration"] == o["metadata"]["generation"]
        };
        self.sees(&format!("{name} is {reason}"), CONTROLLERS, "", name, holds).await
    }

    /// A MapController of Foos, of ConfigMaps to ConfigMaps in place, with its hooks.
    pub async fn controller(&self, name: &str, url: &str, more: Value) -> Value {
        let object = controller(name, url, more);
        let made = self.create(CONTROLLERS, object).await;
        self.reason(name, "Running").await;
        made
    }

    pub async fn foo(&self, name: &str, selector: Value) -> Value {
        self.create(FOOS, foo(name, json!({"selector": selector}))).await
    }

    /// A world with the MapController `mc1` and the parent `p`, which selects `app=x`.
    pub async fn with_parent(url: &str, more: Value) -> Self {
        let world = Self::start().await;
        world.controller("mc1", url, more).await;
        world.foo("p", app("x")).await;
        world
    }

    /// A world with the CompositeController `cc1`.
    pub async fn with_composite(url: &str, hooks: &[&str], more: Value) -> Self {
        let world = Self::start().await;
        world.create(COMPOSITES, composite(url, hooks, more)).await;
        world
    }

    /// Creates a CRD and waits until it is served.
    pub async fn define(&self, definition: Value) {
        let made = self.create(CRDS, definition).await;
        let is = |o: &Value| {
            let all = o["status"]["conditions"].as_array().cloned().unwrap_or_default();
            all.iter().any(|one| one["type"] == json!("Established") && one["status"] == json!("True"))
        };
        self.sees("served", CRDS, "", made["metadata"]["name"].as_str().unwrap(), is).await;
    }

    /// Deletes a CRD. Needs garbage collection.
    pub async fn undefine(&self, name: &str) {
        self.delete(CRDS, "", name).await;
        found("no longer defined", || async { self.get(CRDS, "", name).await.is_none().then_some(()) }).await;
    }

    pub async fn input(&self, name: &str, labels: Value, data: &str) -> Value {
        self.create(MAPS, map("ns1", name, labels, data)).await
    }
}
