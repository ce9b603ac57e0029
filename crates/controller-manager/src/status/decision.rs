//! Decides about the status of one object (KS-150 … KS-159). Pure.

use std::{collections::BTreeMap, sync::Arc};

use apis::constants::{EXECUTING_COUNT_LABEL, MULTI_WEC_STATUS_LABEL, SINGLETON_STATUS_LABEL};
use serde_json::{Value, json};

use crate::{
    binding::world::Request,
    identity::{ClusterName, GroupResource},
};

/// The source of the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Copy the status from this WEC.
    Copy(ClusterName),
    /// Aggregate the statuses of all WECs of the request.
    Aggregate,
    /// Remove the status.
    Clear,
}

/// Decides by the table of §5.1.
pub fn decide(request: &Request) -> Decision {
    let mut clusters = request.clusters.iter();
    match (request.singleton, request.multi, clusters.next(), clusters.next()) {
        (false, false, ..) | (_, _, None, _) => Decision::Clear,
        (_, _, Some(only), None) => Decision::Copy(only.clone()),
        (_, true, Some(_), Some(_)) => Decision::Aggregate,
        (true, false, Some(_), Some(_)) => Decision::Clear,
    }
}

/// The reported status.
#[derive(Clone, Debug, PartialEq)]
pub enum Reported {
    /// Nothing is reported that counts: a status that we wrote is removed.
    Nothing,
    /// The object exists in the WEC but has no status: a status that we wrote stays.
    Absent,
    /// The status of one WEC.
    Copied(Arc<Value>),
    /// The status aggregated from several WECs (KS-160).
    Aggregated(Arc<Value>),
}

/// Labels to set; `None` removes a label.
pub type LabelPatch = BTreeMap<&'static str, Option<String>>;

/// The writes, in this order, so that a crash in between never leaves a status that cannot be recognised as
/// ours (KS-153).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Labels to write before the status.
    pub before: LabelPatch,
    /// The status.
    pub status: Option<Value>,
    /// Labels to write after the status.
    pub after: LabelPatch,
}

impl Plan {
    /// Returns true if there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.before.is_empty() && self.status.is_none() && self.after.is_empty()
    }
}

/// Returns whether WECs may determine the status of objects of this resource.
pub fn is_returnable(resource: &GroupResource) -> bool {
    !resource.is("", "namespaces") && !resource.is("apiextensions.k8s.io", "customresourcedefinitions")
}

/// Returns the value of the label that counts the WECs (KS-150).
pub fn executing_count(request: &Request) -> Option<String> {
    request.singleton.then(|| request.clusters.len().to_string())
}

/// Returns whether the labels alone show that there is nothing to do: no status to return and none to remove.
pub fn is_settled<'a>(
    label: impl Fn(&str) -> Option<&'a str>,
    request: &Request,
    reported: &Reported,
) -> bool {
    !matches!(reported, Reported::Copied(_) | Reported::Aggregated(_))
        && label(SINGLETON_STATUS_LABEL).is_none()
        && label(MULTI_WEC_STATUS_LABEL).is_none()
        && label(EXECUTING_COUNT_LABEL) == executing_count(request).as_deref()
}

