//! Reads back what a demo delivered.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use apis::constants::EXPAND_TEMPLATES_ANNOTATION;
use futures::stream::{FuturesUnordered, StreamExt};
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use kube::discovery::ApiResource;
use runtime::Source;
use serde_json::Value;

use crate::exit::{Exit, Failure, from_kube};
use crate::printer::Printer;

use super::watch::find;
use super::{Report, Stage, bindings};

/// Kinds whose simulated status the demo waits for.
const WORKLOADS: [&str; 4] = ["Deployment", "StatefulSet", "DaemonSet", "Job"];

/// One applied object.
pub(crate) struct Target {
    pub(crate) resource: ApiResource,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    /// The manifest as applied.
    pub(crate) wanted: DynamicObject,
    pub(crate) applied: Instant,
    /// A CustomTransform or the values of a cluster change it, so that it need not arrive as it was applied.
    pub(crate) changes_on_the_way: bool,
}

/// What a Binding says about one object.
struct Bound {
    policy: String,
    target: usize,
    destinations: Vec<String>,
    singleton: bool,
}

impl Target {
    pub(crate) fn api(&self, client: Client) -> Api<DynamicObject> {
        api(client, &self.source())
    }

    /// The object alone.
    fn source(&self) -> Source {
        let all = Source::all(self.resource.clone());
        all.namespaced(self.namespace.clone().unwrap_or_default()).named(&self.name)
    }

    fn label(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} {namespace}/{}", self.resource.kind, self.name),
            None => format!("{} {}", self.resource.kind, self.name),
        }
    }

    fn is_workload(&self) -> bool {
        WORKLOADS.contains(&self.resource.kind.as_str())
    }
}

impl Stage {
    /// Waits for every delivery and status the policies ask for, each verified in its cluster.
    pub(crate) async fn verify(
        &self,
        targets: &[Target],
        policies: &[Target],
        since: Instant,
        out: &Printer,
    ) -> Result<Report, Failure> {
        let bound = self.bound(policies, targets).await?;
        out.step("the policies bound the objects to their clusters", Some(since.elapsed()));
        let mut report = Report::default();
        self.deliveries(targets, &bound, &mut report, out).await?;
        if self.simulated {
            self.statuses(targets, &bound, &mut report, out).await?;
        }
        Ok(report)
    }

    /// Waits until each policy has destinations and objects of the demo, and each object has a policy; returns what the Bindings
    /// say then. A kind that a manifest has just defined is found a moment after the others.
    async fn bound(&self, policies: &[Target], targets: &[Target]) -> Result<Vec<Bound>, Failure> {
        let mut all: BTreeMap<String, Vec<Bound>> =
            policies.iter().map(|p| (p.name.clone(), Vec::new())).collect();
        let source = Source::all(bindings());
        let search = find(&self.wds, &source, |binding| {
            if let Some(known) = binding.metadata.name.as_ref().and_then(|name| all.get_mut(name)) {
                *known = bound_by(&binding, targets);
            }
            (all.values().all(|b| !b.is_empty()) && missed(&all, targets).is_empty()).then_some(())
        });
        let complete = tokio::time::timeout(self.timeout, search).await.is_ok();
        if complete {
            return Ok(all.into_values().flatten().collect());
        }
        let after = format!("after {} s", self.timeout.as_secs());
        Err(match all.iter().find(|(_, bound)| bound.is_empty()) {
            Some((policy, _)) => Failure::new(
                Exit::TimedOut,
                format!("waiting for the Binding of policy {policy}"),
                format!("it names no cluster, or none of the objects, {after}"),
            )
            .hint("see the policy's clusterSelectors and downsync clauses"),
            None => Failure::new(
                Exit::NotInState,
                "delivering the manifests",
                format!("no policy selects {} {after}", missed(&all, targets).join(", ")),
            )
            .hint("see the policies' downsync clauses"),
        })
    }

    async fn deliveries(
        &self,
        targets: &[Target],
        bound: &[Bound],
        report: &mut Report,
        out: &Printer,
    ) -> Result<(), Failure> {
        let pairs: BTreeSet<(usize, &str)> =
            bound.iter().flat_map(|b| b.destinations.iter().map(move |d| (b.target, d.as_str()))).collect();
        let waits: FuturesUnordered<_> = pairs
            .into_iter()
            .filter_map(|(i, cluster)| Some((targets.get(i)?, cluster)))
            .map(|(target, cluster)| self.delivered(target, cluster))
            .collect();
        let done: Vec<_> = waits.collect().await;
        for outcome in done {
            let (label, cluster, took) = outcome?;
            out.step(&format!("{label} is in {cluster}"), Some(took));
            report.delivered.push((label, cluster, took));
        }
        Ok(())
    }

    /// Waits until one object is in one cluster, with everything that its manifest says.
    async fn delivered(&self, target: &Target, cluster: &str) -> Result<(String, String, Duration), Failure> {
        let what = format!("waiting for {} in {cluster}", target.label());
        let (client, wanted) = (self.cluster(cluster, &what)?, &target.wanted.data);
        let arrived = |o: &DynamicObject| target.changes_on_the_way || covers(&o.data, wanted);
        self.until(client, &target.source(), &arrived, &what).await?;
        Ok((target.label(), cluster.to_owned(), target.applied.elapsed()))
    }

