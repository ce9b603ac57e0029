//! The state of each object of a Binding in each cluster. Pure: turns objects of the two spaces into cells.

use std::collections::HashMap;

use apis::constants::{ORIGIN_BINDING_LABEL, ORIGIN_WDS_LABEL};
use apis::control::{BindingEntry, BindingSpec, WorkStatus};
use apis::ocm::ManifestWork;
use apis::ocm::work::{CONDITION_APPLIED, CONDITION_AVAILABLE, ManifestCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::Serialize;
use serde_json::Value;
use transport::identity::Identity;

use super::hindrance::Hindrances;

/// One object of a Binding.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Object {
    pub(crate) group: String,
    pub(crate) resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) version: String,
    /// Empty if the space no longer serves the resource.
    pub(crate) kind: String,
}

impl Object {
    /// `Deployment shop/web`.
    pub(crate) fn label(&self) -> String {
        let kind = if self.kind.is_empty() { &self.resource } else { &self.kind };
        if self.namespace.is_empty() {
            format!("{kind} {}", self.name)
        } else {
            format!("{kind} {}/{}", self.namespace, self.name)
        }
    }

    /// `Deployment.apps(shop/web)`, its name in a Binding's errors.
    fn identity(&self) -> String {
        let Self { group, kind, namespace, name, .. } = self.clone();
        Identity { group, kind, namespace, name }.to_string()
    }

    /// `deployments.apps/web`, as kubectl takes it.
    pub(crate) fn argument(&self) -> String {
        if self.group.is_empty() {
            format!("{}/{}", self.resource, self.name)
        } else {
            format!("{}.{}/{}", self.resource, self.group, self.name)
        }
    }
}

/// How far the delivery of an object to a cluster has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) enum State {
    /// In no ManifestWork of the cluster yet.
    Waiting,
    /// In a ManifestWork that the cluster's agent has not acted on in its present form.
    Pending,
    /// The agent has an older form of it; the present one can't be delivered.
    Behind,
    /// The agent could not apply it.
    Failed,
    /// The agent has applied it.
    Applied,
}

impl State {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Pending => "Pending",
            Self::Behind => "Behind",
            Self::Failed => "Failed",
            Self::Applied => "Applied",
        }
    }
}

/// One object in one cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cell {
    pub(crate) cluster: String,
    pub(crate) state: State,
    /// Name of the ManifestWork in the cluster's mailbox namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) manifest_work: Option<String>,
    /// Nothing new is delivered to the cluster at present, so the applied form may be outdated.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) held_back: bool,
    /// Status of the Available condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) available: Option<String>,
    /// A summary of the status that the cluster reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reported: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
    /// When it came into this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<Time>,
}

/// An object in a cluster.
#[derive(PartialEq, Eq, Hash)]
struct Place<'a> {
    cluster: &'a str,
    group: &'a str,
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
}

/// The ManifestWorks and WorkStatuses of one Binding, by object.
pub(crate) struct Picture<'a> {
    works: HashMap<Place<'a>, &'a ManifestWork>,
    reports: HashMap<Place<'a>, &'a WorkStatus>,
    hindrances: Hindrances<'a>,
}

impl<'a> Picture<'a> {
    /// Costs a look at each manifest, each report and each of the Binding's errors.
    pub(crate) fn new(works: &'a [ManifestWork], reports: &'a [WorkStatus], errors: &'a [String]) -> Self {
        let hindrances = Hindrances::new(errors);
        let mut all = Self { works: HashMap::new(), reports: HashMap::new(), hindrances };
        for work in works {
            let cluster = work.metadata.namespace.as_deref().unwrap_or_default();
            for manifest in &work.spec.workload.manifests {
                let text = |path: &str| manifest.pointer(path).and_then(Value::as_str).unwrap_or_default();
                let group = text("/apiVersion").split_once('/').map_or("", |(group, _)| group);
                let (kind, namespace, name) =
                    (text("/kind"), text("/metadata/namespace"), text("/metadata/name"));
                all.works.insert(Place { cluster, group, kind, namespace, name }, work);
            }
        }
        for report in reports {
            let cluster = report.metadata.namespace.as_deref().unwrap_or_default();
            let Some(of) = &report.spec.source_ref else { continue };
            let (group, kind, namespace, name) = (&of.group, &of.kind, &of.namespace, &of.name);
            all.reports.insert(Place { cluster, group, kind, namespace, name }, report);
        }
        all
    }

