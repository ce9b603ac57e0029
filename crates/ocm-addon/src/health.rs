//! The health of an add-on according to its works (OCM-118). Pure. The registration agent in the cluster
//! determines health by lease.

use std::collections::BTreeMap;

use apis::ocm::{ManifestWork, work::FeedbackValue};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};

use super::{
    deploy::work_number,
    framework::{Health, Reading},
};
use ocm_shared::conditions::condition;

/// Condition of a ManagedClusterAddOn: it is healthy.
pub const AVAILABLE: &str = "Available";

/// Returns the condition that follows from the works of an add-on.
pub fn by_work(addon: &str, works: &[&ManifestWork], health: &Health, now: Timestamp) -> Condition {
    let tell =
        |status: &str, reason: &str, message: String| condition(AVAILABLE, status, reason, message, now);
    let deploying: Vec<&&ManifestWork> = works
        .iter()
        .filter(|work| work_number(addon, work.metadata.name.as_deref().unwrap_or_default()).is_some())
        .collect();
    if deploying.is_empty() {
        return tell("Unknown", "WorkNotFound", "Work for addon is not found".into());
    }
    for work in &deploying {
        let conditions = work.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
        match conditions.iter().find(|c| c.type_ == AVAILABLE) {
            None => return tell("Unknown", "WorkNotApplied", "Work is not applied yet".into()),
            Some(available) if available.status == "False" => {
                return tell("False", "WorkNotApplied", available.message.clone());
            }
            Some(_) => {}
        }
    }
    let reports: BTreeMap<[&str; 4], &[FeedbackValue]> = deploying
        .iter()
        .flat_map(|work| work.status.iter().flat_map(|s| &s.resource_status.manifests))
        .map(|report| {
            let meta = &report.resource_meta;
            let object = [&meta.group, &meta.resource, &meta.namespace, &meta.name].map(String::as_str);
            (object, report.status_feedback.values.as_slice())
        })
        .collect();
    let values = |object: &[String; 4]| {
        let found = reports.get(&object.each_ref().map(String::as_str)).copied();
        found.filter(|values| !values.is_empty())
    };
    let readings: Vec<Reading<'_>> = health
        .objects
        .iter()
        .filter_map(|object| values(object).map(|values| Reading { object, values }))
        .collect();
    if readings.is_empty() && !health.objects.is_empty() {
        return tell("Unknown", "NoProbeResult", "Probe results are not returned".into());
    }
    match (health.check)(&readings) {
        Ok(()) => tell("True", "ProbeAvailable", format!("{addon} add-on is available.")),
        Err(why) => tell("False", "ProbeUnavailable", format!("Probe addon unavailable with err {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Addon as _;
    use crate::status::StatusAddon;
    use serde_json::{Value, json};

    fn work(name: &str, available: Option<&str>, values: Value) -> ManifestWork {
        let conditions: Vec<Value> = available
            .map(|status| json!({"type": "Available", "status": status, "reason": "R", "message": "why", "lastTransitionTime": "2026-01-01T00:00:00Z"}))
            .into_iter()
            .collect();
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"workload": {"manifests": []}},
            "status": {"conditions": conditions, "resourceStatus": {"manifests": [
                {"resourceMeta": {"ordinal": 0, "group": "apps", "version": "v1", "kind": "Deployment", "resource": "deployments",
                    "name": "status-agent", "namespace": "n"}, "statusFeedback": {"values": values}, "conditions": []}]}}}))
        .unwrap()
    }

    #[test]
    fn ocm_118_health_by_work() {
        let probe = StatusAddon::default().health("n", &[]).unwrap();
        let ready =
            |n: i64| json!([{"name": "ReadyReplicas", "fieldValue": {"type": "Integer", "integer": n}}]);
        let other = json!([{"name": "Replicas", "fieldValue": {"type": "Integer", "integer": 1}}]);
        let cases: Vec<(Vec<ManifestWork>, &str, &str, &str)> = vec![
            (vec![], "Unknown", "WorkNotFound", ""),
            (vec![work("addon-a-pre-delete", Some("True"), ready(1))], "Unknown", "WorkNotFound", ""),
            (vec![work("addon-a-deploy-0", None, ready(1))], "Unknown", "WorkNotApplied", ""),
            (vec![work("addon-a-deploy-0", Some("False"), ready(1))], "False", "WorkNotApplied", "why"),
            (
                vec![work("addon-a-deploy-0", Some("True"), json!([]))],
                "Unknown",
                "NoProbeResult",
                "Probe results are not returned",
            ),
            (
                vec![work("addon-a-deploy-0", Some("True"), ready(0))],
                "False",
                "ProbeUnavailable",
                "Probe addon unavailable with err ",
            ),
            (
                vec![work("addon-a-deploy-0", Some("True"), other)],
                "False",
                "ProbeUnavailable",
                "Probe addon unavailable with err ",
            ),
            (
                vec![work("addon-a-deploy-0", Some("True"), ready(1))],
                "True",
                "ProbeAvailable",
                "a add-on is available.",
            ),
        ];
        for (works, status, reason, message) in cases {
            let works: Vec<&ManifestWork> = works.iter().collect();
            let reported = by_work("a", &works, &probe, Timestamp::UNIX_EPOCH);
            assert_eq!((reported.status.as_str(), reported.reason.as_str()), (status, reason));
            assert!(reported.message.starts_with(message), "{}", reported.message);
        }
    }
}
