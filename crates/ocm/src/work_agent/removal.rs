//! What to do with an object that a work no longer wants (OCM-093, OCM-094). Pure.

use std::collections::BTreeSet;

use apis::ocm::work::AppliedResource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::rules::Target;

/// Fate of an object that is not to be there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is none of ours (any more).
    Forget,
    /// Others want it: only our owner reference goes.
    Disown,
    /// Already on its way out.
    Wait,
    /// DELETE with the UID as precondition.
    Delete,
}

/// Decides from the live object (OCM-094).
///
/// `wanted_elsewhere`: another work of the same mailbox holds a manifest for it, although it may not have been applied
/// yet. An object that moves between two works is then handed over and not deleted.
pub fn fate(live: Option<&ObjectMeta>, recorded_uid: &str, owner_uid: &str, wanted_elsewhere: bool) -> Fate {
    let Some(live) = live else { return Fate::Forget };
    let owners = live.owner_references.as_deref().unwrap_or_default();
    if !owners.iter().any(|o| o.uid == owner_uid) {
        return Fate::Forget;
    }
    let shared = owners.iter().any(|o| {
        o.uid != owner_uid
            && o.kind == "AppliedManifestWork"
            && o.api_version.starts_with("work.open-cluster-management.io/")
    });
    let live_uid = live.uid.as_deref().unwrap_or_default();
    if shared || wanted_elsewhere {
        Fate::Disown
    } else if !recorded_uid.is_empty() && recorded_uid != live_uid {
        Fate::Forget
    } else if live.deletion_timestamp.is_some() {
        Fate::Wait
    } else {
        Fate::Delete
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
        let cases = [
            ("gone", None, "live", false, Fate::Forget),
            ("not ours", Some(live(&[], false)), "live", false, Fate::Forget),
            ("ours", Some(live(&[(AMW, "me")], false)), "live", false, Fate::Delete),
            (
                "another work owns it too",
                Some(live(&[(AMW, "me"), (AMW, "you")], false)),
                "live",
                false,
                Fate::Disown,
            ),
            (
                "other owners do not protect",
                Some(live(&[(AMW, "me"), ("Boat", "b")], false)),
                "live",
                false,
                Fate::Delete,
            ),
            ("another incarnation", Some(live(&[(AMW, "me")], false)), "dead", false, Fate::Forget),
            ("leaving", Some(live(&[(AMW, "me")], true)), "live", false, Fate::Wait),
            ("it moves to another work", Some(live(&[(AMW, "me")], false)), "live", true, Fate::Disown),
            ("UID never recorded", Some(live(&[(AMW, "me")], false)), "", false, Fate::Delete),
        ];
        for (why, meta, recorded, elsewhere, expected) in cases {
            assert_eq!(fate(meta.as_ref(), recorded, "me", elsewhere), expected, "{why}");
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
