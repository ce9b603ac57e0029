//! How the cost of requests grows: no operation may cost more than n log n.
//!
//! `scripts/growth` runs [`all_operations`] under valgrind, which counts instructions: for each size of each operation
//! the program calls [`growth_mark`] before and after the request, and valgrind writes the count. The counts of three
//! sizes, each twice the one before, show how the cost grows: the step from the second to the third size costs twice
//! the step from the first to the second if the cost is linear, four times if it is quadratic. Constant costs cancel
//! out, and nothing depends on time. A plain `cargo test` runs every operation once, with a small size, so that the
//! table stays valid.

mod changes;
#[path = "../it/common.rs"]
mod common;
mod custom;
mod functions;
mod operations;

use std::time::Duration;

use bytes::Bytes;
use common::TestServer;
use http_body_util::BodyExt as _;
use kubestellar_apiserver::authz::Authorizer;
use serde_json::Value;
use testkit::wait::{until, when};

/// A request and the expected status.
pub(crate) struct Call {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    /// Name and value.
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Bytes,
    pub(crate) status: u16,
    /// Paths that are watched meanwhile. Each watch must bring one event.
    pub(crate) watched: Vec<String>,
    /// Called instead of sending a request: something that a component does with what clients wrote.
    pub(crate) function: Option<Box<dyn FnOnce() -> Result<(), String>>>,
    /// Group and plural that must be served, in version `v1`, before the call counts as done.
    pub(crate) serves: Option<(String, String)>,
    /// The call is done when the catalog has changed, because definitions are compiled in the background.
    pub(crate) recompiles: bool,
}

impl Call {
    pub(crate) fn new(method: &'static str, path: impl Into<String>, body: &Value) -> Self {
        let kind = match method {
            "STRATEGIC" => "application/strategic-merge-patch+json",
            "MERGE" => "application/merge-patch+json",
            "JSON" => "application/json-patch+json",
            "APPLY" => "application/apply-patch+yaml",
            _ => "application/json",
        };
        let status = if method == "POST" { 201 } else { 200 };
        let method = match method {
            "STRATEGIC" | "MERGE" | "JSON" | "APPLY" => "PATCH",
            other => other,
        };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        Self {
            method,
            path: path.into(),
            headers: vec![("content-type", kind.to_owned())],
            body: body.into(),
            status,
            watched: Vec::new(),
            function: None,
            serves: None,
            recompiles: false,
        }
    }

    pub(crate) fn function(function: impl FnOnce() -> Result<(), String> + 'static) -> Self {
        Self { function: Some(Box::new(function)), ..Self::get("") }
    }

