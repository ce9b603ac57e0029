use std::collections::BTreeSet;

use serde_json::json;

use super::{
    super::work::{Todo, Work},
    *,
};
use crate::plan::Items;

fn state() -> State {
    State::new("w")
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("wec", name)
}

/// An envelope of a WDS and a Binding, in this version, with this digest.
fn envelope(wds: &str, binding: &str, version: &str, digest: u8) -> KnownEnvelope {
    let metadata = json!({"namespace": "wec", "name": "e", "uid": "u", "resourceVersion": version, "labels":
        {"transport.kubestellar.io/originOwnerReferenceBindingKey": binding,
         "transport.kubestellar.io/originWdsName": wds}});
    let metadata = serde_json::from_value(metadata).expect("metadata");
    KnownEnvelope::new(&metadata, [digest; 32], Arc::default(), Items::default())
}

fn leaving(wds: &str, binding: &str, version: &str) -> KnownEnvelope {
    KnownEnvelope { deleting: true, ..envelope(wds, binding, version, 1) }
}

fn binding(uid: &str, generation: i64, destinations: &[&str]) -> Binding {
    let destinations: Vec<_> = destinations.iter().map(|d| json!({"clusterId": d})).collect();
    serde_json::from_value(json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "Binding",
        "metadata": {"name": "b", "uid": uid, "generation": generation}, "spec": {"destinations": destinations}}))
    .expect("a Binding")
}

fn sync(binding: &str) -> Todo {
    Todo::sync([binding.to_owned()])
}

/// KS-066, KS-085: nothing is decided before every input is known.
#[test]
fn ks_085_work_begins_once_every_input_is_listed() {
    let mut state = state();
    let (last, first) = Input::ALL.split_last().expect("inputs");
    for input in first {
        assert!(!state.listed(*input) && !state.listed(*input), "{input:?}");
    }
    assert!(state.listed(*last));
}

/// KS-084: which events of an envelope cause work.
#[test]
fn ks_084_an_envelope_as_it_should_be_causes_no_work() {
    for (what, expected, seen, todo) in [
        ("as expected", Some(1), envelope("w", "b", "7", 1), Todo::nothing()),
        ("changed by another client", Some(1), envelope("w", "b", "7", 2), sync("b")),
        ("deleted by another client", Some(1), leaving("w", "b", "7"), sync("b")),
        ("surplus", None, envelope("w", "b", "7", 1), sync("b")),
        ("deleted by this controller", None, leaving("w", "b", "7"), Todo::nothing()),
        ("of another WDS", None, envelope("v", "b", "7", 1), Todo::nothing()),
    ] {
        let mut state = state();
        if let Some(digest) = expected {
            state.expect("wec", "e", [digest; 32]);
        }
        assert_eq!(state.put_envelope(key("e"), seen), todo, "{what}");
        let foreign = state.envelopes().foreign_changes(&state.origin("b"));
        assert_eq!(foreign.is_empty(), todo == Todo::nothing(), "{what}");
    }
}

/// KS-084: an envelope that another client deleted is made again.
#[test]
fn ks_084_only_an_expected_envelope_is_missed() {
    for (expected, todo) in [(true, sync("b")), (false, Todo::nothing())] {
        let mut state = state();
        state.expect("wec", "e", [1; 32]);
        state.put_envelope(key("e"), envelope("w", "b", "7", 1));
        if !expected {
            state.expect_nothing("wec", "e");
        }
        assert_eq!(state.gone_envelope(&key("e")), todo);
        assert_eq!(state.gone_envelope(&key("e")), Todo::nothing(), "it is gone already");
    }
}

