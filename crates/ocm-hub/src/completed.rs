//! Deletes complete works after their time to live (OCM-097, gate CleanUpCompletedManifestWork).

use std::time::Duration;

use apis::ocm::ManifestWork;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use runtime::{
    Event, Next,
    failure::{is_clash, is_not_found},
    rest::Removal,
};

use ocm_shared::clock::FutureTimes;

use super::{Hub, Key, works};
use apis::ocm::work::COMPLETE;

/// The creator of a work with this label deletes it, too.
const REPLICA_SET_LABEL: &str = "work.open-cluster-management.io/manifestworkreplicaset";

/// How far the clock of an agent may be ahead before its times are not believed.
const AHEAD: SignedDuration = SignedDuration::from_hours(1);

/// Longest timer.
const LOOK_AGAIN: Duration = Duration::from_secs(86_400);

/// Returns how long a work is to be kept: zero if its time is over, `None` if it has no time to live.
/// A work that became complete in the far future, by a clock that was ahead, counts as complete since it was first seen so.
pub fn time_left(work: &ManifestWork, times: &mut FutureTimes, now: Timestamp) -> Option<Duration> {
    let metadata = &work.metadata;
    if metadata.deletion_timestamp.is_some()
        || metadata.labels.iter().flatten().any(|(key, _)| key == REPLICA_SET_LABEL)
    {
        return None;
    }
    let stay = work.spec.delete_option.as_ref()?.ttl_seconds_after_finished?;
    let conditions = &work.status.as_ref()?.conditions;
    let complete = conditions.iter().find(|c| c.type_ == COMPLETE && c.status == "True")?;
    let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
    let key = format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default());
    let mut at = complete.last_transition_time.0;
    if at.duration_since(now) > AHEAD {
        at = times.heard_at(&key, at, now);
    }
    let since = now.duration_since(at);
    // A time to live of zero is over at once, whatever the clocks say.
    let left =
        if stay <= 0 { SignedDuration::ZERO } else { SignedDuration::from_secs(stay).saturating_sub(since) };
    Some(Duration::try_from(left).unwrap_or_default().min(LOOK_AGAIN))
}

impl Hub {
    pub(super) fn on_whole_work(&self, event: Event<ManifestWork>) {
        if let Event::Added(work) | Event::Updated { new: work, .. } = &event
            && let Some(left) = time_left(work, &mut self.ahead.lock(), self.now())
        {
            let namespace = work.metadata.namespace.clone().unwrap_or_default();
            let name = work.metadata.name.clone().unwrap_or_default();
            self.queue.add_after(Key::Completed(namespace, name), left);
        }
    }

    /// Deletes a complete work if its time is over.
    pub(super) async fn completed(&self, namespace: &str, name: &str) -> Result<Next, kube::Error> {
        let Some(work) = self.know.whole_works.get(namespace, name) else {
            self.ahead.lock().forget(&format!("{namespace}/{name}"));
            return Ok(Next::OnChange);
        };
        let left = time_left(&work, &mut self.ahead.lock(), self.now());
        match left {
            None => Ok(Next::OnChange),
            Some(left) if !left.is_zero() => Ok(Next::After(left)),
            Some(_) => {
                tracing::info!(namespace, name, "deleting a complete work, whose time to live is over");
                let removal = Removal { uid: work.metadata.uid.clone(), propagation: None };
                match self.rest.delete(&works(), namespace, name, &removal).await {
                    // The work is gone or was replaced; its own event reports that.
                    Err(error) if is_not_found(&error) || is_clash(&error) => Ok(Next::OnChange),
                    other => other.map(|()| Next::OnChange),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn work(ttl: Value, complete: &str, more: Value) -> ManifestWork {
        let mut metadata = json!({"name": "w", "namespace": "c1"});
        metadata.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": metadata,
            "spec": {"deleteOption": {"ttlSecondsAfterFinished": ttl}},
            "status": {"conditions": [{"type": "Complete", "status": complete, "reason": "r", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}))
        .unwrap()
    }

    /// OCM-A-61: a work is deleted when it is complete and its time is over, unless another controller
    /// manages it.
    #[test]
    fn ocm_097_the_time_of_a_complete_work() {
        let at = |seconds| {
            "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
        };
        let left = |work: &ManifestWork, now| {
            time_left(work, &mut FutureTimes::default(), at(now)).map(|left| left.as_secs())
        };
        let plain = work(json!(60), "True", json!({}));
        assert_eq!(left(&plain, 0), Some(60));
        assert_eq!(left(&plain, 59), Some(1));
        assert_eq!(left(&plain, 60), Some(0));
        assert_eq!(left(&plain, 9999), Some(0));
        assert_eq!(left(&plain, -30), Some(90), "a clock that is behind makes it later, not never");
        let (year, mut times) = (-365 * 86_400, FutureTimes::default());
        let mut seen = |now| time_left(&plain, &mut times, at(now)).map(|left| left.as_secs());
        assert_eq!(
            (seen(year), seen(year + 50), seen(year + 60)),
            (Some(60), Some(10), Some(0)),
            "not a year later"
        );
        assert_eq!(left(&work(json!(0), "True", json!({})), -30), Some(0), "at once");
        assert_eq!(left(&work(json!(null), "True", json!({})), 9999), None);
        assert_eq!(left(&work(json!(0), "False", json!({})), 9999), None);
        let labelled = json!({"labels": {REPLICA_SET_LABEL: "ns.set"}});
        assert_eq!(left(&work(json!(0), "True", labelled), 9999), None);
        let going = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        assert_eq!(left(&work(json!(0), "True", going), 9999), None);
        let largest = work(json!(i64::MAX), "True", json!({}));
        assert!(time_left(&largest, &mut FutureTimes::default(), at(1)).is_some_and(|left| !left.is_zero()));
    }
}
