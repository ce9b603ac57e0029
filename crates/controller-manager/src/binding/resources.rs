//! Decides which resources are watched, and in which version (KS-030 … KS-036).

use std::{cmp::Reverse, collections::BTreeSet};

use kube::api::ApiResource;
use serde::Deserialize;

use crate::identity::GroupResource;

const GROUPS: [&str; 5] = [
    "flowcontrol.apiserver.k8s.io",
    "discovery.k8s.io",
    "apiregistration.k8s.io",
    "coordination.k8s.io",
    "control.kubestellar.io",
];

const RESOURCES: [(&str, &str); 6] = [
    ("", "events"),
    ("events.k8s.io", "events"),
    ("", "nodes"),
    ("", "endpoints"),
    ("storage.k8s.io", "csistoragecapacities"),
    ("storage.k8s.io", "csinodes"),
];

/// The API groups whose resources are watched (KS-213).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedGroups(Option<BTreeSet<String>>);

impl AllowedGroups {
    /// Parses a comma-separated list of groups; an empty list allows all. `core`, like an empty element, is
    /// the core group. The groups that the controller cannot work without are added.
    pub fn parse(list: &str) -> Self {
        if list.is_empty() {
            return Self(None);
        }
        Self::of(list.split(','))
    }

    /// Allows these groups; an empty list allows all.
    pub fn of<'a>(groups: impl IntoIterator<Item = &'a str>) -> Self {
        let mut groups: BTreeSet<String> = groups
            .into_iter()
            .map(|group| if group.trim() == "core" { String::new() } else { group.trim().to_owned() })
            .collect();
        if groups.is_empty() {
            return Self(None);
        }
        if !groups.contains("") {
            tracing::warn!("the core group is not among the allowed API groups; its objects are not seen");
        }
        groups.extend(["control.kubestellar.io", "apiextensions.k8s.io"].map(str::to_owned));
        Self(Some(groups))
    }

    /// Returns whether the resources of this group are watched.
    pub fn has(&self, group: &str) -> bool {
        self.0.as_ref().is_none_or(|groups| groups.contains(group))
    }
}

/// Returns whether users may want to send objects of this resource to clusters (KS-031 rules 2 to 4).
pub fn is_watched(resource: &GroupResource, allowed: &AllowedGroups) -> bool {
    let (group, plural) = (&*resource.group, &*resource.plural);
    !GROUPS.contains(&group) && !RESOURCES.contains(&(group, plural)) && allowed.has(group)
}

/// Returns whether the resource can be watched (KS-031 rule 1).
pub fn can_watch<S: AsRef<str>>(verbs: &[S]) -> bool {
    ["list", "watch"].iter().all(|verb| verbs.iter().any(|has| has.as_ref() == *verb))
}

/// The parts of a CRD that say how its resource is served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CrdFacts {
    /// Name and version of the object.
    pub metadata: runtime::informer::PartialMeta,
    /// The spec.
    pub spec: CrdSpec,
    /// Tells whether the resource is served already.
    pub status: CrdStatus,
}

/// Names and versions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CrdSpec {
    /// API group.
    pub group: String,
    /// Names.
    pub names: CrdNames,
    /// Versions.
    pub versions: Vec<CrdVersion>,
}

/// Names of a CRD's resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CrdNames {
    /// Plural.
    pub plural: String,
    /// Kind.
    pub kind: String,
}

/// One version of a CRD.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CrdVersion {
    /// Its name.
    pub name: String,
    /// Whether it is served.
    pub served: bool,
}

/// Conditions of a CRD.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CrdStatus {
    /// The conditions; null until a client sets one.
    pub conditions: Option<Vec<CrdCondition>>,
}

/// One condition of a CRD.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CrdCondition {
    /// Its type.
    #[serde(rename = "type")]
    pub type_: String,
    /// Its status.
    pub status: String,
}

impl runtime::Watched for CrdFacts {
    fn key(&self) -> runtime::ObjectKey {
        runtime::ObjectKey::new("", &self.metadata.name)
    }

    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

/// What a CRD means for the watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CrdAction {
    /// Watch the resource in this version.
    Watch(ApiResource),
    /// Do not watch the resource.
    Stop,
    /// The resource is not served yet; a later event will follow.
    Wait,
}

impl CrdFacts {
    /// Returns group and plural.
    pub fn resource(&self) -> GroupResource {
        GroupResource::new(&self.spec.group, &self.spec.names.plural)
    }

