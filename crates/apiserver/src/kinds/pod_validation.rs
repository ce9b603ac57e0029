//! Validation of pods and pod templates (spec 2.5).

use std::collections::BTreeSet;

use machinery::field::Path;
use machinery::names;
use serde_json::Value;

use super::check::{Errs, quantity};
use super::value::{at, entries, flag, has, int, list, text};

const PULL_POLICIES: &[&str] = &["Always", "IfNotPresent", "Never"];
const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
const VOLUME_MESSAGE: &str = "may not specify more than 1 volume type";

/// Validates a pod template: metadata and spec.
pub(super) fn template(template: &Value, place: &Path, errs: &mut Errs) {
    let metadata = place.child("metadata");
    errs.labels(&metadata.child("labels"), at(template, "metadata.labels"));
    for (key, _) in entries(template, "metadata.annotations") {
        errs.names(&metadata.child("annotations"), key, names::qualified_name(&key.to_lowercase()));
    }
    spec(at(template, "spec"), &place.child("spec"), errs);
}

/// Validates a pod spec.
pub(super) fn spec(spec: &Value, place: &Path, errs: &mut Errs) {
    let volumes = volumes(list(spec, "volumes"), &place.child("volumes"), errs);
    let mut seen = BTreeSet::new();
    let at_containers = place.child("containers");
    if list(spec, "containers").is_empty() {
        errs.required(&at_containers, "");
    }
    let host_network = flag(spec, "hostNetwork");
    for (key, kind) in [
        ("containers", Container::Main),
        ("initContainers", Container::Init),
        ("ephemeralContainers", Container::Ephemeral),
    ] {
        for (i, c) in list(spec, key).iter().enumerate() {
            let here = place.child(key).index(i);
            container(c, &here, kind, host_network, &volumes, errs);
            let name = text(c, "name");
            if !name.is_empty() && !seen.insert(name) {
                errs.duplicate(&here.child("name"), at(c, "name"));
            }
        }
    }
    errs.required_enum(
        &place.child("restartPolicy"),
        text(spec, "restartPolicy"),
        &["Always", "Never", "OnFailure"],
    );
    errs.required_enum(
        &place.child("dnsPolicy"),
        text(spec, "dnsPolicy"),
        &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"],
    );
    errs.labels(&place.child("nodeSelector"), at(spec, "nodeSelector"));
    topology(list(spec, "topologySpreadConstraints"), &place.child("topologySpreadConstraints"), errs);
    for key in ["serviceAccountName", "priorityClassName", "runtimeClassName"] {
        let value = text(spec, key);
        if !value.is_empty() {
            errs.names(&place.child(key), value, names::dns1123_subdomain(value));
        }
    }
    let node = text(spec, "nodeName");
    if !node.is_empty() {
        errs.names(&place.child("nodeName"), node, names::dns1123_subdomain(node));
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
    tolerations(list(spec, "tolerations"), &place.child("tolerations"), errs);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Container {
    Main,
    Init,
    Ephemeral,
}

fn container(
    c: &Value,
    place: &Path,
    kind: Container,
    host_network: bool,
    volumes: &BTreeSet<&str>,
    errs: &mut Errs,
) {
    errs.required_name(&place.child("name"), text(c, "name"), names::dns1123_label);
    let image = text(c, "image");
    if image.is_empty() {
        errs.required(&place.child("image"), "");
    } else if image.trim() != image {
        errs.invalid_str(&place.child("image"), image, "must not have leading or trailing whitespace");
    }
    errs.required_enum(
        &place.child("terminationMessagePolicy"),
        text(c, "terminationMessagePolicy"),
        &["FallbackToLogsOnError", "File"],
    );
    ports(list(c, "ports"), &place.child("ports"), host_network, errs);
    env(list(c, "env"), &place.child("env"), errs);
    env_from(list(c, "envFrom"), &place.child("envFrom"), errs);
    mounts(list(c, "volumeMounts"), &place.child("volumeMounts"), volumes, errs);
    errs.required_enum(&place.child("imagePullPolicy"), text(c, "imagePullPolicy"), PULL_POLICIES);
    resources(at(c, "resources"), &place.child("resources"), errs);
    let restart = text(c, "restartPolicy");
    if kind == Container::Init && !restart.is_empty() {
        errs.one_of(&place.child("restartPolicy"), restart, &["Always", "Never", "OnFailure"]);
    }
    let probes_allowed = kind == Container::Main || (kind == Container::Init && restart == "Always");
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if !has(c, probe) {
            continue;
        }
        let here = place.child(probe);
        if probes_allowed {
            self::probe(at(c, probe), probe, &here, errs);
        } else {
            let what = if kind == Container::Init {
                "may not be set for init containers without restartPolicy=Always"
            } else {
                "cannot be set for an Ephemeral Container"
            };
            errs.forbidden(&here, what);
        }
    }
    for hook in ["postStart", "preStop"] {
        let h = at(at(c, "lifecycle"), hook);
        if !h.is_null() {
            handler(h, &place.child("lifecycle").child(hook), errs);
        }
    }
}

fn ports(ports: &[Value], place: &Path, host_network: bool, errs: &mut Errs) {
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let here = place.index(i);
        let name = text(port, "name");
        if !name.is_empty() {
            let faults = names::port_name(name);
            if faults.is_empty() {
                if !seen.insert(name) {
                    errs.duplicate(&here.child("name"), at(port, "name"));
                }
            } else {
                errs.names(&here.child("name"), name, faults);
            }
        }
        match int(port, "containerPort").unwrap_or_default() {
            0 => errs.required(&here.child("containerPort"), ""),
            number => errs.port(&here.child("containerPort"), number),
        }
        if let Some(number) = int(port, "hostPort").filter(|n| *n != 0) {
            errs.port(&here.child("hostPort"), number);
            if host_network && Some(number) != int(port, "containerPort") {
                errs.invalid(
                    &here.child("hostPort"),
                    &Value::from(number),
                    "must match `containerPort` when `hostNetwork` is true",
                );
            }
        }
        errs.required_enum(&here.child("protocol"), text(port, "protocol"), PROTOCOLS);
    }
}

