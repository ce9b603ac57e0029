use super::*;
use proptest::prelude::*;

fn maps() -> GroupResource {
    GroupResource::new("", "configmaps")
}

fn jobs() -> GroupResource {
    GroupResource::new("batch", "jobs")
}

fn spec(of: GroupResource, remove: &[&str]) -> Spec {
    Spec { of, remove: remove.iter().map(|text| (*text).to_owned()).collect() }
}

fn paths(texts: &[&str]) -> Instructions {
    texts.iter().map(|text| Path::parse(text).expect(text)).collect()
}

fn names(affected: &Affected) -> Vec<&str> {
    affected.iter().map(String::as_str).collect()
}

#[test]
fn ks_115_status_texts() {
    let bad = spec(
        maps(),
        &["$.data.other", "$", "$.data[", "$.metadata.name", "$.spec.template.spec.containers[0]"],
    );
    let good = spec(maps(), &["$.data.secret"]);
    let alone = BTreeMap::from([("strip-b", &bad)]);
    assert_eq!(
        verdict(&bad, &alone),
        Verdict {
            errors: vec![
                "Invalid spec.remove[1]: it identifies the whole object".into(),
                r"Error in spec.remove[2]: syntax error at 7: expected open quote, got '\x00'".into(),
                "Invalid spec.remove[3]: it removes what identifies the object".into(),
                "Error in spec.remove[4]: syntax error at 32: expected open quote, got '0'".into(),
            ],
            warnings: vec![],
        }
    );
    let both = BTreeMap::from([("strip-b", &bad), ("strip-a", &good)]);
    assert_eq!(
        verdict(&good, &both).warnings,
        ["multiple CustomTransform objects specify the same GroupResource; their names are strip-a, strip-b"]
    );
    assert_eq!(verdict(&good, &BTreeMap::from([("strip-a", &good)])), Verdict::default());
}

/// KS-104, KS-108, KS-117: the valid paths of all CustomTransforms of a resource apply; the others are
/// skipped.
#[test]
fn ks_117_several_transforms_unite() {
    let (a, b) = (spec(maps(), &["$.data.a", "$.data["]), spec(maps(), &["$", "$.kind", "$.data.b"]));
    let mut cache = Transforms::default();
    let (instructions, affected) = cache.changes_for(&maps(), "one", || [("a", &a), ("b", &b)]);
    assert_eq!(*instructions, paths(&["$.data.a", "$.data.b"]));
    assert!(affected.is_empty());
}

#[test]
fn ks_112_answers_are_cached_and_users_remembered() {
    let a = spec(maps(), &["$.data.a"]);
    let mut cache = Transforms::default();
    let (none, _) = cache.changes_for(&jobs(), "one", Vec::new);
    assert!(none.is_empty(), "no CustomTransform is an answer, too");
    let (first, _) = cache.changes_for(&maps(), "one", || [("a", &a)]);
    let (second, _) = cache.changes_for(&maps(), "two", || -> Vec<(&str, &Spec)> { panic!("it is known") });
    assert!(Arc::ptr_eq(&first, &second));
    assert_eq!(names(&cache.note("a", Some(&spec(maps(), &["$.x"])))), ["one", "two"]);
    assert_eq!(names(&cache.note("new", Some(&spec(jobs(), &["$.x"])))), ["one"]);
}

/// KS-112: the first reader notices that a CustomTransform moved to another resource.
#[test]
fn ks_112_a_move_invalidates_where_it_came_from() {
    let (before, after) = (spec(maps(), &["$.a"]), spec(jobs(), &["$.a"]));
    let mut cache = Transforms::default();
    cache.changes_for(&maps(), "one", || [("t", &before)]);
    cache.changes_for(&maps(), "two", || [("t", &before)]);
    let (_, affected) = cache.changes_for(&jobs(), "two", || [("t", &after)]);
    assert_eq!(names(&affected), ["one", "two"], "also the Binding at work: it may have asked before");
    assert!(cache.note("t", Some(&after)).is_empty(), "its own event is no news any more");
    let (left, _) = cache.changes_for(&maps(), "one", Vec::new);
    assert!(left.is_empty());
}

