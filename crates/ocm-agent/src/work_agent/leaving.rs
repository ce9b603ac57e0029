//! Removes objects that a work no longer holds, works that are being deleted, and works that are gone
//! (OCM-093 … OCM-096).

use std::{sync::Arc, time::Duration};

use apis::{
    constants::{APPLIED_WORK_FINALIZER, MANIFEST_WORK_FINALIZER, WORK_GROUP},
    ocm::{
        AppliedManifestWork, ManifestWork,
        work::{AppliedResource, ManifestWorkStatus, STRATEGY_READ_ONLY},
    },
};
use futures::{StreamExt, stream};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time},
    jiff::Timestamp,
};
use kube::{
    Error,
    core::params::{Preconditions, PropagationPolicy},
};
use ocm_shared::conditions::set;
use runtime::{
    Next, WithoutManagedFields,
    failure::{code_of, is_clash, is_not_found, is_object_missing, message_of},
    rest::{Gvr, Removal},
};
use serde::Serialize;
use serde_json::json;

use super::{
    conditions,
    flight::InFlight,
    objects::{applied_manifest_works, has_finalizer, is_frozen, listed, manifest_works},
    outcome::Done,
    plan,
    records::{Meta, Write},
    removal::{self, Leftovers, OtherHolder, RemovalAction},
    report::StatusPatch,
    rules::{self, Target},
    shared::Agent,
    state::Wake,
    steps::Removals,
};

/// How long to wait for objects that are being deleted; events report their deletion earlier.
pub(super) const PENDING: Duration = Duration::from_secs(2);

/// How long to wait before the cluster is asked again to delete an object that it refused to delete.
const REFUSED: Duration = Duration::from_secs(10);

/// The result for one object that is to be removed.
enum RemovalResult {
    /// The object is gone or is not ours any more.
    Gone,
    /// The object is being deleted.
    Going,
    /// The cluster refuses to delete it.
    Refused(String),
}

/// The resources that an AppliedManifestWork lists.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List<'a> {
    applied_resources: &'a [AppliedResource],
}

impl Agent {
    /// OCM-093: updates `appliedResources` and removes what is no longer in the work. Returns what is not
    /// gone yet, `None` if nothing may be removed now.
    pub(super) async fn track(
        &self,
        name: &str,
        applied: &AppliedManifestWork,
        done: &[Done],
    ) -> Result<Option<Leftovers>, Error> {
        let (exist, released) = match plan::removals(listed(applied), done) {
            Removals::Postponed(list) => {
                self.write_applied_to(applied, list).await?;
                return Ok(None);
            }
            Removals::Now { exist, released } => (exist, released),
        };
        let leftovers = if released.is_empty() {
            Leftovers::default()
        } else {
            let owner = applied.metadata.uid.as_deref().unwrap_or_default();
            self.remove_all(name, released, owner).await?
        };
        self.write_applied_to(applied, exist.into_iter().chain(leftovers.all()).collect()).await?;
        Ok(Some(leftovers))
    }

    async fn write_applied_to(
        &self,
        applied: &AppliedManifestWork,
        mut list: Vec<AppliedResource>,
    ) -> Result<(), Error> {
        removal::sort(&mut list);
        list.dedup();
        if listed(applied) != list.as_slice() {
            self.write_applied(applied, list).await?;
        }
        Ok(())
    }

    /// Replaces the list. Returns the AppliedManifestWork after the write.
    pub(super) async fn write_applied(
        &self,
        applied: &AppliedManifestWork,
        mut list: Vec<AppliedResource>,
    ) -> Result<Arc<AppliedManifestWork>, Error> {
        removal::sort(&mut list);
        let name = applied.metadata.name.clone().unwrap_or_default();
        let of = Preconditions { uid: applied.metadata.uid.clone(), resource_version: None };
        let patch = StatusPatch { metadata: of, status: List { applied_resources: &list } };
        let WithoutManagedFields(written) =
            self.cluster.merge_status(&applied_manifest_works(), "", &name, &patch).await?;
        Ok(self.state.lock().remember_applied(written))
    }

