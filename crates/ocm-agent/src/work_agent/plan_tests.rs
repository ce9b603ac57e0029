use std::{slice::from_ref, time::Duration};

use apis::ocm::{
    AppliedManifestWork, ManifestWork,
    work::{ManifestResourceMeta, ManifestWorkStatus},
};
use proptest::prelude::*;
use runtime::{ObjectKey, mapper::Mapped, rest::Gvr};
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::work_agent::{
    backoff::RetryAt,
    config::Config,
    names::HubNames,
    records::{Hold, Record, Todo},
};

fn state() -> State {
    State::new(&Config::new("c1", "https://hub"), HubNames::new("https://hub"))
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "n"}})
}

fn work(manifests: &[Value], more: &Value) -> ManifestWork {
    let mut spec = json!({"workload": {"manifests": manifests}});
    for (key, value) in more.as_object().expect("a map") {
        spec[key] = value.clone();
    }
    serde_json::from_value(json!({"metadata": {"name": "w", "uid": "w"}, "spec": spec})).expect("a work")
}

fn applied() -> AppliedManifestWork {
    serde_json::from_value(json!({"metadata": {"name": "hash-w", "uid": "owner"},
        "spec": {"hubHash": "hash", "manifestWorkName": "w", "agentID": "hash"}}))
    .expect("one")
}

fn executor() -> Value {
    json!({"executor": {"subject": {"type": "ServiceAccount", "serviceAccount": {"namespace": "n", "name": "mate"}}}})
}

fn mapped(kind: &str) -> Mapped {
    let plural = format!("{}s", kind.to_lowercase());
    Mapped { gvr: Gvr::new("", "v1", &plural), kind: kind.into(), namespaced: kind != "Namespace" }
}

/// Plans a pass in which every kind is served but `Unknown`.
fn planned(state: &State, work: &ManifestWork, todo: &Todo, listed: &[AppliedResource]) -> Plan {
    let pass = Pass::new("w", work, &applied(), todo, ManifestWorkStatus::default());
    let mut taken = BTreeSet::new();
    let jobs = work.spec.workload.manifests.iter().enumerate().map(|(ordinal, manifest)| {
        let pending = state.backoff.pending_outcomes("w", Instant::now()).remove(&ordinal);
        let mut job = Job::new(ordinal, manifest, pending);
        if !job.settled_without_resource() {
            let kind = job.header.kind.clone();
            job.resolve(&pass, Ok((kind != "Unknown").then(|| mapped(&kind))), &mut taken);
        }
        job
    });
    let jobs: Vec<Job<'_>> = jobs.collect();
    plan(state, &pass, &jobs, listed)
}

/// What the first manifest of a plan gets, in a word.
fn first(plan: &Plan) -> &'static str {
    match &plan.steps[&0] {
        Step::Report(_) => "report",
        Step::LookAgain(_) => "look again",
        Step::Recheck(_) => "recheck",
        Step::Look => "look",
        Step::Apply => "apply",
    }
}

/// Records the ConfigMap `a` as this work applied it.
fn record(state: &mut State, work: &ManifestWork) {
    let todo = Todo::default();
    let pass = Pass::new("w", work, &applied(), &todo, ManifestWorkStatus::default());
    let mut job = Job::new(0, &work.spec.workload.manifests[0], None);
    job.resolve(&pass, Ok(Some(mapped("ConfigMap"))), &mut BTreeSet::new());
    let Resource::Known(resolved) = &job.resource else { panic!("it is served") };
    let record = Record {
        digest: resolved.digest,
        content: resolved.content,
        gvr: resolved.mapped.gvr.clone(),
        uid: "u".into(),
        resource_version: "1".into(),
        generation: None,
        labels: vec![],
        annotations: vec![],
        owner: None,
        hold: Hold::Content,
        observed: false,
        done: Done::exists(resolved.meta.clone(), &resolved.mapped.gvr, "u"),
    };
    state.tracker.begin(&resolved.target);
    drop(state.tracker.settle("w", &resolved.target, Some(record), None, Instant::now()));
}

fn target(name: &str) -> Target {
    Target { resource: "configmaps".into(), namespace: "n".into(), name: name.into(), ..Target::default() }
}

/// OCM-073, OCM-080: what happens to a manifest follows from its record and from what is known to have changed.
#[test]
fn ocm_080_what_is_done_about_a_manifest() {
    let one = work(&[map("a")], &json!({}));
    let changed = || Todo { changed: true, ..Todo::default() };
    let touched = |meaning| Todo { objects: [(target("a"), meaning)].into(), ..Todo::default() };
    let mut state = state();
    assert_eq!(first(&planned(&state, &one, &changed(), &[])), "apply", "new");
    record(&mut state, &one);
    for (todo, step) in [
        (changed(), "report"),
        (touched(Meaning::Look), "look"),
        (touched(Meaning::Drift), "apply"),
        (Todo { everything: true, ..Todo::default() }, "apply"),
    ] {
        assert_eq!(first(&planned(&state, &one, &todo, &[])), step, "{todo:?}");
    }
    let other = work(&[map("a")], &json!({"deleteOption": {"propagationPolicy": "Orphan"}}));
    assert_eq!(first(&planned(&state, &other, &changed(), &[])), "apply", "it is required otherwise");
}

