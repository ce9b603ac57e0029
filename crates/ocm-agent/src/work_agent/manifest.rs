//! Processes one manifest of a pass: resolves and applies it (OCM-075 … OCM-092).

use std::collections::{BTreeSet, HashSet};

use apis::ocm::{
    ManifestWork,
    work::{
        AppliedResource, ManifestResourceMeta, ManifestWorkStatus, STRATEGY_CREATE_ONLY, STRATEGY_READ_ONLY,
        STRATEGY_SERVER_SIDE_APPLY,
    },
};
use kube::Error;
use runtime::{
    failure::{is_not_found, message_of},
    mapper::Mapped,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{
    agent::Agent,
    apply::{self, DesiredObject, Failure, Live, Wrote},
    backoff::RetryAt,
    completion,
    conditions::{self, Applied, Available},
    executor, feedback,
    merge::text,
    outcome::Done,
    records::{Hold, Meaning, Record, Todo, Write},
    rules::{self, Header, Target, Treatment},
};

/// The context of a whole pass.
pub(super) struct Pass<'a> {
    pub(super) name: &'a str,
    pub(super) work: &'a ManifestWork,
    pub(super) owner: &'a Value,
    /// The resources that the AppliedManifestWork listed before.
    pub(super) known: &'a BTreeSet<Target>,
    pub(super) todo: &'a Todo,
    pub(super) before: &'a ManifestWorkStatus,
    /// The work holds roles or bindings, so what the executor may do can change with the work itself.
    pub(super) grants: bool,
}

/// One manifest of the pass.
pub(super) struct Job<'a> {
    pub(super) ordinal: usize,
    pub(super) header: Header,
    pub(super) manifest: &'a Value,
    pub(super) state: State,
    /// The reported outcome of an earlier failure, if the manifest is not to be retried in this pass.
    pub(super) pending_outcome: Option<Done>,
}

/// Whether the resource of a manifest is known.
pub(super) enum State {
    /// The resource is known.
    Resolved(Box<Resolved>),
    /// The resource is not known, or the manifest is invalid.
    Settled(Box<Done>),
}

/// The result of reading or writing the object of a manifest.
enum Visited {
    /// The object as it is afterwards.
    Live(Live),
    /// There is no object, and none is to be created.
    Absent,
    /// The work was deleted or replaced in the meantime; nothing was done.
    Superseded,
    /// Nothing was to be read or written: what the record says is still so.
    AsRecorded(Box<Done>),
}

/// Why an object is visited.
enum Purpose {
    /// Apply the manifest.
    Apply,
    /// Read the object; apply the manifest only if the object is gone.
    Look,
    /// The object is as recorded; check only whether the executor may still apply it (OCM-086).
    Recheck(Box<Done>),
}

/// A manifest whose resource is known.
pub(super) struct Resolved {
    meta: ManifestResourceMeta,
    mapped: Mapped,
    pub(super) target: Target,
    treatment: Treatment,
    owned: bool,
    digest: [u8; 32],
    content: [u8; 32],
}

impl Resolved {
    /// Returns the entry that the AppliedManifestWork must list before the object is created, so that it can
    /// be removed again.
    pub(super) fn entry_to_list(&self) -> Option<AppliedResource> {
        let ours = self.owned && self.treatment.strategy.type_ != STRATEGY_READ_ONLY;
        ours.then(|| AppliedResource {
            group: self.mapped.gvr.group.clone(),
            version: self.mapped.gvr.version.clone(),
            resource: self.mapped.gvr.plural.clone(),
            namespace: self.target.namespace.clone(),
            name: self.target.name.clone(),
            uid: String::new(),
        })
    }

    fn hold(&self) -> Hold {
        match self.treatment.strategy.type_.as_str() {
            STRATEGY_READ_ONLY => Hold::Nothing,
            STRATEGY_CREATE_ONLY => Hold::Existence,
            STRATEGY_SERVER_SIDE_APPLY => Hold::Fields,
            _ => Hold::Content,
        }
    }
}

impl<'a> Job<'a> {
    pub(super) fn new(ordinal: usize, manifest: &'a Value) -> Self {
        let header = Header::of(manifest);
        Self { ordinal, header, manifest, state: State::Settled(Box::default()), pending_outcome: None }
    }

