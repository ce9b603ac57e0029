//! One pass of a ControlPlane or a PostCreateHook.

use std::time::Duration;

use apis::condition::{READY, SYNCED};
use apis::tenancy::{ControlPlane, ControlPlaneStatus, PostCreateHook};
use jiff::Timestamp;
use runtime::Next;
use runtime::failure::{is_conflict, is_lasting, message_of};
use runtime::rest::Gvr;
use serde_json::{Value, json};

use crate::condition::is_available;
use crate::credentials::owner;
use crate::hooks::{Outcome, check};
use crate::manager::{Key, Manager, OWNED, hooks_gvr, planes};
use crate::names::{FINALIZER, SYSTEM_LABEL, Type, namespace_of};
use crate::status::{self, Observed, SpaceState};

/// Longest pause before a pass that met another writer is repeated.
const SOON: Duration = Duration::from_millis(100);

/// What a pass found, and when the next one is due at the latest.
pub(crate) struct Found {
    pub(crate) observed: Observed,
    pub(crate) next: Next,
}

impl Found {
    /// The space is in this state, and its hooks were not looked at.
    pub(crate) fn only(space: SpaceState, next: Next) -> Self {
        let observed = Observed { space, secret_ref: None, hooks: Vec::new(), remark: String::new() };
        Self { observed, next }
    }
}

impl Manager {
    pub(crate) async fn act(&self, key: Key) -> Result<Next, kube::Error> {
        let outcome = match &key {
            Key::Plane(name) => self.pass(name).await,
            Key::Hook(name) => self.check_hook(name).await,
        };
        match outcome {
            Err(error) if is_conflict(&error) => {
                tracing::debug!(?key, %error, "another client wrote first");
                Ok(Next::RetryWithin(SOON))
            }
            outcome => outcome,
        }
    }

    async fn pass(&self, name: &str) -> Result<Next, kube::Error> {
        let Some(plane) = self.rest.find::<ControlPlane>(&planes(), "", name).await? else {
            self.memory.lock().remove(name);
            return Ok(self.abandoned(name).await);
        };
        if plane.metadata.deletion_timestamp.is_some() {
            return self.delete(plane).await;
        }
        let plane = self.with_finalizer(plane).await?;
        let plane = if plane.status.as_ref().is_none_or(|status| status.conditions.is_empty()) {
            self.write_status(plane, &Found::only(SpaceState::Creating, Next::OnChange).observed).await?
        } else {
            plane
        };
        let found = match self.look(&plane).await {
            // Nobody but a user can change what the server says to this, so it belongs where users look.
            Err(error) if is_lasting(&error) && !is_conflict(&error) => {
                Found::only(SpaceState::Incomplete(message_of(&error)), Next::Retry)
            }
            found => found?,
        };
        self.report_hooks(&plane, &found.observed.hooks);
        self.write_status(plane, &found.observed).await?;
        Ok(found.next)
    }

    /// The ControlPlane is gone. Usually its space went before. It did not if somebody removed the finalizer by force.
    async fn abandoned(&self, name: &str) -> Next {
        let Some(spaces) = &self.config.spaces else { return Next::OnChange };
        match spaces.abandoned(name).await {
            Ok(()) => Next::OnChange,
            Err(error) => {
                tracing::error!(control_plane = name, %error, "the space of a ControlPlane that is gone is still there");
                Next::Retry
            }
        }
    }

    /// Puts in place what the type of a ControlPlane needs.
    async fn look(&self, plane: &ControlPlane) -> Result<Found, kube::Error> {
        match Type::of(&plane.spec.type_) {
            None => {
                let why = format!("unsupported control plane type: {}", plane.spec.type_);
                Ok(Found::only(SpaceState::Failed(why), Next::OnChange))
            }
            Some(Type::Host) => self.host(plane).await,
            Some(Type::External) => self.external(plane).await,
            Some(type_) => self.embedded(plane, type_).await,
        }
    }

