//! Strategic merge with a small description of the relevant types.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::strategic::in_order;
use super::{PatchError, PatchSchema, strategic_with};

/// A type with the name of its field. Names are unique in these tests.
#[derive(Clone, Debug)]
struct TestType(&'static str);

impl PatchSchema for TestType {
    fn member(&self, name: &str) -> Option<Self> {
        let known = [
            "metadata",
            "spec",
            "status",
            "template",
            "containers",
            "env",
            "ports",
            "volumes",
            "tolerations",
            "finalizers",
            "ownerReferences",
            "strategy",
            "conditions",
            "selector",
            "labels",
            "data",
            "volumeMounts",
        ];
        known.into_iter().find(|k| *k == name).map(TestType).or(Some(TestType("")))
    }

    fn items(&self) -> Option<Self> {
        Some(TestType(""))
    }

    fn patch_strategy(&self) -> Option<&str> {
        match self.0 {
            "containers" | "env" | "ports" | "finalizers" | "ownerReferences" | "conditions"
            | "volumeMounts" => Some("merge"),
            "volumes" => Some("merge,retainKeys"),
            "strategy" => Some("retainKeys"),
            "selector" => Some("replace"),
            _ => None,
        }
    }

    fn patch_merge_key(&self) -> Option<&str> {
        match self.0 {
            "containers" | "env" | "volumes" => Some("name"),
            "ports" => Some("containerPort"),
            "volumeMounts" => Some("mountPath"),
            "ownerReferences" => Some("uid"),
            "conditions" => Some("type"),
            _ => None,
        }
    }
}

fn apply(doc: Value, patch: Value) -> Result<Value, PatchError> {
    strategic_with(&doc, &patch, &TestType(""))
}

fn check(table: Vec<(&str, Value, Value, Value)>) {
    for (what, doc, patch, wanted) in table {
        assert_eq!(apply(doc, patch), Ok(wanted), "{what}");
    }
}

fn refusal(doc: Value, patch: Value) -> String {
    apply(doc, patch).map_or_else(|e| e.to_string(), |v| format!("accepted: {v}"))
}

#[test]
fn as_033_lists_merge_by_key() {
    let two = || json!({"containers": [{"name": "a", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}, {"name": "b", "image": "old"}]});
    check(vec![
        (
            "by name, where they are",
            two(),
            json!({"containers": [{"name": "b", "image": "new"}]}),
            json!({"containers": [{"name": "a", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}, {"name": "b", "image": "new"}]}),
        ),
        (
            "nested lists",
            two(),
            json!({"containers": [{"name": "a", "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]}]}),
            json!({"containers": [{"name": "a", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C", "value": "4"}]}, {"name": "b", "image": "old"}]}),
        ),
        (
            "a new element stands first",
            json!({"ports": [{"containerPort": 1}, {"containerPort": 2}]}),
            json!({"ports": [{"containerPort": 3, "name": "c"}]}),
            json!({"ports": [{"containerPort": 3, "name": "c"}, {"containerPort": 1}, {"containerPort": 2}]}),
        ),
        (
            "conditions by type",
            json!({"status": {"conditions": [{"type": "A", "status": "True"}]}}),
            json!({"status": {"conditions": [{"type": "B", "status": "False"}]}}),
            json!({"status": {"conditions": [{"type": "B", "status": "False"}, {"type": "A", "status": "True"}]}}),
        ),
        (
            "owners by uid",
            json!({"ownerReferences": [{"uid": "1", "name": "a"}]}),
            json!({"ownerReferences": [{"uid": "1", "controller": true}]}),
            json!({"ownerReferences": [{"uid": "1", "name": "a", "controller": true}]}),
        ),
        (
            "lists without a strategy are replaced",
            json!({"tolerations": [{"key": "a"}, {"key": "b"}]}),
            json!({"tolerations": [{"key": "c"}]}),
            json!({"tolerations": [{"key": "c"}]}),
        ),
        (
            "null deletes a member of an element",
            json!({"containers": [{"name": "a", "image": "i"}]}),
            json!({"containers": [{"name": "a", "image": null}]}),
            json!({"containers": [{"name": "a"}]}),
        ),
    ]);
}

#[test]
fn as_033_patch_directives() {
    let data = || json!({"data": {"x": "1", "y": "2"}});
    check(vec![
        (
            "replace a map",
            data(),
            json!({"data": {"$patch": "replace", "n": "1"}}),
            json!({"data": {"n": "1"}}),
        ),
        ("delete a map", data(), json!({"data": {"$patch": "delete"}}), json!({})),
        (
            "merge is the default",
            data(),
            json!({"data": {"$patch": "merge", "x": "3"}}),
            json!({"data": {"x": "3", "y": "2"}}),
        ),
        ("merge with nothing", json!({}), json!({"data": {"$patch": "merge", "q": "1"}}), json!({})),
        ("nonsense with nothing", json!({}), json!({"data": {"$patch": "whatever"}}), json!({})),
        (
            "replace nothing",
            json!({}),
            json!({"data": {"$patch": "replace", "q": "1"}}),
            json!({"data": {"q": "1"}}),
        ),
        (
            "replace a list",
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({"containers": [{"$patch": "replace"}, {"name": "only", "image": "i"}]}),
            json!({"containers": [{"name": "only", "image": "i"}]}),
        ),
        (
            "delete an element",
            json!({"ports": [{"containerPort": 1}, {"containerPort": 2}]}),
            json!({"ports": [{"containerPort": 1, "$patch": "delete"}]}),
            json!({"ports": [{"containerPort": 2}]}),
        ),
        (
            "directives leave no trace in what is new",
            json!({}),
            json!({"containers": [{"name": "a", "env": [{"name": "A", "$patch": "delete"}, {"name": "B", "value": null}], "$setElementOrder/env": []}], "$setElementOrder/x": ["1"]}),
            json!({"containers": [{"name": "a", "env": [{"name": "B"}]}]}),
        ),
        ("delete everything", data(), json!({"$patch": "delete"}), json!({})),
        ("replace everything", data(), json!({"$patch": "replace", "a": 1}), json!({"a": 1})),
        (
            "a map of strategy replace",
            json!({"selector": {"matchLabels": {"a": "1"}}}),
            json!({"selector": {"matchLabels": {"b": "1"}}}),
            json!({"selector": {"matchLabels": {"b": "1"}}}),
        ),
        (
            "maps merge, null deletes",
            json!({"labels": {"a": "1", "b": "2"}}),
            json!({"labels": {"a": null, "c": "3"}}),
            json!({"labels": {"b": "2", "c": "3"}}),
        ),
    ]);
    assert_eq!(
        refusal(data(), json!({"data": {"$patch": "whatever"}})),
        "unknown patch type: whatever in map: map[$patch:whatever]"
    );
}

#[test]
fn as_033_primitive_lists() {
    let doc = || json!({"finalizers": ["golden.test/a", "golden.test/b"]});
    let merged = || json!({"finalizers": ["golden.test/c", "golden.test/a", "golden.test/b"]});
    check(vec![
        ("merge", doc(), json!({"finalizers": ["golden.test/c"]}), merged()),
        (
            "delete",
            merged(),
            json!({"$deleteFromPrimitiveList/finalizers": ["golden.test/a"]}),
            json!({"finalizers": ["golden.test/c", "golden.test/b"]}),
        ),
        ("delete from nothing", json!({}), json!({"$deleteFromPrimitiveList/finalizers": ["x"]}), json!({})),
        (
            "order",
            doc(),
            json!({"$setElementOrder/finalizers": ["golden.test/b", "golden.test/a"]}),
            json!({"finalizers": ["golden.test/b", "golden.test/a"]}),
        ),
        (
            "order and merge",
            json!({"finalizers": ["golden.test/c", "golden.test/b"]}),
            json!({"$setElementOrder/finalizers": ["golden.test/c", "golden.test/b"], "finalizers": ["golden.test/c"]}),
            json!({"finalizers": ["golden.test/c", "golden.test/b"]}),
        ),
    ]);
    assert_eq!(
        refusal(doc(), json!({"$deleteFromPrimitiveList/finalizers": "x"})),
        "invalid patch format of primitive list"
    );
}

#[test]
fn as_033_set_element_order() {
    let doc = || json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "s"}]});
    check(vec![
        (
            "reorders, and what only the server has stays put",
            doc(),
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}),
            json!({"containers": [{"name": "b"}, {"name": "a"}, {"name": "s"}]}),
        ),
        (
            "places new elements",
            doc(),
            json!({"$setElementOrder/containers": [{"name": "a"}, {"name": "n"}, {"name": "b"}], "containers": [{"name": "n", "image": "i"}]}),
            json!({"containers": [{"name": "a"}, {"name": "n", "image": "i"}, {"name": "b"}, {"name": "s"}]}),
        ),
        (
            "with a deletion",
            doc(),
            json!({"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "a", "$patch": "delete"}]}),
            json!({"containers": [{"name": "b"}, {"name": "s"}]}),
        ),
        (
            "on a new list",
            json!({}),
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "b"}, {"name": "a"}]}),
            json!({"containers": [{"name": "b"}, {"name": "a"}]}),
        ),
    ]);
    assert_eq!(
        refusal(
            doc(),
            json!({"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "n"}]})
        ),
        "The order in patch list:\n[map[name:n]]\n doesn't match $setElementOrder list:\n[map[name:a]]\n"
    );
    assert_eq!(
        refusal(doc(), json!({"$setElementOrder/containers": 5})),
        "invalid patch format of setElementOrder list"
    );
}

#[test]
fn as_033_retain_keys() {
    check(vec![
        (
            "strategy changes type",
            json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}),
            json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}),
            json!({"strategy": {"type": "Recreate"}}),
        ),
        (
            "volume changes source",
            json!({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w"}]}),
            json!({"volumes": [{"name": "v", "$retainKeys": ["name", "configMap"], "configMap": {"name": "c"}}]}),
            json!({"volumes": [{"name": "v", "configMap": {"name": "c"}}, {"name": "w"}]}),
        ),
        (
            "on something new",
            json!({}),
            json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}),
            json!({"strategy": {"type": "Recreate"}}),
        ),
    ]);
    let doc = || json!({"strategy": {"type": "RollingUpdate"}});
    let bad = "invalid patch format of retainKeys";
    assert_eq!(refusal(doc(), json!({"strategy": {"$retainKeys": ["type"], "rollingUpdate": {}}})), bad);
    assert_eq!(refusal(doc(), json!({"strategy": {"$retainKeys": "type"}})), bad);
}

