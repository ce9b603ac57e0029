//! Objects that controllers read and write: JSON, the relevant properties of pods, and writes.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Annotation of simulated objects.
pub(super) const SIMULATED: &str = "kubestellar.io/simulated";

/// Kinds that are simulated, or created on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
    Job,
    Pod,
    ControllerRevision,
    Node,
    PersistentVolumeClaim,
    PersistentVolume,
    Service,
    Endpoints,
    EndpointSlice,
}

impl Kind {
    pub(super) const ALL: [Self; 13] = [
        Self::Deployment,
        Self::ReplicaSet,
        Self::StatefulSet,
        Self::DaemonSet,
        Self::Job,
        Self::Pod,
        Self::ControllerRevision,
        Self::Node,
        Self::PersistentVolumeClaim,
        Self::PersistentVolume,
        Self::Service,
        Self::Endpoints,
        Self::EndpointSlice,
    ];
    /// Kinds that control pods.
    pub(super) const OF_PODS: [Self; 4] = [Self::ReplicaSet, Self::StatefulSet, Self::DaemonSet, Self::Job];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::ReplicaSet => "ReplicaSet",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
            Self::Job => "Job",
            Self::Pod => "Pod",
            Self::ControllerRevision => "ControllerRevision",
            Self::Node => "Node",
            Self::PersistentVolumeClaim => "PersistentVolumeClaim",
            Self::PersistentVolume => "PersistentVolume",
            Self::Service => "Service",
            Self::Endpoints => "Endpoints",
            Self::EndpointSlice => "EndpointSlice",
        }
    }

    pub(super) fn group(self) -> &'static str {
        match self {
            Self::Job => "batch",
            Self::Pod
            | Self::Node
            | Self::PersistentVolumeClaim
            | Self::PersistentVolume
            | Self::Service
            | Self::Endpoints => "",
            Self::EndpointSlice => "discovery.k8s.io",
            _ => "apps",
        }
    }

    pub(super) fn plural(self) -> &'static str {
        match self {
            Self::Deployment => "deployments",
            Self::ReplicaSet => "replicasets",
            Self::StatefulSet => "statefulsets",
            Self::DaemonSet => "daemonsets",
            Self::Job => "jobs",
            Self::Pod => "pods",
            Self::ControllerRevision => "controllerrevisions",
            Self::Node => "nodes",
            Self::PersistentVolumeClaim => "persistentvolumeclaims",
            Self::PersistentVolume => "persistentvolumes",
            Self::Service => "services",
            Self::Endpoints => "endpoints",
            Self::EndpointSlice => "endpointslices",
        }
    }

    pub(super) fn api_version(self) -> &'static str {
        match self.group() {
            "apps" => "apps/v1",
            "batch" => "batch/v1",
            "discovery.k8s.io" => "discovery.k8s.io/v1",
            _ => "v1",
        }
    }

    /// The kind whose objects are in a collection (`group/plural`).
    pub(super) fn of_collection(collection: &str) -> Option<Self> {
        let (group, plural) = collection.split_once('/')?;
        Self::ALL.into_iter().find(|kind| kind.plural() == plural && kind.group() == group)
    }

    /// The kind that an owner reference names.
    pub(super) fn of_owner(owner: &Owner) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == owner.kind && kind.api_version() == owner.api_version)
    }

    /// Path of a collection, or of an object in it if `name` is not empty.
    pub(super) fn path(self, namespace: &str, name: &str) -> String {
        let mut path = if self.group().is_empty() {
            "/api/v1".to_owned()
        } else {
            format!("/apis/{}", self.api_version())
        };
        if !namespace.is_empty() {
            path.push_str("/namespaces/");
            path.push_str(namespace);
        }
        path.push('/');
        path.push_str(self.plural());
        if !name.is_empty() {
            path.push('/');
            path.push_str(name);
        }
        path
    }
}

/// One write. After a conflict, a newer state will be visited.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Write {
    Create(Kind, Value),
    /// Replaces the object, at the version that it carries.
    Update(Kind, Value),
    /// Replaces its status, at the version that the object carries.
    Status(Kind, Value),
    /// A merge patch. Its `metadata.uid` is a precondition.
    Patch {
        kind: Kind,
        namespace: String,
        name: String,
        patch: Value,
    },
    Delete {
        kind: Kind,
        namespace: String,
        name: String,
        uid: String,
        /// Without grace period, like a kubelet whose containers have terminated.
        at_once: bool,
    },
    /// Assigns a pod to the node.
    Bind {
        namespace: String,
        name: String,
        uid: String,
        node: String,
    },
}

/// Writes to do now, and when to visit the object again.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) writes: Vec<Write>,
    pub(super) again: Option<Duration>,
}

impl From<Vec<Write>> for Plan {
    fn from(writes: Vec<Write>) -> Self {
        Self { writes, again: None }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Owner {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) controller: bool,
}

/// Metadata that decisions need.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Meta {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    pub(super) generation: i64,
    pub(super) creation_timestamp: String,
    pub(super) deletion_timestamp: Option<String>,
    pub(super) finalizers: Vec<String>,
    pub(super) owner_references: Vec<Owner>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
}

impl Meta {
    pub(super) fn controller(&self) -> Option<&Owner> {
        self.owner_references.iter().find(|owner| owner.controller)
    }

