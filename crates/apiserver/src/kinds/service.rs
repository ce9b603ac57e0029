//! Services: defaults, addresses and node ports (spec 2.4, 2.5).

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;

use serde_json::{Value, json};
use uuid::Uuid;

use super::check::Errs;
use super::spec::{Facts, Spec, WITH_STATUS};
use super::value::{at, fill, fill_at, has, int, list, list_mut, object_mut, put, set_at, text};
use crate::strategy::{NameRule, WriteContext};

const NODE_PORTS: std::ops::RangeInclusive<i64> = 30000..=32767;

pub(super) const SERVICE: Spec = Spec {
    facts: Facts {
        create_on_update: true,
        name: NameRule::Label,
        returns_deleted: true,
        backends: Some(&("", "v1", "endpoints")),
        allocates: true,
        own_labels: true,
        ..WITH_STATUS.facts
    },
    status: Some(|| json!({"loadBalancer": {}})),
    generation: super::spec::GenerationRule::FromClient,
    fields: &[("spec.clusterIP", "spec.clusterIP", ""), ("spec.type", "spec.type", "")],
    default,
    create: |cx, obj| {
        join_cluster_ips(obj, None);
        families(obj);
        allocate(cx, obj, None);
    },
    update,
    validate: |_, obj, errs| super::service_validation::service(obj, errs),
    validate_create: |cx, obj, errs| allocated(cx, obj, None, errs),
    validate_update: |cx, obj, old, errs| {
        super::service_validation::update(obj, old, errs);
        addresses_fixed(obj, old, errs);
        allocated(cx, obj, Some(old), errs);
    },
    warnings: super::warnings::service,
    ..WITH_STATUS
};

fn default(obj: &mut Value) {
    let Some(spec) = object_mut(obj, "spec") else { return };
    fill(spec, "sessionAffinity", "None");
    fill(spec, "type", "ClusterIP");
    match text(obj, "spec.sessionAffinity") {
        "None" => drop(super::value::remove_at(obj, "spec", "sessionAffinityConfig")),
        "ClientIP" => {
            super::pod::fill_zero(obj, "spec.sessionAffinityConfig.clientIP", "timeoutSeconds", 10800);
        }
        _ => {}
    }
    for port in list_mut(obj, "spec.ports") {
        let number = at(port, "port").clone();
        let Some(map) = port.as_object_mut() else { continue };
        fill(map, "protocol", "TCP");
        if map.get("targetPort").is_none_or(|t| t.is_null() || t == 0 || t == "") {
            map.insert("targetPort".into(), number);
        }
    }
    if externally_accessible(obj) {
        fill_at(obj, "spec", "externalTrafficPolicy", "Cluster");
    }
    if needs_address(obj) {
        fill_at(obj, "spec", "internalTrafficPolicy", "Cluster");
    }
    if kind(obj) == "LoadBalancer" {
        fill_at(obj, "spec", "allocateLoadBalancerNodePorts", true);
    }
}

fn kind(obj: &Value) -> &str {
    text(obj, "spec.type")
}

fn needs_address(obj: &Value) -> bool {
    matches!(kind(obj), "ClusterIP" | "NodePort" | "LoadBalancer")
}

fn externally_accessible(obj: &Value) -> bool {
    matches!(kind(obj), "NodePort" | "LoadBalancer")
        || (kind(obj) == "ClusterIP" && !list(obj, "spec.externalIPs").is_empty())
}

fn needs_node_ports(obj: &Value) -> bool {
    kind(obj) == "NodePort"
        || (kind(obj) == "LoadBalancer"
            && at(obj, "spec.allocateLoadBalancerNodePorts").as_bool().unwrap_or(true))
}

fn needs_health_port(obj: &Value) -> bool {
    kind(obj) == "LoadBalancer" && text(obj, "spec.externalTrafficPolicy") == "Local"
}

fn is_headless(obj: &Value) -> bool {
    text(obj, "spec.clusterIP") == "None"
}

/// Keeps `clusterIPs` consistent with `clusterIP`, which older clients write alone.
fn join_cluster_ips(obj: &mut Value, old: Option<&Value>) {
    let address = text(obj, "spec.clusterIP").to_owned();
    let addresses = list(obj, "spec.clusterIPs");
    let stale = match old {
        None => addresses.is_empty(),
        Some(old) => {
            address != text(old, "spec.clusterIP") && at(obj, "spec.clusterIPs") == at(old, "spec.clusterIPs")
        }
    };
    if !stale {
        return;
    }
    if address.is_empty() {
        if let Some(spec) = super::value::at_mut(obj, "spec") {
            put(spec, "clusterIPs", &Value::Null);
        }
    } else {
        set_at(obj, "spec", "clusterIPs", json!([address]));
    }
}

