//! The state of the agent, change by change.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::decide::{Effect, plan};

fn deployments() -> Gvr {
    Gvr::new("apps", "v1", "deployments")
}

fn item<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn applied(uid: &str, work: &str) -> Applied {
    item(json!({
        "metadata": {"name": format!("hub-{work}"), "uid": uid},
        "spec": {"manifestWorkName": work},
        "status": {"appliedResources": [
            {"group": "apps", "version": "v1", "resource": "deployments"},
            {"group": "", "version": "v1", "resource": "configmaps"},
        ]},
    }))
}

fn work(name: &str) -> Work {
    item(
        json!({"metadata": {"name": name, "uid": "w", "labels": {"transport.kubestellar.io/originWdsName": "wds1"}}}),
    )
}

fn web(owners: &[&str]) -> Delivered {
    let owners: Vec<Value> = owners
        .iter()
        .map(|uid| json!({"apiVersion": "work.open-cluster-management.io/v1", "kind": "AppliedManifestWork", "uid": uid}))
        .collect();
    item(
        json!({"metadata": {"name": "web", "namespace": "shop", "ownerReferences": owners}, "status": {"replicas": 1}}),
    )
}

fn source() -> Source {
    Source { gvr: deployments(), namespace: "shop".into(), name: "web".into() }
}

fn ready() -> View {
    let mut view = View::default();
    view.applied_synced();
    view.works_synced();
    view.reports_synced();
    view
}

/// KS-201, OCM-134: a kind is followed as long as a delivered object is of it; excluded kinds never are.
#[test]
fn ks_201_followed_kinds() {
    let mut view = ready();
    view.put_applied(&applied("u1", "p-0"));
    view.put_applied(&applied("u2", "p-1"));
    assert_eq!(view.wanted(), BTreeSet::from([deployments()]));
    assert!(!view.gone_applied("hub-p-0").kinds);
    assert_eq!(view.wanted().len(), 1);
    assert!(view.gone_applied("hub-p-1").kinds);
    assert_eq!(view.wanted().len(), 0);
}

/// KS-001: in any order of object, AppliedManifestWork and ManifestWork, the last event makes the object
/// known.
#[test]
fn ks_001_any_order_of_arrival() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut view = ready();
        view.follow(deployments(), "Deployment");
        view.objects_synced(&deployments());
        let mut affected = Vec::new();
        for step in order {
            affected = match step {
                0 => view.put_applied(&applied("u1", "p-0")).sources,
                1 => view.put_work(work("p-0")),
                _ => view.put_object(&deployments(), web(&["u1"])).into_iter().collect(),
            };
        }
        assert_eq!(affected, vec![source()], "{order:?}");
        assert!(matches!(view.look(&source()).0, Object::Delivered { .. }), "{order:?}");
    }
}

/// KS-206: when the first owner is deleted, the next one determines the origin; without any owner the object
/// is gone.
#[test]
fn ks_206_next_owner_takes_over() {
    let mut view = ready();
    view.follow(deployments(), "Deployment");
    view.objects_synced(&deployments());
    for (uid, name) in [("u1", "p-0"), ("u2", "q-0")] {
        view.put_applied(&applied(uid, name));
        view.put_work(work(name));
    }
    view.put_object(&deployments(), web(&["u1", "u2"]));
    view.gone_applied("hub-p-0");
    let Object::Delivered { origin, .. } = view.look(&source()).0 else { panic!("not delivered") };
    assert_eq!(origin.applied_uid, "u2");
    assert_eq!(view.put_object(&deployments(), web(&[])), Some(source()));
    assert_eq!(view.look(&source()).0, Object::Gone);
}

