//! The Events on a policy that its users should notice.
//!
//! They are computed from the difference between the status to be replaced and the new status, so a restart
//! repeats no Event.

use apis::{
    condition,
    constants::CONTROL_GROUP,
    control::{BindingPolicy, BindingPolicyStatus},
};
use runtime::{
    events::{InvolvedObject, NewEvent},
    limiter::Rate,
};

/// An Event about a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PolicyEvent {
    warning: bool,
    reason: &'static str,
    message: String,
}

/// How many objects and clusters a policy matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MatchCounts {
    pub(super) objects: usize,
    pub(super) clusters: usize,
}

/// The last generation of one policy whose match counts were announced in an Event.
#[derive(Debug, Default)]
pub(super) struct AnnouncedGeneration(i64);

/// Rate limit for the Events of one policy: a burst, and then one per minute.
pub(super) const EVENTS: Rate = Rate { qps: 1.0 / 60.0, burst: 25 };

impl AnnouncedGeneration {
    /// Returns the Events for a status that changes from `old` to `new`: new errors, the end of the last
    /// error, and the match counts once for each generation.
    pub(super) fn events(
        &mut self,
        old: Option<&BindingPolicyStatus>,
        new: &BindingPolicyStatus,
        counts: MatchCounts,
    ) -> Vec<PolicyEvent> {
        let before: &[String] = old.map_or(&[], |old| &old.errors);
        let mut events: Vec<_> = new
            .errors
            .iter()
            .filter(|error| !before.contains(error))
            .map(|error| PolicyEvent {
                warning: true,
                reason: condition::REASON_ERROR,
                message: error.clone(),
            })
            .collect();
        if new.errors.is_empty() && !before.is_empty() {
            let message = "the errors are gone".to_owned();
            events.push(PolicyEvent { warning: false, reason: condition::REASON_SUCCESS, message });
        }
        let announced_before =
            old.is_some_and(|old| is_synced(old) && old.observed_generation == new.observed_generation);
        if is_synced(new) && !announced_before && self.0 != new.observed_generation {
            self.0 = new.observed_generation;
            events.push(counts.event());
        }
        events
    }
}

impl MatchCounts {
    fn event(self) -> PolicyEvent {
        let Self { objects, clusters } = self;
        let message = match (objects, clusters) {
            (_, 0) => format!("{objects} objects match, but no cluster matches spec.clusterSelectors"),
            (0, _) => format!("{clusters} clusters match, but no object matches spec.downsync"),
            _ => format!("{objects} objects go to {clusters} clusters"),
        };
        PolicyEvent { warning: false, reason: condition::REASON_SUCCESS, message }
    }
}

impl PolicyEvent {
    /// Builds the Event object about this policy.
    pub(super) fn about(self, policy: &BindingPolicy) -> NewEvent {
        let meta = &policy.metadata;
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let about = InvolvedObject {
            api_version: format!("{CONTROL_GROUP}/v1alpha1"),
            kind: "BindingPolicy".into(),
            namespace: String::new(),
            name: text(&meta.name),
            uid: text(&meta.uid),
            version: text(&meta.resource_version),
        };
        let Self { warning, reason, message } = self;
        if warning {
            NewEvent::warning(about, reason, message)
        } else {
            NewEvent::normal(about, reason, message)
        }
    }
}

fn is_synced(status: &BindingPolicyStatus) -> bool {
    status.conditions.iter().any(|it| it.type_ == condition::SYNCED && it.status == "True")
}

#[cfg(test)]
mod tests {
    use apis::Condition;
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

    use super::*;

    fn status(generation: i64, errors: &[&str]) -> BindingPolicyStatus {
        let synced = errors.is_empty();
        let condition = Condition::new(condition::SYNCED, synced, "", "", Time(Timestamp::UNIX_EPOCH));
        BindingPolicyStatus {
            observed_generation: generation,
            conditions: vec![condition],
            errors: errors.iter().map(|it| (*it).to_owned()).collect(),
        }
    }

    fn tell(
        announced: &mut AnnouncedGeneration,
        old: Option<&BindingPolicyStatus>,
        new: &BindingPolicyStatus,
    ) -> Vec<String> {
        let counts = MatchCounts { objects: 3, clusters: 2 };
        announced.events(old, new, counts).into_iter().map(|events| events.message).collect()
    }

    /// KS-065: each error of a policy is announced when it appears, and the end of the errors once.
    #[test]
    fn ks_065_news_are_told_once() {
        let mut announced = AnnouncedGeneration::default();
        let (fine, bad, worse) = (status(1, &[]), status(1, &["a"]), status(1, &["a", "b"]));
        assert_eq!(tell(&mut announced, None, &fine), ["3 objects go to 2 clusters"]);
        assert_eq!(tell(&mut announced, Some(&fine), &fine), [""; 0]);
        assert_eq!(tell(&mut announced, Some(&fine), &bad), ["a"]);
        assert_eq!(tell(&mut announced, Some(&bad), &worse), ["b"]);
        assert_eq!(tell(&mut announced, Some(&worse), &bad), [""; 0]);
        assert_eq!(tell(&mut announced, Some(&bad), &fine), ["the errors are gone"]);
        assert_eq!(tell(&mut announced, Some(&fine), &status(2, &[])), ["3 objects go to 2 clusters"]);
        let mut restarted = AnnouncedGeneration::default();
        assert_eq!(tell(&mut restarted, Some(&fine), &fine), [""; 0], "nothing for a restart");
    }

    #[test]
    fn what_amounts_to_nothing_is_said_so() {
        let text = |objects, clusters| MatchCounts { objects, clusters }.event().message;
        assert!(text(3, 0).contains("no cluster matches"));
        assert!(text(0, 3).contains("no object matches"));
    }
}
