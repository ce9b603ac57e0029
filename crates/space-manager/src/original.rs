//! Spaces that KubeFlex' operator has made: their API servers run in pods of this cluster (SP-074). They are looked after as they
//! are, and never get an embedded twin.

use apis::tenancy::ControlPlane;
use runtime::rest::Gvr;
use runtime::{Next, Source};
use serde_json::Value;

use crate::credentials;
use crate::hooks::readiness::{State, state};
use crate::manager::Manager;
use crate::names::{Type, namespace_of};
use crate::pass::{Found, shown};
use crate::status::SpaceState;

/// The workload that runs the API server of a type: its collection, kind and name. `None` for types without one.
fn workload(type_: Type) -> Option<(Gvr, &'static str, &'static str)> {
    let (plural, kind, name) = match type_ {
        Type::K8s => ("deployments", "Deployment", "kube-apiserver"),
        Type::VCluster => ("statefulsets", "StatefulSet", "vcluster"),
        Type::K3s => ("statefulsets", "StatefulSet", "k3s-server"),
        Type::Ocm => ("deployments", "Deployment", "multicluster-controlplane"),
        Type::Host | Type::External => return None,
    };
    Some((Gvr::new("apps", "v1", plural), kind, name))
}

impl Manager {
    /// Looks after a space that KubeFlex made: its conditions, the reference to its Secret, its hooks. `None` if KubeFlex made none.
    pub(crate) async fn original(
        &self,
        plane: &ControlPlane,
        type_: Type,
    ) -> Result<Option<Found>, kube::Error> {
        let Some((gvr, kind, name)) = workload(type_) else { return Ok(None) };
        let namespace = namespace_of(plane.metadata.name.as_deref().unwrap_or_default());
        // A change of the workload causes a pass.
        self.awaited.start(Source::all(gvr.clone()).metadata());
        let Some(found) = self.rest.find::<Value>(&gvr, &namespace, name).await? else { return Ok(None) };
        if let Some(why) = self.namespace(plane).await? {
            return Ok(Some(Found::only(SpaceState::Incomplete(why), Next::Retry)));
        }
        let (secret, key, _) = type_.secret();
        let credentials = self.rest.find::<Value>(&Gvr::new("", "v1", "secrets"), &namespace, secret).await?;
        if credentials.and_then(|found| credentials::value(&found, key)).is_none() {
            let why = format!("{kind} {name} of KubeFlex is there, but Secret {secret} has no key {key} yet");
            return Ok(Some(Found::only(SpaceState::Incomplete(why), Next::Retry)));
        }
        let mut found = match state(kind, &found) {
            State::Ready => self.with_hooks(plane.clone(), type_).await?,
            State::NotReady | State::Failed(_) => {
                let why = format!("{kind} {name} is not ready");
                Found::only(SpaceState::Silent(why), Next::OnChange)
            }
        };
        let plane_name = plane.metadata.name.as_deref().unwrap_or_default();
        found.observed.secret_ref = Some(credentials::reference(plane_name, type_));
        Ok(Some(found))
    }

    /// Tells what deleting a space of KubeFlex leaves: its namespace goes with all pods, its database does not.
    pub(crate) async fn leave_original(&self, plane: &ControlPlane, type_: Type) -> Result<(), kube::Error> {
        let Some((gvr, _, name)) = workload(type_).filter(|_| type_ == Type::K8s) else { return Ok(()) };
        let plane_name = plane.metadata.name.as_deref().unwrap_or_default();
        if self.rest.find::<Value>(&gvr, &namespace_of(plane_name), name).await?.is_some() {
            let database = plane_name.replace('-', "_");
            let left = format!("the database {database} of Postgres stays; KubeFlex' operator would drop it");
            self.events.warning(&shown(plane), "LeftBehind", left);
        }
        Ok(())
    }
}