/// OCM-139: the generations in a work, and the report of its agent, tell how current an object is. An Applied
/// condition for an earlier generation of the work does not count.
#[test]
fn ocm_139_how_current_an_object_is() {
    let reported = |generation: i64, observed: i64| -> Work {
        let annotation = json!({"apps/Deployment/shop/web": generation}).to_string();
        item(
            json!({"metadata": {"name": "p-0", "uid": "w", "generation": 5, "labels": {"transport.kubestellar.io/originWdsName": "wds1"},
                "annotations": {"transport.kubestellar.io/originObjectGenerations": annotation}},
            "status": {"resourceStatus": {"manifests": [{"resourceMeta": {"group": "apps", "kind": "Deployment", "namespace": "shop", "name": "web"},
                "conditions": [{"type": "Applied", "status": "True", "observedGeneration": observed}]}]}}}),
        )
    };
    let seen = |details: bool, work: Work| {
        let mut view = View { details, ..ready() };
        view.follow(deployments(), "Deployment");
        view.objects_synced(&deployments());
        view.put_applied(&applied("u1", "p-0"));
        view.put_object(&deployments(), web(&["u1"]));
        assert_eq!(view.put_work(work), vec![source()]);
        let Object::Delivered { currency, .. } = view.look(&source()).0 else { panic!("not delivered") };
        currency
    };
    let at = |generation, applied| Some(Currency { generation, applied });
    assert_eq!(seen(true, reported(3, 5)), at(3, true));
    assert_eq!(seen(true, reported(3, 4)), at(3, false));
    assert_eq!(seen(false, reported(3, 5)), None, "nobody wants to know");
    assert_eq!(seen(true, work("p-0")), None, "nobody tells");
}

/// Nothing is decided before every feed has read its first list: a restart deletes no WorkStatus.
#[test]
fn ks_001_unclear_until_synced() {
    let mut view = View::default();
    view.put_report(item(json!({"metadata": {"name": "r"}, "spec": {"sourceRef":
        {"group": "apps", "version": "v1", "resource": "deployments", "namespace": "shop", "name": "web"}}})));
    assert_eq!(view.look(&source()).0, Object::Unclear);
    view.works_synced();
    view.reports_synced();
    assert_eq!(view.applied_synced(), vec![source()]);
    assert_eq!(view.look(&source()).0, Object::Gone);
    view.put_applied(&applied("u1", "p-0"));
    assert_eq!(view.look(&source()).0, Object::Unclear, "its kind is about to be followed");
    view.follow(deployments(), "Deployment");
    assert_eq!(view.look(&source()).0, Object::Unclear);
}

/// OCM-135, KS-200: of two objects whose WorkStatuses would have the same name, the first keeps it. The
/// second is reported once, and gets the name when the first is gone.
#[test]
fn ocm_135_who_waits_for_a_name() {
    let at = |namespace: &str, name: &str| Source {
        gvr: deployments(),
        namespace: namespace.into(),
        name: name.into(),
    };
    let (one, two) = (at("a-b", "c"), at("a", "b-c"));
    let mut view = ready();
    view.follow(deployments(), "Deployment");
    view.objects_synced(&deployments());
    view.put_applied(&applied("u1", "p-0"));
    view.put_work(work("p-0"));
    for source in [&one, &two] {
        let owners = json!([{"apiVersion": "work.open-cluster-management.io/v1", "kind": "AppliedManifestWork", "uid": "u1"}]);
        let object = json!({"metadata": {"name": source.name, "namespace": source.namespace, "ownerReferences": owners}});
        view.put_object(&deployments(), item(object));
    }
    let holder = |view: &View, source: &Source| match view.look(source).0 {
        Object::Delivered { holder, .. } => holder.map(|source| *source),
        other => panic!("{other:?}"),
    };
    assert_eq!((holder(&view, &one), holder(&view, &two)), (None, None));
    let name = "u1-appsv1-deployment-a-b-c";
    let report = |source: &Source| -> Reported {
        item(
            json!({"metadata": {"name": name, "uid": source.name}, "spec": {"sourceRef": {"group": "apps", "version": "v1",
            "resource": "deployments", "namespace": source.namespace, "name": source.name}}}),
        )
    };
    assert_eq!(view.wait_for(name, &two), ConflictReport::Free, "nobody has it");
    assert_eq!(view.put_report(report(&one)), std::slice::from_ref(&one));
    assert_eq!((holder(&view, &one), holder(&view, &two)), (None, Some(one.clone())));
    assert_eq!(view.wait_for(name, &one), ConflictReport::Free, "its own");
    assert_eq!(view.wait_for(name, &two), ConflictReport::First);
    assert_eq!(view.wait_for(name, &two), ConflictReport::Still);
    assert_eq!(view.gone_report(name), [one.clone(), two.clone()]);
    assert_eq!(holder(&view, &two), None);
    // Recreated for the other object, without an event in between.
    view.put_report(report(&one));
    view.wait_for(name, &two);
    assert_eq!(view.put_report(report(&two)), [one.clone(), two.clone(), two.clone()]);
    assert_eq!((holder(&view, &one), holder(&view, &two)), (Some(two.clone()), None));
    // An object that is gone does not wait any more.
    view.wait_for(name, &one);
    view.gone_object(&deployments(), &ObjectKey::new(&one.namespace, &one.name));
    assert_eq!(view.gone_report(name), [two]);
}

