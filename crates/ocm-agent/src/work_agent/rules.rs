//! How the manifests of a work are treated: order, strategy, ownership (OCM-075, OCM-077, OCM-084). Pure.

use apis::ocm::work::{
    ConditionRule, FeedbackRule, ManifestResourceMeta, ManifestWorkSpec, STRATEGY_UPDATE, UpdateStrategy,
};
use serde_json::Value;

use super::merge::text;

/// Returns the rank of a kind: lower ranks are applied first. It depends on the kind's name only.
pub fn rank(kind: &str) -> u16 {
    match kind {
        "PriorityClass"
        | "Namespace"
        | "CustomResourceDefinition"
        | "StorageClass"
        | "PersistentVolume"
        | "PodSecurityPolicy" => 0,
        "ClusterRole" | "ClusterRoleBinding" | "Role" | "RoleBinding" => 1,
        "NetworkPolicy" | "ResourceQuota" | "LimitRange" | "PodDisruptionBudget" | "ServiceAccount" => 2,
        "Secret" | "ConfigMap" | "PersistentVolumeClaim" => 3,
        "Service" => 4,
        "DaemonSet"
        | "Pod"
        | "ReplicationController"
        | "ReplicaSet"
        | "Deployment"
        | "HorizontalPodAutoscaler"
        | "StatefulSet"
        | "Job"
        | "CronJob" => 5,
        "APIService"
        | "MutatingWebhookConfiguration"
        | "ValidatingWebhookConfiguration"
        | "ValidatingAdmissionPolicy"
        | "ValidatingAdmissionPolicyBinding" => 6,
        "" => 1001,
        _ => 1000,
    }
}

/// Returns the turn in which a kind is applied; the manifests of one turn are applied at the same time. Namespaces
/// and definitions come first, custom resources last. If the work acts as an executor, roles and then their
/// bindings have turns of their own, because they may be what permits the executor to apply the rest.
pub fn turn(kind: &str, has_executor: bool) -> u8 {
    match (rank(kind), kind) {
        (0, _) => 0,
        (_, "ClusterRole" | "Role") if has_executor => 1,
        (_, "ClusterRoleBinding" | "RoleBinding") if has_executor => 2,
        (rank, _) if rank < 1000 => 3,
        _ => LAST_TURN,
    }
}

/// Returns whether objects of this kind give permissions.
pub fn may_grant(kind: &str) -> bool {
    rank(kind) == 1
}

/// The greatest value of [`turn`].
pub const LAST_TURN: u8 = 4;

/// Identity of an object by resource and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// API group.
    pub group: String,
    /// Plural.
    pub resource: String,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// The settings in the matching `manifestConfigs` for one object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Treatment {
    /// How the object is written.
    pub strategy: UpdateStrategy,
    /// The values to report.
    pub feedback: Vec<FeedbackRule>,
    /// The conditions to derive from the object.
    pub conditions: Vec<ConditionRule>,
}

impl Treatment {
    /// Returns whether anything is derived from the object's content.
    pub fn observes(&self) -> bool {
        !self.feedback.is_empty() || !self.conditions.is_empty()
    }
}

/// OCM-077: each kind of option comes from the first matching entry that defines it.
pub fn treatment(spec: &ManifestWorkSpec, target: &Target) -> Treatment {
    let mut treatment = Treatment::default();
    let mut strategy = None;
    let matching = spec.manifest_configs.iter().filter(|config| {
        let id = &config.resource_identifier;
        id.group == target.group
            && id.resource == target.resource
            && wildcard(&id.namespace, &target.namespace)
            && wildcard(&id.name, &target.name)
    });
    for config in matching {
        if strategy.is_none() {
            strategy.clone_from(&config.update_strategy);
        }
        if treatment.feedback.is_empty() {
            treatment.feedback.clone_from(&config.feedback_rules);
        }
        if treatment.conditions.is_empty() {
            treatment.conditions.clone_from(&config.condition_rules);
        }
    }
    treatment.strategy = strategy.unwrap_or_default();
    if treatment.strategy.type_.is_empty() {
        treatment.strategy.type_ = STRATEGY_UPDATE.into();
    }
    treatment
}

/// Matches the whole string; `*` stands for any characters.
fn wildcard(pattern: &str, value: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == value };
    let Some(mut value) = value.strip_prefix(first) else { return false };
    let parts: Vec<&str> = rest.split('*').collect();
    let Some((last, middle)) = parts.split_last() else { return true };
    for part in middle {
        let Some(at) = value.find(part) else { return false };
        value = value.get(at + part.len()..).unwrap_or_default();
    }
    value.ends_with(last)
}

