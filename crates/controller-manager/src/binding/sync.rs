//! Writes policies and Bindings until they are as they should be.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use apis::{
    constants::{CONTROL_GROUP, POLICY_FINALIZER},
    control::{BindingPolicy, BindingPolicyStatus, BindingSpec},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use runtime::{Coalescer, Next, OwnWrite, Queue, ResourceVersion, Store};

use super::{
    events::{AnnouncedGeneration, MatchCounts},
    facts::BindingFacts,
    resolution::SpecDigest,
    unknown::UnknownResources,
    verdict::{Progress, policy_status, same_status},
    writes::{WriteError, Writes},
};
use crate::{
    identity::{GroupResource, PolicyName},
    own_writes::{OWN_WRITE_TTL, RecentWrite},
    shared::{BindingItem, STATUS_LAG, Shared, StatusItem},
};

/// Log target of messages that appear once in the life of an object; visible from verbosity 2 (KS-212).
const LIFECYCLE: &str = "lifecycle";

/// Processes the work items.
pub(super) struct Syncer {
    shared: Arc<Shared>,
    writes: Writes,
    queue: Queue<BindingItem>,
    policies: Store<BindingPolicy>,
    states: Mutex<HashMap<PolicyName, State>>,
}

/// What the controller remembers of a policy's Binding.
#[derive(Default)]
struct State {
    coalescer: Coalescer,
    own_write: RecentWrite<BindingFacts>,
    /// The status that this controller last wrote, and the UID of the policy.
    status: Option<(String, BindingPolicyStatus)>,
    /// The last addition of the finalizer to the policy.
    finalizer: OwnWrite,
    /// The generation that was last announced in an Event.
    announced: AnnouncedGeneration,
    /// Why the Binding could not be written.
    failure: Option<String>,
}

/// What to do about a Binding.
enum Step {
    Nothing,
    Wait(Duration),
    Write(Box<BindingSpec>),
}

impl Syncer {
    pub(super) fn new(wds: Client, shared: Arc<Shared>) -> Self {
        Self {
            writes: Writes::new(wds),
            queue: shared.policies.clone(),
            shared,
            policies: Store::default(),
            states: Mutex::default(),
        }
    }

    pub(super) fn queue(&self) -> &Queue<BindingItem> {
        &self.queue
    }

    pub(super) fn policies(&self) -> &Store<BindingPolicy> {
        &self.policies
    }

    pub(super) fn bindings(&self) -> &Store<BindingFacts> {
        &self.shared.bindings
    }

    /// Enqueues a policy for immediate processing.
    pub(super) fn look(&self, policy: &str) {
        self.queue.add(BindingItem::Policy(policy.into()));
    }

    /// The resolution of a policy changed.
    pub(super) fn changed(&self, policy: &PolicyName) {
        let wait = {
            let mut states = self.states.lock();
            let coalescer = &mut states.entry(policy.clone()).or_default().coalescer;
            coalescer.change();
            coalescer.wait(Instant::now())
        };
        self.queue.add_after(BindingItem::Policy(policy.clone()), wait);
    }

    /// Something that the policy's status shows may have changed.
    pub(super) fn report(&self, policy: &str) {
        self.shared.report(policy);
    }

    /// The informer reported a Binding.
    pub(super) fn seen(&self, name: &str, facts: &BindingFacts, gone: bool) {
        self.states.lock().entry(name.into()).or_default().own_write.observe(facts, gone);
    }

    /// Sets the objects whose state is unknown; entries of existing Bindings about them are left unchanged.
    /// Returns true if some objects are no longer unknown.
    ///
    /// Calls `look` while holding the lock that [`known`](Self::known) takes, so that no object that becomes
    /// known in between is missed.
    pub(super) fn set_unknown(&self, look: impl FnOnce() -> UnknownResources) -> bool {
        let mut unknown = self.shared.unknown.lock();
        let old = std::mem::replace(&mut *unknown, look());
        !unknown.covers(&old)
    }