    pub(super) fn deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    pub(super) fn label(&self, key: &str) -> &str {
        self.labels.get(key).map(String::as_str).unwrap_or_default()
    }
}

/// An object of which only the metadata is needed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    pub(super) metadata: Meta,
}

/// The properties of a pod that its controllers use.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Pod {
    pub(super) metadata: Meta,
    pub(super) spec: PodSpec,
    pub(super) status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodSpec {
    pub(super) node_name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodStatus {
    pub(super) phase: String,
    pub(super) observed_generation: i64,
    pub(super) conditions: Vec<PodCondition>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct PodCondition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: String,
}

impl Pod {
    /// Whether it is neither finished nor being deleted.
    pub(super) fn active(&self) -> bool {
        !self.metadata.deleting() && !self.finished()
    }

    pub(super) fn finished(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    pub(super) fn ready(&self) -> bool {
        self.status.conditions.iter().any(|one| one.kind == "Ready" && one.status == "True")
    }

    /// Deletes without grace period, because nothing runs in the pod.
    pub(super) fn delete(&self) -> Write {
        Write::Delete {
            kind: Kind::Pod,
            namespace: self.metadata.namespace.clone(),
            name: self.metadata.name.clone(),
            uid: self.metadata.uid.clone(),
            at_once: true,
        }
    }
}

pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A number; 0 if absent, because Kubernetes omits zeros.
pub(super) fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

pub(super) fn flag(object: &Value, pointer: &str) -> bool {
    object.pointer(pointer).and_then(Value::as_bool).unwrap_or_default()
}

pub(super) fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

pub(super) fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace")
}

pub(super) fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

pub(super) fn generation(object: &Value) -> i64 {
    number(object, "/metadata/generation")
}

/// `spec.replicas`; 1 if absent.
pub(super) fn replicas(object: &Value) -> i64 {
    object.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1)
}

pub(super) fn is_deleting(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some_and(|at| !at.is_null())
}

pub(super) fn label<'a>(object: &'a Value, key: &str) -> &'a str {
    object.pointer("/metadata/labels").map_or("", |labels| field(labels, key))
}

pub(super) fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    object.pointer("/metadata/annotations").map_or("", |all| field(all, key))
}

pub(super) fn field<'a>(map: &'a Value, key: &str) -> &'a str {
    map.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The object at a path, created if it is absent.
pub(super) fn map_at<'a>(object: &'a mut Value, keys: &[&str]) -> Option<&'a mut Map<String, Value>> {
    let mut here = object;
    for key in keys {
        let next = here.as_object_mut()?.entry(*key).or_insert(Value::Null);
        if next.is_null() {
            *next = Value::Object(Map::new());
        }
        here = next;
    }
    here.as_object_mut()
}

pub(super) fn set(object: &mut Value, keys: &[&str], key: &str, value: impl Into<Value>) {
    if let Some(map) = map_at(object, keys) {
        map.insert(key.to_owned(), value.into());
    }
}

/// Sort key: order of creation, then name.
pub(super) fn age(object: &Value) -> (&str, &str) {
    (text(object, "/metadata/creationTimestamp"), name(object))
}

/// A write of `status`, unless `object` has it already.
pub(super) fn status_write(kind: Kind, object: &Value, status: Value) -> Option<Write> {
    if object.get("status") == Some(&status) {
        return None;
    }
    let mut object = object.clone();
    object.as_object_mut()?.insert("status".into(), status);
    Some(Write::Status(kind, object))
}

/// Drops fields that Kubernetes omits if they are zero.
pub(super) fn without_zeros(mut status: Value, optional: &[&str]) -> Value {
    if let Some(fields) = status.as_object_mut() {
        fields.retain(|field, value| !(optional.contains(&field.as_str()) && *value == 0));
    }
    status
}

/// The conditions of the object.
pub(super) fn conditions(object: &Value) -> Vec<Value> {
    object.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default()
}

pub(super) fn condition<'a>(conditions: &'a [Value], kind: &str) -> Option<&'a Value> {
    conditions.iter().find(|condition| field(condition, "type") == kind)
}

pub(super) fn owner_reference(owner: &Value, kind: Kind) -> Value {
    json!({
        "apiVersion": kind.api_version(), "kind": kind.name(), "name": name(owner), "uid": uid(owner),
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// A pod of `owner` made from `template`. If `pod_name` ends with `-`, the server completes it.
pub(super) fn pod_from(
    owner: &Value,
    kind: Kind,
    template: &Value,
    pod_name: &str,
    labels: &[(&str, &str)],
    node: &str,
) -> Value {
    let part =
        |name: &str| template.pointer(&format!("/metadata/{name}")).cloned().unwrap_or_else(|| json!({}));
    let mut spec = template.get("spec").cloned().unwrap_or_else(|| json!({}));
    // Setting the only node here saves a write per pod.
    set(&mut spec, &[], "nodeName", node);
    let field = if pod_name.ends_with('-') { "generateName" } else { "name" };
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            field: pod_name, "namespace": namespace(owner), "labels": part("labels"),
            "annotations": part("annotations"), "ownerReferences": [owner_reference(owner, kind)],
        },
        "spec": spec,
    });
    for (key, value) in labels {
        set(&mut pod, &["metadata", "labels"], key, *value);
    }
    set(&mut pod, &["metadata", "annotations"], SIMULATED, "true");
    pod
}
