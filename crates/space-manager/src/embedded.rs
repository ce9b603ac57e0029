//! Types `k8s`, `vcluster`, `k3s` and `ocm`: an embedded space (SP-034).

use apis::constants::CP_TYPE_LABEL;
use apis::tenancy::ControlPlane;
use runtime::Next;
use serde_json::json;

use crate::credentials;
use crate::hooks::{self, builtin};
use crate::manager::Manager;
use crate::names::{SUSPENDED, Type, URL};
use crate::pass::Found;
use crate::spaces::{Access, Component, Role};
use crate::status::{Observed, SpaceState};

/// Remark about `backend: dedicated`, which the storage here does not have.
const DEDICATED: &str = "backend dedicated: this installation keeps all spaces in one store";

impl Manager {
    pub(crate) async fn embedded(&self, plane: &ControlPlane, type_: Type) -> Result<Found, kube::Error> {
        let name = plane.metadata.name.as_deref().unwrap_or_default();
        let Some(spaces) = &self.config.spaces else {
            return Ok(Found::only(SpaceState::Failed(refusal(&plane.spec.type_)), Next::OnChange));
        };
        if is_suspended(plane) {
            return Ok(match spaces.suspend(name).await {
                Ok(()) => Found::only(SpaceState::Suspended, Next::OnChange),
                Err(error) => Found::only(SpaceState::Failed(error.to_string()), Next::Retry),
            });
        }
        if let Some(why) = self.namespace(plane).await? {
            return Ok(Found::only(SpaceState::Incomplete(why), Next::Retry));
        }
        let access = match spaces.open(name, uid(plane), self.role(plane)).await {
            Ok(access) => access,
            Err(error) => return Ok(Found::only(SpaceState::Failed(error.to_string()), Next::Retry)),
        };
        self.write_credentials(plane, type_, &access).await?;
        let plane = self.with_url(plane, &access.url).await?;
        if type_ == Type::Ocm
            && let Err(error) = spaces.run(name, &Component::OcmHub).await
        {
            return Ok(Found::only(SpaceState::Incomplete(error.to_string()), Next::Retry));
        }
        let dedicated = plane.spec.backend.as_deref() == Some("dedicated");
        let mut found = self.with_hooks(plane, type_).await?;
        if dedicated {
            found.observed.remark = DEDICATED.to_owned();
        }
        Ok(found)
    }

    /// Runs the hooks of a space that serves.
    pub(crate) async fn with_hooks(&self, plane: ControlPlane, type_: Type) -> Result<Found, kube::Error> {
        let name = plane.metadata.name.clone().unwrap_or_default();
        let ran = self.run_hooks(plane).await?;
        let secret_ref = Some(credentials::reference(&name, type_));
        let (space, hooks) = (SpaceState::Serving, ran.outcomes);
        let observed = Observed { space, secret_ref, hooks, remark: String::new() };
        Ok(Found { observed, next: ran.next })
    }

    async fn write_credentials(
        &self,
        plane: &ControlPlane,
        type_: Type,
        access: &Access,
    ) -> Result<(), kube::Error> {
        let name = plane.metadata.name.as_deref().unwrap_or_default();
        let (secret, key, in_cluster_key) = type_.secret();
        let kubeconfig = credentials::text(&credentials::of_space(name, access));
        let data = [(key, kubeconfig.as_bytes()), (in_cluster_key, kubeconfig.as_bytes())];
        self.secret(plane, credentials::secret(plane, secret, &data)).await
    }

    /// SP-033.
    async fn with_url(&self, plane: &ControlPlane, url: &str) -> Result<ControlPlane, kube::Error> {
        let known = plane.metadata.annotations.as_ref().and_then(|all| all.get(URL));
        if known.is_some_and(|known| known == url) {
            return Ok(plane.clone());
        }
        let patch = json!({"metadata": {"uid": plane.metadata.uid, "annotations": {URL: url}}});
        self.patch_plane(plane, &patch).await
    }

    /// What the space of a ControlPlane is for: by its label, or by its first hook that is a component.
    fn role(&self, plane: &ControlPlane) -> Role {
        if let Some(role) = labelled_role(plane) {
            return role;
        }
        let components = hooks::uses(&plane.spec).into_iter().find_map(|one| {
            let hook = self.hooks.get("", one.hook);
            let annotations = hook.as_ref().and_then(|hook| hook.metadata.annotations.as_ref());
            builtin::of(annotations, one.hook, true).ok().flatten()
        });
        components.and_then(|all| all.first().map(|one| one.role())).unwrap_or(Role::Plain)
    }
}

/// The role of the embedded space that a ControlPlane should have now; `None` if it should have none. For a program that starts
/// and opens the spaces of earlier ControlPlanes before the manager looks at them.
pub fn wanted_space(plane: &ControlPlane) -> Option<Role> {
    if is_suspended(plane) { None } else { embedded_space(plane) }
}

/// The role of the embedded space that a ControlPlane has and that is suspended; `None` if there is none.
pub fn suspended_space(plane: &ControlPlane) -> Option<Role> {
    if is_suspended(plane) { embedded_space(plane) } else { None }
}

fn embedded_space(plane: &ControlPlane) -> Option<Role> {
    if !is_embedded(plane) || plane.metadata.deletion_timestamp.is_some() {
        return None;
    }
    Some(labelled_role(plane).unwrap_or(Role::Plain))
}

/// Whether the space of a ControlPlane is an embedded one.
pub fn is_embedded(plane: &ControlPlane) -> bool {
    Type::of(&plane.spec.type_).is_some_and(Type::is_embedded)
}

/// The UID of a ControlPlane.
pub(crate) fn uid(plane: &ControlPlane) -> &str {
    plane.metadata.uid.as_deref().unwrap_or_default()
}

fn labelled_role(plane: &ControlPlane) -> Option<Role> {
    let label = plane.metadata.labels.as_ref().and_then(|labels| labels.get(CP_TYPE_LABEL));
    match label.map(String::as_str) {
        Some("wds") => Some(Role::Wds),
        Some("its") => Some(Role::Its),
        _ => None,
    }
}

/// Why a type that needs an embedded space is refused, and what to do.
fn refusal(type_: &str) -> String {
    format!(
        "type {type_} needs a space that runs in this process, and this one runs none: use type external for an existing \
         cluster or host for this one, create the space with `kubestellar up`, or leave the ControlPlane to the KubeFlex operator"
    )
}

fn is_suspended(plane: &ControlPlane) -> bool {
    plane
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(SUSPENDED))
        .is_some_and(|value| value == "true")
}
