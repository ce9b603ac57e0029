//! Operations on definitions and custom resources.

use serde_json::{Value, json};

use crate::operations::{list, map};
use crate::{Call, Operation, Plan};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A definition in a group of its own per size and purpose, with this schema of `spec`.
fn definition(group: &str, spec: &Value) -> Value {
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    with_versions(
        group,
        json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]),
    )
}

fn with_versions(group: &str, versions: Value) -> Value {
    json!({"metadata": {"name": format!("things.{group}")}, "spec": {"group": group, "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"}, "versions": versions}})
}

/// A request that creates a definition. Done when the definition is served.
fn defining(group: &str, definition: &Value) -> Plan {
    Plan {
        before: vec![],
        measured: Call::new("POST", CRDS, definition).serves(group, "things"),
        after: vec![format!("{CRDS}/things.{group}")],
    }
}

fn thing(group: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("{group}/v1"), "kind": "Thing", "metadata": {"name": "x"}, "spec": spec})
}

fn things(group: &str) -> String {
    format!("/apis/{group}/v1/namespaces/t/things")
}

/// A request that creates an object of a kind that is defined and used before.
fn creating(group: &str, schema: &Value, spec: Value, status: u16) -> Plan {
    let mut plan = defining(group, &definition(group, schema));
    plan.before.push(plan.measured);
    plan.measured = Call::new("POST", things(group), &thing(group, spec)).answers(status);
    plan
}

/// A request that changes such an object.
fn changing(group: &str, schema: &Value, old: Value, method: &'static str, new: Value) -> Plan {
    let mut plan = creating(group, schema, old, 201);
    plan.before.push(plan.measured);
    plan.measured =
        Call::new(method, format!("{}/x?fieldManager=changer", things(group)), &thing(group, new));
    plan
}

/// A list with keys, with a transition rule for each element.
fn keyed() -> Value {
    json!({"type": "object", "properties": {"l": {"type": "array", "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "required": ["k"], "properties": {
            "k": {"type": "string"}, "v": {"type": "integer",
                "x-kubernetes-validations": [{"rule": "self >= oldSelf"}]}}}}}})
}

fn keys(count: usize, value: i64, reversed: bool) -> Value {
    let number = |n: usize| if reversed { count - 1 - n } else { n };
    json!({"l": list(count, |n| json!({"k": format!("k{}", number(n)), "v": value}))})
}

pub(crate) fn all() -> Vec<Operation> {
    let mut out = definitions();
    out.extend(resources());
    out
}

fn definitions() -> Vec<Operation> {
    vec![
        Operation {
            name: "definition with patterns and defaults",
            size: 60,
            plan: |n| {
                let group = format!("patterns{n}.ex.com");
                let one = |n: usize| json!({"type": "string", "pattern": format!("^a{n}[a-z]+$"), "default": format!("a{n}b")});
                let spec = json!({"type": "object", "default": {}, "properties": map(n, |n| (format!("p{n}"), one(n)))});
                defining(&group, &definition(&group, &spec))
            },
        },
        Operation {
            name: "definition with keys of lists",
            size: 300,
            plan: |n| {
                let group = format!("keys{n}.ex.com");
                let names = list(n, |n| format!("k{n}").into());
                let items = json!({"type": "object", "required": names,
                    "properties": map(n, |n| (format!("k{n}"), json!({"type": "string"})))});
                let spec = json!({"type": "object", "properties": {"l": {"type": "array",
                    "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": names, "items": items}}});
                defining(&group, &definition(&group, &spec))
            },
        },
        Operation {
            name: "definition with junctors",
            size: 300,
            plan: |n| {
                let group = format!("junctors{n}.ex.com");
                let spec = json!({"type": "object",
                    "properties": map(n, |n| (format!("p{n}"), json!({"type": "string"}))),
                    "anyOf": [{"properties": map(n, |n| (format!("p{n}"), json!({"minLength": 1})))}]});
                defining(&group, &definition(&group, &spec))
            },
        },
        Operation {
            name: "definition with versions",
            size: 40,
            plan: |n| {
                let group = format!("versions{n}.ex.com");
                let version = |n: usize| {
                    json!({"name": format!("v{}", n + 1), "served": true, "storage": n == 0, "deprecated": n % 2 == 1,
                        "schema": {"openAPIV3Schema": {"type": "object", "description": format!("v{n}")}}})
                };
                defining(&group, &with_versions(&group, list(n, version)))
            },
        },
        Operation {
            name: "update of a definition with versions",
            size: 40,
            plan: |n| {
                let group = format!("newversions{n}.ex.com");
                let versions = |more: &str| {
                    let one = |n: usize| {
                        json!({"name": format!("v{}", n + 1), "served": true, "storage": n == 0,
                            "schema": {"openAPIV3Schema": {"type": "object", "description": format!("{more}{n}")}}})
                    };
                    with_versions(&group, list(n, one))
                };
                let mut plan = defining(&group, &versions("a"));
                plan.before.push(plan.measured);
                plan.measured =
                    Call::new("MERGE", format!("{CRDS}/things.{group}"), &versions("b")).recompiles();
                plan
            },
        },
        Operation {
            name: "definition with rules",
            size: 60,
            plan: |n| {
                let group = format!("rules{n}.ex.com");
                let rules = list(n, |n| json!({"rule": format!("self.p{n} != 'x'")}));
                let spec = json!({"type": "object", "x-kubernetes-validations": rules,
                    "properties": map(n, |n| (format!("p{n}"), json!({"type": "string"})))});
                defining(&group, &definition(&group, &spec))
            },
        },
    ]
}

