//! Turns values into manifests. Pure.

use ocm_shared::rbac::{binding, role, rule};
use serde_json::{Value, json};

use super::values::{Its, Values, Wds};

const TENANCY: &str = "tenancy.kflex.kubestellar.org";
const CPTYPE: &str = "kflex.kubestellar.io/cptype";
const MANAGER: &str = "kubestellar-controller-manager";
const TRANSPORT: &str = "transport-controller";
/// Directory into which the init containers write kubeconfigs.
const CONFIGS: &str = "/kubeconfig";

/// Why values are rejected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum Wrong {
    #[error("there are no WDSes")]
    NoWds,
    #[error("two spaces are called {0}")]
    Twice(String),
    #[error("{0} is no name of a space: {1}")]
    Name(String, String),
    #[error("WDS {0} needs an ITSName: there are {1} ITSes")]
    Unclear(String, usize),
    #[error("WDS {wds} wants ITS {its}, which is not among the ITSes")]
    Unknown { wds: String, its: String },
    #[error("{what} {name} has type {kind}; possible are {possible}")]
    Type { what: &'static str, name: String, kind: String, possible: &'static str },
}

/// Returns all objects; an object comes after those that it needs.
pub(super) fn manifests(values: &Values, image: &str) -> Result<Vec<Value>, Wrong> {
    check(values)?;
    let spaces = values.itses.iter().map(|it| &it.name).chain(values.wdses.iter().map(|it| &it.name));
    // KubeFlex processes them later; the following objects do not wait for it.
    let mut all: Vec<Value> = spaces.map(String::as_str).map(namespace).collect();
    all.extend(values.itses.iter().map(its));
    for wds in &values.wdses {
        let its = match (&wds.its_name, values.itses.as_slice()) {
            (Some(name), _) => name,
            (None, [only]) => &only.name,
            (None, several) => return Err(Wrong::Unclear(wds.name.clone(), several.len())),
        };
        all.push(control_plane(&wds.name, &wds.kind, "wds"));
        all.extend(description_space(values, wds, its, image));
    }
    Ok(all)
}

fn check(values: &Values) -> Result<(), Wrong> {
    if values.wdses.is_empty() {
        return Err(Wrong::NoWds);
    }
    let kinds = values
        .itses
        .iter()
        .map(|it| {
            ("ITS", &it.name, &it.kind, &["vcluster", "host", "external"][..], "vcluster, host, external")
        })
        .chain(values.wdses.iter().map(|it| ("WDS", &it.name, &it.kind, &["k8s", "host"][..], "k8s, host")));
    let mut names = std::collections::BTreeSet::new();
    for (what, name, kind, allowed, possible) in kinds {
        if let Some(problem) = machinery::names::dns1123_label(name).first() {
            return Err(Wrong::Name(name.clone(), problem.clone()));
        }
        if !allowed.contains(&kind.as_str()) {
            return Err(Wrong::Type { what, name: name.clone(), kind: kind.clone(), possible });
        }
        if !names.insert(name) {
            return Err(Wrong::Twice(name.clone()));
        }
    }
    let named = values.wdses.iter().filter_map(|wds| Some((wds, wds.its_name.as_ref()?)));
    for (wds, its) in named {
        if !values.itses.is_empty() && !values.itses.iter().any(|it| it.name == *its) {
            return Err(Wrong::Unknown { wds: wds.name.clone(), its: its.clone() });
        }
    }
    Ok(())
}

fn namespace(space: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": format!("{space}-system")}})
}

fn control_plane(name: &str, kind: &str, role: &str) -> Value {
    let backend = if kind == "k8s" { "shared" } else { "dedicated" };
    json!({"apiVersion": format!("{TENANCY}/v1alpha1"), "kind": "ControlPlane",
        "metadata": {"name": name, "labels": {CPTYPE: role}}, "spec": {"type": kind, "backend": backend}})
}

fn its(its: &Its) -> Value {
    let mut plane = control_plane(&its.name, &its.kind, "its");
    if its.kind == "external"
        && let Some(spec) = plane.get_mut("spec").and_then(Value::as_object_mut)
    {
        let secret = its.bootstrap_secret.as_ref();
        let name = secret.and_then(|it| it.name.clone()).unwrap_or_else(|| format!("{}-bootstrap", its.name));
        let mut reference = json!({"name": name,
            "inClusterKey": secret.and_then(|it| it.key.as_deref()).unwrap_or("kubeconfig-incluster")});
        if let Some(namespace) = secret.and_then(|it| it.namespace.as_deref()) {
            reference["namespace"] = json!(namespace);
        }
        spec.insert("bootstrapSecretRef".into(), reference);
    }
    plane
}

