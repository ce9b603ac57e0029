//! Validation of services (spec 2.5), in the order of Kubernetes' own checks.

use std::collections::BTreeSet;
use std::net::IpAddr;

use machinery::field::{Error, Path};
use machinery::names;
use serde_json::Value;

use super::check::Errs;
use super::value::{at, has, int, list, text};

const KINDS: &[&str] = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
const TRAFFIC: &[&str] = &["Cluster", "Local"];
const DISTRIBUTIONS: &[&str] = &["PreferClose", "PreferSameZone", "PreferSameNode"];
const BALANCER_ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
const BAD_CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
const AFFINITY_MAX: i64 = 86400;

/// Validates a service without its metadata.
pub(super) fn service(obj: &Value, errs: &mut Errs) {
    let place = Path::field("spec");
    let spec = at(obj, "spec");
    let kind = text(spec, "type");
    let ports = list(spec, "ports");
    let headless = is_headless(spec);
    if ports.is_empty() && !headless && kind != "ExternalName" {
        errs.required(&place.child("ports"), "");
    }
    match kind {
        "LoadBalancer" | "NodePort" if headless => errs.invalid_str(
            &place.child("clusterIPs").index(0),
            "None",
            &format!("may not be set to 'None' for {kind} services"),
        ),
        "ExternalName" => external_name(spec, &place, errs),
        _ => {}
    }
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        service_port(port, &place.child("ports").index(i), ports.len() > 1, &mut seen, errs);
    }
    errs.labels(&place.child("selector"), at(spec, "selector"));
    affinity(spec, &place, errs);
    if kind != "ExternalName" {
        cluster_ips(spec, &place, errs);
    }
    for (i, ip) in list(spec, "externalIPs").iter().filter_map(Value::as_str).enumerate() {
        endpoint_ip(ip, &place.child("externalIPs").index(i), errs);
    }
    errs.required_enum(&place.child("type"), kind, KINDS);
    node_ports(kind, ports, &place.child("ports"), errs);
    balancer(obj, spec, &place, errs);
    traffic(spec, &place, errs);
}

fn is_headless(spec: &Value) -> bool {
    matches!(list(spec, "clusterIPs"), [only] if only == "None")
}

fn external_name(spec: &Value, place: &Path, errs: &mut Errs) {
    for key in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        if has(spec, key) && at(spec, key).as_array().is_none_or(|l| !l.is_empty()) {
            errs.forbidden(&place.child(key), "may not be set for ExternalName services");
        }
    }
    let given = text(spec, "externalName");
    let name = given.strip_suffix('.').unwrap_or(given);
    errs.required_name(&place.child("externalName"), name, names::dns1123_subdomain);
}

fn service_port<'a>(
    port: &'a Value,
    place: &Path,
    named: bool,
    seen: &mut BTreeSet<&'a str>,
    errs: &mut Errs,
) {
    let name = text(port, "name");
    if !name.is_empty() {
        errs.names(&place.child("name"), name, names::dns1123_label(name));
        if !seen.insert(name) {
            errs.duplicate(&place.child("name"), at(port, "name"));
        }
    } else if named {
        errs.required(&place.child("name"), "");
    }
    errs.port(&place.child("port"), int(port, "port").unwrap_or_default());
    errs.required_enum(&place.child("protocol"), text(port, "protocol"), PROTOCOLS);
    errs.port_or_name(&place.child("targetPort"), at(port, "targetPort"));
    if has(port, "appProtocol") {
        let protocol = text(port, "appProtocol");
        errs.names(&place.child("appProtocol"), protocol, names::qualified_name(protocol));
    }
}

fn affinity(spec: &Value, place: &Path, errs: &mut Errs) {
    let kind = text(spec, "sessionAffinity");
    errs.required_enum(&place.child("sessionAffinity"), kind, &["ClientIP", "None"]);
    let here = place.child("sessionAffinityConfig");
    match kind {
        "None" if has(spec, "sessionAffinityConfig") => {
            errs.forbidden(&here, "must not be set when session affinity is None");
        }
        "ClientIP" => {
            let seconds = int(spec, "sessionAffinityConfig.clientIP.timeoutSeconds").unwrap_or_default();
            if !(1..=AFFINITY_MAX).contains(&seconds) {
                errs.invalid(
                    &here.child("clientIP").child("timeoutSeconds"),
                    &Value::from(seconds),
                    "must be greater than 0 and less than 86400",
                );
            }
        }
        _ => {}
    }
}