    /// Sets the resource of the manifest. `taken` are the objects of earlier manifests.
    fn resolve(
        &mut self,
        pass: &Pass<'_>,
        found: Result<Option<Mapped>, Error>,
        taken: &mut HashSet<Target>,
    ) {
        self.state = match self.resolved(pass, found, taken) {
            Ok(resolved) => State::Resolved(Box::new(resolved)),
            Err(done) => State::Settled(done),
        };
    }

    fn resolved(
        &self,
        pass: &Pass<'_>,
        found: Result<Option<Mapped>, Error>,
        taken: &mut HashSet<Target>,
    ) -> Result<Resolved, Box<Done>> {
        let header = &self.header;
        let mut meta = header.meta(self.ordinal);
        let mapped = match found {
            Ok(Some(mapped)) => mapped,
            Ok(None) => {
                let message = format!("the server doesn't have a resource type {:?}", header.kind);
                return Err(Box::new(Done::unresolved(meta, message)));
            }
            Err(error) => return Err(Box::new(Done::unresolved(meta, message_of(&error)))),
        };
        meta.resource.clone_from(&mapped.gvr.plural);
        if !mapped.namespaced {
            meta.namespace.clear();
        }
        let refused = |meta: &ManifestResourceMeta, message: &str, available| {
            Err(Box::new(Done::refused(meta.clone(), message, available)))
        };
        if meta.name.is_empty() {
            return refused(&meta, "resource name may not be empty", Available::Incomplete);
        }
        if mapped.namespaced && meta.namespace.is_empty() {
            let message = "an empty namespace may not be set when a resource name is provided";
            return refused(&meta, message, Available::No);
        }
        let target = Target {
            group: mapped.gvr.group.clone(),
            resource: mapped.gvr.plural.clone(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
        };
        if !taken.insert(target.clone()) {
            let message = format!(
                "duplicate manifest for resource {}/{} with resource type {}.{}",
                meta.namespace, meta.name, header.api_version, header.kind
            );
            return refused(&meta, &message, Available::Incomplete);
        }
        let treatment = rules::treatment(&pass.work.spec, &target);
        let owned = rules::owned(&pass.work.spec, &target);
        let content = Sha256::digest(self.manifest.to_string()).into();
        let digest = digest(&content, &treatment, owned, pass.owner);
        Ok(Resolved { meta, mapped, target, treatment, owned, digest, content })
    }
}

/// Digest of everything that is required of one object: manifest, treatment and owner.
fn digest(content: &[u8; 32], treatment: &Treatment, owned: bool, owner: &Value) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update(content);
    hasher.update(format!("{treatment:?}{owned}"));
    hasher.update(text(owner, "uid"));
    hasher.finalize().into()
}

impl Agent {
    /// Resolves the resource of a manifest, unless that failed a moment ago.
    pub(super) async fn resolve(&self, pass: &Pass<'_>, job: &mut Job<'_>, taken: &mut HashSet<Target>) {
        let header = &job.header;
        for (field, value) in [("Kind", &header.kind), ("apiVersion", &header.api_version)] {
            if value.is_empty() {
                let shown: String = job.manifest.to_string().chars().take(256).collect();
                let message = format!("Object '{field}' is missing in '{shown}'");
                let done = Done::refused(header.meta(job.ordinal), &message, Available::Incomplete);
                job.state = State::Settled(Box::new(Done { uncertain: true, ..done }));
                return;
            }
        }
        if let Some(done) = job.pending_outcome.as_ref().filter(|done| done.is_unresolved()) {
            job.state = State::Settled(Box::new(done.clone()));
            return;
        }
        let found = self.mapper.by_kind(&header.api_version, &header.kind).await;
        job.resolve(pass, found, taken);
    }