/// One change that the agent observes.
#[derive(Clone, Debug)]
enum Step {
    Applied { name: u8, uid: u8, work: u8, kinds: Vec<u8> },
    NoApplied(u8),
    Work { name: u8, uid: u8 },
    NoWork(u8),
    Object { kind: u8, name: u8, owners: Vec<u8> },
    NoObject { kind: u8, name: u8 },
    Report { applied: u8, kind: u8, name: u8 },
    NoReport { applied: u8, kind: u8, name: u8 },
}

/// Three kinds, of which the last is not served.
const KINDS: [&str; 3] = ["ones", "twos", "threes"];

fn kind(number: u8) -> Gvr {
    Gvr::new("x", "v1", KINDS[usize::from(number)])
}

/// The first two lead to the same WorkStatus name.
fn place(number: u8) -> (&'static str, &'static str) {
    [("a-b", "c"), ("a", "b-c"), ("shop", "web")][usize::from(number)]
}

fn thing(of: u8, number: u8) -> Source {
    let (namespace, name) = place(number);
    Source { gvr: kind(of), namespace: namespace.into(), name: name.into() }
}

fn step() -> impl Strategy<Value = Step> {
    let some = || prop::collection::vec(0..3_u8, 0..3);
    prop_oneof![
        (0..3_u8, 0..3_u8, 0..2_u8, some()).prop_map(|(name, uid, work, kinds)| Step::Applied {
            name,
            uid: 3 * name + uid,
            work,
            kinds
        }),
        (0..3_u8).prop_map(Step::NoApplied),
        (0..2_u8, 0..2_u8).prop_map(|(name, uid)| Step::Work { name, uid }),
        (0..2_u8).prop_map(Step::NoWork),
        (0..2_u8, 0..3_u8, prop::collection::vec(0..9_u8, 0..3))
            .prop_map(|(kind, name, owners)| Step::Object { kind, name, owners }),
        (0..2_u8, 0..3_u8).prop_map(|(kind, name)| Step::NoObject { kind, name }),
        (0..9_u8, 0..3_u8, 0..3_u8).prop_map(|(applied, kind, name)| Step::Report { applied, kind, name }),
        (0..9_u8, 0..3_u8, 0..3_u8).prop_map(|(applied, kind, name)| Step::NoReport { applied, kind, name }),
    ]
}

/// A view, and the real state of the cluster and the mailbox.
#[derive(Default)]
struct Scene {
    view: View,
    applied: BTreeMap<u8, Applied>,
    works: BTreeMap<u8, Work>,
    objects: BTreeMap<(u8, u8), Delivered>,
    reports: BTreeMap<String, Reported>,
}

