//! Operations on built-in kinds.

use serde_json::{Value, json};

use crate::{Call, Operation, Plan};

const T: &str = "/api/v1/namespaces/t";
const PODS: &str = "/api/v1/namespaces/t/pods";
const CM: &str = "/api/v1/namespaces/t/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/t/deployments";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// `count` values made from their numbers.
pub(crate) fn list(count: usize, one: impl Fn(usize) -> Value) -> Value {
    (0..count).map(one).collect()
}

/// `count` members, `key(n)` each.
pub(crate) fn map(count: usize, one: impl Fn(usize) -> (String, Value)) -> Value {
    Value::Object((0..count).map(one).collect())
}

fn pod(container: Value, more: Value) -> Value {
    let mut base = json!({"name": "c", "image": "i"});
    merge(&mut base, container);
    let mut spec = json!({"containers": [base], "serviceAccountName": "own"});
    merge(&mut spec, more);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
}

fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}

fn env(count: usize) -> Value {
    list(count, |n| json!({"name": format!("V{n}"), "value": "x"}))
}

fn deployment(env: Value) -> Value {
    let template = json!({"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i", "env": env}]}});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}})
}

fn config(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data})
}

fn data(count: usize, value: &str) -> Value {
    map(count, |n| (format!("k{n}"), value.into()))
}

/// A request that creates an object, which is deleted afterwards.
fn creating(path: &str, name: &str, body: &Value) -> Plan {
    Plan {
        before: vec![],
        measured: Call::new("POST", path, body),
        after: vec![format!("{path}/{name}?gracePeriodSeconds=0")],
    }
}

/// A request that changes an object, which is created before.
fn changing(path: &str, name: &str, old: &Value, method: &'static str, change: &Value) -> Plan {
    let place = format!("{path}/{name}");
    Plan {
        before: vec![Call::new("POST", path, old)],
        measured: Call::new(
            method,
            format!("{place}?fieldManager=changer&force={}", method == "APPLY"),
            change,
        ),
        after: vec![format!("{place}?gracePeriodSeconds=0")],
    }
    .without_force(method)
}

impl Plan {
    /// Removes `force` unless the method is apply.
    fn without_force(mut self, method: &str) -> Self {
        if method != "APPLY" {
            self.measured.path = self.measured.path.replace("&force=false", "");
        }
        self
    }
}

/// A patch of the environment of the one container of a deployment.
fn of_container(part: Value) -> Value {
    let mut container = json!({"name": "c"});
    merge(&mut container, part);
    json!({"spec": {"template": {"spec": {"containers": [container]}}}})
}

pub(crate) fn all() -> Vec<Operation> {
    let mut out = pods();
    out.extend(patches());
    out.extend(ownership());
    out.extend(other_kinds());
    out.extend(rights());
    out.extend(reading());
    out.extend(protobuf_and_watches());
    out
}

/// A length-delimited field of protobuf.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = content.len();
    while length > 0x7f {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend(content);
    out
}

/// A ConfigMap with `count` entries as protobuf.
fn protobuf(count: usize) -> Vec<u8> {
    let type_meta = [field(1, b"v1"), field(2, b"ConfigMap")].concat();
    let mut map = field(1, &field(1, b"m"));
    for n in 0..count {
        map.extend(field(2, &[field(1, format!("k{n}").as_bytes()), field(2, b"x")].concat()));
    }
    [b"k8s\0".to_vec(), field(1, &type_meta), field(2, &map)].concat()
}

fn protobuf_and_watches() -> Vec<Operation> {
    vec![
        Operation {
            name: "create from protobuf",
            size: 300,
            plan: |n| {
                let mut plan = creating(CM, "m", &json!({}));
                plan.measured = plan
                    .measured
                    .with("content-type", "application/vnd.kubernetes.protobuf")
                    .text(protobuf(n));
                plan
            },
        },
        Operation {
            name: "an event to many watches",
            size: 500,
            plan: |n| {
                let mut plan = creating(CM, "watched", &json!({"metadata": {"name": "watched"}}));
                let watch = format!("{CM}?watch=true&fieldSelector=metadata.name%3Dwatched");
                let paths = (0..n).map(|n| if n % 2 == 0 { watch.clone() } else { format!("{watch}&x={n}") });
                plan.measured = plan.measured.watched(paths.collect());
                plan
            },
        },
    ]
}

