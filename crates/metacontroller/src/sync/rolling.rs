//! Rolling updates: which child is at which revision of its parent, and which child moves next (MC-150 to
//! MC-156). Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apis::metacontroller::{
    CONTROLLER_UID_LABEL, REVISION_GROUP_LABEL, REVISION_RESOURCE_LABEL, StatusConditionCheck,
};
use machinery::selector::{LabelOp, LabelRequirement, LabelSelector};
use serde_json::{Map, Value, json};
use sha1::{Digest, Sha1};

use super::decide::Children;
use crate::{
    apply,
    map::answer::{Desired, OutputRef},
    object::{self, Object},
    resource::Served,
};

/// How children of one rule are rolled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roll {
    /// Whether the rule is a rolling one.
    pub rolling: bool,
    /// `RollingInPlace`: a child must have observed its generation.
    pub in_place: bool,
    /// The conditions that a child must have before the next one moves.
    pub checks: Vec<StatusConditionCheck>,
}

/// A revision of a parent, and the children at it.
#[derive(Clone, Debug, Default)]
pub struct Revision {
    /// Name of the ControllerRevision.
    pub name: String,
    /// The fields of the parent that determine the revision.
    pub patch: Value,
    /// Children at this revision.
    pub claims: BTreeSet<OutputRef>,
    /// The ControllerRevision on the server.
    pub existing: Option<Arc<Object>>,
}

/// Returns the fields of `parent` at these dotted paths (MC-150).
pub fn patch_of(parent: &Value, paths: &[String]) -> Value {
    let mut patch = json!({});
    for path in paths {
        if let Some(value) = get(parent, path) {
            set(&mut patch, path, Some(value.clone()));
        }
    }
    patch
}

/// Returns `parent` as it was at a revision.
pub fn patched(parent: &Value, patch: &Value, paths: &[String]) -> Value {
    let mut parent = parent.clone();
    for path in paths {
        set(&mut parent, path, get(patch, path).cloned());
    }
    parent
}

fn get<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(object, |value, field| value.get(field))
}

fn set(object: &mut Value, path: &str, value: Option<Value>) {
    let (parents, last) = path.rsplit_once('.').map_or((None, path), |(parents, last)| (Some(parents), last));
    let mut at = object;
    for field in parents.into_iter().flat_map(|parents| parents.split('.')) {
        if !at.is_object() {
            return;
        }
        if at.get(field).is_none() {
            if value.is_none() {
                return;
            }
            at[field] = json!({});
        }
        let Some(next) = at.get_mut(field) else { return };
        at = next;
    }
    let Some(map) = at.as_object_mut() else { return };
    match value {
        Some(value) => drop(map.insert(last.into(), value)),
        None => drop(map.remove(last)),
    }
}

/// Returns the name of a ControllerRevision: `<plural>.<group or core>`, cut to 212 bytes, and the hash of
/// parent and patch (MC-150).
pub fn name_of(parent: &Served, uid: &str, patch: &Value) -> String {
    let group = if parent.gvr.group.is_empty() { "core" } else { &parent.gvr.group };
    let mut name = format!("{}.{group}", parent.gvr.plural);
    name.truncate(212);
    let mut hash = Sha1::new();
    hash.update(uid.as_bytes());
    hash.update(patch.to_string().as_bytes());
    name.push('-');
    for byte in hash.finalize() {
        name.push_str(&format!("{byte:02x}"));
    }
    name
}

/// Returns the selector of a parent's ControllerRevisions: the labels of its children, and that of its kind
/// (MC-150).
pub fn selector(of_children: &LabelSelector, parent: &Served) -> LabelSelector {
    let own = [(REVISION_GROUP_LABEL, &parent.gvr.group), (REVISION_RESOURCE_LABEL, &parent.gvr.plural)];
    let own = own.into_iter().map(|(key, value)| LabelRequirement {
        key: key.to_owned(),
        op: LabelOp::Equals,
        values: std::iter::once(value.clone()).collect(),
    });
    LabelSelector::from_requirements(own.chain(of_children.requirements().iter().cloned()).collect())
}