fn resources() -> Vec<Operation> {
    vec![
        Operation {
            name: "custom resource with a keyed list",
            size: 200,
            plan: |n| creating(&format!("keyed{n}.ex.com"), &keyed(), keys(n, 1, false), 201),
        },
        Operation {
            name: "custom resource whose keyed list is turned around",
            size: 80,
            plan: |n| {
                let (old, new) = (keys(n, 1, false), keys(n, 2, true));
                changing(&format!("turned{n}.ex.com"), &keyed(), old, "MERGE", new)
            },
        },
        Operation {
            name: "apply of a custom resource whose keyed list is turned around",
            size: 80,
            plan: |n| {
                let (old, new) = (keys(n, 1, false), keys(n, 2, true));
                let mut plan = changing(&format!("applied{n}.ex.com"), &keyed(), old, "APPLY", new);
                plan.measured.path.push_str("&force=true");
                plan
            },
        },
        Operation {
            name: "custom resource with duplicates in a set",
            size: 150,
            plan: |n| {
                let schema = json!({"type": "object", "properties": {"l": {"type": "array",
                    "x-kubernetes-list-type": "set", "items": {"type": "string"}}}});
                let spec = json!({"l": list(2 * n, |i| format!("e{}", i % n).into())});
                creating(&format!("set{n}.ex.com"), &schema, spec, 422)
            },
        },
        Operation {
            name: "custom resource with an enum as long as its list",
            size: 600,
            plan: |n| {
                let allowed = list(n, |n| format!("e{n}").into());
                let schema = json!({"type": "object", "properties": {"l": {"type": "array",
                    "items": {"type": "string", "enum": allowed}}}});
                creating(&format!("enum{n}.ex.com"), &schema, json!({"l": allowed}), 201)
            },
        },
        Operation {
            name: "custom resource with empty elements of a wide type",
            size: 300,
            plan: |n| {
                let properties = map(n, |n| (format!("p{n}"), json!({"type": "string", "maxLength": 5})));
                let schema = json!({"type": "object", "properties": {"l": {"type": "array", "items":
                    {"type": "object", "properties": properties, "anyOf": [
                        {"properties": map(n, |n| (format!("p{n}"), json!({"minLength": 1})))}]}}}});
                creating(&format!("wide{n}.ex.com"), &schema, json!({"l": list(n, |_| json!({}))}), 201)
            },
        },
        Operation {
            name: "custom resource with patterns and defaults",
            size: 400,
            plan: |n| {
                let item = json!({"type": "object", "properties": {"d": {"type": "integer", "default": 5},
                    "s": {"type": "string", "pattern": "^[a-z]+[0-9]*$"}}});
                let schema = json!({"type": "object", "properties": {"l": {"type": "array", "items": item}}});
                let spec = json!({"l": list(n, |n| json!({"s": format!("s{n}")}))});
                creating(&format!("items{n}.ex.com"), &schema, spec, 201)
            },
        },
        Operation {
            name: "custom resource with a rule for each element",
            size: 150,
            plan: |n| {
                let schema = json!({"type": "object", "properties": {"l": {"type": "array", "items":
                    {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= 0"}]}}}});
                creating(&format!("each{n}.ex.com"), &schema, json!({"l": list(n, |n| n.into())}), 201)
            },
        },
        Operation {
            name: "custom resource with unknown fields",
            size: 300,
            plan: |n| {
                let group = format!("unknown{n}.ex.com");
                let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
                let mut plan = creating(&group, &schema, map(n, |n| (format!("u{n}"), json!(1))), 400);
                plan.measured.path.push_str("?fieldValidation=Strict");
                plan
            },
        },
    ]
}