fn env(vars: &[Value], place: &Path, errs: &mut Errs) {
    for (i, var) in vars.iter().enumerate() {
        let here = place.index(i);
        errs.required_name(&here.child("name"), text(var, "name"), names::env_var_name);
        let Some(from) = at(var, "valueFrom").as_object() else { continue };
        let here = here.child("valueFrom");
        let given = from.iter().filter(|(_, v)| !v.is_null()).count();
        if given == 0 {
            errs.invalid_str(
                &here,
                "",
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
            );
        }
        if !text(var, "value").is_empty() && given != 0 {
            errs.invalid_str(&here, "", "may not be specified when `value` is not empty");
        } else if given > 1 {
            errs.invalid_str(&here, "", "may not have more than one field specified at a time");
        }
        for source in ["configMapKeyRef", "secretKeyRef"] {
            if let Some(reference) = from.get(source).filter(|v| !v.is_null()) {
                let here = here.child(source);
                let key = text(reference, "key");
                if key.is_empty() {
                    errs.required(&here.child("key"), "");
                } else {
                    errs.names(&here.child("key"), key, names::config_key(key));
                }
            }
        }
        if let Some(reference) = from.get("fieldRef").filter(|v| !v.is_null())
            && text(reference, "fieldPath").is_empty()
        {
            errs.required(&here.child("fieldRef").child("fieldPath"), "");
        }
        if let Some(reference) = from.get("resourceFieldRef").filter(|v| !v.is_null())
            && text(reference, "resource").is_empty()
        {
            errs.required(&here.child("resourceFieldRef").child("resource"), "");
        }
    }
}

fn env_from(sources: &[Value], place: &Path, errs: &mut Errs) {
    for (i, source) in sources.iter().enumerate() {
        let here = place.index(i);
        let prefix = text(source, "prefix");
        if !prefix.is_empty() {
            errs.names(&here.child("prefix"), prefix, names::env_var_name(prefix));
        }
        let given: Vec<&str> =
            ["configMapRef", "secretRef"].into_iter().filter(|key| has(source, key)).collect();
        match given.as_slice() {
            [] => errs.invalid_str(&here, "", "must specify one of: `configMapRef` or `secretRef`"),
            [one] => {
                if text(at(source, one), "name").is_empty() {
                    errs.required(&here.child(one).child("name"), "");
                }
            }
            _ => errs.invalid_str(&here, "", "may not have more than one field specified at a time"),
        }
    }
}

