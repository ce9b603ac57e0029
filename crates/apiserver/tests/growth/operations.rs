//! Operations on built-in kinds.

use serde_json::{Value, json};

use crate::{Call, Operation, Plan, changes};

const T: &str = "/api/v1/namespaces/t";
const PODS: &str = "/api/v1/namespaces/t/pods";
pub(crate) const CM: &str = "/api/v1/namespaces/t/configmaps";
pub(crate) const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/t/deployments";
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

pub(crate) fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}

pub(crate) fn env(count: usize) -> Value {
    list(count, |n| json!({"name": format!("V{n}"), "value": "x"}))
}

pub(crate) fn deployment(env: Value) -> Value {
    let template = json!({"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i", "env": env}]}});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}})
}

pub(crate) fn config(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data})
}

pub(crate) fn data(count: usize, value: &str) -> Value {
    map(count, |n| (format!("k{n}"), value.into()))
}

/// A request that creates an object, which is deleted afterwards.
pub(crate) fn creating(path: &str, name: &str, body: &Value) -> Plan {
    Plan {
        before: vec![],
        measured: Call::new("POST", path, body),
        after: vec![format!("{path}/{name}?gracePeriodSeconds=0")],
    }
}

/// A request that changes an object, which is created before.
pub(crate) fn changing(path: &str, name: &str, old: &Value, method: &'static str, change: &Value) -> Plan {
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

pub(crate) fn all() -> Vec<Operation> {
    let mut out = pods();
    out.extend(changes::patches());
    out.extend(changes::ownership());
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
            size: 100,
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
