//! What leaves: objects that a work no longer holds, works in deletion, works that are gone (OCM-093 … OCM-096).

use std::{collections::HashSet, sync::Arc, time::Duration};

use apis::{
    constants::{APPLIED_WORK_FINALIZER, MANIFEST_WORK_FINALIZER},
    ocm::{AppliedManifestWork, ManifestWork, work::AppliedResource},
};
use futures::{StreamExt, stream};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use kube::{Error, core::params::PropagationPolicy};
use runtime::{
    Next,
    rest::{Gvr, Removal, is_conflict, is_not_found},
};
use serde_json::json;

use super::{
    agent::{Agent, applied_manifest_works, has_finalizer, listed, manifest_works},
    conditions,
    pass::{Done, PENDING},
    records::Meta,
    removal::{self, Fate},
    rules::Target,
};

/// Group, kind, namespace and name of objects that other works hold.
type Elsewhere = HashSet<(String, String, String, String)>;

impl Agent {
    /// OCM-093: brings `appliedResources` up to date and removes what left. True while something is on its way out.
    pub(super) async fn track(
        &self,
        name: &str,
        applied: &AppliedManifestWork,
        done: &[Done],
    ) -> Result<bool, Error> {
        if done.iter().any(|d| d.uncertain) {
            return Ok(false);
        }
        let mut list: Vec<AppliedResource> = done.iter().filter_map(|d| d.resource.clone()).collect();
        let leaving = removal::untracked(listed(applied), &list);
        let pending = if leaving.is_empty() {
            Vec::new()
        } else {
            let elsewhere = self.wanted_by_others(name);
            self.remove_all(name, leaving, applied.metadata.uid.as_deref().unwrap_or_default(), &elsewhere)
                .await?
        };
        let waiting = !pending.is_empty();
        list.extend(pending);
        removal::sort(&mut list);
        list.dedup();
        self.write_applied(applied, list).await?;
        Ok(waiting)
    }

    async fn write_applied(
        &self,
        applied: &AppliedManifestWork,
        list: Vec<AppliedResource>,
    ) -> Result<(), Error> {
        if listed(applied) == list.as_slice() {
            return Ok(());
        }
        let name = applied.metadata.name.clone().unwrap_or_default();
        let patch = json!({"metadata": {"uid": applied.metadata.uid}, "status": {"appliedResources": list}});
        let written: AppliedManifestWork =
            self.cluster.merge_status(&applied_manifest_works(), "", &name, &patch).await?;
        self.remember_applied(written);
        Ok(())
    }

    async fn remove_all(
        &self,
        work: &str,
        resources: Vec<AppliedResource>,
        owner_uid: &str,
        elsewhere: &Elsewhere,
    ) -> Result<Vec<AppliedResource>, Error> {
        let jobs: Vec<_> = resources
            .into_iter()
            .map(|resource| async move {
                let gone = self.remove(work, &resource, owner_uid, elsewhere).await?;
                Ok::<_, Error>((!gone).then_some(resource))
            })
            .collect();
        let outcomes: Vec<_> =
            stream::iter(jobs).buffer_unordered(2 * self.config.parallel_manifests.max(1)).collect().await;
        let mut pending = Vec::new();
        for outcome in outcomes {
            pending.extend(outcome?);
        }
        Ok(pending)
    }

    /// OCM-094. True when nothing of it concerns us any more.
    async fn remove(
        &self,
        work: &str,
        resource: &AppliedResource,
        owner_uid: &str,
        elsewhere: &Elsewhere,
    ) -> Result<bool, Error> {
        let gvr = Gvr::new(&resource.group, &resource.version, &resource.resource);
        let target = removal::target_of(resource);
        let (namespace, name) = (resource.namespace.as_str(), resource.name.as_str());
        let live = match self.cluster.find::<Meta>(&gvr, namespace, name).await {
            Ok(live) => live.map(|l| l.metadata),
            // The resource type is gone, and its objects with it.
            Err(error) if is_not_found(&error) => None,
            Err(error) => return Err(error),
        };
        let wanted = !elsewhere.is_empty()
            && self.mapper.by_resource(&gvr).await?.is_some_and(|mapped| {
                elsewhere.contains(&(gvr.group.clone(), mapped.kind, namespace.to_owned(), name.to_owned()))
            });
        let gone = match removal::fate(live.as_ref(), &resource.uid, owner_uid, wanted) {
            Fate::Forget => true,
            Fate::Wait => false,
            Fate::Disown => {
                self.disown(&gvr, &target, live.as_ref(), owner_uid).await?;
                true
            }
            Fate::Delete => {
                let uid = live.as_ref().and_then(|l| l.uid.clone());
                let removal = Removal { uid, propagation: Some(PropagationPolicy::Background) };
                match self.cluster.remove(&gvr, namespace, name, &removal).await {
                    Ok(gone) => gone,
                    Err(error) if is_not_found(&error) || is_conflict(&error) => true,
                    Err(error) => return Err(error),
                }
            }
        };
        if gone {
            self.tracker.lock().forget(work, &target);
        }
        Ok(gone)
    }