#[test]
fn ks_113_only_what_matters_is_noted() {
    let one = spec(maps(), &["$.a", "$.b"]);
    let cases = [
        ("made, of no interest", None, Some(spec(jobs(), &["$.a"])), vec![]),
        ("gone, never of interest", None, None, vec![]),
        ("made", None, Some(one.clone()), vec!["user"]),
        ("unchanged", Some(one.clone()), Some(one.clone()), vec![]),
        ("the same set", Some(one.clone()), Some(spec(maps(), &["$.b", "$.a", "$.a"])), vec![]),
        ("changed", Some(one.clone()), Some(spec(maps(), &["$.a"])), vec!["user"]),
        ("moved away", Some(one.clone()), Some(spec(jobs(), &["$.a", "$.b"])), vec!["user"]),
        ("gone", Some(one), None, vec!["user"]),
    ];
    for (why, before, now, expected) in cases {
        let mut cache = Transforms::default();
        cache.changes_for(&maps(), "user", || before.iter().map(|spec| ("t", spec)));
        assert_eq!(names(&cache.note("t", now.as_ref())), expected, "{why}");
    }
}

/// KS-113: Bindings of the old and of the new resource are enqueued.
#[test]
fn ks_113_a_move_tells_both_sides() {
    let before = spec(maps(), &["$.a"]);
    let mut cache = Transforms::default();
    cache.changes_for(&maps(), "old", || [("t", &before)]);
    cache.changes_for(&jobs(), "new", Vec::new);
    assert_eq!(names(&cache.note("t", Some(&spec(jobs(), &["$.a"])))), ["new", "old"]);
}

/// KS-114: without a user nothing is remembered, so that a later change is not missed.
#[test]
fn ks_114_the_last_user_takes_everything_along() {
    let a = spec(maps(), &["$.a"]);
    let mut cache = Transforms::default();
    cache.changes_for(&maps(), "one", || [("a", &a)]);
    cache.set_binding_group_resources("one", BTreeSet::from([maps()]));
    cache.set_binding_group_resources("one", BTreeSet::from([jobs()]));
    assert!(cache.instructions.is_empty() && cache.specs.is_empty() && cache.contributors.is_empty());
    cache.set_binding_group_resources("one", BTreeSet::new());
    assert!(cache.uses.is_empty() && cache.users.is_empty());
}

const BINDINGS: [&str; 3] = ["b0", "b1", "b2"];
const TRANSFORMS: [&str; 3] = ["t0", "t1", "t2"];

fn resources() -> [GroupResource; 3] {
    [maps(), jobs(), GroupResource::new("apps", "deployments")]
}

#[derive(Clone, Debug)]
enum Act {
    /// A CustomTransform changes in the API server; its event has not arrived yet.
    Change(usize, Option<Spec>),
    /// The event of this CustomTransform arrives.
    Event(usize),
    /// A Binding that lists objects of these resources is processed.
    Work(usize, BTreeSet<usize>),
    /// A Binding asks for one resource, and its processing ends there.
    Ask(usize, usize),
    Delete(usize),
}

fn any_act() -> impl Strategy<Value = Act> {
    let remove = proptest::sample::subsequence(vec!["$.a", "$.b", "$.c.d", "$", "$[", "$.kind"], 0..4);
    let spec = (0..3usize, remove).prop_map(|(of, remove)| spec(resources()[of].clone(), &remove));
    prop_oneof![
        (0..3usize, proptest::option::of(spec)).prop_map(|(name, spec)| Act::Change(name, spec)),
        (0..3usize).prop_map(Act::Event),
        (0..3usize, proptest::collection::btree_set(0..3usize, 0..3)).prop_map(|(b, of)| Act::Work(b, of)),
        (0..3usize, 0..3usize).prop_map(|(binding, of)| Act::Ask(binding, of)),
        (0..3usize).prop_map(Act::Delete),
    ]
}

/// A model without a cache: the specs of the CustomTransforms, and what each Binding last received.
#[derive(Default)]
struct Model {
    api: BTreeMap<&'static str, Spec>,
    pending: BTreeSet<usize>,
    given: BTreeMap<(&'static str, GroupResource), Instructions>,
    queue: BTreeSet<String>,
}

impl Model {
    fn of(&self, of: &GroupResource) -> Vec<(&'static str, &Spec)> {
        self.api.iter().filter(|(_, spec)| spec.of == *of).map(|(name, spec)| (*name, spec)).collect()
    }

