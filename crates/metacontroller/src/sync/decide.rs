//! Decisions about children and attachments (MC-112, MC-120 to MC-126, MC-143 to MC-149, MC-172). Pure.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use machinery::selector::LabelSelector;
use serde_json::{Map, Value, json};

use crate::{
    apply,
    map::{
        answer::{Desired, OutputRef},
        group::{self, Method, Write},
    },
    object::{self, Object},
    resource::Served,
};

/// Observed children, each with the index of its resource.
pub type Children = Vec<(usize, Arc<Object>)>;

/// The parts of a sync or finalize answer other than the children.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommonAnswer {
    /// Status; `None` for null or absent.
    pub status: Option<Map<String, Value>>,
    /// Seconds until the next run.
    pub again_after: Option<f64>,
    /// Whether the parent may be deleted now.
    pub finalized: bool,
}

/// Parses the parts of an answer that both kinds of controllers have.
///
/// # Errors
///
/// A text for the user.
pub fn common_answer(answer: &Value) -> Result<CommonAnswer, String> {
    let Some(fields) = answer.as_object() else { return Err("the answer is not a JSON object".into()) };
    let status = match fields.get("status") {
        None | Some(Value::Null) => None,
        Some(Value::Object(status)) => Some(status.clone()),
        Some(_) => return Err("status must be an object".into()),
    };
    let finalized = match fields.get("finalized") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(finalized)) => *finalized,
        Some(_) => return Err("finalized must be true or false".into()),
    };
    let again_after = crate::map::answer::again_after(answer).map_err(|invalid| invalid.0)?;
    Ok(CommonAnswer { status, again_after, finalized })
}

/// The objects that an answer requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredObjects {
    /// Objects that a rule declares and that the parent may own.
    pub desired: Vec<Desired>,
    /// The other objects, without the fields that hooks must not set.
    pub undeclared_objects: Vec<Value>,
}

impl DesiredObjects {
    /// Returns all bodies.
    pub fn bodies(&self) -> impl Iterator<Item = &Value> {
        self.desired.iter().map(|one| &one.body).chain(&self.undeclared_objects)
    }

    /// Returns all bodies for changes.
    pub fn bodies_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.desired.iter_mut().map(|one| &mut one.body).chain(&mut self.undeclared_objects)
    }
}

/// What an answer is validated against.
#[derive(Clone, Copy, Debug)]
pub struct AnswerContext<'a> {
    /// `children` or `attachments`.
    pub field: &'static str,
    /// The parent of the objects.
    pub parent: &'a Value,
    /// The declared resources.
    pub declared: &'a [Served],
    /// Whether objects are accepted that the controller would not see again (MC-149).
    pub undeclared: bool,
}

/// Parses a list of desired objects. An absent list is empty, and everything is deleted, as in the original.
/// An object that the controller would not see again is rejected unless allowed (MC-149).
///
/// # Errors
///
/// A text for the user.
pub fn wanted(context: AnswerContext<'_>, answer: &Value) -> Result<DesiredObjects, String> {
    let field = context.field;
    let list = match answer.get(field) {
        None | Some(Value::Null) => &[][..],
        Some(Value::Array(list)) => list,
        Some(_) => return Err(format!("{field} must be a list")),
    };
    let mut seen = HashSet::new();
    let mut all = DesiredObjects::default();
    for (index, item) in list.iter().enumerate() {
        if item.is_null() {
            continue;
        }
        let is_new = match one(item, context.parent, context.declared) {
            Ok(desired) => {
                let is_new = seen.insert(Ok(desired.place.clone()));
                all.desired.push(desired);
                is_new
            }
            Err(Fault::Undeclared(_)) if context.undeclared => {
                let facts = [
                    object::api_version(item),
                    object::kind(item),
                    object::namespace(item),
                    object::name(item),
                ];
                all.undeclared_objects.push(apply::sanitized(item.clone()));
                seen.insert(Err(facts))
            }
            Err(Fault::Undeclared(why) | Fault::Wrong(why)) => {
                return Err(format!("{field}[{index}]: {why}"));
            }
        };
        if !is_new {
            return Err(format!(
                "{field}[{index}]: {} {} is there twice",
                object::kind(item),
                object::name(item)
            ));
        }
    }
    Ok(all)
}

/// What is wrong with a desired object.
enum Fault {
    /// It is invalid.
    Wrong(String),
    /// It could be created, but the controller would not see it again.
    Undeclared(String),
}

