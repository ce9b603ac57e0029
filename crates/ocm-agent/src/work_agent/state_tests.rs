use serde_json::{Value, json};

use super::*;
use apis::constants::MANIFEST_WORK_FINALIZER;

fn state_of(agent_id: &str) -> State {
    let names = HubNames::new("https://hub");
    let agent_id = if agent_id.is_empty() { names.hash() } else { agent_id };
    State::new(&Config { agent_id: agent_id.into(), ..Config::new("c1", "https://hub") }, names)
}

fn work(uid: &str, more: &Value) -> Event {
    let mut work = json!({"metadata": {"name": "w", "namespace": "c1", "uid": uid, "generation": 1,
        "finalizers": [MANIFEST_WORK_FINALIZER]}, "spec": {"workload": {"manifests": []}}});
    for (key, value) in more.as_object().expect("a map") {
        work["metadata"][key] = value.clone();
    }
    Event::Work(Box::new(serde_json::from_value(work).expect("a work")))
}

fn applied(name: &str, version: u32, more: &Value) -> AppliedManifestWork {
    let hash = HubNames::new("https://hub");
    let mut applied = json!({"metadata": {"name": name, "uid": "u", "resourceVersion": version.to_string()},
        "spec": {"hubHash": hash.hash(), "manifestWorkName": "w", "agentID": hash.hash()}});
    for (key, value) in more.as_object().expect("a map") {
        applied["metadata"][key] = value.clone();
    }
    serde_json::from_value(applied).expect("one")
}

fn items(wakes: &[Wake]) -> Vec<&Item> {
    wakes.iter().map(|wake| &wake.item).collect()
}

/// OCM-073: a work is processed for changes that matter, and then as if it had never failed.
#[test]
fn ocm_073_which_events_of_a_work_count() {
    let (mut state, now) = (state_of(""), Instant::now());
    let mine = Item::Work("w".into());
    let mut event = |event| state.event(event, now);
    let first = event(work("a", &json!({})));
    assert_eq!((items(&first), first[0].anew), (vec![&mine], true));
    assert_eq!(
        event(work("a", &json!({"resourceVersion": "2", "annotations": {"a": "b"}}))),
        [],
        "nothing that counts"
    );
    for more in [
        json!({"generation": 2}),
        json!({"generation": 2, "labels": {"a": "b"}}),
        json!({"generation": 2, "finalizers": []}),
        json!({"generation": 2, "finalizers": [], "deletionTimestamp": "2026-01-01T00:00:00Z"}),
    ] {
        assert_eq!(items(&event(work("a", &more))), [&mine], "{more}");
    }
    assert_eq!(items(&event(Event::WorkGone("w".into()))), [&mine]);
}

/// What is to be done about a work at each moment of its life.
#[test]
fn ocm_095_the_stages_of_a_work() {
    let (mut state, now) = (state_of(""), Instant::now());
    let stage = |state: &State| match state.stage("w") {
        Stage::Gone(applied) => {
            if applied.is_some() {
                "evict"
            } else {
                "forget"
            }
        }
        Stage::Finalize(_) => "finalize",
        Stage::Empty(..) => "empty",
        Stage::Rest => "rest",
        Stage::Apply(_) => "apply",
    };
    assert_eq!(stage(&state), "forget");
    state.event(work("a", &json!({})), now);
    assert_eq!(stage(&state), "apply");
    let name = state.applied_name("w");
    let gone = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    state.event(Event::Applied(Box::new(applied(&name, 3, &gone))), now);
    assert_eq!(stage(&state), "empty");
    state.event(Event::Applied(Box::new(applied(&name, 2, &json!({})))), now);
    assert_eq!(stage(&state), "empty", "an event that was overtaken");
    assert_eq!(
        state.remember_applied(applied(&name, 2, &json!({}))).metadata.resource_version.as_deref(),
        Some("3")
    );
    assert_eq!(stage(&state), "empty", "a response that was overtaken");
    state.event(work("a", &gone), now);
    assert_eq!(stage(&state), "finalize");
    state.event(Event::WorkGone("w".into()), now);
    assert_eq!(stage(&state), "evict");
    state.event(Event::AppliedGone(name), now);
    assert_eq!(stage(&state), "forget");
}

