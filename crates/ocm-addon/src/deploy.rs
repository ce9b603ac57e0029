//! The works that bring an add-on's agent into its cluster (OCM-116). Pure.

use std::collections::{BTreeMap, BTreeSet};

use apis::{
    constants::{
        ADDON_GROUP, ADDON_NAME_LABEL, ADDON_ORPHAN, ADDON_PRE_DELETE, CONFIG_SPEC_HASH_ANNOTATION,
        WORK_GROUP,
    },
    ocm::{ManagedClusterAddOn, ManifestWork, work::FeedbackValue},
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use serde_json::{Value, json};

use ocm_shared::conditions::condition;

/// Condition: the works are applied.
pub const MANIFEST_APPLIED: &str = "ManifestApplied";
/// Condition: the hooks have run.
pub const HOOK_COMPLETED: &str = "HookManifestCompleted";
/// Bytes of manifests in one work: 80 % of 500 KiB.
pub const FILL: usize = 409_600;

/// Name of the work with the objects that stay while the add-on does.
pub fn work_name(addon: &str, number: usize) -> String {
    format!("addon-{addon}-deploy-{number}")
}

/// Number of such a work, from its name.
pub fn work_number(addon: &str, name: &str) -> Option<usize> {
    name.strip_prefix("addon-")?.strip_prefix(addon)?.strip_prefix("-deploy-")?.parse().ok()
}

/// Name of the work with the hooks.
pub fn hook_name(addon: &str) -> String {
    format!("addon-{addon}-pre-delete")
}

/// Whether an object runs before the add-on goes: Jobs and Pods that say so.
pub fn is_hook(object: &Value) -> bool {
    let marked = |place: &str| object.pointer(place).and_then(|all| all.get(ADDON_PRE_DELETE)).is_some();
    matches!(object.get("kind").and_then(Value::as_str), Some("Job" | "Pod"))
        && (marked("/metadata/annotations") || marked("/metadata/labels"))
}

/// Group, kind, namespace and name.
type Identity = [String; 4];

fn identity(object: &Value) -> Identity {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let group = text("/apiVersion").split_once('/').map_or(String::new(), |(group, _)| group.to_owned());
    [group, text("/kind"), text("/metadata/namespace"), text("/metadata/name")]
}

/// Puts objects into works of at most `fill` bytes: one that is in a work stays there while there is room, new ones go where there is room.
///
/// Of two objects with one identity the later counts.
pub fn pack(
    existing: &BTreeMap<usize, Vec<Value>>,
    objects: Vec<Value>,
    fill: usize,
) -> BTreeMap<usize, Vec<Value>> {
    let place: BTreeMap<Identity, usize> = existing
        .iter()
        .flat_map(|(number, held)| held.iter().map(move |object| (identity(object), *number)))
        .collect();
    let mut last: BTreeMap<Identity, usize> = BTreeMap::new();
    for (at, object) in objects.iter().enumerate() {
        last.insert(identity(object), at);
    }
    let mut works: BTreeMap<usize, Vec<Value>> = BTreeMap::new();
    let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
    let mut put = |number: usize, object: Value| -> Option<Value> {
        let size = object.to_string().len();
        let used = sizes.entry(number).or_default();
        if *used > 0 && *used + size > fill {
            return Some(object);
        }
        *used += size;
        works.entry(number).or_default().push(object);
        None
    };
    let mut homeless = Vec::new();
    for (at, object) in objects.into_iter().enumerate() {
        let id = identity(&object);
        if last.get(&id) != Some(&at) {
            continue;
        }
        match place.get(&id) {
            Some(number) => homeless.extend(put(*number, object)),
            None => homeless.push(object),
        }
    }
    for object in homeless {
        let (mut number, mut left) = (0, Some(object));
        while let Some(object) = left.take() {
            left = put(number, object);
            number += 1;
        }
    }
    works
}

/// What all works of an add-on have in common.
pub struct Common<'a> {
    /// The add-on.
    pub addon: &'a ManagedClusterAddOn,
    /// Configuration to hash, for the annotation.
    pub hashes: &'a BTreeMap<String, String>,
    /// Entries of `manifestConfigs`.
    pub configs: &'a [Value],
}

