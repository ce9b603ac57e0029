//! Warnings about accepted pods and pod templates (AS-073), in the order of Kubernetes.

use std::collections::{BTreeMap, BTreeSet};

use machinery::field::{Path, quote};
use machinery::names;
use serde_json::Value;

use super::check::quantity;
use super::value::{at, entries, has, int, list, path, text};
use super::warnings::address;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const MATCHES_NONE: &str = "a null labelSelector results in matching no pod";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP_TEXT: &str = "non-functional in v1.27+; use the \"seccompProfile\" field instead";

/// Deprecated node labels and what is said about them.
const OLD_LABELS: &[(&str, &str)] = &[
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];
const OLD_ANNOTATIONS: &[(&str, &str)] = &[
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
];
const OLD_VOLUMES: &[(&str, &str, &str)] = &[
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// The text about a deprecated node label.
pub(super) fn old_label(label: &str) -> Option<&'static str> {
    OLD_LABELS.iter().find(|(old, _)| *old == label).map(|(_, text)| *text)
}

/// Warnings about a new pod. Updates of pods have none.
pub(super) fn pod(obj: &Value, old: Option<&Value>) -> Vec<String> {
    if old.is_some() {
        return Vec::new();
    }
    collect(at(obj, "spec"), at(obj, "metadata"), &Path::root(), false)
}

/// Warnings about the template at `place`, if the object's spec has changed.
pub(super) fn template(obj: &Value, old: Option<&Value>, place: &str) -> Vec<String> {
    if old.is_some_and(|old| at(old, "spec") == at(obj, "spec")) {
        return Vec::new();
    }
    let template = at(obj, place);
    collect(at(template, "spec"), at(template, "metadata"), &path(place), true)
}

/// Warnings about the template of a PodTemplate.
pub(super) fn bare_template(obj: &Value, old: Option<&Value>) -> Vec<String> {
    if old.is_some_and(|old| at(old, "template") == at(obj, "template")) {
        return Vec::new();
    }
    let place = Path::field("template");
    collect(at(obj, "template.spec"), at(obj, "template.metadata"), &place, true)
}

