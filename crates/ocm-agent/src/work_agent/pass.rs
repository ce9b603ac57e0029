//! One pass over a work: applies and reads objects, then reports and removes (OCM-074 … OCM-076, OCM-087 …
//! OCM-095).
//!
//! An object is listed in the AppliedManifestWork before it is created. So everything that the agent created
//! is known to whoever cleans up, whenever the agent dies.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

use apis::{
    constants::{APPLIED_WORK_FINALIZER, MANIFEST_WORK_FINALIZER, WORK_GROUP},
    ocm::{AppliedManifestWork, ManifestWork, work::AppliedResource},
};
use futures::{StreamExt, stream};
use kube::Error;
use runtime::{
    Next,
    failure::{is_clash, message_of},
    rest::Removal,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    agent::{Agent, applied_manifest_works, has_finalizer, is_frozen, labels, listed, manifest_works},
    leaving::pause,
    manifest::{Job, Pass, State},
    outcome::Done,
    records::{Meta, Todo},
    removal,
    rules::{self, Header, Target},
};

/// How long to wait for objects that are being deleted; events report their deletion earlier.
pub(super) const PENDING: Duration = Duration::from_secs(2);

/// How long to wait before the cluster is asked again to delete an object that it refused to delete.
pub(super) const REFUSED: Duration = Duration::from_secs(10);

impl Agent {
    /// Processes a work. If this fails, `todo` holds what was not done.
    pub(crate) async fn sync(self: &Arc<Self>, name: &str, todo: &mut Todo) -> Result<Next, Error> {
        let work = self.works.lock().get(name).cloned();
        let Some(work) = work else { return self.work_gone(name).await };
        if work.metadata.deletion_timestamp.is_some() {
            return self.finalize(&work, name).await;
        }
        if let Some(applied) = self.applied_of(name)
            && applied.metadata.deletion_timestamp.is_some()
            && let Some(remains) = self.empty_applied(name, &applied).await?
        {
            self.say_refused(&work, name, &remains).await?;
            return Ok(Next::After(pause(&remains)));
        }
        if is_frozen(&work) {
            self.freeze(name);
            return Ok(Next::OnChange);
        }
        let (work, applied) = tokio::join!(self.with_finalizer(work.clone()), self.ensure_applied(name));
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
        self.drop_applied(name);
        let patch = json!({"metadata": {"uid": applied.metadata.uid, "finalizers": null}});
        let removal = Removal { uid: applied.metadata.uid.clone(), propagation: None };
        self.cluster.merge::<Meta>(&gvr, "", name, &patch).await?;
        self.cluster.delete(&gvr, "", name, &removal).await
    }