    async fn with_finalizer(&self, plane: ControlPlane) -> Result<ControlPlane, kube::Error> {
        let mut finalizers = plane.metadata.finalizers.clone().unwrap_or_default();
        if finalizers.iter().any(|one| one == FINALIZER) {
            return Ok(plane);
        }
        finalizers.push(FINALIZER.to_owned());
        let patch = json!({"metadata": {"finalizers": finalizers, "uid": plane.metadata.uid,
            "resourceVersion": plane.metadata.resource_version}});
        self.patch_plane(&plane, &patch).await
    }

    /// Sends a merge patch of a ControlPlane and returns the result.
    pub(crate) async fn patch_plane(
        &self,
        plane: &ControlPlane,
        patch: &Value,
    ) -> Result<ControlPlane, kube::Error> {
        let name = plane.metadata.name.as_deref().unwrap_or_default();
        self.rest.merge(&planes(), "", name, patch).await
    }

    /// Writes the status if it changed, and reports a change of the outcome as an Event (SP-013).
    pub(crate) async fn write_status(
        &self,
        plane: ControlPlane,
        observed: &Observed,
    ) -> Result<ControlPlane, kube::Error> {
        let new = status::decide(&plane, observed, Timestamp::now());
        let Some(patch) = status::patch(&plane, &new) else { return Ok(plane) };
        let name = plane.metadata.name.as_deref().unwrap_or_default();
        let written = self.rest.merge_status(&planes(), "", name, &patch).await?;
        self.report_status(&plane, &new);
        Ok(written)
    }

    fn report_status(&self, plane: &ControlPlane, new: &ControlPlaneStatus) {
        let (old, object) = (plane.status.clone().unwrap_or_default(), shown(plane));
        let of = |status: &ControlPlaneStatus, type_: &str| {
            let found = status.conditions.iter().find(|c| c.type_ == type_);
            found.map(|c| (c.status.clone(), c.message.clone()))
        };
        let before = of(&old, SYNCED);
        if let Some(after) = of(new, SYNCED) {
            let was_synced = before.as_ref().is_some_and(|(status, _)| status == "True");
            let is_synced = after.0 == "True";
            if is_synced && !was_synced {
                self.events.normal(&object, "SyncSuccess", "everything that belongs to it is in place");
            } else if !is_synced && before.as_ref() != Some(&after) {
                self.events.warning(&object, "SyncFail", after.1);
            }
        }
        if is_available(&new.conditions) && !is_available(&old.conditions) {
            self.events.normal(&object, "Ready", "the space can be used");
        }
        let was = |type_| of(&old, type_).is_some_and(|(status, _)| status == "True");
        if was(READY) && !is_available(&new.conditions) {
            let why = of(new, READY).map(|(_, message)| message).unwrap_or_default();
            let why = if why.is_empty() { "the space cannot be used at present".to_owned() } else { why };
            self.events.warning(&object, "NotReady", why);
        }
    }

    /// Reports new outcomes of hooks.
    fn report_hooks(&self, plane: &ControlPlane, hooks: &[(String, Outcome)]) {
        let name = plane.metadata.name.as_deref().unwrap_or_default();
        let known = plane.status.as_ref().map(|status| &status.post_create_hooks);
        let object = shown(plane);
        let mut trouble = Vec::new();
        for (hook, outcome) in hooks {
            match outcome {
                Outcome::Done { remark } if remark.is_empty() => {
                    if !known.is_some_and(|known| known.contains_key(hook)) {
                        self.events.normal(&object, "HookApplied", format!("hook {hook} is applied"));
                    }
                }
                Outcome::Done { remark } => trouble.push(format!("hook {hook}: {remark}")),
                Outcome::Failed { why } => trouble.push(format!("hook {hook}: {why}")),
                Outcome::NotReady { .. } | Outcome::Missing { .. } | Outcome::Interrupted => {}
            }
        }
        let trouble = (!trouble.is_empty()).then(|| trouble.join("; "));
        let is_new = self.remember(name, |one| {
            let is_new = one.reported != trouble;
            one.reported.clone_from(&trouble);
            is_new
        });
        if let Some(trouble) = trouble.filter(|_| is_new) {
            self.events.warning(&object, "HookFailed", trouble);
        }
    }