    /// The objects of a resource are known now. Returns true if they were not before.
    pub(super) fn known(&self, resource: &GroupResource) -> bool {
        self.shared.unknown.lock().resources.remove(resource)
    }

    /// Returns the Binding as known from the informer or from our own last write, whichever is newer.
    fn current(&self, name: &str) -> Option<Arc<BindingFacts>> {
        let own = self.states.lock().get(name).and_then(|state| state.own_write.get(Instant::now()));
        own.or_else(|| self.shared.bindings.get("", name))
    }

    /// Processes one work item.
    pub(super) async fn sync(&self, item: BindingItem) -> Result<Next, WriteError> {
        match item {
            BindingItem::Policy(name) => self.sync_policy(&name).await,
            BindingItem::Status(name) => self.sync_status(&name).await,
        }
    }

    async fn sync_policy(&self, name: &PolicyName) -> Result<Next, WriteError> {
        tracing::debug!(policy = &**name, "looking at a policy and its Binding");
        let Some(policy) = self.policies.get("", name) else {
            self.remove_binding(name, None).await?;
            if self.shared.bindings.get("", name).is_none() {
                self.states.lock().remove(name);
            }
            return Ok(Next::OnChange);
        };
        if policy.metadata.deletion_timestamp.is_some() {
            // KS-056: must work in spaces without a garbage collector, too.
            if policy.finalizers().iter().any(|it| it == POLICY_FINALIZER) {
                self.remove_binding(name, policy.metadata.uid.as_deref()).await?;
                self.writes.remove_finalizer(&policy).await?;
            }
            return Ok(Next::OnChange);
        }
        self.ensure_finalizer(name, &policy).await?;
        let next = self.sync_binding(name, &policy).await;
        let observed = policy.status.as_ref().map(|status| status.observed_generation);
        if observed == policy.metadata.generation {
            self.report(name);
        } else {
            self.queue.add(BindingItem::Status(name.clone()));
        }
        next
    }

    /// KS-055: adds the finalizer before the Binding is created.
    async fn ensure_finalizer(&self, name: &PolicyName, policy: &BindingPolicy) -> Result<(), WriteError> {
        if policy.finalizers().iter().any(|it| it == POLICY_FINALIZER) {
            return Ok(());
        }
        // The informer may not have seen our own addition yet. If it has, another client removed the
        // finalizer.
        let seen = ResourceVersion::of(&policy.metadata);
        if self.states.lock().get(name).is_some_and(|state| state.finalizer.is_older(seen)) {
            return Ok(());
        }
        let version = match self.writes.add_finalizer(policy).await {
            Err(error) if error.is_missing() => return Ok(()),
            written => written?,
        };
        let mut states = self.states.lock();
        let state = states.entry(name.clone()).or_default();
        state.finalizer = OwnWrite::default();
        state.finalizer.record(ResourceVersion::new(&version), ());
        Ok(())
    }

    /// Deletes the Binding if the policy of this name, or of this UID, owns it (KS-056, KS-072).
    async fn remove_binding(&self, name: &str, policy_uid: Option<&str>) -> Result<(), WriteError> {
        let Some(current) = self.current(name).filter(|current| !current.is_going()) else { return Ok(()) };
        let Some(owner) = current.owner() else { return Ok(()) };
        let orphaned = policy_uid.is_none_or(|uid| owner.uid == uid);
        if owner.name == name && orphaned {
            tracing::info!(target: LIFECYCLE, policy = name, "deleting the Binding of a deleted policy");
            self.writes.delete_binding(name, &current.metadata.uid).await?;
        }
        Ok(())
    }