fn collect(spec: &Value, metadata: &Value, root: &Path, is_template: bool) -> Vec<String> {
    let mut out = Vec::new();
    let place = root.child("spec");
    let annotations = at(metadata, "annotations");
    let at_annotations = root.child("metadata").child("annotations");
    placement(spec, &place, &mut out);
    for (key, text) in OLD_ANNOTATIONS {
        if annotations.get(key).is_some() {
            out.push(format!("{}: {text}", at_annotations.key(key)));
        }
    }
    volumes(list(spec, "volumes"), &place.child("volumes"), &mut out);
    duplicates(spec, &place, &mut out);
    for key in ["memory", "ephemeral-storage"] {
        fractional(at(spec, "overhead"), key, &place.child("overhead"), &mut out);
    }
    if !has(spec, "securityContext.seccompProfile") && annotations.get(SECCOMP_POD).is_some() {
        out.push(format!("{}: {SECCOMP_TEXT}", at_annotations.key(SECCOMP_POD)));
    }
    for (container, here) in containers(spec, &place) {
        let name = text(container, "name");
        let key = format!("{SECCOMP_CONTAINER}{name}");
        if !has(container, "securityContext.seccompProfile") && annotations.get(&key).is_some() {
            out.push(format!("{}: {SECCOMP_TEXT}", at_annotations.key(&key)));
        }
        let key = format!("{APP_ARMOR}{name}");
        if is_template
            && !has(container, "securityContext.appArmorProfile")
            && annotations.get(&key).is_some()
        {
            let text = "deprecated since v1.30; use the \"appArmorProfile\" field instead";
            out.push(format!("{}: {text}", at_annotations.key(&key)));
        }
        for key in ["memory", "ephemeral-storage"] {
            for part in ["limits", "requests"] {
                let amounts = at(at(container, "resources"), part);
                fractional(amounts, key, &here.child("resources").child(part), &mut out);
            }
        }
        variables(list(container, "env"), &here.child("env"), &mut out);
    }
    ports(spec, &place, &mut out);
    if int(spec, "terminationGracePeriodSeconds").is_some_and(|n| n < 0) {
        let here = place.child("terminationGracePeriodSeconds");
        out.push(format!("{here}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    pod_affinity(at(spec, "affinity"), &place.child("affinity"), &mut out);
    let servers = place.child("dnsConfig").child("nameservers");
    for (i, server) in list(spec, "dnsConfig.nameservers").iter().filter_map(Value::as_str).enumerate() {
        out.extend(address(&servers.index(i), server));
    }
    for (i, alias) in list(spec, "hostAliases").iter().enumerate() {
        out.extend(address(&place.child("hostAliases").index(i).child("ip"), text(alias, "ip")));
    }
    out
}

/// All containers with their paths.
fn containers<'a>(spec: &'a Value, place: &'a Path) -> impl Iterator<Item = (&'a Value, Path)> {
    ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(move |key| {
        list(spec, key).iter().enumerate().map(move |(i, c)| (c, place.child(key).index(i)))
    })
}

fn placement(spec: &Value, place: &Path, out: &mut Vec<String>) {
    for (key, _) in entries(spec, "nodeSelector") {
        if let Some(text) = old_label(key) {
            out.push(format!("{}: {text}", place.child("nodeSelector").key(key)));
        }
    }
    let nodes = at(spec, "affinity.nodeAffinity");
    let here = place.child("affinity").child("nodeAffinity");
    let required = here.child(REQUIRED).child("nodeSelectorTerms");
    for (i, term) in list(at(nodes, REQUIRED), "nodeSelectorTerms").iter().enumerate() {
        node_term(term, false, &required.index(i), out);
    }
    for (i, term) in list(nodes, PREFERRED).iter().enumerate() {
        let here = here.child(PREFERRED).index(i).child("preference");
        node_term(at(term, "preference"), true, &here, out);
    }
    for (i, constraint) in list(spec, "topologySpreadConstraints").iter().enumerate() {
        let here = place.child("topologySpreadConstraints").index(i);
        let key = text(constraint, "topologyKey");
        if let Some(text) = old_label(key) {
            out.push(format!("{}: {key} is {text}", here.child("topologyKey")));
        }
        if !has(constraint, "labelSelector") {
            out.push(format!("{}: {MATCHES_NONE}", here.child("labelSelector")));
        }
    }
}

fn node_term(term: &Value, values: bool, place: &Path, out: &mut Vec<String>) {
    for (i, expression) in list(term, "matchExpressions").iter().enumerate() {
        let here = place.child("matchExpressions").index(i);
        let key = text(expression, "key");
        if let Some(text) = old_label(key) {
            out.push(format!("{}: {key} is {text}", here.child("key")));
        }
        let given = if values { list(expression, "values") } else { &[] };
        for (j, value) in given.iter().filter_map(Value::as_str).enumerate() {
            for fault in names::label_value(value) {
                out.push(format!("{}: {value} is invalid, {fault}", here.child("values").index(j)));
            }
        }
    }
}

fn volumes(volumes: &[Value], place: &Path, out: &mut Vec<String>) {
    for (i, volume) in volumes.iter().enumerate() {
        let here = place.index(i);
        for (key, shown, text) in OLD_VOLUMES {
            if has(volume, key) {
                out.push(format!("{}: {text}", here.child(shown)));
            }
        }
        let template = at(volume, "ephemeral.volumeClaimTemplate");
        if !template.is_null() {
            let here = here.child("ephemeral").child("volumeClaimTemplate").child("spec");
            out.extend(super::warnings::claim_spec(at(template, "spec"), &here));
        }
    }
    for volume in volumes {
        overlaps(volume, out);
    }
}

/// A file in a volume, and which source it comes from.
type File<'a> = (&'a str, String);

fn overlaps(volume: &Value, out: &mut Vec<String>) {
    let name = quote(text(volume, "name"));
    for (key, kind, named) in [
        ("configMap", "ConfigMap", "name"),
        ("secret", "Secret", "secretName"),
        ("downwardAPI", "DownwardAPI", ""),
    ] {
        let source = at(volume, key);
        let kind =
            if named.is_empty() { kind.to_owned() } else { format!("{kind} {}", quote(text(source, named))) };
        let mut seen = Vec::new();
        collisions(files(source, ""), &mut seen, &mut |text| {
            out.push(format!("volume {name} ({kind}): overlapping paths: {text}"));
        });
    }
    let mut seen = Vec::new();
    for source in list(volume, "projected.sources") {
        if source.as_object().is_none_or(|s| s.values().all(Value::is_null)) {
            out.push(format!("volume {name} (Projected) has no sources provided"));
            continue;
        }
        let found = if has(source, "configMap.items") {
            files(at(source, "configMap"), &format!("ConfigMap {}", quote(text(source, "configMap.name"))))
        } else if has(source, "secret.items") {
            files(at(source, "secret"), &format!("Secret {}", quote(text(source, "secret.name"))))
        } else if has(source, "downwardAPI.items") {
            files(at(source, "downwardAPI"), "DownwardAPI")
        } else if has(source, "serviceAccountToken") {
            vec![(text(source, "serviceAccountToken.path"), "ServiceAccountToken".to_owned())]
        } else {
            Vec::new()
        };
        collisions(found, &mut seen, &mut |text| {
            out.push(format!("volume {name} (Projected): overlapping paths: {text}"));
        });
    }
}

fn files<'a>(source: &'a Value, from: &str) -> Vec<File<'a>> {
    list(source, "items").iter().map(|item| (text(item, "path"), from.to_owned())).collect()
}

