use serde_json::{Value, json};

use super::*;
use crate::controller::{Config, deliver::tests::its_with};

fn binding(uid: &str, status: &Value) -> Binding {
    serde_json::from_value(json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "Binding",
        "metadata": {"name": "b", "uid": uid, "generation": 1}, "spec": {}, "status": status}))
    .expect("a Binding")
}

#[tokio::test]
async fn ks_013_a_binding_made_anew_gets_its_own_status() {
    let its = its_with(json!({})).await;
    let controller = Controller::new(&its.client, &its.client, Config::new("c"));
    let mut memory = BindingMemory::default();
    for (uid, methods) in [("old", 1), ("old", 1), ("new", 2), ("new", 2)] {
        controller.report(&binding(uid, &Value::Null), Vec::new(), &mut memory).await.expect("reported");
        assert_eq!(its.methods.lock().len(), methods, "{uid}");
    }
    let known = binding("third", &json!({"observedGeneration": 1}));
    controller.report(&known, Vec::new(), &mut memory).await.expect("reported");
    assert_eq!(its.methods.lock().len(), 2, "its status says so already");
}
