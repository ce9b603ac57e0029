//! Decides the status of a ControlPlane from what a pass found. Pure.

use apis::condition::{REASON_CREATING, REASON_DELETING, REASON_UNAVAILABLE};
use apis::tenancy::{ControlPlane, ControlPlaneStatus, SecretReference};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::condition::{Verdict, put};
use crate::hooks::Outcome;

/// What a pass found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Observed {
    pub(crate) space: SpaceState,
    /// `None` if the Secret could not be written: then an earlier reference stays.
    pub(crate) secret_ref: Option<SecretReference>,
    /// The hooks in their order, as far as the pass came.
    pub(crate) hooks: Vec<(String, Outcome)>,
    /// What users should know about a space that serves; or empty.
    pub(crate) remark: String,
}

/// The state of the space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SpaceState {
    /// It is being made.
    Creating,
    /// It answers.
    Serving,
    /// Everything is in place, but it does not answer; why.
    Silent(String),
    /// It answers, but something could not be put in place; what.
    Incomplete(String),
    /// It does not run; why.
    Failed(String),
    /// The user has stopped it.
    Suspended,
    /// It is being deleted.
    Deleting,
}

/// The status of a ControlPlane after a pass. Equal to the known one if nothing changed (SP-008).
pub(crate) fn decide(plane: &ControlPlane, observed: &Observed, now: Timestamp) -> ControlPlaneStatus {
    let mut status = plane.status.clone().unwrap_or_default();
    status.observed_generation = plane.metadata.generation.unwrap_or_default();
    if let Some(secret) = &observed.secret_ref {
        status.secret_ref = Some(secret.clone());
    }
    let waits = plane.spec.wait_for_post_create_hooks.unwrap_or_default();
    let hooks = Hooks::of(&observed.hooks, waits);
    if observed.space == SpaceState::Serving {
        for name in &hooks.applied {
            status.post_create_hooks.insert((*name).to_owned(), true);
        }
        status.post_create_hook_completed = hooks.completed;
    }
    let (synced, ready) = match &observed.space {
        SpaceState::Creating => (None, Some(Verdict::not_ready(REASON_CREATING, ""))),
        SpaceState::Serving => (Some(hooks.synced(waits, &observed.remark)), Some(hooks.ready(waits))),
        SpaceState::Silent(why) => {
            (Some(Verdict::synced("")), Some(Verdict::not_ready(REASON_UNAVAILABLE, why)))
        }
        SpaceState::Incomplete(why) => (Some(Verdict::sync_failed(why)), None),
        SpaceState::Failed(why) => {
            (Some(Verdict::sync_failed(why)), Some(Verdict::not_ready(REASON_UNAVAILABLE, why)))
        }
        SpaceState::Suspended => {
            (Some(Verdict::paused()), Some(Verdict::not_ready(REASON_UNAVAILABLE, "suspended")))
        }
        SpaceState::Deleting => (None, Some(Verdict::not_ready(REASON_DELETING, ""))),
    };
    for verdict in [synced, ready].into_iter().flatten() {
        put(&mut status.conditions, verdict, now);
    }
    status
}

/// The outcomes of all hooks together.
struct Hooks<'a> {
    applied: Vec<&'a str>,
    completed: bool,
    failures: Vec<String>,
    missing: Vec<String>,
    awaited: Vec<String>,
    remarks: Vec<String>,
}

impl<'a> Hooks<'a> {
    fn of(outcomes: &'a [(String, Outcome)], waits: bool) -> Self {
        let mut hooks = Self {
            applied: Vec::new(),
            completed: !outcomes.is_empty(),
            failures: Vec::new(),
            missing: Vec::new(),
            awaited: Vec::new(),
            remarks: Vec::new(),
        };
        for (name, outcome) in outcomes {
            match outcome {
                Outcome::Done { remark } => {
                    hooks.applied.push(name);
                    if !remark.is_empty() {
                        hooks.remarks.push(format!("hook {name}: {remark}"));
                    }
                }
                Outcome::NotReady { why } => {
                    if waits {
                        hooks.completed = false;
                    } else {
                        hooks.applied.push(name);
                    }
                    hooks.awaited.push(format!("hook {name}: {why}"));
                }
                Outcome::Missing { why } => {
                    hooks.completed = false;
                    hooks.missing.push(format!("hook {name}: {why}"));
                }
                Outcome::Interrupted => hooks.completed = false,
                Outcome::Failed { why } => {
                    hooks.completed = false;
                    hooks.failures.push(format!("hook {name}: {why}"));
                }
            }
        }
        hooks
    }

