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
    selector_index::SelectorIndex,
};

/// What is known of a parent.
pub struct Parent {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Keys that have not been tried since the parent changed.
    pub pending: HashSet<MapKey>,
    /// Keys whose last attempt failed.
    pub failed: HashSet<MapKey>,
    /// When a failure was last told of (MC-074).
    pub reported: Option<Instant>,
    /// What was last worked out for its status.
    pub last: Contribution,
    /// Why its selector can't be read.
    fault: Option<String>,
}

/// All parents, by UID.
#[derive(Default)]
pub struct Parents {
    by_uid: HashMap<Text, Parent>,
    /// By the selectors that can be read.
    selectors: SelectorIndex<Text>,
}

impl Parents {
    /// Puts a new or changed parent in. True if it is new. Costs O(log n).
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

    /// Takes a parent out. True if it was there.
    pub fn remove(&mut self, uid: &str) -> bool {
        let Some((uid, _)) = self.by_uid.remove_entry(uid) else { return false };
        self.selectors.remove(&uid);
        true
    }

    /// What a parent selects, or why that can't be read.
    pub fn selector(&self, uid: &str) -> Option<Result<&LabelSelector, &str>> {
        match &self.by_uid.get(uid)?.fault {
            Some(why) => Some(Err(why)),
            None => self.selectors.selector(uid).map(Ok),
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
        self.selectors.selecting(namespace, labels)
    }

    /// Namespaces that have parents whose selectors can be read.
    pub fn namespaces(&self) -> BTreeSet<Text> {
        self.selectors.namespaces()
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

    /// MC-013, MC-038: a parent whose selector can't be read selects nothing, which is told, until it can be read again.
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
