//! Deletion of a ControlPlane (SP-049 to SP-054).

use std::collections::BTreeSet;

use apis::tenancy::ControlPlane;
use kube::Error;
use runtime::Next;
use runtime::failure::{is_conflict, is_lasting, is_not_found, message_of};
use runtime::rest::{Gvr, Removal};
use serde_json::{Value, json};

use crate::adoption;
use crate::credentials;
use crate::external;
use crate::hooks;
use crate::host::{binding_name, bindings};
use crate::manager::Manager;
use crate::names::{FINALIZER, MANAGED_BY, RELEASE_NAMESPACE, Type, namespace_of};
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
                    && let Err(error) = spaces.delete(&name).await
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
        if let Err(left) = external::leave(&own).await {
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

    /// Deletes the cluster-scoped objects that hooks of this ControlPlane made. One that may not be removed, and never will,
    /// is left with an Event: it does not keep the ControlPlane (SP-052).
    async fn remove_marked(&self, plane: &ControlPlane) -> Result<(), Error> {
        let namespace = namespace_of(plane.metadata.name.as_deref().unwrap_or_default());
        for gvr in self.marked_kinds(plane).await? {
            let marked = match self.rest.list_metadata(&gvr, "", &format!("{MANAGED_BY}=Helm")).await {
                Err(error) if is_not_found(&error) => continue,
                marked => marked?,
            };
            let is_ours = |annotations: &std::collections::BTreeMap<String, String>| {
                annotations.get(RELEASE_NAMESPACE) == Some(&namespace)
            };
            for one in marked.into_iter().filter(|one| one.annotations.as_ref().is_some_and(is_ours)) {
                let name = one.name.unwrap_or_default();
                match self.remove(&gvr, &name, one.uid).await {
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
