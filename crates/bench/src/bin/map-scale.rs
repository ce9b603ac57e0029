//! Measures a MapController with many inputs: `cargo run --release -p kubestellar-bench --bin map-scale [N [P [I]]]`.
//!
//! One MapController, one parent, N inputs (first argument, 10,000 by default): the time until all outputs
//! exist, hook calls, memory. Then one input changes: calls and latency. Then P parents with I inputs each
//! (second and third argument, 1,000 and 100 by default). The hook server and the API server run in the same
//! process, and the memory is that of all of them. Fails unless each input costs exactly one call, and each
//! change one more.

#![allow(clippy::pedantic, clippy::unwrap_used, clippy::print_stdout, reason = "a measuring program")]

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::StreamExt as _;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use metacontroller::{Config, run};
use runtime::rest::{Gvr, Rest};
use serde_json::{Value, json};
use space::{Identity, Space, SpaceConfig};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() {
    let number =
        |at: usize, default: usize| std::env::args().nth(at).map_or(default, |text| text.parse().unwrap());
    let (inputs, parents, each) = (number(1, 10_000), number(2, 1_000), number(3, 100));
    one_parent(inputs).await;
    many_parents(parents, each).await;
}

struct Bench {
    rest: Rest,
    calls: Arc<AtomicUsize>,
    last: watch::Receiver<Instant>,
    stop: CancellationToken,
    _data: tempfile::TempDir,
    _space: Space,
}

fn maps() -> Gvr {
    Gvr::new("", "v1", "configmaps")
}

fn foos() -> Gvr {
    Gvr::new("example.com", "v1", "foos")
}

