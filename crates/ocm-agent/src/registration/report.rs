//! What an agent reports about its cluster besides health: resources and claims (OCM-054, OCM-055). Pure.

use std::collections::BTreeMap;

use apis::ocm::{ClusterClaim, ClusterProperty, cluster::ManagedClusterClaim};
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::api::resource::Quantity};
use machinery::quantity;

/// Label of a claim that must not leave its cluster.
const SPOKE_ONLY: &str = "open-cluster-management.io/spoke-only";
const RESERVED: [&str; 4] = [
    "id.k8s.io",
    "kubeversion.open-cluster-management.io",
    "platform.open-cluster-management.io",
    "product.open-cluster-management.io",
];

/// Resource name to quantity.
pub type Resources = BTreeMap<String, Quantity>;

/// Sums the capacity of all nodes, and the allocatable resources of the schedulable ones. Quantities that
/// cannot be parsed count as zero.
pub fn resources<'a>(nodes: impl Iterator<Item = &'a Node>) -> (Resources, Resources) {
    let (mut capacity, mut allocatable) = (BTreeMap::new(), BTreeMap::new());
    for node in nodes {
        let Some(status) = &node.status else { continue };
        add(&mut capacity, status.capacity.as_ref());
        let closed = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
        if !closed {
            add(&mut allocatable, status.allocatable.as_ref());
        }
    }
    let written = |sums: BTreeMap<String, quantity::Quantity>| {
        sums.into_iter().map(|(name, sum)| (name, Quantity(sum.canonical()))).collect()
    };
    (written(capacity), written(allocatable))
}

fn add(sums: &mut BTreeMap<String, quantity::Quantity>, more: Option<&Resources>) {
    for (name, text) in more.into_iter().flatten() {
        let Ok(more) = quantity::Quantity::parse(&text.0) else { continue };
        let sum = sums.get(name).map_or(Some(more.clone()), |sum| sum.checked_add(&more));
        if let Some(sum) = sum {
            sums.insert(name.clone(), sum);
        }
    }
}

/// Returns whether two lists of resources are equal (`1` equals `1000m`).
pub fn same(a: &Resources, b: &Resources) -> bool {
    let read =
        |text: &Quantity| quantity::Quantity::parse(&text.0).map(|q| q.canonical()).unwrap_or_default();
    a.len() == b.len()
        && a.iter().all(|(name, text)| b.get(name).is_some_and(|other| read(other) == read(text)))
}

/// Returns the claims to report: reserved ones first, then at most `most` others, each sorted by name. A property
/// counts as a claim, and wins over the claim of its name. The flag tells whether some were left out.
pub fn claims<'a>(
    claims: impl Iterator<Item = &'a ClusterClaim>,
    properties: impl Iterator<Item = &'a ClusterProperty>,
    suffixes: &[String],
    most: usize,
) -> (Vec<ManagedClusterClaim>, bool) {
    let (mut reserved, mut custom) = (BTreeMap::new(), BTreeMap::new());
    let claims = claims.map(|claim| (&claim.metadata, &claim.spec.value));
    for (metadata, value) in
        claims.chain(properties.map(|property| (&property.metadata, &property.spec.value)))
    {
        let local = metadata.labels.iter().flatten().any(|(key, _)| key == SPOKE_ONLY);
        let Some(name) = metadata.name.clone().filter(|_| !local) else { continue };
        let special = RESERVED.contains(&name.as_str())
            || suffixes.iter().any(|suffix| !suffix.is_empty() && name.ends_with(suffix.as_str()));
        let list = if special { &mut reserved } else { &mut custom };
        list.insert(name, value.clone());
    }
    let cut = custom.len() > most;
    let all = reserved.into_iter().chain(custom.into_iter().take(most));
    (all.map(|(name, value)| ManagedClusterClaim { name, value }).collect(), cut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(cpu: &str, closed: bool) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"unschedulable": closed},
            "status": {"capacity": {"cpu": cpu, "memory": "1Gi"}, "allocatable": {"cpu": cpu}}}))
        .unwrap()
    }

    /// OCM-A-22: nodes that take no pods have capacity but no allocatable resources.
    #[test]
    fn ocm_054_resources_are_summed() {
        let nodes = [node("4", false), node("4", true), node("500m", false), node("nonsense", false)];
        let (capacity, allocatable) = resources(nodes.iter());
        assert_eq!(capacity["cpu"].0, "8500m");
        assert_eq!(capacity["memory"].0, "4Gi");
        assert_eq!(allocatable["cpu"].0, "4500m");
        assert!(!allocatable.contains_key("memory"));
        let q = |text: &str| Resources::from([("cpu".to_owned(), Quantity(text.into()))]);
        assert!(same(&q("1"), &q("1000m")) && !same(&q("1"), &q("2")) && !same(&q("1"), &Resources::new()));
    }

    /// OCM-A-23: reserved claims come first and always, others by name up to the limit, local ones never.
    #[test]
    fn ocm_055_claims_are_chosen() {
        let claim = |name: &str, label: Option<&str>| {
            let mut claim = ClusterClaim::named(name);
            claim.spec.value = name.to_uppercase();
            claim.metadata.labels = label.map(|key| [(key.to_owned(), String::new())].into());
            claim
        };
        let mut all: Vec<ClusterClaim> =
            (0..25).rev().map(|n| claim(&format!("custom-{n:02}"), None)).collect();
        all.push(claim("id.k8s.io", None));
        all.push(claim("zone.example.com", None));
        all.push(claim("a-local", Some(SPOKE_ONLY)));
        let (list, cut) = claims(all.iter(), [].iter(), &[], 20);
        assert!(cut);
        assert_eq!(
            (list.len(), list[0].name.as_str(), list[0].value.as_str()),
            (21, "id.k8s.io", "ID.K8S.IO")
        );
        assert_eq!((list[1].name.as_str(), list[20].name.as_str()), ("custom-00", "custom-19"));
        let (list, _) = claims(all.iter(), [].iter(), &[".example.com".into()], 20);
        assert_eq!(list[1].name, "zone.example.com");
        assert!(!claims(all[..3].iter(), [].iter(), &[], 20).1);
        let property = |name: &str| {
            let mut property = ClusterProperty::named(name);
            property.spec.value = "property".into();
            property
        };
        let more = [property("custom-07"), property("a-property"), property("id.k8s.io")];
        let (list, _) = claims(all.iter(), more.iter(), &[], 20);
        let value = |name: &str| list.iter().find(|one| one.name == name).map(|one| one.value.as_str());
        assert_eq!(list.len(), 21);
        assert_eq!([value("id.k8s.io"), value("a-property"), value("custom-07")], [Some("property"); 3]);
        assert_eq!(value("custom-08"), Some("CUSTOM-08"));
    }
}
