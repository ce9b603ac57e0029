//! Conditions of the `control.kubestellar.io` kinds (KS-008).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Condition type: the Binding equals what the policy asks for.
pub const SYNCED: &str = "Synced";
/// Condition type: what the policy asks for is on its way to the clusters.
pub const READY: &str = "Ready";
/// Condition type: every StatusCollector that the policy names is there and valid.
pub const STATUS_COLLECTORS_AVAILABLE: &str = "StatusCollectorsAvailable";

/// Reason of `Ready=True`.
pub const REASON_AVAILABLE: &str = "Available";
/// Reason of `Ready=False`.
pub const REASON_UNAVAILABLE: &str = "Unavailable";
/// Reason while something is being made.
pub const REASON_CREATING: &str = "Creating";
/// Reason while something is being removed.
pub const REASON_DELETING: &str = "Deleting";
/// Reason of a success.
pub const REASON_SUCCESS: &str = "ReconcileSuccess";
/// Reason of a failure.
pub const REASON_ERROR: &str = "ReconcileError";
/// Reason while nothing is done on purpose.
pub const REASON_PAUSED: &str = "ReconcilePaused";

/// One aspect of an object's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What the condition is about.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    #[serde(default)]
    #[schemars(extend("x-required" = true))]
    pub status: String,
    /// When another part of this condition changed last.
    #[serde(default = "crate::schema::epoch")]
    #[schemars(extend("x-required" = true), schema_with = "crate::schema::time")]
    pub last_transition_time: Time,
    /// One word for the state.
    #[serde(default)]
    #[schemars(extend("x-required" = true))]
    pub reason: String,
    /// The state in words.
    #[serde(default)]
    #[schemars(extend("x-required" = true))]
    pub message: String,
}

impl Condition {
    /// Creates a condition as of `now`.
    pub fn new(type_: &str, status: bool, reason: &str, message: impl Into<String>, now: Time) -> Self {
        Self {
            type_: type_.into(),
            status: if status { "True" } else { "False" }.into(),
            last_transition_time: now,
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// Compares two conditions without the time (KS-008).
    pub fn same(&self, other: &Self) -> bool {
        (&self.type_, &self.status, &self.reason, &self.message)
            == (&other.type_, &other.status, &other.reason, &other.message)
    }
}

/// Replaces the condition of the type of `new`. If they are equal the old time stays (KS-008).
///
/// Returns true if anything changed.
pub fn set(conditions: &mut Vec<Condition>, new: Condition) -> bool {
    match conditions.iter_mut().find(|old| old.type_ == new.type_) {
        Some(old) if old.same(&new) => false,
        Some(old) => {
            *old = new;
            true
        }
        None => {
            conditions.push(new);
            true
        }
    }
}

/// Compares two lists without the times.
pub fn same(left: &[Condition], right: &[Condition]) -> bool {
    left.len() == right.len() && left.iter().zip(right).all(|(a, b)| a.same(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Time {
        Time(k8s_openapi::jiff::Timestamp::from_second(seconds).unwrap())
    }

    #[test]
    fn ks_008_time_moves_only_with_another_part() {
        let mut list = vec![];
        assert!(set(&mut list, Condition::new(SYNCED, true, REASON_SUCCESS, "", at(1))));
        assert!(!set(&mut list, Condition::new(SYNCED, true, REASON_SUCCESS, "", at(2))));
        assert_eq!(list[0].last_transition_time, at(1));
        assert!(set(&mut list, Condition::new(SYNCED, true, REASON_SUCCESS, "other", at(3))));
        assert_eq!(list[0].last_transition_time, at(3));
    }
}
