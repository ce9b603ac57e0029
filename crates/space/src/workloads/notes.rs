//! The Events that scheduler, kubelet and controllers would write. Pure.
//!
//! They are derived from writes that succeeded, so a restart repeats none. Cost: none for a write that a user would not
//! be told about; else one queued Event for each sentence. [`Notes`] bounds them for the whole space.

use parking_lot::Mutex;
use runtime::events::{EventQueue, Events, InvolvedObject, NewEvent};
use runtime::limiter::{Rate, TokenBucket};
use serde_json::Value;
use tokio::time::Instant;

use super::object::{
    Kind, Write, condition, conditions, field, is_deleting, name, namespace, number, replicas, text,
};

/// Events of a space: a burst, and what is added each second. More than that is dropped, so that a space keeps at most
/// some 8,000 of these Events, which expire after an hour.
const SPACE: Rate = Rate { qps: 2.0, burst: 1_000 };
/// Events of one object, as `client-go` limits them.
pub(super) const OBJECT: Rate = Rate { qps: 1.0 / 300.0, burst: 25 };

/// Queues the Events of a space for the task that writes them.
pub(super) struct Notes {
    events: Events,
    budget: Mutex<TokenBucket>,
}

impl Notes {
    pub(super) fn new() -> (Self, EventQueue) {
        let (events, inbox) = Events::new();
        (Self { events, budget: Mutex::new(TokenBucket::new(SPACE, Instant::now())) }, inbox)
    }

    /// Queues Events, or drops them if there are too many.
    pub(super) fn queue(&self, events: Vec<NewEvent>) {
        for event in events {
            if !self.budget.lock().take(Instant::now()) || !self.events.queue(event) {
                tracing::debug!("too many events at once: some are not written");
                return;
            }
        }
    }
}

/// Whether [`events`] needs the state before this write.
pub(super) fn compares(write: &Write) -> bool {
    match write {
        Write::Update(kind, _) => *kind == Kind::ReplicaSet,
        Write::Status(kind, _) => matches!(kind, Kind::Pod | Kind::Job),
        Write::Delete { kind, .. } => *kind == Kind::Pod,
        Write::Bind { .. } => true,
        Write::Create(..) | Write::Patch { .. } => false,
    }
}

/// The Events about a write. `before` is the object as it was, `after` what the server answered.
pub(super) fn events(write: &Write, before: Option<&Value>, after: &Value, node: &str) -> Vec<NewEvent> {
    match (write, before) {
        (Write::Create(Kind::Pod, _), _) => created_pod(after).into_iter().collect(),
        (Write::Create(Kind::ReplicaSet, _), _) => scaled(after, 0).into_iter().collect(),
        (Write::Update(Kind::ReplicaSet, _), Some(before)) => {
            scaled(after, replicas(before)).into_iter().collect()
        }
        (Write::Bind { .. }, Some(pod)) => vec![scheduled(pod, node)],
        (Write::Status(Kind::Pod, _), Some(before)) => started_pod(before, after, node),
        (Write::Status(Kind::Job, _), Some(before)) => job(before, after),
        (Write::Delete { kind: Kind::Pod, .. }, Some(pod)) => deleted_pod(pod, node),
        _ => Vec::new(),
    }
}

fn about(object: &Value, kind: Kind) -> InvolvedObject {
    let known = InvolvedObject::object(object);
    // The answers of requests for one object name both; stored objects may not.
    InvolvedObject { api_version: kind.api_version().into(), kind: kind.name().into(), ..known }
}

/// The controller of an object, as Events name it.
fn controller(object: &Value) -> Option<(Kind, InvolvedObject)> {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array)?;
    let owner = owners.iter().find(|owner| owner.get("controller") == Some(&Value::Bool(true)))?;
    let of = |key: &str| field(owner, key).to_owned();
    let kind = Kind::ALL.into_iter().find(|kind| {
        kind.name() == field(owner, "kind") && kind.api_version() == field(owner, "apiVersion")
    })?;
    let about = InvolvedObject {
        api_version: of("apiVersion"),
        kind: of("kind"),
        namespace: namespace(object).to_owned(),
        name: of("name"),
        uid: of("uid"),
        version: String::new(),
    };
    Some((kind, about))
}

fn component(kind: Kind) -> &'static str {
    match kind {
        Kind::Deployment => "deployment-controller",
        Kind::ReplicaSet => "replicaset-controller",
        Kind::StatefulSet => "statefulset-controller",
        Kind::DaemonSet => "daemonset-controller",
        _ => "job-controller",
    }
}

fn created_pod(pod: &Value) -> Option<NewEvent> {
    let (kind, owner) = controller(pod)?;
    let message = match kind {
        Kind::StatefulSet => format!("create Pod {} in StatefulSet {} successful", name(pod), owner.name),
        _ => format!("Created pod: {}", name(pod)),
    };
    Some(NewEvent::normal(owner, "SuccessfulCreate", message).by(component(kind), ""))
}