fn families(obj: &mut Value) {
    if !needs_address(obj) {
        return;
    }
    // Clients may write endpoints of either family for a headless service without a selector.
    let open = is_headless(obj) && at(obj, "spec.selector").as_object().is_none_or(serde_json::Map::is_empty);
    let Some(spec) = object_mut(obj, "spec") else { return };
    let unset = spec.get("ipFamilies").and_then(Value::as_array).is_none_or(Vec::is_empty);
    let policy = spec.get("ipFamilyPolicy").and_then(Value::as_str).unwrap_or_default();
    if open && policy.is_empty() && unset {
        spec.insert("ipFamilyPolicy".into(), "RequireDualStack".into());
        spec.insert("ipFamilies".into(), json!(["IPv4", "IPv6"]));
        return;
    }
    fill(spec, "ipFamilyPolicy", "SingleStack");
    if unset {
        spec.insert("ipFamilies".into(), json!(["IPv4"]));
    }
}

/// Allocates the addresses and ports that the service needs and does not request.
fn allocate(cx: &WriteContext<'_>, obj: &mut Value, old: Option<&Value>) {
    if !needs_address(obj) {
        return;
    }
    let wants_address = text(obj, "spec.clusterIP").is_empty();
    let wants_ports = needs_node_ports(obj) && list(obj, "spec.ports").iter().any(|p| node_port(p) == 0);
    let wants_health =
        needs_health_port(obj) && int(obj, "spec.healthCheckNodePort").unwrap_or_default() == 0;
    if !wants_address && !wants_ports && !wants_health {
        return;
    }
    let others = others(cx, obj);
    let network = cx.settings.service_network;
    if wants_address && let Some(address) = network.free(&used_addresses(&others), Uuid::new_v4().as_u128()) {
        let address = address.to_string();
        set_at(obj, "spec", "clusterIP", address.clone());
        set_at(obj, "spec", "clusterIPs", json!([address]));
    }
    let mut used = used_ports(&others);
    used.extend(list(obj, "spec.ports").iter().map(node_port));
    if let Some(old) = old {
        used.extend(list(old, "spec.ports").iter().map(node_port));
    }
    if wants_ports {
        for port in list_mut(obj, "spec.ports") {
            if node_port(port) != 0 {
                continue;
            }
            // If one search finds no free port, none is free.
            let Some(free) = free_port(&used) else { break };
            used.insert(free);
            if let Some(map) = port.as_object_mut() {
                map.insert("nodePort".into(), free.into());
            }
        }
    }
    if wants_health && let Some(free) = free_port(&used) {
        set_at(obj, "spec", "healthCheckNodePort", free);
    }
}

fn node_port(port: &Value) -> i64 {
    int(port, "nodePort").unwrap_or_default()
}

/// All other services.
fn others(cx: &WriteContext<'_>, obj: &Value) -> Vec<Value> {
    let same = |other: &Value| {
        text(other, "metadata.namespace") == cx.namespace
            && text(other, "metadata.name") == text(obj, "metadata.name")
    };
    let mut all = cx.lookup.list("", "services", None);
    all.retain(|other| !same(other));
    all
}

fn used_ports(others: &[Value]) -> BTreeSet<i64> {
    others
        .iter()
        .flat_map(|s| list(s, "spec.ports").iter().map(node_port).chain(int(s, "spec.healthCheckNodePort")))
        .filter(|port| *port != 0)
        .collect()
}

fn used_addresses(others: &[Value]) -> BTreeSet<Ipv4Addr> {
    others
        .iter()
        .flat_map(|s| list(s, "spec.clusterIPs"))
        .filter_map(|ip| ip.as_str()?.parse().ok())
        .collect()
}

/// A random start of the search, so that an address is not reused soon.
fn start(size: u32) -> u32 {
    (Uuid::new_v4().as_u128() % u128::from(size)) as u32
}

fn free_port(used: &BTreeSet<i64>) -> Option<i64> {
    let size = NODE_PORTS.end() - NODE_PORTS.start() + 1;
    let first = i64::from(start(size as u32));
    (0..size).map(|i| NODE_PORTS.start() + (first + i) % size).find(|port| !used.contains(port))
}

fn update(cx: &WriteContext<'_>, obj: &mut Value, old: &Value) {
    join_cluster_ips(obj, Some(old));
    keep_allocated(obj, old);
    drop_unneeded(obj, old);
    families(obj);
    allocate(cx, obj, Some(old));
}