/// Plans the writes for the object in its present state.
pub fn plan(resource: &GroupResource, live: &Value, request: &Request, reported: &Reported) -> Plan {
    let label = |key: &str| {
        live.get("metadata")
            .and_then(|it| it.get("labels"))
            .and_then(|it| it.get(key))
            .and_then(Value::as_str)
    };
    let mut plan = Plan::default();
    let reported = if is_returnable(resource) { reported } else { &Reported::Nothing };
    let status = live.get("status").cloned().unwrap_or_else(|| json!({}));
    match reported {
        Reported::Copied(wanted) | Reported::Aggregated(wanted) => {
            let (mark, other) = match reported {
                Reported::Aggregated(_) => (MULTI_WEC_STATUS_LABEL, SINGLETON_STATUS_LABEL),
                _ => (SINGLETON_STATUS_LABEL, MULTI_WEC_STATUS_LABEL),
            };
            if label(mark) != Some("true") {
                plan.before.insert(mark, Some("true".into()));
            }
            plan.status = (status != **wanted).then(|| (**wanted).clone());
            if label(other).is_some() {
                plan.after.insert(other, None);
            }
        }
        Reported::Absent => {}
        Reported::Nothing => {
            // A label with another value than "true" counts as absent (KS-023).
            let ours = [SINGLETON_STATUS_LABEL, MULTI_WEC_STATUS_LABEL];
            let marked = is_returnable(resource) && ours.iter().any(|key| label(key) == Some("true"));
            plan.status = (marked && status != json!({})).then(|| json!({}));
            plan.after.extend(ours.into_iter().filter(|key| label(key).is_some()).map(|key| (key, None)));
        }
    }
    let count = executing_count(request);
    if label(EXECUTING_COUNT_LABEL) != count.as_deref() {
        let patch = if plan.before.is_empty() { &mut plan.after } else { &mut plan.before };
        patch.insert(EXECUTING_COUNT_LABEL, count);
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(singleton: bool, multi: bool, clusters: &[&str]) -> Request {
        let clusters = clusters.iter().map(|name| (*name).into()).collect();
        Request { singleton, multi, clusters }
    }

    #[test]
    fn ks_150_where_the_status_comes_from() {
        let copy = Decision::Copy("c1".into());
        for (singleton, multi, clusters, expected) in [
            (true, false, &["c1"][..], copy.clone()),
            (true, false, &[], Decision::Clear),
            (true, false, &["c1", "c2"], Decision::Clear),
            (false, true, &["c1"], copy.clone()),
            (false, true, &[], Decision::Clear),
            (false, true, &["c1", "c2"], Decision::Aggregate),
            (true, true, &["c1"], copy),
            (true, true, &[], Decision::Clear),
            (true, true, &["c1", "c2"], Decision::Aggregate),
            (false, false, &["c1"], Decision::Clear),
        ] {
            assert_eq!(
                decide(&request(singleton, multi, clusters)),
                expected,
                "{singleton} {multi} {clusters:?}"
            );
        }
    }

    fn copied(status: Value) -> Reported {
        Reported::Copied(Arc::new(status))
    }

    fn object(labels: Value, status: Value) -> Value {
        json!({"metadata": {"labels": labels}, "status": status})
    }

    fn deployments() -> GroupResource {
        GroupResource::new("apps", "deployments")
    }

    #[test]
    fn ks_153_label_before_status_and_status_before_label() {
        let one = request(true, false, &["c1"]);
        let fresh = object(json!({}), json!({}));
        let wanted = copied(json!({"replicas": 2}));
        let first = plan(&deployments(), &fresh, &one, &wanted);
        assert_eq!(first.before[SINGLETON_STATUS_LABEL].as_deref(), Some("true"));
        assert_eq!(first.before[EXECUTING_COUNT_LABEL].as_deref(), Some("1"));
        assert_eq!(first.status, Some(json!({"replicas": 2})));
        assert!(first.after.is_empty());

        let marked = object(json!({SINGLETON_STATUS_LABEL: "true"}), json!({"replicas": 2}));
        let none = plan(&deployments(), &marked, &request(false, false, &[]), &Reported::Nothing);
        assert!(none.before.is_empty());
        assert_eq!(none.status, Some(json!({})));
        assert_eq!(none.after[SINGLETON_STATUS_LABEL], None);
    }

    #[test]
    fn ks_168_a_change_between_one_and_more_wecs_swaps_the_labels() {
        let one = object(json!({SINGLETON_STATUS_LABEL: "true"}), json!({"replicas": 2}));
        let both = request(false, true, &["c1", "c2"]);
        let wanted = json!({"replicas": 1});
        let there = plan(&deployments(), &one, &both, &Reported::Aggregated(Arc::new(wanted.clone())));
        assert_eq!(there.before, LabelPatch::from([(MULTI_WEC_STATUS_LABEL, Some("true".into()))]));
        assert_eq!(there.status, Some(wanted.clone()));
        assert_eq!(there.after, LabelPatch::from([(SINGLETON_STATUS_LABEL, None)]));
        let merged = object(json!({MULTI_WEC_STATUS_LABEL: "true"}), wanted);
        let one = request(false, true, &["c1"]);
        let back = plan(&deployments(), &merged, &one, &copied(json!({"replicas": 2})));
        assert_eq!(back.before, LabelPatch::from([(SINGLETON_STATUS_LABEL, Some("true".into()))]));
        assert_eq!(back.after, LabelPatch::from([(MULTI_WEC_STATUS_LABEL, None)]));
        let nobody = plan(&deployments(), &merged, &both, &Reported::Nothing);
        assert_eq!((nobody.status, nobody.after.len()), (Some(json!({})), 1), "KS-160: nobody reports");
    }

    #[test]
    fn ks_156_an_equal_status_is_not_written() {
        let labels = json!({SINGLETON_STATUS_LABEL: "true", EXECUTING_COUNT_LABEL: "1"});
        let live = object(labels, json!({"replicas": 2}));
        let one = request(true, false, &["c1"]);
        assert!(plan(&deployments(), &live, &one, &copied(json!({"replicas": 2}))).is_empty());
        assert!(plan(&deployments(), &live, &one, &Reported::Absent).is_empty(), "left as it is");
    }

    #[test]
    fn ks_150_a_status_that_is_not_ours_is_never_touched() {
        let live = object(json!({}), json!({"replicas": 7}));
        let nothing = request(false, false, &[]);
        assert!(plan(&deployments(), &live, &nothing, &Reported::Nothing).is_empty());
        let counted = plan(&deployments(), &live, &request(true, false, &["a", "b"]), &Reported::Nothing);
        assert_eq!(counted.status, None);
        assert_eq!(counted.after[EXECUTING_COUNT_LABEL].as_deref(), Some("2"));
    }

    #[test]
    fn ks_023_a_label_with_another_value_is_removed() {
        let live = object(json!({SINGLETON_STATUS_LABEL: "false"}), json!({"replicas": 7}));
        let plan = plan(&deployments(), &live, &request(false, false, &[]), &Reported::Nothing);
        assert_eq!((plan.status.clone(), plan.after.len()), (None, 1));
    }

    #[test]
    fn ks_158_namespaces_and_crds_keep_their_own_status() {
        for (group, plural) in [("", "namespaces"), ("apiextensions.k8s.io", "customresourcedefinitions")] {
            let live = object(json!({EXECUTING_COUNT_LABEL: "1"}), json!({"phase": "Active"}));
            let one = request(true, false, &["c1"]);
            let reported = copied(json!({"phase": "Terminating"}));
            assert!(plan(&GroupResource::new(group, plural), &live, &one, &reported).is_empty());
        }
    }

    #[test]
    fn what_the_labels_settle_needs_no_look_at_the_object() {
        let none = request(false, false, &[]);
        assert!(is_settled(|_| None, &none, &Reported::Nothing));
        assert!(!is_settled(|_| None, &none, &copied(json!({}))));
        assert!(!is_settled(|_| None, &request(true, false, &[]), &Reported::Nothing));
        let marked = |key: &str| (key == SINGLETON_STATUS_LABEL).then_some("true");
        assert!(!is_settled(marked, &none, &Reported::Nothing));
    }
}
