//! Ingresses, NetworkPolicies, EndpointSlices and service networks.

use std::collections::HashSet;

use machinery::field::Path;
use machinery::names;
use serde_json::{Map, Value, json};

use super::check::Errs;
use super::spec::{BASE, GenerationRule, Spec, StatusMeta, WITH_STATUS};
use super::value::{at, ensure, fill, fill_at, has, int, list, list_mut, object_mut, text};

pub(super) const INGRESS: Spec = Spec {
    status: Some(|| json!({"loadBalancer": {}})),
    default: |obj| ensure(obj, "spec"),
    validate: |_, obj, errs| ingress(at(obj, "spec"), &Path::field("spec"), errs),
    ..WITH_STATUS
};

pub(super) const INGRESS_CLASS: Spec = Spec {
    generation: GenerationRule::Spec,
    default: |obj| {
        object_mut(obj, "spec");
        if has(obj, "spec.parameters") {
            fill_at(obj, "spec.parameters", "scope", "Cluster");
        }
    },
    validate_update: |_, obj, old, errs| errs.immutable("spec.controller", obj, old),
    ..BASE
};

pub(super) const NETWORK_POLICY: Spec = Spec {
    generation: GenerationRule::Spec,
    default: |obj| {
        object_mut(obj, "spec.podSelector");
        if list(obj, "spec.policyTypes").is_empty() {
            let mut types = vec!["Ingress"];
            if !list(obj, "spec.egress").is_empty() {
                types.push("Egress");
            }
            super::value::set_at(obj, "spec", "policyTypes", types);
        }
        for direction in ["spec.ingress", "spec.egress"] {
            for rule in list_mut(obj, direction) {
                for port in list_mut(rule, "ports").filter_map(Value::as_object_mut) {
                    fill(port, "protocol", "TCP");
                }
            }
        }
    },
    validate: |_, obj, errs| network_policy(at(obj, "spec"), &Path::field("spec"), errs),
    ..BASE
};

pub(super) const ENDPOINT_SLICE: Spec = Spec {
    generation: GenerationRule::Content,
    default: |obj| {
        for endpoint in list_mut(obj, "endpoints").filter_map(Value::as_object_mut) {
            fill(endpoint, "conditions", Value::Object(Map::new()));
        }
        for port in list_mut(obj, "ports").filter_map(Value::as_object_mut) {
            port.entry("name").or_insert_with(|| Value::from(""));
            fill(port, "protocol", "TCP");
        }
    },
    validate_create: |_, obj, errs| slice(obj, &[], errs),
    validate_update: |_, obj, old, errs| {
        slice(obj, list(old, "endpoints"), errs);
        errs.immutable("addressType", obj, old);
    },
    warnings: |obj, _| super::warnings::endpoint_slice(obj),
    ..BASE
};

pub(super) const SERVICE_CIDR: Spec = Spec {
    status_meta: StatusMeta::Nothing,
    generation: GenerationRule::FromClient,
    default: |obj| ensure(obj, "spec"),
    validate: |_, obj, errs| {
        if list(obj, "spec.cidrs").is_empty() {
            errs.required(&super::value::path("spec.cidrs"), "at least one CIDR required");
        }
    },
    ..WITH_STATUS
};

pub(super) const IP_ADDRESS: Spec = Spec {
    validate: |_, obj, errs| {
        if !has(obj, "spec.parentRef") {
            errs.required(&super::value::path("spec.parentRef"), "");
        }
    },
    ..BASE
};

