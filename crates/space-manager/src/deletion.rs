//! Deletion of a ControlPlane (SP-049 to SP-054).

use std::collections::BTreeSet;

use apis::tenancy::ControlPlane;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Error;
use runtime::Next;
use runtime::failure::{is_conflict, is_lasting, is_not_found, message_of};
use runtime::rest::{Gvr, Removal};
use serde_json::{Value, json};

use crate::adoption;
use crate::credentials;
use crate::embedded::uid;
use crate::external;
use crate::hooks;
use crate::host::{binding_name, bindings};
use crate::manager::Manager;
use crate::names::{FINALIZER, MANAGED_BY, RELEASE_NAMESPACE, Type, control_plane_of, namespace_of};
use crate::pass::{Found, shown};
use crate::status::SpaceState;

impl Manager {
    /// One pass of a ControlPlane that is being deleted. What is inside the space does not matter: the space goes as a
    /// whole. The ControlPlane stays until the data is gone from the disk (SP-051).
    pub(crate) async fn delete(&self, plane: ControlPlane) -> Result<Next, Error> {
        let finalizers = plane.metadata.finalizers.clone().unwrap_or_default();
        if !finalizers.iter().any(|one| one == FINALIZER) {
            return Ok(Next::OnChange);
        }
        let name = plane.metadata.name.clone().unwrap_or_default();
        let plane =
            self.write_status(plane, &Found::only(SpaceState::Deleting, Next::OnChange).observed).await?;
        match Type::of(&plane.spec.type_) {
            Some(Type::Host) => self.remove(&bindings(), &binding_name(&name), None).await?,
            Some(Type::External) => self.leave_external(&plane).await?,
            Some(_) => {
                if let Some(spaces) = &self.config.spaces
                    && let Err(error) = spaces.delete(&name, uid(&plane)).await
                {
                    let failed = SpaceState::Incomplete(format!("the space could not be removed: {error}"));
                    self.write_status(plane, &Found::only(failed, Next::Retry).observed).await?;
                    return Ok(Next::Retry);
                }
            }
            None => {}
        }
        self.remove_marked(&plane).await?;
        self.remove_namespace(&plane).await?;
        let rest: Vec<&String> = finalizers.iter().filter(|one| *one != FINALIZER).collect();
        let patch = json!({"metadata": {"finalizers": rest, "uid": plane.metadata.uid,
            "resourceVersion": plane.metadata.resource_version}});
        match self.patch_plane(&plane, &patch).await {
            Err(error) if !is_not_found(&error) => return Err(error),
            _ => {}
        }
        self.events.normal(&shown(&plane), "Deleted", "everything that belongs to it is removed");
        self.memory.lock().remove(&name);
        Ok(Next::OnChange)
    }

