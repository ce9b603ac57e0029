//! The status of a Deployment: counts of its ReplicaSets, and conditions with the texts of Kubernetes.

use serde_json::{Value, json};

use super::object::{
    Kind, Write, condition, conditions, field, generation, name, number, replicas, status_write,
    without_zeros,
};
use super::rollout::margins;
use super::sets::{Sets, is_paused};

/// What happened in this pass, for the Progressing condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProgressEvent {
    Nothing,
    /// A ReplicaSet with this name was created.
    Created(String),
    /// The Deployment was only scaled, which does not affect the condition.
    Scaled,
}

fn sum(sets: &Sets, field: &str) -> i64 {
    sets.all().map(|set| number(set, &format!("/status/{field}"))).sum()
}

fn updated(sets: &Sets) -> i64 {
    sets.new.as_ref().map_or(0, |new| number(new, "/status/replicas"))
}

/// Whether all wanted pods exist, have the current template, and are available.
pub(super) fn is_complete(deployment: &Value, sets: &Sets) -> bool {
    let wanted = replicas(deployment);
    sets.new.is_some()
        && sets.all().all(super::rollout::is_settled)
        && updated(sets) == wanted
        && sum(sets, "replicas") == wanted
        && sum(sets, "availableReplicas") == wanted
}

/// The write of the status, if it has changed.
pub(super) fn write(deployment: &Value, sets: &Sets, note: ProgressEvent, now: &str) -> Option<Write> {
    let (total, available) = (sum(sets, "replicas"), sum(sets, "availableReplicas"));
    let mut status = json!({
        "observedGeneration": generation(deployment), "replicas": total, "updatedReplicas": updated(sets),
        "readyReplicas": sum(sets, "readyReplicas"), "availableReplicas": available,
        "unavailableReplicas": (wanted_pods(sets) - available).max(0),
        "terminatingReplicas": sum(sets, "terminatingReplicas"),
        "conditions": new_conditions(deployment, sets, &note, now),
    });
    let collisions = deployment.pointer("/status/collisionCount").and_then(Value::as_i64);
    if let (Some(collisions), Some(status)) = (collisions, status.as_object_mut()) {
        status.insert("collisionCount".into(), collisions.into());
    }
    let optional = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
    ];
    status_write(Kind::Deployment, deployment, without_zeros(status, &optional))
}

/// The sum of the ReplicaSets' wanted pods.
fn wanted_pods(sets: &Sets) -> i64 {
    sets.all().map(replicas).sum()
}

fn new_conditions(deployment: &Value, sets: &Sets, note: &ProgressEvent, now: &str) -> Vec<Value> {
    let mut all = conditions(deployment);
    let limited = has_deadline(deployment);
    if let (ProgressEvent::Created(name), true) = (note, limited) {
        put(
            &mut all,
            "Progressing",
            "True",
            "NewReplicaSetCreated",
            &format!("Created new replica set {name:?}"),
            now,
        );
    }
    let enough = sum(sets, "availableReplicas") >= replicas(deployment) - margins(deployment).unavailable;
    if enough {
        put(
            &mut all,
            "Available",
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.",
            now,
        );
    } else {
        let message = "Deployment does not have minimum availability.";
        put(&mut all, "Available", "False", "MinimumReplicasUnavailable", message, now);
    }
    if limited {
        progressing(deployment, sets, note, &mut all, now);
    } else {
        all.retain(|one| field(one, "type") != "Progressing");
    }
    all
}

/// Without a deadline there is no Progressing condition.
fn has_deadline(deployment: &Value) -> bool {
    let seconds = deployment.pointer("/spec/progressDeadlineSeconds").and_then(Value::as_i64);
    seconds.is_some_and(|seconds| seconds != i64::from(i32::MAX))
}

fn progressing(deployment: &Value, sets: &Sets, note: &ProgressEvent, all: &mut Vec<Value>, now: &str) {
    let reason = condition(all, "Progressing").map(|one| field(one, "reason").to_owned()).unwrap_or_default();
    if is_paused(deployment) {
        put(all, "Progressing", "Unknown", "DeploymentPaused", "Deployment is paused", now);
        return;
    }
    if reason == "DeploymentPaused" {
        put(all, "Progressing", "Unknown", "DeploymentResumed", "Deployment is resumed", now);
    }
    let settled_before = reason == "NewReplicaSetAvailable" && sum(sets, "replicas") == updated(sets);
    if *note == ProgressEvent::Scaled || settled_before {
        return;
    }
    let subject = sets.new.as_ref().map_or_else(
        || format!("Deployment {:?}", name(deployment)),
        |new| format!("ReplicaSet {:?}", name(new)),
    );
    if is_complete(deployment, sets) {
        let message = format!("{subject} has successfully progressed.");
        put(all, "Progressing", "True", "NewReplicaSetAvailable", &message, now);
    } else if made_progress(deployment, sets) {
        // Written each time, because the deadline counts from the last progress.
        let message = format!("{subject} is progressing.");
        let kept = condition(all, "Progressing").filter(|one| field(one, "status") == "True").cloned();
        all.retain(|one| field(one, "type") != "Progressing");
        put(all, "Progressing", "True", "ReplicaSetUpdated", &message, now);
        if let (Some(kept), Some(last)) = (kept, all.last_mut().and_then(Value::as_object_mut)) {
            last.insert("lastTransitionTime".into(), field(&kept, "lastTransitionTime").into());
        }
    } else if condition(all, "Progressing").is_none() {
        let found = sets.new.as_ref().map_or_else(String::new, |new| name(new).to_owned());
        if !found.is_empty() {
            let message = format!("Found new replica set {found:?}");
            put(all, "Progressing", "True", "FoundNewReplicaSet", &message, now);
        }
    }
}

/// Whether there are more new pods, fewer old ones, or more available ones than in the last status.
fn made_progress(deployment: &Value, sets: &Sets) -> bool {
    let before = |field: &str| number(deployment, &format!("/status/{field}"));
    let old = sum(sets, "replicas") - updated(sets);
    updated(sets) > before("updatedReplicas")
        || old < before("replicas") - before("updatedReplicas")
        || sum(sets, "readyReplicas") > before("readyReplicas")
        || sum(sets, "availableReplicas") > before("availableReplicas")
}

/// Appends a condition, unless it exists with the same status and reason.
fn put(all: &mut Vec<Value>, kind: &str, status: &str, reason: &str, message: &str, now: &str) {
    let old = condition(all, kind);
    if old.is_some_and(|old| field(old, "status") == status && field(old, "reason") == reason) {
        return;
    }
    let since = machinery::conditions::since(all.iter(), kind, status, now).to_owned();
    all.retain(|one| field(one, "type") != kind);
    all.push(json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastUpdateTime": now, "lastTransitionTime": since,
    }));
}