    async fn remove_all(
        &self,
        work: &str,
        resources: Vec<AppliedResource>,
        owner_uid: &str,
    ) -> Result<Leftovers, Error> {
        let jobs: Vec<_> = resources
            .into_iter()
            .map(|resource| async move {
                let left = self.remove(work, &resource, owner_uid).await;
                (resource, left)
            })
            .collect();
        let outcomes: Vec<_> =
            stream::iter(jobs).buffer_unordered(2 * self.config.parallel_manifests.max(1)).collect().await;
        let mut leftovers = Leftovers::default();
        for (resource, left) in outcomes {
            match left {
                Ok(RemovalResult::Gone) => {}
                Ok(RemovalResult::Going) => leftovers.going.push(resource),
                Ok(RemovalResult::Refused(why)) => leftovers.refused.push((resource, why)),
                // Only the cluster's administrators can change that; the other objects are removed
                // nevertheless.
                Err(error) if is_refusal(&error) => leftovers.refused.push((resource, message_of(&error))),
                Err(error) => return Err(error),
            }
        }
        leftovers.refused.sort();
        Ok(leftovers)
    }

    /// Returns the live object, and the version in which its resource is served: the recorded one, or else
    /// another of its group (a CRD may have stopped to serve the recorded one). Returns `None` if the object
    /// does not exist.
    async fn look_for(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
    ) -> Result<(Gvr, Option<ObjectMeta>), Error> {
        let found = self.cluster.find::<Meta>(gvr, namespace, name).await;
        match found {
            Err(error) if is_not_found(&error) => {}
            other => return other.map(|live| (gvr.clone(), live.map(|live| live.metadata))),
        }
        // A 404 of the resource says nothing about the object.
        match self.mapper.served(gvr).await? {
            None => Ok((gvr.clone(), None)),
            Some(mapped) => {
                let found = self.cluster.find::<Meta>(&mapped.gvr, namespace, name).await?;
                Ok((mapped.gvr, found.map(|live| live.metadata)))
            }
        }
    }

    /// OCM-094.
    async fn remove(
        &self,
        work: &str,
        resource: &AppliedResource,
        owner_uid: &str,
    ) -> Result<RemovalResult, Error> {
        let recorded = Gvr::new(&resource.group, &resource.version, &resource.resource);
        let target = removal::target_of(resource);
        let (namespace, name) = (resource.namespace.as_str(), resource.name.as_str());
        let _turn = self.turns.at(&target).await;
        let (gvr, live) = self.look_for(&recorded, namespace, name).await?;
        let (other_holder, owner) = self.other_holder(work, &gvr, &target).await?;
        let left = match removal::removal_action(live.as_ref(), &resource.uid, owner_uid, other_holder) {
            RemovalAction::Forget => RemovalResult::Gone,
            RemovalAction::Wait => RemovalResult::Going,
            removal_action @ (RemovalAction::Disown | RemovalAction::HandOver) => {
                if let Some(live) = &live {
                    let other_holder = owner.filter(|_| removal_action == RemovalAction::HandOver);
                    self.disown(work, &gvr, &target, (live, owner_uid), other_holder).await?;
                }
                RemovalResult::Gone
            }
            RemovalAction::Delete => {
                let uid = live.as_ref().and_then(|l| l.uid.clone());
                let removal = Removal { uid, propagation: Some(PropagationPolicy::Background) };
                match self.cluster.remove(&gvr, namespace, name, &removal).await {
                    Ok(true) => RemovalResult::Gone,
                    Ok(false) => RemovalResult::Going,
                    Err(error) if is_object_missing(&error, name) || is_clash(&error) => RemovalResult::Gone,
                    Err(error) if is_refusal(&error) => RemovalResult::Refused(message_of(&error)),
                    Err(error) => return Err(error),
                }
            }
        };
        if matches!(left, RemovalResult::Gone) {
            let rivals = self.state.lock().tracker.forget(work, &target);
            self.wake(Wake::works(&rivals));
        }
        Ok(left)
    }

