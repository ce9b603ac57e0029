//! Membership of clusters: acceptance, denial, departure (OCM-043, OCM-044, OCM-058, OCM-059).

use apis::{
    constants::{
        AUTO_ACCEPTED_ANNOTATION, CLUSTER_API_FINALIZER, CLUSTER_CLEANUP_FINALIZER, CLUSTER_NAME_LABEL,
    },
    control::WorkStatus,
    ocm::{ManagedCluster, cluster::CONDITION_HUB_ACCEPTED},
};
use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use runtime::{
    Next,
    failure::{is_clash, is_not_found, message_of},
    rest::{Gvr, Removal},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Hub, addons,
    collect::{self, Step},
    name_of, works,
};
use ocm_shared::{
    cluster::status,
    conditions::condition,
    rbac::{self, Take},
    reserved::{complaint, reserved},
};

/// Label by which older releases find a mailbox namespace.
const OLD_MAILBOX_LABEL: &str = "cluster.open-cluster-management.io/managedCluster";

/// The next step for a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MembershipStep {
    /// It is being deleted.
    Leaving,
    /// It lacks the finalizer that keeps it until its mailbox is empty.
    Unprotected,
    /// The hub accepts it automatically, once.
    Welcome,
    /// It is accepted.
    Member,
    /// It was accepted before and is not any more.
    Denied,
    /// It was never accepted, or has been denied.
    Outside,
}

/// Returns the next step (OCM-043, OCM-044, OCM-058).
fn membership_step(cluster: &ManagedCluster, auto_accept: bool, cleanup: bool) -> MembershipStep {
    let meta = &cluster.metadata;
    let welcomed = meta.annotations.iter().flatten().any(|(key, _)| key == AUTO_ACCEPTED_ANNOTATION);
    if meta.deletion_timestamp.is_some() {
        MembershipStep::Leaving
    } else if cleanup && !has_finalizer(cluster, CLUSTER_CLEANUP_FINALIZER) {
        MembershipStep::Unprotected
    } else if auto_accept && !welcomed {
        MembershipStep::Welcome
    } else if cluster.spec.hub_accepts_client {
        MembershipStep::Member
    } else if is_denied(cluster) || !was_accepted(cluster) {
        MembershipStep::Outside
    } else {
        MembershipStep::Denied
    }
}

/// Returns whether permissions may have been granted: the condition says so, or the finalizer that is added
/// before them exists.
fn was_accepted(cluster: &ManagedCluster) -> bool {
    status(cluster, CONDITION_HUB_ACCEPTED) == Some("True") || has_finalizer(cluster, CLUSTER_API_FINALIZER)
}

/// Returns whether the cluster was denied and all its permissions have been removed.
pub fn is_denied(cluster: &ManagedCluster) -> bool {
    let conditions = cluster.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
    conditions.iter().any(|c| c.type_ == CONDITION_HUB_ACCEPTED && c.reason == "HubClusterAdminDenied")
}

fn has_finalizer(cluster: &ManagedCluster, finalizer: &str) -> bool {
    cluster.metadata.finalizers.iter().flatten().any(|have| have == finalizer)
}

/// Returns the complete list of finalizers, as a merge patch needs it (OCM-005).
fn with_finalizer(cluster: &ManagedCluster, finalizer: &str) -> Value {
    let all = cluster.metadata.finalizers.iter().flatten().map(String::as_str);
    let all: Vec<&str> = all.chain([finalizer]).collect();
    json!({"metadata": {"finalizers": all}})
}

fn without_finalizers(cluster: &ManagedCluster, ours: &[&str]) -> Value {
    let all = cluster.metadata.finalizers.iter().flatten();
    let rest: Vec<&String> = all.filter(|have| !ours.contains(&have.as_str())).collect();
    json!({"metadata": {"finalizers": rest}})
}

fn accepted(status: &str, reason: &str, message: &str, now: Timestamp) -> Condition {
    condition(CONDITION_HUB_ACCEPTED, status, reason, message, now)
}