fn pods() -> Vec<Operation> {
    vec![
        Operation {
            name: "create a pod with variables",
            size: 200,
            plan: |n| creating(PODS, "p", &pod(json!({"env": env(n)}), json!({}))),
        },
        Operation {
            name: "create a pod with ports",
            size: 200,
            plan: |n| {
                let ports = list(n, |n| json!({"containerPort": n + 1}));
                creating(PODS, "p", &pod(json!({"ports": ports}), json!({})))
            },
        },
        Operation {
            name: "create a pod with volumes and mounts",
            size: 100,
            plan: |n| {
                let volumes = list(n, |n| json!({"name": format!("v{n}"), "emptyDir": {}}));
                let mounts = list(n, |n| json!({"name": format!("v{n}"), "mountPath": format!("/m{n}")}));
                creating(PODS, "p", &pod(json!({"volumeMounts": mounts}), json!({"volumes": volumes})))
            },
        },
        Operation {
            name: "create a pod with containers",
            size: 50,
            plan: |n| {
                let containers = list(n, |n| json!({"name": format!("c{n}"), "image": "i"}));
                creating(PODS, "p", &pod(json!({}), json!({"containers": containers})))
            },
        },
        Operation {
            name: "add tolerations to a pod",
            size: 150,
            plan: |n| {
                // The first toleration matches everything, so that the server adds none.
                let key = |n: usize| if n == 0 { String::new() } else { format!("k{n}") };
                let tolerations = |n| list(n, |n| json!({"key": key(n), "operator": "Exists"}));
                let old = pod(json!({}), json!({"tolerations": tolerations(n)}));
                changing(PODS, "p", &old, "MERGE", &json!({"spec": {"tolerations": tolerations(2 * n)}}))
            },
        },
        Operation {
            name: "a pod with faults that are all told",
            size: 150,
            plan: |n| {
                let env = list(n, |n| json!({"name": format!("={n}")}));
                let mut plan = creating(PODS, "p", &pod(json!({"env": env}), json!({})));
                plan.measured.status = 422;
                plan
            },
        },
    ]
}

fn patches() -> Vec<Operation> {
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

fn ownership() -> Vec<Operation> {
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

fn other_kinds() -> Vec<Operation> {
    vec![
        Operation {
            name: "service with ports that keep their numbers",
            size: 100,
            plan: |n| {
                let ports = list(n, |n| json!({"name": format!("p{n}"), "port": n + 1}));
                let of = |kind: &str| {
                    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
                        "spec": {"type": kind, "ports": ports}})
                };
                changing(&format!("{T}/services"), "s", &of("NodePort"), "MERGE", &of("NodePort"))
            },
        },
        Operation {
            name: "update of an endpoint slice",
            size: 100,
            plan: |n| {
                let slice = |host: &str| {
                    let one = |n: usize| json!({"addresses": [format!("10.{}.{}.1", n / 250, n % 250)], "hostname": host});
                    let ports = list(n, |n| json!({"name": format!("p{n}"), "port": 1, "protocol": "TCP"}));
                    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                        "metadata": {"name": "e"}, "addressType": "IPv4", "endpoints": list(n, one), "ports": ports})
                };
                let path = "/apis/discovery.k8s.io/v1/namespaces/t/endpointslices";
                changing(path, "e", &slice("a"), "MERGE", &slice("b"))
            },
        },
        Operation {
            name: "webhooks and their versions",
            size: 100,
            plan: |n| {
                let hook = |n: usize| {
                    json!({"name": format!("h{n}.a.b"), "sideEffects": "None", "admissionReviewVersions": ["v1"],
                        "clientConfig": {"url": "https://h"}})
                };
                let mut hooks = list(n, hook);
                hooks[0]["admissionReviewVersions"] = list(n, |n| format!("v{}", n + 1).into());
                let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
                creating(path, "w", &json!({"metadata": {"name": "w"}, "webhooks": hooks}))
            },
        },
        Operation {
            name: "network policy",
            size: 150,
            plan: |n| {
                let peer = |n: usize| json!({"podSelector": {"matchLabels": {format!("k{n}"): "v"}}});
                let spec = json!({"podSelector": {}, "ingress": [{"from": list(n, peer)}]});
                let path = "/apis/networking.k8s.io/v1/namespaces/t/networkpolicies";
                creating(path, "n", &json!({"metadata": {"name": "n"}, "spec": spec}))
            },
        },
        Operation {
            name: "ingress rules",
            size: 100,
            plan: |n| {
                let back = json!({"service": {"name": "s", "port": {"number": 1}}});
                let rule = |n: usize| json!({"host": format!("h{n}.a"), "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": back}]}});
                let path = "/apis/networking.k8s.io/v1/namespaces/t/ingresses";
                creating(path, "i", &json!({"metadata": {"name": "i"}, "spec": {"rules": list(n, rule)}}))
            },
        },
        Operation {
            name: "labels, annotations and finalizers",
            size: 300,
            plan: |n| {
                let mut object = config(json!({}));
                object["metadata"]["labels"] = map(n, |n| (format!("a.b/l{n}"), "v".into()));
                object["metadata"]["annotations"] = map(n, |n| (format!("a.b/a{n}"), "v".into()));
                creating(CM, "m", &object)
            },
        },
        Operation {
            name: "claim whose spec may not change",
            size: 200,
            plan: |n| {
                // Claims stay until nothing uses them, so each size needs one of its own.
                let name = format!("c{n}");
                let claim = |mode: &str| {
                    let labels = map(n, |n| (format!("k{n}"), "v".into()));
                    json!({"metadata": {"name": name}, "spec": {"accessModes": [mode], "selector": {"matchLabels": labels},
                        "resources": {"requests": {"storage": "1Gi"}}}})
                };
                let path = format!("{T}/persistentvolumeclaims");
                let mut plan =
                    changing(&path, &name, &claim("ReadWriteOnce"), "MERGE", &claim("ReadOnlyMany"));
                plan.measured.status = 422;
                plan
            },
        },
    ]
}