    /// All failures in one message (SP-020). What is only missing shows here if nobody waits for hooks.
    fn synced(&self, waits: bool, remark: &str) -> Verdict {
        let mut failures = self.failures.clone();
        if !waits {
            failures.extend(self.missing.iter().cloned());
        }
        if failures.is_empty() {
            let own = (!remark.is_empty()).then_some(remark);
            let remarks: Vec<&str> = own.into_iter().chain(self.remarks.iter().map(String::as_str)).collect();
            Verdict::synced(remarks.join("; "))
        } else {
            Verdict::sync_failed(format!("errors processing hooks: {}", failures.join("; ")))
        }
    }

    fn ready(&self, waits: bool) -> Verdict {
        let has_none = self.applied.is_empty()
            && self.failures.is_empty()
            && self.missing.is_empty()
            && self.awaited.is_empty();
        if waits && !has_none && !self.completed {
            Verdict::waiting(&[self.missing.clone(), self.awaited.clone()].concat().join("; "))
        } else {
            Verdict::available()
        }
    }
}

/// The merge patch that makes `new` the status; `None` if it is the status already. The patch names the UID, so that
/// another ControlPlane that took the name in between is not changed.
pub(crate) fn patch(plane: &ControlPlane, new: &ControlPlaneStatus) -> Option<Value> {
    if plane.status.as_ref() == Some(new) {
        return None;
    }
    let mut status = json!(new);
    let fields = status.as_object_mut()?;
    // Absent means false, and a merge patch leaves out what is absent.
    fields.insert("postCreateHookCompleted".into(), new.post_create_hook_completed.into());
    Some(json!({"metadata": {"uid": plane.metadata.uid}, "status": status}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::is_available;

    fn plane(waits: bool) -> ControlPlane {
        serde_json::from_value(json!({"metadata": {"name": "wds1", "uid": "u", "generation": 4},
            "spec": {"type": "k8s", "waitForPostCreateHooks": waits}}))
        .unwrap()
    }

    fn observed(hooks: &[(&str, Outcome)]) -> Observed {
        let hooks = hooks.iter().map(|(name, outcome)| ((*name).to_owned(), outcome.clone())).collect();
        Observed { space: SpaceState::Serving, secret_ref: None, hooks, remark: String::new() }
    }

    fn done() -> Outcome {
        Outcome::Done { remark: String::new() }
    }

    fn shown(status: &ControlPlaneStatus) -> Vec<(&str, &str, &str, &str)> {
        let conditions = status.conditions.iter();
        conditions.map(|c| (&*c.type_, &*c.status, &*c.reason, &*c.message)).collect()
    }

    fn after(waits: bool, hooks: &[(&str, Outcome)]) -> ControlPlaneStatus {
        decide(&plane(waits), &observed(hooks), Timestamp::UNIX_EPOCH)
    }

    /// SP-007, SP-010: a space without hooks is ready when it answers, also if it would wait for hooks.
    #[test]
    fn sp_010_a_space_without_hooks() {
        for waits in [false, true] {
            let status = after(waits, &[]);
            assert!(is_available(&status.conditions) && !status.post_create_hook_completed);
            assert_eq!(status.observed_generation, 4);
            assert_eq!(
                shown(&status),
                [("Synced", "True", "ReconcileSuccess", ""), ("Ready", "True", "Available", "")]
            );
        }
    }

    /// SP-072: with waiting, a hook counts once it is ready, and Ready waits for all; without, it counts when applied.
    #[test]
    fn sp_072_waiting_for_hooks() {
        let slow = Outcome::NotReady { why: "Job x is not ready".into() };
        let status = after(true, &[("a", done()), ("b", slow.clone())]);
        assert_eq!(status.post_create_hooks.keys().collect::<Vec<_>>(), ["a"]);
        assert!(!status.post_create_hook_completed);
        let message = "Waiting for PostCreateHook completion: hook b: Job x is not ready";
        assert_eq!(shown(&status)[1], ("Ready", "False", "WaitingForPostCreateHooks", message));
        assert!(is_available(&after(true, &[("a", done()), ("b", done())]).conditions));
        let status = after(false, &[("a", done()), ("b", slow)]);
        assert!(is_available(&status.conditions) && status.post_create_hook_completed);
        assert_eq!(status.post_create_hooks.len(), 2);
    }

    /// SP-020: all failures in one message; without waiting the space is usable all the same.
    #[test]
    fn sp_020_failures_of_hooks_are_listed_together() {
        let failed = |why: &str| Outcome::Failed { why: why.into() };
        for waits in [false, true] {
            let status = after(waits, &[("a", failed("one")), ("b", done()), ("c", failed("two"))]);
            let message = "errors processing hooks: hook a: one; hook c: two";
            assert_eq!(shown(&status)[0], ("Synced", "False", "ReconcileError", message));
            assert_eq!(is_available(&status.conditions), !waits);
            assert_eq!(status.post_create_hooks.keys().collect::<Vec<_>>(), ["b"]);
        }
    }

    /// SP-028: what a hook waits for is told.
    #[test]
    fn sp_028_a_missing_its_is_told() {
        let missing = Outcome::Missing { why: "name one of the ITSes its1, its2 in ITSName".into() };
        let status = after(true, &[("a", missing.clone())]);
        assert_eq!(shown(&status)[0].1, "True");
        assert!(shown(&status)[1].3.ends_with("hook a: name one of the ITSes its1, its2 in ITSName"));
        assert_eq!(shown(&after(false, &[("a", missing)]))[0].1, "False");
    }

    /// SP-009, SP-043, SP-050: reasons of a space that does not serve; what hooks have done stays known.
    #[test]
    fn sp_009_reasons_of_a_space_that_does_not_serve() {
        let mut known = plane(false);
        known.status = Some(after(false, &[("a", done())]));
        let next = |space| {
            let observed = Observed { space, secret_ref: None, hooks: vec![], remark: String::new() };
            let status = decide(&known, &observed, Timestamp::UNIX_EPOCH);
            assert!(status.post_create_hooks["a"]);
            let shown = shown(&status).into_iter().map(|(a, b, c, d)| format!("{a} {b} {c} {d}"));
            shown.collect::<Vec<_>>()
        };
        let synced = "Synced True ReconcileSuccess ";
        assert_eq!(next(SpaceState::Creating), [synced, "Ready False Creating "]);
        assert_eq!(next(SpaceState::Deleting), [synced, "Ready False Deleting "]);
        assert_eq!(next(SpaceState::Silent("401".into())), [synced, "Ready False Unavailable 401"]);
        let paused = "Synced True ReconcilePaused ";
        assert_eq!(next(SpaceState::Suspended), [paused, "Ready False Unavailable suspended"]);
        let failed = "Synced False ReconcileError x";
        assert_eq!(next(SpaceState::Failed("x".into())), [failed, "Ready False Unavailable x"]);
        assert_eq!(next(SpaceState::Incomplete("x".into())), [failed, "Ready True Available "]);
    }

    /// SP-008: nothing is written if nothing changed; what became false is written.
    #[test]
    fn sp_008_an_unchanged_status_is_not_written() {
        let mut known = plane(true);
        let first = decide(&known, &observed(&[("a", done())]), Timestamp::UNIX_EPOCH);
        assert!(patch(&known, &first).is_some());
        known.status = Some(first);
        let later = Timestamp::from_second(9).unwrap();
        let same = decide(&known, &observed(&[("a", done())]), later);
        assert_eq!(patch(&known, &same), None);
        let slow = observed(&[("a", Outcome::NotReady { why: "x".into() })]);
        let patch = patch(&known, &decide(&known, &slow, later)).unwrap();
        assert_eq!(patch["status"]["postCreateHookCompleted"], false);
        assert_eq!(patch["metadata"]["uid"], "u");
    }
}
