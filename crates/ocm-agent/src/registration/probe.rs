//! Whether the own cluster is well (OCM-051). Pure; the time comes as an argument.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

/// Answer of the cluster's health endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It is well.
    Ok,
    /// It is not: status code (0 for no answer) and what was said.
    Bad(u16, String),
}

/// What is to be reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is available.
    Available,
    /// It is not, and why.
    Unavailable(String),
    /// It may be a blip: report nothing, and look again.
    Blip,
}

/// Judges a look; `ill_since` remembers when the cluster was first seen ill.
pub fn judge(ill_since: &mut Option<Timestamp>, health: Health, blip: Duration, now: Timestamp) -> Verdict {
    match health {
        Health::Ok => {
            *ill_since = None;
            Verdict::Available
        }
        Health::Bad(code, text) => {
            let since = *ill_since.get_or_insert(now);
            // A clock that went back must not make the illness younger for ever.
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

    /// OCM-A-20: ten seconds are a blip, thirty are not; one good answer ends it.
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