fn collisions<'a>(files: Vec<File<'a>>, seen: &mut Vec<File<'a>>, report: &mut dyn FnMut(String)) {
    let inside = |a: &str, b: &str| a == b || a.strip_prefix(b).is_some_and(|rest| rest.starts_with('/'));
    let shown = |(path, from): &File<'_>| {
        if from.is_empty() { quote(path) } else { format!("{} ({from})", quote(path)) }
    };
    for (path, from) in files {
        let file = (path.trim_end_matches('/'), from);
        for other in seen.iter().filter(|other| !file.0.is_empty() && !other.0.is_empty()) {
            if inside(file.0, other.0) || inside(other.0, file.0) {
                report(format!("{} with {}", shown(&file), shown(other)));
            }
        }
        seen.push(file);
    }
}

fn duplicates(spec: &Value, place: &Path, out: &mut Vec<String>) {
    for (key, field) in [("hostAliases", "ip"), ("imagePullSecrets", "name")] {
        let mut seen = BTreeSet::new();
        for (i, item) in list(spec, key).iter().enumerate() {
            let value = text(item, field);
            if !seen.insert(value) {
                let here = place.child(key).index(i).child(field);
                out.push(format!("{here}: duplicate {field} {}", quote(value)));
            }
        }
    }
    for (i, secret) in list(spec, "imagePullSecrets").iter().enumerate() {
        if text(secret, "name").is_empty() {
            let here = place.child("imagePullSecrets").index(i).child("name");
            out.push(format!("{here}: invalid empty name \"\""));
        }
    }
}

fn fractional(amounts: &Value, key: &str, place: &Path, out: &mut Vec<String>) {
    let Some(amount) = amounts.get(key) else { return };
    if quantity(amount).is_some_and(|q| q.milli_value() % 1000 != 0) {
        let shown = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
        out.push(format!(
            "{}: fractional byte value {} is invalid, must be an integer",
            place.key(key),
            quote(&shown)
        ));
    }
}

fn variables(vars: &[Value], place: &Path, out: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (i, var) in vars.iter().enumerate() {
        let name = text(var, "name");
        if seen.insert(name) {
            continue;
        }
        // A value that extends the previous one is meant so.
        let (value, reference) = (text(var, "value"), format!("$({name})"));
        if has(var, "valueFrom") || value == reference || !value.contains(&reference) {
            out.push(format!(
                "{}: hides previous definition of {}, which may be dropped when using apply",
                place.index(i),
                quote(name)
            ));
        }
    }
}

/// Where a port is declared, and the address and port of the host that it takes.
type HostPort<'a> = (Path, &'a str, i64);

fn ports(spec: &Value, place: &Path, out: &mut Vec<String>) {
    let mut numbers: BTreeMap<(i64, &str), Vec<HostPort<'_>>> = BTreeMap::new();
    let mut named: BTreeMap<&str, Path> = BTreeMap::new();
    let mut names = Vec::new();
    for (container, here) in containers(spec, place) {
        for (i, port) in list(container, "ports").iter().enumerate() {
            let here = here.child("ports").index(i);
            let (ip, host) = (text(port, "hostIP"), int(port, "hostPort").unwrap_or_default());
            let number = int(port, "containerPort").unwrap_or_default();
            let protocol = text(port, "protocol");
            if !ip.is_empty() && host == 0 {
                out.push(format!(
                    "{here}: hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{number} Protocol:{protocol} HostIP:{ip}}}",
                    text(port, "name")
                ));
            }
            let others = numbers.entry((number, protocol)).or_default();
            for (other, other_ip, other_host) in others.iter() {
                let what = if ip == *other_ip && host == *other_host {
                    "duplicate"
                } else if host == 0 || *other_host == 0 {
                    "overlapping"
                } else if host == *other_host && ip.is_empty() != other_ip.is_empty() {
                    "dangerously ambiguous"
                } else {
                    continue;
                };
                out.push(format!("{here}: {what} port definition with {other}"));
            }
            others.push((here.clone(), ip, host));
            let name = text(port, "name");
            if name.is_empty() {
                continue;
            }
            match named.get(name) {
                Some(other) => names.push(format!(
                    "{here}: duplicate port name {} with {other}, services and probes that select ports by name will use {other}",
                    quote(name)
                )),
                None => drop(named.insert(name, here)),
            }
        }
    }
    out.append(&mut names);
}

fn pod_affinity(affinity: &Value, place: &Path, out: &mut Vec<String>) {
    for key in ["podAffinity", "podAntiAffinity"] {
        let terms = at(affinity, key);
        let here = place.child(key);
        for (i, term) in list(terms, REQUIRED).iter().enumerate() {
            if !has(term, "labelSelector") {
                let here = here.child(REQUIRED).index(i).child("labelSelector");
                out.push(format!("{here}: {MATCHES_NONE}"));
            }
        }
        for (i, term) in list(terms, PREFERRED).iter().enumerate() {
            if !has(term, "podAffinityTerm.labelSelector") {
                let here = here.child(PREFERRED).index(i).child("podAffinityTerm").child("labelSelector");
                out.push(format!("{here}: {MATCHES_NONE}"));
            }
        }
    }
}