fn mounts(mounts: &[Value], place: &Path, volumes: &BTreeSet<&str>, errs: &mut Errs) {
    let mut seen = BTreeSet::new();
    for (i, mount) in mounts.iter().enumerate() {
        let here = place.index(i);
        let name = text(mount, "name");
        if name.is_empty() {
            errs.required(&here.child("name"), "");
        }
        if !volumes.contains(name) {
            errs.not_found(&here.child("name"), &Value::from(name));
        }
        let target = text(mount, "mountPath");
        if target.is_empty() {
            errs.required(&here.child("mountPath"), "");
        }
        if !seen.insert(target) {
            errs.invalid_str(&here.child("mountPath"), target, "must be unique");
        }
        for key in ["subPath", "subPathExpr"] {
            let sub = text(mount, key);
            if sub.starts_with('/') {
                errs.invalid_str(&here.child(key), sub, "must be a relative path");
            }
            if sub.split('/').any(|part| part == "..") {
                errs.invalid_str(&here.child(key), sub, "must not contain '..'");
            }
        }
    }
}

fn resources(resources: &Value, place: &Path, errs: &mut Errs) {
    for key in ["limits", "requests"] {
        let here = place.child(key);
        for (name, amount) in entries(resources, key) {
            resource_name(name, &here, errs);
            if super::check::is_negative(amount) {
                errs.invalid(&here.key(name), amount, super::check::NOT_NEGATIVE);
            }
            if key == "requests"
                && let Some(limit) = at(resources, "limits").get(name)
                && let (Some(request), Some(bound)) = (quantity(amount), quantity(limit))
                && request > bound
            {
                let bound = limit.as_str().map_or_else(|| limit.to_string(), str::to_owned);
                let detail = format!("must be less than or equal to {name} limit of {bound}");
                errs.invalid(&here, amount, &detail);
            }
        }
    }
}

fn resource_name(name: &str, place: &Path, errs: &mut Errs) {
    const STANDARD: &[&str] = &["cpu", "memory", "ephemeral-storage"];
    errs.names(place, name, names::qualified_name(name));
    if !name.contains('/') && !STANDARD.contains(&name) && !name.starts_with("hugepages-") {
        errs.invalid_str(place, name, "must be a standard resource type or fully qualified");
        errs.invalid_str(place, name, "must be a standard resource for containers");
    }
}

fn probe(probe: &Value, kind: &str, place: &Path, errs: &mut Errs) {
    handler(probe, place, errs);
    for key in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        errs.non_negative(probe, place, key);
    }
    if kind != "readinessProbe"
        && let Some(n) = int(probe, "successThreshold").filter(|n| *n != 1)
    {
        errs.invalid(&place.child("successThreshold"), &Value::from(n), "must be 1");
    }
    if let Some(n) = int(probe, "terminationGracePeriodSeconds").filter(|n| *n <= 0) {
        errs.invalid(
            &place.child("terminationGracePeriodSeconds"),
            &Value::from(n),
            "must be greater than 0",
        );
    }
}

fn handler(handler: &Value, place: &Path, errs: &mut Errs) {
    let given: Vec<&str> = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"]
        .into_iter()
        .filter(|key| has(handler, key))
        .collect();
    for extra in given.iter().skip(1) {
        errs.forbidden(&place.child(extra), "may not specify more than 1 handler type");
    }
    match given.first() {
        None => errs.required(place, "must specify a handler type"),
        Some(&"exec") => {
            if list(handler, "exec.command").is_empty() {
                errs.required(&place.child("exec").child("command"), "");
            }
        }
        Some(&"httpGet") => {
            let here = place.child("httpGet");
            if text(handler, "httpGet.path").is_empty() {
                errs.required(&here.child("path"), "");
            }
            errs.port_or_name(&here.child("port"), at(handler, "httpGet.port"));
            errs.one_of(&here.child("scheme"), text(handler, "httpGet.scheme"), &["HTTP", "HTTPS"]);
        }
        Some(&"tcpSocket") => {
            errs.port_or_name(&place.child("tcpSocket").child("port"), at(handler, "tcpSocket.port"));
        }
        Some(&"grpc") => {
            errs.port(&place.child("grpc").child("port"), int(handler, "grpc.port").unwrap_or_default());
        }
        Some(_) => {}
    }
}

