use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const PARENT: &str =
    r#"{"apiVersion":"example.com/v1","kind":"Foo","metadata":{"name":"p","namespace":"n","uid":"P"}}"#;

#[derive(Default)]
struct World {
    objects: BTreeMap<OutputRef, Arc<Object>>,
    live: Vec<&'static str>,
    controllers: Vec<&'static str>,
}

impl ClusterView for World {
    fn at(&self, place: &OutputRef) -> Option<Arc<Object>> {
        self.objects.get(place).cloned()
    }
    fn is_live(&self, key: &MapKey) -> bool {
        self.live.contains(&key.as_str())
    }
    fn controller_exists(&self, name: &str) -> bool {
        self.controllers.contains(&name)
    }
}

fn place(name: &str) -> OutputRef {
    OutputRef { rule: 0, namespace: "n".into(), name: name.into() }
}

fn body(name: &str, data: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "n"}, "data": {"v": data}})
}

fn wanted(name: &str, data: &str) -> Desired {
    Desired { place: place(name), body: body(name, data) }
}

fn parent() -> Value {
    serde_json::from_str(PARENT).unwrap()
}

fn input() -> Value {
    json!({"metadata": {"name": "i", "namespace": "n", "uid": "I"}})
}

fn key() -> MapKey {
    MapKey::new("configmaps", "n", "i")
}

