//! The status that the agent reports about its cluster (OCM-046, OCM-051, OCM-054, OCM-055).

use std::{sync::Arc, time::Duration};

use apis::ocm::{
    ClusterClaim, ClusterProperty, ManagedCluster,
    cluster::{CONDITION_AVAILABLE, CONDITION_CLOCK, CONDITION_HUB_ACCEPTED, CONDITION_JOINED},
};
use k8s_openapi::{
    api::{core::v1::Node, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::Condition,
    jiff::Timestamp,
};
use runtime::{
    Source, Store, TaskError, Tasks, Watched,
    failure::is_clash,
    informer,
    rest::{Gvr, Rest},
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    Agent,
    lease::renew_interval,
    managed_clusters,
    probe::{self, Health, Verdict},
    report as facts,
};
use ocm_shared::{
    cluster::status,
    conditions::{self, condition},
};

/// The known state of the own cluster.
struct Own {
    nodes: Store<Node>,
    claims: Store<ClusterClaim>,
    /// Followed only with the gate ClusterProperty.
    properties: Store<ClusterProperty>,
}

/// The result of a pass.
enum Pass {
    /// Check again after the usual period.
    Done,
    /// Check again soon: the cluster may be unhealthy.
    Blip,
}

impl Agent {
    /// Works with a valid certificate, until `stop` or until the certificate is lost (2.6 to 2.9).
    pub(super) async fn run_joined(self: Arc<Self>, stop: &CancellationToken) -> Result<(), TaskError> {
        let hub = Rest::with_manager(self.config.connection.client(), "registration-agent");
        if !self.wait_for_acceptance(&hub, stop).await {
            return Ok(());
        }
        let mut tasks = Tasks::new(stop);
        let (intervals, beaten) = watch::channel(None);
        let source = Source::of::<ManagedCluster>().fields(format!("metadata.name={}", self.names.cluster));
        let (me, client, token) = (self.clone(), hub.client().clone(), tasks.token().clone());
        tasks.spawn_endless("managedcluster", async move {
            let agent = me.clone();
            let on = move |_| {
                let mine = agent.mine.get("", &agent.names.cluster);
                agent.note_acceptance(mine.as_deref());
                let now = renew_interval(mine.as_deref());
                intervals.send_if_modified(|old| std::mem::replace(old, now) != now);
                agent.look.notify_one();
                agent.rejudge.notify_one();
            };
            informer::run(client, source, me.mine.clone(), on, token).await;
        });
        let token = tasks.token().clone();
        tasks.spawn_endless("lease", self.clone().renew(hub.clone(), beaten, token));
        let own = Own { nodes: Store::default(), claims: Store::default(), properties: Store::default() };
        self.follow(&mut tasks, Source::of::<Node>(), &own.nodes);
        self.follow(&mut tasks, Source::of::<ClusterClaim>(), &own.claims);
        if self.config.cluster_properties {
            self.follow(&mut tasks, Source::of::<ClusterProperty>(), &own.properties);
        }
        let token = tasks.token().clone();
        tasks.spawn_endless("add-ons", super::addons::run(self.clone(), hub.clone(), token));
        let (me, to, token) = (self.clone(), hub, tasks.token().clone());
        tasks.spawn_endless("status", async move { me.report_forever(&to, &own, &token).await });
        self.keep_certificate_fresh(&mut tasks);
        tasks.finish().await
    }

    fn follow<T: Watched>(self: &Arc<Self>, tasks: &mut Tasks, source: Source, store: &Store<T>) {
        let (me, client, store, token) =
            (self.clone(), self.cluster.client().clone(), store.clone(), tasks.token().clone());
        tasks.spawn_endless(source.resource.plural.clone(), async move {
            informer::run(client, source, store, |_| me.look.notify_one(), token).await;
        });
    }

    async fn report_forever(&self, hub: &Rest, own: &Own, stop: &CancellationToken) {
        let timers = &self.config.timers;
        let mut ill_since: Option<Timestamp> = None;
        let mut backoff = runtime::Backoff::new(Duration::from_millis(20), Duration::from_secs(30));
        while !stop.is_cancelled() {
            let passed = tokio::select! {
                passed = self.pass(hub, own, &mut ill_since) => passed,
                () = stop.cancelled() => return,
            };
            let pause = match passed {
                Ok(Pass::Done) => {
                    backoff.reset();
                    timers.health
                }
                Ok(Pass::Blip) => timers.recheck,
                Err(error) => {
                    if !is_clash(&error) {
                        tracing::warn!(%error, cluster = self.names.cluster, "reporting the cluster's state");
                    }
                    backoff.pause()
                }
            };
            tokio::select! {
                () = self.look.notified() => {}
                () = sleep(pause) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    async fn pass(
        &self,
        hub: &Rest,
        own: &Own,
        ill_since: &mut Option<Timestamp>,
    ) -> Result<Pass, kube::Error> {
        let Some(cluster) = self.mine.get("", &self.names.cluster) else { return Ok(Pass::Done) };
        match status(&cluster, CONDITION_HUB_ACCEPTED) {
            Some("True") => {}
            Some(_) => {
                // The cluster is denied: there is nothing to do until that changes.
                self.config.ready.send_replace(true);
                return Ok(Pass::Done);
            }
            None => return Ok(Pass::Done),
        }
        if status(&cluster, CONDITION_CLOCK) == Some("False") {
            tracing::error!(
                cluster = self.names.cluster,
                "the clocks of this agent and of its hub differ too much: nothing is reported until they agree"
            );
            return Ok(Pass::Done);
        }
        let health = look(&self.cluster).await;
        let verdict = probe::judge(ill_since, health, self.config.timers.blip, self.now());
        if verdict == Verdict::Blip {
            return Ok(Pass::Blip);
        }
        let mut news = vec![condition(
            CONDITION_JOINED,
            "True",
            "ManagedClusterJoined",
            "Managed cluster joined",
            self.now(),
        )];
        let mut patch = json!({});
        match verdict {
            Verdict::Unavailable(message) => news.push(condition(
                CONDITION_AVAILABLE,
                "False",
                "ManagedClusterKubeAPIServerUnavailable",
                message,
                self.now(),
            )),
            _ => {
                news.push(condition(
                    CONDITION_AVAILABLE,
                    "True",
                    "ManagedClusterAvailable",
                    "Managed cluster is available",
                    self.now(),
                ));
                self.describe(&cluster, own, &mut patch).await?;
                if let Some(reported) = self.managed_namespaces(&cluster).await? {
                    patch["managedNamespaces"] = json!(reported);
                }
            }
        }
        let changed = write(hub, &cluster, news, patch).await?;
        if let Some(available) = changed {
            self.tell(hub, &available).await;
        }
        if is_settled(&cluster) && own.nodes.is_synced() && own.claims.is_synced() {
            self.config.ready.send_replace(true);
        }
        Ok(Pass::Done)
    }

    /// Returns version, resources and claims, as far as they differ from what the hub has.
    async fn describe(
        &self,
        cluster: &ManagedCluster,
        own: &Own,
        patch: &mut Value,
    ) -> Result<(), kube::Error> {
        let have = cluster.status.clone().unwrap_or_default();
        let version = self.cluster.client().apiserver_version().await?.git_version;
        if have.version.kubernetes != version {
            patch["version"] = json!({"kubernetes": version});
        }
        if own.nodes.is_synced() {
            let nodes = own.nodes.list();
            let (mut capacity, allocatable) = facts::resources(nodes.iter().map(AsRef::as_ref));
            for (name, text) in &have.capacity {
                // Other writers may add to the capacity.
                capacity.entry(name.clone()).or_insert_with(|| text.clone());
            }
            if !facts::same(&capacity, &have.capacity) {
                patch["capacity"] = json!(capacity);
            }
            if !facts::same(&allocatable, &have.allocatable) {
                let mut new = json!(allocatable);
                for gone in have.allocatable.keys().filter(|name| !allocatable.contains_key(*name)) {
                    new[gone] = Value::Null;
                }
                patch["allocatable"] = new;
            }
        }
        let known = own.claims.is_synced() && (own.properties.is_synced() || !self.config.cluster_properties);
        if known && status(cluster, CONDITION_JOINED) == Some("True") {
            let (claims, properties) = (own.claims.list(), own.properties.list());
            let (list, cut) = facts::claims(
                claims.iter().map(AsRef::as_ref),
                properties.iter().map(AsRef::as_ref),
                &self.config.reserved_claim_suffixes,
                self.config.max_custom_claims,
            );
            if list != have.cluster_claims {
                if cut {
                    tracing::warn!(
                        cluster = self.names.cluster,
                        most = self.config.max_custom_claims,
                        "claims were left out"
                    );
                }
                patch["clusterClaims"] = json!(list);
            }
        }
        Ok(())
    }

    /// Emits an Event in the mailbox on the hub; a lost Event does no harm.
    async fn tell(&self, hub: &Rest, available: &Condition) {
        let (type_, reason) =
            if available.status == "True" { ("Normal", "Available") } else { ("Warning", "Unavailable") };
        let cluster = self.names.cluster.as_str();
        let body = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"generateName": format!("{cluster}."), "namespace": cluster},
            "eventTime": ocm_shared::cluster::micro(self.now()), "type": type_, "reason": reason, "action": reason,
            "note": available.message, "reportingController": "klusterlet-agent", "reportingInstance": "klusterlet-agent",
            "regarding": {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
                "name": cluster, "namespace": cluster}});
        let gvr = Gvr::of::<Event>();
        if let Err(error) = hub.create::<Value>(&gvr, cluster, body.to_string().into_bytes()).await {
            tracing::debug!(cluster, %error, "no event");
        }
    }
}

/// Returns whether the hub has processed everything: the cluster is available, its clock compared, its taint
/// removed.
fn is_settled(cluster: &ManagedCluster) -> bool {
    let taints = &cluster.spec.taints;
    status(cluster, CONDITION_AVAILABLE).is_some_and(|available| available != "Unknown")
        && status(cluster, CONDITION_CLOCK).is_some()
        && !taints.iter().any(|taint| taint.key == ocm_shared::cluster::UNREACHABLE)
}

/// Checks the health of the cluster.
async fn look(cluster: &Rest) -> Health {
    let mut bad = Health::Bad(0, String::new());
    for path in ["/livez", "/healthz"] {
        let Ok(request) = http::Request::get(path).body(Vec::new()) else { break };
        match cluster.client().request_text(request).await {
            Ok(_) => return Health::Ok,
            Err(kube::Error::Api(status)) => {
                bad = Health::Bad(status.code, status.message.clone());
                if !matches!(status.code, 404 | 403) {
                    break;
                }
            }
            Err(error) => {
                bad = Health::Bad(0, error.to_string());
                break;
            }
        }
    }
    bad
}

/// Writes conditions, if any changed (OCM-004).
pub(super) async fn report(
    hub: &Rest,
    cluster: &ManagedCluster,
    news: Vec<Condition>,
) -> Result<(), kube::Error> {
    write(hub, cluster, news, json!({})).await.map(drop)
}

/// Writes conditions and other parts of the status, if any changed. The condition about availability counts
/// as changed only if its status did.
async fn write(
    hub: &Rest,
    cluster: &ManagedCluster,
    news: Vec<Condition>,
    mut patch: Value,
) -> Result<Option<Condition>, kube::Error> {
    let old = cluster.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    let mut list = old.clone();
    let mut turned = None;
    for condition in news {
        if condition.type_ == CONDITION_AVAILABLE
            && status(cluster, CONDITION_AVAILABLE) != Some(condition.status.as_str())
        {
            turned = Some(condition.clone());
        }
        conditions::set(&mut list, condition);
    }
    if list != old {
        patch["conditions"] = json!(list);
    }
    if patch.as_object().is_none_or(serde_json::Map::is_empty) {
        return Ok(None);
    }
    let meta = &cluster.metadata;
    let body =
        json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": patch});
    let name = meta.name.as_deref().unwrap_or_default();
    hub.merge_status::<Value>(&managed_clusters(), "", name, &body).await?;
    Ok(turned)
}
