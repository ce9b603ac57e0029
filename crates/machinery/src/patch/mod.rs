//! JSON, merge and strategic merge patches (AS-032, AS-033).

use serde_json::Value;

mod json;
mod print;
mod strategic;
#[cfg(test)]
mod strategic_tests;

pub use json::{JSON_OPERATIONS_MAX, json};
pub use strategic::{PatchSchema, strategic, strategic_with};

/// Why a patch was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// 400: the patch is malformed.
    #[error("{0}")]
    Malformed(String),
    /// 422: the patch does not fit the document. Kubernetes hides the text behind `the server rejected our request due
    /// to an error in our request`.
    #[error("{0}")]
    Failed(String),
    /// 500: a directive that does not exist.
    #[error("{0}")]
    Directive(String),
    /// 413: too many operations, or too much copied.
    #[error("{0}")]
    TooLarge(String),
}

/// A value as Go prints it: `map[a:1 b:[x]]`.
pub fn printed(value: &Value) -> String {
    print::GoValue(value).to_string()
}

/// Applies a merge patch (RFC 7386): `null` deletes, maps merge, other values are replaced.
pub fn merge(doc: &mut Value, patch: &Value) {
    json_patch::merge(doc, patch);
}

/// The merge patch that turns `from` into `to`. A merge patch cannot express a `null` inside `to`, which is left out.
pub fn diff(from: &Value, to: &Value) -> Value {
    let (Some(before), Some(after)) = (from.as_object(), to.as_object()) else { return to.clone() };
    let mut patch = serde_json::Map::new();
    for key in before.keys().filter(|k| !after.contains_key(*k)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, new) in after {
        match before.get(key) {
            Some(old) if old == new => {}
            Some(old) if old.is_object() && new.is_object() => {
                patch.insert(key.clone(), diff(old, new));
            }
            _ => {
                patch.insert(key.clone(), new.clone());
            }
        }
    }
    Value::Object(patch)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn as_032_merge_patch_vectors() {
        // The examples of RFC 7386, appendix A.
        for (doc, patch, wanted) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "b"}), json!(["c"]), json!(["c"])),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            let mut out = doc.clone();
            merge(&mut out, &patch);
            assert_eq!(out, wanted, "{doc} {patch}");
        }
    }

    /// Values without nulls, which a merge patch cannot write.
    pub(super) fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            (0..5_i64).prop_map(Value::from),
            "[ab]{0,2}".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn diff_then_merge_gives_the_target(from in values(), to in values()) {
            let mut out = from.clone();
            merge(&mut out, &diff(&from, &to));
            prop_assert_eq!(out, to);
        }

        #[test]
        fn diff_of_equals_changes_nothing(value in values()) {
            prop_assume!(value.is_object());
            prop_assert_eq!(diff(&value, &value), json!({}));
        }

        #[test]
        fn merging_twice_is_merging_once(doc in values(), patch in values()) {
            let mut once = doc;
            merge(&mut once, &patch);
            let mut twice = once.clone();
            merge(&mut twice, &patch);
            prop_assert_eq!(once, twice);
        }
    }
}
