//! Endpoints and EndpointSlices of Services, from the pods that they select. Pure.
//!
//! A change of one pod rewrites the one slice that the pod is in, and the Endpoints of the Service.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::object::{
    Kind, Meta, PodCondition, SIMULATED, Write, annotation, is_deleting, label, map_at, name, namespace,
    number, owner_reference, set, status_write, text, uid,
};
use super::pods::NODE_ADDRESS;

/// Most endpoints of a slice, as Kubernetes fills them.
const SLICE: usize = 100;
/// Most addresses of Endpoints.
const ADDRESSES: usize = 1000;
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslice-controller.k8s.io";
const HEADLESS: &str = "service.kubernetes.io/headless";

/// The selectors of the Services, by namespace and name.
#[derive(Default)]
pub(super) struct Selectors(HashMap<Arc<str>, BTreeMap<Arc<str>, Selector>>);

struct Selector {
    labels: BTreeMap<String, String>,
    /// Number of endpoints at the last visit.
    size: usize,
}

impl Selectors {
    /// Stores the present state of a Service; `None` if it was deleted.
    pub(super) fn put(&mut self, namespace: &Arc<str>, name: &Arc<str>, service: Option<&Value>) {
        let labels = service.and_then(selector).unwrap_or_default();
        if !labels.is_empty() {
            let services = self.0.entry(namespace.clone()).or_default();
            let size = services.get(name).map_or(0, |known| known.size);
            services.insert(name.clone(), Selector { labels, size });
            return;
        }
        if let Some(services) = self.0.get_mut(namespace) {
            services.remove(name);
            if services.is_empty() {
                self.0.remove(namespace);
            }
        }
    }

    /// Sets the number of endpoints that a visit found.
    pub(super) fn found(&mut self, namespace: &str, name: &str, size: usize) {
        if let Some(known) = self.0.get_mut(namespace).and_then(|services| services.get_mut(name)) {
            known.size = size;
        }
    }

    /// Returns the Services of a namespace that select these labels, and how long to wait for further changes before a
    /// visit: a visit looks at all pods of the Service, so visits of a Service with many pods are less frequent.
    pub(super) fn of<'a>(
        &self,
        namespace: &str,
        label: impl Fn(&str) -> Option<&'a str>,
    ) -> Vec<(Arc<str>, Duration)> {
        let services = self.0.get(namespace).into_iter().flatten();
        services
            .filter(|(_, of)| of.labels.iter().all(|(key, value)| label(key) == Some(value)))
            .map(|(name, of)| (name.clone(), of.pause()))
            .collect()
    }

    /// Returns how long to wait for further changes before a visit of a Service.
    pub(super) fn pause(&self, namespace: &str, name: &str) -> Duration {
        let known = self.0.get(namespace).and_then(|services| services.get(name));
        known.map_or(Duration::ZERO, Selector::pause)
    }
}

impl Selector {
    fn pause(&self) -> Duration {
        Duration::from_millis(20 + self.size as u64 / 2)
    }
}

/// Returns the selector of a Service that has endpoints.
pub(super) fn selector(service: &Value) -> Option<BTreeMap<String, String>> {
    if text(service, "/spec/type") == "ExternalName" {
        return None;
    }
    serde_json::from_value(service.pointer("/spec/selector")?.clone()).ok()
}