/// OCM-095, OCM-096: AppliedManifestWorks of this hub wake their work, those of others are looked after by themselves; one under
/// the other spelling of the hub's address counts as another hub's once there is one of the proper name.
#[test]
fn ocm_096_whom_an_applied_work_wakes() {
    let (mut state, now) = (state_of(""), Instant::now());
    let event = |state: &mut State, name: &str, version| {
        let wakes = state.event(Event::Applied(Box::new(applied(name, version, &json!({})))), now);
        wakes.into_iter().map(|wake| wake.item).collect::<Vec<_>>()
    };
    let older = format!("{}-w", HubNames::new("https://hub/").hash());
    let proper = format!("{}-w", HubNames::new("https://hub").hash());
    assert_eq!(event(&mut state, "else-w", 1), [Item::Foreign("else-w".into())]);
    assert_eq!(event(&mut state, &older, 1), [Item::Work("w".into())], "continued under its name");
    assert_eq!(event(&mut state, &older, 2), [], "known");
    assert_eq!(event(&mut state, &proper, 1), [Item::Foreign(older.clone()), Item::Work("w".into())]);
    assert!(state.foreign(&older).is_some() && state.foreign(&proper).is_none());
}

/// Work is done only once both lists are complete.
#[test]
fn ocm_073_nothing_is_decided_before_everything_is_known() {
    let (mut state, now) = (state_of(""), Instant::now());
    assert!(!state.is_complete());
    state.event(Event::AppliedListed, now);
    assert!(!state.is_complete());
    state.event(Event::WorksListed, now);
    assert!(state.is_complete());
}

/// OCM-073: what failed is taken again, together with what came meanwhile; without anything to do the timers decide.
#[test]
fn ocm_073_what_was_not_done_is_taken_again() {
    let (mut state, now) = (state_of(""), Instant::now());
    state.event(work("a", &json!({})), now);
    let todo = state.begin("w", now).expect("something to do");
    assert!(todo.changed && state.begin("w", now).is_none(), "taken once");
    state.failed("w", todo);
    assert!(state.begin("w", now).is_some_and(|todo| todo.changed));
    assert_eq!(state.rest("w", now), Next::OnChange);
    state.passed("w", true, now);
    assert!(matches!(state.rest("w", now), Next::After(pause) if pause >= Duration::from_secs(240)));
    let later = now + Duration::from_secs(600);
    assert!(state.begin("w", later).is_some_and(|todo| todo.everything));
    state.set_leaving("w", Some(Duration::from_secs(2)));
    assert!(matches!(state.rest("w", now), Next::After(pause) if pause <= Duration::from_secs(2)));
    state.freeze("w");
    assert_eq!(state.rest("w", later), Next::OnChange);
}

/// OCM-071, OCM-096: an agent that got an ID continues with the AppliedManifestWorks that it created for
/// this hub without one, and leaves those of other agents alone.
#[test]
fn ocm_071_whose_an_applied_work_is() {
    let state = state_of("ship");
    let hash = |url: &str| HubNames::new(url).hash().to_owned();
    let (this, other) = (hash("https://hub"), hash("https://other"));
    for (hub, agent, own) in [
        (&this, "ship", true),
        (&other, "ship", true),
        (&this, this.as_str(), true),
        (&hash("https://hub/"), &hash("https://hub/"), true),
        (&other, other.as_str(), false),
        (&other, this.as_str(), false),
        (&this, "boat", false),
    ] {
        let spec = AppliedManifestWorkSpec {
            hub_hash: hub.clone(),
            manifest_work_name: "w".into(),
            agent_id: agent.into(),
        };
        assert_eq!(state.is_own(&spec), own, "{hub} {agent}");
    }
}

/// OCM-162: the last written status of a work is not used for another work of its name.
#[test]
fn ocm_162_a_work_made_anew_has_no_status_yet() {
    let (mut state, now) = (state_of(""), Instant::now());
    state.event(work("a", &json!({})), now);
    let old = state.work_of("w").expect("a work");
    state.event(work("b", &json!({})), now);
    let new = state.work_of("w").expect("a work");
    let mut status = ManifestWorkStatus::default();
    status.conditions.push(super::super::conditions::work_failed(
        "x",
        1,
        &k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH),
    ));
    state.remember_status("w", &old, status.clone());
    assert_eq!(state.last_status("w", &old), status);
    assert_eq!(state.last_status("w", &new), ManifestWorkStatus::default());
}
