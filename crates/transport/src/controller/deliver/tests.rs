use serde_json::json;

use super::*;
use crate::{
    content::Original,
    controller::mailbox::tests::{its_with, mailboxes},
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
