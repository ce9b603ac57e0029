//! Conditions that hub, add-on manager and registration agent write.

use apis::ocm::cluster::CONDITION_ROTATED;
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

/// A condition as of `now`, without a generation.
pub(crate) fn condition(
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
pub(crate) fn rotated(outcome: Result<String, String>, now: Timestamp) -> Condition {
    match outcome {
        Ok(message) => condition(CONDITION_ROTATED, "True", "ClientCertificateUpdated", message, now),
        Err(message) => condition(CONDITION_ROTATED, "False", "ClientCertificateUpdateFailed", message, now),
    }
}
