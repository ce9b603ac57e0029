//! The hub's admission of ManagedClusters and of bindings of sets (OCM-041, OCM-042). Pure.
//!
//! Without it anyone who may create a ManagedCluster, which is anyone who may ask to join, could accept it as
//! well.
//!
//! As in OCM, an agent may write its own ManagedCluster, labels included, except for what [`managed_cluster`]
//! checks: the acceptance, the cluster set, and the times of taints. To change the set, the writer needs the
//! permission to join a set (`create` on `managedclustersets/join`) for both the old and the new set. An
//! agent of a member has no such permission, so the cluster stays in its set. A client that asks to join has
//! it for every set, as in OCM's bootstrap role, and needs it for `default`: a new cluster *chooses* its set,
//! and only its acceptance makes that count. So a policy whose workload no cluster may attract by itself
//! should select by the label of the set, and whoever accepts a cluster should check that label first
//! (`kubestellar cluster list` and `accept` show it). A hub that accepts automatically (OCM-043) leaves the
//! choice to new clusters.

use apis::constants::{CLUSTER_GROUP, CLUSTER_SET_LABEL};
use machinery::names::dns1123_label;
use serde_json::{Value, json};

use ocm_shared::reserved::{complaint, reserved};

/// The questions that an admission decision may ask.
pub trait Ask {
    /// Returns whether the writer has the permission: verb, group, resource, subresource, name.
    fn may(&self, verb: &str, group: &str, resource: &str, subresource: &str, name: &str) -> bool;
    /// Returns whether the namespace is being deleted.
    fn is_terminating(&self, namespace: &str) -> bool;
}

/// Why a write is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The object is invalid: 400.
    Bad(String),
    /// The writer lacks a permission: 403.
    Forbidden(String),
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn set_of(cluster: &Value) -> &str {
    let labels = cluster.pointer("/metadata/labels");
    labels.and_then(|labels| labels.get(CLUSTER_SET_LABEL)).and_then(Value::as_str).unwrap_or_default()
}

fn accepts(cluster: &Value) -> bool {
    cluster.pointer("/spec/hubAcceptsClient").and_then(Value::as_bool).unwrap_or(false)
}

/// Completes and checks a ManagedCluster. `old` is the object that it replaces, `user` the writer.
///
/// # Errors
///
/// Why the write is refused.
pub fn managed_cluster(
    cluster: &mut Value,
    old: Option<&Value>,
    user: &str,
    now: &str,
    ask: &dyn Ask,
) -> Result<(), Refusal> {
    stamp_taints(cluster, old, now)?;
    if set_of(cluster).is_empty()
        && let Some(metadata) = cluster.get_mut("metadata").and_then(Value::as_object_mut)
        && let Some(labels) = metadata.entry("labels").or_insert_with(|| json!({})).as_object_mut()
    {
        labels.insert(CLUSTER_SET_LABEL.into(), "default".into());
    }
    let name = text(cluster, "/metadata/name").to_owned();
    if old.is_none() && !dns1123_label(&name).is_empty() {
        return Err(Refusal::Bad(format!(
            "metadata.name format is not correct: {name:?} is no namespace name"
        )));
    }
    if old.is_none()
        && let Some(why) = reserved(&name)
    {
        return Err(Refusal::Bad(complaint(&name, why)));
    }
    let clients = cluster.pointer("/spec/managedClusterClientConfigs").and_then(Value::as_array);
    for client in clients.into_iter().flatten() {
        let url = text(client, "/url");
        let host = url.strip_prefix("https://").unwrap_or_default();
        if host.is_empty() || host.starts_with('/') {
            return Err(Refusal::Bad(format!(
                "url {url:?} is invalid in client configs: it must begin with https://"
            )));
        }
    }
    check_acceptance(cluster, old, &name, user, ask)?;
    check_set(cluster, old, user, ask)
}