/// OCM-086: with an executor a change of the work checks unchanged manifests again.
#[test]
fn ocm_086_unchanged_manifests_of_an_executor_are_checked() {
    let one = work(&[map("a")], &executor());
    let mut state = state();
    record(&mut state, &one);
    assert_eq!(first(&planned(&state, &one, &Todo { changed: true, ..Todo::default() }, &[])), "recheck");
    assert_eq!(first(&planned(&state, &one, &Todo::default(), &[])), "report", "another object changed");
}

/// OCM-090, OCM-161: an object that is reported on and not followed is read in each pass.
#[test]
fn ocm_161_what_is_not_followed_is_read() {
    let feedback = json!({"manifestConfigs": [{"resourceIdentifier": {"resource": "configmaps", "namespace": "n", "name": "a"},
        "feedbackRules": [{"type": "WellKnownStatus"}]}]});
    let one = work(&[map("a")], &feedback);
    let (mut state, todo) = (state(), Todo { changed: true, ..Todo::default() });
    record(&mut state, &one);
    assert_eq!(first(&planned(&state, &one, &todo, &[])), "look");
    let listed =
        super::super::state::Event::KindListed(mapped("ConfigMap").gvr, [ObjectKey::new("n", "a")].into());
    state.event(listed, Instant::now());
    assert_eq!(first(&planned(&state, &one, &todo, &[])), "report");
}

/// OCM-076: what failed waits for its time; its object is read when it changes.
#[test]
fn ocm_076_what_failed_waits() {
    let one = work(
        &[map("a"), json!({"kind": "Unknown", "apiVersion": "v1", "metadata": {"name": "x"}})],
        &json!({}),
    );
    let mut state = state();
    let failed = Done::refused(ManifestResourceMeta::default(), "no", Available::No);
    state.backoff.failed("w", 0, RetryAt::After(Duration::from_secs(600)), failed, Instant::now());
    let plan = planned(&state, &one, &Todo { changed: true, ..Todo::default() }, &[]);
    assert_eq!(first(&plan), "report");
    assert!(matches!(&plan.steps[&1], Step::Report(done) if done.is_unresolved()));
    assert!(plan.list_first.is_empty(), "nothing will be created");
    let touched = Todo { objects: [(target("a"), Meaning::Drift)].into(), ..Todo::default() };
    assert_eq!(first(&planned(&state, &one, &touched, &[])), "look again");
}

/// OCM-074, OCM-093: what will be created and is owned is listed first; what is listed, only read or orphaned is not.
#[test]
fn ocm_093_what_is_listed_before_it_is_created() {
    let options = json!({"manifestConfigs": [{"resourceIdentifier": {"resource": "configmaps", "namespace": "n", "name": "read"},
        "updateStrategy": {"type": "ReadOnly"}}],
        "deleteOption": {"propagationPolicy": "SelectivelyOrphan", "selectivelyOrphans": {"orphaningRules": [
            {"resource": "configmaps", "namespace": "n", "name": "orphan"}]}}});
    let names = ["new", "listed", "read", "orphan"];
    let all = work(&names.map(map), &options);
    let have = [resource("listed", "u")];
    let plan = planned(&state(), &all, &Todo { changed: true, ..Todo::default() }, &have);
    assert_eq!(plan.list_first, [resource("new", "")]);
}

fn resource(name: &str, uid: &str) -> AppliedResource {
    AppliedResource {
        version: "v1".into(),
        resource: "configmaps".into(),
        namespace: "n".into(),
        name: name.into(),
        uid: uid.into(),
        ..AppliedResource::default()
    }
}

/// OCM-075, OCM-086: Namespaces first, then roles and bindings for an executor, custom resources last; the second of two
/// manifests of one object is refused.
#[test]
fn ocm_075_the_turns_of_a_pass() {
    let of =
        |kind: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "x", "namespace": "n"}});
    let manifests =
        [of("Buoy"), of("ConfigMap"), of("RoleBinding"), of("Role"), of("Namespace"), of("ConfigMap")];
    let todo = Todo { changed: true, ..Todo::default() };
    let turns = |more: &Value| {
        let plan = planned(&state(), &work(&manifests, more), &todo, &[]);
        assert!(matches!(&plan.steps[&5], Step::Report(_)), "a duplicate");
        plan.turns.into_values().collect::<Vec<_>>()
    };
    assert_eq!(turns(&json!({})), [vec![4], vec![1, 2, 3, 5], vec![0]]);
    assert_eq!(turns(&executor()), [vec![4], vec![3], vec![2], vec![1, 5], vec![0]]);
}

