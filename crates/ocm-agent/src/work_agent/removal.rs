//! What to do with an object that a work no longer wants (OCM-093, OCM-094). Pure.

use std::collections::BTreeSet;

use apis::ocm::work::AppliedResource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::rules::Target;

/// Fate of an object that is not to be there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalAction {
    /// It is none of ours (any more).
    Forget,
    /// Others want it: only our owner reference goes.
    Disown,
    /// Our owner reference goes and that of the heir comes.
    HandOver,
    /// Already on its way out, or about to be taken over.
    Wait,
    /// DELETE with the UID as precondition.
    Delete,
}

/// Who else of the same mailbox holds a manifest for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherHolder {
    /// Nobody.
    Nobody,
    /// A work that will own it and does not list it yet: were it disowned now, nobody would remove it if that work went.
    Coming,
    /// A work that lists it as its own.
    Listed,
    /// A work that wants it without owning it.
    NonOwning,
}

/// What is left of what was to go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// On its way out.
    pub going: Vec<AppliedResource>,
    /// What the cluster does not let us remove, and what it says.
    pub refused: Vec<(AppliedResource, String)>,
}

impl Leftovers {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.going.is_empty() && self.refused.is_empty()
    }

    /// All of it.
    pub fn all(&self) -> Vec<AppliedResource> {
        self.going.iter().chain(self.refused.iter().map(|(resource, _)| resource)).cloned().collect()
    }
}

/// Decides from the live object (OCM-094). An object that moves from one work to another is handed over and not deleted.
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

/// The target of a recorded resource.
pub fn target_of(resource: &AppliedResource) -> Target {
    Target {
        group: resource.group.clone(),
        resource: resource.resource.clone(),
        namespace: resource.namespace.clone(),
        name: resource.name.clone(),
    }
}

/// Entries of the old list of which nothing is left in the new one; version and UID do not count (OCM-093).
pub fn untracked(old: &[AppliedResource], new: &[AppliedResource]) -> Vec<AppliedResource> {
    let kept: BTreeSet<Target> = new.iter().map(target_of).collect();
    old.iter().filter(|resource| !kept.contains(&target_of(resource))).cloned().collect()
}

/// Sorts as the wire wants it: group, version, resource, namespace, name.
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