    async fn statuses(
        &self,
        targets: &[Target],
        bound: &[Bound],
        report: &mut Report,
        out: &Printer,
    ) -> Result<(), Failure> {
        for b in bound {
            let Some(target) = targets.get(b.target).filter(|t| t.is_workload()) else { continue };
            for cluster in &b.destinations {
                let label = target.label();
                if report.statuses.iter().any(|(l, c, _)| *l == label && c == cluster) {
                    continue;
                }
                self.reported(target, cluster).await?;
                let took = target.applied.elapsed();
                out.step(&format!("{label} is ready in {cluster} (simulated), the ITS knows"), Some(took));
                report.statuses.push((label, cluster.clone(), took));
            }
            if b.singleton && b.destinations.len() == 1 {
                self.returned(target, &b.policy, &b.destinations).await?;
                let took = target.applied.elapsed();
                out.step(&format!("{}'s status is back in the WDS", target.label()), Some(took));
                report.statuses.push((target.label(), "WDS".into(), took));
            }
        }
        Ok(())
    }

    /// Waits until the workload is ready in its cluster and a WorkStatus in the ITS says the same.
    async fn reported(&self, target: &Target, cluster: &str) -> Result<(), Failure> {
        let what = format!("waiting for the status of {} in {cluster}", target.label());
        let (client, kind) = (self.cluster(cluster, &what)?, &target.resource.kind);
        let live = self.until(client, &target.source(), &|o| is_ready(kind, o), &what).await?;
        let resource = ApiResource { kind: "WorkStatus".into(), plural: "workstatuses".into(), ..bindings() };
        let statuses = Source::all(resource).namespaced(cluster);
        let name = self.work_status_name(&statuses, target, &what).await?;
        let what = format!("{what} in the ITS");
        self.until(self.its.clone(), &statuses.named(&name), &|o| same_status(&live, o), &what).await?;
        Ok(())
    }

    /// Waits for the WorkStatus about an object and returns its name.
    async fn work_status_name(
        &self,
        statuses: &Source,
        target: &Target,
        what: &str,
    ) -> Result<String, Failure> {
        let about = |o: &DynamicObject| {
            let source = o.data.pointer("/spec/sourceRef");
            let is = |key: &str, want: &str| {
                source.and_then(|s| s.get(key)).and_then(Value::as_str).unwrap_or_default() == want
            };
            is("name", &target.name)
                && is("kind", &target.resource.kind)
                && is("namespace", target.namespace.as_deref().unwrap_or_default())
        };
        let search = find(&self.its, statuses, |o| about(&o).then_some(o.metadata.name).flatten());
        match tokio::time::timeout(self.timeout, search).await {
            Ok(Some(name)) => Ok(name),
            _ => Err(Failure::new(Exit::TimedOut, what, "the ITS has no WorkStatus of it")),
        }
    }

    async fn returned(&self, target: &Target, policy: &str, destinations: &[String]) -> Result<(), Failure> {
        let what = format!("waiting for policy {policy} to bring back the status of {}", target.label());
        let cluster = destinations.first().map(String::as_str).unwrap_or_default();
        let live = target
            .api(self.cluster(cluster, &what)?)
            .get(&target.name)
            .await
            .map_err(|e| from_kube(&what, &e))?;
        self.until(self.wds.clone(), &target.source(), &|o| same_status(&live, o), &what).await?;
        Ok(())
    }

    fn cluster(&self, name: &str, what: &str) -> Result<Client, Failure> {
        let found = self.clusters.get(name).cloned();
        found.ok_or_else(|| {
            Failure::new(Exit::NotFound, what, format!("{name} is not a cluster of this demo"))
        })
    }

    /// Watches the object of `source` until `holds` and returns it as read then. A kind that was delivered a moment ago and
    /// is not served yet is waited for.
    async fn until(
        &self,
        client: Client,
        source: &Source,
        holds: &(dyn Fn(&DynamicObject) -> bool + Sync),
        what: &str,
    ) -> Result<DynamicObject, Failure> {
        let wait = find(&client, source, |o| holds(&o).then_some(o));
        match tokio::time::timeout(self.timeout, wait).await {
            Ok(Some(object)) => Ok(object),
            Ok(None) => Err(Failure::new(Exit::NotFound, what, "it is gone")),
            Err(_) => {
                let one = ListParams::default().fields(&source.field_selector);
                let there = api(client.clone(), source).list(&one).await;
                let why = match there {
                    Ok(list) if list.items.is_empty() => "it is not there",
                    Ok(_) => "it is there, but not as wanted",
                    Err(kube::Error::Api(status)) if status.code == 404 => "its kind is not served there",
                    Err(_) => "the space does not answer",
                };
                Err(Failure::new(Exit::TimedOut, what, format!("{why} after {} s", self.timeout.as_secs())))
            }
        }
    }
}

