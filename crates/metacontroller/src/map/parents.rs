//! The parents of a MapController: which may select an input, and how far the work for each is (MC-010, MC-038,
//! MC-087). Pure.

use std::collections::{BTreeSet, HashMap, HashSet};

use machinery::selector::LabelSelector;
use runtime::ObjectKey;
use serde_json::Value;
use tokio::time::Instant;

use super::{key::MapKey, selector, status::Contribution};
use crate::{
    object::{self, Object, Text},
    selecting::Place,
};

/// What is known of a parent.
pub struct Parent {
    /// Namespace and name.
    pub key: ObjectKey,
    /// What it selects, or why that can't be read.
    pub selector: Result<LabelSelector, String>,
    /// Keys that have not been tried since the parent changed.
    pub pending: HashSet<MapKey>,
    /// Keys whose last attempt failed.
    pub failed: HashSet<MapKey>,
    /// When a failure was last told of (MC-074).
    pub told: Option<Instant>,
    /// What was last worked out for its status.
    pub last: Contribution,
    at: Place,
}

/// All parents, by UID.
#[derive(Default)]
pub struct Parents {
    by_uid: HashMap<Text, Parent>,
    places: HashMap<Place, BTreeSet<Text>>,
}

impl Parents {
    /// Puts a new or changed parent in. True if it is new. Costs O(1).
    pub fn put(&mut self, parent: &Object) -> bool {
        let uid = Text::from(parent.uid());
        let selector = selector::parse(&parent.value);
        let at = Place::of(&parent.key().namespace, selector.as_ref().ok());
        self.places.entry(at.clone()).or_default().insert(uid.clone());
        match self.by_uid.get_mut(&uid) {
            Some(known) => {
                let before = std::mem::replace(&mut known.at, at.clone());
                known.selector = selector;
                if before != at {
                    self.leave(&before, &uid);
                }
                false
            }
            None => {
                let new = Parent {
                    key: parent.key().clone(),
                    selector,
                    pending: HashSet::new(),
                    failed: HashSet::new(),
                    told: None,
                    last: Contribution::default(),
                    at,
                };
                self.by_uid.insert(uid, new);
                true
            }
        }
    }

    /// Takes a parent out. True if it was there.
    pub fn remove(&mut self, uid: &str) -> bool {
        let Some((uid, parent)) = self.by_uid.remove_entry(uid) else { return false };
        self.leave(&parent.at, &uid);
        true
    }

    fn leave(&mut self, place: &Place, uid: &Text) {
        if let Some(uids) = self.places.get_mut(place) {
            uids.remove(uid);
            if uids.is_empty() {
                self.places.remove(place);
            }
        }
    }

    /// A parent.
    pub fn get(&self, uid: &str) -> Option<&Parent> {
        self.by_uid.get(uid)
    }

    /// A parent.
    pub fn get_mut(&mut self, uid: &str) -> Option<&mut Parent> {
        self.by_uid.get_mut(uid)
    }

    /// UIDs of all.
    pub fn uids(&self) -> Vec<Text> {
        self.by_uid.keys().cloned().collect()
    }

    /// All.
    pub fn all(&self) -> impl Iterator<Item = &Parent> {
        self.by_uid.values()
    }

    /// Parents of `namespace` (of none, where parents have none) that select by these labels. Costs O(labels + parents
    /// that have one of the labels in their selector, or no such label at all).
    pub fn selecting(&self, namespace: &str, labels: &Value) -> Vec<Text> {
        let found = Place::looked_at(namespace, labels).filter_map(|place| self.places.get(&place)).flatten();
        let selects = |uid: &&Text| {
            let selector = self.by_uid.get(*uid).and_then(|parent| parent.selector.as_ref().ok());
            selector.is_some_and(|selector| selector.matches_labels(labels))
        };
        found.filter(selects).cloned().collect()
    }

    /// Namespaces that have parents.
    pub fn namespaces(&self) -> BTreeSet<Text> {
        self.places.keys().map(|place| place.namespace().clone()).collect()
    }
}

/// Whether a parent is handled at all (MC-010, MC-090).
pub fn is_handled(parent: &Value, wanted: &LabelSelector) -> bool {
    !object::is_terminating(parent) && wanted.matches_labels(object::labels(parent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parent(uid: &str, namespace: &str, selector: Value) -> Object {
        Object::new(
            json!({"metadata": {"name": uid, "namespace": namespace, "uid": uid}, "spec": {"selector": selector}}),
        )
    }

    /// MC-038, MC-A-34: only parents that can match are looked at.
    #[test]
    fn mc_038_an_input_finds_its_parents() {
        let mut parents = Parents::default();
        for i in 0..100 {
            let uid = format!("p{i}");
            assert!(parents.put(&parent(&uid, "n", json!({"matchLabels": {"shard": i.to_string()}}))));
        }
        parents.put(&parent("broad", "n", json!({})));
        parents.put(&parent(
            "expr",
            "n",
            json!({"matchExpressions": [{"key": "shard", "operator": "Exists"}]}),
        ));
        parents.put(&parent("bad", "n", json!("x")));
        parents.put(&parent("other", "m", json!({})));
        let names = |labels: Value, parents: &Parents| parents.selecting("n", &labels).join(" ");
        assert_eq!(names(json!({"shard": "7"}), &parents), "p7 broad expr");
        assert_eq!(names(json!({"shard": "700"}), &parents), "broad expr");
        assert_eq!(names(Value::Null, &parents), "broad");
        assert!(!parents.put(&parent("p7", "n", json!({"matchLabels": {"a": "b"}}))));
        assert_eq!(names(json!({"shard": "7"}), &parents), "broad expr");
        assert_eq!(names(json!({"a": "b"}), &parents), "p7 broad");
        assert!(parents.remove("p7") && !parents.remove("p7"));
        assert_eq!(names(json!({"a": "b"}), &parents), "broad");
    }
}
