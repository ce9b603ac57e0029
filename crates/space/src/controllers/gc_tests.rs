use std::collections::BTreeSet;

use store::{Action as Act, Encoded, Engine, Expect, Meta, SpaceStore, Write};

use super::*;

/// A space of ConfigMaps and Namespaces, with the graph that its events make.
struct World {
    store: SpaceStore,
    graph: Graph,
    kinds: Kinds,
    looked: BTreeSet<String>,
}

fn owner(kind: &str, name: &str, uid: &str, block: bool) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": uid, "blockOwnerDeletion": block})
}

impl World {
    fn new() -> Self {
        let store = Engine::in_memory().space("x").unwrap();
        Self { store, graph: Graph::default(), kinds: Kinds::default(), looked: BTreeSet::new() }
    }

    fn key(namespace: &str, name: &str) -> Key {
        let plural = if namespace.is_empty() { "namespaces" } else { "configmaps" };
        Key { collection: store::Collection::new("", plural), namespace: namespace.into(), name: name.into() }
    }

    /// Puts an object (uid = name) with these owners and finalizers.
    async fn put(&mut self, namespace: &str, name: &str, owners: Value, finalizers: Value, deleting: bool) {
        let mut metadata = json!({"name": name, "ownerReferences": owners, "finalizers": finalizers});
        if deleting {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let key = Self::key(namespace, name);
        let expect = self.store.snapshot().get(&key).map_or(Expect::Absent, |e| Expect::At(e.revision));
        let text = json!({"metadata": metadata}).to_string();
        let meta = Meta { uid: name.into(), ..Meta::default() };
        let encoded = Encoded { head: text.into(), tail: " ".into(), meta };
        // The store writes the revision of the commit between `head` and `tail`, so `head` ends with a key for the revision.
        let encoded = Encoded {
            head: [&encoded.head[..encoded.head.len() - 1], b",\"rv\":"].concat().into(),
            tail: "}".into(),
            ..encoded
        };
        let entry = self.store.commit(Write { key, expect, action: Act::Put(encoded) }).await.unwrap();
        self.graph.put(&entry, &mut |uid| {
            self.looked.insert(uid.to_string());
        });
    }

    async fn remove(&mut self, namespace: &str, name: &str) {
        let key = Self::key(namespace, name);
        let at = self.store.snapshot().get(&key).unwrap();
        let encoded = Encoded { head: "{}".into(), tail: "".into(), meta: at.meta.clone() };
        let write = Write { key, expect: Expect::At(at.revision), action: Act::Delete(encoded) };
        let gone = self.store.commit(write).await.unwrap();
        self.graph.remove(&gone.meta.uid, &mut |uid| {
            self.looked.insert(uid.to_string());
        });
    }

    fn looked(&mut self) -> Vec<String> {
        std::mem::take(&mut self.looked).into_iter().collect()
    }

    /// The action, as one line.
    fn next_action(&self, uid: &str) -> String {
        match self.graph.next_action(&uid.into(), &self.kinds, &self.store.snapshot()) {
            None => "keep".into(),
            Some(Action::Delete { key, policy, .. }) => format!("delete {} {policy}", key.name),
            Some(Action::Prune { key, owners, .. }) => format!("prune {} of {}", key.name, owners.join(",")),
            Some(Action::Unblock { key, .. }) => format!("unblock {}", key.name),
            Some(Action::Finish { key, finalizer, .. }) => format!("finish {} {finalizer}", key.name),
            Some(Action::Orphan { owner, dependents, .. }) => {
                let names: Vec<_> = dependents.iter().map(|(key, _)| &*key.name).collect();
                format!("orphan {} from {}", names.join(","), owner.name)
            }
            Some(Action::Warn { key, .. }) => format!("warn {}", key.name),
            Some(Action::Later) => "later".into(),
        }
    }
}

fn none() -> Value {
    json!([])
}

#[tokio::test]
async fn as_051_dependents_go_when_their_owners_are_gone() {
    let mut w = World::new();
    w.put("n", "owner", none(), none(), false).await;
    w.put("n", "child", json!([owner("ConfigMap", "owner", "owner", false)]), none(), false).await;
    assert_eq!(w.looked(), ["child"]);
    assert_eq!(w.next_action("child"), "keep");
    w.remove("n", "owner").await;
    assert_eq!(w.looked(), ["child"]);
    assert_eq!(w.next_action("child"), "delete child Background");
    w.remove("n", "child").await;
    assert_eq!(
        (w.next_action("child").as_str(), w.graph.dependents.len(), w.graph.nodes.len()),
        ("keep", 0, 0)
    );
}

#[tokio::test]
async fn as_051_an_owner_of_that_name_with_another_uid_is_absent() {
    let mut w = World::new();
    w.put("n", "owner", none(), none(), false).await;
    w.put("n", "child", json!([owner("ConfigMap", "owner", "other-uid", false)]), none(), false).await;
    assert_eq!(w.next_action("child"), "delete child Background");
}

#[tokio::test]
async fn as_051_one_living_owner_keeps_the_object_and_lost_ones_are_pruned() {
    let mut w = World::new();
    w.put("n", "a", none(), none(), false).await;
    let owners = json!([owner("ConfigMap", "a", "a", false), owner("ConfigMap", "b", "b", false)]);
    w.put("n", "child", owners, none(), false).await;
    assert_eq!(w.next_action("child"), "prune child of b");
}

#[tokio::test]
async fn as_051_foreground_waits_for_blocking_dependents_only() {
    let mut w = World::new();
    w.put("n", "owner", none(), none(), false).await;
    w.put("n", "blocking", json!([owner("ConfigMap", "owner", "owner", true)]), none(), false).await;
    w.put("n", "other", json!([owner("ConfigMap", "owner", "owner", false)]), none(), false).await;
    w.looked();
    w.put("n", "owner", none(), json!(["foregroundDeletion"]), true).await;
    assert_eq!(w.looked(), ["blocking", "other", "owner"]);
    assert_eq!(w.next_action("owner"), "keep");
    assert_eq!(w.next_action("blocking"), "delete blocking Background");
    assert_eq!(w.next_action("other"), "delete other Background");
    w.remove("n", "blocking").await;
    assert_eq!(w.looked(), ["owner"]);
    assert_eq!(w.next_action("owner"), "finish owner foregroundDeletion");
}

#[tokio::test]
async fn as_051_a_circle_in_the_foreground_is_broken() {
    let mut w = World::new();
    w.put("n", "a", json!([owner("ConfigMap", "b", "b", true)]), none(), false).await;
    w.put("n", "b", json!([owner("ConfigMap", "a", "a", true)]), none(), false).await;
    w.put("n", "a", json!([owner("ConfigMap", "b", "b", true)]), json!(["foregroundDeletion"]), true).await;
    assert_eq!((w.next_action("a").as_str(), w.next_action("b").as_str()), ("keep", "unblock b"));
}

#[tokio::test]
async fn as_051_orphans_lose_the_reference_and_live() {
    let mut w = World::new();
    w.put("n", "owner", none(), none(), false).await;
    w.put("n", "child", json!([owner("ConfigMap", "owner", "owner", false)]), none(), false).await;
    w.put("n", "owner", none(), json!(["orphan"]), true).await;
    assert_eq!(w.next_action("owner"), "orphan child from owner");
    w.put("n", "child", none(), none(), false).await;
    assert_eq!(w.next_action("owner"), "orphan  from owner");
    w.remove("n", "owner").await;
    assert_eq!(w.next_action("child"), "keep");
}

#[tokio::test]
async fn as_051_owners_in_other_scopes() {
    let mut w = World::new();
    w.put("n", "owner", none(), none(), false).await;
    w.put("", "cluster", json!([owner("ConfigMap", "owner", "owner", false)]), none(), false).await;
    assert_eq!(w.next_action("cluster"), "warn cluster");
    w.put("m", "elsewhere", json!([owner("ConfigMap", "owner", "owner", false)]), none(), false).await;
    assert_eq!(w.next_action("elsewhere"), "delete elsewhere Background");
    w.put("m", "of-cluster", json!([owner("Namespace", "cluster", "cluster", false)]), none(), false).await;
    assert_eq!(w.next_action("of-cluster"), "keep");
}

#[tokio::test]
async fn as_051_an_unknown_kind_of_owner_deletes_nothing() {
    let mut w = World::new();
    w.put("n", "child", json!([owner("Unheard", "of", "u", false)]), none(), false).await;
    assert_eq!(w.next_action("child"), "later");
}

#[tokio::test]
async fn as_051_the_graph_holds_only_what_has_owners() {
    let mut w = World::new();
    for name in ["a", "b", "c"] {
        w.put("n", name, none(), json!(["x/y"]), false).await;
    }
    assert_eq!((w.graph.nodes.len(), w.looked()), (0, vec![]));
}

/// AS-051: an object of another namespace does not keep an owner whose uid it names, not even with a finalizer of its own.
#[tokio::test]
async fn as_051_dependents_of_other_namespaces_do_not_block_an_owner() {
    let mut w = World::new();
    w.put("n", "owner", none(), json!(["foregroundDeletion"]), true).await;
    let names = json!([owner("ConfigMap", "owner", "owner", true)]);
    w.put("foreign", "intruder", names.clone(), json!(["mine/stay"]), true).await;
    assert_eq!(w.next_action("owner"), "finish owner foregroundDeletion");
    w.put("n", "child", names, none(), false).await;
    assert_eq!(w.next_action("owner"), "keep");
}