    async fn sync_binding(&self, name: &PolicyName, policy: &BindingPolicy) -> Result<Next, WriteError> {
        let Some(owner) = owner(policy) else { return Ok(Next::OnChange) };
        let current = self.current(name);
        let mut spec = match self.step(name, current.as_deref(), &owner) {
            Step::Nothing => return Ok(Next::OnChange),
            Step::Wait(wait) => return Ok(Next::After(wait)),
            Step::Write(spec) => spec,
        };
        let (unknown, mut kept) = (self.shared.unknown.lock().clone(), None);
        if !unknown.is_empty() && current.is_some() {
            let live = self.writes.binding_spec(name).await?;
            if keep_unknown(&mut spec, &live, &unknown) {
                kept = Some(format!(
                    "{unknown} can't be listed; what the Binding says about these objects stays"
                ));
            }
            if SpecDigest::of(&spec) == SpecDigest::of(&live) {
                self.states.lock().entry(name.clone()).or_default().failure = kept;
                return Ok(Next::OnChange);
            }
        }
        let began = Instant::now();
        if current.is_none() {
            tracing::info!(target: LIFECYCLE, policy = &**name, "making the Binding of a policy");
        }
        let wrote = match &current {
            None => self.writes.create_binding(name, &owner, &spec).await,
            Some(current) => {
                let owner = (!current.is_owned_by(&owner)).then_some(&owner);
                let written = self.writes.update_binding(name, owner, &spec).await;
                written.map(|metadata| BindingFacts::written(metadata, &spec, current))
            }
        };
        let (outcome, failure) = match wrote {
            Ok(facts) => (Ok(Some(facts)), kept),
            Err(WriteError::TooLarge { limit }) => {
                // KS-070: the server would refuse the Binding again and again until something changes.
                (Ok(None), Some(format!("Binding would exceed {limit} bytes")))
            }
            Err(error) => {
                let refused = error.is_refusal().then(|| format!("Binding can't be written: {error}"));
                (Err(error), refused)
            }
        };
        let mut states = self.states.lock();
        let state = states.entry(name.clone()).or_default();
        state.coalescer.end(began, Instant::now());
        state.failure = failure;
        match outcome {
            Ok(facts) => {
                match facts {
                    Some(facts) => state.own_write.record(Arc::new(facts), Instant::now()),
                    None => state.own_write.forget(),
                }
                let next =
                    if state.own_write.is_pending() { Next::After(OWN_WRITE_TTL) } else { Next::OnChange };
                drop(states);
                self.shared.enqueue_status(StatusItem::Binding(name.clone()));
                Ok(next)
            }
            Err(error) => {
                if error.is_missing() {
                    state.own_write.forget();
                }
                Err(error)
            }
        }
    }

    fn step(&self, name: &PolicyName, current: Option<&BindingFacts>, owner: &OwnerReference) -> Step {
        let world = self.shared.world.lock();
        let Some(resolution) = world.resolution(name) else { return Step::Nothing };
        let mut states = self.states.lock();
        let state = states.entry(name.clone()).or_default();
        match current {
            // It is created again once it is gone (KS-061).
            Some(current) if current.is_going() => return Step::Nothing,
            Some(current) if current.spec == resolution.digest() && current.is_owned_by(owner) => {
                state.coalescer.settle();
                state.failure = None;
                return Step::Nothing;
            }
            Some(_) => {
                let wait = state.coalescer.wait(Instant::now());
                if !wait.is_zero() {
                    return Step::Wait(wait);
                }
            }
            None => {}
        }
        state.coalescer.begin(Instant::now());
        Step::Write(Box::new(resolution.render(|resource| world.version(resource))))
    }

