//! Applies the rendered templates of a hook to an API server, and looks at what became of the objects (SP-017, SP-022).

use apis::tenancy::ControlPlane;
use kube::Error;
use runtime::failure::{is_already_exists, is_not_found, message_of, status_of};
use runtime::mapper::{Mapped, Mapper};
use runtime::rest::Rest;
use serde_json::Value;

use super::readiness::{self, State};
use crate::credentials;
use crate::names::{HOOK_MANAGER, MANAGED_BY, RELEASE_NAME, RELEASE_NAMESPACE, namespace_of};

/// Where the objects of a hook go.
pub(crate) struct Target {
    rest: Rest,
    mapper: Mapper,
    /// The ControlPlane in whose namespace objects must be; `None` if templates choose the namespace.
    plane: Option<Plane>,
}

/// What objects in the hosting cluster need of their ControlPlane.
struct Plane {
    namespace: String,
    /// The owner reference by which it uses cluster-scoped objects.
    user: Value,
}

/// Why an object could not be applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    #[error("{object}: the server has no kind {kind} in {api_version}")]
    UnknownKind { object: String, api_version: String, kind: String },
    #[error("{object}: it is in namespace {given}, but objects of this hook must be in {wanted}")]
    Namespace { object: String, given: String, wanted: String },
    #[error("{object}: {}", message_of(.source))]
    Request { object: String, source: Error },
}

/// An object that was applied.
#[derive(Clone, Debug)]
pub(crate) struct Applied {
    pub(crate) mapped: Mapped,
    namespace: String,
    name: String,
}

impl Target {
    /// The hosting cluster, for a hook of this ControlPlane.
    pub(crate) fn hosting(rest: &Rest, mapper: &Mapper, plane: &ControlPlane) -> Self {
        let rest = Rest::with_manager(rest.client().clone(), HOOK_MANAGER);
        let namespace = namespace_of(plane.metadata.name.as_deref().unwrap_or_default());
        let plane = Plane { namespace, user: credentials::user(plane) };
        Self { rest, mapper: mapper.clone(), plane: Some(plane) }
    }

    /// The new space itself (SP-018).
    pub(crate) fn space(client: kube::Client) -> Self {
        let rest = Rest::with_manager(client.clone(), HOOK_MANAGER);
        Self { rest, mapper: Mapper::new(client), plane: None }
    }

    /// Finds out where an object belongs, and puts its namespace into it.
    pub(crate) async fn place(&self, object: &mut Value) -> Result<Applied, ApplyError> {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (api_version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
        let given = text("/metadata/namespace");
        let shown = format!("{kind} {name}");
        let mapped = self.mapper.by_kind(&api_version, &kind).await;
        let mapped = mapped.map_err(|source| ApplyError::Request { object: shown.clone(), source })?;
        let Some(mapped) = mapped else {
            self.mapper.forget(&api_version);
            return Err(ApplyError::UnknownKind { object: shown, api_version, kind });
        };
        if !mapped.namespaced {
            return Ok(Applied { mapped, namespace: String::new(), name });
        }
        let namespace = match self.plane.as_ref().map(|plane| &plane.namespace) {
            Some(wanted) if !given.is_empty() && given != *wanted => {
                return Err(ApplyError::Namespace { object: shown, given, wanted: wanted.clone() });
            }
            Some(wanted) => wanted.clone(),
            None if given.is_empty() => "default".to_owned(),
            None => given,
        };
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("namespace".to_owned(), namespace.as_str().into());
        }
        Ok(Applied { mapped, namespace, name })
    }

    /// Creates an object, or applies it if it exists with other content. Never takes a field from another manager. A
    /// cluster-scoped object that is created is marked, so that it goes with the ControlPlane. One that a hook of another
    /// ControlPlane made gets this ControlPlane as a further user, and goes with the last of them. Any other one keeps the
    /// marks it has: it belongs to somebody else.
    pub(crate) async fn apply(&self, at: &Applied, object: &Value) -> Result<(), ApplyError> {
        self.write(at, object).await.map_err(|source| ApplyError::Request {
            object: format!("{} {}", at.mapped.kind, at.name),
            source,
        })
    }