fn cluster_ips(spec: &Value, place: &Path, errs: &mut Errs) {
    let here = place.child("clusterIPs");
    let (single, given) = (text(spec, "clusterIP"), list(spec, "clusterIPs"));
    let all = at(spec, "clusterIPs");
    if single.is_empty() {
        if !given.is_empty() {
            errs.invalid(&here, all, "must be empty when `clusterIP` is not specified");
        }
    } else if given.is_empty() {
        errs.required(&here, "");
    } else if given.first().is_some_and(|first| first != single) {
        errs.invalid(&here, all, "first value must match `clusterIP`");
    }
    families(spec, place, errs);
    let mut valid = Vec::new();
    for (i, ip) in given.iter().filter_map(Value::as_str).enumerate() {
        if i == 0 && ip == "None" {
            if given.len() > 1 {
                errs.invalid(&here, all, "'None' must be the first and only value");
            }
        } else if let Ok(parsed) = ip.parse::<IpAddr>() {
            valid.push(parsed);
        } else {
            errs.names(&here.index(i), ip, names::ip_address(ip));
        }
    }
    if given.len() > 2 {
        errs.invalid(&here, all, "may only hold up to 2 values");
    }
    if valid.len() != given.len() {
        return;
    }
    if let [first, second, ..] = valid.as_slice()
        && first.is_ipv4() == second.is_ipv4()
    {
        errs.invalid(&here, all, "may specify no more than one IP for each IP family");
    }
    for (i, (ip, family)) in valid.iter().zip(list(spec, "ipFamilies")).enumerate() {
        let wanted = family.as_str().unwrap_or_default();
        if (wanted == "IPv4" && ip.is_ipv6()) || (wanted == "IPv6" && ip.is_ipv4()) {
            errs.invalid_str(
                &here.index(i),
                &ip.to_string(),
                &format!("expected an {wanted} value as indicated by `ipFamilies[{i}]`"),
            );
        }
    }
}

fn families(spec: &Value, place: &Path, errs: &mut Errs) {
    let mut seen = BTreeSet::new();
    for (i, family) in list(spec, "ipFamilies").iter().filter_map(Value::as_str).enumerate() {
        let here = place.child("ipFamilies").index(i);
        errs.one_of(&here, family, &["IPv4", "IPv6"]);
        if !seen.insert(family) {
            errs.duplicate(&here, &family.into());
        }
    }
    if has(spec, "ipFamilyPolicy") {
        errs.one_of(
            &place.child("ipFamilyPolicy"),
            text(spec, "ipFamilyPolicy"),
            &["PreferDualStack", "RequireDualStack", "SingleStack"],
        );
    }
}

