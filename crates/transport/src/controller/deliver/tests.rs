use std::{convert::Infallible, time::Duration};

use kube::{Client, client::Body};
use serde_json::json;
use tokio::sync::Barrier;

use super::*;
use crate::{
    content::Original,
    controller::mailbox::tests::{its_with, mailboxes, mailboxes_of},
};

/// An object of this name that requests customisation.
fn templated(name: &str) -> Wrapee {
    let object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": name, "namespace": "n", "annotations": {"control.kubestellar.io/expand-templates": "true"}}});
    let original = Original { resource: "roles".into(), uid: name.into(), ..Original::default() };
    let content = Content {
        templated: crate::customize::expand::Templated::of(&object).map(Arc::new),
        ..Content::new(&object, original).expect("complete")
    };
    Wrapee { content: Arc::new(content), create_only: false }
}

/// KS-126, KS-097: two objects whose templates expand to the same object would overwrite each other in the
/// cluster. The second is reported, with the first destination where that happens.
#[tokio::test]
async fn ks_126_two_objects_that_expand_to_one_are_told() {
    let its = its_with(json!({})).await;
    let mailboxes = mailboxes(&its);
    for (cluster, a, b) in [("atlas", "x", "y"), ("boreas", "x", "x"), ("cygnus", "y", "x")] {
        let properties = [("a".to_owned(), a.to_owned()), ("b".to_owned(), b.to_owned())];
        let map = Some(properties.into());
        mailboxes.shared.with(|state| state.adaptation_mut().put_property_map(cluster, map));
    }
    let origin = Origin { wds: "c".into(), binding: "b".into() };
    let all = [templated("{{.a}}"), templated("plain"), templated("{{.b}}"), templated("{{.b}}")];
    let (plain_last, plain_first) =
        ([templated("{{.b}}"), templated("y")], [templated("x"), templated("{{.a}}")]);
    for (wrapees, places, reported) in [
        (&all[..3], vec!["atlas"], vec![]),
        (&all[..3], vec!["atlas", "boreas"], vec!["boreas/Role.rbac.authorization.k8s.io(n/{{.b}}): it and"]),
        (&all[2..], vec!["boreas"], vec![]),
        (&plain_last[..], vec!["atlas"], vec!["atlas/Role.rbac.authorization.k8s.io(n/y): it and"]),
        (
            &plain_first[..],
            vec!["atlas", "boreas", "cygnus"],
            vec!["atlas/Role.rbac.authorization.k8s.io(n/{{.a}}): it and"],
        ),
    ] {
        let (mut memory, mut errors) = (BindingMemory::default(), Vec::new());
        let delivery = Delivery {
            origin: &origin,
            names: Names { binding: "b", binding_uid: "u", wds: "c" },
            destinations: places.iter().copied().collect(),
            there: BTreeMap::new(),
            foreign_changes: HashMap::new(),
        };
        let done = mailboxes.shards_each(&delivery, wrapees, &mut memory, &mut errors).await;
        let (_, frozen) = done.expect("expanded");
        assert_eq!(frozen, !reported.is_empty(), "KS-127: nothing new is propagated then");
        assert_eq!(errors.len(), reported.len(), "{errors:?}");
        for (line, about) in errors.iter().zip(reported) {
            assert!(line.starts_with(&format!("template: {about}")), "{line}");
        }
    }
}

/// KS-093: the mailboxes of a Binding are written at the same time, and so are those of several Bindings. The server answers
/// no creation before all of them have arrived, so writes one after the other would never end.
#[tokio::test]
async fn ks_093_mailboxes_are_written_at_the_same_time() {
    const CLUSTERS: usize = 5;
    const BINDINGS: usize = 3;
    let all_arrived = Arc::new(Barrier::new(CLUSTERS * BINDINGS));
    let its = tower::service_fn(move |request: http::Request<Body>| {
        let all_arrived = all_arrived.clone();
        async move {
            assert_eq!(request.method(), http::Method::POST);
            all_arrived.wait().await;
            let made = json!({"metadata": {"name": "made", "uid": "u", "resourceVersion": "7"}}).to_string();
            Ok::<_, Infallible>(
                http::Response::builder().status(201).body(Body::from(made.into_bytes())).unwrap(),
            )
        }
    });
    let mailboxes = mailboxes_of(Client::new(its, "default"));
    let deliver = async |name: String| {
        let destinations: Vec<_> = (0..CLUSTERS).map(|n| json!({"clusterId": format!("c{n}")})).collect();
        let binding = json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "Binding",
            "metadata": {"name": name, "uid": name, "generation": 1}, "spec": {"destinations": destinations}});
        let binding = serde_json::from_value(binding).expect("a Binding");
        let object =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "n"}});
        let content = Content::new(&object, Original::default()).expect("complete");
        let wrapees = vec![Wrapee { content: Arc::new(content), create_only: false }];
        let mut memory = BindingMemory::default();
        let delivered = mailboxes.deliver(&binding, wrapees, &mut memory).await.expect("delivered");
        (delivered, memory)
    };
    let names: Vec<String> = (0..BINDINGS).map(|n| format!("b{n}")).collect();
    let all = futures::future::join_all(names.into_iter().map(deliver));
    let all = tokio::time::timeout(Duration::from_secs(60), all).await.expect("together");
    for (Delivered { outcomes, errors }, memory) in all {
        let places: Vec<&str> = outcomes.iter().map(|outcome| outcome.place.as_str()).collect();
        assert_eq!(places, ["c0", "c1", "c2", "c3", "c4"], "in order");
        assert!(outcomes.iter().all(Outcome::is_in_order) && errors.is_empty());
        assert_eq!(memory.layout.map(|layout| layout.settled.len()), Some(CLUSTERS));
    }
}