    /// Returns the state of `object` in `cluster`.
    pub(crate) fn cell(&self, object: &Object, cluster: &str) -> Cell {
        let Object { group, kind, namespace, name, .. } = object;
        let place = Place { cluster, group, kind, namespace, name };
        let report = self.reports.get(&place).and_then(|report| report.status.as_ref());
        let mut cell = Cell {
            cluster: cluster.to_owned(),
            state: State::Waiting,
            manifest_work: None,
            held_back: self.hindrances.of_cluster(cluster).is_some(),
            available: None,
            reported: report.and_then(|status| summary(&status.0)),
            message: String::new(),
            since: None,
        };
        let hindrance = self.hindrances.of_object(&object.identity(), cluster);
        let Some(work) = self.works.get(&place) else {
            let why = self.hindrances.of_waiting(&object.identity(), cluster);
            cell.message =
                why.unwrap_or_else(|| "the transport has not put it into a ManifestWork".to_owned());
            return cell;
        };
        cell.manifest_work.clone_from(&work.metadata.name);
        judge(&mut cell, work, applied_of(work, object));
        if let Some(why) = hindrance
            && cell.state != State::Failed
        {
            cell.state = State::Behind;
            why.clone_into(&mut cell.message);
        } else if let Some(why) = self.hindrances.of_cluster(cluster).filter(|_| cell.message.is_empty()) {
            cell.message = format!("perhaps in an older form: {why}");
        }
        cell
    }
}

fn applied_of<'a>(work: &'a ManifestWork, object: &Object) -> Option<&'a ManifestCondition> {
    work.status.as_ref()?.resource_status.manifests.iter().find(|it| {
        let meta = &it.resource_meta;
        (&meta.group, &meta.kind, &meta.namespace, &meta.name)
            == (&object.group, &object.kind, &object.namespace, &object.name)
    })
}

fn judge(cell: &mut Cell, work: &ManifestWork, of: Option<&ManifestCondition>) {
    let find = |type_: &str| of.and_then(|it| it.conditions.iter().find(|it| it.type_ == type_));
    cell.available = find(CONDITION_AVAILABLE).map(|it| it.status.clone());
    let generation = work.metadata.generation.unwrap_or(0);
    let current = |it: &Condition| it.observed_generation.is_none_or(|seen| seen >= generation);
    match find(CONDITION_APPLIED) {
        Some(applied) if !current(applied) => {
            cell.state = State::Pending;
            "the cluster's agent has not acted on the latest change".clone_into(&mut cell.message);
        }
        Some(applied) => {
            cell.since = Some(applied.last_transition_time.clone());
            if applied.status == "True" {
                cell.state = State::Applied;
                let missing = find(CONDITION_AVAILABLE).filter(|it| it.status != "True");
                cell.message = missing.map(|it| it.message.clone()).unwrap_or_default();
            } else {
                cell.state = State::Failed;
                cell.message.clone_from(&applied.message);
            }
        }
        None => {
            cell.state = State::Pending;
            "the cluster's agent has not acted on it".clone_into(&mut cell.message);
        }
    }
    if work.metadata.deletion_timestamp.is_some() {
        cell.state = State::Pending;
        "its ManifestWork is being deleted".clone_into(&mut cell.message);
    }
}

/// Summarises a status: ready replicas, a phase, or the most telling condition.
pub(crate) fn summary(status: &Value) -> Option<String> {
    let number = |key: &str| status.get(key).and_then(Value::as_i64);
    if let Some(all) = number("replicas").or_else(|| number("desiredNumberScheduled")) {
        let ready = number("readyReplicas").or_else(|| number("numberReady")).unwrap_or(0);
        return Some(format!("{ready}/{all} ready"));
    }
    if let Some(phase) = status.get("phase").and_then(Value::as_str) {
        return Some(phase.to_owned());
    }
    let conditions = status.get("conditions").and_then(Value::as_array)?;
    let telling = ["Complete", "Failed", "Ready", "Available", "Established"];
    let find =
        |wanted: &&str| conditions.iter().find(|it| it.get("type").and_then(Value::as_str) == Some(*wanted));
    let found = telling.iter().find_map(find)?;
    let text = |key: &str| found.get(key).and_then(Value::as_str).unwrap_or_default();
    Some(format!("{}={}", text("type"), text("status")))
}

/// The objects of a Binding, sorted; `kind` gives the kind of a resource by group, version and plural.
pub(crate) fn objects(spec: &BindingSpec, kind: impl Fn(&str, &str, &str) -> String) -> Vec<Object> {
    let object = |it: BindingEntry<'_>| Object {
        group: it.group.to_owned(),
        version: it.version.to_owned(),
        resource: it.resource.to_owned(),
        namespace: it.namespace.to_owned(),
        name: it.name.to_owned(),
        kind: kind(it.group, it.version, it.resource),
    };
    let mut all: Vec<_> = spec.entries().map(object).collect();
    all.sort();
    all
}