fn outcome(name: &str, available: Available, uncertain: bool) -> Done {
    let meta = ManifestResourceMeta {
        resource: "configmaps".into(),
        namespace: "n".into(),
        name: name.into(),
        ..ManifestResourceMeta::default()
    };
    let exists = available == Available::Yes;
    Done { available, uncertain, resource: exists.then(|| resource(name, "u")), meta, ..Done::default() }
}

/// OCM-093: what no manifest wants is released, unless an outcome is uncertain; what was listed and never created is dropped.
#[test]
fn ocm_093_what_is_released_after_a_pass() {
    let before = [resource("a", "u"), resource("old", "u"), resource("never", "")];
    let sure = [outcome("a", Available::Yes, false), outcome("never", Available::No, false)];
    assert_eq!(
        removals(&before, &sure),
        Removals::Now { exist: vec![resource("a", "u")], released: vec![resource("old", "u")] }
    );
    let unsure = [outcome("a", Available::Yes, false), outcome("b", Available::Incomplete, true)];
    let Removals::Postponed(list) = removals(&before, &unsure) else { panic!("nothing may be removed") };
    assert_eq!(list.len(), 3);
}

/// A wrong plan is noticed: each violation is planted once.
#[test]
fn ocm_093_wrong_plans_are_noticed() {
    let one = work(&[map("a"), map("b")], &json!({}));
    let todo = Todo { changed: true, ..Todo::default() };
    let pass = Pass::new("w", &one, &applied(), &todo, ManifestWorkStatus::default());
    let mut taken = BTreeSet::new();
    let mut jobs: Vec<Job<'_>> =
        one.spec.workload.manifests.iter().enumerate().map(|(n, m)| Job::new(n, m, None)).collect();
    for job in &mut jobs {
        job.resolve(&pass, Ok(Some(mapped("ConfigMap"))), &mut taken);
    }
    let good = || plan(&state(), &pass, &jobs, &[]);
    assert_eq!(check::plan(&good(), &jobs, &[]), Vec::<String>::new());
    let noticed = |what: &str, change: fn(&mut Plan)| {
        let mut bad = good();
        change(&mut bad);
        let wrong = check::plan(&bad, &jobs, &[]).join("; ");
        assert!(wrong.contains(what), "{what}: {wrong}");
    };
    noticed("not one step", |plan| drop(plan.steps.remove(&1)));
    noticed("not one step", |plan| plan.turns.entry(9).or_default().push(1));
    noticed("before it is listed", |plan| plan.list_first.truncate(1));
    noticed("outcome of another", |plan| {
        drop(plan.steps.insert(1, Step::Report(Box::new(outcome("b", Available::Yes, false)))));
    });
    jobs[1].resource = Resource::Settled(Box::default());
    let wrong = check::plan(&plan(&state(), &pass, &jobs[..1], &[]), &jobs, &[]).join("; ");
    assert!(wrong.contains("not one step"), "{wrong}");

    let (before, sure) = ([resource("a", "u"), resource("old", "u")], [outcome("a", Available::Yes, false)]);
    let unsure = [outcome("a", Available::Yes, false), outcome("x", Available::Incomplete, true)];
    let now = |exist: &[AppliedResource], released: &[AppliedResource]| Removals::Now {
        exist: exist.to_vec(),
        released: released.to_vec(),
    };
    let (a, old) = (resource("a", "u"), resource("old", "u"));
    for (bad, done, what) in [
        (now(from_ref(&a), &[]), &sure[..], "is forgotten"),
        (now(&[], &[a.clone(), old.clone()]), &sure[..], "is released and wanted"),
        (now(&[], from_ref(&old)), &sure[..], "exists and is not listed"),
        (now(from_ref(&a), from_ref(&old)), &unsure[..], "although an outcome is uncertain"),
        (Removals::Postponed(vec![a]), &unsure[..], "is forgotten"),
    ] {
        let wrong = check::removals(&bad, &before, done).join("; ");
        assert!(wrong.contains(what), "{what}: {wrong}");
    }
}

fn any_outcome() -> impl Strategy<Value = Done> {
    let available = prop_oneof![
        Just(Available::Yes),
        Just(Available::No),
        Just(Available::Unknown("x".into())),
        Just(Available::Incomplete)
    ];
    (0..6_u8, available, any::<bool>()).prop_map(|(name, available, unsure)| {
        let uncertain = unsure || matches!(available, Available::Unknown(_));
        outcome(&name.to_string(), available, uncertain)
    })
}

proptest! {
    /// OCM-093: whatever is listed and whatever came of the manifests, the removals satisfy the checks (`removals` panics
    /// otherwise).
    #[test]
    fn ocm_093_removals_are_right_for_all_outcomes(
        done in prop::collection::vec(any_outcome(), 0..6),
        before in prop::collection::btree_map(0..8_u8, any::<bool>(), 0..8),
    ) {
        let before: Vec<AppliedResource> =
            before.iter().map(|(name, made)| resource(&name.to_string(), if *made { "u" } else { "" })).collect();
        removals(&before, &done);
    }
}
