//! The ReplicaSets of a Deployment, and the parameters of its rolling update.

use serde_json::Value;

use super::object::{age, flag, label, number, text};
use super::revision::{HASH, hash, normalised};

pub(super) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub(super) const MAXIMUM: &str = "deployment.kubernetes.io/max-replicas";

/// The ReplicaSets of a Deployment.
pub(super) struct Sets {
    /// The ReplicaSet of the current template.
    pub(super) new: Option<Value>,
    /// Other ReplicaSets, oldest first.
    pub(super) old: Vec<Value>,
}

impl Sets {
    pub(super) fn all(&self) -> impl Iterator<Item = &Value> {
        self.old.iter().chain(&self.new)
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.old.iter_mut().chain(&mut self.new)
    }

    pub(super) fn of(deployment: &Value, sets: &[Value]) -> Self {
        let mut sets = sets.to_vec();
        sets.sort_by(|a, b| age(a).cmp(&age(b)));
        let wanted = deployment.pointer("/spec/template").map(normalised);
        let template_hash = template_hash(deployment);
        let same = |set: &Value| set.pointer("/spec/template").map(normalised) == wanted;
        let at = sets
            .iter()
            .position(same)
            .or_else(|| sets.iter().position(|set| label(set, HASH) == template_hash));
        let new = at.map(|at| sets.remove(at));
        Self { new, old: sets }
    }
}

pub(super) fn template_hash(deployment: &Value) -> String {
    let collisions = number(deployment, "/status/collisionCount");
    hash(deployment.pointer("/spec/template").unwrap_or(&Value::Null), collisions)
}

pub(super) fn is_paused(deployment: &Value) -> bool {
    flag(deployment, "/spec/paused")
}

pub(super) fn is_recreate(deployment: &Value) -> bool {
    text(deployment, "/spec/strategy/type") == "Recreate"
}
