//! Namespaces that the cluster's sets request (OCM-056): they are created, labelled as managed by the hub,
//! and never deleted.

use std::collections::BTreeSet;

use apis::ocm::{ManagedCluster, cluster::ManagedNamespace};
use k8s_openapi::{api::core::v1::Namespace, jiff::Timestamp};
use runtime::failure::{is_clash, is_not_found, message_of};
use runtime::rest::{Gvr, Rest};
use serde_json::{Value, json};

use super::Agent;
use crate::work_agent::hub_hash;
use ocm_shared::conditions::{self, condition};

/// Prefix of the label that marks a namespace as managed by a hub.
const PREFIX: &str = "clusterset.open-cluster-management.io/";

/// Returns the label of the hub with this address.
pub(super) fn label(server: &str) -> String {
    let hash = hub_hash(server);
    format!("{PREFIX}{}", hash.get(..63).unwrap_or(&hash))
}

/// The changes to make.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Namespaces to create or to label.
    pub(super) apply: BTreeSet<String>,
    /// Namespaces that are no longer requested: their label must say so.
    pub(super) release: BTreeSet<String>,
}

/// Compares the requested with the labelled namespaces.
pub(super) fn plan(asked: &[ManagedNamespace], marked: &BTreeSet<String>) -> Plan {
    let asked: BTreeSet<String> = asked.iter().map(|entry| entry.name.clone()).collect();
    Plan {
        apply: asked.difference(marked).cloned().collect(),
        release: marked.difference(&asked).cloned().collect(),
    }
}

/// Returns the entries with their conditions; `failed` has the errors.
pub(super) fn reported(
    asked: &[ManagedNamespace],
    failed: impl Fn(&str) -> Option<String>,
    now: Timestamp,
) -> Vec<ManagedNamespace> {
    let mut entries = asked.to_vec();
    for entry in &mut entries {
        let news = match failed(&entry.name) {
            None => {
                let message = "Namespace successfully applied and managed";
                condition("NamespaceAvailable", "True", "NamespaceApplied", message, now)
            }
            Some(why) => condition("NamespaceAvailable", "False", "NamespaceApplyFailed", why, now),
        };
        conditions::set(&mut entry.conditions, news);
    }
    entries
}

impl Agent {
    /// Creates and labels the requested namespaces, and returns changed entries. Costs one list if there are
    /// any, and nothing if there are none.
    pub(super) async fn managed_namespaces(
        &self,
        cluster: &ManagedCluster,
    ) -> Result<Option<Vec<ManagedNamespace>>, kube::Error> {
        let asked = cluster.status.as_ref().map(|s| s.managed_namespaces.as_slice()).unwrap_or_default();
        if asked.is_empty() && *self.no_namespaces.lock() {
            return Ok(None);
        }
        let label = label(&self.config.hub_url);
        let marked = match marked(&self.cluster, &label).await {
            Ok(marked) => marked,
            // Nothing is requested, and as far as is visible nothing was before.
            Err(_) if asked.is_empty() => BTreeSet::new(),
            Err(error) => {
                let why = message_of(&error);
                return Ok(changed(asked, reported(asked, |_| Some(why.clone()), self.now())));
            }
        };
        let plan = plan(asked, &marked);
        for name in &plan.release {
            let patch = json!({"metadata": {"labels": {label.as_str(): "false"}}});
            match self.cluster.merge::<Value>(&namespaces(), "", name, &patch).await {
                Err(error) if !is_not_found(&error) => return Err(error),
                _ => {}
            }
        }
        let mut failed = std::collections::BTreeMap::new();
        for name in &plan.apply {
            if let Err(error) = apply(&self.cluster, name, &label).await {
                failed.insert(name.clone(), message_of(&error));
            }
        }
        *self.no_namespaces.lock() = asked.is_empty();
        Ok(changed(asked, reported(asked, |name| failed.get(name).cloned(), self.now())))
    }
}

fn changed(asked: &[ManagedNamespace], reported: Vec<ManagedNamespace>) -> Option<Vec<ManagedNamespace>> {
    (reported != asked).then_some(reported)
}

async fn marked(cluster: &Rest, label: &str) -> Result<BTreeSet<String>, kube::Error> {
    let list: Value = cluster.list(&namespaces(), "", &format!("{label}=true")).await?;
    let items = list.get("items").and_then(Value::as_array);
    let leaving = |item: &&Value| item.pointer("/metadata/deletionTimestamp").is_none();
    let name = |item: &Value| item.pointer("/metadata/name").and_then(Value::as_str).map(str::to_owned);
    Ok(items.into_iter().flatten().filter(leaving).filter_map(name).collect())
}

async fn apply(cluster: &Rest, name: &str, label: &str) -> Result<(), kube::Error> {
    let labels = json!({"metadata": {"labels": {label: "true"}}});
    let mut body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    body["metadata"]["labels"] = labels["metadata"]["labels"].clone();
    match cluster.create::<Value>(&namespaces(), "", body.to_string().into_bytes()).await {
        Err(error) if is_clash(&error) => {
            cluster.merge::<Value>(&namespaces(), "", name, &labels).await.map(drop)
        }
        other => other.map(drop),
    }
}

fn namespaces() -> Gvr {
    Gvr::of::<Namespace>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(set: &str, name: &str) -> ManagedNamespace {
        ManagedNamespace { name: name.into(), cluster_set: set.into(), conditions: Vec::new() }
    }

    #[test]
    fn ocm_056_the_mark_of_a_hub() {
        let label = label("https://hub:6443");
        let (prefix, hash) = label.split_once('/').unwrap();
        assert_eq!((prefix, hash.len()), ("clusterset.open-cluster-management.io", 63));
        assert_eq!(hash, &hub_hash("https://hub:6443")[..63]);
    }

    /// OCM-056: the condition of each entry, also if two sets request the same namespace.
    #[test]
    fn ocm_056_what_is_said_of_namespaces() {
        let now = Timestamp::UNIX_EPOCH;
        let asked = [entry("a", "one"), entry("b", "one"), entry("b", "two")];
        let said = reported(&asked, |name| (name == "two").then(|| "forbidden".to_owned()), now);
        let all: Vec<(&str, &str, &str)> = said
            .iter()
            .map(|e| {
                let c = &e.conditions[0];
                (c.status.as_str(), c.reason.as_str(), c.message.as_str())
            })
            .collect();
        let good = ("True", "NamespaceApplied", "Namespace successfully applied and managed");
        assert_eq!(all, [good, good, ("False", "NamespaceApplyFailed", "forbidden")]);
        assert_eq!(
            changed(&said, reported(&said, |name| (name == "two").then(|| "forbidden".to_owned()), now)),
            None
        );
        assert!(changed(&said, reported(&said, |_| None, now)).is_some());
    }

    proptest! {
        /// OCM-056: after the plan is executed nothing is left to do, and exactly the requested namespaces
        /// are labelled.
        #[test]
        fn ocm_056_plans_settle(
            asked in prop::collection::btree_set("[a-d]", 0..4),
            marked in prop::collection::btree_set("[a-d]", 0..4),
        ) {
            let entries: Vec<ManagedNamespace> = asked.iter().map(|name| entry("s", name)).collect();
            let first = plan(&entries, &marked);
            let after: BTreeSet<String> =
                marked.difference(&first.release).chain(&first.apply).cloned().collect();
            prop_assert_eq!(&after, &asked);
            prop_assert_eq!(plan(&entries, &after), Plan::default());
        }
    }
}
