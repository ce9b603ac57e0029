//! StatefulSets: numbered pods, one after the other.

use serde_json::{Value, json};

use super::object::{
    Kind, Pod, Write, conditions, generation, is_deleting, name, number, pod_from, replicas, set,
    status_write, text, without_zeros,
};
use super::revision::{self, Revisions};

const REVISION: &str = "controller-revision-hash";

struct Set<'a> {
    object: &'a Value,
    pods: &'a [Pod],
    revisions: &'a [Value],
    node: &'a str,
    update: &'a str,
    current: &'a str,
}

/// The next writes. `pods` and `revisions` are those that the set controls.
pub(super) fn decide(object: &Value, pods: &[Pod], revisions: &[Value], node: &str) -> Vec<Write> {
    let Revisions { update, mut writes } = revision::sync(object, Kind::StatefulSet, revisions);
    let known = text(object, "/status/currentRevision");
    let current = if known.is_empty() { update.as_str() } else { known };
    let this = Set { object, pods, revisions, node, update: &update, current };
    if is_deleting(object) {
        return this.status().into_iter().collect();
    }
    let moves = this.next();
    let waits = moves.is_empty();
    writes.extend(moves);
    writes.extend(this.status());
    if waits && current == update {
        let in_use = |one: &Value| {
            name(one) == update
                || pods.iter().any(|pod| revision::made_from(pod.metadata.label(REVISION), one))
        };
        writes.extend(revision::surplus(object, revisions, in_use));
    }
    writes
}