    /// Creates the namespace of a ControlPlane unless it is there. Returns why it cannot be used, if so. The namespaces of
    /// ControlPlanes are followed, so a change of one causes a pass.
    pub(crate) async fn namespace(&self, plane: &ControlPlane) -> Result<Option<String>, kube::Error> {
        let gvr = Gvr::new("", "v1", "namespaces");
        let name = plane.metadata.name.as_deref().unwrap_or_default();
        let namespace = namespace_of(name);
        let Some(found) = self.rest.find::<Value>(&gvr, "", &namespace).await? else {
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace,
                "labels": {SYSTEM_LABEL: "true", OWNED: name}, "ownerReferences": owner(plane)}});
            self.rest.create_missing(&gvr, "", &object).await?;
            return Ok(None);
        };
        Ok(match tenure(&found, plane) {
            Tenure::Own => None,
            Tenure::OfAnother => {
                Some(format!("namespace {namespace} of an earlier ControlPlane is still being deleted"))
            }
            Tenure::Foreign => Some(format!(
                "namespace {namespace} was there before and belongs to something else; choose another name, or let this \
                 ControlPlane use it: kubectl label namespace {namespace} {OWNED}={name}"
            )),
        })
    }

    /// Creates a Secret of a ControlPlane, or corrects its data.
    pub(crate) async fn secret(&self, plane: &ControlPlane, mut secret: Value) -> Result<(), kube::Error> {
        let gvr = Gvr::new("", "v1", "secrets");
        let plane_name = plane.metadata.name.as_deref().unwrap_or_default();
        secret["metadata"]["labels"] = json!({SYSTEM_LABEL: "true", OWNED: plane_name});
        let namespace = namespace_of(plane_name);
        let name = secret["metadata"]["name"].as_str().unwrap_or_default();
        let Some(found) = self.rest.find::<Value>(&gvr, &namespace, name).await? else {
            return self.rest.create_missing(&gvr, &namespace, &secret).await.map(drop);
        };
        let wanted = secret["data"].as_object();
        let same = wanted.into_iter().flatten().all(|(key, value)| found["data"].get(key) == Some(value));
        if same && found["metadata"]["labels"][OWNED] == plane_name {
            return Ok(());
        }
        let patch = json!({"data": secret["data"], "metadata": {"labels": secret["metadata"]["labels"],
            "ownerReferences": owner(plane)}});
        self.rest.merge::<Value>(&gvr, &namespace, name, &patch).await.map(drop)
    }

    /// Says in the status of a hook whether it can be used (SP-024).
    async fn check_hook(&self, name: &str) -> Result<Next, kube::Error> {
        let Some(hook) = self.hooks.get("", name) else { return Ok(Next::OnChange) };
        let checked = hook.clone();
        let judged = tokio::task::spawn_blocking(move || hook_status(&checked, Timestamp::now())).await;
        let status = match judged {
            Ok(status) => status,
            Err(error) => {
                tracing::error!(hook = name, %error, "a hook could not be checked");
                return Ok(Next::Retry);
            }
        };
        if hook.status.as_ref() != Some(&status) {
            let patch = json!({"metadata": {"uid": hook.metadata.uid}, "status": status});
            self.rest.merge_status::<Value>(&hooks_gvr(), "", name, &patch).await?;
        }
        Ok(Next::OnChange)
    }
}

/// Whose a namespace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tenure {
    /// This ControlPlane may use it.
    Own,
    /// It goes, or is of another ControlPlane, which is gone or will be.
    OfAnother,
    /// It is no ControlPlane's.
    Foreign,
}