impl Scene {
    /// Applies one change, and follows kinds as the agent does. Returns the objects to process.
    fn tell(&mut self, step: &Step) -> Vec<Source> {
        let before = self.view.wanted();
        let Affected { sources: mut affected, kinds } = self.change(step);
        let wanted = self.view.wanted();
        assert_eq!(kinds, wanted != before, "told exactly when it changes");
        let running: Vec<Gvr> = self.view.followed.keys().cloned().collect();
        for gvr in running.iter().filter(|gvr| !wanted.contains(gvr)) {
            affected.extend(self.view.unfollow(gvr));
        }
        for of in [0, 1] {
            let gvr = kind(of);
            if wanted.contains(&gvr) && !running.contains(&gvr) {
                self.view.follow(gvr.clone(), "Kind");
                for (_, object) in self.objects.iter().filter(|((k, _), _)| *k == of) {
                    affected.extend(self.view.put_object(&gvr, object.clone()));
                }
                affected.extend(self.view.objects_synced(&gvr));
            }
        }
        affected
    }

    fn change(&mut self, step: &Step) -> Affected {
        let sources = match step {
            Step::Applied { name, uid, work, kinds } => {
                let listed: Vec<Value> = kinds
                    .iter()
                    .map(|k| json!({"group": "x", "version": "v1", "resource": KINDS[usize::from(*k)]}))
                    .collect();
                let item: Applied = item(
                    json!({"metadata": {"name": format!("h-{name}"), "uid": format!("u{uid}")},
                    "spec": {"manifestWorkName": format!("w{work}")}, "status": {"appliedResources": listed}}),
                );
                self.applied.insert(*name, item.clone());
                return self.view.put_applied(&item);
            }
            Step::NoApplied(name) => {
                self.applied.remove(name);
                return self.view.gone_applied(&format!("h-{name}"));
            }
            Step::Work { name, uid } => {
                let work: Work =
                    item(json!({"metadata": {"name": format!("w{name}"), "uid": format!("w{uid}"),
                    "labels": {"transport.kubestellar.io/originWdsName": "wds1"}}}));
                self.works.insert(*name, work.clone());
                self.view.put_work(work)
            }
            Step::NoWork(name) => {
                self.works.remove(name);
                self.view.gone_work(&format!("w{name}"))
            }
            Step::Object { kind: of, name, owners } => {
                let owners: Vec<Value> = owners
                    .iter()
                    .map(|uid| {
                        json!({"apiVersion": "work.open-cluster-management.io/v1", "kind": "AppliedManifestWork",
                            "uid": format!("u{uid}")})
                    })
                    .collect();
                let (namespace, title) = place(*name);
                let object: Delivered = item(
                    json!({"metadata": {"name": title, "namespace": namespace, "ownerReferences": owners}}),
                );
                self.objects.insert((*of, *name), object.clone());
                self.view.put_object(&kind(*of), object).into_iter().collect()
            }
            Step::NoObject { kind: of, name } => {
                self.objects.remove(&(*of, *name));
                let (namespace, title) = place(*name);
                let key = ObjectKey::new(namespace, title);
                self.view.gone_object(&kind(*of), &key).into_iter().collect()
            }
            Step::Report { applied, kind: of, name } => {
                let source = thing(*of, *name);
                let title = work_status_name(&format!("u{applied}"), &source, "Kind");
                let report: Reported = item(
                    json!({"metadata": {"name": title}, "spec": {"sourceRef": {"group": "x",
                    "version": "v1", "resource": source.gvr.plural, "namespace": source.namespace, "name": source.name}}}),
                );
                self.reports.insert(title, report.clone());
                self.view.put_report(report)
            }
            Step::NoReport { applied, kind: of, name } => {
                let title = work_status_name(&format!("u{applied}"), &thing(*of, *name), "Kind");
                self.reports.remove(&title);
                self.view.gone_report(&title)
            }
        };
        Affected { sources, kinds: false }
    }

