//! Computes the status that MapControllers write to a parent (MC-080 to MC-085, MC-088). Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::{apply::loosely_equal, resource::group_resource};

/// Group and plural of a resource.
pub type GroupPlural = (String, String);

/// Counts of the inputs of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inputs {
    /// Selected inputs.
    pub total: usize,
    /// Inputs whose last run failed.
    pub failed: usize,
}

/// Counts of the outputs of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outputs {
    /// All outputs, over all keys.
    pub total: usize,
    /// Outputs whose input is gone.
    pub detached: usize,
    /// The number of outputs with status True, by the status key of a condition type.
    pub conditions: BTreeMap<String, usize>,
}

impl Outputs {
    /// Counts an output (MC-083).
    pub fn count(&mut self, output: &Value) {
        self.total += 1;
        let mut states: BTreeMap<&str, bool> = BTreeMap::new();
        let conditions = output.pointer("/status/conditions").and_then(Value::as_array);
        for condition in conditions.into_iter().flatten() {
            let text = |field: &str| condition.get(field).and_then(Value::as_str);
            if let (Some(kind), Some(status)) = (text("type"), text("status")) {
                states.insert(kind, status == "True");
            }
        }
        let mut keys: BTreeMap<String, bool> = BTreeMap::new();
        for (kind, holds) in states {
            *keys.entry(condition_key(kind)).or_default() |= holds;
        }
        for (key, holds) in keys {
            *self.conditions.entry(key).or_default() += usize::from(holds);
        }
    }
}

fn condition_key(kind: &str) -> String {
    // The first letter becomes lower case; that of `example.com/Foo` already is.
    let mut key = kind.to_owned();
    if let Some(first) = key.get_mut(..1) {
        first.make_ascii_lowercase();
    }
    match key.as_str() {
        "total" | "detached" => format!("condition-{key}"),
        _ => key,
    }
}

/// The contribution of one MapController to the status of one parent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contribution {
    /// Whether every key has been processed for the parent's generation.
    pub complete: bool,
    /// By declared resource.
    pub inputs: BTreeMap<GroupPlural, Inputs>,
    /// By declared resource.
    pub outputs: BTreeMap<GroupPlural, Outputs>,
}

impl Contribution {
    /// Unites this with the contribution of another MapController to the same parent (MC-085). Objects that
    /// both see are counted once; failures and detached outputs are added.
    pub fn and(mut self, other: Self) -> Self {
        self.complete &= other.complete;
        for (resource, more) in other.inputs {
            let have = self.inputs.entry(resource).or_default();
            have.total = have.total.max(more.total);
            have.failed += more.failed;
        }
        for (resource, more) in other.outputs {
            let have = self.outputs.entry(resource).or_default();
            have.total = have.total.max(more.total);
            have.detached += more.detached;
            for (key, count) in more.conditions {
                let known = have.conditions.entry(key).or_default();
                *known = (*known).max(count);
            }
        }
        self
    }

    /// Returns the whole status of `parent`: our fields are set, the others stay (MC-084). `generation` is
    /// written once everything is complete; until then that field stays.
    pub fn status(&self, current: &Value, generation: i64) -> Value {
        let mut status = current.as_object().cloned().unwrap_or_default();
        if self.complete {
            status.insert("observedGeneration".into(), generation.into());
        }
        let inputs = entries(&self.inputs, |inputs| {
            let mut entry = Map::from_iter([("total".to_owned(), json!(inputs.total))]);
            if inputs.failed > 0 {
                entry.insert("failed".into(), json!(inputs.failed));
            }
            entry
        });
        let outputs = entries(&self.outputs, |outputs| {
            let mut entry: Map<String, Value> =
                outputs.conditions.iter().map(|(key, count)| (key.clone(), json!(count))).collect();
            entry.insert("total".into(), json!(outputs.total));
            if outputs.detached > 0 {
                entry.insert("detached".into(), json!(outputs.detached));
            }
            entry
        });
        status.insert("inputs".into(), inputs);
        status.insert("outputs".into(), outputs);
        Value::Object(status)
    }
}

/// Names the entries by resource (MC-080): by plural, with the group if another group has the same plural.
fn entries<T>(all: &BTreeMap<GroupPlural, T>, entry: impl Fn(&T) -> Map<String, Value>) -> Value {
    let mut seen = BTreeSet::new();
    let twice: BTreeSet<&str> = all
        .keys()
        .filter(|(_, plural)| !seen.insert(plural.as_str()))
        .map(|(_, plural)| plural.as_str())
        .collect();
    let named = all.iter().map(|((group, plural), value)| {
        let name =
            if twice.contains(plural.as_str()) { group_resource(group, plural) } else { plural.clone() };
        (name, Value::Object(entry(value)))
    });
    Value::Object(named.collect())
}

