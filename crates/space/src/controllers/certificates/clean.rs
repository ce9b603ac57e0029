//! Deletion of old CertificateSigningRequests, as in kube-controller-manager (AS-054, OCM-040). Pure.
//!
//! Agents rely on it: an unsuccessful request disappears, and they create a new one.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::Value;

/// How long a decided request stays after its approval, denial or failure.
const DECIDED: Duration = Duration::from_secs(60 * 60);
/// How long a request waits for a decision.
const PENDING: Duration = Duration::from_secs(24 * 60 * 60);

/// When the request is to be deleted; `None` if no rule applies.
pub(crate) fn deletion_time(request: &Value) -> Option<Timestamp> {
    let created = time(request.pointer("/metadata/creationTimestamp"));
    let conditions = request.pointer("/status/conditions").and_then(Value::as_array);
    let conditions = conditions.map(Vec::as_slice).unwrap_or_default();
    if conditions.is_empty() {
        return after(created?, PENDING);
    }
    let verdicts = conditions.iter().filter(|condition| is_final(condition));
    let decided = verdicts.filter_map(|verdict| {
        // The server sets the time; a condition without one counts from the creation.
        after(time(verdict.get("lastUpdateTime")).or(created)?, DECIDED)
    });
    decided.chain(expiry(request)).min()
}

/// Time until `deletion_time`. Zero if `deletion_time` is further away than twice the longest life of a request: such a request was
/// created or decided while the clock was ahead.
pub(crate) fn remaining(deletion_time: Timestamp, now: Timestamp) -> Duration {
    if deletion_time > now && deletion_time.duration_since(now).unsigned_abs() > 2 * PENDING {
        return Duration::ZERO;
    }
    let left = deletion_time.as_millisecond().saturating_sub(now.as_millisecond());
    Duration::from_millis(u64::try_from(left).unwrap_or_default())
}

fn is_final(condition: &Value) -> bool {
    matches!(condition.get("type").and_then(Value::as_str), Some("Approved" | "Denied" | "Failed"))
}

fn time(value: Option<&Value>) -> Option<Timestamp> {
    value?.as_str()?.parse().ok()
}

fn after(moment: Timestamp, pause: Duration) -> Option<Timestamp> {
    moment.checked_add(pause).ok()
}

/// When the issued certificate expires. A request with an expired certificate is of no use.
fn expiry(request: &Value) -> Option<Timestamp> {
    let encoded = request.pointer("/status/certificate").and_then(Value::as_str)?;
    let pem = STANDARD.decode(encoded).ok()?;
    let (_, block) = x509_parser::pem::parse_x509_pem(&pem).ok()?;
    let end = block.parse_x509().ok()?.validity().not_after.timestamp();
    Timestamp::from_second(end).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(conditions: &[(&str, &str)]) -> Value {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(kind, at)| json!({"type": kind, "status": "True", "lastUpdateTime": at}))
            .collect();
        json!({"metadata": {"creationTimestamp": "2026-01-01T10:00:00Z"}, "status": {"conditions": conditions}})
    }

    fn certificate(end: i64) -> String {
        let mut params = rcgen::CertificateParams::default();
        let end = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(end.unsigned_abs());
        params.not_after = end.into();
        let key = rcgen::KeyPair::generate().unwrap();
        STANDARD.encode(params.self_signed(&key).unwrap().pem())
    }

    /// AS-054, OCM-040: approved, denied and failed requests are deleted after an hour, undecided ones after a day.
    #[test]
    fn ocm_040_requests_are_cleared_away_in_time() {
        // Conditions with their times, and when the request is to be deleted.
        type Case<'a> = (&'a [(&'static str, &'static str)], Option<&'static str>);
        let cases: &[Case<'_>] = &[
            (&[], Some("2026-01-02T10:00:00Z")),
            (&[("Approved", "2026-01-01T12:00:00Z")], Some("2026-01-01T13:00:00Z")),
            (&[("Denied", "2026-01-01T12:00:00Z")], Some("2026-01-01T13:00:00Z")),
            (&[("Failed", "2026-01-01T12:00:00Z")], Some("2026-01-01T13:00:00Z")),
            (
                &[("Approved", "2026-01-01T12:00:00Z"), ("Failed", "2026-01-01T11:30:00Z")],
                Some("2026-01-01T12:30:00Z"),
            ),
            (&[("Approved", "")], Some("2026-01-01T11:00:00Z")),
            (&[("Other", "2026-01-01T12:00:00Z")], None),
        ];
        for (conditions, wanted) in cases {
            let wanted = wanted.map(|text| text.parse::<Timestamp>().unwrap());
            assert_eq!(deletion_time(&request(conditions)), wanted, "{conditions:?}");
        }
    }

    /// AS-054: a request whose certificate has expired is deleted at once.
    #[test]
    fn as_054_expired_certificates_are_cleared_away() {
        let mut issued = request(&[("Approved", "2026-01-01T12:00:00Z")]);
        let end = "2026-01-01T12:10:00Z".parse::<Timestamp>().unwrap();
        issued["status"]["certificate"] = certificate(end.as_second()).into();
        assert_eq!(deletion_time(&issued), Some(end));
        issued["status"]["certificate"] = "bm9uc2Vuc2U=".into();
        assert_eq!(deletion_time(&issued), Some("2026-01-01T13:00:00Z".parse().unwrap()));
        let now = "2026-01-01T12:59:00Z".parse().unwrap();
        assert_eq!(remaining("2026-01-01T13:00:00Z".parse().unwrap(), now), Duration::from_secs(60));
        assert_eq!(remaining(end, now), Duration::ZERO);
        let later = |days: i64| end + jiff::SignedDuration::from_hours(24 * days);
        assert_eq!(remaining(later(2), end), 2 * PENDING, "a clock that is a little ahead");
        assert_eq!(remaining(later(365), end), Duration::ZERO, "made while the clock was a year ahead");
    }
}
