//! ConfigMaps, Secrets, ServiceAccounts, Nodes, quotas, LimitRanges and Endpoints.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use machinery::field::Path;
use machinery::names;
use serde_json::{Map, Value, json};

use super::check::Errs;
use super::spec::{BASE, Facts, GenerationRule, Spec, WITH_STATUS};
use super::value::{
    at, entries, fill, fill_at, flag, has, list, list_mut, object_mut, path, put, remove, set_at, text,
};
use crate::strategy::WriteContext;

/// Most bytes of data in a ConfigMap or Secret.
const MAX_DATA: usize = 1024 * 1024;

pub(super) const COMPONENT_STATUS: Spec = Spec {
    facts: Facts { deprecated: Some("v1 ComponentStatus is deprecated in v1.19+"), ..BASE.facts },
    ..BASE
};

pub(super) const CONFIG_MAP: Spec =
    Spec { validate: validate_config_map, validate_update: data_fixed, ..BASE };

pub(super) const SECRET: Spec = Spec {
    facts: Facts { own_labels: true, ..BASE.facts },
    fields: &[("type", "type", "")],
    default: default_secret,
    update: |_, obj, old| {
        // An update without a type keeps the stored type.
        if text(obj, "type").is_empty() {
            put(obj, "type", at(old, "type"));
        }
    },
    validate: validate_secret,
    warnings: |obj, _| key_pair_warnings(obj),
    validate_update: |cx, obj, old, errs| {
        errs.immutable("type", obj, old);
        data_fixed(cx, obj, old, errs);
    },
    ..BASE
};

pub(super) const SERVICE_ACCOUNT: Spec = Spec {
    facts: Facts { returns_deleted: true, ..BASE.facts },
    create: |_, obj| bare_secret_names(obj),
    update: |_, obj, _| bare_secret_names(obj),
    ..BASE
};

/// Of references to secrets only the names are kept.
fn bare_secret_names(obj: &mut Value) {
    for secret in list_mut(obj, "secrets").filter_map(Value::as_object_mut) {
        secret.retain(|key, _| key == "name");
    }
}

pub(super) const RESOURCE_QUOTA: Spec = Spec {
    facts: Facts { returns_deleted: true, ..WITH_STATUS.facts },
    generation: GenerationRule::FromClient,
    default: |obj| {
        object_mut(obj, "spec");
        for place in ["spec.hard", "status.hard", "status.used"] {
            super::amounts::round(obj, place);
        }
    },
    validate: |_, obj, errs| {
        errs.quantities(&path("spec.hard"), at(obj, "spec.hard"));
        for (name, _) in entries(obj, "spec.hard") {
            errs.names(&path("spec.hard").key(name), name, names::qualified_name(name));
        }
    },
    validate_update: |_, obj, old, errs| errs.immutable("spec.scopes", obj, old),
    validate_subresource: |_, _, obj, _, errs| {
        errs.quantities(&path("status.hard"), at(obj, "status.hard"));
        errs.quantities(&path("status.used"), at(obj, "status.used"));
    },
    unenforced: super::unenforced::quota,
    ..WITH_STATUS
};

pub(super) const LIMIT_RANGE: Spec = Spec {
    facts: Facts { create_on_update: true, ..BASE.facts },
    default: default_limit_range,
    validate: |_, obj, errs| {
        for (i, limit) in list(obj, "spec.limits").iter().enumerate() {
            let here = path("spec.limits").index(i);
            let kind = text(limit, "type");
            let faults = names::qualified_name(kind);
            let known = matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim");
            if faults.is_empty() && !kind.contains('/') && !known {
                let why = "must be a standard limit type or fully qualified";
                errs.invalid_str(&here.child("type"), kind, why);
            }
            errs.names(&here.child("type"), kind, faults);
            for key in ["default", "defaultRequest", "max", "min"] {
                errs.quantities(&here.child(key), at(limit, key));
            }
        }
    },
    ..BASE
};

pub(super) const ENDPOINTS: Spec = Spec {
    facts: Facts {
        create_on_update: true,
        deprecated: Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
        ..BASE.facts
    },
    default: |obj| {
        for subset in list_mut(obj, "subsets") {
            for port in list_mut(subset, "ports").filter_map(Value::as_object_mut) {
                fill(port, "protocol", "TCP");
            }
        }
    },
    validate: validate_endpoints,
    ..BASE
};

