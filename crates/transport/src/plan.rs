//! Decides what to write into one mailbox (KS-087, KS-090, KS-091, KS-142, KS-143). Pure. Ignores
//! annotations.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{content::Digest, identity::Identity};

/// Objects of one envelope. Shared, because most envelopes do not change.
pub type Items = Arc<BTreeSet<Arc<Identity>>>;

/// A wrapped object of this Binding as it exists in the ITS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingEnvelope {
    /// Objects inside.
    pub items: Items,
    /// Digest of the spec.
    pub fingerprint: Digest,
    /// True if the labels are as they should be.
    pub labelled: bool,
    /// The envelope is being deleted; its name cannot be used until it is gone.
    pub deleting: bool,
}

/// A wrapped object as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredEnvelope {
    /// Objects inside.
    pub items: Items,
    /// Digest of the spec.
    pub fingerprint: Digest,
}

/// One write, with the name of the wrapped object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Create the envelope.
    Create(String),
    /// Replace spec, labels and annotations.
    Update(String),
    /// Add the objects that the envelope should have, and keep those that other envelopes will receive. When
    /// two envelopes exchange objects, neither may lose its own before the other has them.
    Extend(String),
    /// Delete the envelope.
    Delete(String),
}

impl Step {
    /// Returns the name of the wrapped object.
    pub fn name(&self) -> &str {
        let (Self::Create(name) | Self::Update(name) | Self::Extend(name) | Self::Delete(name)) = self;
        name
    }
}

/// All writes for one mailbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps of one phase may run concurrently; a phase starts when the previous one has succeeded. So an
    /// object that moves is in some envelope at every moment (KS-142).
    pub phases: [Vec<Step>; 3],
}

impl Plan {
    /// Returns true if there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.phases.iter().all(Vec::is_empty)
    }

    /// Removes all steps but deletions. Returns true if there were any others.
    pub fn only_deletions(&mut self) -> bool {
        let [adds, releases, _] = &mut self.phases;
        let had = !adds.is_empty() || !releases.is_empty();
        adds.clear();
        releases.clear();
        had
    }

    /// Keeps live objects in the WEC when the envelopes `taken`, and those that are being deleted, cannot be
    /// written: an envelope that holds an object which should move into one of them is neither reduced nor
    /// deleted (KS-098, KS-142).
    pub fn hold_back(
        &mut self,
        taken: &BTreeSet<String>,
        existing: &BTreeMap<String, ExistingEnvelope>,
        wanted: &BTreeMap<String, DesiredEnvelope>,
    ) {
        let leaving = existing.iter().filter(|(_, have)| have.deleting).map(|(name, _)| name);
        let blocked = taken.iter().chain(leaving).filter_map(|name| wanted.get(name));
        let stranded: BTreeSet<&Arc<Identity>> = blocked.flat_map(|want| want.items.iter()).collect();
        let loses = |name: &String| {
            let keeps = |item: &Arc<Identity>| wanted.get(name).is_some_and(|want| want.items.contains(item));
            existing
                .get(name)
                .is_some_and(|have| have.items.iter().any(|item| stranded.contains(item) && !keeps(item)))
        };
        for phase in &mut self.phases {
            phase.retain(|step| match step {
                Step::Create(name) | Step::Extend(name) => !taken.contains(name),
                Step::Update(name) => !taken.contains(name) && !loses(name),
                Step::Delete(name) => !loses(name),
            });
        }
    }
}

/// Compares the existing envelopes with the desired ones.
pub fn plan(
    existing: &BTreeMap<String, ExistingEnvelope>,
    wanted: &BTreeMap<String, DesiredEnvelope>,
) -> Plan {
    let mut plan = Plan::default();
    let [adds, releases, deletes] = &mut plan.phases;
    for (name, want) in wanted {
        match existing.get(name) {
            None => adds.push(Step::Create(name.clone())),
            Some(have) if have.deleting => {}
            Some(have) if have.fingerprint != want.fingerprint || !have.labelled => {
                // An object that leaves all envelopes needs no order; an object that moves must first be in
                // its new envelope.
                let moves = |lost: &Arc<Identity>| wanted.values().any(|other| other.items.contains(lost));
                let gives = have.items.difference(&want.items).any(moves);
                let elsewhere = |item: &Arc<Identity>| {
                    existing.iter().any(|(other, have)| other != name && have.items.contains(item))
                };
                if gives && want.items.difference(&have.items).any(elsewhere) {
                    adds.push(Step::Extend(name.clone()));
                }
                let phase = if gives { &mut *releases } else { &mut *adds };
                phase.push(Step::Update(name.clone()));
            }
            Some(_) => {}
        }
    }
    deletes.extend(
        existing
            .iter()
            .filter(|(name, have)| !have.deleting && !wanted.contains_key(*name))
            .map(|(name, _)| Step::Delete(name.clone())),
    );
    plan
}