fn check_acceptance(
    cluster: &Value,
    old: Option<&Value>,
    name: &str,
    user: &str,
    ask: &dyn Ask,
) -> Result<(), Refusal> {
    if !accepts(cluster) || old.is_some_and(accepts) {
        return Ok(());
    }
    if let Some(why) = reserved(name) {
        return Err(Refusal::Forbidden(complaint(name, why)));
    }
    if ask.is_terminating(name) {
        return Err(Refusal::Forbidden(format!(
            "the namespace {name} is being deleted: the cluster can be accepted when it is gone"
        )));
    }
    if !ask.may("update", "register.open-cluster-management.io", "managedclusters", "accept", name) {
        return Err(Refusal::Forbidden(format!("user {user:?} cannot update the HubAcceptsClient field")));
    }
    Ok(())
}

fn check_set(cluster: &Value, old: Option<&Value>, user: &str, ask: &dyn Ask) -> Result<(), Refusal> {
    let (from, to) = (old.map(set_of).unwrap_or_default(), set_of(cluster));
    if from == to {
        return Ok(());
    }
    for set in [from, to].into_iter().filter(|set| !set.is_empty()) {
        if !ask.may("create", CLUSTER_GROUP, "managedclustersets", "join", set) {
            return Err(Refusal::Forbidden(format!(
                "user {user:?} cannot add/remove a ManagedCluster to/from ManagedClusterSet {set:?}"
            )));
        }
    }
    Ok(())
}

