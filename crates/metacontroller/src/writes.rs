//! Does the planned writes of outputs, children and attachments (MC-051 to MC-056, MC-120, MC-133).

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use kube::core::params::PropagationPolicy;
use parking_lot::Mutex;
use runtime::{
    ObjectKey,
    failure::{self, code_of, is_clash, is_not_found, message_of},
    rest::{Removal, Rest},
};
use serde_json::{Value, json};

use crate::{
    cache::{ExpectedEvent, ObjectState},
    object::{self, Object},
    resource::Served,
};

/// How desired objects are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// A three-way merge with the last-applied state.
    #[default]
    Dynamic,
    /// Server-side apply under this field manager.
    ServerSide { manager: String },
}

impl Strategy {
    /// Returns whether the server merges.
    pub fn is_server_side(&self) -> bool {
        matches!(self, Self::ServerSide { .. })
    }
}

/// A write that failed or was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Object and reason, for an Event.
    pub text: String,
    /// Whether an object of this name exists already.
    pub exists: bool,
}

/// What was applied with server-side apply, to skip applies that would change nothing (MC-132).
#[derive(Default)]
struct Applied(Mutex<HashMap<(String, ObjectKey), Fingerprint>>);

#[derive(Clone, PartialEq)]
struct Fingerprint {
    uid: String,
    body: u64,
    /// Generation, or the version if there is no generation.
    state: Result<i64, String>,
}

const REMEMBERED: usize = 100_000;

/// Writes objects.
pub struct Writer {
    rest: Rest,
    strategy: Strategy,
    applied: Applied,
}

impl Writer {
    /// A writer.
    pub fn new(rest: Rest, strategy: Strategy) -> Self {
        Self { rest, strategy, applied: Applied::default() }
    }

    /// The strategy.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// The client for other requests.
    pub fn rest(&self) -> &Rest {
        &self.rest
    }