impl Common<'_> {
    fn name(&self) -> &str {
        self.addon.metadata.name.as_deref().unwrap_or_default()
    }

    /// A work with these objects.
    pub fn work(&self, name: &str, objects: Vec<Value>) -> Value {
        let orphans: Vec<Value> = objects
            .iter()
            .filter(|object| {
                object.pointer("/metadata/annotations").is_some_and(|a| a.get(ADDON_ORPHAN).is_some())
            })
            .map(|object| {
                let [group, kind, namespace, name] = identity(object);
                json!({"group": group, "resource": plural(&kind), "namespace": namespace, "name": name})
            })
            .collect();
        let mut spec = json!({"workload": {"manifests": objects}});
        if !self.configs.is_empty() {
            spec["manifestConfigs"] = self.configs.into();
        }
        if !orphans.is_empty() {
            spec["deleteOption"] = json!({"propagationPolicy": "SelectivelyOrphan",
                "selectivelyOrphans": {"orphaningRules": orphans}});
        }
        let meta = &self.addon.metadata;
        let mut metadata = json!({"name": name, "namespace": meta.namespace, "labels": {ADDON_NAME_LABEL: self.name()},
            "ownerReferences": [{"apiVersion": format!("{ADDON_GROUP}/v1alpha1"), "kind": "ManagedClusterAddOn",
                "name": self.name(), "uid": meta.uid, "controller": true, "blockOwnerDeletion": true}]});
        if !self.hashes.is_empty() {
            metadata["annotations"] = json!({CONFIG_SPEC_HASH_ANNOTATION: json!(self.hashes).to_string()});
        }
        json!({"apiVersion": format!("{WORK_GROUP}/v1"), "kind": "ManifestWork", "metadata": metadata, "spec": spec})
    }

    /// A work with the hooks, which feeds back how they ended.
    pub fn hook_work(&self, objects: Vec<Value>) -> Value {
        let configs: Vec<Value> = objects
            .iter()
            .map(|object| {
                let [group, kind, namespace, name] = identity(object);
                let path = if kind == "Job" {
                    json!({"name": "JobComplete", "path": ".status.conditions[?(@.type==\"Complete\")].status"})
                } else {
                    json!({"name": "PodPhase", "path": ".status.phase"})
                };
                json!({"resourceIdentifier":
                        {"group": group, "resource": plural(&kind), "namespace": namespace, "name": name},
                    "feedbackRules": [{"type": "JSONPaths", "jsonPaths": [path]}]})
            })
            .collect();
        let mut work = self.work(&hook_name(self.name()), objects);
        work["spec"]["manifestConfigs"] = configs.into();
        work
    }
}

/// Plural of the kinds that templates and hooks have in practice; a work only needs it to name an object.
fn plural(kind: &str) -> String {
    let lower = kind.to_lowercase();
    match lower.as_bytes() {
        [.., b's' | b'x'] | [.., b'c', b'h'] => format!("{lower}es"),
        [head @ .., b'y'] if !head.last().is_some_and(|c| b"aeiou".contains(c)) => {
            format!("{}ies", lower.strip_suffix('y').unwrap_or_default())
        }
        _ => format!("{lower}s"),
    }
}