/// The properties of a pod that make its endpoint.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Backend {
    metadata: Meta,
    spec: BackendSpec,
    status: BackendStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BackendSpec {
    node_name: String,
    hostname: String,
    subdomain: String,
    containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    ports: Vec<Port>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Port {
    name: String,
    protocol: String,
    #[serde(rename = "containerPort")]
    number: i64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct BackendStatus {
    phase: String,
    #[serde(rename = "podIP")]
    address: String,
    conditions: Vec<PodCondition>,
}

impl Backend {
    fn is_endpoint(&self) -> bool {
        !self.status.address.is_empty() && !matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    fn is_ready(&self) -> bool {
        self.status.conditions.iter().any(|one| one.kind == "Ready" && one.status == "True")
    }

    fn reference(&self) -> Value {
        let Meta { name, namespace, uid, .. } = &self.metadata;
        json!({"kind": "Pod", "namespace": namespace, "name": name, "uid": uid})
    }

    /// The ports of the Service, with the numbers that they have in this pod.
    fn ports(&self, service: &Value) -> Vec<Value> {
        let ports = service.pointer("/spec/ports").and_then(Value::as_array);
        ports.into_iter().flatten().filter_map(|port| self.port(port)).collect()
    }

    fn port(&self, port: &Value) -> Option<Value> {
        let protocol = match text(port, "/protocol") {
            "" => "TCP",
            protocol => protocol,
        };
        let target = match port.get("targetPort") {
            Some(Value::String(wanted)) => {
                let of_pod = self.spec.containers.iter().flat_map(|container| &container.ports);
                let is_it = |one: &&Port| {
                    one.name == *wanted
                        && (one.protocol == protocol || one.protocol.is_empty() && protocol == "TCP")
                };
                of_pod.into_iter().find(is_it)?.number
            }
            _ => match number(port, "/targetPort") {
                0 => number(port, "/port"),
                target => target,
            },
        };
        let mut found = json!({"name": text(port, "/name"), "port": target, "protocol": protocol});
        if let Some(app) = port.get("appProtocol").filter(|app| app.is_string()) {
            set(&mut found, &[], "appProtocol", app.clone());
        }
        Some(found)
    }

    /// The endpoint in a slice.
    fn endpoint(&self, service: &Value, unready_too: bool) -> Value {
        let (ready, going) = (self.is_ready(), self.metadata.deleting());
        let mut endpoint = json!({
            "addresses": [self.status.address],
            "conditions": {"ready": unready_too || ready && !going, "serving": ready, "terminating": going},
            "nodeName": self.spec.node_name,
            "targetRef": self.reference(),
        });
        if !self.spec.hostname.is_empty() && self.spec.subdomain == name(service) {
            set(&mut endpoint, &[], "hostname", self.spec.hostname.as_str());
        }
        endpoint
    }

    /// The address in Endpoints.
    fn address(&self, service: &Value) -> Value {
        let mut address = json!({"ip": self.status.address, "nodeName": self.spec.node_name, "targetRef": self.reference()});
        if !self.spec.hostname.is_empty() && self.spec.subdomain == name(service) {
            set(&mut address, &[], "hostname", self.spec.hostname.as_str());
        }
        address
    }
}

/// Whether a slice is one of those that [`decide`] makes for a Service.
pub(super) fn is_of(slice: &Value, service: &str) -> bool {
    label(slice, SERVICE_NAME) == service && label(slice, MANAGED_BY) == MANAGER
}

/// What exists of a Service.
pub(super) struct Existing {
    /// Its Endpoints, [`Value::Null`] if there are none.
    pub(super) endpoints: Value,
    /// The slices that belong to it.
    pub(super) slices: Vec<Value>,
}

/// Returns the next writes for a Service, and the number of its endpoints. For a Service without a
/// selector there are no writes: its users write the endpoints.
pub(super) fn decide(service: &Value, pods: &[Backend], there: &Existing) -> (Vec<Write>, usize) {
    let mut writes: Vec<Write> = load_balancer(service).into_iter().collect();
    if is_deleting(service) || selector(service).is_none_or(|labels| labels.is_empty()) {
        return (writes, 0);
    }
    let unready_too = service.pointer("/spec/publishNotReadyAddresses") == Some(&Value::Bool(true));
    let mut backends: Vec<&Backend> = pods.iter().filter(|pod| pod.is_endpoint()).collect();
    backends
        .sort_by(|a, b| (&a.status.address, &a.metadata.name).cmp(&(&b.status.address, &b.metadata.name)));
    writes.extend(slices(service, &backends, unready_too, &there.slices));
    writes.extend(endpoints(service, &backends, unready_too, &there.endpoints));
    (writes, backends.len())
}

/// Returns the deletion of the Endpoints of a Service that is gone; the slices are garbage of the Service.
pub(super) fn removal(endpoints: &Value) -> Option<Write> {
    (!endpoints.is_null() && annotation(endpoints, SIMULATED) == "true")
        .then(|| delete(Kind::Endpoints, endpoints))
}

fn delete(kind: Kind, object: &Value) -> Write {
    Write::Delete {
        kind,
        namespace: namespace(object).to_owned(),
        name: name(object).to_owned(),
        uid: uid(object).to_owned(),
        at_once: false,
    }
}

/// The address of a load balancer: there is none, but clients wait for it.
fn load_balancer(service: &Value) -> Option<Write> {
    let wants = text(service, "/spec/type") == "LoadBalancer" && !is_deleting(service);
    if !wants || service.pointer("/status/loadBalancer/ingress").is_some() {
        return None;
    }
    let mut status = service.get("status").cloned().unwrap_or_else(|| json!({}));
    set(&mut status, &["loadBalancer"], "ingress", json!([{"ip": NODE_ADDRESS, "ipMode": "VIP"}]));
    status_write(Kind::Service, service, status)
}

fn is_headless(service: &Value) -> bool {
    text(service, "/spec/clusterIP") == "None"
}

/// The labels of a Service, with more.
fn labels(service: &Value, more: &[(&str, &str)]) -> Map<String, Value> {
    let own = service.pointer("/metadata/labels").and_then(Value::as_object);
    let mut labels = own.cloned().unwrap_or_default();
    labels.remove(HEADLESS);
    if is_headless(service) {
        labels.insert(HEADLESS.to_owned(), "".into());
    }
    labels.extend(more.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())));
    labels
}

/// The writes that give every backend its place: a backend stays in its slice, a new one goes into the first slice with
/// room, an empty slice goes.
fn slices(service: &Value, backends: &[&Backend], unready_too: bool, there: &[Value]) -> Vec<Write> {
    let mut by_ports: Vec<(Vec<Value>, Vec<Value>)> = Vec::new();
    for backend in backends {
        let (ports, endpoint) = (backend.ports(service), backend.endpoint(service, unready_too));
        match by_ports.iter_mut().find(|(known, _)| *known == ports) {
            Some((_, endpoints)) => endpoints.push(endpoint),
            None => by_ports.push((ports, vec![endpoint])),
        }
    }
    let wanted_labels =
        Value::Object(labels(service, &[(SERVICE_NAME, name(service)), (MANAGED_BY, MANAGER)]));
    let mut left: Vec<&Value> = there.iter().collect();
    let mut writes = Vec::new();
    for (ports, endpoints) in by_ports {
        let ports = Value::Array(ports);
        let (mine, others) = left.into_iter().partition(|slice| same_ports(slice, &ports));
        left = others;
        let (mine, rest) = placed(mine, endpoints);
        for (slice, endpoints) in mine {
            if endpoints.is_empty() {
                writes.push(delete(Kind::EndpointSlice, slice));
                continue;
            }
            let endpoints = Value::Array(endpoints);
            if slice.get("endpoints") == Some(&endpoints)
                && slice.pointer("/metadata/labels") == Some(&wanted_labels)
            {
                continue;
            }
            let mut slice = slice.clone();
            set(&mut slice, &["metadata"], "labels", wanted_labels.clone());
            set(&mut slice, &[], "endpoints", endpoints);
            writes.push(Write::Update(Kind::EndpointSlice, slice));
        }
        for endpoints in rest.chunks(SLICE) {
            writes
                .push(Write::Create(Kind::EndpointSlice, slice(service, &wanted_labels, endpoints, &ports)));
        }
    }
    writes.extend(left.into_iter().map(|slice| delete(Kind::EndpointSlice, slice)));
    writes
}

fn same_ports(slice: &Value, ports: &Value) -> bool {
    let known = slice.get("ports").filter(|ports| !ports.is_null());
    known.map_or(ports == &json!([]), |known| known == ports)
}

fn slice(service: &Value, labels: &Value, endpoints: &[Value], ports: &Value) -> Value {
    json!({
        "apiVersion": Kind::EndpointSlice.api_version(), "kind": Kind::EndpointSlice.name(),
        "metadata": {
            "generateName": format!("{}-", name(service)), "namespace": namespace(service), "labels": labels,
            "annotations": {SIMULATED: "true"},
            "ownerReferences": [owner_reference(service, Kind::Service)],
        },
        "addressType": "IPv4", "endpoints": endpoints, "ports": ports,
    })
}

/// Distributes endpoints over slices. Returns the new content of each slice, and what does not fit.
fn placed(slices: Vec<&Value>, endpoints: Vec<Value>) -> (Vec<(&Value, Vec<Value>)>, Vec<Value>) {
    let pod = |endpoint: &Value| text(endpoint, "/targetRef/uid").to_owned();
    let mut by_pod: BTreeMap<String, Value> = endpoints.into_iter().map(|one| (pod(&one), one)).collect();
    let mut filled: Vec<(&Value, Vec<Value>)> = Vec::new();
    for slice in slices {
        let there = slice.get("endpoints").and_then(Value::as_array);
        let kept = there.into_iter().flatten().filter_map(|one| by_pod.remove(&pod(one))).collect();
        filled.push((slice, kept));
    }
    let mut rest: Vec<Value> = by_pod.into_values().collect();
    // Slices that would be empty are left for deletion.
    for (_, endpoints) in filled.iter_mut().filter(|(_, endpoints)| !endpoints.is_empty()) {
        let room = SLICE.saturating_sub(endpoints.len()).min(rest.len());
        endpoints.extend(rest.drain(..room));
    }
    (filled, rest)
}

fn endpoints(service: &Value, backends: &[&Backend], unready_too: bool, there: &Value) -> Option<Write> {
    let mut subsets: Vec<(Vec<Value>, Vec<Value>, Vec<Value>)> = Vec::new();
    for backend in backends.iter().take(ADDRESSES) {
        let mut ports = backend.ports(service);
        ports.iter_mut().filter_map(Value::as_object_mut).for_each(|port| {
            port.retain(|key, value| key != "name" || value != "");
        });
        let known = match subsets.iter_mut().find(|(known, ..)| *known == ports) {
            Some(known) => known,
            None => {
                subsets.push((ports, Vec::new(), Vec::new()));
                subsets.last_mut()?
            }
        };
        let ready = unready_too || backend.is_ready() && !backend.metadata.deleting();
        let list = if ready { &mut known.1 } else { &mut known.2 };
        list.push(backend.address(service));
    }
    let subsets: Vec<Value> = subsets.into_iter().map(subset).collect();
    let mut labels = Value::Object(labels(service, &[]));
    set(&mut labels, &[], "endpoints.kubernetes.io/managed-by", "endpoint-controller");
    let mut wanted = if there.is_null() {
        let metadata = json!({"name": name(service), "namespace": namespace(service)});
        json!({"apiVersion": "v1", "kind": Kind::Endpoints.name(), "metadata": metadata})
    } else {
        there.clone()
    };
    set(&mut wanted, &["metadata"], "labels", labels);
    set(&mut wanted, &["metadata", "annotations"], SIMULATED, "true");
    if backends.len() > ADDRESSES {
        set(&mut wanted, &["metadata", "annotations"], OVER_CAPACITY, "truncated");
    } else if let Some(annotations) = map_at(&mut wanted, &["metadata", "annotations"]) {
        annotations.remove(OVER_CAPACITY);
    }
    wanted.as_object_mut()?.remove("subsets");
    if !subsets.is_empty() {
        set(&mut wanted, &[], "subsets", subsets);
    }
    match there {
        Value::Null => Some(Write::Create(Kind::Endpoints, wanted)),
        there => (wanted != *there).then_some(Write::Update(Kind::Endpoints, wanted)),
    }
}

fn subset((ports, ready, unready): (Vec<Value>, Vec<Value>, Vec<Value>)) -> Value {
    let mut subset = Map::new();
    for (key, list) in [("addresses", ready), ("notReadyAddresses", unready), ("ports", ports)] {
        if !list.is_empty() {
            subset.insert(key.to_owned(), list.into());
        }
    }
    subset.into()
}

#[cfg(test)]
mod tests;