    /// Deletes the object with this UID; it may be gone already.
    pub async fn delete(
        &self,
        served: &Served,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<Option<ExpectedEvent>, Refused> {
        let removal = Removal { uid: Some(uid.to_owned()), propagation: Some(PropagationPolicy::Background) };
        tracing::debug!(kind = served.kind, namespace, name, "deleting");
        match self.rest.delete(&served.gvr, served.place(namespace), name, &removal).await {
            Ok(()) => {
                Ok(Some(ExpectedEvent::Gone { key: ObjectKey::new(namespace, name), uid: uid.to_owned() }))
            }
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(refused("deleting", served, namespace, name, &error)),
        }
    }

    /// Creates an object.
    pub async fn create(&self, served: &Served, body: &Value) -> Result<Option<ExpectedEvent>, Refused> {
        let (namespace, name) = (object::namespace(body), object::name(body));
        tracing::debug!(kind = served.kind, namespace, name, "creating");
        if let Strategy::ServerSide { manager } = &self.strategy {
            return match self.patched(served, body, manager).await? {
                Some(made) => Ok(Some(created(body, &made))),
                None => Ok(None),
            };
        }
        let made: Result<Value, _> =
            self.rest.create(&served.gvr, served.place(namespace), body.to_string().into_bytes()).await;
        match made {
            Ok(made) => Ok(Some(created(body, &made))),
            Err(error) => Err(refused("creating", served, namespace, name, &error)),
        }
    }

    /// Creates an object of our own, whatever the strategy. An existing one was created by an earlier run.
    pub async fn create_own(&self, served: &Served, body: &Value) -> Result<Option<ExpectedEvent>, Refused> {
        let (namespace, name) = (object::namespace(body), object::name(body));
        match self.rest.create(&served.gvr, served.place(namespace), body.to_string().into_bytes()).await {
            Ok(made) => Ok(Some(expected(&made))),
            Err(error) if failure::is_already_exists(&error) => Ok(None),
            Err(error) => Err(refused("creating", served, namespace, name, &error)),
        }
    }

    /// Replaces an object at the version in the body. A write of another client in between, or a deletion, is
    /// no error: its event brings the item back (MC-053).
    pub async fn update(&self, served: &Served, body: &Value) -> Result<Option<ExpectedEvent>, Refused> {
        let (namespace, name) = (object::namespace(body), object::name(body));
        tracing::debug!(kind = served.kind, namespace, name, "updating");
        let body = body.to_string().into_bytes();
        match self.rest.replace(&served.gvr, served.place(namespace), name, body).await {
            Ok(made) => Ok(Some(expected(&made))),
            Err(error) if is_clash(&error) || is_not_found(&error) => Ok(None),
            Err(error) => Err(refused("updating", served, namespace, name, &error)),
        }
    }

    /// Sends a merge patch.
    pub async fn merge(
        &self,
        served: &Served,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Option<ExpectedEvent>, Refused> {
        match self.rest.merge(&served.gvr, served.place(namespace), name, patch).await {
            Ok(made) => Ok(Some(expected(&made))),
            Err(error) if is_clash(&error) || is_not_found(&error) => Ok(None),
            Err(error) => Err(refused("patching", served, namespace, name, &error)),
        }
    }

    /// Sends a server-side apply for an existing object, unless that would change nothing (MC-131 to MC-133).
    pub async fn apply(
        &self,
        served: &Served,
        body: &Value,
        observed: &Object,
        recreate: bool,
    ) -> Result<Option<ExpectedEvent>, Refused> {
        let Strategy::ServerSide { manager } = &self.strategy else { return self.update(served, body).await };
        let (namespace, name) = (object::namespace(body), object::name(body));
        if self.applied.has(served, body, &observed.value) {
            return Ok(None);
        }
        if recreate {
            return self.recreate(served, body, observed, manager).await;
        }
        let last = apis::metacontroller::LAST_APPLIED_ANNOTATION;
        if object::annotation(&observed.value, last).is_some() {
            let patch = json!({"metadata": {"annotations": {last: null}}});
            match self.rest.merge::<Value>(&served.gvr, served.place(namespace), name, &patch).await {
                Ok(_) => {}
                Err(error) if is_not_found(&error) => return Ok(None),
                Err(error) => return Err(refused("patching", served, namespace, name, &error)),
            }
        }
        self.patch(served, body, manager).await
    }

    async fn patch(
        &self,
        served: &Served,
        body: &Value,
        manager: &str,
    ) -> Result<Option<ExpectedEvent>, Refused> {
        Ok(self.patched(served, body, manager).await?.as_ref().map(expected))
    }

    async fn patched(&self, served: &Served, body: &Value, manager: &str) -> Result<Option<Value>, Refused> {
        let (namespace, name) = (object::namespace(body), object::name(body));
        let place = served.place(namespace);
        match self.rest.apply::<Value>(&served.gvr, place, name, body, manager, true).await {
            Ok(made) => {
                self.applied.remember(served, body, &made);
                Ok(Some(made))
            }
            Err(error) if is_clash(&error) => Ok(None),
            Err(error) => Err(refused("applying", served, namespace, name, &error)),
        }
    }

    /// Finds out by a dry run whether applying would change anything, and deletes the object if so (MC-133).
    async fn recreate(
        &self,
        served: &Served,
        body: &Value,
        observed: &Object,
        manager: &str,
    ) -> Result<Option<ExpectedEvent>, Refused> {
        let (namespace, name) = (object::namespace(body), object::name(body));
        match self.dry_run(served, body, manager).await {
            Ok(would) if object::uid(&would) != observed.uid() => {
                Err(Refused { text: format!("{} {name} changed meanwhile", served.kind), exists: false })
            }
            Ok(would) if same(&would, &observed.value) => {
                self.applied.remember(served, body, &observed.value);
                Ok(None)
            }
            Ok(_) => self.delete(served, namespace, name, observed.uid()).await,
            Err(error) if matches!(code_of(&error), 400 | 403) => {
                tracing::info!(kind = served.kind, namespace, name, %error, "not recreated: the change can't be judged");
                self.applied.remember(served, body, &observed.value);
                Ok(None)
            }
            Err(error) => Err(refused("applying", served, namespace, name, &error)),
        }
    }

    async fn dry_run(&self, served: &Served, body: &Value, manager: &str) -> Result<Value, kube::Error> {
        let place = served.place(object::namespace(body));
        self.rest.apply_dry_run(&served.gvr, place, object::name(body), body, manager).await
    }
}

fn same(left: &Value, right: &Value) -> bool {
    let plain = |object: &Value| {
        let mut object = object.clone();
        if let Some(map) = object.as_object_mut() {
            map.remove("status");
        }
        if let Some(meta) = object::metadata_mut(&mut object) {
            for field in ["managedFields", "resourceVersion", "generation"] {
                meta.remove(field);
            }
        }
        object
    };
    crate::apply::loosely_equal(&plain(left), &plain(right))
}

fn expected(made: &Value) -> ExpectedEvent {
    let key = ObjectKey::new(object::namespace(made), object::name(made));
    ExpectedEvent::Version { key, version: object::resource_version(made).to_owned(), echo: None }
}

/// Returns the event that a creation will cause. A result exactly as requested is an echo; defaults and
/// values that the server chose are not.
fn created(body: &Value, made: &Value) -> ExpectedEvent {
    let as_asked = crate::apply::loosely_equal(&asked_for(made), &asked_for(body));
    match expected(made) {
        ExpectedEvent::Version { key, version, .. } if as_asked => {
            ExpectedEvent::Version { key, version, echo: Some(ObjectState::of(made)) }
        }
        expected => expected,
    }
}

/// Returns the object without the fields that every server adds to every object. A status stays: it is new
/// information.
fn asked_for(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(meta) = object::metadata_mut(&mut object) {
        for field in
            ["uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink"]
        {
            meta.remove(field);
        }
    }
    object
}

fn refused(doing: &str, served: &Served, namespace: &str, name: &str, error: &kube::Error) -> Refused {
    let what = object::display(namespace, name);
    let text = format!("{doing} {} {what}: {}", served.kind, message_of(error));
    Refused { text, exists: failure::is_already_exists(error) }
}

impl Applied {
    fn fingerprint(body: &Value, state: &Value) -> Fingerprint {
        let mut hasher = DefaultHasher::new();
        body.to_string().hash(&mut hasher);
        let state_of = match object::generation(state) {
            0 => Err(object::resource_version(state).to_owned()),
            generation => Ok(generation),
        };
        Fingerprint { uid: object::uid(state).to_owned(), body: hasher.finish(), state: state_of }
    }

    fn key(served: &Served, body: &Value) -> (String, ObjectKey) {
        let key = ObjectKey::new(object::namespace(body), object::name(body));
        (format!("{}.{}", served.kind, served.gvr.group), key)
    }

    fn has(&self, served: &Served, body: &Value, observed: &Value) -> bool {
        self.0.lock().get(&Self::key(served, body)) == Some(&Self::fingerprint(body, observed))
    }

    fn remember(&self, served: &Served, body: &Value, made: &Value) {
        let mut all = self.0.lock();
        if all.len() >= REMEMBERED {
            all.clear();
        }
        all.insert(Self::key(served, body), Self::fingerprint(body, made));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::rest::Gvr;

    /// MC-037: a creation is an echo if the server added nothing of its own.
    #[test]
    fn mc_037_what_the_server_adds_is_news() {
        let body = json!({"apiVersion": "v1", "kind": "C", "metadata": {"name": "a", "labels": {"x": "1"}}, "spec": {"n": 1}});
        let mut made = body.clone();
        for (field, value) in [("uid", json!("u")), ("resourceVersion", json!("7")), ("generation", json!(1))]
        {
            made["metadata"][field] = value;
        }
        let is_echo =
            |made: &Value| matches!(created(&body, made), ExpectedEvent::Version { echo: Some(_), .. });
        assert!(is_echo(&made));
        for (pointer, value) in [("/spec", json!({"n": 1, "default": 2})), ("/metadata/labels", json!({}))] {
            let mut other = made.clone();
            *other.pointer_mut(pointer).unwrap() = value;
            assert!(!is_echo(&other), "{pointer}");
        }
        made["status"] = json!({"phase": "Pending"});
        assert!(!is_echo(&made));
    }

    /// MC-132: which applies are skipped.
    #[test]
    fn mc_132_applying_again_is_left_out_until_something_moves() {
        let served = Served {
            gvr: Gvr::new("", "v1", "configmaps"),
            kind: "ConfigMap".into(),
            namespaced: true,
            has_status: false,
        };
        let applied = Applied::default();
        let body = json!({"metadata": {"name": "a", "namespace": "n"}, "data": {"a": "1"}});
        let made = |uid: &str, version: &str, generation: i64| json!({"metadata": {"name": "a", "namespace": "n", "uid": uid, "resourceVersion": version, "generation": generation}});
        applied.remember(&served, &body, &made("u", "5", 0));
        assert!(applied.has(&served, &body, &made("u", "5", 0)));
        assert!(!applied.has(&served, &body, &made("u", "6", 0)), "no generation: the version counts");
        assert!(!applied.has(&served, &body, &made("v", "5", 0)), "another incarnation");
        assert!(!applied.has(
            &served,
            &json!({"metadata": {"name": "a", "namespace": "n"}}),
            &made("u", "5", 0)
        ));
        applied.remember(&served, &body, &made("u", "5", 2));
        assert!(
            applied.has(&served, &body, &made("u", "9", 2)),
            "with a generation, a status does not count"
        );
        assert!(!applied.has(&served, &body, &made("u", "9", 3)));
    }
}