/// Decides whether a ControlPlane may use the namespace of its name. Its Secrets and the objects of its hooks go there, so it must be
/// the ControlPlane's by owner reference, as KubeFlex and this manager make it, or given to it by its label. `kube-system` is never
/// given away.
fn tenure(namespace: &Value, plane: &ControlPlane) -> Tenure {
    let metadata = &namespace["metadata"];
    let owners: Vec<&Value> = metadata["ownerReferences"].as_array().into_iter().flatten().collect();
    let is_ours = |one: &&Value| one["uid"].as_str() == plane.metadata.uid.as_deref();
    let of_planes = |one: &&Value| one["kind"] == "ControlPlane";
    if metadata.get("deletionTimestamp").is_some_and(|time| !time.is_null()) {
        return Tenure::OfAnother;
    }
    if owners.iter().any(is_ours) {
        return Tenure::Own;
    }
    if owners.iter().any(of_planes) {
        return Tenure::OfAnother;
    }
    let given = metadata["labels"][OWNED].as_str() == plane.metadata.name.as_deref();
    if given && metadata["name"] != "kube-system" { Tenure::Own } else { Tenure::Foreign }
}

fn hook_status(hook: &PostCreateHook, now: Timestamp) -> ControlPlaneStatus {
    let verdict = check::check(hook);
    let mut status = hook.status.clone().unwrap_or_default();
    status.observed_generation = hook.metadata.generation.unwrap_or_default();
    let verdict = if verdict.ready {
        crate::condition::Verdict { message: verdict.message, ..crate::condition::Verdict::available() }
    } else {
        crate::condition::Verdict::not_ready(verdict.reason, verdict.message)
    };
    crate::condition::put(&mut status.conditions, verdict, now);
    status
}

/// The ControlPlane as Events name it.
pub(crate) fn shown(plane: &ControlPlane) -> Value {
    json!({"apiVersion": planes().api_version(), "kind": "ControlPlane", "metadata": {
        "name": plane.metadata.name, "uid": plane.metadata.uid,
        "resourceVersion": plane.metadata.resource_version}})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-030: a namespace that was there before is used only if somebody gave it to the ControlPlane.
    #[test]
    fn sp_030_whose_a_namespace_is() {
        let plane = json!({"metadata": {"name": "a", "uid": "u1"}, "spec": {"type": "k8s"}});
        let plane: ControlPlane = serde_json::from_value(plane).unwrap();
        let owner = |kind: &str, uid: &str| json!([{"kind": kind, "uid": uid, "name": "a"}]);
        for (metadata, expected) in [
            (json!({"name": "a-system", "ownerReferences": owner("ControlPlane", "u1")}), Tenure::Own),
            (json!({"name": "a-system", "ownerReferences": owner("ControlPlane", "u0")}), Tenure::OfAnother),
            (
                json!({"name": "a-system", "ownerReferences": owner("ControlPlane", "u0"), "labels": {OWNED: "a"}}),
                Tenure::OfAnother,
            ),
            (
                json!({"name": "a-system", "ownerReferences": owner("ControlPlane", "u1"), "deletionTimestamp": "t"}),
                Tenure::OfAnother,
            ),
            (json!({"name": "a-system"}), Tenure::Foreign),
            (json!({"name": "a-system", "ownerReferences": owner("Team", "u1x")}), Tenure::Foreign),
            (json!({"name": "a-system", "labels": {OWNED: "b"}}), Tenure::Foreign),
            (json!({"name": "a-system", "labels": {OWNED: "a"}}), Tenure::Own),
            (json!({"name": "kube-system", "labels": {OWNED: "a"}}), Tenure::Foreign),
        ] {
            assert_eq!(tenure(&json!({"metadata": metadata}), &plane), expected, "{metadata}");
        }
    }
}