#[test]
fn as_033_refusals() {
    let doc = || json!({"containers": [{"name": "a"}], "finalizers": ["x"]});
    assert_eq!(
        refusal(doc(), json!({"containers": [{"image": "i"}]})),
        "map: map[image:i] does not contain declared merge key: name"
    );
    assert_eq!(refusal(doc(), json!({"finalizers": [["x"]]})), "lists of lists are not supported");
    assert!(refusal(doc(), json!({"containers": [null]})).starts_with("expected a map"));
    assert_eq!(refusal(doc(), json!([])), "invalid JSON document");
}

fn documents() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        Just(json!("delete")),
        Just(json!("replace")),
        "[ab]".prop_map(Value::from),
        (0..3_i64).prop_map(Value::from)
    ];
    let key = prop::sample::select(vec![
        "name",
        "containers",
        "env",
        "finalizers",
        "volumes",
        "$patch",
        "$retainKeys",
        "$setElementOrder/containers",
        "$setElementOrder/finalizers",
        "$deleteFromPrimitiveList/finalizers",
        "data",
    ]);
    leaf.prop_recursive(4, 32, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..4)
                .prop_map(|m| Value::Object(m.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())),
        ]
    })
}

fn without_directives(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.iter().all(|(k, v)| !k.starts_with('$') && without_directives(v)),
        Value::Array(items) => items.iter().all(without_directives),
        _ => true,
    }
}

