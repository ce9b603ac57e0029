//! Conditions of a ControlPlane, with the texts of KubeFlex (SP-007 to SP-009).

use apis::condition::{READY, REASON_AVAILABLE, REASON_ERROR, REASON_PAUSED, REASON_SUCCESS, SYNCED};
use apis::tenancy::TenancyCondition;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Reason while hooks are awaited.
pub(crate) const WAITING: &str = "WaitingForPostCreateHooks";
/// Message while hooks are awaited.
const WAITING_MESSAGE: &str = "Waiting for PostCreateHook completion";

/// What a condition says, without its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) type_: &'static str,
    pub(crate) status: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Verdict {
    fn new(type_: &'static str, status: bool, reason: &'static str, message: impl Into<String>) -> Self {
        Self { type_, status, reason, message: message.into() }
    }

    /// Everything is in place; the message is a remark, or empty.
    pub(crate) fn synced(remark: impl Into<String>) -> Self {
        Self::new(SYNCED, true, REASON_SUCCESS, remark)
    }

    pub(crate) fn sync_failed(why: impl Into<String>) -> Self {
        Self::new(SYNCED, false, REASON_ERROR, why)
    }

    pub(crate) fn paused() -> Self {
        Self::new(SYNCED, true, REASON_PAUSED, "")
    }

    pub(crate) fn available() -> Self {
        Self::new(READY, true, REASON_AVAILABLE, "")
    }

    /// `reason` is Unavailable, Creating or Deleting.
    pub(crate) fn not_ready(reason: &'static str, why: impl Into<String>) -> Self {
        Self::new(READY, false, reason, why)
    }

    pub(crate) fn waiting(details: &str) -> Self {
        let message = if details.is_empty() {
            WAITING_MESSAGE.to_owned()
        } else {
            format!("{WAITING_MESSAGE}: {details}")
        };
        Self::new(READY, false, WAITING, message)
    }
}

/// Puts a verdict into a list of conditions. The time of the transition moves with the status only, and nothing changes
/// if the verdict is the old one (SP-008).
pub(crate) fn put(conditions: &mut Vec<TenancyCondition>, verdict: Verdict, now: Timestamp) {
    let status = if verdict.status { "True" } else { "False" };
    let new = |transition: Time| TenancyCondition {
        type_: verdict.type_.to_owned(),
        status: status.to_owned(),
        last_update_time: Time(now),
        last_transition_time: transition,
        reason: verdict.reason.to_owned(),
        message: verdict.message.clone(),
    };
    match conditions.iter_mut().find(|known| known.type_ == verdict.type_) {
        None => conditions.push(new(Time(now))),
        Some(known) if known.status != status => *known = new(Time(now)),
        Some(known) if known.reason != verdict.reason || known.message != verdict.message => {
            *known = new(known.last_transition_time.clone());
        }
        Some(_) => {}
    }
}

/// Whether clients may use the space: type, status and reason (SP-007).
pub fn is_available(conditions: &[TenancyCondition]) -> bool {
    conditions.iter().any(|c| c.type_ == READY && c.status == "True" && c.reason == REASON_AVAILABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-008: the same verdict changes nothing; another message keeps the time of the transition.
    #[test]
    fn sp_008_times_move_with_what_they_are_about() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut conditions = Vec::new();
        put(&mut conditions, Verdict::not_ready("Unavailable", "a"), at(1));
        put(&mut conditions, Verdict::synced(""), at(1));
        let first = conditions.clone();
        put(&mut conditions, Verdict::not_ready("Unavailable", "a"), at(2));
        assert_eq!(conditions, first);
        put(&mut conditions, Verdict::not_ready("Unavailable", "b"), at(3));
        assert_eq!(conditions[0].last_transition_time.0, at(1));
        assert_eq!(conditions[0].last_update_time.0, at(3));
        put(&mut conditions, Verdict::available(), at(4));
        assert_eq!((conditions[0].last_transition_time.0, conditions.len()), (at(4), 2));
    }

    /// SP-007: all three of type, status and reason count.
    #[test]
    fn sp_007_available_is_type_status_and_reason() {
        let mut conditions = Vec::new();
        assert!(!is_available(&conditions));
        put(&mut conditions, Verdict::synced(""), Timestamp::UNIX_EPOCH);
        put(&mut conditions, Verdict::waiting("x"), Timestamp::UNIX_EPOCH);
        assert!(!is_available(&conditions));
        assert_eq!(conditions[1].message, "Waiting for PostCreateHook completion: x");
        put(&mut conditions, Verdict::available(), Timestamp::UNIX_EPOCH);
        assert!(is_available(&conditions));
        conditions[1].reason = "Creating".into();
        assert!(!is_available(&conditions));
    }
}
