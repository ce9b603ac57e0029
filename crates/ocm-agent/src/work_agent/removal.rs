//! Decides what to do with an object that a work no longer holds (OCM-093, OCM-094). Pure.

use std::collections::BTreeSet;

use apis::ocm::work::AppliedResource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::rules::Target;

/// What to do with an object that should be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalAction {
    /// Nothing: it is not ours (any more).
    Forget,
    /// Remove only our owner reference, because other works hold it.
    Disown,
    /// Replace our owner reference by that of the work that takes the object over.
    HandOver,
    /// Wait: the object is being deleted, or will be taken over soon.
    Wait,
    /// Delete it, with the UID as precondition.
    Delete,
}

/// How another work of the same mailbox holds the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherHolder {
    /// No other work holds it.
    Nobody,
    /// A work will own it but does not list it yet. If the object were released now, nobody would remove it
    /// when that work is deleted.
    Coming,
    /// A work owns it and lists it.
    Listed,
    /// A work holds it without owning it.
    NonOwning,
}

/// Objects that should be removed and still exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Objects that are being deleted.
    pub going: Vec<AppliedResource>,
    /// Objects that the cluster refuses to delete, with its message.
    pub refused: Vec<(AppliedResource, String)>,
}

impl Leftovers {
    /// Returns whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.going.is_empty() && self.refused.is_empty()
    }

    /// Returns all of them.
    pub fn all(&self) -> Vec<AppliedResource> {
        self.going.iter().chain(self.refused.iter().map(|(resource, _)| resource)).cloned().collect()
    }
}

/// Decides from the live object (OCM-094). An object that moves from one work to another is handed over and
/// not deleted.
pub fn removal_action(
    live: Option<&ObjectMeta>,
    recorded_uid: &str,
    owner_uid: &str,
    other_holder: OtherHolder,
) -> RemovalAction {
    let Some(live) = live else { return RemovalAction::Forget };
    let owners = live.owner_references.as_deref().unwrap_or_default();
    if !owners.iter().any(|o| o.uid == owner_uid) {
        return RemovalAction::Forget;
    }
    let shared = owners.iter().any(|o| {
        o.uid != owner_uid
            && o.kind == "AppliedManifestWork"
            && o.api_version.starts_with("work.open-cluster-management.io/")
    });
    if shared {
        return RemovalAction::Disown;
    }
    let known = recorded_uid.is_empty() || Some(recorded_uid) == live.uid.as_deref();
    match other_holder {
        OtherHolder::NonOwning => RemovalAction::Disown,
        _ if live.deletion_timestamp.is_some() && known => RemovalAction::Wait,
        OtherHolder::Coming => RemovalAction::Wait,
        OtherHolder::Listed => RemovalAction::HandOver,
        OtherHolder::Nobody if !known => RemovalAction::Forget,
        OtherHolder::Nobody => RemovalAction::Delete,
    }
}

/// Returns the target of a recorded resource.
pub fn target_of(resource: &AppliedResource) -> Target {
    Target {
        group: resource.group.clone(),
        resource: resource.resource.clone(),
        namespace: resource.namespace.clone(),
        name: resource.name.clone(),
    }
}

/// Returns the entries of the old list without a counterpart in the new one; version and UID do not count
/// (OCM-093).
pub fn untracked(old: &[AppliedResource], new: &[AppliedResource]) -> Vec<AppliedResource> {
    let kept: BTreeSet<Target> = new.iter().map(target_of).collect();
    old.iter().filter(|resource| !kept.contains(&target_of(resource))).cloned().collect()
}

/// Sorts a list as OCM does: by group, version, resource, namespace, name.
pub fn sort(list: &mut [AppliedResource]) {
    list.sort_by(|a, b| {
        let key = |r: &AppliedResource| {
            (r.group.clone(), r.version.clone(), r.resource.clone(), r.namespace.clone(), r.name.clone())
        };
        key(a).cmp(&key(b))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::{
        apimachinery::pkg::apis::meta::v1::{OwnerReference, Time},
        jiff::Timestamp,
    };

    fn live(owners: &[(&str, &str)], deleting: bool) -> ObjectMeta {
        let owner = |(kind, uid): &(&str, &str)| OwnerReference {
            api_version: "work.open-cluster-management.io/v1".into(),
            kind: (*kind).into(),
            name: (*uid).into(),
            uid: (*uid).into(),
            ..OwnerReference::default()
        };
        ObjectMeta {
            uid: Some("live".into()),
            owner_references: Some(owners.iter().map(owner).collect()),
            deletion_timestamp: deleting.then_some(Time(Timestamp::UNIX_EPOCH)),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn ocm_094_fates() {
        const AMW: &str = "AppliedManifestWork";
        let ours = || Some(live(&[(AMW, "me")], false));
        let going = || Some(live(&[(AMW, "me")], true));
        let shared = || Some(live(&[(AMW, "me"), (AMW, "you")], false));
        let cases = [
            ("gone", None, "live", OtherHolder::Nobody, RemovalAction::Forget),
            ("not ours", Some(live(&[], false)), "live", OtherHolder::Nobody, RemovalAction::Forget),
            ("ours", ours(), "live", OtherHolder::Nobody, RemovalAction::Delete),
            ("another work owns it too", shared(), "live", OtherHolder::Nobody, RemovalAction::Disown),
            (
                "other owners do not protect",
                Some(live(&[(AMW, "me"), ("Boat", "b")], false)),
                "live",
                OtherHolder::Nobody,
                RemovalAction::Delete,
            ),
            ("another incarnation", ours(), "dead", OtherHolder::Nobody, RemovalAction::Forget),
            ("leaving", going(), "live", OtherHolder::Nobody, RemovalAction::Wait),
            ("it moves to another work", ours(), "live", OtherHolder::Listed, RemovalAction::HandOver),
            ("it moves, a little later", ours(), "live", OtherHolder::Coming, RemovalAction::Wait),
            ("it moves, too late", going(), "live", OtherHolder::Listed, RemovalAction::Wait),
            ("it is there already", shared(), "live", OtherHolder::Coming, RemovalAction::Disown),
            ("another work keeps it", ours(), "live", OtherHolder::NonOwning, RemovalAction::Disown),
            ("UID never recorded", ours(), "", OtherHolder::Nobody, RemovalAction::Delete),
        ];
        for (why, meta, recorded, other_holder, expected) in cases {
            assert_eq!(removal_action(meta.as_ref(), recorded, "me", other_holder), expected, "{why}");
        }
    }

    #[test]
    fn ocm_093_version_and_uid_do_not_count() {
        let resource = |name: &str, version: &str, uid: &str| AppliedResource {
            resource: "configmaps".into(),
            name: name.into(),
            version: version.into(),
            uid: uid.into(),
            ..AppliedResource::default()
        };
        let old = [resource("a", "v1", "1"), resource("b", "v1", "2")];
        let new = [resource("a", "v2", "3")];
        assert_eq!(untracked(&old, &new), [resource("b", "v1", "2")]);
    }
}