/// OCM-084: returns whether the work owns the object, so that the object is deleted with the work.
pub fn owned(spec: &ManifestWorkSpec, target: &Target) -> bool {
    let Some(option) = &spec.delete_option else { return true };
    match option.propagation_policy.as_str() {
        "Orphan" => false,
        "SelectivelyOrphan" => {
            !option.selectively_orphans.iter().flat_map(|orphans| &orphans.orphaning_rules).any(|rule| {
                rule.group == target.group
                    && rule.resource == target.resource
                    && rule.namespace == target.namespace
                    && rule.name == target.name
            })
        }
        _ => true,
    }
}

/// The identity that a manifest states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// `group/version`.
    pub api_version: String,
    /// API group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// Namespace as written in the manifest.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Header {
    /// Reads the header; missing fields are empty.
    pub fn of(manifest: &Value) -> Self {
        let nothing = Value::Null;
        let api_version = text(manifest, "apiVersion");
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let metadata = manifest.get("metadata").unwrap_or(&nothing);
        Self {
            api_version: api_version.into(),
            group: group.into(),
            version: version.into(),
            kind: text(manifest, "kind").into(),
            namespace: text(metadata, "namespace").into(),
            name: text(metadata, "name").into(),
        }
    }

    /// Returns what a status shows of the manifest before its resource is known.
    pub fn meta(&self, ordinal: usize) -> ManifestResourceMeta {
        ManifestResourceMeta {
            ordinal: i32::try_from(ordinal).unwrap_or(i32::MAX),
            group: self.group.clone(),
            version: self.version.clone(),
            kind: self.kind.clone(),
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            ..ManifestResourceMeta::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(value: Value) -> ManifestWorkSpec {
        serde_json::from_value(value).expect("a spec")
    }

    fn target(namespace: &str, name: &str) -> Target {
        Target {
            group: String::new(),
            resource: "configmaps".into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    #[test]
    fn ocm_075_order_of_kinds() {
        let mut kinds =
            ["Buoy", "Deployment", "", "ConfigMap", "CustomResourceDefinition", "Service", "Role"];
        kinds.sort_by_key(|k| rank(k));
        assert_eq!(
            kinds,
            ["CustomResourceDefinition", "Role", "ConfigMap", "Service", "Deployment", "Buoy", ""]
        );
    }

    #[test]
    fn ocm_086_roles_have_turns_of_their_own_when_an_executor_acts() {
        let turns = |executor| {
            ["Namespace", "Role", "ClusterRoleBinding", "ConfigMap", "Deployment", "Buoy"]
                .map(|k| turn(k, executor))
        };
        assert_eq!(turns(true), [0, 1, 2, 3, 3, LAST_TURN]);
        assert_eq!(turns(false), [0, 3, 3, 3, 3, LAST_TURN]);
    }

    #[test]
    fn ocm_077_options_come_from_the_first_entry_that_defines_them() {
        let spec = spec(json!({"manifestConfigs": [
            {"resourceIdentifier": {"resource": "configmaps", "namespace": "n", "name": "a*"},
             "feedbackRules": [{"type": "WellKnownStatus"}]},
            {"resourceIdentifier": {"resource": "configmaps", "namespace": "*", "name": "*"},
             "updateStrategy": {"type": "CreateOnly"}, "feedbackRules": [{"type": "JSONPaths"}]},
            {"resourceIdentifier": {"resource": "secrets", "namespace": "n", "name": "ab"},
             "updateStrategy": {"type": "ReadOnly"}}]}));
        let of = |ns: &str, name: &str| treatment(&spec, &target(ns, name));
        assert_eq!(of("n", "ab").strategy.type_, "CreateOnly");
        assert_eq!(of("n", "ab").feedback[0].type_, "WellKnownStatus");
        assert_eq!(of("m", "ab").feedback[0].type_, "JSONPaths");
        let none = ManifestWorkSpec::default();
        assert_eq!(treatment(&none, &target("n", "x")).strategy.type_, "Update");
    }

    #[test]
    fn ocm_077_wildcards_match_whole_strings() {
        for (pattern, value, matches) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("*", "", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abde", false),
            ("a*a", "a", false),
            ("", "x", false),
        ] {
            assert_eq!(wildcard(pattern, value), matches, "{pattern} {value}");
        }
    }

    #[test]
    fn ocm_084_orphans() {
        let all = spec(json!({"deleteOption": {"propagationPolicy": "Orphan"}}));
        let some =
            spec(json!({"deleteOption": {"propagationPolicy": "SelectivelyOrphan", "selectivelyOrphans":
            {"orphaningRules": [{"resource": "configmaps", "namespace": "n", "name": "a"}]}}}));
        let none = spec(json!({"deleteOption": {"propagationPolicy": "SelectivelyOrphan"}}));
        for (spec, name, is_owned) in
            [(&all, "a", false), (&some, "a", false), (&some, "b", true), (&none, "a", true)]
        {
            assert_eq!(owned(spec, &target("n", name)), is_owned, "{spec:?} {name}");
        }
        assert!(owned(&ManifestWorkSpec::default(), &target("n", "a")));
    }
}