fn ingress(spec: &Value, place: &Path, errs: &mut Errs) {
    let rules = list(spec, "rules");
    if rules.is_empty() && !has(spec, "defaultBackend") {
        errs.invalid(place, at(spec, "rules"), "either `defaultBackend` or `rules` must be specified");
    }
    if has(spec, "defaultBackend") {
        backend(at(spec, "defaultBackend"), &place.child("defaultBackend"), errs);
    }
    for (i, rule) in rules.iter().enumerate() {
        let here = place.child("rules").index(i);
        host(text(rule, "host"), &here.child("host"), errs);
        if !has(rule, "http") {
            continue;
        }
        let here = here.child("http").child("paths");
        let paths = list(rule, "http.paths");
        if paths.is_empty() {
            errs.required(&here, "");
        }
        for (j, path) in paths.iter().enumerate() {
            ingress_path(path, &here.index(j), errs);
        }
    }
    for (i, tls) in list(spec, "tls").iter().enumerate() {
        let here = place.child("tls").index(i);
        for (j, name) in list(tls, "hosts").iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            let faults = if name.contains('*') {
                names::dns1123_wildcard(name)
            } else {
                names::dns1123_subdomain(name)
            };
            errs.names(&here.child("hosts").index(j), name, faults);
        }
    }
    let class = text(spec, "ingressClassName");
    if !class.is_empty() {
        errs.names(&place.child("ingressClassName"), class, names::dns1123_subdomain(class));
    }
}

fn host(host: &str, place: &Path, errs: &mut Errs) {
    if host.is_empty() {
        return;
    }
    if host.parse::<std::net::IpAddr>().is_ok() {
        errs.invalid_str(place, host, "must be a DNS name, not an IP address");
    } else if host.contains('*') {
        errs.names(place, host, names::dns1123_wildcard(host));
    } else {
        errs.names(place, host, names::dns1123_subdomain(host));
    }
}

fn ingress_path(path: &Value, place: &Path, errs: &mut Errs) {
    let value = text(path, "path");
    let kind = text(path, "pathType");
    match kind {
        "" => errs.required(&place.child("pathType"), "pathType must be specified"),
        "Exact" | "Prefix" => {
            if !value.starts_with('/') {
                errs.invalid_str(&place.child("path"), value, "must be an absolute path");
            }
            for bad in ["//", "/./", "/../", "%2f", "%2F"] {
                if value.contains(bad) {
                    errs.invalid_str(&place.child("path"), value, &format!("must not contain '{bad}'"));
                }
            }
            for bad in ["/..", "/."] {
                if value.ends_with(bad) {
                    errs.invalid_str(&place.child("path"), value, &format!("cannot end with '{bad}'"));
                }
            }
        }
        "ImplementationSpecific" => {
            if !value.is_empty() && !value.starts_with('/') {
                errs.invalid_str(&place.child("path"), value, "must be an absolute path");
            }
        }
        other => {
            errs.unsupported(&place.child("pathType"), other, &["Exact", "ImplementationSpecific", "Prefix"]);
        }
    }
    backend(at(path, "backend"), &place.child("backend"), errs);
}

fn backend(backend: &Value, place: &Path, errs: &mut Errs) {
    match (has(backend, "resource"), has(backend, "service")) {
        (true, true) => errs.invalid_str(place, "", "cannot set both resource and service backends"),
        (false, false) => errs.invalid_str(place, "", "resource or service backend is required"),
        (true, false) => {
            for key in ["kind", "name"] {
                if text(at(backend, "resource"), key).is_empty() {
                    errs.required(&place.child("resource").child(key), "");
                }
            }
        }
        (false, true) => {
            let here = place.child("service");
            errs.required_name(&here.child("name"), text(backend, "service.name"), names::dns1123_label);
            let name = text(backend, "service.port.name");
            let number = int(backend, "service.port.number").unwrap_or_default();
            match (name.is_empty(), number) {
                (false, n) if n != 0 => {
                    errs.invalid_str(place, "", "cannot set both port name & port number");
                }
                (false, _) => errs.names(&here.child("port").child("name"), name, names::port_name(name)),
                (true, 0) => errs.required(place, "port name or number is required"),
                (true, n) => errs.port(&here.child("port").child("number"), n),
            }
        }
    }
}