    async fn remove(&self, gvr: &Gvr, name: &str, uid: Option<String>) -> Result<(), Error> {
        let removal = Removal { uid, ..Removal::default() };
        match self.rest.delete(gvr, "", name, &removal).await {
            Err(error) if !is_not_found(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes what adoption made in the cluster, unless another ControlPlane has adopted the same one. The cluster may be out
    /// of reach: then the rest goes all the same (SP-052).
    async fn leave_external(&self, plane: &ControlPlane) -> Result<(), Error> {
        let name = plane.metadata.name.as_deref().unwrap_or_default();
        let Some(own) = self.adopted_kubeconfig(name).await? else { return Ok(()) };
        let server = |text: &[u8]| adoption::context(text).map(|context| context.server().to_owned()).ok();
        for other in self.planes.list() {
            let other_name = other.metadata.name.as_deref().unwrap_or_default();
            if other_name == name || Type::of(&other.spec.type_) != Some(Type::External) {
                continue;
            }
            if let Some(text) = self.adopted_kubeconfig(other_name).await?
                && server(&text) == server(&own)
            {
                return Ok(());
            }
        }
        if let Err(left) = external::leave(&own, self.config.reach).await {
            self.events.warning(&shown(plane), "LeftBehind", left);
        }
        Ok(())
    }

    async fn adopted_kubeconfig(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let (secret, _, key) = Type::External.secret();
        let secrets = Gvr::new("", "v1", "secrets");
        let found = self.rest.find::<Value>(&secrets, &namespace_of(name), secret).await?;
        Ok(found.and_then(|found| credentials::value(&found, key)))
    }

    /// Deletes the cluster-scoped objects that hooks of this ControlPlane made, except those that other ControlPlanes use, too. One
    /// that may not be removed, and never will, is left with an Event: it does not keep the ControlPlane (SP-052).
    async fn remove_marked(&self, plane: &ControlPlane) -> Result<(), Error> {
        for gvr in self.marked_kinds(plane).await? {
            let marked = match self.rest.list_metadata(&gvr, "", &format!("{MANAGED_BY}=Helm")).await {
                Err(error) if is_not_found(&error) => continue,
                marked => marked?,
            };
            let lives = |name: &str| {
                let known = self.planes.get("", name)?;
                known.metadata.deletion_timestamp.is_none().then(|| uid(&known).to_owned())
            };
            for one in marked {
                let name = one.name.clone().unwrap_or_default();
                let done = match fate(&one, plane, lives) {
                    Fate::NotOurs => continue,
                    Fate::Deleted => self.remove(&gvr, &name, one.uid).await,
                    Fate::Kept(patch) => self.rest.merge::<Value>(&gvr, "", &name, &patch).await.map(drop),
                };
                match done {
                    Err(error) if is_not_found(&error) => {}
                    Err(error) if is_lasting(&error) && !is_conflict(&error) => {
                        let left = format!("{}/{name} stays: {}", gvr.plural, message_of(&error));
                        self.events.warning(&shown(plane), "LeftBehind", left);
                    }
                    removed => removed?,
                }
            }
        }
        Ok(())
    }

    /// The cluster-scoped kinds in which such objects may be: the three of the original, and those of the hooks.
    async fn marked_kinds(&self, plane: &ControlPlane) -> Result<Vec<Gvr>, Error> {
        let rbac = "rbac.authorization.k8s.io";
        let mut kinds = vec![
            Gvr::new(rbac, "v1", "clusterroles"),
            Gvr::new(rbac, "v1", "clusterrolebindings"),
            Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
        ];
        let mut seen = BTreeSet::new();
        for one in hooks::uses(&plane.spec) {
            let Some(hook) = self.hooks.get("", one.hook) else { continue };
            for template in &hook.spec.templates {
                let text = |field: &str| template.get(field).and_then(Value::as_str).unwrap_or_default();
                let (api_version, kind) = (text("apiVersion").to_owned(), text("kind").to_owned());
                if !seen.insert((api_version.clone(), kind.clone())) || api_version.is_empty() {
                    continue;
                }
                let Ok(Some(mapped)) = self.mapper.by_kind(&api_version, &kind).await else { continue };
                if !mapped.namespaced && !kinds.contains(&mapped.gvr) {
                    kinds.push(mapped.gvr);
                }
            }
        }
        Ok(kinds)
    }

    /// Deletes the namespace, if it belongs to this ControlPlane, and does not wait until it is gone.
    async fn remove_namespace(&self, plane: &ControlPlane) -> Result<(), Error> {
        let gvr = Gvr::new("", "v1", "namespaces");
        let name = namespace_of(plane.metadata.name.as_deref().unwrap_or_default());
        let Some(found) = self.rest.find::<Value>(&gvr, "", &name).await? else { return Ok(()) };
        let owners = found.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        let is_ours =
            owners.into_iter().flatten().any(|one| one["uid"].as_str() == plane.metadata.uid.as_deref());
        if is_ours { self.remove(&gvr, &name, None).await } else { Ok(()) }
    }
}

/// What becomes of a cluster-scoped object when a ControlPlane goes.
#[derive(Clone, Debug, PartialEq)]
enum Fate {
    /// The ControlPlane does not use it.
    NotOurs,
    /// No other ControlPlane uses it.
    Deleted,
    /// Others use it. The patch makes it theirs.
    Kept(Value),
}

/// Decides what becomes of an object that has the label of hooks. `lives` is the UID of the ControlPlane of a name, unless that
/// goes, too.
fn fate(object: &ObjectMeta, plane: &ControlPlane, lives: impl Fn(&str) -> Option<String>) -> Fate {
    let own = namespace_of(plane.metadata.name.as_deref().unwrap_or_default());
    let owners = object.owner_references.as_deref().unwrap_or_default();
    let maker = object.annotations.as_ref().and_then(|all| all.get(RELEASE_NAMESPACE));
    let is_maker = maker == Some(&own);
    if !is_maker && !owners.iter().any(|one| one.uid == uid(plane)) {
        return Fate::NotOurs;
    }
    let others: Vec<&OwnerReference> = owners.iter().filter(|one| one.uid != uid(plane)).collect();
    let user = others
        .iter()
        .find(|one| one.kind == "ControlPlane" && lives(&one.name).is_some_and(|living| living == one.uid));
    // A maker of an earlier version is no owner.
    let other_maker = maker.filter(|_| !is_maker).and_then(|namespace| control_plane_of(namespace));
    let next = match (user, other_maker.filter(|name| lives(name).is_some())) {
        (_, Some(maker)) => maker,
        (Some(user), None) => user.name.as_str(),
        (None, None) => return Fate::Deleted,
    };
    Fate::Kept(json!({"metadata": {"uid": object.uid, "resourceVersion": object.resource_version,
        "ownerReferences": others, "annotations": {RELEASE_NAMESPACE: namespace_of(next)}}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-049: an object of hooks goes with the last ControlPlane that uses it, and nobody takes along what others made.
    #[test]
    fn sp_049_an_object_of_hooks_goes_with_its_last_user() {
        let plane = json!({"metadata": {"name": "a", "uid": "ua"}, "spec": {"type": "k8s"}});
        let plane: ControlPlane = serde_json::from_value(plane).unwrap();
        let lives = |name: &str| ["b", "c"].contains(&name).then(|| format!("u{name}"));
        let fate_of = |maker: &str, users: &[&str]| {
            let users: Vec<Value> = users
                .iter()
                .map(|name| json!({"apiVersion": "x/v1", "kind": "ControlPlane", "name": name, "uid": format!("u{name}")}))
                .collect();
            let object = json!({"name": "o", "uid": "uo", "resourceVersion": "5", "ownerReferences": users,
                "annotations": {RELEASE_NAMESPACE: maker}});
            match fate(&serde_json::from_value(object).unwrap(), &plane, lives) {
                Fate::Kept(patch) => {
                    let left = patch["metadata"]["ownerReferences"].as_array().unwrap();
                    let left: Vec<&str> = left.iter().map(|one| one["name"].as_str().unwrap()).collect();
                    let maker = &patch["metadata"]["annotations"][RELEASE_NAMESPACE];
                    format!("{} {}", maker.as_str().unwrap(), left.join(","))
                }
                other => format!("{other:?}"),
            }
        };
        for (maker, users, expected) in [
            ("a-system", &["a"][..], "Deleted"),
            ("a-system", &[], "Deleted"),
            ("b-system", &["b"], "NotOurs"),
            ("a-system", &["a", "b"], "b-system b"),
            ("b-system", &["b", "a"], "b-system b"),
            ("a-system", &["a", "gone"], "Deleted"),
            // Made by an earlier version, which knew no users.
            ("b-system", &["a"], "b-system "),
            ("gone-system", &["a"], "Deleted"),
            ("gone-system", &["a", "c"], "c-system c"),
        ] {
            assert_eq!(fate_of(maker, users), expected, "{maker} {users:?}");
        }
    }
}