    /// A view that receives the whole present state at once.
    fn anew(&self) -> View {
        let mut view = ready();
        for applied in self.applied.values() {
            view.put_applied(applied);
        }
        for work in self.works.values() {
            view.put_work(work.clone());
        }
        for report in self.reports.values() {
            view.put_report(report.clone());
        }
        for of in [0, 1] {
            let gvr = kind(of);
            if view.wanted().contains(&gvr) {
                view.follow(gvr.clone(), "Kind");
                for (_, object) in self.objects.iter().filter(|((k, _), _)| *k == of) {
                    view.put_object(&gvr, object.clone());
                }
                view.objects_synced(&gvr);
            }
        }
        view
    }
}

/// Returns every object with what is known about it.
fn everything(view: &View) -> Vec<(Source, (Object, Vec<Existing>))> {
    let all = (0..3).flat_map(|of| (0..3).map(move |name| thing(of, name)));
    all.map(|source| (source.clone(), view.look(&source))).collect()
}

proptest! {
    /// OCM-134, KS-201: after any changes the view equals one that receives the final state at once, and no
    /// object changes its result without being returned for processing.
    #[test]
    fn ocm_134_changes_come_to_the_whole(steps in prop::collection::vec(step(), 1..40)) {
        let mut reported = Scene { view: ready(), ..Scene::default() };
        for step in &steps {
            let before = everything(&reported.view);
            // As the agent does when another object owns the name.
            for (source, (object, _)) in &before {
                if let Object::Delivered { holder: Some(_), origin, .. } = object {
                    let name = work_status_name(&origin.applied_uid, source, "Kind");
                    reported.view.wait_for(&name, source);
                }
            }
            let wanted = reported.view.wanted();
            let affected = reported.tell(step);
            let after = everything(&reported.view);
            for ((source, was), (_, is)) in before.iter().zip(&after) {
                let todo = |(object, existing): &(Object, Vec<Existing>)| plan("c1", source, object, existing);
                let (was, is) = (todo(was), todo(is));
                // That another object took the name is noticed at the next write; that a name becomes free is
                // reported.
                let lost = matches!(is.last(), Some(Effect::Conflict { .. }));
                prop_assert!(is.is_empty() || was == is || lost || affected.contains(source), "{step:?}: {source:?} {was:?} {is:?}");
            }
            let anew = reported.anew();
            prop_assert_eq!(reported.view.wanted(), anew.wanted());
            prop_assert_eq!(&after, &everything(&anew), "{:?} of {:?} wanted {:?}", step, steps, wanted);
        }
    }
}

/// The view shows an own write until the watch reports it or a later state; and what a hub reports that was restored from
/// a backup, although it counts from an earlier version.
#[test]
fn ks_148_reports_may_be_older_than_what_was_written() {
    let (mut view, name) = (View::default(), "r");
    let source = Source { gvr: deployments(), namespace: "b".into(), name: "c".into() };
    let report = |version: &str| -> Reported {
        item(json!({"metadata": {"name": name, "uid": "u", "resourceVersion": version}, "spec": {"sourceRef":
            {"group": "apps", "version": "v1", "resource": "deployments", "namespace": "b", "name": "c"}}}))
    };
    let shown =
        |view: &View| view.look(&source).1.into_iter().map(|it| it.resource_version).collect::<Vec<_>>();
    view.put_report(report("10"));
    view.wrote_report(report("12"));
    view.put_report(report("11"));
    assert_eq!(shown(&view), ["12"], "late");
    view.put_report(report("12"));
    view.wrote_report(report("11"));
    assert_eq!(shown(&view), ["12"], "a late answer");
    view.put_report(report("5"));
    assert_eq!(shown(&view), ["5"], "restored");
    // Made and deleted while the watch was interrupted: only a list without it says so.
    view.gone_report(name);
    view.wrote_report(report("13"));
    assert_eq!(shown(&view), ["13"]);
    assert!(view.reports_synced().contains(&source));
    assert_eq!(shown(&view), [""; 0]);
    view.put_report(report("14"));
    view.wrote_report(report("15"));
    view.reports_synced();
    assert_eq!(shown(&view), ["15"], "the watch knows it, and would report its end");
}