fn one(item: &Value, parent: &Value, declared: &[Served]) -> Result<Desired, Fault> {
    let (kind, name) = (object::kind(item), object::name(item));
    if kind.is_empty() || object::api_version(item).is_empty() || name.is_empty() {
        return Err(Fault::Wrong("apiVersion, kind and metadata.name are required".into()));
    }
    let place = object::namespace(item);
    if !object::is_segment(name) || !(place.is_empty() || object::is_segment(place)) {
        return Err(Fault::Wrong(format!("metadata: {:?} can't be a name", object::display(place, name))));
    }
    if !object::is_api_version(object::api_version(item)) {
        return Err(Fault::Wrong(format!("{:?} is no apiVersion", object::api_version(item))));
    }
    let (group, _) = object::api_version(item).split_once('/').unwrap_or_default();
    let of_kind = |served: &Served| served.kind == kind && served.gvr.group == group;
    let rule = declared.iter().position(of_kind);
    let undeclared = || Fault::Undeclared(format!("undeclared type {kind}.{}", object::api_version(item)));
    let rule = rule.ok_or_else(undeclared)?;
    let namespaced = declared.get(rule).is_some_and(|served| served.namespaced);
    let (asked, own) = (object::namespace(item), object::namespace(parent));
    let namespace = match (namespaced, asked) {
        (false, _) if !own.is_empty() => {
            return Err(Fault::Undeclared(format!("{kind} is cluster-scoped, the parent has a namespace")));
        }
        (false, _) => String::new(),
        (true, "") if own.is_empty() => return Err(Fault::Wrong("metadata.namespace is required".into())),
        (true, "") => own.to_owned(),
        (true, asked) if !own.is_empty() && asked != own => {
            return Err(Fault::Undeclared(format!("wrong namespace {asked:?}: the parent is in {own:?}")));
        }
        (true, asked) => asked.to_owned(),
    };
    let mut body = apply::sanitized(item.clone());
    if let Some(meta) = object::metadata_mut(&mut body) {
        if namespace.is_empty() {
            meta.remove("namespace");
        } else {
            meta.insert("namespace".into(), namespace.clone().into());
        }
    }
    Ok(Desired { place: OutputRef { rule, namespace, name: name.to_owned() }, body })
}

/// Returns the writes that turn the observed objects into the desired ones (MC-120): deletions first, then
/// the desired objects in their order.
pub fn manage(
    parent: &Value,
    desired: &[Desired],
    observed: &Children,
    method: impl Fn(usize) -> Method,
    server_side: bool,
) -> Vec<Write> {
    let wanted: HashSet<&OutputRef> = desired.iter().map(|one| &one.place).collect();
    let known: HashMap<OutputRef, &Arc<Object>> =
        observed.iter().map(|(rule, object)| (group::place_of(*rule, object), object)).collect();
    let mut writes = group::deletions(observed, |place| !wanted.contains(place));
    for one in desired {
        match known.get(&one.place) {
            Some(member) => {
                let apply_for = server_side.then_some(parent);
                writes.extend(group::change(
                    &one.place,
                    member,
                    &one.body,
                    method(one.place.rule),
                    apply_for,
                ));
            }
            None => {
                let body = if server_side {
                    group::owned(one.body.clone(), parent)
                } else {
                    apply::create(&one.body, parent)
                };
                writes.push(Write::Create { place: one.place.clone(), body });
            }
        }
    }
    writes
}

/// Returns the selector of a parent's children (MC-144).
pub fn composite_selector(parent: &Value, generated: bool) -> Result<LabelSelector, String> {
    if generated {
        let own = json!({"matchLabels": {apis::metacontroller::CONTROLLER_UID_LABEL: object::uid(parent)}});
        return LabelSelector::from_object(&own).map_err(|_| "the parent has no UID".into());
    }
    let missing = ".spec.selector must have either matchLabels, matchExpressions, or both";
    let selector = crate::map::selector::parse(parent).map_err(|why| format!(".spec.selector: {why}"))?;
    if selector.is_everything() { Err(missing.into()) } else { Ok(selector) }
}

/// How a candidate for a child is treated (MC-145).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is a child.
    Ours,
    /// It has no controller and is adopted.
    Adopt,
    /// It is a child that no longer matches, and is released.
    Release,
    /// It does not concern the parent.
    Ignore,
}

/// MC-145.
pub fn claim(parent: &Value, selector: &LabelSelector, candidate: &Value) -> Claim {
    let matches = selector.matches_labels(object::labels(candidate));
    let leaving = object::is_terminating(parent);
    match object::controller_uid(candidate) {
        uid if uid == object::uid(parent) && !uid.is_empty() => match (matches, leaving) {
            (true, _) => Claim::Ours,
            (false, false) => Claim::Release,
            (false, true) => Claim::Ignore,
        },
        "" if matches && !leaving && !object::is_terminating(candidate) => Claim::Adopt,
        _ => Claim::Ignore,
    }
}