    /// Applies one manifest, or reads its object, or reuses the known outcome, as necessary.
    pub(super) async fn one(&self, pass: &Pass<'_>, job: &Job<'_>) -> Done {
        let resolved = match &job.state {
            State::Resolved(resolved) => resolved,
            State::Settled(done) => return self.note_outcome(pass, job, (**done).clone()),
        };
        let attention = pass.todo.attention(&resolved.target);
        match &job.pending_outcome {
            Some(done) if attention == Meaning::Nothing => return done.clone(),
            Some(done) => return self.look_again(pass, job.ordinal, resolved, done.clone()).await,
            None => {}
        }
        let cached = self.tracker.lock().get(pass.name, &resolved.target).cloned();
        let cached = cached.filter(|record| record.digest == resolved.digest);
        let followed = !resolved.treatment.observes() || self.follows(&resolved.mapped.gvr);
        if let Some(record) = cached.as_ref().filter(|_| attention == Meaning::Nothing && followed) {
            let mut done = record.done.clone();
            done.meta.ordinal = resolved.meta.ordinal;
            done.rivals = self.tracker.lock().rivals(pass.name, &resolved.target);
            if !pass.todo.changed || pass.work.spec.executor.is_none() {
                return done;
            }
            let done = self.visit(pass, job, resolved, Purpose::Recheck(Box::new(done))).await;
            return self.note_outcome(pass, job, done);
        }
        let look_only = cached.is_some() && attention != Meaning::Drift;
        let purpose = if look_only { Purpose::Look } else { Purpose::Apply };
        let done = self.visit(pass, job, resolved, purpose).await;
        self.note_outcome(pass, job, done)
    }

    fn note_outcome(&self, pass: &Pass<'_>, job: &Job<'_>, done: Done) -> Done {
        let mut backoff = self.backoff.lock();
        match done.again {
            _ if done.superseded => {}
            // The outcome of an earlier try.
            Some(_) if job.pending_outcome.is_some() => {}
            Some(again) => backoff.failed(pass.name, job.ordinal, again, done.clone(), Instant::now()),
            None => backoff.clear(pass.name, job.ordinal),
        }
        done
    }

    /// Reads or writes the object in the cluster.
    async fn visit(&self, pass: &Pass<'_>, job: &Job<'_>, resolved: &Resolved, purpose: Purpose) -> Done {
        let target = &resolved.target;
        let mut flight = InFlight::begin(self, pass.name, target);
        let complete = conditions::earlier(&pass.before.resource_status.manifests, &resolved.meta)
            .is_some_and(|entry| completion::is_complete(&entry.conditions));
        let outcome = self.read_or_write(pass, job, resolved, purpose, complete).await;
        let (done, record, write) = match outcome {
            Ok(Visited::AsRecorded(done)) => (*done, None, None),
            Ok(Visited::Live(live)) => {
                let done = self.found(pass, resolved, &live.object).await;
                let hold = if complete { Hold::Nothing } else { resolved.hold() };
                let mut record = record(pass, job, resolved, hold, &live.object, &done);
                if done.again.is_some() {
                    // What could not be reported is tried again.
                    record.digest = [0; 32];
                }
                let write = write_of(live.wrote, &record);
                (done, Some(record), write)
            }
            Ok(Visited::Absent) => {
                let done = Done { meta: resolved.meta.clone(), ..Done::default() };
                let record = record(pass, job, resolved, Hold::Nothing, &Value::Null, &done);
                (done, Some(record), None)
            }
            Ok(Visited::Superseded) => (Done::superseded(resolved.meta.clone()), None, None),
            Err(failure) => {
                let (done, live) = self.after_failure(pass, resolved, failure).await;
                let record = record(pass, job, resolved, Hold::Nothing, &live, &done);
                (done, Some(Record { digest: [0; 32], ..record }), None)
            }
        };
        flight.settled = true;
        let mut tracker = self.tracker.lock();
        let wake = tracker.settle(pass.name, target, record, write, Instant::now());
        let rivals = tracker.rivals(pass.name, target);
        drop(tracker);
        self.wake_all(wake);
        Done { rivals, ..done }
    }

