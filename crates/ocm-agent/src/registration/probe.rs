//! Health of the own cluster (OCM-051). Pure; the time is an argument.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

/// Answer of the cluster's health endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The cluster is healthy.
    Ok,
    /// The cluster is unhealthy: status code (0 for no response) and message.
    Bad(u16, String),
}

/// What to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is available.
    Available,
    /// Unavailable, with the reason.
    Unavailable(String),
    /// It may be temporary: report nothing, and check again.
    Blip,
}

/// Evaluates a check; `ill_since` stores when the cluster was first unhealthy.
pub fn judge(ill_since: &mut Option<Timestamp>, health: Health, blip: Duration, now: Timestamp) -> Verdict {
    match health {
        Health::Ok => {
            *ill_since = None;
            Verdict::Available
        }
        Health::Bad(code, text) => {
            let since = *ill_since.get_or_insert(now);
            // A clock that goes back must not delay the report for ever.
            if now < since {
                *ill_since = Some(now);
            }
            if now.duration_since(since).unsigned_abs() < blip {
                return Verdict::Blip;
            }
            Verdict::Unavailable(format!("The kube-apiserver is not ok, status code: {code}, {text}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OCM-A-20: ten seconds are not reported, thirty are; one good response ends it.
    #[test]
    fn ocm_051_a_blip_is_not_reported() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let blip = Duration::from_secs(20);
        let ill = || Health::Bad(500, "no".into());
        let mut since = None;
        assert_eq!(judge(&mut since, ill(), blip, at(100)), Verdict::Blip);
        assert_eq!(judge(&mut since, ill(), blip, at(110)), Verdict::Blip);
        assert_eq!(judge(&mut since, Health::Ok, blip, at(115)), Verdict::Available);
        assert_eq!(judge(&mut since, ill(), blip, at(120)), Verdict::Blip);
        assert_eq!(judge(&mut since, ill(), blip, at(139)), Verdict::Blip);
        assert_eq!(
            judge(&mut since, ill(), blip, at(140)),
            Verdict::Unavailable("The kube-apiserver is not ok, status code: 500, no".into())
        );
        assert_eq!(judge(&mut since, Health::Ok, blip, at(141)), Verdict::Available);
    }
}