    async fn write(&self, at: &Applied, object: &Value) -> Result<(), Error> {
        let (gvr, namespace) = (&at.mapped.gvr, at.namespace.as_str());
        let found = match self.rest.find::<Value>(gvr, namespace, &at.name).await? {
            Some(found) => found,
            None => {
                let plane = self.plane.as_ref().filter(|_| !at.mapped.namespaced);
                let new = plane.map_or_else(|| object.clone(), |plane| plane.marked(object));
                match self.rest.create::<Value>(gvr, namespace, new.to_string().into_bytes()).await {
                    // Somebody was faster.
                    Err(error) if is_already_exists(&error) => {
                        self.rest.get(gvr, namespace, &at.name).await?
                    }
                    created => return created.map(drop),
                }
            }
        };
        // An apply without the marks of an earlier one would remove them.
        let mut object = marker(&found).map_or_else(|| object.clone(), |marker| marked(object, marker));
        if let Some(plane) = self.plane.as_ref().filter(|_| !at.mapped.namespaced && is_of_hooks(&found)) {
            plane.join(&found, &mut object);
        }
        let object = &object;
        let mut merged = found.clone();
        machinery::patch::merge(&mut merged, object);
        if merged == found {
            return Ok(());
        }
        match self.rest.apply::<Value>(gvr, namespace, &at.name, object, HOOK_MANAGER, false).await {
            // A hook created the object earlier, which makes the same manager another owner.
            Err(error) if is_conflict_with_hooks(&error) => {
                self.rest.apply::<Value>(gvr, namespace, &at.name, object, HOOK_MANAGER, true).await.map(drop)
            }
            applied => applied.map(drop),
        }
    }

    /// The state of an object that was applied.
    pub(crate) async fn state(&self, at: &Applied) -> Result<State, Error> {
        match self.rest.find::<Value>(&at.mapped.gvr, &at.namespace, &at.name).await {
            Ok(Some(object)) => Ok(readiness::state(&at.mapped.kind, &object)),
            Ok(None) => Ok(State::NotReady),
            Err(error) if is_not_found(&error) => Ok(State::NotReady),
            Err(error) => Err(error),
        }
    }
}

/// Whether an apply was refused only for fields that hooks own themselves.
fn is_conflict_with_hooks(error: &Error) -> bool {
    let details =
        status_of(error).filter(|status| status.code == 409).and_then(|status| status.details.as_ref());
    let ours = format!("conflict with \"{HOOK_MANAGER}\"");
    details.is_some_and(|details| {
        let mut causes =
            details.causes.iter().filter(|cause| cause.reason == "FieldManagerConflict").peekable();
        causes.peek().is_some() && causes.all(|cause| cause.message.starts_with(&ours))
    })
}

impl Applied {
    /// Kind and name, for messages.
    pub(crate) fn shown(&self) -> String {
        format!("{} {}", self.mapped.kind, self.name)
    }
}

impl Plane {
    /// An object that this ControlPlane is the first to use.
    fn marked(&self, object: &Value) -> Value {
        let mut object = marked(object, &self.namespace);
        self.join(&object.clone(), &mut object);
        object
    }

    /// Makes the ControlPlane a user of an object, beside those that `found` has.
    fn join(&self, found: &Value, object: &mut Value) {
        let mut users = found.pointer("/metadata/ownerReferences").and_then(Value::as_array).cloned();
        let users = users.get_or_insert_default();
        if !users.iter().any(|one| one["uid"] == self.user["uid"]) {
            users.push(self.user.clone());
        }
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("ownerReferences".to_owned(), std::mem::take(users).into());
        }
    }
}

/// The object with the marks by which a cluster-scoped object is found when the ControlPlane with this namespace goes.
fn marked(object: &Value, namespace: &str) -> Value {
    let marks = serde_json::json!({"metadata": {
        "labels": {MANAGED_BY: "Helm"}, "annotations": {RELEASE_NAMESPACE: namespace}}});
    let mut marked = object.clone();
    machinery::patch::merge(&mut marked, &marks);
    marked
}

fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object.get("metadata")?.get("annotations")?.get(name)?.as_str()
}

/// The namespace that the marks of an object name.
fn marker(object: &Value) -> Option<&str> {
    annotation(object, RELEASE_NAMESPACE)
}

/// Whether a hook made an object. Helm sets the same marks and one more.
fn is_of_hooks(object: &Value) -> bool {
    let managed_by = object.pointer("/metadata/labels").and_then(|labels| labels.get(MANAGED_BY));
    managed_by.is_some_and(|by| by == "Helm")
        && marker(object).is_some()
        && annotation(object, RELEASE_NAME).is_none()
}