fn network_policy(spec: &Value, place: &Path, errs: &mut Errs) {
    errs.selector(&place.child("podSelector"), at(spec, "podSelector"));
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for (i, rule) in list(spec, direction).iter().enumerate() {
            let here = place.child(direction).index(i);
            for (j, port) in list(rule, "ports").iter().enumerate() {
                let here = here.child("ports").index(j);
                errs.one_of(&here.child("protocol"), text(port, "protocol"), &["SCTP", "TCP", "UDP"]);
                if has(port, "port") {
                    errs.port_or_name(&here.child("port"), at(port, "port"));
                }
            }
            for (j, peer) in list(rule, peers).iter().enumerate() {
                network_peer(peer, &here.child(peers).index(j), errs);
            }
        }
    }
    let types = list(spec, "policyTypes");
    if types.len() > 2 {
        errs.invalid(
            &place.child("policyTypes"),
            at(spec, "policyTypes"),
            "may not specify more than two policyTypes",
        );
        return;
    }
    for (i, kind) in types.iter().enumerate() {
        errs.one_of(
            &place.child("policyTypes").index(i),
            kind.as_str().unwrap_or_default(),
            &["Egress", "Ingress"],
        );
    }
}

fn network_peer(peer: &Value, place: &Path, errs: &mut Errs) {
    let selectors = ["podSelector", "namespaceSelector"];
    let given = selectors.iter().filter(|key| has(peer, key)).count();
    for key in selectors {
        errs.selector(&place.child(key), at(peer, key));
    }
    if has(peer, "ipBlock") {
        if given > 0 {
            errs.forbidden(place, "may not specify both ipBlock and another peer");
        }
        let cidr = text(peer, "ipBlock.cidr");
        if cidr.is_empty() {
            errs.required(&place.child("ipBlock").child("cidr"), "");
        } else if !is_cidr(cidr) {
            errs.invalid_str(
                &place.child("ipBlock").child("cidr"),
                cidr,
                "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
            );
        }
    } else if given == 0 {
        errs.required(place, "must specify a peer");
    }
}

fn is_cidr(text: &str) -> bool {
    let Some((ip, bits)) = text.split_once('/') else { return false };
    let max = match ip.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V4(_)) => 32,
        Ok(std::net::IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    bits.parse::<u8>().is_ok_and(|bits| bits <= max)
}

/// Checks an EndpointSlice. Endpoints that are in `before` are not checked again.
fn slice(obj: &Value, before: &[Value], errs: &mut Errs) {
    errs.required_enum(&Path::field("addressType"), text(obj, "addressType"), &["FQDN", "IPv4", "IPv6"]);
    let endpoints = list(obj, "endpoints");
    if endpoints.len() > 1000 {
        errs.0.push(machinery::field::Error::too_many(&Path::field("endpoints"), endpoints.len(), 1000));
    }
    let before: HashSet<&Value> = before.iter().collect();
    for (i, endpoint) in endpoints.iter().enumerate().filter(|(_, e)| !before.contains(e)) {
        let here = Path::field("endpoints").index(i).child("addresses");
        let addresses = list(endpoint, "addresses");
        if addresses.is_empty() {
            errs.required(&here, "must contain at least 1 address");
        }
        for (j, address) in addresses.iter().enumerate() {
            let text_of = address.as_str().unwrap_or_default();
            let sound = match text(obj, "addressType") {
                "IPv4" => text_of.parse::<std::net::Ipv4Addr>().is_ok(),
                "IPv6" => text_of.parse::<std::net::Ipv6Addr>().is_ok(),
                _ => true,
            };
            if !sound {
                errs.invalid_str(
                    &here.index(j),
                    text_of,
                    "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                );
            }
        }
    }
    let mut seen = HashSet::new();
    for (i, port) in list(obj, "ports").iter().enumerate() {
        let here = Path::field("ports").index(i);
        let name = text(port, "name");
        if !seen.insert(name) {
            errs.duplicate(&here.child("name"), at(port, "name"));
        }
        if !name.is_empty() {
            errs.names(&here.child("name"), name, names::dns1123_label(name));
        }
        if let Some(number) = int(port, "port") {
            errs.port(&here.child("port"), number);
        }
        errs.required_enum(&here.child("protocol"), text(port, "protocol"), &["SCTP", "TCP", "UDP"]);
    }
}
