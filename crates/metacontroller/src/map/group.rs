//! From the wanted and the observed outputs of one input to the writes that are needed (MC-050 to MC-059). Pure.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use apis::metacontroller::{
    MAP_CONTROLLER_ANNOTATION, MAP_DEPTH_ANNOTATION, MAP_INPUT_UID_ANNOTATION, MAP_KEY_ANNOTATION,
};
use serde_json::{Value, json};

use super::{
    answer::{Desired, Place},
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
    /// Not at all.
    #[default]
    OnDelete,
    /// Deleted, then created.
    Recreate,
    /// Updated.
    InPlace,
}

impl Method {
    /// From the spec; rolling methods behave as their plain counterparts.
    pub fn parse(text: Option<&str>) -> Self {
        match text {
            Some("Recreate" | "RollingRecreate") => Self::Recreate,
            Some("InPlace" | "RollingInPlace") => Self::InPlace,
            _ => Self::OnDelete,
        }
    }
}

/// Who makes outputs, for whom and from what.
#[derive(Clone, Copy)]
pub struct Maker<'a> {
    /// Name of the MapController.
    pub controller: &'a str,
    /// The parent.
    pub parent: &'a Value,
    /// The input's key.
    pub key: &'a MapKey,
    /// The input.
    pub input: &'a Value,
}

/// What the plan needs to know about the rest of the world.
pub trait Surroundings {
    /// An object at this place, of whatever owner.
    fn at(&self, place: &Place) -> Option<Arc<Object>>;
    /// Whether the input of another key is there and selected by this parent.
    fn is_live(&self, key: &MapKey) -> bool;
    /// Whether there is a MapController of this name.
    fn controller_exists(&self, name: &str) -> bool;
}

/// One thing to do. Doing it twice does no harm.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Delete this incarnation.
    Delete { place: Place, uid: String },
    /// Create.
    Create { place: Place, body: Value },
    /// Replace, if it is still at the version in the body.
    Update { place: Place, body: Value },
    /// Merge this into the metadata, which has the version it must still have (MC-024).
    Retag { place: Place, patch: Value },
    /// Make the parent its controller, once a look at the parent shows that it still is what we think (MC-055.4).
    Adopt { place: Place, body: Value },
    /// Apply on the server's side; `observed` is what it is about to change.
    Apply { place: Place, body: Value, observed: Arc<Object>, recreate: bool },
    /// It belongs to somebody else (MC-055.5).
    Conflict { place: Place, owner: String },
}

/// Writes for one input, in the order they are to be made (MC-050): deletions, then the wanted outputs in the hook's
/// order. Costs O(wanted + observed).
pub fn plan(
    maker: Maker<'_>,
    desired: &[Desired],
    group: &[(usize, Arc<Object>)],
    method: impl Fn(usize) -> Method,
    server_side: bool,
    around: &impl Surroundings,
) -> Vec<Write> {
    let wanted: HashSet<&Place> = desired.iter().map(|one| &one.place).collect();
    let observed: HashMap<Place, &Arc<Object>> =
        group.iter().map(|(rule, object)| (place_of(*rule, object), object)).collect();
    let mut writes = deletions(group, |place| !wanted.contains(place));
    for one in desired {
        let tagged = |observed: Option<&Value>| maker.tagged(&one.body, observed);
        let known = observed.get(&one.place).map(|object| Arc::clone(object));
        match (known, around.at(&one.place)) {
            (Some(member), _) => writes.extend(change(
                &one.place,
                &member,
                &tagged(Some(&member.value)),
                method(one.place.rule),
                server_side.then_some(maker.parent),
            )),
            (None, Some(existing)) => writes.extend(claim(maker, &one.place, &existing, around)),
            (None, None) => {
                let body = tagged(None);
                let body =
                    if server_side { owned(body, maker.parent) } else { apply::create(&body, maker.parent) };
                writes.push(Write::Create { place: one.place.clone(), body });
            }
        }
    }
    writes
}

/// Deletions of what `goes` says, but for what is on its way out already.
pub fn deletions(group: &[(usize, Arc<Object>)], goes: impl Fn(&Place) -> bool) -> Vec<Write> {
    let leaving = group.iter().filter(|(_, object)| !object::is_terminating(&object.value));
    leaving
        .map(|(rule, object)| (place_of(*rule, object), object.uid().to_owned()))
        .filter(|(place, _)| goes(place))
        .map(|(place, uid)| Write::Delete { place, uid })
        .collect()
}

/// Where an observed output is.
pub fn place_of(rule: usize, object: &Object) -> Place {
    let key = object.key();
    Place { rule, namespace: key.namespace.to_string(), name: key.name.to_string() }
}

/// What an existing member of a group needs (MC-052, MC-053, MC-057).
pub fn change(
    place: &Place,
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

/// A wanted object with its owner, as server-side apply takes it (MC-131).
pub fn owned(mut body: Value, parent: &Value) -> Value {
    object::set_controller(&mut body, parent);
    body
}

/// What becomes of an object that is wanted and there, but not in the group (MC-055).
pub fn claim(
    maker: Maker<'_>,
    place: &Place,
    existing: &Arc<Object>,
    around: &impl Surroundings,
) -> Option<Write> {
    let (value, place) = (&existing.value, place.clone());
    let tag = |name: &str| object::annotation(value, name);
    let (controller, key) = (tag(MAP_CONTROLLER_ANNOTATION), tag(MAP_KEY_ANNOTATION));
    let ours = controller == Some(maker.controller) && key == Some(maker.key.as_str());
    if object::is_terminating(value) {
        return None;
    }
    match object::controller_uid(value) {
        uid if uid == object::uid(maker.parent) => {
            if ours {
                return None;
            }
            let may = match (controller, key) {
                (Some(name), Some(key)) if name == maker.controller => !around.is_live(&MapKey::raw(key)),
                (Some(name), Some(_)) => !around.controller_exists(name),
                _ => maker.has_evidence(value),
            };
            Some(if may { maker.retag(place, existing) } else { conflict(place, value) })
        }
        "" if ours => Some(Write::Adopt { place, body: owned(value.clone(), maker.parent) }),
        _ => Some(conflict(place, value)),
    }
}

fn conflict(place: Place, existing: &Value) -> Write {
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

impl Maker<'_> {
    /// The body with our tags. An existing output keeps the UID of the input it was made for (MC-024).
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

    fn retag(&self, place: Place, existing: &Object) -> Write {
        let mut annotations =
            json!({MAP_CONTROLLER_ANNOTATION: self.controller, MAP_KEY_ANNOTATION: self.key.as_str()});
        if object::annotation(&existing.value, MAP_INPUT_UID_ANNOTATION).is_none() {
            annotations[MAP_INPUT_UID_ANNOTATION] = object::uid(self.input).into();
        }
        let patch = json!({"metadata": {"resourceVersion": existing.version(), "annotations": annotations}});
        Write::Retag { place, patch }
    }

    /// Whether an output that lost a tag is known to be ours all the same (MC-055.1).
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