/// The order of lists by its definition, with linear searches.
fn in_order_by_search(
    merged: Vec<Value>,
    order: &[Value],
    server: &[Value],
    key: Option<&str>,
) -> Vec<Value> {
    let same = |a: &Value, b: &Value| match key {
        None => a == b,
        Some(key) => a.get(key).is_some() && a.get(key) == b.get(key),
    };
    let place = |list: &[Value], item: &Value| list.iter().position(|other| same(item, other));
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|item| place(order, item).is_some());
    named.sort_by_key(|item| place(order, item));
    others.sort_by_key(|item| place(server, item));
    let mut out = Vec::new();
    let mut others = others.into_iter().peekable();
    for item in named {
        let limit = place(server, &item);
        let before =
            |other: &Value| limit.is_some_and(|limit| place(server, other).is_some_and(|at| at < limit));
        while let Some(other) = others.next_if(before) {
            out.push(other);
        }
        out.push(item);
    }
    out.extend(others);
    out
}

fn elements() -> impl Strategy<Value = Vec<Value>> {
    let one = (0..7_i64, 0..3_i64)
        .prop_map(|(k, v)| if k == 6 { json!({"v": v}) } else { json!({"k": k, "v": v}) });
    prop::collection::vec(one, 0..9)
}

proptest! {
    /// AS-033: hash lookups give the same order as linear searches, also with duplicates and unknown elements.
    #[test]
    fn as_033_order_is_that_of_a_search(
        merged in elements(), order in elements(), server in elements(), keyed in any::<bool>()
    ) {
        let key = keyed.then_some("k");
        let wanted = in_order_by_search(merged.clone(), &order, &server, key);
        prop_assert_eq!(in_order(merged, &order, &server, key), wanted);
    }

    #[test]
    fn strategic_merge_never_panics_nor_leaks_directives(doc in documents(), patch in documents()) {
        prop_assume!(without_directives(&doc));
        if let Ok(out) = apply(doc, patch) {
            prop_assert!(without_directives(&out), "{}", out);
        }
    }

    #[test]
    fn an_empty_patch_changes_nothing(doc in documents()) {
        prop_assume!(doc.is_object());
        prop_assert_eq!(apply(doc.clone(), json!({})), Ok(doc));
    }
}