/// Parses a ControllerRevision.
pub fn read(object: &Arc<Object>, children: &[Served]) -> Revision {
    let mut claims = BTreeSet::new();
    for group in object.value.get("children").and_then(Value::as_array).into_iter().flatten() {
        let text = |field: &str| group.get(field).and_then(Value::as_str).unwrap_or_default();
        let of_kind = |served: &Served| served.kind == text("kind") && served.gvr.group == text("apiGroup");
        let Some(rule) = children.iter().position(of_kind) else { continue };
        let names = group.get("names").and_then(Value::as_array).into_iter().flatten();
        for name in names.filter_map(Value::as_str) {
            let namespace = object.key().namespace.to_string();
            claims.insert(OutputRef { rule, namespace, name: name.to_owned() });
        }
    }
    Revision {
        name: object.key().name.to_string(),
        patch: object.value.get("parentPatch").cloned().unwrap_or_default(),
        claims,
        existing: Some(object.clone()),
    }
}

/// Returns the labels of a new ControllerRevision (MC-150).
pub fn labels(parent: &Value, served: &Served, generated: bool) -> Map<String, Value> {
    let mut labels = if generated {
        Map::from_iter([(CONTROLLER_UID_LABEL.to_owned(), object::uid(parent).into())])
    } else {
        let template = parent.pointer("/spec/template/metadata/labels");
        template.and_then(Value::as_object).cloned().unwrap_or_default()
    };
    labels.insert(REVISION_GROUP_LABEL.into(), served.gvr.group.as_str().into());
    labels.insert(REVISION_RESOURCE_LABEL.into(), served.gvr.plural.as_str().into());
    labels
}

/// Returns the ControllerRevision for the present state of a revision; `labels` are for a new one.
pub fn body(revision: &Revision, parent: &Value, labels: &Map<String, Value>, children: &[Served]) -> Value {
    let mut groups: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for place in &revision.claims {
        if let Some(served) = children.get(place.rule) {
            groups.entry((&served.gvr.group, &served.kind)).or_default().push(&place.name);
        }
    }
    let groups: Vec<_> = groups
        .into_iter()
        .map(|((group, kind), names)| json!({"apiGroup": group, "kind": kind, "names": names}))
        .collect();
    let mut body = revision.existing.as_ref().map_or_else(
        || {
            json!({
                "apiVersion": "metacontroller.k8s.io/v1alpha1",
                "kind": "ControllerRevision",
                "metadata": {"name": revision.name, "namespace": object::namespace(parent), "labels": labels},
            })
        },
        |existing| existing.value.clone(),
    );
    object::set_controller(&mut body, parent);
    body["parentPatch"] = revision.patch.clone();
    body["children"] = groups.into();
    body
}

/// The result of one sync of a rollout.
#[derive(Debug)]
pub struct Step {
    /// The children that are desired now.
    pub desired: Vec<Desired>,
    /// The condition `Updated` (MC-154).
    pub condition: Value,
}

/// Moves at most one child to the latest revision, not counting children that the move would not change, and
/// returns the desired children (MC-152, MC-153, MC-155). `revisions[0]` is the latest; `answers` has the
/// children that the hook requests at each revision. Cost: O(revisions × children).
pub fn step(
    revisions: &mut [Revision],
    answers: &[Vec<Desired>],
    observed: &Children,
    rolls: &[Roll],
    server_side: bool,
    kind: impl Fn(usize) -> String,
) -> Step {
    let settled = |observed: &Value, wanted: &Value| apply::is_settled(observed, wanted, server_side);
    let rolls = |rule: usize| rolls.get(rule).cloned().unwrap_or_default();
    let (Some(wanted), observed) = (answers.first(), by_place(observed)) else {
        return Step { desired: Vec::new(), condition: condition(true, "OnLatestRevision", String::new()) };
    };
    let latest: BTreeMap<&OutputRef, &Value> = wanted
        .iter()
        .filter(|one| rolls(one.place.rule).rolling)
        .map(|one| (&one.place, &one.body))
        .collect();
    tidy(revisions, &latest, &observed, settled);
    let behind = |revisions: &[Revision], place: &OutputRef| {
        revisions.iter().skip(1).position(|revision| revision.claims.contains(place)).map(|index| index + 1)
    };
    let next = wanted.iter().map(|one| &one.place).find(|place| behind(revisions, place).is_some()).cloned();
    let name = revisions.first().map(|revision| revision.name.clone()).unwrap_or_default();
    let condition = match next {
        None => condition(true, "OnLatestRevision", format!("latest ControllerRevision: {name}")),
        Some(place) => match first_unready(revisions, &latest, &observed, &rolls, settled, &kind) {
            Some(why) => condition(false, "RolloutWaiting", why),
            None => {
                for revision in revisions.iter_mut() {
                    revision.claims.remove(&place);
                }
                if let Some(first) = revisions.first_mut() {
                    first.claims.insert(place.clone());
                }
                condition(
                    false,
                    "RolloutProgressing",
                    format!("updating {} {}", kind(place.rule), place.name),
                )
            }
        },
    };
    let desired = wanted.iter().map(|one| {
        let old = behind(revisions, &one.place).and_then(|index| answers.get(index));
        let old = old.and_then(|list| list.iter().find(|old| old.place == one.place));
        old.unwrap_or(one).clone()
    });
    Step { desired: desired.collect(), condition }
}

