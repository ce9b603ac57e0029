//! The condition of a MapController (MC-005).

use std::sync::Arc;

use runtime::rest::{Rest, is_conflict, message_of};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    cache::Cache,
    object::{self, Text},
    resource::Served,
};

/// State of the type Ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    ready: bool,
    reason: &'static str,
    message: String,
}

impl Condition {
    /// It runs.
    pub fn running() -> Self {
        Self { ready: true, reason: "Running", message: String::new() }
    }

    /// It doesn't, or not as it should.
    pub fn not_ready(reason: &'static str, message: impl Into<String>) -> Self {
        Self { ready: false, reason, message: message.into() }
    }
}

/// Sees to a controller's condition while it runs.
pub struct Health {
    rest: Rest,
    served: Served,
    object: Value,
}

impl Health {
    /// Of the controller `object`.
    pub fn new(rest: Rest, served: Served, object: Value) -> Self {
        Self { rest, served, object }
    }

    /// Writes what changes until `stop`: whether it has started, and which resource can't be followed.
    pub async fn run(
        self,
        caches: Vec<(String, Arc<Cache>)>,
        mut started: watch::Receiver<bool>,
        stop: CancellationToken,
    ) {
        let mut troubles: Vec<(String, watch::Receiver<Option<Text>>)> =
            caches.into_iter().map(|(name, cache)| (name, cache.trouble())).collect();
        let mut last = None;
        loop {
            let trouble = troubles.iter_mut().find_map(|(name, trouble)| {
                let why = trouble.borrow_and_update().clone()?;
                Some(Condition::not_ready("InputUnavailable", format!("{name}: {why}")))
            });
            let condition = match (trouble, *started.borrow_and_update()) {
                (Some(trouble), _) => Some(trouble),
                (None, true) => Some(Condition::running()),
                (None, false) => None,
            };
            if let Some(condition) = condition.filter(|condition| last.as_ref() != Some(condition)) {
                write(&self.rest, &self.served, &self.object, &condition).await;
                last = Some(condition);
            }
            let any = futures::future::select_all(
                troubles
                    .iter_mut()
                    .map(|(_, trouble)| Box::pin(async move { drop(trouble.changed().await) })),
            );
            tokio::select! {
                _ = any => {}
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

/// Writes the condition, unless it is there already. The time moves only when the status flips.
pub async fn write(rest: &Rest, served: &Served, object: &Value, condition: &Condition) {
    for _ in 0..5 {
        let live: Option<Value> = match rest.find(&served.gvr, "", object::name(object)).await {
            Ok(live) => live,
            Err(error) => return tracing::warn!(error = message_of(&error), "reading a MapController"),
        };
        let Some(mut live) = live.filter(|live| object::uid(live) == object::uid(object)) else { return };
        let status = with(live.get("status"), condition, object::generation(object), &machinery::time::now());
        if live.get("status") == Some(&status) {
            return;
        }
        live["status"] = status;
        let body = live.to_string().into_bytes();
        match rest.replace_status::<Value>(&served.gvr, "", object::name(object), body).await {
            Ok(_) => return,
            Err(error) if is_conflict(&error) => {}
            Err(error) => {
                return tracing::warn!(error = message_of(&error), "writing a MapController's status");
            }
        }
    }
}

fn with(status: Option<&Value>, condition: &Condition, generation: i64, now: &str) -> Value {
    let text = if condition.ready { "True" } else { "False" };
    let known = status.and_then(|status| status.get("conditions")).and_then(Value::as_array);
    let before = known.into_iter().flatten().find(|one| one.get("type") == Some(&json!("Ready")));
    let kept = before.filter(|one| one.get("status") == Some(&json!(text)));
    let since = kept.and_then(|one| one.get("lastTransitionTime")).and_then(Value::as_str).unwrap_or(now);
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

    /// MC-005: the time is that of the last flip.
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