fn deleted_pod(pod: &Value, node: &str) -> Vec<NewEvent> {
    let mut events = Vec::new();
    // Somebody else has deleted a pod that is being deleted already.
    if let Some((kind, owner)) = controller(pod).filter(|_| !is_deleting(pod)) {
        let message = match kind {
            Kind::StatefulSet => format!("delete Pod {} in StatefulSet {} successful", name(pod), owner.name),
            _ => format!("Deleted pod: {}", name(pod)),
        };
        events.push(NewEvent::normal(owner, "SuccessfulDelete", message).by(component(kind), ""));
    }
    if text(pod, "/status/phase") == "Running" {
        for container in names(pod, "containers") {
            let message = format!("Stopping container {container} (simulated)");
            events.push(kubelet(pod, "containers", container, "Killing", message, node));
        }
    }
    events
}

fn scaled(set: &Value, before: i64) -> Option<NewEvent> {
    let (kind, owner) = controller(set).filter(|(kind, _)| *kind == Kind::Deployment)?;
    let (now, set) = (replicas(set), name(set));
    let direction = match now.cmp(&before) {
        std::cmp::Ordering::Greater => "up",
        std::cmp::Ordering::Less => "down",
        std::cmp::Ordering::Equal => return None,
    };
    let message = format!("Scaled {direction} replica set {set} from {before} to {now}");
    Some(NewEvent::normal(owner, "ScalingReplicaSet", message).by(component(kind), ""))
}

fn scheduled(pod: &Value, node: &str) -> NewEvent {
    let message = format!("Successfully assigned {}/{} to {node}", namespace(pod), name(pod));
    NewEvent::normal(about(pod, Kind::Pod), "Scheduled", message).by("default-scheduler", "")
}

fn names<'a>(pod: &'a Value, list: &str) -> impl Iterator<Item = &'a str> {
    let all = pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array);
    all.into_iter().flatten().map(|container| field(container, "name"))
}

fn kubelet(
    pod: &Value,
    list: &str,
    container: &str,
    reason: &'static str,
    message: String,
    node: &str,
) -> NewEvent {
    NewEvent::normal(about(pod, Kind::Pod), reason, message)
        .by("kubelet", node)
        .in_field(format!("spec.{list}{{{container}}}"))
}

/// A pod whose containers start. Pods of controllers are made with their node, which is when a scheduler assigns them.
fn started_pod(before: &Value, pod: &Value, node: &str) -> Vec<NewEvent> {
    let phase = text(before, "/status/phase");
    if !matches!(phase, "" | "Pending") || !matches!(text(pod, "/status/phase"), "Running" | "Succeeded") {
        return Vec::new();
    }
    let mut events: Vec<NewEvent> = controller(pod).map(|_| scheduled(pod, node)).into_iter().collect();
    for list in ["initContainers", "containers"] {
        let all = pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array);
        for container in all.into_iter().flatten() {
            let (name, image) = (field(container, "name"), field(container, "image"));
            let pulled = format!("Container image {image:?} already present on machine (simulated)");
            for (reason, message) in [
                ("Pulled", pulled),
                ("Created", format!("Created container: {name} (simulated)")),
                ("Started", format!("Started container {name} (simulated)")),
            ] {
                events.push(kubelet(pod, list, name, reason, message, node));
            }
        }
    }
    events
}