/// Sets the times of taints, which only the hub may determine.
fn stamp_taints(cluster: &mut Value, old: Option<&Value>, now: &str) -> Result<(), Refusal> {
    let before: Vec<Value> = old
        .and_then(|old| old.pointer("/spec/taints"))
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let Some(taints) = cluster.pointer_mut("/spec/taints").and_then(Value::as_array_mut) else {
        return Ok(());
    };
    let mut wrong = Vec::new();
    for taint in taints {
        let added = taint.get("timeAdded").filter(|at| !at.is_null()).cloned();
        let same = |o: &&Value| {
            ["key", "value", "effect"]
                .iter()
                .all(|part| text(o, &format!("/{part}")) == text(taint, &format!("/{part}")))
        };
        let known = before.iter().find(same);
        let allowed = match known {
            Some(known) => added.is_none() || added.as_ref() == known.get("timeAdded"),
            None => old.is_none() || added.is_none(),
        };
        if !allowed {
            wrong.push(text(taint, "/key").to_owned());
        }
        let at = known.and_then(|known| known.get("timeAdded")).filter(|at| !at.is_null()).cloned();
        // A taint that is not an object is rejected by the schema.
        if let Some(taint) = taint.as_object_mut() {
            taint.insert("timeAdded".into(), at.unwrap_or_else(|| json!(now)));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Refusal::Bad(format!("It is not allowed to set TimeAdded of Taint {:?}.", wrong.join(","))))
}

/// Checks a ManagedClusterSetBinding.
///
/// # Errors
///
/// Why the write is refused.
pub fn set_binding(binding: &Value, old: Option<&Value>, user: &str, ask: &dyn Ask) -> Result<(), Refusal> {
    let (name, set) = (text(binding, "/metadata/name"), text(binding, "/spec/clusterSet"));
    if name != set {
        return Err(Refusal::Bad(
            "The ManagedClusterSetBinding must have the same name as the target ManagedClusterSet".into(),
        ));
    }
    if old.is_none() && !ask.may("create", CLUSTER_GROUP, "managedclustersets", "bind", set) {
        return Err(Refusal::Forbidden(format!("user {user:?} is not allowed to bind cluster set {set:?}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Rights(&'static [&'static str], bool);

    impl Ask for Rights {
        fn may(&self, verb: &str, _: &str, resource: &str, subresource: &str, name: &str) -> bool {
            self.0.contains(&format!("{verb} {resource}/{subresource} {name}").as_str())
        }

        fn is_terminating(&self, _: &str) -> bool {
            self.1
        }
    }

    const JOIN: &[&str] = &["create managedclustersets/join default"];
    const ACCEPT: &[&str] = &["create managedclustersets/join default", "update managedclusters/accept c1"];

    fn cluster(accepts: bool) -> Value {
        json!({"metadata": {"name": "c1"}, "spec": {"hubAcceptsClient": accepts}})
    }

    fn admit(new: Value, old: Option<&Value>, rights: &Rights) -> Result<Value, Refusal> {
        let mut new = new;
        managed_cluster(&mut new, old, "u", "now", rights).map(|()| new)
    }

    /// OCM-A-29: a client that may join may not accept; nobody may accept if the mailbox namespace is being
    /// deleted; denying needs no permission.
    #[test]
    fn ocm_042_acceptance_takes_a_right() {
        let forbidden = |answer: Result<Value, Refusal>| matches!(answer, Err(Refusal::Forbidden(_)));
        assert!(admit(cluster(false), None, &Rights(JOIN, false)).is_ok());
        assert_eq!(
            admit(cluster(true), None, &Rights(JOIN, false)),
            Err(Refusal::Forbidden("user \"u\" cannot update the HubAcceptsClient field".into()))
        );
        assert!(admit(cluster(true), None, &Rights(ACCEPT, false)).is_ok());
        assert!(forbidden(admit(cluster(true), None, &Rights(ACCEPT, true))));
        let labelled = |accepts| admit(cluster(accepts), None, &Rights(ACCEPT, false)).unwrap();
        assert!(forbidden(admit(labelled(true), Some(&labelled(false)), &Rights(JOIN, false))));
        assert!(admit(labelled(true), Some(&labelled(true)), &Rights(&[], false)).is_ok());
        assert!(admit(labelled(false), Some(&labelled(true)), &Rights(&[], false)).is_ok());
    }

    /// OCM-A-34: even the default set needs the permission to join it; a change of the set needs it for both
    /// sets.
    #[test]
    fn ocm_042_sets_are_joined_by_right() {
        assert!(matches!(admit(cluster(false), None, &Rights(&[], false)), Err(Refusal::Forbidden(_))));
        let new = admit(cluster(false), None, &Rights(JOIN, false)).unwrap();
        assert_eq!(new["metadata"]["labels"][CLUSTER_SET_LABEL], "default");
        let mut moved = new.clone();
        moved["metadata"]["labels"][CLUSTER_SET_LABEL] = "other".into();
        assert!(admit(moved.clone(), Some(&new), &Rights(JOIN, false)).is_err());
        assert!(
            admit(moved.clone(), Some(&new), &Rights(&["create managedclustersets/join other"], false))
                .is_err()
        );
        let both = &["create managedclustersets/join default", "create managedclustersets/join other"];
        assert!(admit(moved, Some(&new), &Rights(both, false)).is_ok());
    }

    /// OCM-010, OCM-042: a name that would give a cluster permissions of others is refused, for new and for
    /// existing clusters.
    #[test]
    fn ocm_042_reserved_names_are_refused() {
        let named = |name: &str, accepts: bool| {
            json!({"metadata": {"name": name, "labels": {CLUSTER_SET_LABEL: "default"}},
                "spec": {"hubAcceptsClient": accepts}})
        };
        let all = &["create managedclustersets/join default", "update managedclusters/accept work"];
        let rights = Rights(all, false);
        assert_eq!(
            admit(named("work", false), None, &rights),
            Err(Refusal::Bad(
                "no cluster may be called \"work\": its role would be one that all clusters share".into()
            ))
        );
        assert!(matches!(admit(named("kube-system", false), None, &rights), Err(Refusal::Bad(_))));
        let old = named("work", false);
        assert!(admit(named("work", false), Some(&old), &rights).is_ok(), "it can be changed and deleted");
        assert!(matches!(admit(named("work", true), Some(&old), &rights), Err(Refusal::Forbidden(_))));
        assert!(admit(named("works", false), None, &rights).is_ok());
    }

    /// OCM-042: an agent may neither accept its own ManagedCluster again nor move it to another set.
    /// Everything else it may do as in OCM.
    #[test]
    fn ocm_042_an_agent_stays_where_it_was_put() {
        let agent = Rights(&[], false);
        let mine = |accepts: bool, set: &str, label: &str| {
            json!({"metadata": {"name": "c1", "labels": {CLUSTER_SET_LABEL: set, "env": label}},
                "spec": {"hubAcceptsClient": accepts}})
        };
        let (old, denied) = (mine(true, "default", "a"), mine(false, "default", "a"));
        assert!(admit(mine(true, "default", "b"), Some(&old), &agent).is_ok());
        assert!(matches!(admit(mine(true, "other", "a"), Some(&old), &agent), Err(Refusal::Forbidden(_))));
        assert!(matches!(
            admit(mine(true, "default", "a"), Some(&denied), &agent),
            Err(Refusal::Forbidden(_))
        ));
        // Without a label the cluster is in the default set; from another set that is a move.
        let other = mine(true, "other", "a");
        assert!(matches!(admit(mine(true, "", "a"), Some(&other), &agent), Err(Refusal::Forbidden(_))));
    }

    #[test]
    fn ocm_042_names_and_addresses() {
        for (name, url, good) in [
            ("c1", "https://a", true),
            ("c1", "http://a", false),
            ("c1", "https://", false),
            ("c1", "", false),
            ("a.b", "https://a", false),
            ("C", "https://a", false),
        ] {
            let new =
                json!({"metadata": {"name": name}, "spec": {"managedClusterClientConfigs": [{"url": url}]}});
            let answer = admit(new, None, &Rights(JOIN, false));
            assert_eq!(answer.is_ok(), good, "{name} {url}");
            assert!(good || matches!(answer, Err(Refusal::Bad(_))));
        }
    }

    #[test]
    fn ocm_041_the_hub_says_when_a_taint_was_added() {
        let rights = Rights(JOIN, false);
        let with = |taints: Value| {
            let mut cluster = cluster(false);
            cluster["metadata"]["labels"] = json!({CLUSTER_SET_LABEL: "default"});
            cluster["spec"]["taints"] = taints;
            cluster
        };
        let added = |cluster: &Value| cluster["spec"]["taints"][0]["timeAdded"].clone();
        let new =
            admit(with(json!([{"key": "a", "effect": "NoSelect", "timeAdded": "mine"}])), None, &rights)
                .unwrap();
        assert_eq!(added(&new), "now");
        let old = with(json!([{"key": "a", "effect": "NoSelect", "timeAdded": "then"}]));
        for (taint, wanted) in [
            (json!({"key": "a", "effect": "NoSelect"}), Some("then")),
            (json!({"key": "a", "effect": "NoSelect", "timeAdded": "then"}), Some("then")),
            (json!({"key": "a", "effect": "NoSelect", "timeAdded": "later"}), None),
            (json!({"key": "a", "effect": "PreferNoSelect"}), Some("now")),
            (json!({"key": "a", "effect": "NoSelect", "value": "x", "timeAdded": "then"}), None),
            (json!({"key": "b", "effect": "NoSelect", "timeAdded": null}), Some("now")),
        ] {
            let answer = admit(with(json!([taint])), Some(&old), &rights);
            assert!(admit(with(json!(["odd"])), Some(&old), &rights).is_ok(), "left to the schema");
            assert_eq!(answer.as_ref().ok().map(added), wanted.map(Value::from), "{taint}");
            if wanted.is_none() {
                assert_eq!(
                    answer,
                    Err(Refusal::Bad("It is not allowed to set TimeAdded of Taint \"a\".".into()))
                );
            }
        }
    }

    #[test]
    fn ocm_012_a_binding_is_named_like_its_set() {
        let binding = |set: &str| json!({"metadata": {"name": "a"}, "spec": {"clusterSet": set}});
        let may = Rights(&["create managedclustersets/bind a"], false);
        assert!(set_binding(&binding("a"), None, "u", &may).is_ok());
        assert!(matches!(set_binding(&binding("b"), None, "u", &may), Err(Refusal::Bad(_))));
        assert!(matches!(
            set_binding(&binding("a"), None, "u", &Rights(&[], false)),
            Err(Refusal::Forbidden(_))
        ));
        assert!(set_binding(&binding("a"), Some(&binding("a")), "u", &Rights(&[], false)).is_ok());
    }
}