fn rights() -> Vec<Operation> {
    fn role(name: &str, count: usize) -> Value {
        let rule = |n: usize| json!({"verbs": ["get", "list"], "apiGroups": [format!("g{n}")], "resources": ["things"]});
        json!({"metadata": {"name": name}, "rules": list(count, rule)})
    }
    vec![
        Operation {
            name: "role",
            size: 200,
            plan: |n| creating(&format!("{RBAC}/clusterroles"), "r", &role("r", n)),
        },
        Operation {
            name: "role of a user who has all of its rights",
            size: 60,
            plan: |n| {
                let path = format!("{RBAC}/clusterroles");
                let mut held = role("held", n);
                let own = json!({"verbs": ["create"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"]});
                if let Some(rules) = held["rules"].as_array_mut() {
                    for (n, rule) in rules.iter_mut().enumerate() {
                        rule["resources"] = json!([format!("r{n}")]);
                    }
                    rules.push(own);
                }
                let mut wanted = held.clone();
                wanted["metadata"]["name"] = "r".into();
                if let Some(rules) = wanted["rules"].as_array_mut() {
                    rules.pop();
                }
                let binding = json!({"metadata": {"name": "held"},
                    "roleRef": {"kind": "ClusterRole", "name": "held", "apiGroup": "rbac.authorization.k8s.io"},
                    "subjects": [{"kind": "User", "name": "u"}]});
                let mut plan = creating(&path, "r", &wanted);
                plan.measured = plan.measured.with("impersonate-user", "u");
                plan.before = vec![
                    Call::new("POST", &path, &held),
                    Call::new("POST", format!("{RBAC}/clusterrolebindings"), &binding),
                ];
                plan.after.extend([format!("{path}/held"), format!("{RBAC}/clusterrolebindings/held")]);
                plan
            },
        },
        Operation {
            name: "role of a user who lacks its rights",
            size: 60,
            plan: |n| {
                let path = format!("{RBAC}/clusterroles");
                let held = json!({"metadata": {"name": "held"}, "rules": [
                    {"verbs": ["create"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"]}]});
                let binding = json!({"metadata": {"name": "held"},
                    "roleRef": {"kind": "ClusterRole", "name": "held", "apiGroup": "rbac.authorization.k8s.io"},
                    "subjects": [{"kind": "User", "name": "u"}]});
                let mut plan = creating(&path, "r", &role("r", n));
                plan.measured = plan.measured.with("impersonate-user", "u").answers(403);
                plan.before = vec![
                    Call::new("POST", &path, &held),
                    Call::new("POST", format!("{RBAC}/clusterrolebindings"), &binding),
                ];
                plan.after = vec![format!("{path}/held"), format!("{RBAC}/clusterrolebindings/held")];
                plan
            },
        },
        Operation {
            name: "binding with subjects",
            size: 200,
            plan: |n| {
                let subjects = list(n, |n| json!({"kind": "User", "name": format!("u{n}")}));
                let body = json!({"metadata": {"name": "b"}, "subjects": subjects,
                    "roleRef": {"kind": "ClusterRole", "name": "view", "apiGroup": "rbac.authorization.k8s.io"}});
                creating(&format!("{RBAC}/namespaces/t/rolebindings"), "b", &body)
            },
        },
        Operation {
            name: "access review with groups",
            size: 300,
            plan: |n| {
                let groups = list(n, |n| format!("g{n}").into());
                let spec = json!({"user": "u", "groups": groups, "resourceAttributes": {"verb": "get", "resource": "pods"}});
                let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
                Plan {
                    before: vec![],
                    measured: Call::new("POST", path, &json!({"spec": spec})),
                    after: vec![],
                }
            },
        },
    ]
}

fn reading() -> Vec<Operation> {
    fn many(count: usize) -> Vec<Call> {
        let one = |n: usize| {
            let mut object = config(json!({"a": "b"}));
            object["metadata"] = json!({"name": format!("x{n}"), "labels": {"k": format!("v{n}")}});
            Call::new("POST", CM, &object)
        };
        (0..count).map(one).collect()
    }
    vec![
        Operation {
            name: "list by a long set of labels",
            size: 50,
            plan: |n| {
                let values: Vec<String> = (0..n).map(|n| format!("v{n}")).collect();
                Plan {
                    before: many(n),
                    measured: Call::get(format!("{CM}?labelSelector=k+in+({})", values.join(","))),
                    after: vec![CM.to_owned()],
                }
            },
        },
        Operation {
            name: "list as a table",
            size: 50,
            plan: |n| Plan {
                before: many(n),
                measured: Call::get(CM).with("accept", "application/json;as=Table;v=v1;g=meta.k8s.io"),
                after: vec![CM.to_owned()],
            },
        },
        Operation {
            name: "delete a collection",
            size: 50,
            plan: |n| Plan {
                before: many(n),
                measured: Call::new("DELETE", CM, &Value::Null),
                after: vec![],
            },
        },
        Operation {
            name: "duplicate and unknown fields",
            size: 300,
            plan: |n| {
                let unknown: Vec<String> = (0..n).map(|n| format!("\"u{n}\":1")).collect();
                let text = format!(
                    "{{\"metadata\":{{\"name\":\"m\",\"name\":\"m\"}},{},\"data\":{{}}}}",
                    unknown.join(",")
                );
                let path = format!("{CM}?fieldValidation=Strict");
                Plan {
                    before: vec![],
                    measured: Call::new("POST", path, &json!({})).text(text).answers(400),
                    after: vec![],
                }
            },
        },
        Operation {
            name: "YAML",
            size: 300,
            plan: |n| {
                let lines: Vec<String> = (0..n).map(|n| format!("  k{n}: x\n")).collect();
                let text = format!(
                    "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\ndata:\n{}",
                    lines.concat()
                );
                let mut plan = creating(CM, "m", &json!({}));
                plan.measured = plan.measured.text(text).with("content-type", "application/yaml");
                plan
            },
        },
        Operation {
            name: "YAML of nested lists",
            size: 10,
            plan: |n| {
                let nested: Vec<String> =
                    (0..20).map(|depth| format!("{}k{depth}:\n", " ".repeat(depth))).collect();
                let nested = nested.concat();
                let text = format!("{nested}{}{}x", " ".repeat(20), "- ".repeat(n));
                Plan {
                    before: vec![],
                    measured: Call::new("POST", CM, &json!({}))
                        .text(text)
                        .with("content-type", "application/yaml")
                        .answers(422),
                    after: vec![],
                }
            },
        },
    ]
}
