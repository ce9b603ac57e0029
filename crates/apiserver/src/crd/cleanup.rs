//! Deletes the instances of a CustomResourceDefinition that is being deleted (AS-049; spec 6.7).

use std::sync::Arc;

use serde_json::Value;
use store::{Action, Collection, Entry, Expect, Key, Scope, SpaceStore, StoreError, Write};

use super::server_writes::{API_VERSION, KIND, track};
use super::{FINALIZER, status};
use crate::encode;
use crate::kinds::value::{has, int, list, set_at, text};

/// How many instances are deleted concurrently.
const CONCURRENT_DELETES: usize = 64;

/// The collection of a definition's instances.
pub(super) fn instances(crd: &Value) -> Collection {
    Collection::new(text(crd, "spec.group"), text(crd, "spec.names.plural"))
}

/// Whether a definition is waiting for its instances to be deleted.
pub(super) fn is_due(crd: &Value) -> bool {
    has(crd, "metadata.deletionTimestamp") && list(crd, "metadata.finalizers").iter().any(|f| f == FINALIZER)
}

/// Deletes all instances, waits until finalizers release the rest, then removes the definition's finalizer. Each
/// instance costs one write; each change of a waiting instance costs a look at the rest.
pub(super) async fn run(store: &SpaceStore, key: Key, crd: &Value) -> Result<(), StoreError> {
    let collection = instances(crd);
    loop {
        let snapshot = store.snapshot();
        let scope = Scope::all(collection.clone());
        let entries: Vec<Arc<Entry>> = snapshot.view(&collection).iter(None, None).cloned().collect();
        if entries.is_empty() || !owns(crd, &snapshot, &key) {
            break;
        }
        delete_all(store, &entries).await?;
        // The deletions above are events as well, so the next pass sees only the instances that finalizers keep.
        match store.watch(scope, snapshot.revision())?.next().await {
            Ok(_) | Err(StoreError::Compacted { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    release(store, &key, FINALIZER).await
}

/// Whether the instances belong to this definition, and not to another existing definition with the same names.
fn owns(crd: &Value, snapshot: &store::Snapshot, key: &Key) -> bool {
    snapshot.get(key).is_some_and(|entry| *entry.meta.uid == *text(crd, "metadata.uid"))
}

/// Deletes instances concurrently, so that their writes share commits of the store.
async fn delete_all(store: &SpaceStore, entries: &[Arc<Entry>]) -> Result<(), StoreError> {
    for some in entries.chunks(CONCURRENT_DELETES) {
        futures::future::try_join_all(some.iter().map(|entry| delete(store, entry))).await?;
    }
    Ok(())
}

/// Removes instances concurrently, whatever their finalizers are.
pub(super) async fn remove_all(store: &SpaceStore, entries: &[Arc<Entry>]) -> Result<(), StoreError> {
    for some in entries.chunks(CONCURRENT_DELETES) {
        futures::future::try_join_all(some.iter().map(|entry| remove(store, entry))).await?;
    }
    Ok(())
}

/// Deletes one instance, or marks it as deleted if it has finalizers.
async fn delete(store: &SpaceStore, entry: &Arc<Entry>) -> Result<(), StoreError> {
    let Ok(mut object) = serde_json::from_slice::<Value>(&entry.value) else {
        return remove(store, entry).await;
    };
    if list(&object, "metadata.finalizers").is_empty() {
        return remove(store, entry).await;
    }
    if has(&object, "metadata.deletionTimestamp") {
        return Ok(());
    }
    set_at(&mut object, "metadata", "deletionTimestamp", machinery::time::now());
    set_at(&mut object, "metadata", "deletionGracePeriodSeconds", 0);
    let generation = int(&object, "metadata.generation").unwrap_or_default();
    set_at(&mut object, "metadata", "generation", generation + 1);
    let encoded = encode::encode(&object, text(&object, "apiVersion"), text(&object, "kind"));
    write(store, entry, Action::Put(encoded)).await
}

/// Removes an object, whatever its finalizers are.
async fn remove(store: &SpaceStore, entry: &Arc<Entry>) -> Result<(), StoreError> {
    let object: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
    let encoded = encode::encode(&object, text(&object, "apiVersion"), text(&object, "kind"));
    write(store, entry, Action::Delete(encoded)).await
}

/// Writes unless another write came first, which the next pass will see.
async fn write(store: &SpaceStore, entry: &Arc<Entry>, action: Action) -> Result<(), StoreError> {
    let write = Write { key: entry.key.clone(), expect: Expect::At(entry.revision), action };
    match store.commit(write).await {
        Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Writes the last condition and removes the finalizer of the definition.
async fn release(store: &SpaceStore, key: &Key, finalizer: &str) -> Result<(), StoreError> {
    while let Some(entry) = store.snapshot().get(key) {
        let old: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        if !has(&old, "metadata.deletionTimestamp") {
            return Ok(());
        }
        let mut new = old.clone();
        status::set(&mut new, &machinery::time::now(), &status::COMPLETED);
        let mut finalizers = crate::kinds::value::list(&new, "metadata.finalizers").to_vec();
        finalizers.retain(|f| f != finalizer);
        let last = finalizers.is_empty();
        if last {
            crate::kinds::value::remove_at(&mut new, "metadata", "finalizers");
        } else {
            set_at(&mut new, "metadata", "finalizers", finalizers);
        }
        track(&old, &mut new);
        let encoded = encode::encode(&new, API_VERSION, KIND);
        let action = if last { Action::Delete(encoded) } else { Action::Put(encoded) };
        match store.commit(Write { key: key.clone(), expect: Expect::At(entry.revision), action }).await {
            Ok(_) => return Ok(()),
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use serde_json::json;
    use store::{Engine, Revision};

    use super::*;

    /// AS-049: the instances of a definition are deleted concurrently.
    #[tokio::test]
    async fn as_049_instances_do_not_wait_for_each_other() {
        let store = Engine::in_memory().space("s").expect("a space");
        let widgets = Collection::new("ex.com", "widgets");
        for n in 0..10 {
            let name = format!("w{n}");
            let key = Key { collection: widgets.clone(), namespace: "n".into(), name: name.as_str().into() };
            let object = json!({"apiVersion": "ex.com/v1", "kind": "Widget", "metadata": {"name": name}});
            let encoded = encode::encode(&object, "ex.com/v1", "Widget");
            let write = Write { key, expect: Expect::Absent, action: Action::Put(encoded) };
            store.commit(write).await.expect("stored");
        }
        let entries: Vec<_> = store.snapshot().view(&widgets).iter(None, None).cloned().collect();
        let mut watch = store.watch_all(Revision(10)).expect("a watch");
        let mut deleting = Box::pin(delete_all(&store, &entries));
        // Polled once: sequential deletion would write only the first instance.
        let _ = deleting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let all = async {
            for _ in 0..10 {
                watch.next().await.expect("an event");
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), all).await.expect("in time");
    }
}