impl Hub {
    pub(super) async fn membership(&self, name: &str) -> Result<Next, kube::Error> {
        let Some(cluster) = self.know.cluster(name) else { return self.vanished(name).await };
        self.gone.lock().remove(name);
        self.deleted.lock().remove(name);
        match membership_step(&cluster, self.config.auto_accept, self.config.cleanup) {
            MembershipStep::Leaving => self.leave(&cluster).await,
            MembershipStep::Unprotected => self.add_finalizer(&cluster, CLUSTER_CLEANUP_FINALIZER).await,
            MembershipStep::Welcome => {
                let stamp = self.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                let patch = json!({"metadata": {"annotations": {AUTO_ACCEPTED_ANNOTATION: stamp}},
                    "spec": {"hubAcceptsClient": true}});
                self.patch(&cluster, patch).await.map(|()| Next::OnChange)
            }
            MembershipStep::Member => self.accept(&cluster).await,
            MembershipStep::Denied => self.deny(&cluster).await,
            MembershipStep::Outside => Ok(Next::OnChange),
        }
    }

    async fn add_finalizer(&self, cluster: &ManagedCluster, finalizer: &str) -> Result<Next, kube::Error> {
        self.patch(cluster, with_finalizer(cluster, finalizer)).await.map(|()| Next::OnChange)
    }

    async fn remove_finalizers(&self, cluster: &ManagedCluster, ours: &[&str]) -> Result<(), kube::Error> {
        match self.patch(cluster, without_finalizers(cluster, ours)).await {
            Err(error) if is_not_found(&error) => Ok(()),
            other => other,
        }
    }

    /// Creates the mailbox, adds the finalizer, grants permissions, sets the condition, in this order
    /// (OCM-044).
    async fn accept(&self, cluster: &ManagedCluster) -> Result<Next, kube::Error> {
        let name = name_of(cluster);
        // Admission refuses such a name. A hub without admission, or with an older cluster of that name,
        // still grants no permissions.
        if let Some(why) = reserved(name) {
            let news = accepted("False", "Error", &complaint(name, why), self.now());
            return self.report(cluster, vec![news]).await.map(|()| Next::OnChange);
        }
        let set_up = async {
            self.mailbox(name).await?;
            if !has_finalizer(cluster, CLUSTER_API_FINALIZER) {
                // The event of this write brings the version that is needed for the condition.
                return self.add_finalizer(cluster, CLUSTER_API_FINALIZER).await.map(|_| false);
            }
            self.taken.lock().remove(name);
            rbac::reconcile(&self.rest, &rbac::labelled(rbac::on_hub(name), &self.config.labels)).await?;
            Ok(true)
        };
        match set_up.await {
            Ok(true) => {
                let news =
                    accepted("True", "HubClusterAdminAccepted", "Accepted by hub cluster admin", self.now());
                self.report(cluster, vec![news]).await.map(|()| Next::OnChange)
            }
            Ok(false) => Ok(Next::OnChange),
            Err(error) if is_clash(&error) => Err(error),
            Err(error) => {
                self.report(cluster, vec![accepted("False", "Error", &message_of(&error), self.now())])
                    .await?;
                Err(error)
            }
        }
    }

    /// Makes the mailbox namespace of a cluster, with its labels.
    async fn mailbox(&self, name: &str) -> Result<(), kube::Error> {
        let mut labels = self.config.labels.clone();
        labels.extend([CLUSTER_NAME_LABEL, OLD_MAILBOX_LABEL].map(|key| (key.to_owned(), name.to_owned())));
        let known = self.know.namespaces.get("", name);
        let has =
            |key: &str| known.as_ref().and_then(|known| known.metadata.labels.get(key)).map(|value| &**value);
        if labels.iter().all(|(key, value)| has(key) == Some(value)) {
            return Ok(());
        }
        let gvr = Gvr::of::<Namespace>();
        let labels = json!({"metadata": {"labels": labels}});
        let mut body = json!({"apiVersion": "v1", "kind": "Namespace"});
        body["metadata"] = labels["metadata"].clone();
        body["metadata"]["name"] = name.into();
        if known.is_some() {
            return self.rest.merge::<Value>(&gvr, "", name, &labels).await.map(drop);
        }
        match self.rest.create::<Value>(&gvr, "", body.to_string().into_bytes()).await {
            // Another client created it without our label.
            Err(error) if is_clash(&error) => {
                self.rest.merge::<Value>(&gvr, "", name, &labels).await.map(drop)
            }
            other => other.map(drop),
        }
    }