/// Returns whether an object arrives in another form than it was applied in, because of one of the rules or of its own annotation.
pub(crate) fn changes_on_the_way(target: &Target, rules: &[Target]) -> bool {
    let annotations = target.wanted.metadata.annotations.as_ref();
    let expands =
        annotations.and_then(|all| all.get(EXPAND_TEMPLATES_ANNOTATION)).is_some_and(|value| value == "true");
    let is_about = |rule: &Target| {
        let text = |key: &str| rule.wanted.data.pointer(key).and_then(Value::as_str).unwrap_or_default();
        rule.resource.kind == "CustomTransform"
            && text("/spec/apiGroup") == target.resource.group
            && text("/spec/resource") == target.resource.plural
    };
    expands || rules.iter().any(is_about)
}

fn api(client: Client, source: &Source) -> Api<DynamicObject> {
    match source.namespace.as_str() {
        "" => Api::all_with(client, &source.resource),
        namespace => Api::namespaced_with(client, namespace, &source.resource),
    }
}

/// Returns what a Binding says about the demo's objects; nothing if it has no destination.
fn bound_by(binding: &DynamicObject, targets: &[Target]) -> Vec<Bound> {
    let destinations: Vec<String> = list(binding, "/spec/destinations")
        .iter()
        .filter_map(|d| Some(d.get("clusterId")?.as_str()?.to_owned()))
        .collect();
    if destinations.is_empty() {
        return Vec::new();
    }
    let policy = binding.metadata.name.clone().unwrap_or_default();
    let bound = objects_of(binding, targets).into_iter().map(|(target, singleton)| Bound {
        policy: policy.clone(),
        target,
        destinations: destinations.clone(),
        singleton,
    });
    bound.collect()
}

/// Returns the objects that no Binding lists.
fn missed(all: &BTreeMap<String, Vec<Bound>>, targets: &[Target]) -> Vec<String> {
    let bound: BTreeSet<usize> = all.values().flatten().map(|b| b.target).collect();
    let missing = targets.iter().enumerate().filter(|(i, _)| !bound.contains(i));
    missing.map(|(_, target)| target.label()).collect()
}

/// Returns the indexes of the objects that a Binding lists, with whether it requests their status.
fn objects_of(binding: &DynamicObject, targets: &[Target]) -> Vec<(usize, bool)> {
    let text = |o: &Value, key: &str| o.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let entries = ["/spec/workload/clusterScope", "/spec/workload/namespaceScope"];
    let mut found = Vec::new();
    for entry in entries.iter().flat_map(|path| list(binding, path)) {
        let position = targets.iter().position(|t| {
            text(entry, "group") == t.resource.group
                && text(entry, "resource") == t.resource.plural
                && text(entry, "name") == t.name
                && text(entry, "namespace") == t.namespace.clone().unwrap_or_default()
        });
        if let Some(index) = position {
            let singleton = entry.get("wantSingletonReportedState").and_then(Value::as_bool) == Some(true);
            found.push((index, singleton));
        }
    }
    found
}

fn list<'a>(object: &'a DynamicObject, path: &str) -> &'a [Value] {
    object.data.pointer(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns whether `live` has everything that `wanted` says. Additions of the server do not count.
fn covers(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            wanted.iter().all(|(k, w)| k == "status" || live.get(k).is_some_and(|l| covers(l, w)))
        }
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len() && live.iter().zip(wanted).all(|(l, w)| covers(l, w))
        }
        _ => live == wanted,
    }
}

/// Returns whether `other` has the status of `live`.
fn same_status(live: &DynamicObject, other: &DynamicObject) -> bool {
    let wanted = live.data.get("status").unwrap_or(&Value::Null);
    other.data.get("status").is_some_and(|status| covers(status, wanted))
}

/// Returns whether a workload of a kind has the status that a healthy cluster would show.
fn is_ready(kind: &str, object: &DynamicObject) -> bool {
    let number = |path: &str| object.data.pointer(path).and_then(Value::as_i64);
    let wanted = number("/spec/replicas").unwrap_or(1);
    match kind {
        "Job" => number("/status/succeeded").unwrap_or(0) >= number("/spec/completions").unwrap_or(1),
        "DaemonSet" => {
            number("/status/desiredNumberScheduled").is_some()
                && number("/status/numberReady") == number("/status/desiredNumberScheduled")
        }
        _ => {
            number("/status/readyReplicas").unwrap_or(0) == wanted
                && number("/status/observedGeneration").is_some()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn live_object_covers_its_manifest() {
        let wanted = json!({"spec": {"replicas": 2, "ports": [{"port": 80}]}});
        let cases = [
            (
                json!({"spec": {"replicas": 2, "ports": [{"port": 80, "protocol": "TCP"}]}, "status": {}}),
                true,
            ),
            (json!({"spec": {"replicas": 3, "ports": [{"port": 80}]}}), false),
            (json!({"spec": {"replicas": 2, "ports": []}}), false),
            (json!({}), false),
        ];
        for (live, expected) in cases {
            assert_eq!(covers(&live, &wanted), expected, "{live}");
        }
    }
}