    /// Reads the object, or applies the manifest.
    async fn read_or_write(
        &self,
        pass: &Pass<'_>,
        job: &Job<'_>,
        resolved: &Resolved,
        purpose: Purpose,
        complete: bool,
    ) -> Result<Visited, Failure> {
        let (gvr, target) = (&resolved.mapped.gvr, &resolved.target);
        let look_only = matches!(purpose, Purpose::Look);
        let recorded = match purpose {
            Purpose::Recheck(done) if complete => return Ok(Visited::AsRecorded(done)),
            Purpose::Recheck(done) => Some(done),
            Purpose::Apply | Purpose::Look => None,
        };
        if look_only || complete {
            let found: Result<Option<Value>, Error> =
                self.cluster.find(gvr, &target.namespace, &target.name).await;
            match found {
                Ok(Some(object)) => return Ok(Visited::Live(Live { object, wrote: Wrote::Nothing })),
                Ok(None) if complete || resolved.hold() == Hold::Nothing => return Ok(Visited::Absent),
                Ok(None) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // The delete event of the work may have arrived after this pass began.
        if !self.is_wanted(pass.name, pass.work) {
            return Ok(Visited::Superseded);
        }
        let exists = self.tracker.lock().get(pass.name, target).is_some_and(|record| !record.uid.is_empty());
        let wanted = DesiredObject {
            gvr,
            namespace: &target.namespace,
            name: &target.name,
            manifest: job.manifest,
            treatment: &resolved.treatment,
            owner: pass.owner,
            owned: resolved.owned,
            exists: exists || pass.known.contains(target),
            shared: !self.wanted.lock().others(pass.name, target).is_empty(),
        };
        let executor = pass.work.spec.executor.as_ref();
        executor::check(&self.cluster, executor, &wanted, self.config.executor_retry).await?;
        if let Some(done) = recorded {
            return Ok(Visited::AsRecorded(done));
        }
        Ok(apply::apply(&self.cluster, &wanted).await?.map_or(Visited::Absent, Visited::Live))
    }

    /// Reads what is to be reported from an object that exists.
    async fn found(&self, pass: &Pass<'_>, resolved: &Resolved, live: &Value) -> Done {
        let uid = live.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
        let done = Done::exists(resolved.meta.clone(), &resolved.mapped.gvr, uid);
        let treatment = &resolved.treatment;
        if let Err((why, again)) = self.may_report(pass, resolved).await {
            let feedback = feedback::withheld(&treatment.feedback, &why);
            let ruled = completion::withheld(&treatment.conditions, &why);
            return Done { feedback, ruled, again: Some(again), ..done };
        }
        let (values, feedback) = feedback::read(&treatment.feedback, self.config.raw_feedback, live);
        let ruled = self.rules.judge(&treatment.conditions, live).await;
        Done { feedback, values, ruled, ..done }
    }

    /// Checks whether values of the object may be reported: a work reads nothing that its executor may not `get`. Costs
    /// a request if the work has both an executor and rules for the object.
    async fn may_report(&self, pass: &Pass<'_>, resolved: &Resolved) -> Result<(), (String, RetryAt)> {
        let Some(executor) = pass.work.spec.executor.as_ref() else { return Ok(()) };
        if self.config.unchecked_feedback || !resolved.treatment.observes() {
            return Ok(());
        }
        let (gvr, target) = (&resolved.mapped.gvr, &resolved.target);
        let Err(failure) = executor::may_get(&self.cluster, executor, gvr, target).await else {
            return Ok(());
        };
        let (outcome, again) = self.retry_of(pass, failure);
        Err((outcome.message().to_owned(), again))
    }

    /// A manifest could not be applied. Returns its outcome, with the object if one exists.
    async fn after_failure(&self, pass: &Pass<'_>, resolved: &Resolved, failure: Failure) -> (Done, Value) {
        let forbidden = matches!(failure, Failure::Forbidden(_));
        let unanswered = matches!(failure, Failure::Unanswered(_));
        if matches!(failure, Failure::Missing(_)) {
            self.mapper.forget(&resolved.mapped.gvr.api_version());
        }
        let (applied, again) = self.retry_of(pass, failure);
        let (seen, live) = self.existing(pass, resolved).await;
        // A request without a response may still be executed.
        let uncertain = seen.uncertain || unanswered;
        (Done { applied, again: Some(again), forbidden, uncertain, ..seen }, live)
    }

    /// Returns what to report about a failure, and when to try again.
    fn retry_of(&self, pass: &Pass<'_>, failure: Failure) -> (Applied, RetryAt) {
        let settled = RetryAt::After(self.config.reapply);
        match failure {
            Failure::Again(message)
            | Failure::Forbidden(message)
            | Failure::Unanswered(message)
            | Failure::Missing(message) => (Applied::Failed(message), RetryAt::Backoff),
            Failure::Settled(message) => (Applied::Failed(message), settled),
            // API servers take a moment to know new roles.
            Failure::Denied(message) if pass.grants => (Applied::Failed(message), RetryAt::Backoff),
            Failure::Denied(message) => {
                (Applied::Failed(message), RetryAt::After(self.config.executor_retry))
            }
            Failure::IgnoreFields(message) => (Applied::IgnoreFields(message), settled),
        }
    }

    /// Reads the object of a manifest that could not be applied.
    async fn existing(&self, pass: &Pass<'_>, resolved: &Resolved) -> (Done, Value) {
        let target = &resolved.target;
        let found = self.cluster.find::<Value>(&resolved.mapped.gvr, &target.namespace, &target.name).await;
        let absent = Done { meta: resolved.meta.clone(), ..Done::default() };
        match found {
            Ok(Some(live)) => (self.found(pass, resolved, &live).await, live),
            Ok(None) => (absent, Value::Null),
            // The resource is not served, so it is not known whether the object exists.
            Err(error) if is_not_found(&error) => (Done { uncertain: true, ..absent }, Value::Null),
            Err(error) => {
                let available = Available::Unknown(message_of(&error));
                (Done { available, uncertain: true, ..absent }, Value::Null)
            }
        }
    }

    /// Handles a changed object whose manifest failed and is not to be retried yet.
    async fn look_again(&self, pass: &Pass<'_>, ordinal: usize, resolved: &Resolved, last: Done) -> Done {
        let (seen, _) = self.existing(pass, resolved).await;
        let done = Done { applied: last.applied, again: last.again, forbidden: last.forbidden, ..seen };
        self.backoff.lock().revise(pass.name, ordinal, done.clone());
        done
    }
}

/// Marks an object as being read or written, however that ends; events about it are processed afterwards.
pub(super) struct InFlight<'a> {
    agent: &'a Agent,
    work: &'a str,
    target: &'a Target,
    settled: bool,
}

impl<'a> InFlight<'a> {
    pub(super) fn begin(agent: &'a Agent, work: &'a str, target: &'a Target) -> Self {
        agent.tracker.lock().begin(target);
        Self { agent, work, target, settled: false }
    }