    /// Removes permissions once: again only when they changed since (`Hub::on_right`), or when the removal
    /// failed.
    async fn take_rights(&self, name: &str, what: Take) -> Result<(), kube::Error> {
        // Noted before the removal, so that no change in between is missed.
        if self.taken.lock().insert(name.to_owned(), what) == Some(what) {
            return Ok(());
        }
        let done = rbac::take(&self.rest, name, what, &self.config.labels).await;
        if done.is_err() {
            self.taken.lock().remove(name);
        }
        done
    }

    /// Handles a cluster that was denied. The objects that it runs are not deleted (OCM-058).
    async fn deny(&self, cluster: &ManagedCluster) -> Result<Next, kube::Error> {
        let name = name_of(cluster);
        self.take_rights(name, Take::Denied).await?;
        if !self.know.works.list_namespace(name).is_empty() {
            // The event of each deleted work brings the cluster back.
            return Ok(Next::OnChange);
        }
        rbac::release_works(&self.rest, name).await?;
        let news = accepted("False", "HubClusterAdminDenied", "Denied by hub cluster admin", self.now());
        self.report(cluster, vec![news]).await.map(|()| Next::OnChange)
    }

    /// Deletes its add-ons and works in order, then its permissions, then the cluster; the mailbox namespace
    /// stays (OCM-059).
    async fn leave(&self, cluster: &ManagedCluster) -> Result<Next, kube::Error> {
        let name = name_of(cluster);
        if has_finalizer(cluster, CLUSTER_API_FINALIZER) {
            self.take_rights(name, Take::Left).await?;
        }
        if has_finalizer(cluster, CLUSTER_CLEANUP_FINALIZER) {
            return self.collect(cluster).await;
        }
        if has_finalizer(cluster, CLUSTER_API_FINALIZER) {
            if !self.know.works.list_namespace(name).is_empty() {
                return Ok(Next::OnChange);
            }
            self.remove_finalizers(cluster, &[CLUSTER_API_FINALIZER]).await?;
        }
        Ok(Next::OnChange)
    }