fn job(before: &Value, after: &Value) -> Vec<NewEvent> {
    let status = |job: &Value, kind: &str| {
        condition(&conditions(job), kind).map(|found| field(found, "status").to_owned())
    };
    let becomes = |kind: &str, value: &str| {
        status(after, kind).as_deref() == Some(value) && status(before, kind).as_deref() != Some(value)
    };
    let normal = |reason, message: &str| {
        NewEvent::normal(about(after, Kind::Job), reason, message).by("job-controller", "")
    };
    let mut events = Vec::new();
    if becomes("Complete", "True") {
        events.push(normal("Completed", "Job completed"));
    }
    if becomes("Failed", "True") {
        let message = format!(
            "Job has reached the specified backoff limit ({} failed)",
            number(after, "/status/failed")
        );
        let failed = NewEvent::warning(about(after, Kind::Job), "BackoffLimitExceeded", message);
        events.push(failed.by("job-controller", ""));
    }
    if becomes("Suspended", "True") {
        events.push(normal("Suspended", "Job suspended"));
    }
    if becomes("Suspended", "False") {
        events.push(normal("Resumed", "Job resumed"));
    }
    events
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(write: &Write, before: Option<&Value>, after: &Value) -> Vec<String> {
        let all = events(write, before, after, "node");
        all.iter().map(|event| format!("{} {}: {}", event.kind(), event.reason(), event.message())).collect()
    }

    fn pod(phase: &str, owner: &str) -> Value {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"initContainers": [{"name": "i", "image": "a"}], "containers": [{"name": "c", "image": "b:1"}]},
            "status": {"phase": phase}});
        if let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.name() == owner) {
            pod["metadata"]["ownerReferences"] = json!([{"apiVersion": kind.api_version(), "kind": owner,
                "name": "web", "uid": "o", "controller": true}]);
        }
        pod
    }

    fn write_status(kind: Kind) -> Write {
        Write::Status(kind, Value::Null)
    }

    /// What is said of a pod from its creation to its end.
    #[test]
    fn a_pod_is_told_about() {
        let owned = pod("Pending", "ReplicaSet");
        let create = Write::Create(Kind::Pod, Value::Null);
        assert_eq!(told(&create, None, &owned), ["ReplicaSet SuccessfulCreate: Created pod: p"]);
        let told_of = told(&create, None, &pod("Pending", "StatefulSet"));
        assert_eq!(told_of, ["StatefulSet SuccessfulCreate: create Pod p in StatefulSet web successful"]);
        assert!(told(&create, None, &pod("Pending", "")).is_empty());

        let running = pod("Running", "ReplicaSet");
        let started = told(&write_status(Kind::Pod), Some(&owned), &running);
        assert_eq!(started.len(), 7, "{started:?}");
        assert_eq!(started[0], "Pod Scheduled: Successfully assigned n/p to node");
        assert_eq!(
            started[4..],
            [
                "Pod Pulled: Container image \"b:1\" already present on machine (simulated)",
                "Pod Created: Created container: c (simulated)",
                "Pod Started: Started container c (simulated)",
            ]
        );
        assert!(told(&write_status(Kind::Pod), Some(&running), &running).is_empty(), "said once");
        let bare = told(&write_status(Kind::Pod), Some(&pod("Pending", "")), &pod("Succeeded", ""));
        assert_eq!(bare.len(), 6, "its scheduling is told when it is bound");

        let (kind, at_once) = (Kind::Pod, true);
        let (namespace, name, uid) = ("n".to_owned(), "p".to_owned(), "u".to_owned());
        let delete = Write::Delete { kind, namespace, name, uid, at_once };
        let gone =
            ["ReplicaSet SuccessfulDelete: Deleted pod: p", "Pod Killing: Stopping container c (simulated)"];
        assert_eq!(told(&delete, Some(&running), &Value::Null), gone);
        let mut by_user = running.clone();
        by_user["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(told(&delete, Some(&by_user), &Value::Null), gone[1..]);
    }

    /// A Deployment tells how it scales, a Job how it ends.
    #[test]
    fn deployments_and_jobs_are_told_about() {
        let set = |replicas: i64| {
            json!({"metadata": {"name": "web-1", "namespace": "n", "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": true}]},
                "spec": {"replicas": replicas}})
        };
        let create = Write::Create(Kind::ReplicaSet, Value::Null);
        let up = "Deployment ScalingReplicaSet: Scaled up replica set web-1 from 0 to 2";
        assert_eq!(told(&create, None, &set(2)), [up]);
        assert!(told(&create, None, &set(0)).is_empty());
        let update = Write::Update(Kind::ReplicaSet, Value::Null);
        let down = "Deployment ScalingReplicaSet: Scaled down replica set web-1 from 2 to 1";
        assert_eq!(told(&update, Some(&set(2)), &set(1)), [down]);
        assert!(told(&update, Some(&set(2)), &set(2)).is_empty());

        let job = |kind: &str, status: &str| {
            json!({"metadata": {"name": "j", "namespace": "n"}, "status": {"failed": 7,
                "conditions": [{"type": kind, "status": status}]}})
        };
        let none = json!({"metadata": {"name": "j"}});
        let write = write_status(Kind::Job);
        assert_eq!(told(&write, Some(&none), &job("Complete", "True")), ["Job Completed: Job completed"]);
        assert!(told(&write, Some(&job("Complete", "True")), &job("Complete", "True")).is_empty());
        assert_eq!(told(&write, Some(&none), &job("Suspended", "True")), ["Job Suspended: Job suspended"]);
        let resumed = told(&write, Some(&job("Suspended", "True")), &job("Suspended", "False"));
        assert_eq!(resumed, ["Job Resumed: Job resumed"]);
        assert_eq!(told(&write, Some(&none), &job("Failed", "True")).len(), 1);
    }

    /// However many pods start at the same time, the number of Events is bounded.
    #[tokio::test(start_paused = true)]
    async fn events_of_a_space_are_bounded() {
        let (notes, inbox) = Notes::new();
        let many = |count: usize| (0..count).map(|_| scheduled(&pod("Pending", ""), "node")).collect();
        for _ in 0..100 {
            notes.queue(many(100));
        }
        assert_eq!(inbox.len(), 1_000);
        tokio::time::advance(std::time::Duration::from_secs(5)).await;
        notes.queue(many(100));
        assert_eq!(inbox.len(), 1_010);
    }
}
