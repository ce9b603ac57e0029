//! What a user who looks at a policy's Events should notice.
//!
//! Decided by comparing the status that is about to be replaced with the new one, so a restart says nothing twice.

use std::{
    hash::{Hash, Hasher},
    time::{Duration, Instant},
};

use apis::{
    condition,
    constants::{BINDING_MANAGER, CONTROL_GROUP},
    control::{BindingPolicy, BindingPolicyStatus},
};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

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

/// What was said about one policy.
#[derive(Debug)]
pub(super) struct Said {
    /// The generation of the policy whose extent was told.
    generation: i64,
    /// How many Events may be written, as of the instant.
    budget: (u32, Option<Instant>),
}

impl Default for Said {
    fn default() -> Self {
        Self { generation: 0, budget: (BURST, None) }
    }
}

/// Events of one policy that may come together, and how long it takes until one more may come.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(60);
/// What the API takes of a message, in bytes.
const MESSAGE: usize = 1024;

impl Said {
    /// What is worth an Event when the status goes from `old` to `new`: errors that are new, that the last one has
    /// gone, and once for each generation what the policy amounts to.
    pub(super) fn news(
        &mut self,
        old: Option<&BindingPolicyStatus>,
        new: &BindingPolicyStatus,
        extent: Extent,
        now: Instant,
    ) -> Vec<News> {
        let before: &[String] = old.map_or(&[], |old| &old.errors);
        let mut news: Vec<_> = new
            .errors
            .iter()
            .filter(|error| !before.contains(error))
            .map(|error| News { warning: true, reason: condition::REASON_ERROR, message: cut(error) })
            .collect();
        if new.errors.is_empty() && !before.is_empty() {
            let message = "the errors are gone".to_owned();
            news.push(News { warning: false, reason: condition::REASON_SUCCESS, message });
        }
        let told =
            old.is_some_and(|old| is_synced(old) && old.observed_generation == new.observed_generation);
        if is_synced(new) && !told && self.generation != new.observed_generation {
            self.generation = new.observed_generation;
            news.push(extent.news());
        }
        let affordable = self.afford(news.len(), now);
        news.truncate(affordable);
        news
    }

    /// Takes up to `wanted` from the budget.
    fn afford(&mut self, wanted: usize, now: Instant) -> usize {
        let (left, since) = self.budget;
        let since = since.unwrap_or(now);
        let gained = now.saturating_duration_since(since).as_secs() / REFILL.as_secs();
        let left = left.saturating_add(gained.try_into().unwrap_or(u32::MAX)).min(BURST);
        let taken = wanted.min(left as usize);
        self.budget = (left - taken as u32, Some(if gained > 0 { now } else { since }));
        taken
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
    /// Name of the Event: the same for the same message, so that it is counted instead of repeated.
    pub(super) fn name(&self, policy: &BindingPolicy) -> String {
        // Not for security: different messages must have different names with good odds, here and in the next process.
        let mut hasher = std::collections::hash_map::DefaultHasher::new();
        (&policy.metadata.uid, self.reason, &self.message).hash(&mut hasher);
        let name: String = policy.metadata.name.iter().flat_map(|name| name.chars()).take(200).collect();
        format!("{}.{:016x}", name.trim_end_matches(['-', '.']), hasher.finish())
    }

    /// The Event as it is created.
    pub(super) fn object(
        &self,
        policy: &BindingPolicy,
        name: &str,
        namespace: &str,
        now: Timestamp,
    ) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": format!("{CONTROL_GROUP}/v1alpha1"), "kind": "BindingPolicy",
                "name": policy.metadata.name, "uid": policy.metadata.uid,
                "resourceVersion": policy.metadata.resource_version,
            },
            "reason": self.reason,
            "message": self.message,
            "type": if self.warning { "Warning" } else { "Normal" },
            "count": 1,
            "firstTimestamp": now.to_string(),
            "lastTimestamp": now.to_string(),
            "source": {"component": BINDING_MANAGER},
            "reportingComponent": BINDING_MANAGER,
        })
    }
}

fn is_synced(status: &BindingPolicyStatus) -> bool {
    status.conditions.iter().any(|it| it.type_ == condition::SYNCED && it.status == "True")
}

fn cut(text: &str) -> String {
    const ELLIPSIS: &str = "…";
    if text.len() <= MESSAGE {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(MESSAGE - ELLIPSIS.len());
    format!("{}{ELLIPSIS}", text.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use apis::Condition;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

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

    fn tell(said: &mut Said, old: Option<&BindingPolicyStatus>, new: &BindingPolicyStatus) -> Vec<String> {
        let extent = Extent { objects: 3, clusters: 2 };
        said.news(old, new, extent, Instant::now()).into_iter().map(|news| news.message).collect()
    }

    /// KS-065: the errors of a policy are told as they come, and that they are gone.
    #[test]
    fn ks_065_news_are_told_once() {
        let mut said = Said::default();
        let (fine, bad, worse) = (status(1, &[]), status(1, &["a"]), status(1, &["a", "b"]));
        assert_eq!(tell(&mut said, None, &fine), ["3 objects go to 2 clusters"]);
        assert_eq!(tell(&mut said, Some(&fine), &fine), [""; 0]);
        assert_eq!(tell(&mut said, Some(&fine), &bad), ["a"]);
        assert_eq!(tell(&mut said, Some(&bad), &worse), ["b"]);
        assert_eq!(tell(&mut said, Some(&worse), &bad), [""; 0]);
        assert_eq!(tell(&mut said, Some(&bad), &fine), ["the errors are gone"]);
        assert_eq!(tell(&mut said, Some(&fine), &status(2, &[])), ["3 objects go to 2 clusters"]);
        let mut restarted = Said::default();
        assert_eq!(tell(&mut restarted, Some(&fine), &fine), [""; 0], "nothing for a restart");
    }

    #[test]
    fn what_amounts_to_nothing_is_said_so() {
        let text = |objects, clusters| Extent { objects, clusters }.news().message;
        assert!(text(3, 0).contains("no cluster matches"));
        assert!(text(0, 3).contains("no object matches"));
    }

    #[test]
    fn events_are_bounded() {
        let (mut said, start) = (Said::default(), Instant::now());
        assert_eq!(said.afford(100, start), BURST as usize);
        assert_eq!(said.afford(1, start), 0);
        assert_eq!(said.afford(5, start + 2 * REFILL), 2);
        let mut policy = BindingPolicy::named("x".repeat(253));
        policy.metadata.uid = Some("u".into());
        let news = News { warning: true, reason: "R", message: cut(&"ä".repeat(2000)) };
        assert!(news.name(&policy).len() <= 253 && news.message.len() <= MESSAGE);
        assert_ne!(news.name(&policy), News { message: "m".into(), ..news.clone() }.name(&policy));
    }
}
