//! Computes the status of a work from the outcomes of a pass, and writes it if it differs (OCM-004, OCM-087 …
//! OCM-091).

use apis::ocm::{
    ManifestWork,
    work::{ManifestCondition, ManifestWorkStatus},
};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use kube::{Error, core::params::Preconditions};
use ocm_shared::conditions::set;
use runtime::failure::{code_of, is_clash, is_not_found, message_of};
use serde::Serialize;
use tokio::time::Instant;

use super::{
    completion::{self, is_rule_made},
    conditions::{self, Available},
    objects::manifest_works,
    outcome::Done,
    records::Meta,
    shared::Agent,
    state::Wake,
};

impl Agent {
    /// Writes the work's status if it differs (OCM-004). Only one worker at a time processes a work, and no
    /// other client writes its status (OCM-162).
    pub(super) async fn report(&self, name: &str, work: &ManifestWork, done: &[Done]) -> Result<(), Error> {
        let old = self.state.lock().last_status(name, work);
        let generation = work.metadata.generation.unwrap_or_default();
        let now = Time(Timestamp::now());
        let new = next_status(&old, done, generation, &now);
        {
            let measures = &mut self.state.lock().measures;
            measures.count(name, &new.resource_status.manifests);
            if new == old {
                measures.reported(name, false, Instant::now());
                return Ok(());
            }
        }
        let written = match self.write_status(name, work, &old, &new).await {
            Ok(()) => new,
            Err(error) if is_too_large(&error) => {
                let cut = without_feedback(new, &now);
                self.write_status(name, work, &old, &cut).await?;
                cut
            }
            Err(error) => return Err(error),
        };
        let mut state = self.state.lock();
        state.remember_status(name, work, written);
        state.measures.reported(name, true, Instant::now());
        Ok(())
    }

    /// Reports that nothing of the work could be applied.
    pub(super) async fn report_failure(
        &self,
        name: &str,
        work: &ManifestWork,
        message: &str,
    ) -> Result<(), Error> {
        let old = self.state.lock().last_status(name, work);
        let generation = work.metadata.generation.unwrap_or_default();
        let failed = conditions::work_failed(message, generation, &Time(Timestamp::now()));
        let mut new = old.clone();
        set(&mut new.conditions, failed);
        if new != old {
            self.write_status(name, work, &old, &new).await?;
            self.state.lock().remember_status(name, work, new);
        }
        Ok(())
    }

