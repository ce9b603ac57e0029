//! Carries out what is planned about one manifest (OCM-075 … OCM-092).

use std::collections::BTreeSet;

use kube::Error;
use runtime::failure::{is_not_found, message_of};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    apply::{self, DesiredObject, Failure, Live, Wrote},
    backoff::RetryAt,
    completion,
    conditions::{self, Applied, Available},
    executor, feedback,
    flight::InFlight,
    merge::text,
    outcome::Done,
    records::{Hold, Record, Write},
    rules::Target,
    shared::Agent,
    state::Wake,
    steps::{Job, Pass, Resolved, Resource, Step},
};

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

impl Agent {
    /// Resolves the resource of a manifest, unless that failed a moment ago.
    pub(super) async fn resolve(&self, pass: &Pass<'_>, job: &mut Job<'_>, taken: &mut BTreeSet<Target>) {
        if job.settled_without_resource() {
            return;
        }
        let found = self.mapper.by_kind(&job.header.api_version, &job.header.kind).await;
        job.resolve(pass, found.map_err(|error| message_of(&error)), taken);
    }

    /// Does what is planned about one manifest.
    pub(super) async fn carry_out(&self, pass: &Pass<'_>, job: &Job<'_>, step: Step) -> Done {
        let resolved = match &job.resource {
            Resource::Known(resolved) => resolved,
            Resource::Settled(done) => return self.note_outcome(pass, job, (**done).clone()),
        };
        match step {
            Step::Report(done) => *done,
            Step::LookAgain(done) => self.look_again(pass, job.ordinal, resolved, *done).await,
            Step::Recheck(_) | Step::Look | Step::Apply => {
                let done = self.visit(pass, job, resolved, step).await;
                self.note_outcome(pass, job, done)
            }
        }
    }

    fn note_outcome(&self, pass: &Pass<'_>, job: &Job<'_>, done: Done) -> Done {
        let backoff = &mut self.state.lock().backoff;
        match done.again {
            _ if done.superseded => {}
            // The outcome of an earlier try.
            Some(_) if job.pending.is_some() => {}
            Some(again) => backoff.failed(pass.name, job.ordinal, again, done.clone(), Instant::now()),
            None => backoff.clear(pass.name, job.ordinal),
        }
        done
    }

    /// Reads or writes the object in the cluster.
    async fn visit(&self, pass: &Pass<'_>, job: &Job<'_>, resolved: &Resolved, step: Step) -> Done {
        let target = &resolved.target;
        let flight = InFlight::begin(self, pass.name, target);
        let complete = conditions::earlier(&pass.before.resource_status.manifests, &resolved.meta)
            .is_some_and(|entry| completion::is_complete(&entry.conditions));
        let outcome = self.read_or_write(pass, job, resolved, step, complete).await;
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
        flight.recorded();
        let mut state = self.state.lock();
        let wake = state.tracker.settle(pass.name, target, record, write, Instant::now());
        let rivals = state.tracker.rivals(pass.name, target);
        drop(state);
        self.wake(Wake::later(wake));
        Done { rivals, ..done }
    }

    /// Reads the object, or applies the manifest.
    async fn read_or_write(
        &self,
        pass: &Pass<'_>,
        job: &Job<'_>,
        resolved: &Resolved,
        step: Step,
        complete: bool,
    ) -> Result<Visited, Failure> {
        let (gvr, target) = (&resolved.mapped.gvr, &resolved.target);
        let look_only = matches!(step, Step::Look);
        let recorded = match step {
            Step::Recheck(done) if complete => return Ok(Visited::AsRecorded(done)),
            Step::Recheck(done) => Some(done),
            _ => None,
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
        let (exists, shared) = {
            let state = self.state.lock();
            if !state.is_wanted(pass.name, pass.work) {
                return Ok(Visited::Superseded);
            }
            let exists = state.tracker.get(pass.name, target).is_some_and(|record| !record.uid.is_empty());
            (exists, !state.others(pass.name, target).is_empty())
        };
        let wanted = DesiredObject {
            gvr,
            namespace: &target.namespace,
            name: &target.name,
            manifest: job.manifest,
            treatment: &resolved.treatment,
            owner: &pass.owner,
            owned: resolved.owned,
            exists: exists || pass.known.contains(target),
            shared,
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
        self.state.lock().backoff.revise(pass.name, ordinal, done.clone());
        done
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
        owner: (resolved.owned && hold != Hold::Nothing).then(|| text(&pass.owner, "uid").to_owned()),
        hold,
        observed: resolved.treatment.observes(),
        done: done.clone(),
    }
}