    /// The object was written; the work's record of it stays as it is.
    pub(super) fn wrote(mut self, write: Write) {
        self.settled = true;
        let wake =
            self.agent.tracker.lock().settle(self.work, self.target, None, Some(write), Instant::now());
        self.agent.wake_all(wake);
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.settled {
            let wake = self.agent.tracker.lock().settle(self.work, self.target, None, None, Instant::now());
            self.agent.wake_all(wake);
        }
    }
}

/// Returns what our request wrote, if it wrote anything.
fn write_of(wrote: Wrote, record: &Record) -> Option<Write> {
    let owners_of = match wrote {
        Wrote::Nothing => return None,
        Wrote::Content => None,
        Wrote::Owners(base) => Some(base),
    };
    let (uid, resource_version) = (record.uid.clone(), record.resource_version.clone());
    Some(Write { uid, resource_version, generation: record.generation, owners_of })
}

fn record(
    pass: &Pass<'_>,
    job: &Job<'_>,
    resolved: &Resolved,
    hold: Hold,
    live: &Value,
    done: &Done,
) -> Record {
    let part = |pointer: &str| live.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let pairs = |field: &str| -> Vec<(String, String)> {
        let map = job.manifest.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_object);
        map.into_iter()
            .flatten()
            .filter(|(key, _)| !key.ends_with('-'))
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect()
    };
    Record {
        digest: resolved.digest,
        content: resolved.content,
        gvr: resolved.mapped.gvr.clone(),
        uid: part("/metadata/uid"),
        resource_version: part("/metadata/resourceVersion"),
        generation: live.pointer("/metadata/generation").and_then(Value::as_i64),
        labels: pairs("labels"),
        annotations: pairs("annotations"),
        owner: (resolved.owned && hold != Hold::Nothing).then(|| text(pass.owner, "uid").to_owned()),
        hold,
        observed: resolved.treatment.observes(),
        done: done.clone(),
    }
}