/// Returns whether the server dropped a field that was written, because the parent's schema lacks it
/// (MC-088).
pub fn was_pruned(written: &Value, kept: &Value) -> bool {
    let lacks = |field: &str| {
        let part = |status: &Value| status.get(field).cloned().unwrap_or(Value::Null);
        !loosely_equal(&part(written), &part(kept))
    };
    ["observedGeneration", "inputs", "outputs"].into_iter().any(lacks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(objects: &[Value]) -> Outputs {
        let mut outputs = Outputs::default();
        for object in objects {
            outputs.count(object);
        }
        outputs
    }

    fn with(conditions: Value) -> Value {
        json!({"status": {"conditions": conditions}})
    }

    fn of(resources: &[(&str, &str)], outputs: &Outputs) -> Contribution {
        let named = |(group, plural): &(&str, &str)| ((*group).to_owned(), (*plural).to_owned());
        Contribution {
            complete: true,
            inputs: BTreeMap::new(),
            outputs: resources.iter().map(|one| (named(one), outputs.clone())).collect(),
        }
    }

    /// MC-A-04, MC-083.
    #[test]
    fn mc_083_conditions_are_counted() {
        let ready = |status: &str| with(json!([{"type": "Ready", "status": status}]));
        let mut all = vec![ready("True"); 5];
        all.push(ready("False"));
        let status = of(&[("", "volumesnapshots")], &counted(&all)).status(&Value::Null, 1);
        assert_eq!(status["outputs"]["volumesnapshots"], json!({"total": 6, "ready": 5}));
        let never = counted(&[ready("Unknown"), json!({"status": {"readyToUse": true}})]);
        assert_eq!((never.total, never.conditions["ready"]), (2, 0));
        let last = counted(&[with(
            json!([{"type": "A", "status": "True"}, {"type": "A", "status": "False"}, {"type": 5}, 7]),
        )]);
        assert_eq!(last.conditions, BTreeMap::from([("a".to_owned(), 0)]));
    }

    /// MC-A-58.
    #[test]
    fn mc_a_58_condition_keys() {
        let kinds = ["Ready", "ready", "total", "Detached", "example.com/X", "PodScheduled"];
        let list: Vec<_> = kinds.iter().map(|kind| json!({"type": kind, "status": "True"})).collect();
        let keys: Vec<_> = counted(&[with(json!(list))]).conditions.into_iter().collect();
        let expected = ["condition-detached", "condition-total", "example.com/X", "podScheduled", "ready"];
        assert_eq!(keys, expected.map(|key| (key.to_owned(), 1)));
        assert_eq!(condition_key("Äpfel"), "Äpfel");
    }

    /// MC-A-57, MC-080: there is an entry for each declared resource, also with zeros; the name contains the
    /// group only if needed.
    #[test]
    fn mc_a_57_same_plural_in_two_groups() {
        let status = of(&[("", "events"), ("events.k8s.io", "events"), ("a", "b")], &Outputs::default());
        let status = status.status(&Value::Null, 1);
        let keys: Vec<_> = status["outputs"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys, ["b", "events", "events.events.k8s.io"]);
        assert_eq!(status["outputs"]["b"], json!({"total": 0}));
        // Inputs and outputs are checked separately for equal plurals.
        let mut one = of(&[("x", "events")], &Outputs::default());
        one.inputs.insert((String::new(), "events".into()), Inputs::default());
        one.inputs.insert(("y".into(), "events".into()), Inputs::default());
        let status = one.status(&Value::Null, 1);
        assert_eq!(status["inputs"], json!({"events": {"total": 0}, "events.y": {"total": 0}}));
        assert_eq!(status["outputs"], json!({"events": {"total": 0}}));
    }

    /// MC-A-56, MC-084: fields of other writers stay, obsolete entries are removed, and the generation waits
    /// for completeness.
    #[test]
    fn mc_a_56_foreign_fields_stay() {
        let current = json!({"conditions": [{"type": "X"}], "phase": "p", "observedGeneration": 1, "outputs": {"old": {"total": 1}}});
        let mut contribution = of(&[("", "configmaps")], &Outputs::default());
        contribution.complete = false;
        contribution.inputs.insert((String::new(), "secrets".into()), Inputs { total: 2, failed: 1 });
        let status = contribution.status(&current, 7);
        let expected = json!({
            "conditions": [{"type": "X"}], "phase": "p", "observedGeneration": 1,
            "inputs": {"secrets": {"total": 2, "failed": 1}},
            "outputs": {"configmaps": {"total": 0}},
        });
        assert_eq!(status, expected);
        contribution.complete = true;
        assert_eq!(contribution.status(&current, 7)["observedGeneration"], json!(7));
    }

    /// MC-A-62, MC-085.
    #[test]
    fn mc_085_two_controllers_make_a_union() {
        let three = Outputs { total: 3, detached: 1, conditions: BTreeMap::from([("ready".into(), 2)]) };
        let union = of(&[("", "a"), ("", "b")], &three).and(of(&[("", "b"), ("", "c")], &three));
        assert_eq!(union.outputs[&(String::new(), "b".to_owned())].total, 3);
        assert_eq!(union.outputs[&(String::new(), "b".to_owned())].detached, 2);
        assert_eq!(union.outputs.len(), 3);
    }

    /// MC-088.
    #[test]
    fn mc_088_pruning_is_noticed() {
        let written = json!({"observedGeneration": 1, "inputs": {"a": {"total": 1}}, "outputs": {}});
        assert!(!was_pruned(
            &written,
            &json!({"observedGeneration": 1, "inputs": {"a": {"total": 1}}, "outputs": {}, "x": 1})
        ));
        assert!(was_pruned(&written, &json!({"observedGeneration": 1, "outputs": {}})));
    }
}