    pub(super) async fn write_status(
        &self,
        name: &str,
        work: &ManifestWork,
        old: &ManifestWorkStatus,
        new: &ManifestWorkStatus,
    ) -> Result<(), Error> {
        let gvr = manifest_works();
        let mut version = work.metadata.resource_version.clone();
        let change = Change::new(old, new);
        for attempt in 0.. {
            let of = Preconditions { uid: work.metadata.uid.clone(), resource_version: version };
            let patch = StatusPatch { metadata: of, status: &change };
            let cluster = &self.config.cluster_name;
            match self.hub.merge_status_metadata::<Meta>(&gvr, cluster, name, &patch).await {
                Ok(_) => return Ok(()),
                Err(error) if is_clash(&error) && attempt < 5 => {
                    let Some(live) = self.hub.find::<Meta>(&gvr, &self.config.cluster_name, name).await?
                    else {
                        return Ok(());
                    };
                    // A newer spec gets a report of its own pass.
                    if live.metadata.uid != work.metadata.uid
                        || live.metadata.generation != work.metadata.generation
                    {
                        self.state.lock().tracker.mark(name);
                        self.wake(vec![Wake::work(name)]);
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

/// A merge patch of a status. It is encoded directly, because building a tree of thousands of conditions
/// costs more than everything else.
#[derive(Serialize)]
pub(super) struct StatusPatch<S> {
    pub(super) metadata: Preconditions,
    pub(super) status: S,
}

/// The part of the status that differs; lists are replaced as a whole.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Change<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    conditions: Option<&'a [Condition]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_status: Option<Manifests<'a>>,
}

/// An empty list is written, too.
#[derive(Serialize)]
struct Manifests<'a> {
    manifests: &'a [ManifestCondition],
}

impl<'a> Change<'a> {
    fn new(old: &ManifestWorkStatus, new: &'a ManifestWorkStatus) -> Self {
        let manifests = Manifests { manifests: &new.resource_status.manifests };
        Self {
            conditions: (old.conditions != new.conditions).then_some(&*new.conditions),
            resource_status: (old.resource_status != new.resource_status).then_some(manifests),
        }
    }
}

/// Returns whether the error is one of those that API servers and their stores return for objects beyond
/// their limits.
fn is_too_large(error: &Error) -> bool {
    let message = message_of(error).to_lowercase();
    code_of(error) == 413
        || (matches!(code_of(error), 400 | 500)
            && (message.contains("too large") || message.contains("larger than")))
}

fn without_feedback(mut status: ManifestWorkStatus, now: &Time) -> ManifestWorkStatus {
    for manifest in &mut status.resource_status.manifests {
        manifest.status_feedback.values.clear();
    }
    set(&mut status.conditions, conditions::truncated(now));
    status
}

/// Computes the status from an earlier one and the outcomes of a pass.
fn next_status(old: &ManifestWorkStatus, done: &[Done], generation: i64, now: &Time) -> ManifestWorkStatus {
    let mut status =
        ManifestWorkStatus { conditions: old.conditions.clone(), ..ManifestWorkStatus::default() };
    for one in done {
        let before = conditions::earlier(&old.resource_status.manifests, &one.meta);
        status.resource_status.manifests.push(next_entry(before, one, generation, now));
    }
    let manifests = &status.resource_status.manifests;
    let forbidden = done.iter().find(|d| d.forbidden).map(|d| {
        let dot = if d.meta.group.is_empty() { "" } else { "." };
        format!("{}{dot}{}", d.meta.resource, d.meta.group)
    });
    let applied = conditions::work_applied(manifests, forbidden.as_deref(), generation, now);
    let available = conditions::work_available(manifests, generation, now);
    let ruled = completion::aggregate(manifests, generation, now);
    status.conditions.retain(|c| {
        c.type_ != conditions::TRUNCATED && (!is_rule_made(c) || ruled.iter().any(|r| r.type_ == c.type_))
    });
    set(&mut status.conditions, applied);
    set(&mut status.conditions, available);
    for condition in ruled {
        set(&mut status.conditions, condition);
    }
    status
}

fn next_entry(
    before: Option<&ManifestCondition>,
    one: &Done,
    generation: i64,
    now: &Time,
) -> ManifestCondition {
    let mut entry = ManifestCondition {
        resource_meta: one.meta.clone(),
        conditions: before.map(|b| b.conditions.clone()).unwrap_or_default(),
        status_feedback: before.map(|b| b.status_feedback.clone()).unwrap_or_default(),
    };
    set(&mut entry.conditions, one.applied.condition(generation, now));
    set(&mut entry.conditions, one.available.condition(now));
    if one.available == Available::Yes {
        if entry.status_feedback.values != one.values {
            // New values renew the condition (OCM-090).
            entry.conditions.retain(|c| c.type_ != "StatusFeedbackSynced");
            entry.status_feedback.values.clone_from(&one.values);
        }
        set(&mut entry.conditions, one.feedback.condition(now));
        // The rules describe the present object: conditions of removed rules are removed (OCM-091).
        entry.conditions.retain(|c| !is_rule_made(c) || one.ruled.iter().any(|r| r.type_ == c.type_));
        for ruled in &one.ruled {
            set(&mut entry.conditions, ruled.condition(generation, now));
        }
    }
    entry.conditions.retain(|c| c.type_ != conditions::CONFLICTED || !one.rivals.is_empty());
    if !one.rivals.is_empty() {
        set(&mut entry.conditions, conditions::conflicted(&one.rivals, now));
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    use crate::work_agent::{
        completion::Ruled,
        conditions::{Applied, Feedback},
    };
    use apis::ocm::work::{FeedbackValue, ManifestResourceMeta};

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).expect("in range"))
    }

    fn there(values: &[&str]) -> Done {
        let value = |name: &&str| FeedbackValue { name: (*name).into(), ..FeedbackValue::default() };
        let meta = ManifestResourceMeta { name: "x".into(), ..ManifestResourceMeta::default() };
        Done {
            meta,
            available: Available::Yes,
            feedback: Feedback::Synced,
            values: values.iter().map(value).collect(),
            ..Done::default()
        }
    }

    fn time_of(status: &ManifestWorkStatus, type_: &str) -> i64 {
        let conditions = &status.resource_status.manifests[0].conditions;
        let found = conditions.iter().find(|c| c.type_ == type_).expect("a condition");
        found.last_transition_time.0.as_second()
    }

    /// OCM-A-51: the time of Applied changes with its status only, that of feedback with its values.
    #[test]
    fn ocm_087_times_in_a_status() {
        let first = next_status(&ManifestWorkStatus::default(), &[there(&["a"])], 1, &at(1));
        assert_eq!(next_status(&first, &[there(&["a"])], 1, &at(2)), first, "nothing new, nothing to write");
        let fed = next_status(&first, &[there(&["b"])], 1, &at(3));
        assert_eq!((time_of(&fed, "Applied"), time_of(&fed, "StatusFeedbackSynced")), (1, 3));
        let newer = next_status(&fed, &[there(&["b"])], 2, &at(4));
        assert_eq!((time_of(&newer, "Applied"), time_of(&newer, "StatusFeedbackSynced")), (1, 3));
        assert_eq!(newer.resource_status.manifests[0].conditions[0].observed_generation, Some(2));
        assert_eq!(newer.conditions[0].observed_generation, Some(2));
        let failed = Done { applied: Applied::Failed("no".into()), ..there(&["b"]) };
        assert_eq!(time_of(&next_status(&newer, &[failed], 2, &at(5)), "Applied"), 5, "the status moved");
        assert_eq!(newer.conditions[0].last_transition_time, at(1), "the work's own time follows its status");
    }

    /// OCM-091: conditions of rules appear and disappear with the rules; those of a deleted object stay.
    #[test]
    fn ocm_091_conditions_of_rules_in_a_status() {
        let ruled = Ruled {
            type_: "Complete".into(),
            status: "True",
            reason: "ConditionRuleEvaluated",
            message: "m".into(),
        };
        let with = Done { ruled: vec![ruled], ..there(&[]) };
        let status = next_status(&ManifestWorkStatus::default(), &[with], 1, &at(1));
        assert!(completion::is_complete(&status.conditions));
        assert!(completion::is_complete(&status.resource_status.manifests[0].conditions));
        let gone = Done { available: Available::No, ..there(&[]) };
        assert!(completion::is_complete(&next_status(&status, &[gone], 2, &at(2)).conditions));
        let without = next_status(&status, &[there(&[])], 2, &at(2));
        assert!(without.conditions.iter().all(|c| c.type_ != "Complete"));
    }

    #[test]
    fn ocm_085_conflicts_and_ocm_076_the_first_forbidden_kind() {
        let rivals = Done { rivals: vec!["other".into()], ..there(&[]) };
        let status = next_status(&ManifestWorkStatus::default(), &[rivals], 1, &at(1));
        let conditions = &status.resource_status.manifests[0].conditions;
        assert!(conditions.iter().any(|c| c.type_ == "Conflicted" && c.message.ends_with(": other")));
        let settled = next_status(&status, &[there(&[])], 1, &at(2));
        assert!(settled.resource_status.manifests[0].conditions.iter().all(|c| c.type_ != "Conflicted"));

        let mut forbidden = Done { applied: Applied::Failed("no".into()), forbidden: true, ..there(&[]) };
        (forbidden.meta.resource, forbidden.meta.group) =
            ("roles".into(), "rbac.authorization.k8s.io".into());
        let status = next_status(&ManifestWorkStatus::default(), &[forbidden], 1, &at(1));
        assert_eq!(
            status.conditions[0].message,
            "Failed to apply manifest work: the work agent may not write roles.rbac.authorization.k8s.io"
        );
    }

    #[test]
    fn ocm_004_only_what_changed_is_sent_and_what_is_too_large_is_cut() {
        let first = next_status(&ManifestWorkStatus::default(), &[there(&["a"])], 1, &at(1));
        let fed = next_status(&first, &[there(&["b"])], 1, &at(3));
        let change = |old, new| serde_json::to_value(Change::new(old, new)).expect("plain JSON");
        let sent = change(&first, &fed);
        assert!(sent.get("conditions").is_none() && sent.get("resourceStatus").is_some(), "{sent}");
        let none = next_status(&fed, &[], 2, &at(4));
        assert_eq!(
            change(&fed, &none)["resourceStatus"],
            json!({"manifests": []}),
            "what went is said to be gone"
        );
        let cut = without_feedback(fed, &at(5));
        assert!(cut.resource_status.manifests[0].status_feedback.values.is_empty());
        assert!(cut.conditions.iter().any(|c| c.type_ == "StatusTruncated"));
    }
}
