//! Computes the writes for the outputs of one input from the desired and the observed outputs (MC-050 to
//! MC-059). Pure.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use apis::metacontroller::{
    MAP_CONTROLLER_ANNOTATION, MAP_DEPTH_ANNOTATION, MAP_INPUT_UID_ANNOTATION, MAP_KEY_ANNOTATION,
};
use serde_json::{Value, json};

use super::{
    answer::{Desired, OutputRef},
    key::MapKey,
    selector,
};
use crate::{
    apply,
    object::{self, Object},
};

/// How existing outputs are changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Existing outputs are not changed.
    #[default]
    OnDelete,
    /// Deleted, then created.
    Recreate,
    /// Updated.
    InPlace,
}

impl Method {
    /// Parses the method of the spec; rolling methods count as their plain counterparts.
    pub fn parse(text: Option<&str>) -> Self {
        match text {
            Some("Recreate" | "RollingRecreate") => Self::Recreate,
            Some("InPlace" | "RollingInPlace") => Self::InPlace,
            _ => Self::OnDelete,
        }
    }
}

/// The controller, parent and input for which outputs are planned.
#[derive(Clone, Copy)]
pub struct MapContext<'a> {
    /// Name of the MapController.
    pub controller: &'a str,
    /// The parent.
    pub parent: &'a Value,
    /// The input's key.
    pub key: &'a MapKey,
    /// The input.
    pub input: &'a Value,
}

/// What a plan needs to know about other objects.
pub trait ClusterView {
    /// Returns the object with this identity, of any owner.
    fn at(&self, place: &OutputRef) -> Option<Arc<Object>>;
    /// Returns whether the input of another key exists and is selected by this parent.
    fn is_live(&self, key: &MapKey) -> bool;
    /// Returns whether there is a MapController of this name.
    fn controller_exists(&self, name: &str) -> bool;
}

/// A write. Writes are idempotent.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Delete the object with this UID.
    Delete { place: OutputRef, uid: String },
    /// Create.
    Create { place: OutputRef, body: Value },
    /// Replace the object, if it still has the version in the body.
    Update { place: OutputRef, body: Value },
    /// Merge this patch into the metadata, if the object still has the version in it (MC-024).
    Retag { place: OutputRef, patch: Value },
    /// Make the parent the controller of the object, after a read shows that the parent is unchanged
    /// (MC-055.4).
    Adopt { place: OutputRef, body: Value },
    /// Apply on the server; `observed` is the state that will change.
    Apply { place: OutputRef, body: Value, observed: Arc<Object>, recreate: bool },
    /// The object belongs to another owner (MC-055.5).
    Conflict { place: OutputRef, owner: String },
}

/// Returns the writes for one input in their order (MC-050): deletions, then the desired outputs in the
/// hook's order. Cost: O(desired + observed).
pub fn plan(
    map_context: MapContext<'_>,
    desired: &[Desired],
    group: &[(usize, Arc<Object>)],
    method: impl Fn(usize) -> Method,
    server_side: bool,
    view: &impl ClusterView,
) -> Vec<Write> {
    let wanted: HashSet<&OutputRef> = desired.iter().map(|one| &one.place).collect();
    let observed: HashMap<OutputRef, &Arc<Object>> =
        group.iter().map(|(rule, object)| (place_of(*rule, object), object)).collect();
    let mut writes = deletions(group, |place| !wanted.contains(place));
    for one in desired {
        let tagged = |observed: Option<&Value>| map_context.tagged(&one.body, observed);
        let known = observed.get(&one.place).map(|object| Arc::clone(object));
        match (known, view.at(&one.place)) {
            (Some(member), _) => writes.extend(change(
                &one.place,
                &member,
                &tagged(Some(&member.value)),
                method(one.place.rule),
                server_side.then_some(map_context.parent),
            )),
            (None, Some(existing)) => writes.extend(claim(map_context, &one.place, &existing, view)),
            (None, None) => {
                let body = tagged(None);
                let body = if server_side {
                    owned(body, map_context.parent)
                } else {
                    apply::create(&body, map_context.parent)
                };
                writes.push(Write::Create { place: one.place.clone(), body });
            }
        }
    }
    writes
}

/// Returns deletions of the members for which `goes` holds, except those that are being deleted.
pub fn deletions(group: &[(usize, Arc<Object>)], goes: impl Fn(&OutputRef) -> bool) -> Vec<Write> {
    let leaving = group.iter().filter(|(_, object)| !object::is_terminating(&object.value));
    leaving
        .map(|(rule, object)| (place_of(*rule, object), object.uid().to_owned()))
        .filter(|(place, _)| goes(place))
        .map(|(place, uid)| Write::Delete { place, uid })
        .collect()
}

/// Returns the identity of an observed output.
pub fn place_of(rule: usize, object: &Object) -> OutputRef {
    let key = object.key();
    OutputRef { rule, namespace: key.namespace.to_string(), name: key.name.to_string() }
}

