//! Carries out one pass over a work: applies and reads objects, then reports and removes (OCM-074 … OCM-076, OCM-087 …
//! OCM-095). [`super::plan`] decides.
//!
//! An object is listed in the AppliedManifestWork before it is created. So everything that the agent created
//! is known to whoever cleans up, whenever the agent dies.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apis::{
    constants::{APPLIED_WORK_FINALIZER, MANIFEST_WORK_FINALIZER, WORK_GROUP},
    ocm::{AppliedManifestWork, ManifestWork, work::AppliedResource},
};
use futures::{StreamExt, stream};
use kube::Error;
use runtime::{
    Next, WithoutManagedFields,
    failure::{is_clash, message_of},
    rest::Removal,
};
use serde_json::json;
use tokio::time::Instant;

use super::{
    leaving::pause,
    objects::{applied_manifest_works, has_finalizer, listed, manifest_works},
    outcome::Done,
    plan::{kinds_defined_by, plan},
    records::{Meta, Todo},
    rules::{LAST_TURN, Target},
    shared::Agent,
    state::Stage,
    steps::{Job, Pass, Plan},
};

impl Agent {
    /// Processes a work. If this fails, `todo` holds what was not done.
    pub(crate) async fn sync(&self, name: &str, todo: &mut Todo) -> Result<Next, Error> {
        loop {
            let stage = self.state.lock().stage(name);
            match stage {
                Stage::Gone(applied) => return self.work_gone(name, applied).await,
                Stage::Finalize(work) => return self.finalize(&work, name).await,
                Stage::Empty(work, applied) => {
                    if let Some(remains) = self.empty_applied(name, &applied).await? {
                        self.say_refused(&work, name, &remains).await?;
                        return Ok(Next::After(pause(&remains)));
                    }
                }
                Stage::Rest => {
                    self.state.lock().freeze(name);
                    return Ok(Next::OnChange);
                }
                Stage::Apply(work) => return self.apply_work(name, work, todo).await,
            }
        }
    }