/// KS-084: an envelope that was made and deleted while the watch was interrupted is made again: no event reports its end,
/// only a list without it. An envelope that the watch has reported before stays until its end is reported.
#[test]
fn ks_084_an_envelope_that_is_missing_in_a_list_is_made_again() {
    let mut state = state();
    let origin = state.origin("b");
    for name in ["new", "updated"] {
        state.expect("wec", name, [1; 32]);
    }
    state.put_envelope(key("updated"), envelope("w", "b", "5", 1));
    state.wrote_envelope(&key("updated"), envelope("w", "b", "7", 1), &origin);
    state.wrote_envelope(&key("new"), envelope("w", "b", "8", 1), &origin);
    assert_eq!(state.envelopes_listed(), sync("b"));
    assert!(state.envelopes().get(&key("new")).is_none());
    assert!(state.envelopes().get(&key("updated")).is_some());
    assert_eq!(state.envelopes_listed(), Todo::nothing());
    state.wrote_envelope(&key("new"), envelope("w", "b", "9", 1), &origin);
    state.put_envelope(key("new"), envelope("w", "b", "9", 1));
    assert_eq!(state.envelopes_listed(), Todo::nothing(), "it was in the list");
}

/// KS-098: a Binding that waits for a name is processed at once when the name is free, or has another owner.
#[test]
fn ks_098_a_free_name_wakes_those_that_wait_for_it() {
    for gone in [true, false] {
        let mut state = state();
        state.expect("wec", "e", [1; 32]);
        state.put_envelope(key("e"), envelope("w", "other", "7", 1));
        state.set_blocked("b", [key("e"), key("f")]);
        let todo = if gone {
            state.expect_nothing("wec", "e");
            state.gone_envelope(&key("e"))
        } else {
            state.put_envelope(key("e"), envelope("w", "third", "8", 1))
        };
        assert_eq!(todo.at_once, BTreeSet::from([Work::Sync("b".into())]), "gone: {gone}");
        state.set_blocked("b", []);
        assert!(state.blocks_nothing());
    }
}

/// KS-085: the status controller's and this controller's own writes of a Binding cause no work.
#[test]
fn ks_085_only_what_matters_of_a_binding_causes_work() {
    let mut state = state();
    let at_once = Todo::sync_at_once(["b".to_owned()]);
    assert_eq!(state.put_binding(binding("u", 1, &[])), at_once);
    let mut reported = binding("u", 1, &[]);
    reported.status = serde_json::from_value(json!({"observedGeneration": 1})).ok();
    assert_eq!(state.put_binding(reported), Todo::nothing());
    assert_eq!(state.put_binding(binding("u", 2, &[])), at_once);
    assert_eq!(state.put_binding(binding("v", 2, &[])), at_once);
    assert_eq!(state.gone_binding("b".into()), sync("b"));
}

/// What was remembered of a Binding does not count for another one of its name (KS-013).
#[test]
fn ks_013_a_new_binding_begins_without_memory() {
    let mut state = state();
    let mut memory = state.take_memory("b", &binding("u", 1, &[]));
    memory.layout = Some(super::super::layout::Layout::default());
    state.keep_memory("b", memory);
    let memory = state.take_memory("b", &binding("u", 2, &[]));
    assert!(memory.layout.is_some());
    state.keep_memory("b", memory);
    assert!(state.take_memory("b", &binding("v", 1, &[])).layout.is_none());
}

/// A cluster whose deletion was undone gets its objects again: the Bindings that list it are processed.
#[test]
fn a_cluster_that_is_back_gets_its_objects() {
    let mut state = state();
    state.put_binding(binding("u", 1, &["c1"]));
    let cluster = |terminating| Some(Inventory { terminating, ..Inventory::default() });
    assert_eq!(state.put_cluster("c1", cluster(false)), Todo::nothing());
    assert_eq!(state.put_cluster("c1", cluster(true)), Todo::nothing());
    assert_eq!(state.put_cluster("c2", cluster(true)), Todo::nothing());
    assert_eq!(state.put_cluster("c2", None), Todo::nothing(), "nobody lists it");
    assert_eq!(state.put_cluster("c1", None), sync("b"));
}