    async fn disown(
        &self,
        gvr: &Gvr,
        target: &Target,
        live: Option<&ObjectMeta>,
        owner_uid: &str,
    ) -> Result<(), Error> {
        let Some(live) = live else { return Ok(()) };
        let owners: Vec<_> = live.owner_references.iter().flatten().filter(|o| o.uid != owner_uid).collect();
        let patch = json!({"metadata": {"uid": live.uid, "resourceVersion": live.resource_version,
            "ownerReferences": owners}});
        match self.cluster.merge::<Meta>(gvr, &target.namespace, &target.name, &patch).await {
            Err(error) if is_not_found(&error) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// OCM-095: everything applied goes, then the AppliedManifestWork, then the work.
    pub(super) async fn finalize(self: &Arc<Self>, work: &ManifestWork, name: &str) -> Result<Next, Error> {
        if !has_finalizer(work) {
            return Ok(Next::OnChange);
        }
        let gvr = applied_manifest_works();
        let applied_name = self.applied_name(name);
        let mut applied = self.applied_of(name);
        if applied.is_none() {
            applied = self.cluster.find(&gvr, "", &applied_name).await?.map(Arc::new);
        }
        if let Some(mut applied) = applied {
            if applied.metadata.deletion_timestamp.is_none() {
                let removal = Removal { uid: None, propagation: Some(PropagationPolicy::Background) };
                match self.cluster.delete(&gvr, "", &applied_name, &removal).await {
                    Ok(()) => {}
                    Err(error) if is_not_found(&error) => {}
                    Err(error) => return Err(error),
                }
                let live: Option<AppliedManifestWork> = self.cluster.find(&gvr, "", &applied_name).await?;
                if let Some(live) = live {
                    applied = self.remember_applied(live);
                }
            }
            if !self.empty_applied(name, &applied).await? {
                self.say_deleting(work, name).await?;
                return Ok(Next::After(PENDING));
            }
        }
        let finalizers: Vec<&String> =
            work.metadata.finalizers.iter().flatten().filter(|f| *f != MANIFEST_WORK_FINALIZER).collect();
        let mut version = work.metadata.resource_version.clone();
        for attempt in 0.. {
            let patch = json!({"metadata": {"uid": work.metadata.uid, "resourceVersion": version,
                "finalizers": finalizers}});
            match self.hub.merge::<Meta>(&manifest_works(), &self.config.cluster_name, name, &patch).await {
                Ok(_) => break,
                Err(error) if is_not_found(&error) => break,
                Err(error) if is_conflict(&error) && attempt < 5 => {
                    match self.hub.find::<Meta>(&manifest_works(), &self.config.cluster_name, name).await? {
                        Some(live) if live.metadata.uid == work.metadata.uid => {
                            version = live.metadata.resource_version;
                        }
                        _ => break,
                    }
                }
                Err(error) => return Err(error),
            }
        }
        self.forget(name);
        self.adjust_feeds();
        Ok(Next::OnChange)
    }

    /// Removes what an AppliedManifestWork in deletion lists, then its finalizer. True when it is gone.
    pub(super) async fn empty_applied(
        &self,
        work: &str,
        applied: &AppliedManifestWork,
    ) -> Result<bool, Error> {
        if applied.spec.agent_id != self.config.agent_id {
            return Ok(false);
        }
        let elsewhere = self.wanted_by_others(work);
        let uid = applied.metadata.uid.clone().unwrap_or_default();
        let pending = self.remove_all(work, listed(applied).to_vec(), &uid, &elsewhere).await?;
        if !pending.is_empty() {
            self.write_applied(applied, pending).await?;
            return Ok(false);
        }
        let name = applied.metadata.name.clone().unwrap_or_default();
        let finalizers: Vec<&String> =
            applied.metadata.finalizers.iter().flatten().filter(|f| *f != APPLIED_WORK_FINALIZER).collect();
        let patch = json!({"metadata": {"uid": applied.metadata.uid, "finalizers": finalizers}});
        match self.cluster.merge::<Meta>(&applied_manifest_works(), "", &name, &patch).await {
            Ok(_) => {}
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
        self.applied.lock().remove(&name);
        Ok(true)
    }

    async fn say_deleting(&self, work: &ManifestWork, name: &str) -> Result<(), Error> {
        let mut status =
            self.statuses.lock().get(name).cloned().or_else(|| work.status.clone()).unwrap_or_default();
        if status.conditions.iter().any(|c| c.type_ == "Deleting") {
            return Ok(());
        }
        conditions::set(&mut status.conditions, conditions::work_deleting(&Time(Timestamp::now())), false);
        self.write_status(name, work, &status).await?;
        self.statuses.lock().insert(name.to_owned(), status);
        Ok(())
    }

    /// There is an AppliedManifestWork at most (OCM-096).
    pub(super) async fn without_work(self: &Arc<Self>, name: &str) -> Result<Next, Error> {
        self.forget(name);
        let Some(applied) = self.applied_of(name) else {
            self.adjust_feeds();
            return Ok(Next::OnChange);
        };
        if applied.metadata.deletion_timestamp.is_some() {
            let gone = self.empty_applied(name, &applied).await?;
            return Ok(if gone { Next::OnChange } else { Next::After(PENDING) });
        }
        if applied.spec.agent_id != self.config.agent_id {
            return Ok(Next::OnChange);
        }
        let gvr = applied_manifest_works();
        let object = applied.metadata.name.clone().unwrap_or_default();
        let started = applied.status.as_ref().and_then(|s| s.eviction_start_time.clone());
        let Some(started) = started else {
            let patch = json!({"metadata": {"uid": applied.metadata.uid},
                "status": {"evictionStartTime": Time(Timestamp::now())}});
            self.remember_applied(self.cluster.merge_status(&gvr, "", &object, &patch).await?);
            return Ok(Next::After(self.config.eviction_grace));
        };
        let waited = Timestamp::now().as_second().saturating_sub(started.0.as_second());
        let grace = self.config.eviction_grace.as_secs() as i64;
        if waited < grace {
            return Ok(Next::After(Duration::from_secs((grace - waited).max(1) as u64)));
        }
        let removal = Removal { uid: applied.metadata.uid.clone(), propagation: None };
        self.cluster.delete(&gvr, "", &object, &removal).await?;
        Ok(Next::After(Duration::from_millis(100)))
    }
}
