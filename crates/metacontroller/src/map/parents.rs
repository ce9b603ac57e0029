//! The parents of a MapController: which of them may select an input, and the progress of each (MC-010,
//! MC-038, MC-087). Pure.

use std::collections::{BTreeSet, HashMap, HashSet};

use machinery::selector::LabelSelector;
use runtime::ObjectKey;
use serde_json::Value;
use tokio::time::Instant;

use super::{key::MapKey, selector, status::Contribution};
use crate::{
    object::{self, Object, Text},
    selector_index::SelectorIndex,
};

/// The state of a parent.
pub struct Parent {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Keys that have not been processed since the parent changed.
    pub pending: HashSet<MapKey>,
    /// Keys whose last run failed.
    pub failed: HashSet<MapKey>,
    /// When a failure was last reported (MC-074).
    pub reported: Option<Instant>,
    /// The contribution to its status that was last computed.
    pub last: Contribution,
    /// Why its selector cannot be parsed.
    fault: Option<String>,
}

/// All parents, by UID.
#[derive(Default)]
pub struct Parents {
    by_uid: HashMap<Text, Parent>,
    /// The selectors that can be parsed.
    selectors: SelectorIndex<Text>,
}

impl Parents {
    /// Adds or updates a parent. Returns true if it is new. Cost: O(log n).
    pub fn put(&mut self, parent: &Object) -> bool {
        let uid = Text::from(parent.uid());
        let fault = match selector::parse(&parent.value) {
            Ok(selector) => {
                self.selectors.put(uid.clone(), &parent.key().namespace, selector);
                None
            }
            Err(why) => {
                self.selectors.remove(&uid);
                Some(why)
            }
        };
        if let Some(known) = self.by_uid.get_mut(&uid) {
            known.fault = fault;
            return false;
        }
        let new = Parent {
            key: parent.key().clone(),
            pending: HashSet::new(),
            failed: HashSet::new(),
            reported: None,
            last: Contribution::default(),
            fault,
        };
        self.by_uid.insert(uid, new);
        true
    }

    /// Removes a parent. Returns true if it was known.
    pub fn remove(&mut self, uid: &str) -> bool {
        let Some((uid, _)) = self.by_uid.remove_entry(uid) else { return false };
        self.selectors.remove(&uid);
        true
    }

    /// Returns the selector of a parent, or why it cannot be parsed.
    pub fn selector(&self, uid: &str) -> Option<Result<&LabelSelector, &str>> {
        match &self.by_uid.get(uid)?.fault {
            Some(why) => Some(Err(why)),
            None => self.selectors.selector(uid).map(Ok),
        }
    }

    /// Returns a parent.
    pub fn get(&self, uid: &str) -> Option<&Parent> {
        self.by_uid.get(uid)
    }

    /// Returns a parent for changes.
    pub fn get_mut(&mut self, uid: &str) -> Option<&mut Parent> {
        self.by_uid.get_mut(uid)
    }

    /// Returns the UIDs of all parents.
    pub fn uids(&self) -> Vec<Text> {
        self.by_uid.keys().cloned().collect()
    }

    /// Returns all parents.
    pub fn all(&self) -> impl Iterator<Item = &Parent> {
        self.by_uid.values()
    }

    /// Returns the parents of `namespace` (empty for cluster-scoped parents) whose selector matches these
    /// labels. Cost: O(labels + parents whose selector requires one of the labels, or none).
    pub fn selecting(&self, namespace: &str, labels: &Value) -> Vec<Text> {
        self.selectors.selecting(namespace, labels)
    }

    /// Returns the namespaces with parents whose selectors can be parsed.
    pub fn namespaces(&self) -> BTreeSet<Text> {
        self.selectors.namespaces()
    }
}

/// Returns whether a parent is handled (MC-010, MC-090).
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

    /// MC-013, MC-038: a parent whose selector cannot be parsed selects nothing, and its error is available,
    /// until it can be parsed again.
    #[test]
    fn mc_013_what_cannot_be_read_selects_nothing() {
        let mut parents = Parents::default();
        let (good, bad) = (json!({"matchLabels": {"a": "b"}}), json!("x"));
        for (selector, found) in [(&bad, 0), (&good, 1), (&bad, 0), (&good, 1)] {
            parents.put(&parent("p", "n", selector.clone()));
            assert_eq!(parents.selecting("n", &json!({"a": "b"})).len(), found);
            assert_eq!(parents.namespaces().len(), found);
            let said =
                parents.selector("p").expect("a parent").map(|by| by.matches_labels(&json!({"a": "b"})));
            let expected = if found == 0 { Err("must be an object") } else { Ok(true) };
            assert_eq!(said, expected);
        }
        assert!(parents.selector("q").is_none());
    }
}