/// Returns the objects of one WDS.
fn description_space(values: &Values, wds: &Wds, its: &str, image: &str) -> Vec<Value> {
    let place = format!("{}-system", wds.name);
    let label =
        |name: &str| json!({"app.kubernetes.io/part-of": "kubestellar", "app.kubernetes.io/name": name});
    let mut all = Vec::new();
    for name in [MANAGER, TRANSPORT] {
        all.push(json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": place, "labels": label(name)}}));
        // The right to find its two spaces, and the kubeconfigs to which they refer.
        let account = json!([{"kind": "ServiceAccount", "name": name, "namespace": place}]);
        let everywhere = format!("{place}:{name}");
        let mut planes = rule(TENANCY, &["controlplanes"], &["get"]);
        planes["resourceNames"] = json!([wds.name, its]);
        all.push(role("", &everywhere, label(name), json!([planes])));
        all.push(binding("", &everywhere, label(name), ("ClusterRole", &everywhere), account.clone()));
        let mut secret = rule("", &["secrets"], &["get"]);
        secret["resourceNames"] = json!(["admin-kubeconfig", "vc-vcluster"]);
        let mut own = vec![secret.clone()];
        if name == MANAGER {
            // Only its own Lease. RBAC cannot restrict a creation to a name.
            let lease = format!("controller-manager-{}", wds.name);
            own.push(rule("coordination.k8s.io", &["leases"], &["create"]));
            let mut held = rule("coordination.k8s.io", &["leases"], &["get", "update"]);
            held["resourceNames"] = json!([lease]);
            own.push(held);
        }
        let its_place = format!("{its}-system");
        for (place, rules) in [(&place, json!(own)), (&its_place, json!([secret]))] {
            let local = format!("{}:{name}", wds.name);
            all.push(role(place, &local, label(name), rules));
            all.push(binding(place, &local, label(name), ("Role", &local), account.clone()));
        }
    }
    all.push(manager(values, wds, its, image, &place, &label(MANAGER)));
    all.push(json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": format!("{MANAGER}-metrics-service"), "namespace": place, "labels": label(MANAGER)},
        "spec": {"selector": label(MANAGER), "ports": [{"name": "metrics", "port": 8443, "targetPort": "metrics"}]}}));
    all.push(transport(values, wds, its, image, &place, &label(TRANSPORT)));
    all
}

fn manager(values: &Values, wds: &Wds, its: &str, image: &str, place: &str, labels: &Value) -> Value {
    let args = json!([
        "controller-manager",
        format!("--wds-name={}", wds.name),
        format!("--its-name={its}"),
        format!("--api-groups={}", wds.api_groups.as_deref().unwrap_or_default()),
        "--metrics-bind-address=:8443",
        "--health-probe-bind-address=:8081",
        "--leader-elect",
        format!("-v={}", values.controller_manager_verbosity()),
    ]);
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "probes"}});
    let container = json!({
        "name": "manager", "image": image, "args": args,
        "ports": [{"name": "metrics", "containerPort": 8443}, {"name": "probes", "containerPort": 8081}],
        "livenessProbe": probe("/healthz"), "readinessProbe": probe("/readyz"),
        "securityContext": confined(),
    });
    deployment(MANAGER, place, labels, json!({"containers": [container]}))
}

fn transport(values: &Values, wds: &Wds, its: &str, image: &str, place: &str, labels: &Value) -> Value {
    let t = &values.transport_controller;
    let args = json!([
        "transport-controller",
        format!("--wds-name={}", wds.name),
        format!("--wds-kubeconfig={CONFIGS}/wds"),
        format!("--transport-kubeconfig={CONFIGS}/its"),
        format!("--wds-qps={}", t.wds_qps),
        format!("--wds-burst={}", t.wds_burst),
        format!("--transport-qps={}", t.its_qps),
        format!("--transport-burst={}", t.its_burst),
        format!("--max-num-wrapped={}", t.max_num_wrapped),
        format!("--max-size-wrapped={}", t.max_size_wrapped),
        format!("--metrics-bind-address={}", t.metrics_bind_addr),
        format!("--pprof-bind-address={}", t.pprof_bind_addr),
        "--health-probe-bind-address=:8091",
        format!("-v={}", values.transport_verbosity()),
    ]);
    let mounts = json!([{"name": "kubeconfig", "mountPath": CONFIGS}]);
    let fetch = |role: &str, space: &str| {
        json!({"name": format!("{role}-kubeconfig"), "image": image, "volumeMounts": mounts,
            "securityContext": confined(), "args": ["get-kubeconfig", format!("--control-plane-name={space}"),
                format!("--output-file={CONFIGS}/{role}")]})
    };
    let port = |addr: &str| addr.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
    let mut ports = vec![json!({"name": "probes", "containerPort": 8091})];
    ports.extend(port(&t.metrics_bind_addr).map(|port| json!({"name": "metrics", "containerPort": port})));
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "probes"}});
    let container = json!({
        "name": TRANSPORT, "image": image, "args": args, "ports": ports, "volumeMounts": mounts,
        "livenessProbe": probe("/healthz"), "readinessProbe": probe("/readyz"), "securityContext": confined(),
    });
    let pod = json!({
        "initContainers": [fetch("wds", &wds.name), fetch("its", its)],
        "containers": [container],
        "volumes": [{"name": "kubeconfig", "emptyDir": {"medium": "Memory"}}],
    });
    let mut deployment = deployment(TRANSPORT, place, labels, pod);
    // There is no leader election: the old pod must end before the new one starts.
    deployment["spec"]["strategy"] = json!({"type": "Recreate"});
    deployment
}

/// The security context of a container that needs no privileges.
fn confined() -> Value {
    json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}})
}

fn deployment(name: &str, place: &str, labels: &Value, mut pod: Value) -> Value {
    pod["serviceAccountName"] = json!(name);
    pod["securityContext"] = json!({"runAsNonRoot": true, "runAsUser": 65532, "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"}});
    pod["terminationGracePeriodSeconds"] = json!(10);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": place, "labels": labels},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    })
}