    /// Deletes the next part of a mailbox's content. Returns what is deleted or waited for.
    async fn empty_mailbox(&self, name: &str) -> Result<Step, kube::Error> {
        let (addon_list, work_list) =
            (self.know.addons.list_namespace(name), self.know.works.list_namespace(name));
        let left = [
            addon_list.iter().map(|a| &a.metadata).collect(),
            work_list.iter().map(|w| &w.metadata).collect(),
        ];
        let step = collect::next(&left);
        if let Step::Delete { resource, names, .. } = &step
            && let Some(gvr) = mailbox_resources().get(*resource)
        {
            for doomed in names {
                match self.rest.delete(gvr, name, doomed, &Removal::default()).await {
                    Err(error) if !is_not_found(&error) => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(step)
    }

    async fn collect(&self, cluster: &ManagedCluster) -> Result<Next, kube::Error> {
        let resources = mailbox_resources();
        let plural = |index: usize| resources.get(index).map_or("", |gvr| gvr.plural.as_str());
        match self.empty_mailbox(name_of(cluster)).await? {
            Step::Delete { resource, remaining, .. } => {
                let news = collect::deleting(Some((plural(resource), remaining, remaining)), self.now());
                self.report(cluster, vec![news]).await?;
                Ok(Next::After(self.config.timers.requeue))
            }
            Step::Wait { resource, remaining, pending } => {
                let news = collect::deleting(Some((plural(resource), remaining, pending)), self.now());
                self.report(cluster, vec![news]).await?;
                Ok(Next::After(self.config.timers.requeue))
            }
            Step::Done => {
                // Both at once: while the ManagedCluster exists, other controllers may create works again,
                // and nobody would delete those.
                let both = [CLUSTER_CLEANUP_FINALIZER, CLUSTER_API_FINALIZER];
                self.remove_finalizers(cluster, &both).await.map(|()| Next::OnChange)
            }
        }
    }

    /// Handles a ManagedCluster that is gone, however that happened. Until other controllers know that, they
    /// may create works in the mailbox, whose objects the agent must be able to remove: it keeps the
    /// permission for works while there are any, and a moment longer.
    ///
    /// If this hub saw the deletion, the mailbox is emptied as for a cluster that leaves: finalizers that were removed
    /// by force must not leave works behind (OCM-059). After a restart nothing is deleted, because a hub may have lost its
    /// ManagedClusters.
    async fn vanished(&self, name: &str) -> Result<Next, kube::Error> {
        let has_rights = self.has_rights(name);
        if has_rights {
            self.take_rights(name, Take::Left).await?;
        }
        let deleted = self.config.cleanup && self.deleted.lock().contains(name);
        if deleted && self.empty_mailbox(name).await? != Step::Done {
            return Ok(Next::After(self.config.timers.requeue));
        }
        if !has_rights {
            self.gone.lock().remove(name);
            self.taken.lock().remove(name);
            self.deleted.lock().remove(name);
            return self.last_one_gone().await.map(|()| Next::OnChange);
        }
        let linger = self.config.timers.linger;
        let since = self.gone.lock().entry(name.to_owned()).or_insert_with(Instant::now).elapsed();
        if since < linger {
            return Ok(Next::After(linger));
        }
        if !self.know.works.list_namespace(name).is_empty() {
            return Ok(Next::OnChange);
        }
        self.forget_reports(name).await?;
        rbac::release_all(&self.rest, name).await?;
        self.taken.lock().remove(name);
        self.gone.lock().remove(name);
        self.deleted.lock().remove(name);
        self.last_one_gone().await.map(|()| Next::OnChange)
    }

    /// Deletes the cluster's WorkStatuses, because the status agent loses its permissions and may not have
    /// deleted them.
    async fn forget_reports(&self, name: &str) -> Result<(), kube::Error> {
        let gvr = Gvr::of::<WorkStatus>();
        let found: Value = match self.rest.list(&gvr, name, "").await {
            // A hub without WorkStatuses.
            Err(error) if is_not_found(&error) => return Ok(()),
            found => found?,
        };
        for report in found.get("items").and_then(Value::as_array).into_iter().flatten() {
            let report = report.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            match self.rest.delete(&gvr, name, report, &Removal::default()).await {
                Err(error) if !is_not_found(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn has_rights(&self, name: &str) -> bool {
        let of = |light: &runtime::PartialObject| {
            light.metadata.labels.get(CLUSTER_NAME_LABEL).is_some_and(|label| &**label == name)
        };
        let lists = [&self.know.roles, &self.know.role_bindings, &self.know.cluster_role_bindings];
        lists.iter().any(|store| store.list().iter().any(|light| of(light)))
    }

    async fn last_one_gone(&self) -> Result<(), kube::Error> {
        let shared = self.know.roles.list();
        let left =
            shared.iter().any(|l| l.metadata.labels.get(CLUSTER_NAME_LABEL).is_some_and(|v| v.is_empty()));
        if left && self.know.clusters.is_empty() { rbac::remove_shared(&self.rest).await } else { Ok(()) }
    }
}

/// What is deleted from the mailbox of a leaving cluster, in this order.
fn mailbox_resources() -> [Gvr; 2] {
    [addons(), works()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use apis::ocm::cluster::ManagedClusterStatus;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn cluster(accepts: bool, condition: Option<(&str, &str)>, finalizers: &[&str]) -> ManagedCluster {
        let mut cluster = ManagedCluster::named("c1");
        cluster.spec.hub_accepts_client = accepts;
        cluster.metadata.finalizers = Some(finalizers.iter().map(ToString::to_string).collect());
        let conditions = condition
            .map(|(status, reason)| accepted(status, reason, "", Timestamp::UNIX_EPOCH))
            .into_iter()
            .collect();
        cluster.status = Some(ManagedClusterStatus { conditions, ..ManagedClusterStatus::default() });
        cluster
    }

    #[test]
    fn ocm_044_what_becomes_of_a_cluster() {
        let both = [CLUSTER_CLEANUP_FINALIZER, CLUSTER_API_FINALIZER];
        let one = &both[..1];
        let (yes, no) = (Some(("True", "HubClusterAdminAccepted")), Some(("False", "HubClusterAdminDenied")));
        let error = Some(("False", "Error"));
        type Case<'a> = (bool, Option<(&'static str, &'static str)>, &'a [&'static str], MembershipStep);
        let cases: &[Case<'_>] = &[
            (false, None, &[], MembershipStep::Unprotected),
            (false, None, one, MembershipStep::Outside),
            (true, None, one, MembershipStep::Member),
            (true, yes, &both, MembershipStep::Member),
            (true, no, &both, MembershipStep::Member),
            (false, yes, &both, MembershipStep::Denied),
            (false, no, &both, MembershipStep::Outside),
            // Denied while its acceptance was still failing.
            (false, error, &both, MembershipStep::Denied),
            (false, None, &both, MembershipStep::Denied),
        ];
        for (accepts, condition, finalizers, wanted) in cases {
            let cluster = cluster(*accepts, *condition, finalizers);
            assert_eq!(
                membership_step(&cluster, false, true),
                *wanted,
                "{accepts} {condition:?} {finalizers:?}"
            );
        }
    }

    /// OCM-005: the whole list is patched, for exactly the version that was read; an object that is gone has
    /// no finalizers any more.
    #[tokio::test]
    async fn ocm_005_finalizers_are_patched_as_a_whole() {
        use parking_lot::Mutex;
        use std::{convert::Infallible, sync::Arc};

        let mut leaving = cluster(false, None, &["theirs", CLUSTER_API_FINALIZER]);
        leaving.metadata.uid = Some("u".into());
        leaving.metadata.resource_version = Some("7".into());
        assert_eq!(
            super::super::guarded(&leaving, with_finalizer(&leaving, "mine")),
            json!({"metadata": {"uid": "u", "resourceVersion": "7",
                "finalizers": ["theirs", CLUSTER_API_FINALIZER, "mine"]}})
        );
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (seen, code) = (asked.clone(), Arc::new(Mutex::new(404)));
        let answers = code.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (seen, code) = (seen.clone(), *answers.lock());
            async move {
                let place = format!("{} {}", request.method(), request.uri().path());
                let kind = request.headers()["content-type"].to_str().unwrap().to_owned();
                let body = request.into_body().collect_bytes().await.unwrap();
                seen.lock().push((place, kind, serde_json::from_slice::<Value>(&body).unwrap()));
                let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": "x", "message": "x"});
                let body = kube::client::Body::from(status.to_string().into_bytes());
                Ok::<_, Infallible>(http::Response::builder().status(code).body(body).unwrap())
            }
        });
        let config = super::super::Config::default();
        let hub = Hub {
            rest: runtime::rest::Rest::new(kube::Client::new(service, "default")),
            since: (config.clock)(),
            ahead: Mutex::default(),
            metrics: super::super::shown::HubMetrics::new(&config.metrics, 0),
            config,
            queue: runtime::Queue::default(),
            know: super::super::Stores::default(),
            gone: Mutex::default(),
            taken: Mutex::default(),
            deleted: Mutex::default(),
        };
        hub.remove_finalizers(&leaving, &[CLUSTER_API_FINALIZER]).await.expect("it is gone: all is well");
        let (place, kind, body) = asked.lock().remove(0);
        assert_eq!(place, "PATCH /apis/cluster.open-cluster-management.io/v1/managedclusters/c1");
        assert_eq!(kind, "application/merge-patch+json");
        assert_eq!(body, json!({"metadata": {"uid": "u", "resourceVersion": "7", "finalizers": ["theirs"]}}));
        *code.lock() = 409;
        assert!(hub.remove_finalizers(&leaving, &[CLUSTER_API_FINALIZER]).await.is_err());
    }

    /// OCM-A-04: the hub accepts a cluster automatically once; a later denial is respected.
    #[test]
    fn ocm_043_auto_acceptance_happens_once() {
        let both = [CLUSTER_CLEANUP_FINALIZER, CLUSTER_API_FINALIZER];
        let mut new = cluster(false, None, &both[..1]);
        assert_eq!(membership_step(&new, true, true), MembershipStep::Welcome);
        new.metadata.annotations = Some([(AUTO_ACCEPTED_ANNOTATION.to_owned(), "then".to_owned())].into());
        assert_eq!(membership_step(&new, true, true), MembershipStep::Outside);
        new.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(membership_step(&new, true, true), MembershipStep::Leaving);
    }
}