impl Set<'_> {
    fn first(&self) -> i64 {
        number(self.object, "/spec/ordinals/start")
    }

    fn end(&self) -> i64 {
        self.first().saturating_add(replicas(self.object))
    }

    fn ordinal(&self, pod: &Pod) -> Option<i64> {
        pod.metadata.name.strip_prefix(name(self.object))?.strip_prefix('-')?.parse().ok()
    }

    fn pod(&self, ordinal: i64) -> Option<&Pod> {
        self.pods.iter().find(|pod| self.ordinal(pod) == Some(ordinal))
    }

    fn is_parallel(&self) -> bool {
        text(self.object, "/spec/podManagementPolicy") == "Parallel"
    }

    fn rolls(&self) -> bool {
        text(self.object, "/spec/updateStrategy/type") != "OnDelete"
    }

    /// Pods with lower numbers keep the current revision.
    fn partition(&self) -> i64 {
        if self.rolls() {
            self.first().saturating_add(number(self.object, "/spec/updateStrategy/rollingUpdate/partition"))
        } else {
            self.first().saturating_add(number(self.object, "/status/currentReplicas"))
        }
    }

    /// Creates, replaces or deletes pods: one at a time in order, or in parallel.
    fn next(&self) -> Vec<Write> {
        let mut writes = Vec::new();
        for ordinal in self.first()..self.end() {
            match self.pod(ordinal) {
                None => {
                    let pod = self.make(ordinal);
                    let claims = claims(self.object, &pod).into_iter();
                    // Existing claims are refused, and stay.
                    writes.extend(claims.map(|claim| Write::Create(Kind::PersistentVolumeClaim, claim)));
                    writes.push(Write::Create(Kind::Pod, pod));
                }
                Some(pod) if pod.active() && pod.ready() => continue,
                // A finished pod is replaced; a pod that starts or is being deleted blocks those after it.
                Some(pod) if pod.finished() && !pod.metadata.deleting() => writes.push(pod.delete()),
                Some(_) => {}
            }
            if !self.is_parallel() {
                return writes;
            }
        }
        let mut surplus: Vec<(i64, &Pod)> =
            self.pods.iter().filter_map(|pod| Some((self.ordinal(pod)?, pod))).collect();
        surplus.retain(|(ordinal, _)| !(self.first()..self.end()).contains(ordinal));
        surplus.sort_by_key(|(ordinal, _)| std::cmp::Reverse(*ordinal));
        if !self.is_parallel() {
            surplus.truncate(1);
        }
        let is_waiting = !surplus.is_empty();
        let going = surplus.iter().filter(|(_, pod)| !pod.metadata.deleting());
        writes.extend(going.map(|(_, pod)| pod.delete()));
        if writes.is_empty() && !is_waiting && self.rolls() {
            writes.extend(self.replace());
        }
        writes
    }

    /// The next pod to replace by one of the update revision, from the last to the first.
    fn replace(&self) -> Option<Write> {
        for ordinal in (self.partition()..self.end()).rev() {
            let pod = self.pod(ordinal)?;
            if !pod.metadata.deleting() && pod.metadata.label(REVISION) != self.update {
                return Some(pod.delete());
            }
            if !pod.active() || !pod.ready() {
                return None;
            }
        }
        None
    }

    fn make(&self, ordinal: i64) -> Value {
        let pod_name = format!("{}-{ordinal}", name(self.object));
        let keeps = self.current != self.update && ordinal < self.partition();
        let kept =
            self.revisions.iter().find(|one| keeps && name(one) == self.current).and_then(revision::template);
        let (from, template) = match &kept {
            Some(template) => (self.current, template),
            None => (self.update, self.object.pointer("/spec/template").unwrap_or(&Value::Null)),
        };
        let index = ordinal.to_string();
        let labels = [
            ("statefulset.kubernetes.io/pod-name", pod_name.as_str()),
            ("apps.kubernetes.io/pod-index", index.as_str()),
            (REVISION, from),
        ];
        let mut pod = pod_from(self.object, Kind::StatefulSet, template, &pod_name, &labels, self.node);
        set(&mut pod, &["spec"], "hostname", pod_name.as_str());
        let service = text(self.object, "/spec/serviceName");
        if !service.is_empty() {
            set(&mut pod, &["spec"], "subdomain", service);
        }
        self.claim_volumes(&mut pod, &pod_name);
        pod
    }

    /// Adds the volumes of the pod's own claims.
    fn claim_volumes(&self, pod: &mut Value, pod_name: &str) {
        let claims = self.object.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
        let names: Vec<&str> = claims.into_iter().flatten().map(name).collect();
        if names.is_empty() {
            return;
        }
        let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array).cloned().unwrap_or_default();
        let others = volumes.into_iter().filter(|volume| !names.contains(&text(volume, "/name")));
        let own = names.iter().map(|claim| {
            json!({"name": claim, "persistentVolumeClaim": {"claimName": format!("{claim}-{pod_name}")}})
        });
        let all: Vec<Value> = own.chain(others).collect();
        set(pod, &["spec"], "volumes", all);
    }

    fn status(&self) -> Option<Write> {
        let there: Vec<&Pod> = self
            .pods
            .iter()
            .filter(|pod| !pod.status.phase.is_empty() && self.ordinal(pod).is_some())
            .collect();
        let ready = there.iter().filter(|pod| pod.ready() && !pod.finished()).count();
        let of = |revision: &str| {
            there.iter().filter(|pod| pod.active() && pod.metadata.label(REVISION) == revision).count()
        };
        let (updated, wanted) = (of(self.update), usize::try_from(replicas(self.object)).unwrap_or_default());
        // The update is complete when all pods have the update revision and are ready.
        let over = self.rolls() && updated == wanted && there.len() == wanted && ready == wanted;
        let current = if over { self.update } else { self.current };
        let mut status = json!({
            "observedGeneration": generation(self.object), "replicas": there.len(), "readyReplicas": ready,
            "availableReplicas": ready, "currentReplicas": of(current), "updatedReplicas": updated,
            "currentRevision": current, "updateRevision": self.update,
            "collisionCount": number(self.object, "/status/collisionCount"),
        });
        let conditions = conditions(self.object);
        if let (Some(status), false) = (status.as_object_mut(), conditions.is_empty()) {
            status.insert("conditions".into(), conditions.into());
        }
        let optional = ["observedGeneration", "readyReplicas", "currentReplicas", "updatedReplicas"];
        status_write(Kind::StatefulSet, self.object, without_zeros(status, &optional))
    }
}

/// The claims of a new pod, from the set's claim templates.
fn claims(object: &Value, pod: &Value) -> Vec<Value> {
    let templates = object.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
    let labels = object.pointer("/spec/selector/matchLabels").cloned().unwrap_or_else(|| json!({}));
    templates
        .into_iter()
        .flatten()
        .map(|template| {
            let mut claim = json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": template.get("metadata").cloned().unwrap_or_default(),
                "spec": template.get("spec").cloned().unwrap_or_default(),
            });
            set(&mut claim, &["metadata"], "name", format!("{}-{}", name(template), name(pod)));
            set(&mut claim, &["metadata"], "namespace", text(object, "/metadata/namespace"));
            set(&mut claim, &["metadata"], "labels", labels.clone());
            claim
        })
        .collect()
}