impl Bench {
    async fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let engine = store::Engine::in_memory();
        let config = SpaceConfig {
            name: "bench",
            data: data.path(),
            url: "https://127.0.0.1:1/spaces/bench".into(),
            advertise: "127.0.0.1:1".into(),
        };
        let space = Space::start(&engine, config).await.unwrap();
        let client = space.client(&Identity::admin());
        let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let definition = json!({
            "metadata": {"name": "foos.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"kind": "Foo", "plural": "foos", "singular": "foo", "listKind": "FooList"},
                "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open, "status": open}}}}],
            },
        });
        let mut crds = apis::crds::metacontroller();
        crds.push(serde_json::from_value(definition).unwrap());
        runtime::install(&client, &crds, "bench").await.unwrap();
        let rest = Rest::new(client.clone());
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns1"}});
        rest.create::<Value>(&Gvr::new("", "v1", "namespaces"), "", namespace.to_string().into_bytes())
            .await
            .unwrap();
        let calls = Arc::new(AtomicUsize::new(0));
        let (reported, last) = watch::channel(Instant::now());
        let url = hook(calls.clone(), reported).await;
        let controller = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "MapController", "metadata": {"name": "bench"},
            "spec": {
                "parentResource": {"apiVersion": "example.com/v1", "resource": "foos"},
                "inputResources": [{"apiVersion": "v1", "resource": "configmaps"}],
                "outputResources": [{"apiVersion": "v1", "resource": "secrets", "updateStrategy": {"method": "InPlace"}}],
                "parallelism": 20,
                "hooks": {"map": {"webhook": {"url": url}}},
            },
        });
        let gvr = Gvr::new("metacontroller.k8s.io", "v1alpha1", "mapcontrollers");
        rest.create::<Value>(&gvr, "", controller.to_string().into_bytes()).await.unwrap();
        let stop = CancellationToken::new();
        let (token, config) = (stop.clone(), Config::default());
        let client = space.client(&Identity::component("metacontroller", &["system:masters"]));
        tokio::spawn(async move { run(client, config, token).await.unwrap() });
        Self { rest, calls, last, stop, _data: data, _space: space }
    }

    async fn inputs(&self, labels: impl Iterator<Item = (String, String)>) {
        let made = labels.map(|(name, app)| {
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "ns1", "labels": {"app": app}}, "data": {"v": "1"}});
            let rest = self.rest.clone();
            async move { rest.create::<Value>(&maps(), "ns1", map.to_string().into_bytes()).await.unwrap() }
        });
        futures::stream::iter(made).buffer_unordered(64).for_each(|_| async {}).await;
    }

    async fn parent(&self, name: &str, app: &str) {
        let parent = json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": name, "namespace": "ns1"}, "spec": {"selector": {"matchLabels": {"app": app}}}});
        self.rest.create::<Value>(&foos(), "ns1", parent.to_string().into_bytes()).await.unwrap();
    }

    async fn total(&self, name: &str) -> usize {
        let parent: Value = self.rest.get(&foos(), "ns1", name).await.unwrap();
        parent["status"]["outputs"]["secrets"]["total"].as_u64().unwrap_or_default() as usize
    }

    /// Checks the number of calls so far.
    fn cost(&self, calls: usize) {
        assert_eq!(self.calls.load(Ordering::SeqCst), calls, "calls of the hook");
    }

    /// Waits until no call has come for a second.
    async fn quiet(&self) {
        let mut before = usize::MAX;
        while before != self.calls.load(Ordering::SeqCst) {
            before = self.calls.load(Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

async fn one_parent(count: usize) {
    let mut bench = Bench::start().await;
    bench.inputs((0..count).map(|i| (format!("i{i}"), "x".to_owned()))).await;
    let (rss, begun) = (memory(), Instant::now());
    bench.parent("p", "x").await;
    while bench.total("p").await < count {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let took = begun.elapsed();
    bench.quiet().await;
    bench.cost(count);
    println!(
        "1 parent x {count} inputs: status complete after {:.2} s, {} calls, {} MiB (before: {} MiB)",
        took.as_secs_f64(),
        bench.calls.load(Ordering::SeqCst),
        memory(),
        rss,
    );
    bench.calls.store(0, Ordering::SeqCst);
    let mut latencies = Vec::new();
    for i in 0..100 {
        bench.last.borrow_and_update();
        let begun = Instant::now();
        let patch = json!({"metadata": {"annotations": {"poke": i.to_string()}}});
        bench.rest.merge::<Value>(&maps(), "ns1", &format!("i{}", i % count), &patch).await.unwrap();
        bench.last.changed().await.unwrap();
        latencies.push(bench.last.borrow().saturating_duration_since(begun));
    }
    bench.quiet().await;
    bench.cost(100);
    latencies.sort_unstable();
    println!(
        "one input changes, 100 times: {} calls, from edit to call p50 {:.2} ms, p99 {:.2} ms",
        bench.calls.load(Ordering::SeqCst),
        latencies[49].as_secs_f64() * 1e3,
        latencies[98].as_secs_f64() * 1e3,
    );
    bench.stop.cancel();
}

async fn many_parents(parents: usize, each: usize) {
    let bench = Bench::start().await;
    let all = (0..parents).flat_map(|p| (0..each).map(move |i| (format!("i{p}-{i}"), format!("a{p}"))));
    bench.inputs(all).await;
    let begun = Instant::now();
    for p in 0..parents {
        bench.parent(&format!("p{p}"), &format!("a{p}")).await;
    }
    for p in 0..parents {
        while bench.total(&format!("p{p}")).await < each {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let took = begun.elapsed();
    bench.quiet().await;
    bench.cost(parents * each);
    println!(
        "{parents} parents x {each} inputs: all complete after {:.2} s, {} calls, {} MiB",
        took.as_secs_f64(),
        bench.calls.load(Ordering::SeqCst),
        memory(),
    );
    bench.stop.cancel();
}

/// Resident memory in MiB.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).unwrap_or_default() / 1024
}

async fn hook(calls: Arc<AtomicUsize>, reported: watch::Sender<Instant>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/map", listener.local_addr().unwrap());
    let reported = Arc::new(reported);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (calls, reported) = (calls.clone(), reported.clone());
            tokio::spawn(async move {
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    calls.fetch_add(1, Ordering::SeqCst);
                    reported.send_replace(Instant::now());
                    async move {
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        let request: Value = serde_json::from_slice(&body).unwrap();
                        let (name, data) = (&request["input"]["metadata"]["name"], &request["input"]["data"]);
                        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {"v": "MQ=="}, "type": "Opaque"});
                        assert!(!data.is_null());
                        let answer = json!({"outputs": [secret]}).to_string();
                        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(answer))))
                    }
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    url
}
