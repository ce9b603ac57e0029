//! The status of a work: made from what a pass found, written when it differs (OCM-004, OCM-087 … OCM-090).

use apis::ocm::{
    ManifestWork,
    work::{ManifestCondition, ManifestWorkStatus},
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::Error;
use runtime::rest::{is_conflict, is_not_found};
use serde_json::json;

use super::{
    agent::{Agent, manifest_works},
    conditions::{self, Available},
    pass::Done,
    records::Meta,
};

impl Agent {
    /// Writes the work's status when it differs (OCM-004, OCM-162).
    pub(super) async fn report(&self, name: &str, work: &ManifestWork, done: &[Done]) -> Result<(), Error> {
        let last = self.statuses.lock().get(name).cloned();
        let old = last.or_else(|| work.status.clone()).unwrap_or_default();
        let generation = work.metadata.generation.unwrap_or_default();
        let new = next_status(&old, done, generation, &Time(Timestamp::now()));
        let shown = work.status.as_ref();
        if new == old && shown.is_some_and(|s| *s == new) {
            return Ok(());
        }
        if new == old && self.statuses.lock().contains_key(name) {
            return Ok(());
        }
        self.write_status(name, work, &new).await?;
        self.statuses.lock().insert(name.to_owned(), new);
        Ok(())
    }

    pub(super) async fn write_status(
        &self,
        name: &str,
        work: &ManifestWork,
        status: &ManifestWorkStatus,
    ) -> Result<(), Error> {
        let gvr = manifest_works();
        let mut version = work.metadata.resource_version.clone();
        for attempt in 0.. {
            let patch =
                json!({"metadata": {"uid": work.metadata.uid, "resourceVersion": version}, "status": status});
            match self.hub.merge_status::<Meta>(&gvr, &self.config.cluster_name, name, &patch).await {
                Ok(_) => return Ok(()),
                Err(error) if is_conflict(&error) && attempt < 5 => {
                    let Some(live) = self.hub.find::<Meta>(&gvr, &self.config.cluster_name, name).await?
                    else {
                        return Ok(());
                    };
                    // A newer spec will be reported on by its own pass.
                    if live.metadata.uid != work.metadata.uid
                        || live.metadata.generation != work.metadata.generation
                    {
                        self.tracker.lock().mark(name);
                        self.queue.add(name.to_owned());
                        return Ok(());
                    }
                    version = live.metadata.resource_version;
                }
                Err(error) if is_not_found(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The status that follows from an earlier one and what a pass found.
fn next_status(old: &ManifestWorkStatus, done: &[Done], generation: i64, now: &Time) -> ManifestWorkStatus {
    let mut status =
        ManifestWorkStatus { conditions: old.conditions.clone(), ..ManifestWorkStatus::default() };
    for one in done {
        let before = conditions::earlier(&old.resource_status.manifests, &one.meta);
        let mut entry = ManifestCondition {
            resource_meta: one.meta.clone(),
            conditions: before.map(|b| b.conditions.clone()).unwrap_or_default(),
            status_feedback: before.map(|b| b.status_feedback.clone()).unwrap_or_default(),
        };
        conditions::set(&mut entry.conditions, one.applied.condition(generation, now), true);
        conditions::set(&mut entry.conditions, one.available.condition(now), false);
        if one.available == Available::Yes {
            if entry.status_feedback.values != one.values {
                // New values renew the condition (OCM-090).
                entry.conditions.retain(|c| c.type_ != "StatusFeedbackSynced");
                entry.status_feedback.values.clone_from(&one.values);
            }
            conditions::set(&mut entry.conditions, one.feedback.condition(now), false);
        }
        status.resource_status.manifests.push(entry);
    }
    let manifests = &status.resource_status.manifests;
    let applied = conditions::work_applied(manifests, generation, now);
    let available = conditions::work_available(manifests, generation, now);
    conditions::set(&mut status.conditions, applied, true);
    conditions::set(&mut status.conditions, available, false);
    status
}