/// Restores allocated values that the writer left out.
fn keep_allocated(obj: &mut Value, old: &Value) {
    let spec = object_mut(obj, "spec").is_some();
    if spec && needs_address(obj) && needs_address(old) {
        if text(obj, "spec.clusterIP").is_empty() {
            set_at(obj, "spec", "clusterIP", at(old, "spec.clusterIP").clone());
        }
        if list(obj, "spec.clusterIPs").is_empty()
            && text(obj, "spec.clusterIP") == text(old, "spec.clusterIP")
        {
            set_at(obj, "spec", "clusterIPs", at(old, "spec.clusterIPs").clone());
        }
        for key in ["ipFamilies", "ipFamilyPolicy"] {
            if !has(at(obj, "spec"), key) && has(at(old, "spec"), key) {
                set_at(obj, "spec", key, at(at(old, "spec"), key).clone());
            }
        }
    }
    if needs_node_ports(obj) && needs_node_ports(old) {
        let mut before = HashMap::new();
        for was in list(old, "spec.ports") {
            before.entry((at(was, "port"), at(was, "protocol"))).or_insert(node_port(was));
        }
        for port in list_mut(obj, "spec.ports") {
            if node_port(port) != 0 {
                continue;
            }
            let kept = before.get(&(at(port, "port"), at(port, "protocol"))).copied().filter(|n| *n != 0);
            if let (Some(kept), Some(map)) = (kept, port.as_object_mut()) {
                map.insert("nodePort".into(), kept.into());
            }
        }
    }
    if needs_health_port(obj) && needs_health_port(old) && !has(obj, "spec.healthCheckNodePort") {
        set_at(obj, "spec", "healthCheckNodePort", at(old, "spec.healthCheckNodePort").clone());
    }
}

/// Drops values that a changed type does not need, unless the writer changed them too.
fn drop_unneeded(obj: &mut Value, old: &Value) {
    let mut gone: Vec<&str> = Vec::new();
    if needs_address(old) && !needs_address(obj) {
        gone.extend(["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"]);
    }
    if needs_health_port(old) && !needs_health_port(obj) {
        gone.push("healthCheckNodePort");
    }
    if kind(old) == "LoadBalancer" && kind(obj) != "LoadBalancer" {
        gone.extend(["allocateLoadBalancerNodePorts", "loadBalancerClass"]);
    }
    if externally_accessible(old) && !externally_accessible(obj) {
        gone.push("externalTrafficPolicy");
    }
    for key in gone {
        if at(at(obj, "spec"), key) == at(at(old, "spec"), key) {
            drop(super::value::remove_at(obj, "spec", key));
        }
    }
    if !needs_node_ports(obj) && needs_node_ports(old) {
        let given: BTreeSet<i64> = list(old, "spec.ports").iter().map(node_port).collect();
        for port in list_mut(obj, "spec.ports") {
            if given.contains(&node_port(port)) {
                drop(super::value::remove(port, "nodePort"));
            }
        }
    }
}

/// Checks that requested addresses and ports are in range and free. Kubernetes checks this only if there are no other
/// errors.
fn allocated(cx: &WriteContext<'_>, obj: &Value, old: Option<&Value>, errs: &mut Errs) {
    if !errs.0.is_empty() || !needs_address(obj) {
        return;
    }
    let others = others(cx, obj);
    let kept = |place: &str| old.is_some_and(|old| at(old, place) == at(obj, place));
    if !is_headless(obj) && !kept("spec.clusterIPs") {
        let (used, network) = (used_addresses(&others), cx.settings.service_network);
        for ip in list(obj, "spec.clusterIPs") {
            let shown = ip.as_str().unwrap_or_default();
            let why = match shown.parse::<Ipv4Addr>() {
                Ok(ip) if !network.contains(ip) => format!(
                    "the provided IP ({shown}) is not in the valid range. The range of valid IPs is {network}"
                ),
                Ok(ip) if used.contains(&ip) => "provided IP is already allocated".to_owned(),
                _ => continue,
            };
            errs.invalid(
                &super::value::path("spec.clusterIPs"),
                at(obj, "spec.clusterIPs"),
                &format!("failed to allocate IP {shown}: {why}"),
            );
        }
    }
    if !needs_node_ports(obj) || kept("spec.ports") {
        return;
    }
    let used = used_ports(&others);
    for (i, port) in list(obj, "spec.ports").iter().enumerate() {
        let number = node_port(port);
        let here = super::value::path("spec.ports").index(i).child("nodePort");
        if number != 0 && !NODE_PORTS.contains(&number) {
            errs.invalid(
                &here,
                &Value::from(number),
                "provided port is not in the valid range. The range of valid ports is 30000-32767",
            );
        } else if used.contains(&number) {
            errs.invalid(&here, &Value::from(number), "provided port is already allocated");
        }
    }
}

fn addresses_fixed(obj: &Value, old: &Value, errs: &mut Errs) {
    if kind(obj) == "ExternalName" || kind(old) == "ExternalName" {
        return;
    }
    let (new, was) = (list(obj, "spec.clusterIPs"), list(old, "spec.clusterIPs"));
    if let Some(first) = was.first()
        && new.first() != Some(first)
    {
        errs.invalid(
            &super::value::path("spec.clusterIPs").index(0),
            at(obj, "spec.clusterIPs"),
            "may not change once set",
        );
    }
}