pub(super) const NODE: Spec = Spec {
    facts: Facts { own_labels: true, ..WITH_STATUS.facts },
    status: Some(|| json!({"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": node_info()})),
    generation: GenerationRule::FromClient,
    fields: &[("spec.unschedulable", "spec.unschedulable", "false")],
    default: |obj| {
        object_mut(obj, "spec");
        for place in ["status.capacity", "status.allocatable"] {
            super::amounts::round(obj, place);
        }
        if has(obj, "status.capacity") && !has(obj, "status.allocatable") {
            let capacity = at(obj, "status.capacity").clone();
            set_at(obj, "status", "allocatable", capacity);
        }
    },
    status_on_create: true,
    create: |_, obj| not_ready_taint(obj),
    ..WITH_STATUS
};

/// A new node takes no pods until it is known to be ready.
fn not_ready_taint(obj: &mut Value) {
    const KEY: &str = "node.kubernetes.io/not-ready";
    let present = |t: &Value| text(t, "key") == KEY && text(t, "effect") == "NoSchedule";
    if !list(obj, "spec.taints").iter().any(present)
        && let Some(spec) = super::value::at_mut(obj, "spec")
    {
        super::pods::append(spec, "taints", json!({"key": KEY, "effect": "NoSchedule"}));
    }
}

