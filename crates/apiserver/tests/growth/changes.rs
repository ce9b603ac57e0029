//! Operations that change objects: patches, and who owns which fields.

use serde_json::{Value, json};

use crate::operations::{
    CM, DEPLOYMENTS, changing, config, creating, data, deployment, env, list, map, merge,
};
use crate::{Call, Operation, Plan};

/// A patch of the environment of the one container of a deployment.
fn of_container(part: Value) -> Value {
    let mut container = json!({"name": "c"});
    merge(&mut container, part);
    json!({"spec": {"template": {"spec": {"containers": [container]}}}})
}

pub(crate) fn patches() -> Vec<Operation> {
    vec![
        Operation {
            name: "strategic patch: delete from a primitive list",
            size: 400,
            plan: |n| {
                let all = list(n, |n| format!("a.b/f{n}").into());
                let mut old = config(json!({}));
                old["metadata"]["finalizers"] = all.clone();
                let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": all}});
                changing(CM, "m", &old, "STRATEGIC", &patch)
            },
        },
        Operation {
            name: "strategic patch: order of a primitive list",
            size: 400,
            plan: |n| {
                // Finalizers keep the object, so each size needs one of its own.
                let name = format!("o{n}");
                let mut old = config(json!({}));
                old["metadata"] =
                    json!({"name": name, "finalizers": list(n, |n| format!("a.b/f{n}").into())});
                let order = list(n, |i| format!("a.b/f{}", n - 1 - i).into());
                let patch =
                    json!({"metadata": {"$setElementOrder/finalizers": order, "finalizers": ["a.b/f0"]}});
                Plan { after: vec![], ..changing(CM, &name, &old, "STRATEGIC", &patch) }
            },
        },
        Operation {
            name: "strategic patch: order and change of a keyed list",
            size: 150,
            plan: |n| {
                let order = list(n, |i| json!({"name": format!("V{}", n - 1 - i)}));
                let changed = list(n, |i| json!({"name": format!("V{}", n - 1 - i), "value": "y"}));
                let patch = of_container(json!({"$setElementOrder/env": order, "env": changed}));
                changing(DEPLOYMENTS, "d", &deployment(env(n)), "STRATEGIC", &patch)
            },
        },
        Operation {
            name: "strategic patch: delete from a keyed list",
            size: 150,
            plan: |n| {
                let gone = list(n, |i| json!({"name": format!("V{}", n - 1 - i), "$patch": "delete"}));
                let patch = of_container(json!({"env": gone}));
                changing(DEPLOYMENTS, "d", &deployment(env(n)), "STRATEGIC", &patch)
            },
        },
        Operation {
            name: "strategic patch: new elements of a keyed list",
            size: 150,
            plan: |n| {
                let added = list(n, |n| json!({"name": format!("W{n}"), "value": "y"}));
                let patch = of_container(json!({"env": added}));
                changing(DEPLOYMENTS, "d", &deployment(env(n)), "STRATEGIC", &patch)
            },
        },
        Operation {
            name: "strategic patch: retained keys",
            size: 400,
            plan: |n| {
                let mut data = data(n, "y");
                data["$retainKeys"] = list(n, |n| format!("k{n}").into());
                changing(CM, "m", &config(self::data(2 * n, "x")), "STRATEGIC", &json!({"data": data}))
            },
        },
        Operation {
            name: "strategic patch: many directives",
            size: 300,
            plan: |n| {
                let mut patch = map(n, |n| (format!("$setElementOrder/l{n}"), json!([])));
                merge(&mut patch, map(n, |n| (format!("l{n}"), json!([]))));
                changing(CM, "m", &config(json!({})), "STRATEGIC", &patch)
            },
        },
        Operation {
            name: "merge patch",
            size: 300,
            plan: |n| changing(CM, "m", &config(data(n, "x")), "MERGE", &json!({"data": data(n, "y")})),
        },
        Operation {
            name: "JSON patch: many operations",
            size: 300,
            plan: |n| {
                let ops = list(n, |n| json!({"op": "replace", "path": format!("/data/k{n}"), "value": "y"}));
                changing(CM, "m", &config(data(n, "x")), "JSON", &ops)
            },
        },
        Operation {
            name: "JSON patch: insertions into a long list",
            size: 300,
            plan: |n| {
                // Finalizers keep the object, so each size needs one of its own.
                let name = format!("i{n}");
                let mut old = config(json!({}));
                old["metadata"] =
                    json!({"name": name, "finalizers": list(n, |n| format!("a.b/f{n}").into())});
                let op = |n: usize| json!({"op": "add", "path": "/metadata/finalizers/0", "value": format!("a.b/g{n}")});
                Plan { after: vec![], ..changing(CM, &name, &old, "JSON", &list(n, op)) }
            },
        },
        Operation {
            name: "JSON patch: moves of a large part",
            size: 50,
            plan: |n| {
                let there = json!({"op": "move", "from": "/data", "path": "/metadata/x"});
                let back = json!({"op": "move", "from": "/metadata/x", "path": "/data"});
                let ops = list(2 * n, |n| if n % 2 == 0 { there.clone() } else { back.clone() });
                changing(CM, "m", &config(data(100, "x")), "JSON", &ops)
            },
        },
    ]
}