    /// OCM-074: creates the AppliedManifestWork. One of an earlier agent is adopted, and one that was to be
    /// evicted is kept (OCM-096). Returns true if it is new.
    async fn ensure_applied(&self, name: &str) -> Result<(Arc<AppliedManifestWork>, bool), Error> {
        let gvr = applied_manifest_works();
        let applied_name = self.applied_name(name);
        let hash = self.names.hash_of(&applied_name);
        let spec = json!({"hubHash": hash, "manifestWorkName": name, "agentID": self.config.agent_id});
        let found = match self.applied_of(name) {
            Some(found) => found,
            None => {
                let labels = self.works.lock().get(name).map(|work| labels(work)).unwrap_or_default();
                let mut metadata = json!({"name": applied_name, "finalizers": [APPLIED_WORK_FINALIZER]});
                if !labels.is_empty() {
                    metadata["labels"] = json!(labels);
                }
                let body = json!({"apiVersion": format!("{WORK_GROUP}/v1"), "kind": "AppliedManifestWork",
                    "metadata": metadata, "spec": spec});
                match self.cluster.create(&gvr, "", body.to_string().into_bytes()).await {
                    Ok(created) => return Ok((self.remember_applied(created), true)),
                    Err(error) if is_clash(&error) => {
                        self.remember_applied(self.cluster.get(&gvr, "", &applied_name).await?)
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let found = self.keep(found).await?;
        let have = &found.spec;
        if have.hub_hash == hash && have.manifest_work_name == name && have.agent_id == self.config.agent_id {
            return Ok((found, false));
        }
        let patch = json!({"metadata": {"uid": found.metadata.uid}, "spec": spec});
        Ok((self.remember_applied(self.cluster.merge(&gvr, "", &applied_name, &patch).await?), false))
    }

    async fn pass(
        self: &Arc<Self>,
        name: &str,
        work: &ManifestWork,
        applied: Arc<AppliedManifestWork>,
        todo: &mut Todo,
    ) -> Result<Next, Error> {
        let owner = json!({"apiVersion": format!("{WORK_GROUP}/v1"), "kind": "AppliedManifestWork",
            "name": applied.metadata.name, "uid": applied.metadata.uid});
        let known: BTreeSet<Target> = listed(&applied).iter().map(removal::target_of).collect();
        let last = self.last_status(name, work);
        let before = last.or_else(|| work.status.clone()).unwrap_or_default();
        let (begun, applies) = (Instant::now(), todo.everything || todo.changed);
        let outcome = {
            let grants = work.spec.workload.manifests.iter().any(|m| rules::may_grant(&Header::of(m).kind));
            let pass =
                Pass { name, work, owner: &owner, known: &known, todo: &*todo, before: &before, grants };
            self.apply_all(&pass, applied).await
        };
        if applies && outcome.is_err() {
            self.measures.broke_off(begun.elapsed());
        }
        let (done, applied) = outcome?;
        if done.iter().any(|d| d.superseded) {
            // The event about the deletion has enqueued the work again.
            return Ok(Next::OnChange);
        }
        if applies {
            self.measures.applied(&done, begun.elapsed());
        }
        let everything = todo.everything;
        *todo = Todo::default();
        self.plan_pass(name, everything);
        let (reported, remains) =
            tokio::join!(self.report(name, work, &done), self.track(name, &applied, &done));
        self.adjust_feeds();
        reported?;
        let remains = remains?;
        if let Some(remains) = &remains {
            self.say_refused(work, name, remains).await?;
        }
        self.set_leaving(name, remains.filter(|left| !left.is_empty()).map(|left| pause(&left)));
        Ok(Next::OnChange)
    }

    /// Applies all manifests: kinds that others depend on first, custom resources last.
    async fn apply_all(
        &self,
        pass: &Pass<'_>,
        mut applied: Arc<AppliedManifestWork>,
    ) -> Result<(Vec<Done>, Arc<AppliedManifestWork>), Error> {
        let manifests = &pass.work.spec.workload.manifests;
        let mut taken = HashSet::new();
        let mut jobs: Vec<Job<'_>> = Vec::with_capacity(manifests.len());
        for (ordinal, manifest) in manifests.iter().enumerate() {
            let mut job = Job::new(ordinal, manifest);
            if !pass.todo.everything {
                job.pending_outcome = self.backoff.lock().pending_outcome(pass.name, ordinal, Instant::now());
            }
            self.resolve(pass, &mut job, &mut taken).await;
            jobs.push(job);
        }
        applied = self.list_before_creation(applied, &jobs).await?;
        let defined = kinds_defined_by(manifests);
        let mut done: Vec<(usize, Done)> = Vec::with_capacity(jobs.len());
        let has_executor = pass.work.spec.executor.is_some();
        for number in 0..=rules::LAST_TURN {
            let turn = |job: &Job<'_>| rules::turn(&job.header.kind, has_executor) == number;
            let mut found = false;
            for job in jobs.iter_mut().filter(|job| turn(job)) {
                // The CRD is in the same work and may be served by now.
                let own =
                    |(group, kind): &(String, String)| *group == job.header.group && *kind == job.header.kind;
                if matches!(&job.state, State::Settled(d) if d.is_unresolved()) && defined.iter().any(own) {
                    job.pending_outcome = None;
                    self.resolve(pass, job, &mut taken).await;
                    found |= matches!(job.state, State::Resolved(_));
                }
            }
            if found {
                applied = self.list_before_creation(applied, &jobs).await?;
            }
            let turns = jobs
                .iter()
                .filter(|job| turn(job))
                .map(|job| async move { (job.ordinal, self.one(pass, job).await) });
            let turns: Vec<_> = turns.collect();
            let width = self.config.parallel_manifests.max(1);
            done.extend(stream::iter(turns).buffer_unordered(width).collect::<Vec<_>>().await);
        }
        done.sort_by_key(|(ordinal, _)| *ordinal);
        Ok((done.into_iter().map(|(_, done)| done).collect(), applied))
    }

    /// Lists the objects to be created in the AppliedManifestWork. One request if there is anything new.
    async fn list_before_creation(
        &self,
        applied: Arc<AppliedManifestWork>,
        jobs: &[Job<'_>],
    ) -> Result<Arc<AppliedManifestWork>, Error> {
        let new = unlisted(&applied, jobs);
        if new.is_empty() {
            return Ok(applied);
        }
        let list = listed(&applied).iter().cloned().chain(new).collect();
        self.write_applied(&applied, list).await
    }
}

/// Returns the objects to be applied that are not listed yet.
fn unlisted(applied: &AppliedManifestWork, jobs: &[Job<'_>]) -> Vec<AppliedResource> {
    let have: BTreeSet<Target> = listed(applied).iter().map(removal::target_of).collect();
    jobs.iter()
        .filter(|job| job.pending_outcome.is_none())
        .filter_map(|job| match &job.state {
            State::Resolved(resolved) if !have.contains(&resolved.target) => resolved.entry_to_list(),
            _ => None,
        })
        .collect()
}

/// Returns group and kind of what the CRDs among the manifests define.
fn kinds_defined_by(manifests: &[Value]) -> Vec<(String, String)> {
    manifests
        .iter()
        .filter(|m| super::merge::text(m, "kind") == "CustomResourceDefinition")
        .map(|crd| {
            let text =
                |pointer: &str| crd.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            (text("/spec/group"), text("/spec/names/kind"))
        })
        .collect()
}