fn volumes<'a>(volumes: &'a [Value], place: &Path, errs: &mut Errs) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    for (i, volume) in volumes.iter().enumerate() {
        let here = place.index(i);
        let name = text(volume, "name");
        let mut sources = volume
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(key, value)| *key != "name" && !value.is_null());
        let first = sources.next();
        for (extra, _) in sources {
            errs.forbidden(&here.child(extra), VOLUME_MESSAGE);
        }
        match first {
            None => errs.required(&here, "must specify a volume type"),
            Some((source, value)) => volume_source(source, value, &here.child(source), errs),
        }
        if name.is_empty() {
            errs.required(&here.child("name"), "");
        } else {
            errs.names(&here.child("name"), name, names::dns1123_label(name));
            if !seen.insert(name) {
                errs.duplicate(&here.child("name"), at(volume, "name"));
            }
        }
    }
    seen
}

fn volume_source(source: &str, value: &Value, place: &Path, errs: &mut Errs) {
    let required = match source {
        "secret" => Some("secretName"),
        "configMap" => Some("name"),
        "persistentVolumeClaim" => Some("claimName"),
        "hostPath" => Some("path"),
        "csi" => Some("driver"),
        _ => None,
    };
    if let Some(key) = required.filter(|key| text(value, key).is_empty()) {
        errs.required(&place.child(key), "");
    }
    if source == "nfs" {
        for key in ["server", "path"] {
            if text(value, key).is_empty() {
                errs.required(&place.child(key), "");
            }
        }
    }
    if let Some(mode) = int(value, "defaultMode")
        && !(0..=0o777).contains(&mode)
    {
        errs.invalid(
            &place.child("defaultMode"),
            &Value::from(mode),
            "must be a number between 0 and 0777 (octal), both inclusive",
        );
    }
    for (i, item) in list(value, "items").iter().enumerate() {
        let here = place.child("items").index(i);
        if source != "downwardAPI" && text(item, "key").is_empty() {
            errs.required(&here.child("key"), "");
        }
        local_path(text(item, "path"), &here.child("path"), errs);
    }
}

/// Checks that a path is relative and stays inside its volume.
fn local_path(value: &str, place: &Path, errs: &mut Errs) {
    if value.is_empty() {
        errs.required(place, "");
    } else if value.starts_with('/') {
        errs.invalid_str(place, value, "must be a relative path");
    } else if value.split('/').any(|part| part == "..") {
        errs.invalid_str(place, value, "must not contain '..'");
    }
}

fn topology(constraints: &[Value], place: &Path, errs: &mut Errs) {
    for (i, constraint) in constraints.iter().enumerate() {
        let here = place.index(i);
        errs.positive(constraint, &here, "maxSkew");
        if text(constraint, "topologyKey").is_empty() {
            errs.required(&here.child("topologyKey"), "can not be empty");
        }
        errs.one_of(
            &here.child("whenUnsatisfiable"),
            text(constraint, "whenUnsatisfiable"),
            &["DoNotSchedule", "ScheduleAnyway"],
        );
    }
}

fn tolerations(tolerations: &[Value], place: &Path, errs: &mut Errs) {
    for (i, toleration) in tolerations.iter().enumerate() {
        let here = place.index(i);
        let (key, operator, effect) =
            (text(toleration, "key"), text(toleration, "operator"), text(toleration, "effect"));
        if !key.is_empty() {
            errs.names(&here.child("key"), key, names::qualified_name(key));
        } else if operator != "Exists" {
            errs.invalid_str(
                &here.child("operator"),
                operator,
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            );
        }
        if has(toleration, "tolerationSeconds") && effect != "NoExecute" {
            errs.invalid_str(
                &here.child("effect"),
                effect,
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            );
        }
        match operator {
            "" | "Equal" => {
                let value = text(toleration, "value");
                errs.names(&here.child("operator"), value, names::label_value(value));
            }
            "Exists" => {
                if !text(toleration, "value").is_empty() {
                    errs.invalid(
                        &here.child("operator"),
                        at(toleration, "value"),
                        "value must be empty when `operator` is 'Exists'",
                    );
                }
            }
            other => errs.unsupported(&here.child("operator"), other, &["Equal", "Exists"]),
        }
        if !effect.is_empty() {
            errs.one_of(&here.child("effect"), effect, &["NoExecute", "NoSchedule", "PreferNoSchedule"]);
        }
    }
}