/// Returns the label selector for the ManifestWorks and WorkStatuses of a Binding of a WDS.
pub(crate) fn labels(binding: &str, wds: &str) -> String {
    format!("{ORIGIN_BINDING_LABEL}={binding},{ORIGIN_WDS_LABEL}={wds}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn work(generation: i64, conditions: Value) -> ManifestWork {
        let meta = json!({"group": "apps", "kind": "Deployment", "namespace": "shop", "name": "web"});
        let manifest = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"namespace": "shop", "name": "web"}});
        let status =
            json!({"resourceStatus": {"manifests": [{"resourceMeta": meta, "conditions": conditions}]}});
        serde_json::from_value(json!({
            "metadata": {"name": "w-1", "namespace": "atlas", "generation": generation},
            "spec": {"workload": {"manifests": [manifest]}}, "status": status,
        }))
        .unwrap()
    }

    fn condition(type_: &str, status: &str, generation: i64) -> Value {
        json!({"type": type_, "status": status, "reason": "R", "message": format!("{type_} is {status}"),
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": generation})
    }

    fn web() -> Object {
        Object {
            group: "apps".into(),
            version: "v1".into(),
            resource: "deployments".into(),
            kind: "Deployment".into(),
            namespace: "shop".into(),
            name: "web".into(),
        }
    }

    /// SP-119: the states of one object in one cluster.
    #[test]
    fn sp_119_one_cell() {
        let yes =
            |generation| json!([condition("Applied", "True", generation), condition("Available", "True", 1)]);
        let cases = [
            ("applied", work(1, yes(1)), "atlas", State::Applied, ""),
            ("an older form was applied", work(2, yes(1)), "atlas", State::Pending, "latest change"),
            ("nothing is known", work(1, json!([])), "atlas", State::Pending, "not acted on it"),
            (
                "refused",
                work(1, json!([condition("Applied", "False", 1)])),
                "atlas",
                State::Failed,
                "Applied is False",
            ),
            (
                "applied, and gone",
                work(1, json!([condition("Applied", "True", 1), condition("Available", "False", 1)])),
                "atlas",
                State::Applied,
                "Available is False",
            ),
            ("another cluster", work(1, yes(1)), "boreas", State::Waiting, "ManifestWork"),
        ];
        for (why, work, cluster, state, message) in cases {
            let works = [work];
            let cell = Picture::new(&works, &[], &[]).cell(&web(), cluster);
            assert_eq!(cell.state, state, "{why}: {cell:?}");
            assert!(
                cell.message.contains(message) && cell.message.is_empty() == message.is_empty(),
                "{why}: {cell:?}"
            );
        }
    }

    /// SP-119, KS-141: of what can't be delivered as it is now, the older form that is there is not shown as if it were current.
    #[test]
    fn sp_119_what_can_not_be_delivered_is_behind() {
        let applied = work(1, json!([condition("Applied", "True", 1)]));
        let failed = work(1, json!([condition("Applied", "False", 1)]));
        let large = "Deployment.apps(shop/web): size 600000 exceeds the maximum 512000";
        let frozen = "template: atlas/ConfigMap(shop/site).data.url:1:9: no siteId";
        let held = format!("perhaps in an older form: {frozen}");
        for (works, error, state, message) in [
            (vec![applied.clone()], large, State::Behind, large),
            (vec![failed], large, State::Failed, "Applied is False"),
            (vec![], large, State::Waiting, large),
            (vec![applied.clone()], frozen, State::Applied, held.as_str()),
            (vec![applied], "destination boreas: no such namespace", State::Applied, ""),
            (vec![], frozen, State::Waiting, frozen),
            (
                vec![],
                "destination atlas: no such namespace",
                State::Waiting,
                "destination atlas: no such namespace",
            ),
        ] {
            let errors = [error.to_owned()];
            let cell = Picture::new(&works, &[], &errors).cell(&web(), "atlas");
            assert_eq!((cell.state, cell.message.as_str()), (state, message));
        }
    }

    #[test]
    fn sp_119_a_report_in_a_few_words() {
        let cases = [
            (json!({"replicas": 3, "readyReplicas": 2}), Some("2/3 ready")),
            (json!({"desiredNumberScheduled": 4, "numberReady": 4}), Some("4/4 ready")),
            (json!({"phase": "Active"}), Some("Active")),
            (json!({"conditions": [{"type": "Complete", "status": "True"}]}), Some("Complete=True")),
            (json!({"conditions": [{"type": "Odd", "status": "True"}]}), None),
            (json!({}), None),
        ];
        for (status, text) in cases {
            assert_eq!(summary(&status).as_deref(), text, "{status}");
        }
    }

    #[test]
    fn sp_081_objects_are_named_as_kubectl_names_them() {
        assert_eq!(
            (web().label().as_str(), web().argument().as_str()),
            ("Deployment shop/web", "deployments.apps/web")
        );
        let space = Object { resource: "namespaces".into(), name: "shop".into(), ..Object::default() };
        assert_eq!(
            (space.label().as_str(), space.argument().as_str()),
            ("namespaces shop", "namespaces/shop")
        );
    }
}
