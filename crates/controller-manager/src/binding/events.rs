//! What a user who looks at a policy's Events should notice.
//!
//! Decided by comparing the status that is about to be replaced with the new one, so a restart says nothing twice.

use apis::{
    condition,
    constants::CONTROL_GROUP,
    control::{BindingPolicy, BindingPolicyStatus},
};
use runtime::{
    events::{About, Said},
    limiter::Rate,
};

/// One Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct News {
    warning: bool,
    reason: &'static str,
    message: String,
}

/// How much a policy amounts to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) objects: usize,
    pub(super) clusters: usize,
}

/// The generation of one policy whose extent was told.
#[derive(Debug, Default)]
pub(super) struct Told(i64);

/// Events of one policy that may come together, and one a minute after those.
pub(super) const EVENTS: Rate = Rate { qps: 1.0 / 60.0, burst: 25 };

impl Told {
    /// What is worth an Event when the status goes from `old` to `new`: errors that are new, that the last one has
    /// gone, and once for each generation what the policy amounts to.
    pub(super) fn news(
        &mut self,
        old: Option<&BindingPolicyStatus>,
        new: &BindingPolicyStatus,
        extent: Extent,
    ) -> Vec<News> {
        let before: &[String] = old.map_or(&[], |old| &old.errors);
        let mut news: Vec<_> = new
            .errors
            .iter()
            .filter(|error| !before.contains(error))
            .map(|error| News { warning: true, reason: condition::REASON_ERROR, message: error.clone() })
            .collect();
        if new.errors.is_empty() && !before.is_empty() {
            let message = "the errors are gone".to_owned();
            news.push(News { warning: false, reason: condition::REASON_SUCCESS, message });
        }
        let told =
            old.is_some_and(|old| is_synced(old) && old.observed_generation == new.observed_generation);
        if is_synced(new) && !told && self.0 != new.observed_generation {
            self.0 = new.observed_generation;
            news.push(extent.news());
        }
        news
    }
}

impl Extent {
    fn news(self) -> News {
        let Self { objects, clusters } = self;
        let message = match (objects, clusters) {
            (_, 0) => format!("{objects} objects match, but no cluster matches spec.clusterSelectors"),
            (0, _) => format!("{clusters} clusters match, but no object matches spec.downsync"),
            _ => format!("{objects} objects go to {clusters} clusters"),
        };
        News { warning: false, reason: condition::REASON_SUCCESS, message }
    }
}

impl News {
    /// About this policy.
    pub(super) fn about(self, policy: &BindingPolicy) -> Said {
        let meta = &policy.metadata;
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let about = About {
            api_version: format!("{CONTROL_GROUP}/v1alpha1"),
            kind: "BindingPolicy".into(),
            namespace: String::new(),
            name: text(&meta.name),
            uid: text(&meta.uid),
            version: text(&meta.resource_version),
        };
        let Self { warning, reason, message } = self;
        if warning { Said::warning(about, reason, message) } else { Said::normal(about, reason, message) }
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

    fn tell(said: &mut Told, old: Option<&BindingPolicyStatus>, new: &BindingPolicyStatus) -> Vec<String> {
        let extent = Extent { objects: 3, clusters: 2 };
        said.news(old, new, extent).into_iter().map(|news| news.message).collect()
    }

    /// KS-065: the errors of a policy are told as they come, and that they are gone.
    #[test]
    fn ks_065_news_are_told_once() {
        let mut said = Told::default();
        let (fine, bad, worse) = (status(1, &[]), status(1, &["a"]), status(1, &["a", "b"]));
        assert_eq!(tell(&mut said, None, &fine), ["3 objects go to 2 clusters"]);
        assert_eq!(tell(&mut said, Some(&fine), &fine), [""; 0]);
        assert_eq!(tell(&mut said, Some(&fine), &bad), ["a"]);
        assert_eq!(tell(&mut said, Some(&bad), &worse), ["b"]);
        assert_eq!(tell(&mut said, Some(&worse), &bad), [""; 0]);
        assert_eq!(tell(&mut said, Some(&bad), &fine), ["the errors are gone"]);
        assert_eq!(tell(&mut said, Some(&fine), &status(2, &[])), ["3 objects go to 2 clusters"]);
        let mut restarted = Told::default();
        assert_eq!(tell(&mut restarted, Some(&fine), &fine), [""; 0], "nothing for a restart");
    }

    #[test]
    fn what_amounts_to_nothing_is_said_so() {
        let text = |objects, clusters| Extent { objects, clusters }.news().message;
        assert!(text(3, 0).contains("no cluster matches"));
        assert!(text(0, 3).contains("no object matches"));
    }
}