pub(crate) fn ownership() -> Vec<Operation> {
    vec![
        Operation {
            name: "apply a new object",
            size: 150,
            plan: |n| Plan {
                before: vec![],
                measured: Call::new("APPLY", format!("{DEPLOYMENTS}/d?fieldManager=a"), &deployment(env(n)))
                    .answers(201),
                after: vec![format!("{DEPLOYMENTS}/d")],
            },
        },
        Operation {
            name: "apply over another manager's fields",
            size: 120,
            plan: |n| {
                let changed = list(n, |i| json!({"name": format!("V{}", n - 1 - i), "value": "y"}));
                changing(DEPLOYMENTS, "d", &deployment(env(n)), "APPLY", &deployment(changed))
            },
        },
        Operation {
            name: "apply with conflicts",
            size: 120,
            plan: |n| {
                let changed = list(n, |n| json!({"name": format!("V{n}"), "value": "y"}));
                let place = format!("{DEPLOYMENTS}/d?fieldManager");
                Plan {
                    before: vec![Call::new("APPLY", format!("{place}=a"), &deployment(env(n))).answers(201)],
                    measured: Call::new("APPLY", format!("{place}=b"), &deployment(changed)).answers(409),
                    after: vec![format!("{DEPLOYMENTS}/d")],
                }
            },
        },
        Operation {
            name: "apply that gives up half of the fields",
            size: 100,
            plan: |n| {
                let place = format!("{DEPLOYMENTS}/d?fieldManager=a");
                Plan {
                    before: vec![Call::new("APPLY", &place, &deployment(env(2 * n))).answers(201)],
                    measured: Call::new("APPLY", &place, &deployment(env(n))),
                    after: vec![format!("{DEPLOYMENTS}/d")],
                }
            },
        },
        Operation {
            name: "update with many appliers",
            size: 150,
            plan: |n| {
                let entry = |n: usize| {
                    json!({"manager": format!("m{n}"), "operation": "Apply", "apiVersion": "v1",
                        "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
                        "fieldsV1": {"f:data": {format!("f:k{n}"): {}}}})
                };
                let mut old = config(data(n, "x"));
                old["metadata"]["managedFields"] = list(n, entry);
                let after = json!({"data": data(n, "y")});
                changing(CM, "m", &old, "MERGE", &after)
            },
        },
        Operation {
            name: "create with many updaters",
            size: 150,
            plan: |n| {
                let entry = |n: usize| {
                    json!({"manager": format!("m{n}"), "operation": "Update",
                        "apiVersion": format!("v{}", n / 2), "time": "2026-01-01T00:00:00Z",
                        "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {format!("f:k{n}"): {}}}})
                };
                let mut object = config(data(n, "x"));
                object["metadata"]["managedFields"] = list(n, entry);
                creating(CM, "m", &object)
            },
        },
        Operation {
            name: "scale with many owners",
            size: 150,
            plan: |n| {
                let entry = |n: usize| {
                    json!({"manager": format!("m{n}"), "operation": "Apply", "apiVersion": "apps/v1",
                        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}}})
                };
                let mut old = deployment(env(1));
                old["metadata"]["managedFields"] = list(n, entry);
                let mut plan = changing(DEPLOYMENTS, "d", &old, "MERGE", &json!({"spec": {"replicas": 3}}));
                plan.measured.path = format!("{DEPLOYMENTS}/d/scale");
                plan
            },
        },
        Operation {
            name: "owner references that come twice",
            size: 200,
            plan: |n| {
                let one = |i: usize| json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": format!("u{}", i % n)});
                let mut object = config(json!({}));
                object["metadata"]["ownerReferences"] = list(2 * n, one);
                creating(CM, "m", &object)
            },
        },
    ]
}