    fn right(&self, of: &GroupResource) -> Instructions {
        self.of(of).into_iter().flat_map(|(_, spec)| spec.paths().collect::<Vec<_>>()).collect()
    }

    fn ask(&mut self, cache: &mut Transforms, binding: usize, of: &GroupResource) {
        let name = BINDINGS[binding];
        let (got, affected) = cache.changes_for(of, name, || self.of(of));
        self.queue.extend(affected);
        self.given.insert((name, of.clone()), (*got).clone());
    }

    fn act(&mut self, cache: &mut Transforms, act: Act) {
        match act {
            Act::Change(name, spec) => {
                match spec {
                    Some(spec) => self.api.insert(TRANSFORMS[name], spec),
                    None => self.api.remove(TRANSFORMS[name]),
                };
                self.pending.insert(name);
            }
            Act::Event(name) => {
                if self.pending.remove(&name) {
                    self.queue.extend(cache.note(TRANSFORMS[name], self.api.get(TRANSFORMS[name])));
                }
            }
            Act::Ask(binding, of) => self.ask(cache, binding, &resources()[of]),
            Act::Work(binding, of) => {
                self.queue.remove(BINDINGS[binding]);
                let of: BTreeSet<GroupResource> = of.iter().map(|of| resources()[*of].clone()).collect();
                self.given.retain(|(name, old), _| *name != BINDINGS[binding] || of.contains(old));
                for of in &of {
                    self.ask(cache, binding, of);
                }
                cache.set_binding_group_resources(BINDINGS[binding], of);
            }
            Act::Delete(binding) => {
                self.queue.remove(BINDINGS[binding]);
                self.given.retain(|(name, _), _| *name != BINDINGS[binding]);
                cache.set_binding_group_resources(BINDINGS[binding], BTreeSet::new());
            }
        }
    }
}

fn check(cache: &Transforms) -> Result<(), TestCaseError> {
    for of in cache.instructions.keys() {
        prop_assert!(cache.users.get(of).is_some_and(|users| !users.is_empty()), "{of} is used by nobody");
    }
    for (of, users) in &cache.users {
        for binding in users {
            prop_assert!(cache.uses.get(binding).is_some_and(|uses| uses.contains(of)));
        }
    }
    let contributed: BTreeSet<(GroupResource, String)> = cache
        .contributors
        .iter()
        .flat_map(|(of, names)| names.iter().map(|name| (of.clone(), name.clone())))
        .collect();
    let specs: BTreeSet<(GroupResource, String)> =
        cache.specs.iter().map(|(name, (of, _))| (of.clone(), name.clone())).collect();
    prop_assert_eq!(contributed, specs);
    for (name, (of, texts)) in &cache.specs {
        let row = cache.instructions.get(of);
        prop_assert!(row.is_some(), "{} contributed to nothing", name);
        let spec = Spec { of: of.clone(), remove: texts.iter().cloned().collect() };
        prop_assert!(spec.paths().all(|path| row.is_some_and(|row| row.contains(&path))));
    }
    Ok(())
}

proptest! {
    /// KS-110, KS-111, KS-118: both invariants hold after every call, and once all events have arrived every
    /// Binding has the right instructions or is in the queue.
    #[test]
    fn ks_118_the_cache_agrees_with_no_cache(acts in proptest::collection::vec(any_act(), 0..60)) {
        let (mut cache, mut model) = (Transforms::default(), Model::default());
        for act in acts {
            model.act(&mut cache, act);
            check(&cache)?;
        }
        for name in std::mem::take(&mut model.pending) {
            model.queue.extend(cache.note(TRANSFORMS[name], model.api.get(TRANSFORMS[name])));
            check(&cache)?;
        }
        for ((binding, of), given) in &model.given {
            prop_assert!(
                *given == model.right(of) || model.queue.contains(*binding),
                "{} still has {:?} for {}", binding, given, of
            );
        }
        for (of, row) in &cache.instructions {
            prop_assert_eq!(&**row, &model.right(of));
        }
    }
}
