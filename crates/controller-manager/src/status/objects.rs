//! Writes the decided statuses into workload objects.

use std::{sync::Arc, time::Duration};

use apis::{
    condition,
    constants::STATUS_MANAGER,
    control::{Binding, StatusCollector},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use runtime::{
    Next, Store,
    failure::{self, message_of},
    rest::{Gvr, Rest},
};
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::{
    aggregate::aggregate,
    collectors::{Collectors, availability},
    combined::Pair,
    decision::{Decision, LabelPatch, Plan, Reported, decide, is_settled, plan},
    error::StatusError,
    reports::Reports,
    results::Combiner,
    settled::{PlanInputs, SettledObjects},
};
use crate::{
    binding::world::Request,
    identity::{ObjectId, PolicyName},
    shared::{Shared, StatusItem},
};

/// How long until a refused status is tried again, if nothing changes before.
const REFUSED_AGAIN: Duration = Duration::from_secs(60);

/// Returns whether the server understood and refused the request, and would refuse it again.
fn is_refusal(error: &kube::Error) -> bool {
    failure::is_invalid(error) || failure::is_forbidden(error) || failure::code_of(error) == 413
}

fn version_of(object: &Value) -> &str {
    object.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default()
}

/// Returns reported state into objects.
pub(super) struct StatusReturner {
    rest: Rest,
    shared: Arc<Shared>,
    reports: Arc<Reports>,
    collectors: Arc<Collectors>,
    specs: Store<StatusCollector>,
    combiner: Arc<Combiner>,
    settled: SettledObjects,
}

impl StatusReturner {
    pub(super) fn new(
        wds: Client,
        shared: Arc<Shared>,
        reports: Arc<Reports>,
        collectors: Arc<Collectors>,
        specs: Store<StatusCollector>,
        combiner: Arc<Combiner>,
    ) -> Self {
        let rest = Rest::with_manager(wds, STATUS_MANAGER);
        Self { rest, shared, reports, collectors, specs, combiner, settled: SettledObjects::default() }
    }

    /// Enqueues every object that has or may have had reported state (KS-152).
    pub(super) fn begin(&self) {
        for collector in self.specs.list() {
            let name = collector.metadata.name.as_deref().unwrap_or_default();
            self.collectors.put(name, Some(&collector));
            self.shared.enqueue_status(StatusItem::Collector(name.into()));
        }
        self.combiner.begin();
        let world = self.shared.world.lock();
        let none = Reported::Nothing;
        let all: Vec<ObjectId> = world
            .objects()
            .filter(|(id, object)| {
                let label = |key: &str| object.metadata.labels.get(key).map(|value| &**value);
                world.is_requested(id) || !is_settled(label, &Request::default(), &none)
            })
            .map(|(id, _)| id.clone())
            .collect();
        drop(world);
        for id in all {
            self.shared.enqueue_status(StatusItem::Object(id));
        }
        for key in self.shared.bindings.keys() {
            self.shared.enqueue_status(StatusItem::Binding(key.name.clone()));
        }
    }

    pub(super) async fn sync(&self, item: StatusItem) -> Result<Next, StatusError> {
        match item {
            StatusItem::Object(id) => return Ok(self.sync_object(&id).await?),
            StatusItem::Binding(name) => self.sync_binding(&name).await?,
            StatusItem::Collector(name) => self.sync_collector(&name).await?,
            StatusItem::Pair(pair) => return self.combiner.sync_pair(&pair).await,
            StatusItem::Published(key) => return self.combiner.sync_published(&key).await,
            StatusItem::Sweep => self.combiner.sweep(),
        }
        Ok(Next::OnChange)
    }

    /// Processes a StatusCollector: its status, and every pair that requests it (KS-170, KS-173).
    async fn sync_collector(&self, name: &str) -> Result<(), kube::Error> {
        let now = self.specs.get("", name);
        if self.collectors.put(name, now.as_deref()) {
            let (policies, pairs) = {
                let world = self.shared.world.lock();
                let policies = world.policies_with_collector(name);
                let pairs: Vec<Pair> = policies
                    .iter()
                    .filter_map(|policy| Some((policy, world.resolution(policy)?)))
                    .flat_map(|(policy, resolution)| {
                        let asked = resolution.objects().iter();
                        let asked = asked.filter(|(_, entry)| entry.modulation.collectors.contains(name));
                        asked.map(|(id, _)| Pair { policy: policy.clone(), object: id.clone() })
                    })
                    .collect();
                (policies, pairs)
            };
            for policy in policies {
                self.shared.enqueue_status(StatusItem::Binding(policy));
            }
            for pair in pairs {
                self.shared.enqueue_status(StatusItem::Pair(pair));
            }
        }
        let Some((now, status)) =
            now.and_then(|now| Some((now.clone(), self.collectors.status(name, &now)?)))
        else {
            return Ok(());
        };
        let errors = if status.errors.is_empty() { Value::Null } else { json!(status.errors) };
        let patch = json!({
            "metadata": {"uid": now.metadata.uid},
            "status": {"observedGeneration": status.observed_generation, "errors": errors},
        });
        let gvr = Gvr::of::<StatusCollector>();
        match self.rest.merge_status::<IgnoredAny>(&gvr, "", name, &patch).await {
            Err(error) if failure::is_not_found(&error) => Ok(()),
            done => done.map(|_| ()),
        }
    }

    /// Processes the status of an object. A status that the server refuses is reported in the status of the
    /// policies that request it, and retried from time to time, because the server may accept it one day.
    async fn sync_object(&self, id: &ObjectId) -> Result<Next, kube::Error> {
        match self.return_status(id).await {
            Err(error) if is_refusal(&error) => {
                tracing::debug!(object = %id, %error, "a reported status is refused");
                self.note_refusal(id, Some(&message_of(&error)));
                Ok(Next::After(REFUSED_AGAIN))
            }
            Err(error) => Err(error),
            Ok(()) => {
                self.note_refusal(id, None);
                Ok(Next::OnChange)
            }
        }
    }

    fn note_refusal(&self, id: &ObjectId, why: Option<&str>) {
        let concerned = self.shared.world.lock().put_refusal(id, why).to_vec();
        for policy in concerned {
            self.shared.report(&policy);
        }
    }

    /// Writes the status if necessary. Remembers the state with which the object is as it should be, so that
    /// the object is read once for each change: the event of our last write causes no request.
    async fn return_status(&self, id: &ObjectId) -> Result<(), kube::Error> {
        let known = {
            let world = self.shared.world.lock();
            let served = world.served(id.resource()).zip(world.object(id));
            served.map(|(served, object)| {
                let gvr = Gvr::new(&id.resource().group, &served.version, &id.resource().plural);
                (world.request(id), gvr, object.clone())
            })
        };
        let Some((request, gvr, object)) = known else {
            self.settled.forget(id);
            return Ok(());
        };
        let reported = match decide(&request) {
            Decision::Copy(cluster) => self.reports.reported(id, &cluster),
            Decision::Aggregate => self.aggregated(id, &request),
            Decision::Clear => Reported::Nothing,
        };
        let label = |key: &str| object.metadata.labels.get(key).map(|value| &**value);
        if is_settled(label, &request, &reported) {
            self.settled.forget(id);
            return Ok(());
        }
        let wanted = PlanInputs::new(&request, &reported);
        if self.settled.is(id, &object.metadata.resource_version, &wanted) {
            return Ok(());
        }
        let plan = |live: &Value| plan(id.resource(), live, &request, &reported);
        let after = match self.rest.get::<Value>(&gvr, id.namespace(), id.name()).await {
            Ok(live) => self.carry_out(&gvr, id, plan(&live)).await.map(|written| written.unwrap_or(live)),
            Err(error) => Err(error),
        };
        match after {
            // Another client may have written in between; then the object's next event is processed.
            Ok(after) if plan(&after).is_empty() => self.settled.put(id, version_of(&after), wanted),
            Ok(_) => {}
            Err(error) if failure::is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn aggregated(&self, id: &ObjectId, request: &Request) -> Reported {
        let reports: Vec<_> = request.clusters.iter().map(|wec| (wec, self.reports.get(id, wec))).collect();
        let statuses = reports.iter().map(|(wec, report)| {
            ((*wec).clone(), report.as_ref().and_then(|report| report.status.as_deref()))
        });
        aggregate(id.resource(), &statuses.collect())
            .map_or(Reported::Nothing, |status| Reported::Aggregated(Arc::new(status)))
    }

    /// Does the writes in this order (KS-153). Returns the object after the last write, if there was one.
    async fn carry_out(&self, gvr: &Gvr, id: &ObjectId, plan: Plan) -> Result<Option<Value>, kube::Error> {
        let mut after = None;
        if !plan.before.is_empty() {
            after = Some(self.label(gvr, id, &plan.before).await?);
        }
        if let Some(status) = plan.status {
            after = Some(self.write_status(gvr, id, status).await?);
        }
        if !plan.after.is_empty() {
            after = Some(self.label(gvr, id, &plan.after).await?);
        }
        Ok(after)
    }

    async fn label(&self, gvr: &Gvr, id: &ObjectId, labels: &LabelPatch) -> Result<Value, kube::Error> {
        let labels: Map<String, Value> =
            labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        let patch = json!({"metadata": {"labels": labels}});
        self.rest.merge(gvr, id.namespace(), id.name(), &patch).await
    }

    /// Replaces the whole status, so that keys that are no longer reported are removed. Without a status
    /// subresource, the status is written like any other field (KS-155).
    async fn write_status(&self, gvr: &Gvr, id: &ObjectId, status: Value) -> Result<Value, kube::Error> {
        let (namespace, name) = (id.namespace(), id.name());
        let patch = json!([{"op": "add", "path": "/status", "value": status}]);
        match self.rest.json_patch_status(gvr, namespace, name, patch).await {
            Err(error) if failure::is_not_found(&error) || failure::code_of(&error) == 405 => {}
            done => return done,
        }
        let mut live: Value = self.rest.get(gvr, namespace, name).await?;
        if live.get("status") == Some(&status) {
            return Ok(live);
        }
        if let Some(object) = live.as_object_mut() {
            object.insert("status".into(), status);
        }
        let body = serde_json::to_vec(&live).map_err(kube::Error::SerdeError)?;
        self.rest.replace(gvr, namespace, name, body).await
    }

    /// Sets this controller's condition of a Binding; fields that the transport controller wrote stay
    /// (KS-013).
    async fn sync_binding(&self, name: &PolicyName) -> Result<(), kube::Error> {
        let Some(binding) = self.shared.bindings.get("", name) else { return Ok(()) };
        if binding.is_going() {
            return Ok(());
        }
        let asked = self.shared.world.lock().collectors_of(name);
        let wanted =
            availability(&self.collectors.missing(&asked), Time(k8s_openapi::jiff::Timestamp::now()));
        let mut conditions = binding.status.clone().unwrap_or_default().conditions;
        if !condition::set(&mut conditions, wanted) {
            return Ok(());
        }
        let mut status = json!({"conditions": conditions});
        if binding.status.is_none() {
            // The schema requires the field, and the resourceVersion below prevents that a value of another
            // writer is overwritten.
            status["observedGeneration"] = json!(0);
        }
        let patch = json!({
            "metadata": {"resourceVersion": binding.metadata.resource_version},
            "status": status,
        });
        let gvr = Gvr::of::<Binding>();
        match self.rest.merge_status::<IgnoredAny>(&gvr, "", name, &patch).await {
            Err(error) if failure::is_not_found(&error) => Ok(()),
            done => done.map(|_| ()),
        }
    }
}
