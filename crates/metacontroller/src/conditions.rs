//! The condition of a MapController (MC-005).

use std::sync::Arc;

use runtime::{
    Backoff,
    failure::{is_clash, message_of},
    rest::Rest,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    cache::Cache,
    object::{self, Text},
    resource::Served,
};

/// The condition of type Ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    ready: bool,
    reason: &'static str,
    message: String,
}

impl Condition {
    /// The controller runs.
    pub fn running() -> Self {
        Self { ready: true, reason: "Running", message: String::new() }
    }

    /// The controller does not run, or not as it should.
    pub fn not_ready(reason: &'static str, message: impl Into<String>) -> Self {
        Self { ready: false, reason, message: message.into() }
    }
}

/// Maintains a controller's condition while it runs.
pub struct Health {
    rest: Rest,
    served: Served,
    object: Value,
}

impl Health {
    /// Maintains the condition of the controller `object`.
    pub fn new(rest: Rest, served: Served, object: Value) -> Self {
        Self { rest, served, object }
    }

    /// Writes each change of the condition until `stop`: whether the controller has started, and which
    /// resource cannot be followed. Failed writes are retried.
    pub async fn run(
        self,
        caches: Vec<(String, Arc<Cache>)>,
        mut started: watch::Receiver<bool>,
        stop: CancellationToken,
    ) {
        let mut troubles: Vec<(String, watch::Receiver<Option<Text>>)> =
            caches.into_iter().map(|(name, cache)| (name, cache.watch_error())).collect();
        let (mut last, mut backoff) = (None, Backoff::for_server());
        loop {
            let watch_error = troubles.iter_mut().find_map(|(name, watch_error)| {
                let why = watch_error.borrow_and_update().clone()?;
                Some(Condition::not_ready("InputUnavailable", format!("{name}: {why}")))
            });
            let condition = match (watch_error, *started.borrow_and_update()) {
                (Some(watch_error), _) => Some(watch_error),
                (None, true) => Some(Condition::running()),
                (None, false) => None,
            };
            let mut again = None;
            if let Some(condition) = condition.filter(|condition| last.as_ref() != Some(condition)) {
                match write(&self.rest, &self.served, &self.object, &condition).await {
                    Ok(()) => {
                        last = Some(condition);
                        backoff.reset();
                    }
                    Err(error) => {
                        let name = object::name(&self.object);
                        tracing::warn!(name, error, "the condition can't be written; will be tried again");
                        // The condition on the server is not known any more.
                        last = None;
                        again = Some(backoff.pause());
                    }
                }
            }
            let timer = async {
                match again {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            let any = futures::future::select_all(
                troubles
                    .iter_mut()
                    .map(|(_, watch_error)| Box::pin(async move { drop(watch_error.changed().await) })),
            );
            tokio::select! {
                _ = any => {}
                () = timer => {}
                changed = started.changed(), if !*started.borrow() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = stop.cancelled() => return,
            }
        }
    }
}

/// Writes the condition, unless it is there already or the object is gone. The time changes only when the
/// status changes. Returns an error if the condition could not be written.
pub async fn write(
    rest: &Rest,
    served: &Served,
    object: &Value,
    condition: &Condition,
) -> Result<(), String> {
    for _ in 0..5 {
        let live: Option<Value> = rest
            .find(&served.gvr, "", object::name(object))
            .await
            .map_err(|error| format!("reading the object: {}", message_of(&error)))?;
        let Some(mut live) = live.filter(|live| object::uid(live) == object::uid(object)) else {
            return Ok(());
        };
        let status = with(live.get("status"), condition, object::generation(object), &machinery::time::now());
        if live.get("status") == Some(&status) {
            return Ok(());
        }
        live["status"] = status;
        let body = live.to_string().into_bytes();
        match rest.replace_status::<Value>(&served.gvr, "", object::name(object), body).await {
            Ok(_) => return Ok(()),
            Err(error) if is_clash(&error) => {}
            Err(error) => return Err(format!("writing its status: {}", message_of(&error))),
        }
    }
    Err("it is changed by others all the time".into())
}

fn with(status: Option<&Value>, condition: &Condition, generation: i64, now: &str) -> Value {
    let text = if condition.ready { "True" } else { "False" };
    let known = status.and_then(|status| status.get("conditions")).and_then(Value::as_array);
    let since = machinery::conditions::since(known.into_iter().flatten(), "Ready", text, now);
    json!({
        "observedGeneration": generation,
        "conditions": [{
            "type": "Ready",
            "status": text,
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": since,
            "observedGeneration": generation,
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MC-005: a condition that could not be written is written later, although nothing changes.
    #[tokio::test(start_paused = true)]
    async fn mc_005_a_failed_write_is_tried_again() {
        let (writes, mut written) = watch::channel(0);
        let answer = move |request: http::Request<kube::client::Body>| {
            let count = |writes: &watch::Sender<u32>| {
                writes.send_modify(|count| *count += 1);
                *writes.borrow()
            };
            let is_get = request.method() == http::Method::GET;
            let status = if is_get || count(&writes) > 2 { 200 } else { 500 };
            let body =
                json!({"apiVersion": "v1", "kind": "MapController", "metadata": {"name": "mc", "uid": "u"}});
            let body = kube::client::Body::from(body.to_string().into_bytes());
            let answer = http::Response::builder().status(status).body(body).unwrap();
            std::future::ready(Ok::<_, std::convert::Infallible>(answer))
        };
        let stop = CancellationToken::new();
        let endless = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>()
        });
        let served = Served {
            gvr: runtime::rest::Gvr::new("example.com", "v1", "mapcontrollers"),
            kind: "MapController".into(),
            namespaced: false,
            has_status: true,
        };
        let caches = crate::cache::Caches::new(kube::Client::new(endless, "default"), &stop);
        let cache = caches.get(&served);
        let rest = Rest::with_manager(kube::Client::new(tower::service_fn(answer), "default"), "test");
        let object = json!({"metadata": {"name": "mc", "uid": "u"}});
        let (_started, is_started) = watch::channel(true);
        let health = Health::new(rest, served, object);
        let running = tokio::spawn(health.run(vec![("x".into(), cache)], is_started, stop.clone()));
        tokio::time::timeout(std::time::Duration::from_secs(60), written.wait_for(|count| *count == 3))
            .await
            .unwrap()
            .unwrap();
        stop.cancel();
        running.await.unwrap();
        caches.shutdown().await;
    }

    /// MC-005: the time is that of the last change of the status.
    #[test]
    fn mc_005_the_time_moves_with_the_status_only() {
        let first = with(None, &Condition::not_ready("Starting", ""), 1, "t1");
        let second = with(Some(&first), &Condition::not_ready("InvalidSpec", "x"), 2, "t2");
        assert_eq!(second["conditions"][0]["lastTransitionTime"], json!("t1"));
        assert_eq!(second["conditions"][0]["reason"], json!("InvalidSpec"));
        let third = with(Some(&second), &Condition::running(), 2, "t3");
        assert_eq!(third["conditions"][0]["lastTransitionTime"], json!("t3"));
        assert_eq!(third["observedGeneration"], json!(2));
    }
}