/// The patch that makes a work what it should be; `None` if it is.
pub fn correction(live: &ManifestWork, wanted: &Value) -> Option<Value> {
    let spec = serde_json::to_value(&live.spec).unwrap_or_default();
    let hashes = live.metadata.annotations.as_ref().and_then(|all| all.get(CONFIG_SPEC_HASH_ANNOTATION));
    let wanted_hashes =
        wanted.pointer("/metadata/annotations").and_then(|all| all.get(CONFIG_SPEC_HASH_ANNOTATION));
    let same_manifests = json!(live.spec.workload.manifests) == wanted["spec"]["workload"]["manifests"];
    let rest = ["manifestConfigs", "deleteOption"].iter().all(|key| {
        let (have, want) = (spec.get(*key), wanted["spec"].get(*key));
        match want {
            Some(want) => have.is_some_and(|have| says(have, want)),
            None => have.is_none_or(|have| have.is_null() || have.as_array().is_some_and(Vec::is_empty)),
        }
    });
    let labelled =
        live.metadata.labels.as_ref().and_then(|all| all.get(ADDON_NAME_LABEL)).map(String::as_str)
            == wanted.pointer("/metadata/labels").and_then(|all| all.get(ADDON_NAME_LABEL)?.as_str());
    if same_manifests
        && rest
        && labelled
        && hashes.map(String::as_str) == wanted_hashes.and_then(Value::as_str)
    {
        return None;
    }
    let mut spec = wanted["spec"].clone();
    if let Some(spec) = spec.as_object_mut() {
        for key in ["manifestConfigs", "deleteOption"] {
            spec.entry(key).or_insert(Value::Null);
        }
    }
    Some(json!({"metadata": {"uid": live.metadata.uid, "resourceVersion": live.metadata.resource_version,
            "labels": wanted["metadata"]["labels"],
            "annotations": {CONFIG_SPEC_HASH_ANNOTATION: wanted_hashes}},
        "spec": spec}))
}

/// Whether `live` says all that `wanted` says; the server may have added defaults.
fn says(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted.iter().all(|(key, value)| {
            live.get(key).map_or(value == "" || value.is_null(), |have| says(have, value))
        }),
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len() && live.iter().zip(wanted).all(|(l, w)| says(l, w))
        }
        _ => live == wanted,
    }
}

/// What becomes of ManifestApplied.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// This is said.
    Now(Condition),
    /// What is said is not true any more, and nothing else is known yet.
    Nothing,
    /// What is said stays.
    AsBefore,
}

/// What the works say about ManifestApplied (OCM-116). `wanted` is how many there are to be.
pub fn applied(works: &[&ManifestWork], wanted: usize, old: Option<&Condition>, now: Timestamp) -> Told {
    let tell = |status: &str, reason: &str, message: &str| {
        Told::Now(condition(MANIFEST_APPLIED, status, reason, message, now))
    };
    if wanted == 0 {
        return tell("True", "AddonManifestApplied", "no manifest need to apply");
    }
    let states: Vec<Option<&str>> = works.iter().map(|work| work_condition(work, "Applied")).collect();
    if states.contains(&Some("False")) {
        return tell("False", "AddonManifestAppliedFailed", "failed to apply the manifests of addon");
    }
    if states.len() >= wanted && states.iter().all(|state| *state == Some("True")) {
        return tell("True", "AddonManifestApplied", "manifests of addon are applied successfully");
    }
    if old.is_some_and(|old| old.status == "False") { Told::Nothing } else { Told::AsBefore }
}

/// Status of a condition of a work that is about its present generation.
pub fn work_condition<'a>(work: &'a ManifestWork, type_: &str) -> Option<&'a str> {
    let conditions = work.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let found = conditions.iter().find(|c| c.type_ == type_)?;
    let stale = found.observed_generation.is_some_and(|seen| Some(seen) != work.metadata.generation);
    (!stale).then_some(found.status.as_str())
}

/// The hooks that have not ended well yet.
pub fn unfinished(work: &ManifestWork, hooks: &[Value]) -> BTreeSet<String> {
    let reports = work.status.as_ref().map(|s| s.resource_status.manifests.as_slice()).unwrap_or_default();
    let ended = |values: &[FeedbackValue], name: &str, wanted: &str| {
        values.iter().any(|v| {
            v.name == name && serde_json::to_value(&v.value).is_ok_and(|value| value["string"] == wanted)
        })
    };
    hooks
        .iter()
        .map(identity)
        .filter(|[group, kind, namespace, name]| {
            !reports.iter().any(|r| {
                let meta = &r.resource_meta;
                let same =
                    (&meta.group, &meta.kind, &meta.namespace, &meta.name) == (group, kind, namespace, name);
                let values = &r.status_feedback.values;
                same && (ended(values, "JobComplete", "True") || ended(values, "PodPhase", "Succeeded"))
            })
        })
        .map(|[_, kind, namespace, name]| format!("{kind} {namespace}/{name}"))
        .collect()
}