    async fn sync_status(&self, name: &PolicyName) -> Result<Next, WriteError> {
        let Some(policy) = self.policies.get("", name) else { return Ok(Next::OnChange) };
        if policy.metadata.deletion_timestamp.is_some() {
            return Ok(Next::OnChange);
        }
        let (Some(owner), current) = (owner(&policy), self.current(name)) else { return Ok(Next::OnChange) };
        let uid = policy.uid().unwrap_or_default();
        let (failure, written) = self
            .states
            .lock()
            .get(name)
            .map(|state| (state.failure.clone(), state.status.clone()))
            .unwrap_or_default();
        let written = written.filter(|(of, _)| *of == uid).map(|(_, status)| status);
        let old = policy.status.as_ref();
        let counts;
        let new = {
            let world = self.shared.world.lock();
            let Some(resolution) = world.resolution(name) else { return Ok(Next::OnChange) };
            let progress = Progress {
                synced: current
                    .as_ref()
                    .is_some_and(|it| it.spec == resolution.digest() && it.is_owned_by(&owner)),
                generation: current.as_ref().map_or(0, |it| it.metadata.generation),
                status: current.as_ref().and_then(|it| it.status.clone()).unwrap_or_default(),
                failure,
            };
            let now = Time(k8s_openapi::jiff::Timestamp::now());
            counts = MatchCounts {
                objects: resolution.objects().len(),
                clusters: resolution.destinations().len(),
            };
            policy_status(&world, name, policy.metadata.generation.unwrap_or(0), &progress, old, &now)
        };
        let known = [old, written.as_ref()];
        if known.into_iter().flatten().all(|known| same_status(known, &new)) && old.is_some() {
            return Ok(Next::OnChange);
        }
        if old.is_none_or(|old| !same_status(old, &new)) && written.is_some_and(|it| same_status(&it, &new)) {
            // The status is already written; the informer will report it, or report that another client
            // changed it back.
            self.states.lock().entry(name.clone()).or_default().status = None;
            return Ok(Next::After(STATUS_LAG));
        }
        self.writes.policy_status(name, &new).await?;
        let events = {
            let mut states = self.states.lock();
            let state = states.entry(name.clone()).or_default();
            let events = state.announced.events(old, &new, counts);
            state.status = Some((uid, new));
            events
        };
        for event in events {
            // A lost Event is not worth a retry.
            if let Err(error) = self.writes.event(&policy, event).await {
                tracing::debug!(policy = &**name, %error, "writing an Event");
            }
        }
        Ok(Next::OnChange)
    }
}

/// KS-011.
fn owner(policy: &BindingPolicy) -> Option<OwnerReference> {
    Some(OwnerReference {
        api_version: format!("{CONTROL_GROUP}/v1alpha1"),
        kind: "BindingPolicy".into(),
        name: policy.metadata.name.clone()?,
        uid: policy.metadata.uid.clone()?,
        controller: Some(true),
        block_owner_deletion: Some(false),
    })
}

/// KS-030: keeps what the Binding lists about objects whose state is unknown. Returns true if there are any.
fn keep_unknown(spec: &mut BindingSpec, live: &BindingSpec, unknown: &UnknownResources) -> bool {
    let wanted: HashSet<_> = spec.entries().map(|entry| entry.place()).collect();
    let kept: Vec<_> = live
        .entries()
        .filter(|entry| unknown.has(entry.group, entry.resource) && !wanted.contains(&entry.place()))
        .collect();
    for entry in &kept {
        spec.workload.push(entry);
    }
    !kept.is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(names: &[(&str, &str)]) -> BindingSpec {
        let entry = |(group, name): &(&str, &str)| json!({"group": group, "version": "v1", "resource": "things", "namespace": "n", "name": name, "resourceVersion": "1"});
        let entries: Vec<_> = names.iter().map(entry).collect();
        serde_json::from_value(json!({"workload": {"namespaceScope": entries, "clusterScope": entries}}))
            .unwrap()
    }

    #[test]
    fn ks_030_what_is_unknown_stays_in_the_binding() {
        let mut wanted = spec(&[("up", "new"), ("down", "seen")]);
        let live = spec(&[("up", "old"), ("down", "seen"), ("down", "kept")]);
        let unknown = UnknownResources { groups: ["down".to_owned()].into(), ..UnknownResources::default() };
        assert!(keep_unknown(&mut wanted, &live, &unknown));
        assert_eq!(wanted, spec(&[("up", "new"), ("down", "seen"), ("down", "kept")]));
    }
}
