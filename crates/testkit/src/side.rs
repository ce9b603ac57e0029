//! A space in memory, and the requests that tests send to it.

use std::path::Path;
use std::sync::Mutex;

use futures::future::BoxFuture;
use http::Request;
use kube::Client;
use serde_json::{Value, json};
use space::{Identity, Space, SpaceConfig, controllers::CsrSigner};
use store::Engine;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::wait::{DEADLINE, within};

/// Starts a space whose address nobody listens at.
///
/// # Panics
///
/// If it does not start.
pub async fn space(engine: &Engine, data: &Path, name: &str) -> Space {
    let url = format!("https://127.0.0.1:1/spaces/{name}");
    let config = SpaceConfig { name, data, url, advertise: "127.0.0.1:1".into() };
    Space::start(engine, config).await.expect("a space")
}

/// The signer of client certificates of a space.
///
/// # Panics
///
/// If the space has no CA.
pub fn signer(space: &Space) -> CsrSigner {
    CsrSigner::new(&space.keys().client_ca, &space.keys().client_ca_key).expect("a signer")
}

/// Runs the controllers that every control plane has, until `stop`. `client` is the one that they use; `signer` signs
/// certificates. Also returns whether the controllers work.
///
/// # Panics
///
/// If the controllers fail.
pub fn controllers(
    space: &Space,
    client: Client,
    signer: Option<CsrSigner>,
    stop: CancellationToken,
) -> (BoxFuture<'static, ()>, watch::Receiver<bool>) {
    let config = space::controllers::Config { ca_bundle_pem: String::new(), csr_signer: signer };
    let (store, (ready, is_ready)) = (space.server().store().clone(), watch::channel(false));
    let run = async move {
        space::controllers::run(client, store, config, ready, stop).await.expect("controllers");
    };
    (Box::pin(run), is_ready)
}

/// A space and a client of its administrator. Objects and collections are named by their paths. A request that fails
/// unexpectedly panics.
pub struct Side {
    pub client: Client,
    pub space: Space,
}

impl Side {
    /// Starts a space.
    pub async fn start(engine: &Engine, data: &Path, name: &str) -> Self {
        let space = space(engine, data, name).await;
        Self { client: space.client(&Identity::admin()), space }
    }

    /// Sends a request. A body of `null` is empty.
    ///
    /// # Errors
    ///
    /// The refusal of the space.
    pub async fn send(
        &self,
        method: &str,
        path: &str,
        content: &str,
        body: &Value,
    ) -> Result<Value, kube::Error> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(path).header("content-type", content);
        self.client.request(request.body(body).expect("a request")).await
    }

    /// Creates an object in a collection.
    pub async fn post(&self, path: &str, body: Value) -> Value {
        self.send("POST", path, "application/json", &body).await.expect("created")
    }

    /// Applies a merge patch.
    pub async fn patch(&self, path: &str, body: Value) -> Value {
        self.send("PATCH", path, "application/merge-patch+json", &body).await.expect("patched")
    }

    /// Deletes with the default options.
    pub async fn delete(&self, path: &str) {
        self.delete_with(path, json!({})).await;
    }

    /// Deletes with these options and returns the answer.
    pub async fn delete_with(&self, path: &str, options: Value) -> Value {
        self.send("DELETE", path, "application/json", &options).await.expect("deleted")
    }

    /// Returns the object at `path`, if there is one.
    pub async fn get(&self, path: &str) -> Option<Value> {
        match self.send("GET", path, "application/json", &Value::Null).await {
            Ok(found) => Some(found),
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(error) => panic!("{path}: {error}"),
        }
    }

    /// Returns the objects of a collection.
    pub async fn list(&self, path: &str) -> Vec<Value> {
        self.get(path).await.expect("a collection")["items"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until `ask` has a result; asks again at every change of the space.
    pub async fn found<T>(&self, what: &str, ask: impl AsyncFnMut() -> Option<T>) -> T {
        within(what, self.answered(ask)).await
    }

    async fn answered<T>(&self, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
        let store = self.space.server().store().clone();
        loop {
            let mut changes = store.watch_all(store.revision()).expect("a watch");
            if let Some(found) = ask().await {
                return found;
            }
            changes.next().await.expect("a change");
        }
    }

    /// Waits until the object at `path` satisfies `done`.
    pub async fn until(&self, path: &str, done: impl Fn(&Value) -> bool) -> Value {
        self.until_any(path, |found| found.is_some_and(&done)).await.expect("an object")
    }

    /// Waits until there is no object at `path`.
    pub async fn until_gone(&self, path: &str) {
        self.until_any(path, |found| found.is_none()).await;
    }

    /// Waits until the object at `path`, or that there is none, satisfies `done`.
    pub async fn until_any(&self, path: &str, done: impl Fn(Option<&Value>) -> bool) -> Option<Value> {
        self.until_such(path, &done).await
    }

    /// Not generic, so that it is compiled once.
    async fn until_such(&self, path: &str, done: &dyn Fn(Option<&Value>) -> bool) -> Option<Value> {
        let last = Mutex::new(None);
        let answered = self.answered(async || {
            let found = self.get(path).await;
            if done(found.as_ref()) {
                return Some(found);
            }
            *last.lock().expect("no panic") = found;
            None
        });
        let waited = tokio::time::timeout(DEADLINE, answered).await;
        waited.unwrap_or_else(|_| panic!("{path} stays {:#}", json!(last.lock().expect("no panic").clone())))
    }
}