    pub(crate) fn watched(mut self, paths: Vec<String>) -> Self {
        self.watched = paths;
        self
    }

    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self::new("GET", path, &Value::Null)
    }

    pub(crate) fn answers(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    pub(crate) fn with(mut self, header: &'static str, value: &str) -> Self {
        self.headers.retain(|(name, _)| *name != header);
        self.headers.push((header, value.to_owned()));
        self
    }

    pub(crate) fn text(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn recompiles(mut self) -> Self {
        self.recompiles = true;
        self
    }

    pub(crate) fn serves(mut self, group: &str, plural: &str) -> Self {
        self.serves = Some((group.to_owned(), plural.to_owned()));
        self
    }
}

/// An operation at one size.
pub(crate) struct Plan {
    /// Requests to prepare the operation.
    pub(crate) before: Vec<Call>,
    /// The request whose cost is measured.
    pub(crate) measured: Call,
    /// Collections and objects that are deleted afterwards.
    pub(crate) after: Vec<String>,
}

/// A request that a client can send in any size.
pub(crate) struct Operation {
    pub(crate) name: &'static str,
    /// The smallest of the three sizes.
    pub(crate) size: usize,
    pub(crate) plan: fn(usize) -> Plan,
}

/// Valgrind writes its counts whenever this function is called.
#[inline(never)]
pub fn growth_mark(at: usize) -> usize {
    std::hint::black_box(at)
}

/// Sends the request. `Err` describes an unexpected answer.
async fn send(server: &TestServer, call: &Call) -> Result<(), String> {
    let headers: Vec<(&str, &str)> =
        call.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let generation = server.server.catalog().generation;
    let answer = server.send(call.method, &call.path, &headers, call.body.clone()).await;
    if answer.status != call.status {
        let shown: String = answer.text.chars().take(600).collect();
        return Err(format!("{} {}: {} and {shown}", call.method, call.path, answer.status));
    }
    if call.recompiles {
        when("another catalog", || server.server.catalog().generation != generation).await;
    }
    if let Some((group, plural)) = &call.serves {
        // Wait until the server has stored that the definition is served, so that its background work is not counted
        // later.
        let definition = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{group}");
        let is_established =
            |condition: &Value| condition["type"] == "Established" && condition["status"] == "True";
        until("the definition to be served", async || {
            let there = server.get(&definition).await.body;
            let conditions = there["status"]["conditions"].as_array();
            conditions.is_some_and(|all| all.iter().any(is_established))
                && server.server.catalog().resource(group, "v1", plural).is_some()
        })
        .await;
    }
    Ok(())
}

async fn run(server: &TestServer, operation: &Operation, size: usize) -> Result<(), String> {
    let mut plan = (operation.plan)(size);
    let mut before = Ok(());
    for call in &plan.before {
        before = before.and(send(server, call).await);
    }
    let mut watches = Vec::new();
    for path in &plan.measured.watched {
        watches.push(server.raw("GET", path, &[], "").await.into_body());
    }
    growth_mark(size);
    let mut answered = match plan.measured.function.take() {
        Some(function) => function(),
        None => send(server, &plan.measured).await,
    };
    for watch in &mut watches {
        if !matches!(watch.frame().await, Some(Ok(_))) {
            answered = Err("a watch ended".into());
        }
    }
    growth_mark(size);
    for path in &plan.after {
        server.delete(path).await;
    }
    before.and(answered)
}

/// A server with the objects that all operations need.
async fn server() -> TestServer {
    let server = TestServer::start_with(|config| {
        config.authorizer = Authorizer::rbac(config.store.clone());
        config.rbac_bootstrap = true;
        // Under valgrind everything takes long.
        config.limits.request_timeout = Duration::from_secs(3600);
    })
    .await;
    // No controller creates it here, and pods need it.
    let account = serde_json::json!({"metadata": {"name": "own"}});
    server.post("/api/v1/namespaces/t/serviceaccounts", account).await.expect(201);
    server
}

fn all() -> Vec<Operation> {
    operations::all().into_iter().chain(custom::all()).chain(functions::all()).collect()
}

/// Every operation of the table is answered as it says.
#[tokio::test]
async fn every_operation_of_the_growth_table_is_answered() {
    let server = server().await;
    let mut wrong = Vec::new();
    for operation in all() {
        if let Err(what) = run(&server, &operation, 5).await {
            wrong.push(format!("{}: {what}", operation.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Run by `scripts/growth`. `GROWTH_ONLY` selects the operations whose names contain it. Prints the meaning of the
/// marks.
#[tokio::test]
#[ignore = "for scripts/growth, which counts"]
async fn all_operations() {
    let only = std::env::var("GROWTH_ONLY").unwrap_or_default();
    let server = server().await;
    let mut wrong = Vec::new();
    for operation in all().iter().filter(|operation| operation.name.contains(&only)) {
        // The first round is not counted: it initialises caches.
        for (at, factor) in [0, 1, 2, 4].into_iter().enumerate() {
            let size = if at == 0 { 5 } else { factor * operation.size };
            if at > 0 {
                println!("GROWTH {size} {}", operation.name);
            }
            if let Err(what) = run(&server, operation, size).await {
                wrong.push(format!("{} at {size}: {what}", operation.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
