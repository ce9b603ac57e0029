//! Are the StatusCollectors of a Binding there? (KS-172)
//!
//! Whether their queries are valid (KS-170) is not looked at yet.

use apis::{
    Condition,
    condition::{REASON_ERROR, REASON_SUCCESS, STATUS_COLLECTORS_AVAILABLE},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The condition, given the names of collectors that are asked for but not there, sorted.
pub(super) fn availability(missing: &[String], now: Time) -> Condition {
    let (status, reason, message) = if missing.is_empty() {
        (true, REASON_SUCCESS, "All StatusCollector(s) are available".to_owned())
    } else {
        (false, REASON_ERROR, format!("Missing StatusCollector(s) [{}]", missing.join(" ")))
    };
    Condition::new(STATUS_COLLECTORS_AVAILABLE, status, reason, message, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ks_172_missing_collectors_are_named() {
        let now = Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
        let all = availability(&[], now.clone());
        assert_eq!((all.status.as_str(), all.reason.as_str()), ("True", "ReconcileSuccess"));
        let some = availability(&["a".into(), "b".into()], now);
        assert_eq!(
            (some.status.as_str(), some.message.as_str()),
            ("False", "Missing StatusCollector(s) [a b]")
        );
    }
}
