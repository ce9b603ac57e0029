//! One pass over a work: apply and look here, then report and remove (OCM-074 … OCM-076, OCM-087 … OCM-095).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use apis::{
    constants::{APPLIED_WORK_FINALIZER, MANIFEST_WORK_FINALIZER, WORK_GROUP},
    ocm::{
        AppliedManifestWork, ManifestWork,
        work::{
            AppliedResource, FeedbackValue, ManifestResourceMeta, STRATEGY_CREATE_ONLY, STRATEGY_READ_ONLY,
        },
    },
};
use futures::{StreamExt, stream};
use kube::Error;
use runtime::{
    Next,
    mapper::Mapped,
    rest::{Gvr, is_conflict, is_not_found, message_of},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    agent::{Agent, applied_manifest_works, has_finalizer, labels, listed, manifest_works},
    apply::{self, Failure, Wanted},
    conditions::{Applied, Available, Feedback},
    feedback,
    records::{Meta, Record},
    removal,
    rules::{self, Header, Target, Treatment},
};

/// What a pass has to look at.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    /// What differs from the records: the work changed.
    Changed,
    /// These objects changed in the cluster.
    Objects(BTreeSet<Target>),
    /// All objects: the periodic pass.
    Everything,
}

/// What became of one manifest.
pub(super) struct Done {
    pub(super) meta: ManifestResourceMeta,
    pub(super) applied: Applied,
    pub(super) available: Available,
    pub(super) feedback: Feedback,
    pub(super) values: Vec<FeedbackValue>,
    pub(super) resource: Option<AppliedResource>,
    /// Its identity or existence could not be found out; nothing is removed then (OCM-093).
    pub(super) uncertain: bool,
    pub(super) again: bool,
}

/// How long to wait for objects on their way out, beside the events that tell of their end.
pub(super) const PENDING: Duration = Duration::from_secs(2);