    async fn apply_work(&self, name: &str, work: Arc<ManifestWork>, todo: &mut Todo) -> Result<Next, Error> {
        let (work, applied) =
            tokio::join!(self.with_finalizer(work.clone()), self.ensure_applied(name, &work));
        let work = match work {
            Ok(work) => work,
            Err(error) => {
                // The work may be gone, and no event would bring back what was just created for it.
                if let Ok((applied, true)) = applied {
                    self.undo_applied(&applied).await?;
                }
                return Err(error);
            }
        };
        match applied {
            Ok((applied, _)) => self.pass(name, &work, applied, todo).await,
            // Nothing can be applied without it (the name is too long, a permission is missing), so this is
            // reported.
            Err(error @ Error::Api(_)) => {
                self.report_failure(name, &work, &message_of(&error)).await?;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// OCM-072.
    async fn with_finalizer(&self, work: Arc<ManifestWork>) -> Result<Arc<ManifestWork>, Error> {
        if has_finalizer(&work) {
            return Ok(work);
        }
        let mut finalizers = work.metadata.finalizers.clone().unwrap_or_default();
        finalizers.push(MANIFEST_WORK_FINALIZER.into());
        let patch = json!({"metadata": {"uid": work.metadata.uid, "resourceVersion": work.metadata.resource_version,
            "finalizers": finalizers}});
        let name = work.metadata.name.clone().unwrap_or_default();
        let answer: Meta =
            self.hub.merge(&manifest_works(), &self.config.cluster_name, &name, &patch).await?;
        let mut work = (*work).clone();
        work.metadata = answer.metadata;
        Ok(Arc::new(work))
    }

    /// Removes an AppliedManifestWork for which nothing was created.
    async fn undo_applied(&self, applied: &AppliedManifestWork) -> Result<(), Error> {
        let (gvr, name) = (applied_manifest_works(), applied.metadata.name.as_deref().unwrap_or_default());
        self.state.lock().drop_applied(name);
        let patch = json!({"metadata": {"uid": applied.metadata.uid, "finalizers": null}});
        let removal = Removal { uid: applied.metadata.uid.clone(), propagation: None };
        self.cluster.merge::<Meta>(&gvr, "", name, &patch).await?;
        self.cluster.delete(&gvr, "", name, &removal).await
    }

    /// OCM-074: creates the AppliedManifestWork. One of an earlier agent is adopted, and one that was to be
    /// evicted is kept (OCM-096). Returns true if it is new.
    async fn ensure_applied(
        &self,
        name: &str,
        work: &ManifestWork,
    ) -> Result<(Arc<AppliedManifestWork>, bool), Error> {
        let gvr = applied_manifest_works();
        let (applied_name, spec, found) = {
            let state = self.state.lock();
            let applied_name = state.applied_name(name);
            let spec = state.applied_spec(name, &applied_name);
            (applied_name, spec, state.applied_of(name))
        };
        let found = match found {
            Some(found) => found,
            None => {
                let mut metadata = json!({"name": applied_name, "finalizers": [APPLIED_WORK_FINALIZER]});
                if let Some(labels) = work.metadata.labels.as_ref().filter(|labels| !labels.is_empty()) {
                    metadata["labels"] = json!(labels);
                }
                let body = json!({"apiVersion": format!("{WORK_GROUP}/v1"), "kind": "AppliedManifestWork",
                    "metadata": metadata, "spec": spec});
                match self.cluster.create(&gvr, "", body.to_string().into_bytes()).await {
                    Ok(WithoutManagedFields(created)) => {
                        return Ok((self.state.lock().remember_applied(created), true));
                    }
                    Err(error) if is_clash(&error) => {
                        let WithoutManagedFields(found) = self.cluster.get(&gvr, "", &applied_name).await?;
                        self.state.lock().remember_applied(found)
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let found = self.keep(found).await?;
        if found.spec == spec {
            return Ok((found, false));
        }
        let patch = json!({"metadata": {"uid": found.metadata.uid}, "spec": spec});
        let WithoutManagedFields(found) = self.cluster.merge(&gvr, "", &applied_name, &patch).await?;
        Ok((self.state.lock().remember_applied(found), false))
    }

    async fn pass(
        &self,
        name: &str,
        work: &ManifestWork,
        applied: Arc<AppliedManifestWork>,
        todo: &mut Todo,
    ) -> Result<Next, Error> {
        let before = self.state.lock().last_status(name, work);
        let (begun, applies) = (Instant::now(), todo.everything || todo.changed);
        let outcome = {
            let pass = Pass::new(name, work, &applied, todo, before);
            self.apply_all(&pass, applied).await
        };
        if applies && outcome.is_err() {
            self.state.lock().measures.broke_off(begun.elapsed());
        }
        let (done, applied) = outcome?;
        if done.iter().any(|d| d.superseded) {
            // The event about the deletion has enqueued the work again.
            return Ok(Next::OnChange);
        }
        let everything = todo.everything;
        *todo = Todo::default();
        {
            let mut state = self.state.lock();
            if applies {
                state.measures.applied(&done, begun.elapsed());
            }
            state.passed(name, everything, Instant::now());
        }
        let (reported, remains) =
            tokio::join!(self.report(name, work, &done), self.track(name, &applied, &done));
        self.feeds.notify_one();
        reported?;
        let remains = remains?;
        if let Some(remains) = &remains {
            self.say_refused(work, name, remains).await?;
        }
        let leaving = remains.filter(|left| !left.is_empty()).map(|left| pause(&left));
        self.state.lock().set_leaving(name, leaving);
        Ok(Next::OnChange)
    }

    /// Does what is planned about all manifests, one turn after the other.
    async fn apply_all(
        &self,
        pass: &Pass<'_>,
        mut applied: Arc<AppliedManifestWork>,
    ) -> Result<(Vec<Done>, Arc<AppliedManifestWork>), Error> {
        let (mut jobs, mut taken) = self.resolve_all(pass).await;
        let defined = kinds_defined_by(&pass.work.spec.workload.manifests);
        let mut plan = self.plan(pass, &jobs, &applied);
        applied = self.list_first(applied, &mut plan).await?;
        let mut done: Vec<(usize, Done)> = Vec::with_capacity(jobs.len());
        for number in 0..=LAST_TURN {
            let turn = plan.turns.get(&number).cloned().unwrap_or_default();
            // The definition is in the same work and may be served by now.
            let mut found = false;
            for ordinal in &turn {
                let job = jobs.get_mut(*ordinal);
                if let Some(job) = job.filter(|job| job.waits_for_own_definition(&defined)) {
                    job.pending = None;
                    self.resolve(pass, job, &mut taken).await;
                    found |= job.resolved_target().is_some();
                }
            }
            if found {
                // What is done already is planned once more, and not done again.
                plan = self.plan(pass, &jobs, &applied);
                applied = self.list_first(applied, &mut plan).await?;
            }
            let steps: Vec<_> = turn
                .iter()
                .filter_map(|ordinal| Some((jobs.get(*ordinal)?, plan.steps.remove(ordinal)?)))
                .map(|(job, step)| async move { (job.ordinal, self.carry_out(pass, job, step).await) })
                .collect();
            let width = self.config.parallel_manifests.max(1);
            done.extend(stream::iter(steps).buffer_unordered(width).collect::<Vec<_>>().await);
        }
        done.sort_by_key(|(ordinal, _)| *ordinal);
        Ok((done.into_iter().map(|(_, done)| done).collect(), applied))
    }

    async fn resolve_all<'a>(&self, pass: &Pass<'a>) -> (Vec<Job<'a>>, BTreeSet<Target>) {
        let manifests = &pass.work.spec.workload.manifests;
        let mut pending = BTreeMap::new();
        if !pass.todo.everything {
            pending = self.state.lock().backoff.pending_outcomes(pass.name, Instant::now());
        }
        let (mut jobs, mut taken) = (Vec::with_capacity(manifests.len()), BTreeSet::new());
        for (ordinal, manifest) in manifests.iter().enumerate() {
            let mut job = Job::new(ordinal, manifest, pending.remove(&ordinal));
            self.resolve(pass, &mut job, &mut taken).await;
            jobs.push(job);
        }
        (jobs, taken)
    }

    fn plan(&self, pass: &Pass<'_>, jobs: &[Job<'_>], applied: &AppliedManifestWork) -> Plan {
        plan(&self.state.lock(), pass, jobs, listed(applied))
    }

    /// Lists the objects to be created in the AppliedManifestWork. One request if there is anything new.
    async fn list_first(
        &self,
        applied: Arc<AppliedManifestWork>,
        plan: &mut Plan,
    ) -> Result<Arc<AppliedManifestWork>, Error> {
        let new: Vec<AppliedResource> = std::mem::take(&mut plan.list_first);
        if new.is_empty() {
            return Ok(applied);
        }
        let list = listed(&applied).iter().cloned().chain(new).collect();
        self.write_applied(&applied, list).await
    }
}
