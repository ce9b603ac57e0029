//! Cells of Services and kinds that route to them. Each list is without name and age.

use std::collections::BTreeSet;

use serde_json::Value;

use super::fields::{NONE, PrintedObject, UNSET, first_of};

pub(super) fn cells(group: &str, plural: &str, o: &PrintedObject<'_>) -> Option<Vec<Value>> {
    Some(match (group, plural) {
        ("", "services") => service(o),
        ("", "endpoints") => vec![first_of(&endpoints(o), 3, NONE).into()],
        ("discovery.k8s.io", "endpointslices") => endpoint_slice(o),
        ("networking.k8s.io", "ingresses") => ingress(o),
        ("networking.k8s.io", "ingressclasses") => {
            let parameters = match (o.text("/spec/parameters/apiGroup"), o.text("/spec/parameters/kind")) {
                (_, "") => NONE.to_owned(),
                ("", kind) => format!("{kind}/{}", o.text("/spec/parameters/name")),
                (group, kind) => format!("{kind}.{group}/{}", o.text("/spec/parameters/name")),
            };
            vec![o.text("/spec/controller").into(), parameters.into()]
        }
        ("networking.k8s.io", "networkpolicies") => {
            let selector = o.selector("/spec/podSelector");
            vec![if selector.is_empty() { NONE.into() } else { selector.into() }]
        }
        ("networking.k8s.io", "servicecidrs") => vec![o.texts("/spec/cidrs", "").join(",").into()],
        ("networking.k8s.io", "ipaddresses") => {
            let part = |name: &str| o.text(&format!("/spec/parentRef/{name}")).to_owned();
            let resource = match part("group") {
                group if group.is_empty() => part("resource"),
                group => format!("{}.{group}", part("resource")),
            };
            let parts = [resource, part("namespace"), part("name")];
            let parts: Vec<String> = parts.into_iter().filter(|p| !p.is_empty()).collect();
            vec![parts.join("/").into()]
        }
        _ => return None,
    })
}

fn service(o: &PrintedObject<'_>) -> Vec<Value> {
    let ip = o.list("/spec/clusterIPs").first().and_then(Value::as_str).unwrap_or(NONE);
    let ports: Vec<String> = o
        .each("/spec/ports")
        .map(|p| match p.int("/nodePort") {
            0 => format!("{}/{}", p.int("/port"), p.text("/protocol")),
            node => format!("{}:{node}/{}", p.int("/port"), p.text("/protocol")),
        })
        .collect();
    let ports = if ports.is_empty() { NONE.to_owned() } else { ports.join(",") };
    vec![
        o.text("/spec/type").into(),
        ip.into(),
        external_ip(o).into(),
        ports.into(),
        o.labels("/spec/selector").into(),
    ]
}

fn external_ip(o: &PrintedObject<'_>) -> String {
    let given = o.texts("/spec/externalIPs", "").join(",");
    match o.text("/spec/type") {
        "ClusterIP" | "NodePort" if given.is_empty() => NONE.to_owned(),
        "ClusterIP" | "NodePort" => given,
        "LoadBalancer" => {
            let both = [load_balancer(o), given];
            let both: Vec<String> = both.into_iter().filter(|t| !t.is_empty()).collect();
            if both.is_empty() { "<pending>".to_owned() } else { both.join(",") }
        }
        "ExternalName" => o.text("/spec/externalName").to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

/// The addresses of a load balancer, truncated to a column's width.
fn load_balancer(o: &PrintedObject<'_>) -> String {
    let addresses: BTreeSet<&str> = o
        .each("/status/loadBalancer/ingress")
        .map(|i| i.text_or("/ip", i.text("/hostname")))
        .filter(|a| !a.is_empty())
        .collect();
    let text = addresses.into_iter().collect::<Vec<_>>().join(",");
    match text.get(..13) {
        Some(start) if text.len() > 16 => format!("{start}..."),
        _ => text,
    }
}

fn endpoints(o: &PrintedObject<'_>) -> Vec<String> {
    let mut out = Vec::new();
    for subset in o.each("/subsets") {
        let ports: Vec<i64> = subset.each("/ports").map(|p| p.int("/port")).collect();
        for address in subset.each("/addresses") {
            let ip = address.text("/ip");
            let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
            if ports.is_empty() {
                out.push(ip.to_owned());
            }
            out.extend(ports.iter().map(|port| format!("{host}:{port}")));
        }
    }
    out
}

fn endpoint_slice(o: &PrintedObject<'_>) -> Vec<Value> {
    let ports: Vec<String> =
        o.each("/ports").map(|p| p.int_or_text("/port").unwrap_or_else(|| "*".to_owned())).collect();
    let addresses: Vec<String> =
        o.each("/endpoints").flat_map(|e| e.texts("/addresses", "")).map(ToOwned::to_owned).collect();
    vec![
        o.text("/addressType").into(),
        first_of(&ports, 3, UNSET).into(),
        first_of(&addresses, 3, UNSET).into(),
    ]
}

fn ingress(o: &PrintedObject<'_>) -> Vec<Value> {
    let hosts: Vec<String> = o
        .texts("/spec/rules", "/host")
        .into_iter()
        .filter(|h| !h.is_empty())
        .map(ToOwned::to_owned)
        .collect();
    let ports = if o.count("/spec/tls") > 0 { "80, 443" } else { "80" };
    vec![
        o.text_or("/spec/ingressClassName", NONE).into(),
        first_of(&hosts, 3, "*").into(),
        load_balancer(o).into(),
        ports.into(),
    ]
}