impl Agent {
    pub(crate) async fn sync(self: &Arc<Self>, name: &str, scope: Scope) -> Result<Next, Error> {
        let work = self.works.lock().get(name).cloned();
        let Some(work) = work else { return self.without_work(name).await };
        if work.metadata.deletion_timestamp.is_some() {
            return self.finalize(&work, name).await;
        }
        if let Some(applied) = self.applied_of(name)
            && applied.metadata.deletion_timestamp.is_some()
            && !self.empty_applied(name, &applied).await?
        {
            return Ok(Next::After(PENDING));
        }
        if work.status.iter().flat_map(|s| &s.conditions).any(|c| c.type_ == "Complete" && c.status == "True")
        {
            return Ok(Next::OnChange);
        }
        let (work, applied) = tokio::try_join!(self.with_finalizer(work), self.ensure_applied(name))?;
        self.pass(name, &work, applied, scope).await
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

    /// OCM-074.
    async fn ensure_applied(&self, name: &str) -> Result<Arc<AppliedManifestWork>, Error> {
        let gvr = applied_manifest_works();
        let applied_name = self.applied_name(name);
        let spec = json!({"hubHash": self.hash, "manifestWorkName": name, "agentID": self.config.agent_id});
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
                    Ok(created) => return Ok(self.remember_applied(created)),
                    Err(error) if is_conflict(&error) => {
                        self.remember_applied(self.cluster.get(&gvr, "", &applied_name).await?)
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let have = &found.spec;
        if have.hub_hash == self.hash
            && have.manifest_work_name == name
            && have.agent_id == self.config.agent_id
        {
            return Ok(found);
        }
        let patch = json!({"metadata": {"uid": found.metadata.uid}, "spec": spec});
        Ok(self.remember_applied(self.cluster.merge(&gvr, "", &applied_name, &patch).await?))
    }

    async fn pass(
        self: &Arc<Self>,
        name: &str,
        work: &ManifestWork,
        applied: Arc<AppliedManifestWork>,
        scope: Scope,
    ) -> Result<Next, Error> {
        let owner = json!({"apiVersion": format!("{WORK_GROUP}/v1"), "kind": "AppliedManifestWork",
            "name": applied.metadata.name, "uid": applied.metadata.uid});
        let known: BTreeSet<Target> = listed(&applied).iter().map(removal::target_of).collect();
        let headers: Vec<Header> = work.spec.workload.manifests.iter().map(Header::of).collect();
        let crds = headers_of_crds(work);
        let crds = &crds;
        let mut done: Vec<(usize, Done)> = Vec::with_capacity(headers.len());
        // What others depend on comes first, custom resources last.
        for ranks in [0..=0_u16, 1..=999, 1000..=u16::MAX] {
            let jobs: Vec<_> = headers
                .iter()
                .zip(&work.spec.workload.manifests)
                .enumerate()
                .filter(|(_, (header, _))| ranks.contains(&rules::rank(&header.kind)))
                .map(|(ordinal, (header, manifest))| {
                    let job = Job {
                        name,
                        work,
                        owner: &owner,
                        known: &known,
                        scope: &scope,
                        ordinal,
                        header,
                        manifest,
                    };
                    async move { (ordinal, self.one(&job, crds).await) }
                })
                .collect();
            done.extend(
                stream::iter(jobs)
                    .buffer_unordered(self.config.parallel_manifests.max(1))
                    .collect::<Vec<_>>()
                    .await,
            );
        }
        done.sort_by_key(|(ordinal, _)| *ordinal);
        let done: Vec<Done> = done.into_iter().map(|(_, done)| done).collect();
        let (reported, pending) =
            tokio::join!(self.report(name, work, &done), self.track(name, &applied, &done));
        self.adjust_feeds();
        reported?;
        let pending = pending?;
        if done.iter().any(|d| d.again) {
            return Ok(Next::Retry);
        }
        self.plan_pass(name);
        Ok(if pending { Next::After(PENDING) } else { Next::OnChange })
    }

    async fn resolve(&self, header: &Header, crds: &[(String, String)]) -> Result<Option<Mapped>, Error> {
        let own_crd = crds.iter().any(|(group, kind)| *group == header.group && *kind == header.kind);
        for _ in 0..40 {
            let found = self.mapper.by_kind(&header.api_version, &header.kind).await?;
            if found.is_some() || !own_crd {
                return Ok(found);
            }
            // The definition is in the same work and will be served in a moment.
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        Ok(None)
    }

    async fn one(&self, job: &Job<'_>, crds: &[(String, String)]) -> Done {
        let header = job.header;
        let mut meta = ManifestResourceMeta {
            ordinal: i32::try_from(job.ordinal).unwrap_or(i32::MAX),
            group: header.group.clone(),
            version: header.version.clone(),
            kind: header.kind.clone(),
            name: header.name.clone(),
            namespace: header.namespace.clone(),
            ..ManifestResourceMeta::default()
        };
        let mapped = match self.resolve(header, crds).await {
            Ok(Some(mapped)) => mapped,
            Ok(None) => {
                let message = format!("the server doesn't have a resource type {:?}", header.kind);
                return Done::failed(meta, message, Available::Incomplete);
            }
            Err(error) => return Done::failed(meta, message_of(&error), Available::Incomplete),
        };
        meta.resource.clone_from(&mapped.gvr.plural);
        if !mapped.namespaced {
            meta.namespace.clear();
        }
        let target = Target {
            group: mapped.gvr.group.clone(),
            resource: mapped.gvr.plural.clone(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
        };
        let treatment = rules::treatment(&job.work.spec, &target);
        let owned = rules::owned(&job.work.spec, &target);
        let digest = digest(job, &treatment, owned);
        let record = self.tracker.lock().get(job.name, &target);
        let forced = match job.scope {
            Scope::Changed => false,
            Scope::Objects(objects) => objects.contains(&target),
            Scope::Everything => true,
        };
        if !forced
            && treatment.feedback.is_empty()
            && let Some(record) = record.as_ref().filter(|r| r.digest == digest)
        {
            let uid = record.uid.clone();
            return Done::exists(meta, &mapped.gvr, uid, Feedback::None, Vec::new());
        }
        let wanted = Wanted {
            gvr: &mapped.gvr,
            namespace: &target.namespace,
            name: &target.name,
            manifest: job.manifest,
            treatment: &treatment,
            owner: job.owner,
            owned,
            exists: record.is_some() || job.known.contains(&target),
        };
        let outcome = match (&record, forced) {
            // Nothing to enforce, only to read.
            (Some(record), false) if record.digest == digest => {
                self.cluster.find(&mapped.gvr, &target.namespace, &target.name).await.map_err(Failure::from)
            }
            _ => apply::apply(&self.cluster, &wanted).await,
        };
        match outcome {
            Ok(Some(live)) => {
                let uid = self.record(job, target, &mapped.gvr, &treatment, owned, digest, &live);
                let (values, feedback) = feedback::read(&treatment.feedback, &live);
                Done::exists(meta, &mapped.gvr, uid, feedback, values)
            }
            Ok(None) => {
                self.tracker.lock().forget(job.name, &target);
                Done { applied: Applied::Complete, ..Done::failed(meta, String::new(), Available::No) }
                    .certain()
            }
            Err(failure) => self.after_failure(job, meta, &mapped.gvr, &target, failure).await,
        }
    }

    /// The manifest could not be applied; is there an object all the same?
    async fn after_failure(
        &self,
        job: &Job<'_>,
        meta: ManifestResourceMeta,
        gvr: &Gvr,
        target: &Target,
        failure: Failure,
    ) -> Done {
        self.tracker.lock().forget(job.name, target);
        let (applied, again) = match failure {
            Failure::Again(message) => (Applied::Failed(message), true),
            Failure::Settled(message) => (Applied::Failed(message), false),
            Failure::IgnoreFields(message) => (Applied::IgnoreFields(message), false),
        };
        match self.cluster.find::<Meta>(gvr, &target.namespace, &target.name).await {
            Ok(Some(live)) => {
                let uid = live.metadata.uid.unwrap_or_default();
                Done { applied, again, ..Done::exists(meta, gvr, uid, Feedback::None, Vec::new()) }
            }
            Ok(None) => Done { applied, again, ..Done::failed(meta, String::new(), Available::No) }.certain(),
            Err(error) if is_not_found(&error) => {
                self.mapper.forget(&gvr.api_version());
                Done { applied, again, ..Done::failed(meta, String::new(), Available::No) }.certain()
            }
            Err(error) => Done {
                applied,
                again,
                ..Done::failed(meta, String::new(), Available::Unknown(message_of(&error)))
            },
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one record is made of all of these")]
    fn record(
        &self,
        job: &Job<'_>,
        target: Target,
        gvr: &Gvr,
        treatment: &Treatment,
        owned: bool,
        digest: [u8; 32],
        live: &Value,
    ) -> String {
        let text =
            |pointer: &str| live.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let pairs = |field: &str| -> Vec<(String, String)> {
            let map = job.manifest.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_object);
            map.into_iter()
                .flatten()
                .filter(|(key, _)| !key.ends_with('-'))
                .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                .collect()
        };
        let strategy = treatment.strategy.type_.as_str();
        let read_only = strategy == STRATEGY_READ_ONLY;
        let uid = text("/metadata/uid");
        let record = Record {
            digest,
            gvr: gvr.clone(),
            uid: uid.clone(),
            resource_version: text("/metadata/resourceVersion"),
            generation: live.pointer("/metadata/generation").and_then(Value::as_i64),
            labels: pairs("labels"),
            annotations: pairs("annotations"),
            owner: (owned && !read_only).then(|| super::merge::text(job.owner, "uid").to_owned()),
            enforced: !read_only && strategy != STRATEGY_CREATE_ONLY,
            observed: !treatment.feedback.is_empty(),
        };
        self.tracker.lock().put(job.name, target, record);
        uid
    }
}

struct Job<'a> {
    name: &'a str,
    work: &'a ManifestWork,
    owner: &'a Value,
    known: &'a BTreeSet<Target>,
    scope: &'a Scope,
    ordinal: usize,
    header: &'a Header,
    manifest: &'a Value,
}

/// What is required of one object: manifest, strategy and owner.
fn digest(job: &Job<'_>, treatment: &Treatment, owned: bool) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update(job.manifest.to_string());
    hasher.update(treatment.strategy.type_.as_bytes());
    hasher.update(format!("{:?}{owned}", treatment.strategy.server_side_apply));
    hasher.update(super::merge::text(job.owner, "uid"));
    hasher.finalize().into()
}

/// Group and kind of what the CRDs of a work define.
fn headers_of_crds(work: &ManifestWork) -> Vec<(String, String)> {
    work.spec
        .workload
        .manifests
        .iter()
        .filter(|m| super::merge::text(m, "kind") == "CustomResourceDefinition")
        .map(|crd| {
            let text =
                |pointer: &str| crd.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            (text("/spec/group"), text("/spec/names/kind"))
        })
        .collect()
}

impl Done {
    fn failed(meta: ManifestResourceMeta, message: String, available: Available) -> Self {
        Self {
            meta,
            applied: Applied::Failed(message),
            available,
            feedback: Feedback::None,
            values: Vec::new(),
            resource: None,
            uncertain: true,
            again: true,
        }
    }

    /// It is known that there is no such object.
    fn certain(mut self) -> Self {
        self.uncertain = false;
        if self.applied == Applied::Complete {
            self.again = false;
        }
        self
    }

    fn exists(
        meta: ManifestResourceMeta,
        gvr: &Gvr,
        uid: String,
        feedback: Feedback,
        values: Vec<FeedbackValue>,
    ) -> Self {
        let resource = AppliedResource {
            group: gvr.group.clone(),
            version: gvr.version.clone(),
            resource: gvr.plural.clone(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid,
        };
        Self {
            meta,
            applied: Applied::Complete,
            available: Available::Yes,
            feedback,
            values,
            resource: Some(resource),
            uncertain: false,
            again: false,
        }
    }
}