/// Validates an address that traffic is sent to.
pub(super) fn endpoint_ip(ip: &str, place: &Path, errs: &mut Errs) {
    let Ok(parsed) = ip.parse::<IpAddr>() else {
        errs.names(place, ip, names::ip_address(ip));
        return;
    };
    if parsed.is_unspecified() {
        errs.invalid_str(place, ip, &format!("may not be unspecified ({ip})"));
    }
    if parsed.is_loopback() {
        errs.invalid_str(place, ip, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    let (link_local, multicast) = match parsed {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets().starts_with(&[224, 0, 0])),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.segments().first() == Some(&0xff02)),
    };
    if link_local {
        errs.invalid_str(place, ip, "may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if multicast {
        errs.invalid_str(place, ip, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}

fn node_ports(kind: &str, ports: &[Value], place: &Path, errs: &mut Errs) {
    let number = |port: &Value| int(port, "nodePort").unwrap_or_default();
    if kind == "ClusterIP" {
        for (i, _) in ports.iter().enumerate().filter(|(_, p)| number(p) != 0) {
            let here = place.index(i).child("nodePort");
            errs.forbidden(&here, "may not be used when `type` is 'ClusterIP'");
        }
    }
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate().filter(|(_, p)| number(p) != 0) {
        if !seen.insert((text(port, "protocol"), number(port))) {
            errs.duplicate(&place.index(i).child("nodePort"), &number(port).into());
        }
    }
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let (protocol, number) = (text(port, "protocol"), int(port, "port").unwrap_or_default());
        if !seen.insert((protocol, number)) {
            // Kubernetes prints its internal form of the port.
            let mut error = Error::duplicate(&place.index(i), &Value::Null);
            error.body = format!(
                "Duplicate value: {{\"Name\":\"\",\"Protocol\":{},\"AppProtocol\":null,\"Port\":{number},\"TargetPort\":0,\"NodePort\":0}}",
                machinery::field::quote(protocol)
            );
            errs.0.push(error);
        }
    }
}

fn balancer(obj: &Value, spec: &Value, place: &Path, errs: &mut Errs) {
    const ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
    let is_balancer = text(spec, "type") == "LoadBalancer";
    let ranges = list(spec, "loadBalancerSourceRanges");
    if !ranges.is_empty() {
        // The errors spell the field with a capital letter.
        let here = place.child("LoadBalancerSourceRanges");
        if !is_balancer {
            errs.forbidden(&here, BALANCER_ONLY);
        }
        for (i, range) in ranges.iter().filter_map(Value::as_str).enumerate() {
            cidr(range.trim(), &here.index(i), errs);
        }
    } else if let Some(given) = at(obj, "metadata.annotations").get(ANNOTATION).and_then(Value::as_str) {
        let here = Path::field("metadata").child("annotations").key(ANNOTATION);
        if !is_balancer {
            errs.forbidden(&here, BALANCER_ONLY);
        }
        for range in given.split(',').map(str::trim).filter(|_| !given.trim().is_empty()) {
            cidr(range, &here, errs);
        }
    }
    if !is_balancer && has(spec, "allocateLoadBalancerNodePorts") {
        errs.forbidden(&place.child("allocateLoadBalancerNodePorts"), BALANCER_ONLY);
    }
    if has(spec, "loadBalancerClass") {
        let here = place.child("loadBalancerClass");
        let class = text(spec, "loadBalancerClass");
        if is_balancer {
            errs.names(&here, class, names::qualified_name(class));
        } else {
            errs.forbidden(&here, BALANCER_ONLY);
        }
    }
}

/// Validates a range of addresses.
pub(super) fn cidr(value: &str, place: &Path, errs: &mut Errs) {
    if !is_cidr(value) {
        errs.invalid_str(place, value, BAD_CIDR);
    }
}

/// Whether a text is an address, `/`, and a number of bits.
pub(super) fn is_cidr(value: &str) -> bool {
    let Some((ip, bits)) = value.split_once('/') else { return false };
    let digits = !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit());
    let max = match ip.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    digits && bits.parse::<u32>().is_ok_and(|n| n <= max)
}

fn traffic(spec: &Value, place: &Path, errs: &mut Errs) {
    let kind = text(spec, "type");
    let external = matches!(kind, "LoadBalancer" | "NodePort")
        || (kind == "ClusterIP" && !list(spec, "externalIPs").is_empty());
    let policy = text(spec, "externalTrafficPolicy");
    let here = place.child("externalTrafficPolicy");
    if external {
        errs.required_enum(&here, policy, TRAFFIC);
    } else if !policy.is_empty() {
        errs.invalid_str(&here, policy, "may only be set for externally-accessible services");
    }
    let here = place.child("healthCheckNodePort");
    let port = int(spec, "healthCheckNodePort").unwrap_or_default();
    if kind == "LoadBalancer" && policy == "Local" {
        if port != 0 {
            errs.port(&here, port);
        }
    } else if port != 0 {
        errs.invalid(
            &here,
            &Value::from(port),
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        );
    }
    let here = place.child("internalTrafficPolicy");
    if has(spec, "internalTrafficPolicy") {
        errs.one_of(&here, text(spec, "internalTrafficPolicy"), TRAFFIC);
    } else if matches!(kind, "ClusterIP" | "LoadBalancer" | "NodePort") {
        errs.required(&here, "");
    }
    if has(spec, "trafficDistribution") {
        errs.one_of(&place.child("trafficDistribution"), text(spec, "trafficDistribution"), DISTRIBUTIONS);
    }
}

/// Validates what may not change while the type stays.
pub(super) fn update(obj: &Value, old: &Value, errs: &mut Errs) {
    let (spec, before) = (at(obj, "spec"), at(old, "spec"));
    let place = Path::field("spec");
    let kind = |spec: &Value| text(spec, "type").to_owned();
    if kind(spec) == "LoadBalancer" && kind(before) == "LoadBalancer" {
        if at(spec, "loadBalancerClass") != at(before, "loadBalancerClass") {
            errs.invalid(
                &place.child("loadBalancerClass"),
                at(spec, "loadBalancerClass"),
                "may not change once set",
            );
        }
        let local = |spec: &Value| text(spec, "externalTrafficPolicy") == "Local";
        let (new, was) = (at(spec, "healthCheckNodePort"), at(before, "healthCheckNodePort"));
        if local(spec) && local(before) && new != was {
            errs.forbidden(&place.child("healthCheckNodePort"), "field is immutable");
        }
    }
}
