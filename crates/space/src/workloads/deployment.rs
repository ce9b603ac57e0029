//! Deployments: a ReplicaSet per template, and which of them is current. [`rollout`] decides how many
//! pods each may have, [`progress`] computes the status.

use serde_json::{Map, Value, json};

use super::object::{
    Kind, Write, annotation, is_deleting, map_at, name, namespace, number, owner_reference, replicas, set,
    uid,
};
use super::progress::{self, ProgressEvent};
use super::revision::HASH;
use super::rollout;
use super::sets::{DESIRED, MAXIMUM, Sets, is_paused, template_hash};

pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// Annotations of a Deployment that its ReplicaSets do not inherit.
const OWN: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    HISTORY,
    DESIRED,
    MAXIMUM,
    "deprecated.deployment.rollback.to",
];

pub(super) fn revision(set: &Value) -> u64 {
    annotation(set, REVISION).parse().unwrap_or_default()
}

/// The next writes. `sets` are the ReplicaSets that the Deployment controls; `taken` says whether another ReplicaSet
/// has a name. Nothing is changed until every ReplicaSet has reached its wanted size, so that the limits of a rolling
/// update hold for pods and not only for numbers in specs.
pub(super) fn decide(
    deployment: &Value,
    sets: &[Value],
    taken: impl Fn(&str) -> bool,
    now: &str,
) -> Vec<Write> {
    let mut sets = Sets::of(deployment, sets);
    if is_deleting(deployment) {
        return progress::write(deployment, &sets, ProgressEvent::Nothing, now).into_iter().collect();
    }
    let before: Vec<Value> = sets.all().cloned().collect();
    let mut target = deployment.clone();
    let mut writes = Vec::new();
    let mut note = ProgressEvent::Nothing;
    let latest = sets.old.iter().map(revision).max().unwrap_or_default();
    let scaling = rollout::is_scaling(deployment, &sets);
    if let Some(new) = &mut sets.new {
        describe(deployment, new, latest + 1);
        set(&mut target, &["metadata", "annotations"], REVISION, revision(new).to_string());
    } else if !is_paused(deployment) && !scaling && rollout::may_create(deployment, &sets) {
        let new = make(deployment, &sets, latest + 1);
        if taken(name(&new)) {
            // A ReplicaSet of another template or owner has the name: increment the count and hash again.
            let count = number(deployment, "/status/collisionCount") + 1;
            set(&mut target, &["status"], "collisionCount", count);
            return vec![Write::Status(Kind::Deployment, target)];
        }
        set(&mut target, &["metadata", "annotations"], REVISION, (latest + 1).to_string());
        note = ProgressEvent::Created(name(&new).to_owned());
        writes.push(Write::Create(Kind::ReplicaSet, new));
    }
    if is_paused(deployment) || scaling {
        rollout::scale(deployment, &mut sets);
        if scaling && !is_paused(deployment) {
            note = ProgressEvent::Scaled;
        }
    } else if writes.is_empty() && sets.all().all(rollout::is_settled) {
        rollout::roll(deployment, &mut sets);
    }
    let changed = sets.all().filter(|set| !before.iter().any(|one| one == *set));
    writes.extend(changed.map(|set| Write::Update(Kind::ReplicaSet, set.clone())));
    if writes.is_empty() && (is_paused(deployment) || progress::is_complete(deployment, &sets)) {
        writes.extend(surplus(deployment, &sets));
    }
    let stored_sets: Sets = Sets::of(deployment, &before);
    let metadata_changed = target != *deployment;
    match progress::write(&target, &stored_sets, note, now) {
        Some(write) => writes.push(write),
        // The revision is written with the status, because that does not count as a change of the Deployment.
        None if metadata_changed => writes.push(Write::Status(Kind::Deployment, target)),
        None => {}
    }
    writes
}

/// Annotations that a ReplicaSet inherits from its Deployment.
fn inherited(deployment: &Value) -> Map<String, Value> {
    let own = deployment.pointer("/metadata/annotations").and_then(Value::as_object);
    let own = own.into_iter().flatten().filter(|(key, _)| !OWN.contains(&key.as_str()));
    own.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Sets annotations, revision and `minReadySeconds` of the current ReplicaSet.
fn describe(deployment: &Value, set_: &mut Value, next: u64) {
    let known = revision(set_);
    if let Some(annotations) = map_at(set_, &["metadata", "annotations"]) {
        annotations.extend(inherited(deployment));
        if known < next {
            if known > 0 {
                let past = annotations.get(HISTORY).and_then(Value::as_str).unwrap_or_default();
                let past = if past.is_empty() { known.to_string() } else { format!("{past},{known}") };
                annotations.insert(HISTORY.into(), past.into());
            }
            annotations.insert(REVISION.into(), next.to_string().into());
        }
    }
    let delay = number(deployment, "/spec/minReadySeconds");
    if number(set_, "/spec/minReadySeconds") != delay {
        set(set_, &["spec"], "minReadySeconds", delay);
    }
}

fn make(deployment: &Value, sets: &Sets, revision: u64) -> Value {
    let hash = template_hash(deployment);
    let template = deployment.pointer("/spec/template").cloned().unwrap_or_else(|| json!({}));
    let labels = template.pointer("/metadata/labels").cloned().unwrap_or_else(|| json!({}));
    let mut new = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {
            "name": format!("{}-{hash}", name(deployment)), "namespace": namespace(deployment), "labels": labels,
            "annotations": inherited(deployment),
            "ownerReferences": [owner_reference(deployment, Kind::Deployment)],
        },
        "spec": {
            "replicas": rollout::first_size(deployment, sets),
            "selector": deployment.pointer("/spec/selector").cloned().unwrap_or_else(|| json!({})),
            "template": template,
        },
    });
    let delay = number(deployment, "/spec/minReadySeconds");
    if delay != 0 {
        set(&mut new, &["spec"], "minReadySeconds", delay);
    }
    for place in [
        &["metadata", "labels"][..],
        &["spec", "selector", "matchLabels"],
        &["spec", "template", "metadata", "labels"],
    ] {
        set(&mut new, place, HASH, hash.as_str());
    }
    set(&mut new, &["metadata", "annotations"], REVISION, revision.to_string());
    rollout::record_size(deployment, &mut new);
    new
}

/// Deletes empty ReplicaSets beyond the history limit.
fn surplus(deployment: &Value, sets: &Sets) -> Vec<Write> {
    let limit = deployment.pointer("/spec/revisionHistoryLimit").and_then(Value::as_i64).unwrap_or(10);
    let mut old: Vec<&Value> = sets.old.iter().filter(|set| !is_deleting(set)).collect();
    old.sort_by_key(|set| revision(set));
    let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
    let idle = |set: &&&Value| {
        replicas(set) == 0 && number(set, "/status/replicas") == 0 && rollout::is_settled(set)
    };
    let old = old.iter().take(surplus).filter(idle);
    old.map(|set| Write::Delete {
        kind: Kind::ReplicaSet,
        namespace: namespace(set).to_owned(),
        name: name(set).to_owned(),
        uid: uid(set).to_owned(),
        at_once: false,
    })
    .collect()
}