fn by_place(observed: &Children) -> BTreeMap<OutputRef, &Arc<Object>> {
    observed.iter().map(|(rule, object)| (crate::map::group::place_of(*rule, object), object)).collect()
}

/// MC-152.
fn tidy(
    revisions: &mut [Revision],
    latest: &BTreeMap<&OutputRef, &Value>,
    observed: &BTreeMap<OutputRef, &Arc<Object>>,
    settled: impl Fn(&Value, &Value) -> bool,
) {
    let mut taken: BTreeSet<OutputRef> = BTreeSet::new();
    for revision in revisions.iter_mut() {
        revision.claims.retain(|place| latest.contains_key(place) && taken.insert(place.clone()));
    }
    let settled = |place: &OutputRef, wanted: &Value| {
        observed.get(place).is_some_and(|object| settled(&object.value, wanted))
    };
    for (place, wanted) in latest {
        if !taken.contains(*place) || settled(place, wanted) {
            for revision in revisions.iter_mut() {
                revision.claims.remove(*place);
            }
            if let Some(first) = revisions.first_mut() {
                first.claims.insert((*place).clone());
            }
        }
    }
}

/// Returns why the next child has to wait: the first child at the latest revision that is not as it should be
/// (MC-153).
fn first_unready(
    revisions: &[Revision],
    latest: &BTreeMap<&OutputRef, &Value>,
    observed: &BTreeMap<OutputRef, &Arc<Object>>,
    rolls: &impl Fn(usize) -> Roll,
    settled: impl Fn(&Value, &Value) -> bool,
    kind: &impl Fn(usize) -> String,
) -> Option<String> {
    let claims = revisions.first().map(|revision| &revision.claims)?;
    claims.iter().find_map(|place| {
        let what = format!("{} {}", kind(place.rule), place.name);
        let Some(object) = observed.get(place) else { return Some(format!("missing child {what}")) };
        let wanted = latest.get(place)?;
        if !settled(&object.value, wanted) {
            return Some(format!("child {what} is not updated yet"));
        }
        let roll = rolls(place.rule);
        let seen =
            object.value.pointer("/status/observedGeneration").and_then(Value::as_i64).unwrap_or_default();
        if roll.in_place && seen > 0 && seen < object::generation(&object.value) {
            return Some(format!(
                "child {what} with RollingInPlace update strategy hasn't observed latest spec"
            ));
        }
        roll.checks
            .iter()
            .find_map(|check| fails(check, &object.value))
            .map(|why| format!("child {what} {why}"))
    })
}

fn fails(check: &StatusConditionCheck, child: &Value) -> Option<String> {
    let all = child.pointer("/status/conditions").and_then(Value::as_array);
    let text =
        |condition: &Value, field: &str| condition.get(field).and_then(Value::as_str).map(str::to_owned);
    let found = all.into_iter().flatten().find(|one| text(one, "type").as_deref() == Some(&check.type_));
    let Some(found) = found else { return Some(format!("has no condition {}", check.type_)) };
    for (field, wanted) in [("status", &check.status), ("reason", &check.reason)] {
        let is = text(found, field).unwrap_or_default();
        if let Some(wanted) = wanted.as_ref().filter(|wanted| **wanted != is) {
            return Some(format!("has condition {} with {field} {is:?} instead of {wanted:?}", check.type_));
        }
    }
    None
}