fn with<T>(f: impl FnOnce(MapContext<'_>) -> T) -> T {
    f(MapContext { controller: "mc1", parent: &parent(), key: &key(), input: &input() })
}

/// An object as the server stores it after a write.
fn stored(body: &Value, version: u64) -> Arc<Object> {
    let mut body = body.clone();
    body["metadata"]["resourceVersion"] = version.to_string().into();
    if body["metadata"].get("uid").is_none() {
        body["metadata"]["uid"] = format!("uid-{}-{version}", object::name(&body)).into();
    }
    Arc::new(Object::new(body))
}

/// Applies writes as a server does; a recreation takes two passes.
fn carry_out(world: &mut World, writes: &[Write], version: &mut u64) {
    for write in writes {
        *version += 1;
        match write {
            Write::Delete { place, uid } => {
                assert_eq!(world.objects[place].uid(), uid);
                world.objects.remove(place);
            }
            Write::Create { place, body } => {
                assert!(!world.objects.contains_key(place));
                world.objects.insert(place.clone(), stored(body, *version));
            }
            Write::Update { place, body } | Write::Adopt { place, body } => {
                assert_eq!(object::resource_version(body), world.objects[place].version());
                world.objects.insert(place.clone(), stored(body, *version));
            }
            Write::Retag { place, patch } => {
                let mut value = world.objects[place].value.clone();
                for (name, text) in patch["metadata"]["annotations"].as_object().unwrap() {
                    object::metadata_map(&mut value, "annotations")
                        .unwrap()
                        .insert(name.clone(), text.clone());
                }
                world.objects.insert(place.clone(), stored(&value, *version));
            }
            Write::Apply { .. } | Write::Conflict { .. } => {}
        }
    }
}

fn group(world: &World) -> Vec<(usize, Arc<Object>)> {
    let tag = |o: &Object, name: &str| object::annotation(&o.value, name).unwrap_or_default().to_owned();
    let ours = world.objects.values().filter(|o| {
        object::controller_uid(&o.value) == "P"
            && tag(o, MAP_CONTROLLER_ANNOTATION) == "mc1"
            && tag(o, MAP_KEY_ANNOTATION) == key().as_str()
    });
    ours.map(|object| (0, object.clone())).collect()
}

fn pass(world: &World, desired: &[Desired], method: Method) -> Vec<Write> {
    with(|map_context| plan(map_context, desired, &group(world), |_| method, false, world))
}

fn existing(world: &mut World, name: &str, owner: Option<&str>, annotations: Value) {
    let mut value = body(name, "old");
    value["metadata"]["annotations"] = annotations;
    if let Some(owner) = owner {
        value["metadata"]["ownerReferences"] =
            json!([{"kind": "Foo", "name": "x", "uid": owner, "controller": true}]);
    }
    world.objects.insert(place(name), stored(&value, 1));
}

/// MC-022, MC-024, MC-054: tags and owner of a created output.
#[test]
fn mc_024_created_outputs_are_tagged_and_controlled() {
    let writes = pass(&World::default(), &[wanted("a", "1")], Method::OnDelete);
    let [Write::Create { body, .. }] = &writes[..] else { panic!("{writes:?}") };
    assert_eq!(object::annotation(body, MAP_KEY_ANNOTATION), Some("configmaps/n/i"));
    assert_eq!(object::annotation(body, MAP_CONTROLLER_ANNOTATION), Some("mc1"));
    assert_eq!(object::annotation(body, MAP_INPUT_UID_ANNOTATION), Some("I"));
    assert_eq!(object::annotation(body, MAP_DEPTH_ANNOTATION), None);
    assert_eq!(object::controller(body), Some(&object::controller_reference(&parent())));
    let last = apply::last_applied(body);
    assert_eq!(
        object::annotation(&last, MAP_CONTROLLER_ANNOTATION),
        Some("mc1"),
        "tags are part of what is applied"
    );
}

/// MC-055: an existing object of the same name is handled according to its owner.
#[test]
fn mc_055_what_is_in_the_way() {
    let tags =
        |controller: &str, key: &str| json!({MAP_CONTROLLER_ANNOTATION: controller, MAP_KEY_ANNOTATION: key});
    let mine = "configmaps/n/i";
    let last =
        json!({"apis": 1, "metadata": {"annotations": {MAP_CONTROLLER_ANNOTATION: "mc1"}}}).to_string();
    let cases = [
        ("a lost map-controller is repaired", Some("P"), json!({MAP_KEY_ANNOTATION: mine}), "retag"),
        ("a lost map-key is repaired", Some("P"), json!({MAP_CONTROLLER_ANNOTATION: "mc1"}), "retag"),
        (
            "both lost, but remembered",
            Some("P"),
            json!({apis::metacontroller::LAST_APPLIED_ANNOTATION: last}),
            "retag",
        ),
        ("a child of somebody else on the same parent", Some("P"), json!({}), "conflict"),
        ("of another live key", Some("P"), tags("mc1", "configmaps/n/live"), "conflict"),
        ("of a detached key", Some("P"), tags("mc1", "configmaps/n/gone"), "retag"),
        ("of another MapController", Some("P"), tags("mc2", mine), "conflict"),
        ("of a MapController that is no more", Some("P"), tags("mc0", mine), "retag"),
        ("an orphan with our tags", None, tags("mc1", mine), "adopt"),
        ("an orphan of another key", None, tags("mc1", "configmaps/n/gone"), "conflict"),
        ("an untagged orphan", None, json!({}), "conflict"),
        ("controlled by another", Some("Q"), tags("mc1", mine), "conflict"),
    ];
    for (why, owner, annotations, expected) in cases {
        let mut world =
            World { live: vec!["configmaps/n/live"], controllers: vec!["mc1", "mc2"], ..World::default() };
        existing(&mut world, "a", owner, annotations);
        let writes = pass(&world, &[wanted("a", "1")], Method::InPlace);
        let did = match &writes[..] {
            [Write::Retag { .. }] => "retag",
            [Write::Adopt { .. }] => "adopt",
            [Write::Conflict { .. }] => "conflict",
            other => panic!("{why}: {other:?}"),
        };
        assert_eq!(did, expected, "{why}");
    }
}

/// MC-021, MC-024: the UID of the input is the one at creation.
#[test]
fn mc_021_the_input_uid_is_never_rewritten() {
    let mut world = World::default();
    existing(
        &mut world,
        "a",
        Some("P"),
        json!({MAP_CONTROLLER_ANNOTATION: "mc1", MAP_KEY_ANNOTATION: "configmaps/n/i", MAP_INPUT_UID_ANNOTATION: "before"}),
    );
    let writes = pass(&world, &[wanted("a", "new")], Method::InPlace);
    let [Write::Update { body, .. }] = &writes[..] else { panic!("{writes:?}") };
    assert_eq!(object::annotation(body, MAP_INPUT_UID_ANNOTATION), Some("before"));
}

/// MC-052: under OnDelete an answer with a minimal object leaves an output unchanged. MC-057: an output that
/// is being deleted is left alone.
#[test]
fn mc_052_on_delete_writes_nothing_to_what_exists() {
    let mut world = World::default();
    let mut version = 1;
    let first = pass(&world, &[wanted("a", "1"), wanted("b", "1")], Method::OnDelete);
    carry_out(&mut world, &first, &mut version);
    assert_eq!(pass(&world, &[wanted("a", "2"), wanted("b", "1")], Method::OnDelete), vec![]);
    let mut leaving = world.objects[&place("a")].value.clone();
    leaving["metadata"]["deletionTimestamp"] = json!("now");
    world.objects.insert(place("a"), stored(&leaving, 9));
    assert_eq!(pass(&world, &[wanted("a", "2"), wanted("b", "1")], Method::InPlace), vec![]);
    let gone = pass(&world, &[wanted("b", "1")], Method::InPlace);
    assert_eq!(gone, vec![], "a deletion under way is not asked for again");
}

/// MC-016: outputs of outputs record their depth.
#[test]
fn mc_016_depth_is_written_from_two_on() {
    let input = json!({"metadata": {"name": "i", "uid": "I", "annotations": {MAP_KEY_ANNOTATION: "x/y/z"}}});
    let (parent, key) = (parent(), key());
    let map_context = MapContext { controller: "mc1", parent: &parent, key: &key, input: &input };
    let tagged = map_context.tagged(&body("a", "1"), None);
    assert_eq!(object::annotation(&tagged, MAP_DEPTH_ANNOTATION), Some("2"));
}

fn wishes() -> impl Strategy<Value = Vec<Desired>> {
    prop::collection::btree_map("[a-d]", "[12]", 0..4)
        .prop_map(|map| map.iter().map(|(name, data)| wanted(name, data)).collect())
}

fn method() -> impl Strategy<Value = Method> {
    prop_oneof![Just(Method::OnDelete), Just(Method::Recreate), Just(Method::InPlace)]
}

proptest! {
    /// MC-050, MC-059: after any history of answers, at most two passes bring exactly the desired outputs,
    /// with nothing left to write, and objects of other owners are never changed.
    #[test]
    fn mc_050_plans_settle(history in prop::collection::vec((wishes(), method()), 1..5), foreign in "[a-d]") {
        let mut world = World::default();
        existing(&mut world, &foreign, Some("Q"), json!({}));
        let theirs = world.objects[&place(&foreign)].clone();
        let mut version = 1;
        for (desired, method) in &history {
            for _ in 0..2 {
                let writes = pass(&world, desired, *method);
                carry_out(&mut world, &writes, &mut version);
            }
            let left = pass(&world, desired, *method);
            prop_assert!(left.iter().all(|write| matches!(write, Write::Conflict { .. })), "{:?}", left);
            let names: Vec<_> = group(&world).iter().map(|(_, o)| o.key().name.to_string()).collect();
            let expected: Vec<_> = desired.iter().map(|d| d.place.name.clone()).filter(|name| *name != foreign).collect();
            prop_assert_eq!(names, expected);
            if *method != Method::OnDelete {
                for one in desired.iter().filter(|d| d.place.name != foreign) {
                    prop_assert_eq!(&world.objects[&one.place].value["data"], &one.body["data"]);
                }
            }
            prop_assert_eq!(&world.objects[&place(&foreign)], &theirs);
        }
    }
}
