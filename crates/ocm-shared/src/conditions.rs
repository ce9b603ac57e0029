//! Conditions that hub, add-on manager and agents write. Pure; the time comes as an argument.

use apis::ocm::cluster::CONDITION_ROTATED;
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use machinery::conditions::transition;

/// A condition as of `now`, without a generation.
pub fn condition(
    type_: &str,
    status: &str,
    reason: &str,
    message: impl Into<String>,
    now: Timestamp,
) -> Condition {
    Condition {
        type_: type_.into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: None,
        last_transition_time: Time(now),
    }
}

/// The condition about the renewal of a certificate: that it succeeded, or why it failed (1.1).
pub fn rotated(outcome: Result<String, String>, now: Timestamp) -> Condition {
    match outcome {
        Ok(message) => condition(CONDITION_ROTATED, "True", "ClientCertificateUpdated", message, now),
        Err(message) => condition(CONDITION_ROTATED, "False", "ClientCertificateUpdateFailed", message, now),
    }
}

/// Puts `new` into the list. The rule for its time is [`transition`] (OCM-087).
pub fn set(list: &mut Vec<Condition>, mut new: Condition) {
    match list.iter_mut().find(|old| old.type_ == new.type_) {
        Some(old) => {
            let since = (old.status.as_str(), old.last_transition_time.clone());
            new.last_transition_time = transition(Some(since), &new.status, new.last_transition_time);
            *old = new;
        }
        None => list.push(new),
    }
}