fn node_info() -> Value {
    let empty = [
        "machineID",
        "systemUUID",
        "bootID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    ];
    Value::Object(empty.iter().map(|key| ((*key).to_owned(), Value::from(""))).collect())
}

fn validate_config_map(_: &WriteContext<'_>, obj: &Value, errs: &mut Errs) {
    let mut total = 0;
    for (key, value) in entries(obj, "data") {
        let here = Path::field("data").key(key);
        errs.names(&here, key, names::config_key(key));
        if at(obj, "binaryData").get(key).is_some() {
            errs.invalid_str(&here, key, "duplicate of key present in binaryData");
        }
        total += value.as_str().map_or(0, str::len);
    }
    for (key, value) in entries(obj, "binaryData") {
        errs.names(&Path::field("binaryData").key(key), key, names::config_key(key));
        total += decoded_len(value);
    }
    if total > MAX_DATA {
        errs.too_long(&Path::field(""), MAX_DATA);
    }
}

/// Number of bytes that a base64 text encodes.
fn decoded_len(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    text.len() / 4 * 3 - text.bytes().rev().take_while(|b| *b == b'=').count().min(text.len() / 4 * 3)
}

/// Checks that an immutable object keeps its data and stays immutable.
fn data_fixed(_: &WriteContext<'_>, obj: &Value, old: &Value, errs: &mut Errs) {
    if !flag(old, "immutable") {
        return;
    }
    const WHY: &str = "field is immutable when `immutable` is set";
    if !flag(obj, "immutable") {
        errs.forbidden(&Path::field("immutable"), WHY);
    }
    for key in ["data", "binaryData"] {
        let empty = |v: &Value| v.as_object().is_none_or(Map::is_empty);
        let (new, was) = (at(obj, key), at(old, key));
        if new != was && !(empty(new) && empty(was)) {
            errs.forbidden(&Path::field(key), WHY);
        }
    }
}

fn default_secret(obj: &mut Value) {
    if let Some(Value::Object(plain)) = remove(obj, "stringData") {
        for (key, value) in plain {
            let text = value.as_str().unwrap_or_default();
            set_at(obj, "data", &key, BASE64.encode(text));
        }
    }
    if let Some(map) = obj.as_object_mut() {
        fill(map, "type", "Opaque");
    }
}

fn validate_secret(_: &WriteContext<'_>, obj: &Value, errs: &mut Errs) {
    let data = Path::field("data");
    let mut total = 0;
    for (key, value) in entries(obj, "data") {
        errs.names(&data.key(key), key, names::config_key(key));
        total += decoded_len(value);
    }
    if total > MAX_DATA {
        errs.too_long(&data, MAX_DATA);
    }
    let present = |key: &str| has_key(obj, key);
    match text(obj, "type") {
        "kubernetes.io/service-account-token" => {
            const ACCOUNT: &str = "kubernetes.io/service-account.name";
            let account =
                at(obj, "metadata.annotations").get(ACCOUNT).and_then(Value::as_str).unwrap_or_default();
            if account.is_empty() {
                errs.required(&path("metadata.annotations").key(ACCOUNT), "");
            }
        }
        "kubernetes.io/dockercfg" => docker_config(obj, ".dockercfg", errs),
        "kubernetes.io/dockerconfigjson" => docker_config(obj, ".dockerconfigjson", errs),
        "kubernetes.io/basic-auth" if !present("username") && !present("password") => {
            errs.required(&data.key("username"), "");
            errs.required(&data.key("password"), "");
        }
        "kubernetes.io/ssh-auth" if text(at(obj, "data"), "ssh-privatekey").is_empty() => {
            errs.required(&data.key("ssh-privatekey"), "");
        }
        "kubernetes.io/tls" => {
            for key in ["tls.crt", "tls.key"] {
                if !present(key) {
                    errs.required(&data.key(key), "");
                }
            }
        }
        _ => {}
    }
}

/// Warns about a TLS secret without certificate or key.
fn key_pair_warnings(obj: &Value) -> Vec<String> {
    if text(obj, "type") != "kubernetes.io/tls" {
        return Vec::new();
    }
    let blocks = |key: &str| {
        let encoded = at(obj, "data").get(key).and_then(Value::as_str).unwrap_or_default();
        let bytes = BASE64.decode(encoded).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let missing = [("tls.crt", "certificate", "CERTIFICATE-----"), ("tls.key", "key", "PRIVATE KEY-----")]
        .into_iter()
        .find(|(key, _, mark)| !blocks(key).contains(mark));
    missing
        .map(|(_, what, _)| format!("tls: failed to find any PEM data in {what} input"))
        .into_iter()
        .collect()
}

fn has_key(obj: &Value, key: &str) -> bool {
    at(obj, "data").get(key).is_some()
}

fn docker_config(obj: &Value, key: &str, errs: &mut Errs) {
    let here = Path::field("data").key(key);
    let Some(encoded) = at(obj, "data").get(key).and_then(Value::as_str) else {
        errs.required(&here, "");
        return;
    };
    let bytes = BASE64.decode(encoded).unwrap_or_default();
    if let Err(fault) = serde_json::from_slice::<Map<String, Value>>(&bytes) {
        let why =
            if bytes.is_empty() { "unexpected end of JSON input".to_owned() } else { fault.to_string() };
        errs.invalid_str(&here, "<secret contents redacted>", &why);
    }
}

fn default_limit_range(obj: &mut Value) {
    object_mut(obj, "spec");
    for limit in list_mut(obj, "spec.limits") {
        if text(limit, "type") != "Container" {
            continue;
        }
        for key in ["max", "min", "default", "defaultRequest"] {
            super::amounts::round(limit, key);
        }
        let max = at(limit, "max").clone();
        copy_missing(limit, "default", &max);
        let default = at(limit, "default").clone();
        copy_missing(limit, "defaultRequest", &default);
        let min = at(limit, "min").clone();
        copy_missing(limit, "defaultRequest", &min);
    }
}

fn copy_missing(limit: &mut Value, key: &str, from: &Value) {
    for (resource, amount) in from.as_object().into_iter().flatten() {
        fill_at(limit, key, resource, amount.clone());
    }
}

fn validate_endpoints(_: &WriteContext<'_>, obj: &Value, errs: &mut Errs) {
    for (i, subset) in list(obj, "subsets").iter().enumerate() {
        let here = path("subsets").index(i);
        let (addresses, waiting) = (list(subset, "addresses"), list(subset, "notReadyAddresses"));
        if addresses.is_empty() && waiting.is_empty() {
            errs.required(&here, "must specify `addresses` or `notReadyAddresses`");
        }
        for (key, addresses) in [("addresses", addresses), ("notReadyAddresses", waiting)] {
            for (j, address) in addresses.iter().enumerate() {
                let ip = text(address, "ip");
                if ip.parse::<std::net::IpAddr>().is_err() {
                    errs.invalid_str(
                        &here.child(key).index(j).child("ip"),
                        ip,
                        "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                    );
                }
            }
        }
        let ports = list(subset, "ports");
        for (j, port) in ports.iter().enumerate() {
            let here = here.child("ports").index(j);
            let name = text(port, "name");
            if name.is_empty() && ports.len() > 1 {
                errs.required(&here.child("name"), "");
            } else if !name.is_empty() {
                errs.names(&here.child("name"), name, names::dns1123_label(name));
            }
            errs.port(&here.child("port"), super::value::int(port, "port").unwrap_or_default());
            errs.required_enum(&here.child("protocol"), text(port, "protocol"), &["SCTP", "TCP", "UDP"]);
        }
    }
}
