use serde_json::{Value, json};

use super::*;
use crate::controller::{
    inputs::put_envelope,
    mailbox::tests::{FakeIts, its_with, labels, live, mailboxes, settle},
};

fn syncer(its: &FakeIts) -> Syncer {
    Syncer::new(Rest::with_manager(its.client.clone(), "test"), mailboxes(its))
}

fn binding(uid: &str, status: &Value) -> Binding {
    serde_json::from_value(json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "Binding",
        "metadata": {"name": "b", "uid": uid, "generation": 1}, "spec": {}, "status": status}))
    .expect("a Binding")
}

#[tokio::test]
async fn ks_013_a_binding_made_anew_gets_its_own_status() {
    let its = its_with(json!({})).await;
    let syncer = syncer(&its);
    let mut memory = BindingMemory::default();
    for (uid, methods) in [("old", 1), ("old", 1), ("new", 2), ("new", 2)] {
        syncer.report(&binding(uid, &Value::Null), Vec::new(), &mut memory).await.expect("reported");
        assert_eq!(its.methods.lock().len(), methods, "{uid}");
    }
    let known = binding("third", &json!({"observedGeneration": 1}));
    syncer.report(&known, Vec::new(), &mut memory).await.expect("reported");
    assert_eq!(its.methods.lock().len(), 2, "its status says so already");
}

#[tokio::test]
async fn ks_098_an_object_of_another_under_the_wanted_name_is_left_alone_and_reported() {
    let cases = [
        (labels("a", "b-c"), "belongs to Binding a of WDS b-c"),
        (labels("a-b", "other"), "belongs to Binding a-b of WDS other"),
        (json!({}), "belongs to no Binding"),
    ];
    for (labels, owner) in cases {
        let its = its_with(live(&labels)).await;
        let syncer = syncer(&its);
        let shared = &syncer.mailboxes.shared;
        let outcome = settle(&its, &syncer.mailboxes).await;
        assert_eq!(*its.methods.lock(), ["POST", "GET"], "nothing is written: {labels}");
        assert_eq!(outcome.failure, None);
        assert_eq!(
            syncer.note_clashes("a-b", &[outcome]),
            [format!(
                "ManifestWork wec/a-b-c-0 is in the way: it {owner}; what it was to hold is not delivered"
            )]
        );
        assert!(shared.with(|state| state.expects_nothing()));
        assert!(shared.queue.is_empty());
        let key = runtime::ObjectKey::new("wec", "a-b-c-0");
        // It was not known to the index; an envelope that comes and goes frees the name.
        put_envelope(shared, "spec", serde_json::from_value(live(&labels)).expect("a wrapped object"));
        shared.event(|state| state.gone_envelope(&key));
        assert_eq!(shared.queue.len(), 1, "tried again once the object is gone");
        assert!(syncer.note_clashes("a-b", &[]).is_empty());
        assert!(shared.with(|state| state.blocks_nothing()));
    }
}