/// Returns the object without the owner reference to `uid`.
pub fn released(child: &Value, uid: &str) -> Value {
    let mut child = child.clone();
    if let Some(Value::Array(owners)) =
        object::metadata_mut(&mut child).and_then(|meta| meta.get_mut("ownerReferences"))
    {
        owners.retain(|owner| owner.get("uid").and_then(Value::as_str) != Some(uid));
    }
    child
}

/// Checks that the parent will see all desired children again (MC-146).
///
/// # Errors
///
/// A text that names the first child that does not match.
pub fn check_labels(wanted: &DesiredObjects, selector: &LabelSelector) -> Result<(), String> {
    match wanted.bodies().find(|body| !selector.matches_labels(object::labels(body))) {
        Some(body) => Err(format!(
            "labels on desired child {} {} don't match parent selector",
            object::kind(body),
            object::display(object::namespace(body), object::name(body)),
        )),
        None => Ok(()),
    }
}

/// Returns whether children are managed (MC §3.4, step 9): the parent is not being deleted, or only our
/// finalizer holds it.
pub fn may_manage(parent: &Value, finalizer: &str, finalizing: bool) -> bool {
    if !object::is_terminating(parent) {
        return true;
    }
    let collected = ["foregroundDeletion", "orphan"].iter().any(|name| object::has_finalizer(parent, name));
    finalizing && object::has_finalizer(parent, finalizer) && !collected
}