fn condition(done: bool, reason: &str, message: String) -> Value {
    let status = if done { "True" } else { "False" };
    json!({"type": "Updated", "status": status, "reason": reason, "message": message})
}

/// Sets the condition in a status and replaces the one of its type.
pub fn set_condition(status: &mut Map<String, Value>, condition: Value) {
    let list = status.entry("conditions").or_insert_with(|| json!([]));
    if !list.is_array() {
        *list = json!([]);
    }
    if let Some(list) = list.as_array_mut() {
        machinery::conditions::put(list, condition);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use runtime::rest::Gvr;

    fn place(name: &str) -> OutputRef {
        OutputRef { rule: 0, namespace: "n".into(), name: name.into() }
    }

    fn at(name: &str, version: &str) -> Desired {
        Desired {
            place: place(name),
            body: json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "n"}, "v": version}),
        }
    }

    fn answer(names: &[&str], version: &str) -> Vec<Desired> {
        names.iter().map(|name| at(name, version)).collect()
    }

    fn child(name: &str, version: &str, ready: bool) -> (usize, Arc<Object>) {
        let parent = json!({"metadata": {"uid": "p"}});
        let mut value = apply::create(&at(name, version).body, &parent);
        value["status"] =
            json!({"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]});
        (0, Arc::new(Object::new(value)))
    }

    fn revisions(claims: &[&[&str]]) -> Vec<Revision> {
        let named = claims.iter().enumerate().map(|(index, names)| Revision {
            name: format!("r{index}"),
            claims: names.iter().map(|name| place(name)).collect(),
            ..Revision::default()
        });
        named.collect()
    }

    fn rolls() -> Vec<Roll> {
        let check = StatusConditionCheck { type_: "Ready".into(), status: Some("True".into()), reason: None };
        vec![Roll { rolling: true, in_place: false, checks: vec![check] }]
    }

    fn run(revisions: &mut [Revision], answers: &[Vec<Desired>], observed: &Children) -> (String, String) {
        let step = step(revisions, answers, observed, &rolls(), false, |_| "Pod".into());
        let versions = step.desired.iter().map(|one| one.body["v"].as_str().unwrap()).collect();
        (step.condition["reason"].as_str().unwrap().to_owned(), versions)
    }

    const NAMES: [&str; 3] = ["a", "b", "c"];

    /// MC-A-75: one child at a time, each after the previous one is ready; a child that is deleted in between
    /// comes back at its old revision.
    #[test]
    fn mc_153_one_child_at_a_time() {
        let answers = [answer(&NAMES, "2"), answer(&NAMES, "1")];
        let mut all = revisions(&[&[], &NAMES]);
        let old: Children = NAMES.iter().map(|name| child(name, "1", true)).collect();
        assert_eq!(run(&mut all, &answers, &old), ("RolloutProgressing".into(), "211".into()));
        // The first child is deleted in order to be recreated: wait.
        let gone: Children = old[1..].to_vec();
        assert_eq!(run(&mut all, &answers, &gone), ("RolloutWaiting".into(), "211".into()));
        let unready = vec![child("a", "2", false), child("b", "1", true), child("c", "1", true)];
        assert_eq!(run(&mut all, &answers, &unready), ("RolloutWaiting".into(), "211".into()));
        // A child that was not moved is deleted in between: it stays at its revision.
        let lost = vec![child("a", "2", false), child("b", "1", true)];
        assert_eq!(run(&mut all, &answers, &lost), ("RolloutWaiting".into(), "211".into()));
        let ready = vec![child("a", "2", true), child("b", "1", true), child("c", "1", true)];
        assert_eq!(run(&mut all, &answers, &ready), ("RolloutProgressing".into(), "221".into()));
        let two = vec![child("a", "2", true), child("b", "2", true), child("c", "1", true)];
        assert_eq!(run(&mut all, &answers, &two), ("RolloutProgressing".into(), "222".into()));
        let done: Children = NAMES.iter().map(|name| child(name, "2", true)).collect();
        assert_eq!(run(&mut all, &answers, &done), ("OnLatestRevision".into(), "222".into()));
        assert!(all[1].claims.is_empty());
    }

    /// MC-148: children move in the order in which the hook lists them.
    #[test]
    fn mc_148_the_order_is_the_hooks() {
        let answers = [answer(&["c", "a", "b"], "2"), answer(&NAMES, "1")];
        let mut all = revisions(&[&[], &NAMES]);
        for moved in ["c", "a", "b"] {
            let observed: Children = NAMES
                .iter()
                .map(|name| {
                    let version = if all[0].claims.contains(&place(name)) { "2" } else { "1" };
                    child(name, version, true)
                })
                .collect();
            run(&mut all, &answers, &observed);
            assert!(all[0].claims.contains(&place(moved)), "{moved} is next");
            assert_eq!(all[0].claims.len() + all[1].claims.len(), 3);
        }
    }

    /// MC-152: claims of children that are no longer desired are removed, new children are at the latest
    /// revision, and of duplicates the latest counts.
    #[test]
    fn mc_152_claims_are_tidied() {
        let answers = [answer(&["a", "b", "new"], "2"), answer(&["a", "b", "gone"], "1")];
        let mut all = revisions(&[&["a"], &["a", "b", "gone"]]);
        let observed = vec![child("a", "2", true), child("b", "2", true), child("gone", "1", true)];
        assert_eq!(run(&mut all, &answers, &observed).0, "OnLatestRevision");
        assert_eq!((all[0].claims.len(), all[1].claims.len()), (3, 0), "b is as the latest wants it already");
    }

    /// MC-150, MC-A-76.
    #[test]
    fn mc_150_revisions_are_made_of_the_named_fields() {
        let paths = ["spec.template".to_owned(), "spec.none".to_owned()];
        let parent = json!({"metadata": {"name": "p"}, "spec": {"template": {"a": 1}, "replicas": 3}});
        let patch = patch_of(&parent, &paths);
        assert_eq!(patch, json!({"spec": {"template": {"a": 1}}}));
        let newer =
            json!({"metadata": {"name": "p"}, "spec": {"template": {"a": 2}, "none": 1, "replicas": 5}});
        let old = patched(&newer, &patch, &paths);
        assert_eq!(old["spec"], json!({"template": {"a": 1}, "replicas": 5}));
        let served = Served {
            gvr: Gvr::new("", "v1", "foos"),
            kind: "Foo".into(),
            namespaced: true,
            has_status: true,
        };
        let name = name_of(&served, "uid", &json!({}));
        // printf 'uid{}' | sha1sum
        assert_eq!(name, "foos.core-b243ffa3b5aadd4fcd05e8d3c6ed9d0bfff9645e");
    }

    proptest! {
        /// MC-153: in any state, one step moves at most one child that differs from the latest answer, and
        /// exactly one revision claims each rolling child.
        #[test]
        fn mc_153_at_most_one_is_moved(claims in prop::collection::vec(0..3_usize, 3), seen in prop::collection::vec((0..3_u8, any::<bool>()), 3)) {
            let mut all = revisions(&[&[], &[], &[]]);
            for (name, index) in NAMES.iter().zip(&claims) {
                all[*index].claims.insert(place(name));
            }
            let observed: Children = NAMES.iter().zip(&seen).filter(|(_, (v, _))| *v > 0).map(|(name, (v, ready))| child(name, &v.to_string(), *ready)).collect();
            let answers = [answer(&NAMES, "2"), answer(&NAMES, "1"), answer(&NAMES, "0")];
            let before: BTreeSet<OutputRef> = all[0].claims.clone();
            run(&mut all, &answers, &observed);
            let moved = all[0].claims.difference(&before).filter(|p| {
                let shown = observed.iter().find(|(_, o)| *o.key().name == *p.name);
                shown.is_none_or(|(_, o)| o.value["v"] != json!("2"))
            }).count();
            prop_assert!(moved <= 1);
            for name in NAMES {
                prop_assert_eq!(all.iter().filter(|r| r.claims.contains(&place(name))).count(), 1);
            }
        }
    }
}
