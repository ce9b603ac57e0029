//! When an object that a hook made is ready (SP-022, SP-023).

use serde_json::Value;

/// Kinds that make pods. Where nothing runs pods they are never ready (SP-068).
pub(crate) const POD_KINDS: [(&str, &str); 6] = [
    ("v1", "Pod"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "DaemonSet"),
    ("batch/v1", "Job"),
    ("batch/v1", "CronJob"),
];

/// The state of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    NotReady,
    /// It will never be ready; the reason.
    Failed(String),
}

/// Whether the object makes pods.
pub(crate) fn makes_pods(object: &Value) -> bool {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    POD_KINDS.contains(&(text("apiVersion"), text("kind")))
}

/// The state of an object that exists. `kind` is given since lists do not repeat it.
pub(crate) fn state(kind: &str, object: &Value) -> State {
    let number = |path: &str| object.pointer(path).and_then(Value::as_i64);
    let ready = match kind {
        "Deployment" | "StatefulSet" => {
            number("/status/readyReplicas").unwrap_or(0) == number("/spec/replicas").unwrap_or(1)
        }
        "DaemonSet" => {
            number("/status/numberReady").unwrap_or(0)
                == number("/status/desiredNumberScheduled").unwrap_or(0)
        }
        "Job" => {
            if let Some(why) = failed_job(object) {
                return State::Failed(why);
            }
            number("/status/succeeded").unwrap_or(0) > 0
        }
        "Pod" => {
            let phase = object.pointer("/status/phase").and_then(Value::as_str);
            matches!(phase, Some("Running" | "Succeeded"))
        }
        "CustomResourceDefinition" => condition(object, "Established").is_some(),
        _ => true,
    };
    if ready { State::Ready } else { State::NotReady }
}

fn failed_job(job: &Value) -> Option<String> {
    let failed = condition(job, "Failed")?;
    let text = |field: &str| failed.get(field).and_then(Value::as_str).unwrap_or_default();
    Some(format!("{}: {}", text("reason"), text("message")))
}

/// The condition of this type, if its status is true.
fn condition<'a>(object: &'a Value, type_: &str) -> Option<&'a Value> {
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    let field = |condition: &Value, name: &str, value: &str| {
        condition.get(name).and_then(Value::as_str) == Some(value)
    };
    conditions.iter().find(|one| field(one, "type", type_) && field(one, "status", "True"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// SP-022, SP-023: the definitions of the original; a failed Job is known as such.
    #[test]
    fn sp_022_readiness_of_each_kind() {
        let failed = json!({"status": {"failed": 1, "conditions": [
            {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too often"}]}});
        for (kind, object, state_) in [
            ("Deployment", json!({"spec": {}, "status": {"readyReplicas": 1}}), State::Ready),
            ("Deployment", json!({"spec": {"replicas": 2}, "status": {"readyReplicas": 1}}), State::NotReady),
            ("Deployment", json!({"spec": {"replicas": 0}}), State::Ready),
            ("Deployment", json!({"spec": {}}), State::NotReady),
            ("StatefulSet", json!({"spec": {"replicas": 3}, "status": {"readyReplicas": 3}}), State::Ready),
            (
                "DaemonSet",
                json!({"status": {"numberReady": 1, "desiredNumberScheduled": 2}}),
                State::NotReady,
            ),
            ("DaemonSet", json!({"status": {"numberReady": 2, "desiredNumberScheduled": 2}}), State::Ready),
            ("Job", json!({"status": {"succeeded": 1}}), State::Ready),
            ("Job", json!({"status": {"failed": 1}}), State::NotReady),
            ("Job", failed, State::Failed("BackoffLimitExceeded: too often".into())),
            ("Pod", json!({"status": {"phase": "Running"}}), State::Ready),
            ("Pod", json!({"status": {"phase": "Pending"}}), State::NotReady),
            (
                "CustomResourceDefinition",
                json!({"status": {"conditions": [{"type": "Established", "status": "True"}]}}),
                State::Ready,
            ),
            (
                "CustomResourceDefinition",
                json!({"status": {"conditions": [{"type": "Established", "status": "False"}]}}),
                State::NotReady,
            ),
            ("ConfigMap", json!({}), State::Ready),
        ] {
            assert_eq!(state(kind, &object), state_, "{kind} {object}");
        }
    }
}