    /// Returns how other works of the mailbox hold an object, and the owner reference of the work that takes
    /// it over.
    async fn other_holder(
        &self,
        work: &str,
        gvr: &Gvr,
        target: &Target,
    ) -> Result<(OtherHolder, Option<OwnerReference>), Error> {
        let others = self.state.lock().others(work, target);
        if others.is_empty() {
            return Ok((OtherHolder::Nobody, None));
        }
        let Some(mapped) = self.mapper.by_resource(gvr).await? else {
            return Ok((OtherHolder::Nobody, None));
        };
        let state = self.state.lock();
        let mut other_holder = OtherHolder::Nobody;
        for (name, _) in others.into_iter().filter(|(_, kind)| *kind == mapped.kind) {
            let Some(other) = state.work_of(&name) else { continue };
            let only_reads = rules::treatment(&other.spec, target).strategy.type_ == STRATEGY_READ_ONLY;
            if is_frozen(&other) || only_reads {
                continue;
            }
            if !rules::owned(&other.spec, target) {
                other_holder =
                    if other_holder == OtherHolder::Nobody { OtherHolder::NonOwning } else { other_holder };
                continue;
            }
            other_holder = OtherHolder::Coming;
            let applied = state.applied_of(&name).filter(|a| a.metadata.deletion_timestamp.is_none());
            if let Some(applied) = applied
                && listed(&applied).iter().any(|r| removal::target_of(r) == *target)
            {
                let owner = OwnerReference {
                    api_version: format!("{WORK_GROUP}/v1"),
                    kind: "AppliedManifestWork".into(),
                    name: applied.metadata.name.clone().unwrap_or_default(),
                    uid: applied.metadata.uid.clone().unwrap_or_default(),
                    ..OwnerReference::default()
                };
                return Ok((OtherHolder::Listed, Some(owner)));
            }
        }
        Ok((other_holder, None))
    }

