//! Warnings about accepted objects (AS-073). Those about pods are in `pod_warnings`.

use std::net::IpAddr;

use machinery::field::{Path, quote};
use serde_json::Value;

use super::check::quantity;
use super::value::{at, list, path, text};

/// Warnings about a service, on create and update.
pub(super) fn service(obj: &Value, _old: Option<&Value>) -> Vec<String> {
    let mut out = Vec::new();
    let spec = at(obj, "spec");
    let place = Path::field("spec");
    let kind = text(spec, "type");
    let headless = kind == "ClusterIP" && text(spec, "clusterIP") == "None";
    let (external, name_only) = (list(spec, "externalIPs"), kind == "ExternalName");
    if at(obj, "metadata.annotations").get("service.kubernetes.io/topology-aware-hints").is_some() {
        out.push(
            "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead"
                .to_owned(),
        );
    }
    if !headless {
        addresses(list(spec, "clusterIPs"), &place.child("clusterIPs"), &mut out);
    } else {
        if !text(spec, "loadBalancerIP").is_empty() {
            out.push("spec.loadBalancerIP is ignored for headless services".to_owned());
        }
        if !external.is_empty() {
            out.push("spec.externalIPs is ignored for headless services".to_owned());
        }
        if text(spec, "sessionAffinity") != "None" {
            out.push("spec.SessionAffinity is ignored for headless services".to_owned());
        }
    }
    addresses(external, &place.child("externalIPs"), &mut out);
    if !external.is_empty() && !headless && !name_only {
        out.push(
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters".to_owned(),
        );
    }
    let balancer = text(spec, "loadBalancerIP");
    if !balancer.is_empty() {
        out.extend(address(&place.child("loadBalancerIP"), balancer));
    }
    if name_only && !external.is_empty() {
        out.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if !name_only && !text(spec, "externalName").is_empty() {
        out.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    if text(spec, "trafficDistribution") == "PreferClose" {
        out.push(
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".to_owned(),
        );
    }
    out
}

fn addresses(given: &[Value], place: &Path, out: &mut Vec<String>) {
    for (i, ip) in given.iter().filter_map(Value::as_str).enumerate() {
        out.extend(address(&place.index(i), ip));
    }
}

/// The warning about an IP address that is not in its usual form.
pub(super) fn address(place: &Path, value: &str) -> Option<String> {
    match value.parse::<IpAddr>().ok()? {
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some() => Some(format!(
            "{place}: non-standard IP address {} is invalid: use {}",
            quote(value),
            quote(&ip.to_ipv4_mapped().map_or_else(String::new, |ip| ip.to_string()))
        )),
        IpAddr::V6(ip) if ip.to_string() != value => Some(format!(
            "{place}: IPv6 address {} should be in RFC 5952 canonical format ({})",
            quote(value),
            quote(&ip.to_string())
        )),
        _ => None,
    }
}

/// Warnings about an endpoint slice.
pub(super) fn endpoint_slice(obj: &Value) -> Vec<String> {
    let mut out = Vec::new();
    if text(obj, "addressType") == "FQDN" {
        out.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
    }
    const CONTROLLERS: &[&str] =
        &["endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"];
    let manager = at(obj, "metadata.labels").get("endpointslice.kubernetes.io/managed-by");
    if manager.and_then(Value::as_str).is_none_or(|name| !CONTROLLERS.contains(&name)) {
        for (i, endpoint) in list(obj, "endpoints").iter().enumerate() {
            let here = Path::field("endpoints").index(i).child("addresses");
            addresses(list(endpoint, "addresses"), &here, &mut out);
        }
    }
    out
}

/// Warnings about a claim: storage is counted in whole bytes.
pub(super) fn claim(obj: &Value, _old: Option<&Value>) -> Vec<String> {
    claim_spec(at(obj, "spec"), &path("spec"))
}

/// Warnings about the spec of a claim or a claim template.
pub(super) fn claim_spec(spec: &Value, place: &Path) -> Vec<String> {
    let mut out = Vec::new();
    for key in ["requests", "limits"] {
        let Some(amount) = at(at(spec, "resources"), key).get("storage") else { continue };
        if quantity(amount).is_some_and(|q| q.milli_value() % 1000 != 0) {
            let here = place.child("resources").child(key).key("storage");
            let shown = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
            out.push(format!(
                "{here}: fractional byte value {} is invalid, must be an integer",
                quote(&shown)
            ));
        }
    }
    out
}
