//! Validation of pods and pod templates (spec 2.5). Errors come in the order of Kubernetes' own checks.

use std::collections::BTreeSet;

use machinery::field::Path;
use machinery::names;
use serde_json::Value;

use super::check::Errs;
use super::pod_volumes::{self, Owner};
use super::value::{at, entries, flag, has, int, list, text};
use super::{pod_containers, pod_placement, pod_security};

const NAMESERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const SEARCH_CHARS_MAX: usize = 2048;
const HOST_NAME_MAX: usize = 64;

/// Validates a pod template: metadata and spec.
pub(super) fn template(template: &Value, place: &Path, errs: &mut Errs) {
    let metadata = place.child("metadata");
    errs.labels(&metadata.child("labels"), at(template, "metadata.labels"));
    for (key, _) in entries(template, "metadata.annotations") {
        errs.names(&metadata.child("annotations"), key, names::qualified_name(&key.to_lowercase()));
    }
    spec(at(template, "spec"), Owner { name: "", is_pod: false }, &place.child("spec"), errs);
    if !list(template, "spec.ephemeralContainers").is_empty() {
        errs.forbidden(
            &place.child("spec").child("ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        );
    }
}

/// Validates a pod, without its metadata.
pub(super) fn pod(pod: &Value, errs: &mut Errs) {
    let place = Path::field("spec");
    let spec = at(pod, "spec");
    self::spec(spec, Owner { name: text(pod, "metadata.name"), is_pod: true }, &place, errs);
    if text(spec, "serviceAccountName").is_empty() {
        for (i, volume) in list(spec, "volumes").iter().enumerate() {
            for (j, source) in list(volume, "projected.sources").iter().enumerate() {
                if has(source, "serviceAccountToken") {
                    let here = place.child("volumes").index(i).child("projected").child("sources").index(j);
                    errs.forbidden(
                        &here.child("serviceAccountToken"),
                        "must not be specified when serviceAccountName is not set",
                    );
                }
            }
        }
    }
    for key in ["containers", "initContainers"] {
        for (i, container) in list(spec, key).iter().enumerate() {
            pod_containers::image_padding(container, &place.child(key).index(i), errs);
        }
    }
}

/// Validates what only a new pod must not have.
pub(super) fn new_pod(pod: &Value, errs: &mut Errs) {
    let place = Path::field("spec");
    let spec = at(pod, "spec");
    if !list(spec, "ephemeralContainers").is_empty() {
        errs.forbidden(&place.child("ephemeralContainers"), "cannot be set on create");
    }
    if !text(spec, "nodeName").is_empty() && !list(spec, "schedulingGates").is_empty() {
        errs.forbidden(&place.child("nodeName"), "cannot be set until all schedulingGates have been cleared");
    }
}

fn spec(spec: &Value, owner: Owner<'_>, place: &Path, errs: &mut Errs) {
    let volumes = pod_volumes::check(list(spec, "volumes"), owner, &place.child("volumes"), errs);
    resource_claims(list(spec, "resourceClaims"), &place.child("resourceClaims"), errs);
    pod_containers::check(spec, &volumes, place, errs);
    pod_resources(spec, &place.child("resources"), errs);
    host_network(spec, owner, &place.child("containers"), errs);
    errs.required_enum(
        &place.child("restartPolicy"),
        text(spec, "restartPolicy"),
        &["Always", "OnFailure", "Never"],
    );
    errs.required_enum(
        &place.child("dnsPolicy"),
        text(spec, "dnsPolicy"),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
    );
    node_labels(spec, &place.child("nodeSelector"), errs);
    pod_security::pod(spec, place, errs);
    pod_placement::affinity(at(spec, "affinity"), &place.child("affinity"), errs);
    dns_config(spec, &place.child("dnsConfig"), errs);
    gates(spec, place, errs);
    let here = place.child("topologySpreadConstraints");
    pod_placement::spreading(list(spec, "topologySpreadConstraints"), &here, errs);
    host_users(spec, place, errs);
    host_name_override(spec, &place.child("hostnameOverride"), errs);
    identities(spec, place, errs);
    pod_placement::tolerations(list(spec, "tolerations"), &place.child("tolerations"), errs);
    host_aliases(list(spec, "hostAliases"), &place.child("hostAliases"), errs);
    let class = text(spec, "priorityClassName");
    if !class.is_empty() {
        errs.names(&place.child("priorityClassName"), class, names::dns1123_subdomain(class));
    }
    if has(spec, "runtimeClassName") {
        let class = text(spec, "runtimeClassName");
        errs.names(&place.child("runtimeClassName"), class, names::dns1123_subdomain(class));
    }
    if has(spec, "preemptionPolicy") {
        errs.required_enum(
            &place.child("preemptionPolicy"),
            text(spec, "preemptionPolicy"),
            &["PreemptLowerPriority", "Never"],
        );
    }
    overhead(spec, &place.child("overhead"), errs);
    operating_system(spec, &place.child("os"), errs);
    file_references(spec, place, errs);
}

fn node_labels(spec: &Value, place: &Path, errs: &mut Errs) {
    errs.labels(place, at(spec, "nodeSelector"));
}

fn resource_claims(claims: &[Value], place: &Path, errs: &mut Errs) {
    let mut seen = BTreeSet::new();
    for (i, claim) in claims.iter().enumerate() {
        let here = place.index(i);
        let name = text(claim, "name");
        if name.is_empty() {
            errs.required(&here.child("name"), "");
        } else if seen.insert(name) {
            errs.names(&here.child("name"), name, names::dns1123_label(name));
        } else {
            errs.duplicate(&here.child("name"), at(claim, "name"));
        }
        match (has(claim, "resourceClaimName"), has(claim, "resourceClaimTemplateName")) {
            (true, true) => errs.invalid(
                &here,
                claim,
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
            ),
            (false, false) => errs.invalid(
                &here,
                claim,
                "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            ),
            _ => {}
        }
        for key in ["resourceClaimName", "resourceClaimTemplateName"] {
            if has(claim, key) {
                let name = text(claim, key);
                errs.names(&here.child(key), name, names::dns1123_subdomain(name));
            }
        }
    }
}

fn pod_resources(spec: &Value, place: &Path, errs: &mut Errs) {
    let resources = at(spec, "resources");
    if resources.is_null() {
        return;
    }
    if text(spec, "os.name") == "windows" {
        errs.forbidden(place, "may not be set for a windows pod");
        return;
    }
    if has(resources, "claims") {
        errs.forbidden(&place.child("claims"), "claims may not be set for Resources at pod-level");
    }
    pod_containers::resources(resources, pod_containers::pod_resource, place, errs);
}

fn host_network(spec: &Value, owner: Owner<'_>, place: &Path, errs: &mut Errs) {
    if !flag(spec, "hostNetwork") {
        return;
    }
    for (i, container) in list(spec, "containers").iter().enumerate() {
        for (j, port) in list(container, "ports").iter().enumerate() {
            let host = int(port, "hostPort").unwrap_or_default();
            if (owner.is_pod || host != 0) && host != int(port, "containerPort").unwrap_or_default() {
                errs.invalid(
                    &place.index(i).child("ports").index(j).child("hostPort"),
                    &Value::from(host),
                    "must match `containerPort` when `hostNetwork` is true",
                );
            }
        }
    }
}

fn dns_config(spec: &Value, place: &Path, errs: &mut Errs) {
    let config = at(spec, "dnsConfig");
    let servers = list(config, "nameservers");
    if text(spec, "dnsPolicy") == "None" {
        if config.is_null() {
            errs.required(place, "must provide `dnsConfig` when `dnsPolicy` is None");
            return;
        }
        if servers.is_empty() {
            let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errs.required(&place.child("nameservers"), why);
            return;
        }
    }
    let here = place.child("nameservers");
    if servers.len() > NAMESERVERS_MAX {
        errs.invalid(&here, at(config, "nameservers"), "must not have more than 3 nameservers");
    }
    for (i, server) in servers.iter().filter_map(Value::as_str).enumerate() {
        errs.names(&here.index(i), server, names::ip_address(server));
    }
    let here = place.child("searches");
    let searches: Vec<&str> = list(config, "searches").iter().filter_map(Value::as_str).collect();
    if searches.len() > SEARCHES_MAX {
        errs.invalid(&here, at(config, "searches"), "must not have more than 32 search paths");
    }
    if searches.join(" ").len() > SEARCH_CHARS_MAX {
        errs.invalid(
            &here,
            at(config, "searches"),
            "must not have more than 2048 characters (including spaces) in the search list",
        );
    }
    for (i, search) in searches.iter().enumerate().filter(|(_, s)| **s != ".") {
        let bare = search.strip_suffix('.').unwrap_or(search);
        errs.names(&here.index(i), bare, names::dns1123_subdomain_with_underscore(bare));
    }
    for (i, option) in list(config, "options").iter().enumerate() {
        if text(option, "name").is_empty() {
            errs.required(&place.child("options").index(i), "must not be empty");
        }
    }
}

fn gates(spec: &Value, place: &Path, errs: &mut Errs) {
    for (i, gate) in list(spec, "readinessGates").iter().enumerate() {
        let kind = text(gate, "conditionType");
        let here = place.child("readinessGates").index(i).child("conditionType");
        errs.names(&here, kind, names::qualified_name(kind));
    }
    let mut seen = BTreeSet::new();
    for (i, gate) in list(spec, "schedulingGates").iter().enumerate() {
        let name = text(gate, "name");
        let here = place.child("schedulingGates").index(i);
        errs.names(&here, name, names::qualified_name(name));
        if !seen.insert(name) {
            errs.duplicate(&here, &name.into());
        }
    }
}

fn host_users(spec: &Value, place: &Path, errs: &mut Errs) {
    if at(spec, "hostUsers").as_bool().unwrap_or(true) {
        return;
    }
    for (key, shown) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if flag(spec, key) {
            errs.forbidden(&place.child(shown), "when `hostUsers` is false");
        }
    }
}

fn host_name_override(spec: &Value, place: &Path, errs: &mut Errs) {
    if !has(spec, "hostnameOverride") {
        return;
    }
    let name = text(spec, "hostnameOverride");
    if flag(spec, "setHostnameAsFQDN") {
        errs.forbidden(place, "may not be specified when setHostnameAsFQDN is true");
    }
    if flag(spec, "hostNetwork") {
        errs.forbidden(place, "may not be specified when hostNetwork is true");
    }
    if name.len() > HOST_NAME_MAX {
        errs.too_long(place, HOST_NAME_MAX);
    }
    errs.names(place, name, names::dns1123_subdomain(name));
}

fn identities(spec: &Value, place: &Path, errs: &mut Errs) {
    for key in ["serviceAccountName", "nodeName"] {
        let value = text(spec, key);
        if !value.is_empty() {
            errs.names(&place.child(key), value, names::dns1123_subdomain(value));
        }
    }
    if let Some(seconds) = int(spec, "activeDeadlineSeconds")
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        errs.invalid(
            &place.child("activeDeadlineSeconds"),
            &Value::from(seconds),
            "must be between 1 and 2147483647, inclusive",
        );
    }
    for key in ["hostname", "subdomain"] {
        let value = text(spec, key);
        if !value.is_empty() {
            errs.names(&place.child(key), value, names::dns1123_label(value));
        }
    }
}

fn host_aliases(aliases: &[Value], place: &Path, errs: &mut Errs) {
    for (i, alias) in aliases.iter().enumerate() {
        let ip = text(alias, "ip");
        errs.names(&place.index(i).child("ip"), ip, names::ip_address(ip));
        for (j, name) in list(alias, "hostnames").iter().filter_map(Value::as_str).enumerate() {
            let here = place.index(i).child("hostnames").index(j);
            errs.names(&here, name, names::dns1123_subdomain(name));
        }
    }
}

/// Overhead is validated like the limits of a container.
fn overhead(spec: &Value, place: &Path, errs: &mut Errs) {
    if has(spec, "overhead") {
        let limits = serde_json::json!({"limits": at(spec, "overhead")});
        pod_containers::resources(&limits, pod_containers::container_resource, place, errs);
    }
}

fn operating_system(spec: &Value, place: &Path, errs: &mut Errs) {
    if !has(spec, "os") {
        return;
    }
    let name = text(spec, "os.name");
    if name.is_empty() {
        errs.required(&place.child("name"), "");
    } else {
        errs.one_of(place, name, &["linux", "windows"]);
    }
}

/// Checks that variables read from files name an emptyDir volume.
fn file_references(spec: &Value, place: &Path, errs: &mut Errs) {
    let volumes = list(spec, "volumes");
    for key in ["initContainers", "containers", "ephemeralContainers"] {
        for (i, container) in list(spec, key).iter().enumerate() {
            for (j, var) in list(container, "env").iter().enumerate() {
                let reference = at(var, "valueFrom.fileKeyRef");
                if reference.is_null() {
                    continue;
                }
                let name = text(reference, "volumeName");
                let here = place.child(key).index(i).child("env").index(j);
                let here = here.child("valueFrom").child("fileKeyRef").child("volumeName");
                match volumes.iter().find(|v| text(v, "name") == name) {
                    None => errs.not_found(&here, &name.into()),
                    Some(volume) if !has(volume, "emptyDir") => {
                        errs.invalid_str(&here, name, "referenced volume must be of type emptyDir");
                    }
                    Some(_) => {}
                }
            }
        }
    }
}