    /// Removes our owner reference. The other works that hold the object need not read it because of that:
    /// when one of a thousand works that share a namespace is deleted, the others send no requests.
    async fn disown(
        &self,
        work: &str,
        gvr: &Gvr,
        target: &Target,
        (live, owner_uid): (&ObjectMeta, &str),
        other_holder: Option<OwnerReference>,
    ) -> Result<(), Error> {
        let left = live.owner_references.iter().flatten().filter(|o| o.uid != owner_uid).cloned();
        let owners: Vec<OwnerReference> = left.chain(other_holder).collect();
        let patch = json!({"metadata": {"uid": live.uid, "resourceVersion": live.resource_version,
            "ownerReferences": owners}});
        let flight = InFlight::begin(self, work, target);
        match self.cluster.merge::<Meta>(gvr, &target.namespace, &target.name, &patch).await {
            Ok(Meta { metadata }) => flight.wrote(Write {
                uid: metadata.uid.unwrap_or_default(),
                resource_version: metadata.resource_version.unwrap_or_default(),
                generation: metadata.generation,
                owners_of: Some(live.resource_version.clone().unwrap_or_default()),
            }),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// OCM-095: removes the applied objects, then the AppliedManifestWork, then the work.
    pub(super) async fn finalize(&self, work: &ManifestWork, name: &str) -> Result<Next, Error> {
        if !has_finalizer(work) {
            self.state.lock().freeze(name);
            return Ok(Next::OnChange);
        }
        let gvr = applied_manifest_works();
        let (applied_name, mut applied) = {
            let state = self.state.lock();
            (state.applied_name(name), state.applied_of(name))
        };
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
                let live = self.cluster.find(&gvr, "", &applied_name).await?;
                if let Some(WithoutManagedFields(live)) = live {
                    applied = self.state.lock().remember_applied(live);
                }
            }
            if let Some(leftovers) = self.empty_applied(name, &applied).await? {
                self.say_deleting(work, name, &leftovers).await?;
                return Ok(Next::After(pause(&leftovers)));
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
                Err(error) if is_clash(&error) && attempt < 5 => {
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
        Ok(Next::OnChange)
    }

    /// Removes what an AppliedManifestWork that is being deleted lists, then its finalizer. Returns what is
    /// left; `None` if it is gone.
    pub(super) async fn empty_applied(
        &self,
        work: &str,
        applied: &AppliedManifestWork,
    ) -> Result<Option<Leftovers>, Error> {
        if !self.state.lock().is_own(&applied.spec) {
            return Ok(Some(Leftovers { going: listed(applied).to_vec(), ..Leftovers::default() }));
        }
        let uid = applied.metadata.uid.clone().unwrap_or_default();
        let leftovers = self.remove_all(work, listed(applied).to_vec(), &uid).await?;
        if !leftovers.is_empty() {
            self.write_applied_to(applied, leftovers.all()).await?;
            for (resource, why) in &leftovers.refused {
                tracing::warn!(
                    work,
                    name = resource.name,
                    why,
                    "the cluster refuses to remove what a work applied"
                );
            }
            return Ok(Some(leftovers));
        }
        let name = applied.metadata.name.clone().unwrap_or_default();
        let finalizers: Vec<&String> =
            applied.metadata.finalizers.iter().flatten().filter(|f| *f != APPLIED_WORK_FINALIZER).collect();
        let patch = json!({"metadata": {"uid": applied.metadata.uid, "finalizers": finalizers}});
        match self.cluster.merge::<Meta>(&applied_manifest_works(), "", &name, &patch).await {
            Ok(_) => {}
            // The old AppliedManifestWork is gone; there may be a new one of its name.
            Err(error) if is_not_found(&error) || is_clash(&error) => {}
            Err(error) => return Err(error),
        }
        self.state.lock().drop_applied(&name);
        Ok(None)
    }

    /// Forgets a work that is gone.
    pub(super) fn forget(&self, name: &str) {
        let rivals = self.state.lock().forget(name);
        self.wake(rivals);
        self.feeds.notify_one();
    }

    /// Writes the Deleting condition (OCM-095).
    async fn say_deleting(
        &self,
        work: &ManifestWork,
        name: &str,
        leftovers: &Leftovers,
    ) -> Result<(), Error> {
        let old = self.state.lock().last_status(name, work);
        let mut new = old.clone();
        let generation = work.metadata.generation.unwrap_or_default();
        let deleting = conditions::work_deleting(leftovers, generation, &Time(Timestamp::now()));
        set(&mut new.conditions, deleting);
        self.write_if_new(name, work, &old, new).await
    }

    /// Writes the condition about released objects that the cluster refuses to delete, or removes it
    /// (OCM-094).
    pub(super) async fn say_refused(
        &self,
        work: &ManifestWork,
        name: &str,
        leftovers: &Leftovers,
    ) -> Result<(), Error> {
        let old = self.state.lock().last_status(name, work);
        let mut new = old.clone();
        if leftovers.refused.is_empty() {
            new.conditions.retain(|condition| condition.type_ != conditions::REFUSED);
        } else {
            let generation = work.metadata.generation.unwrap_or_default();
            let refused = conditions::removal_refused(leftovers, generation, &Time(Timestamp::now()));
            set(&mut new.conditions, refused);
        }
        self.write_if_new(name, work, &old, new).await
    }

    async fn write_if_new(
        &self,
        name: &str,
        work: &ManifestWork,
        old: &ManifestWorkStatus,
        new: ManifestWorkStatus,
    ) -> Result<(), Error> {
        if new != *old {
            self.write_status(name, work, old, &new).await?;
            self.state.lock().remember_status(name, work, new);
        }
        Ok(())
    }
}

/// Returns how long to wait for what is left; events report its deletion earlier.
pub(super) fn pause(leftovers: &Leftovers) -> Duration {
    if leftovers.going.is_empty() { REFUSED } else { PENDING }
}

/// Returns whether the cluster understood and refused the request: a retry helps only after a change in the
/// cluster.
fn is_refusal(error: &Error) -> bool {
    matches!(code_of(error), 400 | 403 | 405 | 422)
}