/// Returns the write for an existing member of a group (MC-052, MC-053, MC-057).
pub fn change(
    place: &OutputRef,
    member: &Arc<Object>,
    desired: &Value,
    method: Method,
    apply_for: Option<&Value>,
) -> Option<Write> {
    let place = place.clone();
    if object::is_terminating(&member.value) || method == Method::OnDelete {
        return None;
    }
    if let Some(parent) = apply_for {
        let body = owned(desired.clone(), parent);
        return Some(Write::Apply {
            place,
            body,
            observed: member.clone(),
            recreate: method == Method::Recreate,
        });
    }
    let body = apply::update(&member.value, desired)?;
    Some(match method {
        Method::Recreate => Write::Delete { place, uid: member.uid().to_owned() },
        _ => Write::Update { place, body },
    })
}

/// Returns a desired object with its owner, for server-side apply (MC-131).
pub fn owned(mut body: Value, parent: &Value) -> Value {
    object::set_controller(&mut body, parent);
    body
}

/// Returns the write for a desired object that exists outside of the group (MC-055).
pub fn claim(
    map_context: MapContext<'_>,
    place: &OutputRef,
    existing: &Arc<Object>,
    view: &impl ClusterView,
) -> Option<Write> {
    let (value, place) = (&existing.value, place.clone());
    let tag = |name: &str| object::annotation(value, name);
    let (controller, key) = (tag(MAP_CONTROLLER_ANNOTATION), tag(MAP_KEY_ANNOTATION));
    let ours = controller == Some(map_context.controller) && key == Some(map_context.key.as_str());
    if object::is_terminating(value) {
        return None;
    }
    match object::controller_uid(value) {
        uid if uid == object::uid(map_context.parent) => {
            if ours {
                return None;
            }
            let may = match (controller, key) {
                (Some(name), Some(key)) if name == map_context.controller => !view.is_live(&MapKey::raw(key)),
                (Some(name), Some(_)) => !view.controller_exists(name),
                _ => map_context.has_evidence(value),
            };
            Some(if may { map_context.retag(place, existing) } else { conflict(place, value) })
        }
        "" if ours => Some(Write::Adopt { place, body: owned(value.clone(), map_context.parent) }),
        _ => Some(conflict(place, value)),
    }
}

fn conflict(place: OutputRef, existing: &Value) -> Write {
    let owner = match object::controller(existing) {
        Some(owner) => {
            format!("{} {}", object::kind(owner), owner.get("name").and_then(Value::as_str).unwrap_or(""))
        }
        None => "nobody".into(),
    };
    let key =
        object::annotation(existing, MAP_KEY_ANNOTATION).map(|key| format!(" for {key}")).unwrap_or_default();
    Write::Conflict { place, owner: owner + &key }
}

impl MapContext<'_> {
    /// Returns the body with our tags. An existing output keeps the UID of the input it was created for
    /// (MC-024).
    pub fn tagged(&self, body: &Value, observed: Option<&Value>) -> Value {
        let mut body = body.clone();
        let observed_uid = observed.and_then(|value| object::annotation(value, MAP_INPUT_UID_ANNOTATION));
        let input_uid = observed_uid.unwrap_or_else(|| object::uid(self.input)).to_owned();
        let depth = selector::depth(self.input) + 1;
        if let Some(annotations) = object::metadata_map(&mut body, "annotations") {
            annotations.insert(MAP_CONTROLLER_ANNOTATION.into(), self.controller.into());
            annotations.insert(MAP_KEY_ANNOTATION.into(), self.key.as_str().into());
            annotations.insert(MAP_INPUT_UID_ANNOTATION.into(), input_uid.into());
            annotations.remove(MAP_DEPTH_ANNOTATION);
            if depth >= 2 {
                annotations.insert(MAP_DEPTH_ANNOTATION.into(), depth.to_string().into());
            }
        }
        body
    }

    fn retag(&self, place: OutputRef, existing: &Object) -> Write {
        let mut annotations =
            json!({MAP_CONTROLLER_ANNOTATION: self.controller, MAP_KEY_ANNOTATION: self.key.as_str()});
        if object::annotation(&existing.value, MAP_INPUT_UID_ANNOTATION).is_none() {
            annotations[MAP_INPUT_UID_ANNOTATION] = object::uid(self.input).into();
        }
        let patch = json!({"metadata": {"resourceVersion": existing.version(), "annotations": annotations}});
        Write::Retag { place, patch }
    }

    /// Returns whether an output that lost a tag is nevertheless known to be ours (MC-055.1).
    fn has_evidence(&self, existing: &Value) -> bool {
        let tag = |name: &str| object::annotation(existing, name);
        let depth = (selector::depth(self.input) + 1).to_string();
        let matching = [
            (MAP_CONTROLLER_ANNOTATION, self.controller),
            (MAP_KEY_ANNOTATION, self.key.as_str()),
            (MAP_INPUT_UID_ANNOTATION, object::uid(self.input)),
            (MAP_DEPTH_ANNOTATION, &depth),
        ];
        let contradicted = tag(MAP_CONTROLLER_ANNOTATION).is_some_and(|name| name != self.controller);
        let remembered = apply::last_applied(existing);
        let last = object::annotation(&remembered, MAP_CONTROLLER_ANNOTATION);
        !contradicted
            && (matching.iter().any(|(name, value)| !value.is_empty() && tag(name) == Some(*value))
                || last == Some(self.controller))
    }
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;