/// Objects of the works that exist, by number.
pub fn held(addon: &str, works: &[&ManifestWork]) -> BTreeMap<usize, Vec<Value>> {
    let numbered =
        |work: &&&ManifestWork| work_number(addon, work.metadata.name.as_deref().unwrap_or_default());
    works.iter().filter_map(|work| Some((numbered(&work)?, work.spec.workload.manifests.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn object(name: &str, size: usize) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "n"},
            "data": {"x": "y".repeat(size)}})
    }

    fn common(addon: &ManagedClusterAddOn) -> Common<'_> {
        const NONE: &BTreeMap<String, String> = &BTreeMap::new();
        Common { addon, hashes: NONE, configs: &[] }
    }

    fn read(work: Value) -> ManifestWork {
        serde_json::from_value(work).unwrap()
    }

    proptest! {
        /// What is in a work stays there as long as it fits; no work is over its limit unless one object alone is.
        #[test]
        fn ocm_116_objects_stay_in_their_work(first in prop::collection::btree_map(0u8..30, 1usize..300, 0..20),
                                              then in prop::collection::btree_map(0u8..30, 1usize..300, 0..20)) {
            let make = |all: &BTreeMap<u8, usize>| all.iter().map(|(n, size)| object(&n.to_string(), *size)).collect::<Vec<_>>();
            let before = pack(&BTreeMap::new(), make(&first), 900);
            prop_assert_eq!(&pack(&before, make(&first), 900), &before, "and nothing moves by itself");
            let after = pack(&before, make(&then), 900);
            let mut names: Vec<String> = after.values().flatten().map(|o| identity(o)[3].clone()).collect();
            names.sort();
            let mut wanted: Vec<String> = then.keys().map(ToString::to_string).collect();
            wanted.sort();
            prop_assert_eq!(names, wanted, "each object once");
            for held in after.values() {
                let size: usize = held.iter().map(|o| o.to_string().len()).sum();
                prop_assert!(size <= 900 || held.len() == 1);
                prop_assert!(!held.is_empty());
            }
            let same: BTreeMap<u8, usize> = then.into_iter().filter(|(n, size)| first.get(n) == Some(size)).collect();
            let kept = pack(&before, make(&same), 900);
            for (number, held) in &kept {
                for object in held {
                    prop_assert!(before[number].contains(object));
                }
            }
        }
    }

    #[test]
    fn ocm_116_a_work_says_whose_it_is() {
        let mut addon = ManagedClusterAddOn::namespaced("c1", "a");
        addon.metadata.uid = Some("u1".into());
        let hashes =
            [("addondeploymentconfigs.addon.open-cluster-management.io/n/x".to_owned(), "abc".to_owned())]
                .into();
        let common = Common { hashes: &hashes, ..common(&addon) };
        let mut kept = object("kept", 1);
        kept["metadata"]["annotations"] = json!({ADDON_ORPHAN: ""});
        let work = common.work(&work_name("a", 0), vec![object("o", 1), kept]);
        assert_eq!(work["metadata"]["name"], "addon-a-deploy-0");
        assert_eq!(work["metadata"]["labels"], json!({"open-cluster-management.io/addon-name": "a"}));
        let owner = &work["metadata"]["ownerReferences"][0];
        assert_eq!(
            (&owner["kind"], &owner["uid"], &owner["controller"]),
            (&json!("ManagedClusterAddOn"), &json!("u1"), &json!(true))
        );
        assert_eq!(
            work["metadata"]["annotations"]["open-cluster-management.io/config-spec-hash"],
            r#"{"addondeploymentconfigs.addon.open-cluster-management.io/n/x":"abc"}"#
        );
        assert_eq!(
            work["spec"]["deleteOption"]["selectivelyOrphans"]["orphaningRules"],
            json!([{"group": "", "resource": "configmaps", "namespace": "n", "name": "kept"}])
        );
        assert_eq!(
            (work_number("a", "addon-a-deploy-12"), work_number("a", "addon-ab-deploy-1")),
            (Some(12), None)
        );
    }

    #[test]
    fn ocm_116_drift_of_a_work_is_seen() {
        let addon = ManagedClusterAddOn::namespaced("c1", "a");
        let wanted = common(&addon).work("w", vec![object("o", 1)]);
        let mut live = read(wanted.clone());
        assert_eq!(correction(&live, &wanted), None);
        live.metadata.annotations = Some([("mine".to_owned(), "x".to_owned())].into());
        assert_eq!(correction(&live, &wanted), None, "what others add is theirs");
        live.spec.workload.manifests[0]["data"]["x"] = "other".into();
        let patch = correction(&live, &wanted).unwrap();
        assert_eq!(patch["spec"]["workload"], wanted["spec"]["workload"]);
        let mut unlabelled = read(wanted.clone());
        unlabelled.metadata.labels = None;
        assert!(correction(&unlabelled, &wanted).is_some());
        let hooked = common(&addon).hook_work(vec![]);
        assert!(correction(&read(hooked), &wanted).is_some());
    }

    fn with_status(conditions: Value) -> ManifestWork {
        read(json!({"metadata": {"name": "w", "generation": 2}, "spec": {"workload": {"manifests": []}},
            "status": {"conditions": conditions}}))
    }

    #[test]
    fn ocm_116_manifest_applied_mirrors_the_works() {
        let condition = |status: &str, generation: i64| {
            json!([{"type": "Applied", "status": status, "reason": "R", "message": "",
                "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z"}])
        };
        let now = Timestamp::UNIX_EPOCH;
        let reason = |works: &[&ManifestWork], wanted: usize| match applied(works, wanted, None, now) {
            Told::Now(c) => (c.status, c.reason, c.message),
            other => (String::new(), String::new(), format!("{other:?}")),
        };
        let (yes, no, old) = (
            with_status(condition("True", 2)),
            with_status(condition("False", 2)),
            with_status(condition("True", 1)),
        );
        let text = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        assert_eq!(reason(&[], 0), text("True", "AddonManifestApplied", "no manifest need to apply"));
        let well = "manifests of addon are applied successfully";
        assert_eq!(reason(&[&yes], 1), text("True", "AddonManifestApplied", well));
        let ill = "failed to apply the manifests of addon";
        assert_eq!(reason(&[&yes, &no], 2), text("False", "AddonManifestAppliedFailed", ill));
        assert_eq!(applied(&[&yes], 2, None, now), Told::AsBefore, "one is not there yet");
        assert_eq!(applied(&[&old], 1, None, now), Told::AsBefore, "told of an earlier generation");
        let stale = super::condition(MANIFEST_APPLIED, "False", "X", "", now);
        assert_eq!(applied(&[&old], 1, Some(&stale), now), Told::Nothing, "a stale False goes");
    }

    /// OCM-A-88 (what counts as ended).
    #[test]
    fn ocm_116_hooks_are_jobs_and_pods_that_end_well() {
        let hook = |kind: &str, place: &str| json!({"apiVersion": "batch/v1", "kind": kind, "metadata": {"name": "h", "namespace": "n", place: {ADDON_PRE_DELETE: ""}}});
        assert!(is_hook(&hook("Job", "annotations")) && is_hook(&hook("Pod", "labels")));
        assert!(!is_hook(&hook("ConfigMap", "labels")) && !is_hook(&object("o", 1)));
        let job = hook("Job", "annotations");
        let report = |value: &str| {
            read(
                json!({"metadata": {"name": "w"}, "spec": {"workload": {"manifests": []}}, "status": {"conditions": [], "resourceStatus": {"manifests": [
                {"resourceMeta": {"ordinal": 0, "group": "batch", "version": "v1", "kind": "Job", "resource": "jobs", "name": "h", "namespace": "n"},
                 "statusFeedback": {"values": [{"name": "JobComplete", "fieldValue": {"type": "String", "string": value}}]}, "conditions": []}]}}}),
            )
        };
        assert!(unfinished(&report("True"), std::slice::from_ref(&job)).is_empty());
        for other in [report("False"), with_status(json!([]))] {
            assert_eq!(unfinished(&other, std::slice::from_ref(&job)), ["Job n/h".to_owned()].into());
        }
    }
}