/// Returns the target of a decorator after its hook's answer. The first flag tells whether labels or
/// annotations changed, the second whether the status did (MC-172).
pub fn decorated(target: &Value, answer: &Value) -> Result<(Value, bool, bool), String> {
    let mut new = target.clone();
    let mut changed = false;
    for field in ["labels", "annotations"] {
        let wanted = match answer.get(field) {
            None | Some(Value::Null) => continue,
            Some(Value::Object(wanted)) => wanted,
            Some(_) => return Err(format!("{field} must be a map")),
        };
        if !wanted.values().all(|value| value.is_string() || value.is_null()) {
            return Err(format!("{field} must be a map of strings and nulls"));
        }
        let present =
            target.pointer("/metadata").and_then(|meta| meta.get(field)).cloned().unwrap_or(Value::Null);
        let moves = |(key, value): (&String, &Value)| present.get(key).unwrap_or(&Value::Null) != value;
        if !wanted.iter().any(moves) {
            continue;
        }
        changed = true;
        let Some(map) = object::metadata_map(&mut new, field) else { continue };
        for (key, value) in wanted {
            if value.is_null() {
                map.remove(key);
            } else {
                map.insert(key.clone(), value.clone());
            }
        }
    }
    let status = common_answer(answer)?.status.map(Value::Object);
    let moved = status
        .as_ref()
        .is_some_and(|status| !apply::loosely_equal(status, target.get("status").unwrap_or(&Value::Null)));
    if let (Some(status), true, Some(map)) = (status, moved, new.as_object_mut()) {
        map.insert("status".into(), status);
    }
    Ok((new, changed, moved))
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::rest::Gvr;

    fn maps() -> Vec<Served> {
        vec![Served {
            gvr: Gvr::new("", "v1", "configmaps"),
            kind: "ConfigMap".into(),
            namespaced: true,
            has_status: false,
        }]
    }

    fn child(uid: &str, app: &str, leaving: bool) -> Value {
        let mut child = json!({"metadata": {"name": "c", "labels": {"app": app}}});
        if !uid.is_empty() {
            child["metadata"]["ownerReferences"] = json!([{"uid": uid, "controller": true}]);
        }
        if leaving {
            child["metadata"]["deletionTimestamp"] = json!("now");
        }
        child
    }

    /// MC-145.
    #[test]
    fn mc_145_claims() {
        let selector = LabelSelector::parse("app=x").unwrap();
        let parent = |leaving: bool| {
            let mut parent = child("", "", leaving);
            parent["metadata"]["uid"] = json!("P");
            parent
        };
        let cases = [
            ("P", "x", false, false, Claim::Ours),
            ("P", "x", false, true, Claim::Ours),
            ("P", "y", false, false, Claim::Release),
            ("P", "y", false, true, Claim::Ignore),
            ("", "x", false, false, Claim::Adopt),
            ("", "x", true, false, Claim::Ignore),
            ("", "x", false, true, Claim::Ignore),
            ("", "y", false, false, Claim::Ignore),
            ("Q", "x", false, false, Claim::Ignore),
        ];
        for (owner, app, child_leaves, parent_leaves, expected) in cases {
            let found = claim(&parent(parent_leaves), &selector, &child(owner, app, child_leaves));
            assert_eq!(found, expected, "{owner} {app} {child_leaves} {parent_leaves}");
        }
    }

    /// MC-144.
    #[test]
    fn mc_144_an_empty_selector_is_an_error() {
        for spec in [
            json!({}),
            json!({"selector": null}),
            json!({"selector": {}}),
            json!({"selector": {"matchLabels": {}}}),
        ] {
            let parent = json!({"metadata": {"uid": "u"}, "spec": spec});
            let error = composite_selector(&parent, false).unwrap_err();
            assert_eq!(error, ".spec.selector must have either matchLabels, matchExpressions, or both");
            let own = composite_selector(&parent, true).unwrap();
            assert!(own.matches_labels(&json!({"controller-uid": "u"})) && !own.matches_labels(&json!({})));
        }
    }

    /// MC-149: an object that would not be seen again is rejected unless allowed; an absent list means that
    /// nothing is desired.
    #[test]
    fn mc_149_wanted_children() {
        let parent = json!({"metadata": {"namespace": "n", "uid": "p"}});
        let declared = maps();
        let context = |undeclared| AnswerContext {
            field: "children",
            parent: &parent,
            declared: &declared,
            undeclared,
        };
        let all = |list: Value, allowed: bool| wanted(context(allowed), &json!({"children": list}));
        let read = |item: Value| all(json!([item]), false);
        let good = read(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})).unwrap();
        assert_eq!(good.desired[0].place.namespace, "n");
        let undeclared_objects = [
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "m"}}),
        ];
        let wrong = [
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "../secrets/a"}}),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "namespace": ".."}}),
            json!({"apiVersion": "v1/namespaces/m", "kind": "Secret", "metadata": {"name": "a"}}),
            json!("x"),
        ];
        for bad in undeclared_objects.iter().chain(&wrong) {
            assert!(read(bad.clone()).is_err(), "{bad}");
        }
        for bad in wrong {
            assert!(all(json!([bad]), true).is_err(), "{bad}");
        }
        let allowed = all(json!(undeclared_objects), true).unwrap();
        assert_eq!((allowed.desired.len(), &allowed.undeclared_objects[..]), (0, &undeclared_objects[..]));
        let twice = all(json!([undeclared_objects[0], undeclared_objects[0]]), true).unwrap_err();
        assert_eq!(twice, "children[1]: Secret a is there twice");
        assert_eq!(wanted(context(false), &json!({})), Ok(DesiredObjects::default()));
    }

    /// MC-172: strings are set, nulls remove, other keys stay.
    #[test]
    fn mc_172_labels_annotations_and_status() {
        let target = json!({"metadata": {"name": "t", "labels": {"a": "1"}, "annotations": {"x": "1", "y": "2"}}, "status": {"n": 1}});
        let (new, changed, moved) =
            decorated(&target, &json!({"labels": {"b": "2"}, "annotations": {"x": null}, "status": null}))
                .unwrap();
        assert_eq!(
            (&new["metadata"]["labels"], &new["metadata"]["annotations"]),
            (&json!({"a": "1", "b": "2"}), &json!({"y": "2"}))
        );
        assert_eq!((changed, moved, &new["status"]), (true, false, &json!({"n": 1})));
        let same = decorated(
            &target,
            &json!({"labels": {"a": "1"}, "annotations": {"z": null}, "status": {"n": 1.0}}),
        )
        .unwrap();
        assert_eq!((same.1, same.2), (false, false));
        assert!(decorated(&target, &json!({"labels": {"a": 1}})).is_err());
        assert!(decorated(&target, &json!({"status": {"n": 2}})).unwrap().2);
    }

    /// MC §3.4, step 9.
    #[test]
    fn mc_074_who_may_manage() {
        let parent = |finalizers: Value, leaving: bool| {
            let mut parent = json!({"metadata": {"finalizers": finalizers}});
            if leaving {
                parent["metadata"]["deletionTimestamp"] = json!("now");
            }
            parent
        };
        assert!(may_manage(&parent(json!([]), false), "f", false));
        assert!(may_manage(&parent(json!(["f"]), true), "f", true));
        assert!(!may_manage(&parent(json!(["f"]), true), "f", false));
        assert!(!may_manage(&parent(json!([]), true), "f", true));
        assert!(!may_manage(&parent(json!(["f", "foregroundDeletion"]), true), "f", true));
    }
}