    /// Decides what to do about the CRD's resource (KS-033, KS-036).
    pub fn action(&self) -> CrdAction {
        if self.metadata.deletion_timestamp.is_some() {
            return CrdAction::Stop;
        }
        let served = self.spec.versions.iter().filter(|version| version.served);
        let Some(version) = served.min_by_key(|version| priority(&version.name)) else {
            return CrdAction::Stop;
        };
        let is_established = |c: &CrdCondition| c.type_ == "Established" && c.status == "True";
        if !self.status.conditions.iter().flatten().any(is_established) {
            return CrdAction::Wait;
        }
        CrdAction::Watch(api_resource(
            &self.spec.group,
            &version.name,
            &self.spec.names.kind,
            &self.spec.names.plural,
        ))
    }
}

/// Builds the API resource.
pub fn api_resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    let gvk = kube::api::GroupVersionKind::gvk(group, version, kind);
    ApiResource::from_gvk_with_plural(&gvk, plural)
}

/// Returns the sort key of a version, with the preferred version first. The order is that of Kubernetes:
/// `v2`, `v1`, `v2beta1`, `v1alpha3`, and then other names in alphabetical order.
pub fn priority(version: &str) -> impl Ord + use<> {
    let parsed = parse_version(version);
    (Reverse(parsed), if parsed.is_some() { String::new() } else { version.to_owned() })
}

/// Parses a version named in the Kubernetes style into stability, major and minor number.
fn parse_version(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let (major, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
    let major = major.parse().ok()?;
    if tail.is_empty() {
        return Some((2, major, 0));
    }
    let beta = tail.strip_prefix("beta").map(|minor| (1, minor));
    let (stability, minor) = beta.or_else(|| tail.strip_prefix("alpha").map(|minor| (0, minor)))?;
    Some((stability, major, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ks_036_the_preferred_version_comes_first() {
        let mut versions = ["v1alpha3", "foo", "v1", "v2beta1", "v10", "v2", "bar", "v1beta2"];
        versions.sort_by_key(|version| priority(version));
        assert_eq!(versions, ["v10", "v2", "v1", "v2beta1", "v1beta2", "v1alpha3", "bar", "foo"]);
    }

    #[test]
    fn ks_031_excluded_resources() {
        let all = AllowedGroups::default();
        for (group, plural, watched) in [
            ("", "configmaps", true),
            ("", "nodes", false),
            ("my.example", "nodes", true),
            ("", "events", false),
            ("events.k8s.io", "events", false),
            ("coordination.k8s.io", "leases", false),
            ("control.kubestellar.io", "bindingpolicies", false),
            ("control.kubestellar.io", "workstatuses", false),
            ("apiextensions.k8s.io", "customresourcedefinitions", true),
            ("", "pods", true),
        ] {
            assert_eq!(is_watched(&GroupResource::new(group, plural), &all), watched, "{group}/{plural}");
        }
        assert!(!can_watch(&["get", "list"]));
        assert!(can_watch(&["watch", "get", "list"]));
    }

    #[test]
    fn ks_213_the_core_group_must_be_asked_for() {
        let apps = AllowedGroups::parse("apps");
        assert!(apps.has("apps") && apps.has("apiextensions.k8s.io") && !apps.has(""));
        assert!(AllowedGroups::parse(",apps").has(""));
        assert!(AllowedGroups::parse("apps, core").has(""));
        assert!(AllowedGroups::parse("").has("anything"));
    }

    #[test]
    fn ks_033_a_crd_says_what_is_watched() {
        let mut crd = CrdFacts {
            spec: CrdSpec {
                group: "g".into(),
                names: CrdNames { plural: "things".into(), kind: "Thing".into() },
                versions: ["v1alpha1", "v1", "v2"]
                    .map(|name| CrdVersion { name: name.into(), served: name != "v2" })
                    .into(),
            },
            ..CrdFacts::default()
        };
        assert_eq!(crd.action(), CrdAction::Wait);
        crd.status.conditions =
            Some(vec![CrdCondition { type_: "Established".into(), status: "True".into() }]);
        assert_eq!(crd.action(), CrdAction::Watch(api_resource("g", "v1", "Thing", "things")));
        crd.metadata.deletion_timestamp = Some("now".into());
        assert_eq!(crd.action(), CrdAction::Stop);
        crd.metadata.deletion_timestamp = None;
        crd.spec.versions.clear();
        assert_eq!(crd.action(), CrdAction::Stop);
    }
}