/// What is wrong with a plan for one mailbox; empty if nothing is. The steps of a phase may be done in any order, and the
/// plan may end after any of them.
///
/// * An object that is wanted and is in an envelope is in an envelope after every step. An envelope that is being deleted
///   does not count: nothing can keep its objects.
/// * No envelope is deleted that is wanted, and none is written that is not.
///
/// Runs in tests, and in debug builds for every plan before it is carried out. Cost: the objects of the mailbox.
pub fn check_plan(
    plan: &Plan,
    existing: &BTreeMap<String, ExistingEnvelope>,
    wanted: &BTreeMap<String, DesiredEnvelope>,
) -> Vec<String> {
    let mut problems = Vec::new();
    let all: BTreeSet<&Arc<Identity>> = wanted.values().flat_map(|want| want.items.iter()).collect();
    let mut contents: BTreeMap<&str, BTreeSet<&Arc<Identity>>> = existing
        .iter()
        .filter(|(_, have)| !have.deleting)
        .map(|(name, have)| (name.as_str(), have.items.iter().filter(|item| all.contains(item)).collect()))
        .collect();
    for phase in &plan.phases {
        let before = contents.clone();
        for step in phase {
            let name = step.name();
            match (step, wanted.get(name)) {
                (Step::Delete(_), None) => drop(contents.remove(name)),
                (Step::Delete(_), Some(_)) => problems.push(format!("{step:?}: it is wanted")),
                (_, None) => problems.push(format!("{step:?}: it is not wanted")),
                (Step::Create(_) | Step::Update(_), Some(want)) => {
                    contents.insert(name, want.items.iter().collect());
                }
                (Step::Extend(_), Some(want)) => contents.entry(name).or_default().extend(want.items.iter()),
            }
        }
        // The order within a phase is open: an object must stay in one of the envelopes that had it before.
        let stays =
            |name: &str, item: &Arc<Identity>| contents.get(name).is_some_and(|now| now.contains(item));
        let held: BTreeSet<&Arc<Identity>> = before.values().flatten().copied().collect();
        let mut kept = BTreeSet::new();
        for (name, items) in &before {
            kept.extend(items.iter().copied().filter(|item| stays(name, item)));
        }
        problems
            .extend(held.difference(&kept).map(|lost| format!("{lost} is in no envelope during {phase:?}")));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::{Limits, Names, ShardItem, assign};
    use proptest::prelude::*;

    fn identity(name: &str) -> Arc<Identity> {
        Arc::new(Identity {
            group: String::new(),
            kind: "X".into(),
            namespace: String::new(),
            name: name.into(),
        })
    }

    fn items(names: &str) -> Items {
        Arc::new(names.split(',').filter(|n| !n.is_empty()).map(identity).collect())
    }

    fn have(names: &str, print: u8) -> ExistingEnvelope {
        ExistingEnvelope { items: items(names), fingerprint: [print; 32], labelled: true, deleting: false }
    }

    fn want(names: &str, print: u8) -> DesiredEnvelope {
        DesiredEnvelope { items: items(names), fingerprint: [print; 32] }
    }

    #[test]
    fn ks_143_order_and_ks_091_skipping() {
        let existing = BTreeMap::from([
            ("equal".into(), have("a", 1)),
            ("unlabelled".into(), ExistingEnvelope { labelled: false, ..have("c", 1) }),
            ("gives".into(), have("d,e", 1)),
            ("takes".into(), have("f", 1)),
            ("loses".into(), have("k,gone", 1)),
            ("surplus".into(), have("g", 1)),
            ("leaving".into(), ExistingEnvelope { deleting: true, ..have("h", 9) }),
            ("left".into(), ExistingEnvelope { deleting: true, ..have("i", 9) }),
        ]);
        let wanted = BTreeMap::from([
            ("equal".into(), want("a", 1)),
            ("unlabelled".into(), want("c", 1)),
            ("gives".into(), want("d", 2)),
            ("loses".into(), want("k", 2)),
            ("takes".into(), want("e,f", 2)),
            ("new".into(), want("j", 1)),
            ("leaving".into(), want("h", 1)),
        ]);
        let plan = plan(&existing, &wanted);
        assert_eq!(
            plan.phases,
            [
                vec![
                    Step::Update("loses".into()),
                    Step::Create("new".into()),
                    Step::Update("takes".into()),
                    Step::Update("unlabelled".into())
                ],
                vec![Step::Update("gives".into())],
                vec![Step::Delete("surplus".into())],
            ]
        );
    }

    #[test]
    fn ks_087_nothing_wanted_deletes_all() {
        let existing = BTreeMap::from([("a".into(), have("a", 1)), ("b".into(), have("b", 1))]);
        let plan = plan(&existing, &BTreeMap::new());
        assert_eq!(plan.phases[2], [Step::Delete("a".into()), Step::Delete("b".into())]);
    }

    #[test]
    fn ks_142_what_was_to_move_into_an_envelope_that_leaves_stays_where_it_is() {
        let existing = BTreeMap::from([
            ("gives".into(), have("a,b", 1)),
            ("leaving".into(), ExistingEnvelope { deleting: true, ..have("", 9) }),
            ("surplus".into(), have("c", 1)),
        ]);
        let mut wanted = BTreeMap::from([("gives".into(), want("a", 2)), ("leaving".into(), want("b,c", 1))]);
        let mut cached = plan(&existing, &wanted);
        cached.hold_back(&BTreeSet::new(), &existing, &wanted);
        assert!(cached.is_empty(), "{:?}", cached.phases);
        // Nothing moves, so the objects that are no longer wanted may be removed.
        wanted.insert("leaving".into(), want("", 1));
        let mut free = plan(&existing, &wanted);
        free.hold_back(&BTreeSet::new(), &existing, &wanted);
        assert_eq!(free.phases[2], [Step::Delete("surplus".into())]);
    }

    #[test]
    fn ks_098_what_was_to_move_into_a_taken_name_stays_where_it_is() {
        let existing = BTreeMap::from([
            ("gives".into(), have("a,b", 1)),
            ("other".into(), have("c,d", 1)),
            ("source".into(), have("e", 1)),
            ("surplus".into(), have("f", 1)),
        ]);
        let wanted = BTreeMap::from([
            ("gives".into(), want("a", 2)),
            ("other".into(), want("c", 2)),
            ("taken".into(), want("b,e", 2)),
            ("free".into(), want("d", 2)),
        ]);
        let mut plan = plan(&existing, &wanted);
        plan.hold_back(&BTreeSet::from(["taken".to_owned()]), &existing, &wanted);
        assert_eq!(
            plan.phases,
            [
                vec![Step::Create("free".into())],
                vec![Step::Update("other".into())],
                vec![Step::Delete("surplus".into())],
            ]
        );
    }

    const NAMES: Names<'static> = Names { binding: "b", binding_uid: "u", wds: "w" };

    fn wanted_of(
        shard_items: &[ShardItem],
        limits: &Limits,
        existing: &BTreeMap<String, ExistingEnvelope>,
    ) -> BTreeMap<String, DesiredEnvelope> {
        let current = existing
            .iter()
            .filter_map(|(name, have)| NAMES.number(name).map(|n| (n, have)))
            .flat_map(|(n, have)| have.items.iter().map(move |i| (i.clone(), n)))
            .collect();
        assign(shard_items, &current, &NAMES, limits, 0)
            .into_iter()
            .map(|shard| {
                let text: Vec<String> = shard
                    .members
                    .iter()
                    .map(|i| format!("{} {}", shard_items[*i].identity, shard_items[*i].size))
                    .collect();
                let fingerprint = crate::content::combine(text.iter().map(String::as_bytes));
                let items = shard.members.iter().map(|i| shard_items[*i].identity.clone()).collect();
                (shard.name, DesiredEnvelope { items: Arc::new(items), fingerprint })
            })
            .collect()
    }

    fn execute(
        existing: &mut BTreeMap<String, ExistingEnvelope>,
        wanted: &BTreeMap<String, DesiredEnvelope>,
        step: &Step,
    ) {
        match step {
            Step::Create(name) | Step::Update(name) => {
                let want = &wanted[name];
                let fresh = ExistingEnvelope {
                    items: want.items.clone(),
                    fingerprint: want.fingerprint,
                    labelled: true,
                    deleting: false,
                };
                existing.insert(name.clone(), fresh);
            }
            Step::Extend(name) => {
                let (have, want) = (&existing[name], &wanted[name]);
                let stays = |item: &&Arc<Identity>| wanted.values().any(|other| other.items.contains(*item));
                let items = have.items.iter().filter(stays).chain(want.items.iter()).cloned().collect();
                let fresh = ExistingEnvelope {
                    items: Arc::new(items),
                    fingerprint: [0; 32],
                    labelled: true,
                    deleting: false,
                };
                existing.insert(name.clone(), fresh);
            }
            Step::Delete(name) => {
                existing.remove(name);
            }
        }
    }

    /// KS-142: for any existing distribution, for example when one mailbox takes over the layout of others.
    #[test]
    fn ks_142_envelopes_that_exchange_objects_lose_none() {
        let existing = BTreeMap::from([("a".into(), have("x,y,gone", 1)), ("b".into(), have("z,w", 1))]);
        let wanted = BTreeMap::from([("a".into(), want("x,z", 2)), ("b".into(), want("y,w", 2))]);
        let steps = |names: &[&str], step: fn(String) -> Step| {
            names.iter().map(|name| step((*name).to_owned())).collect::<Vec<_>>()
        };
        let plan = plan(&existing, &wanted);
        assert_eq!(plan.phases, [steps(&["a", "b"], Step::Extend), steps(&["a", "b"], Step::Update), vec![]]);
    }

    /// KS-142: what the checker finds in plans that are wrong.
    #[test]
    fn ks_142_plans_that_lose_objects_are_found() {
        let existing = BTreeMap::from([
            ("a".into(), have("x,y", 1)),
            ("b".into(), have("z", 1)),
            ("leaving".into(), ExistingEnvelope { deleting: true, ..have("w", 1) }),
        ]);
        let wanted = BTreeMap::from([("a".into(), want("x", 2)), ("c".into(), want("y,z,w", 2))]);
        let step = |step: fn(String) -> Step, name: &str| vec![step(name.to_owned())];
        let check = |phases: [Vec<Step>; 3]| check_plan(&Plan { phases }, &existing, &wanted);
        let (create, update, delete) =
            (step(Step::Create, "c"), step(Step::Update, "a"), step(Step::Delete, "b"));
        assert_eq!(check([create.clone(), update.clone(), delete.clone()]), [""; 0]);
        assert_eq!(check([create.clone(), vec![], vec![]]), [""; 0], "it may end early");
        let both: Vec<Step> = create.iter().chain(&update).cloned().collect();
        assert_eq!(check([both, delete.clone(), vec![]]).len(), 1, "y: the order in a phase is open");
        assert_eq!(check([update, create.clone(), delete.clone()]).len(), 1, "y");
        assert_eq!(check([delete, create.clone(), vec![]]).len(), 1, "z");
        assert_eq!(check([create, step(Step::Delete, "a"), vec![]]).len(), 1, "a is wanted");
        assert_eq!(check([step(Step::Update, "b"), vec![], vec![]]).len(), 1, "b is not wanted");
    }

    fn any_workload() -> impl Strategy<Value = (Vec<ShardItem>, Limits)> {
        (proptest::collection::btree_map(0..30u8, 1..100usize, 0..30), 1..6usize, 100..250usize).prop_map(
            |(objects, num, size)| {
                let piece = |(name, size): (u8, usize)| ShardItem {
                    identity: identity(&name.to_string()),
                    uid: format!("uid-{name}"),
                    size,
                };
                (objects.into_iter().map(piece).collect(), Limits::hard(num, size))
            },
        )
    }

    proptest! {
        /// KS-142: from any distribution to any other, with the steps of a phase in any order, an object that
        /// stays wanted is in an envelope after every single step.
        #[test]
        fn ks_142_any_moves_lose_nothing(
            before in proptest::collection::btree_map(0..12u8, 0..4u8, 0..12),
            after in proptest::collection::btree_map(0..12u8, 0..4u8, 0..12),
            backwards in any::<bool>(),
        ) {
            let distribute = |objects: &BTreeMap<u8, u8>| {
                let mut envelopes: BTreeMap<String, BTreeSet<Arc<Identity>>> = BTreeMap::new();
                for (object, envelope) in objects {
                    envelopes.entry(envelope.to_string()).or_default().insert(identity(&object.to_string()));
                }
                envelopes
            };
            let mut existing: BTreeMap<String, ExistingEnvelope> = distribute(&before)
                .into_iter()
                .map(|(name, items)| (name, ExistingEnvelope { items: Arc::new(items), fingerprint: [1; 32], labelled: true, deleting: false }))
                .collect();
            let wanted: BTreeMap<String, DesiredEnvelope> = distribute(&after)
                .into_iter()
                .map(|(name, items)| (name, DesiredEnvelope { items: Arc::new(items), fingerprint: [2; 32] }))
                .collect();
            let stays: BTreeSet<_> = before.keys().filter(|it| after.contains_key(it)).map(|it| identity(&it.to_string())).collect();
            prop_assert_eq!(check_plan(&plan(&existing, &wanted), &existing, &wanted), Vec::<String>::new());
            for mut phase in plan(&existing, &wanted).phases {
                if backwards {
                    phase.reverse();
                }
                for step in &phase {
                    execute(&mut existing, &wanted, step);
                    let cached: BTreeSet<_> = existing.values().flat_map(|e| e.items.iter().cloned()).collect();
                    prop_assert!(stays.is_subset(&cached), "lost after {step:?}");
                }
            }
            for (name, want) in &wanted {
                prop_assert_eq!(&existing[name].items, &want.items);
            }
        }

        /// KS-098, KS-142: also if some of the wanted names belong to other Bindings, and some envelopes are being deleted.
        #[test]
        fn ks_098_what_is_held_back_is_enough(
            before in proptest::collection::btree_map(0..12u8, 0..5u8, 0..12),
            after in proptest::collection::btree_map(0..12u8, 0..5u8, 0..12),
            leaving in proptest::collection::btree_set(0..5u8, 0..3),
            taken in proptest::collection::btree_set(0..8u8, 0..3),
        ) {
            let distribute = |objects: &BTreeMap<u8, u8>| {
                let mut envelopes: BTreeMap<u8, BTreeSet<Arc<Identity>>> = BTreeMap::new();
                for (object, envelope) in objects {
                    envelopes.entry(*envelope).or_default().insert(identity(&object.to_string()));
                }
                envelopes
            };
            let existing: BTreeMap<String, ExistingEnvelope> = distribute(&before)
                .into_iter()
                .map(|(n, items)| (n.to_string(), ExistingEnvelope { items: Arc::new(items), fingerprint: [1; 32], labelled: true, deleting: leaving.contains(&n) }))
                .collect();
            let wanted: BTreeMap<String, DesiredEnvelope> = distribute(&after)
                .into_iter()
                .map(|(n, items)| (n.to_string(), DesiredEnvelope { items: Arc::new(items), fingerprint: [2; 32] }))
                .collect();
            // A name that belongs to another Binding is not among the envelopes of this one.
            let taken: BTreeSet<String> = taken.iter().map(u8::to_string).filter(|name| !existing.contains_key(name)).collect();
            let mut plan = plan(&existing, &wanted);
            plan.hold_back(&taken, &existing, &wanted);
            prop_assert_eq!(check_plan(&plan, &existing, &wanted), Vec::<String>::new());
            prop_assert!(plan.phases.iter().flatten().all(|step| !taken.contains(step.name())));
        }

        /// KS-076, KS-078, KS-142, KS-146: from one workload and options to any other, an object that stays
        /// wanted is in an envelope after every single step, and a second run has nothing to do.
        #[test]
        fn ks_078_plans_settle_and_never_lose(histories in proptest::collection::vec(any_workload(), 1..4)) {
            let mut existing = BTreeMap::new();
            for (shard_items, limits) in histories {
                let before: BTreeSet<Arc<Identity>> =
                    existing.values().flat_map(|e: &ExistingEnvelope| e.items.iter().cloned()).collect();
                let stays: BTreeSet<_> =
                    shard_items.iter().map(|p| p.identity.clone()).filter(|i| before.contains(i)).collect();
                let wanted = wanted_of(&shard_items, &limits, &existing);
                prop_assert_eq!(check_plan(&plan(&existing, &wanted), &existing, &wanted), Vec::<String>::new());
                for step in plan(&existing, &wanted).phases.iter().flatten() {
                    execute(&mut existing, &wanted, step);
                    let cached: BTreeSet<_> = existing.values().flat_map(|e| e.items.iter().cloned()).collect();
                    prop_assert!(stays.is_subset(&cached), "lost after {step:?}");
                }
                let mut cached: Vec<_> = existing.values().flat_map(|e| e.items.iter().cloned()).collect();
                cached.sort();
                let mut all: Vec<_> = shard_items.iter().map(|p| p.identity.clone()).collect();
                all.sort();
                prop_assert_eq!(cached, all, "each object exactly once");
                let again = wanted_of(&shard_items, &limits, &existing);
                prop_assert!(plan(&existing, &again).is_empty());
            }
        }
    }
}
