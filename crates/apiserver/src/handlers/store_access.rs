//! Reads and writes of the store by handlers.

use std::sync::Arc;

use serde_json::Value;
use store::{Action, Collection, Encoded, Entry, Expect, Key, Snapshot, SpaceStore, StoreError, Write};

use crate::descriptor::Descriptor;
use crate::error::{ApiError, Cause, Details, Reason};
use crate::strategy::Lookup;

/// How often a write that names no resourceVersion is tried before its client gets a conflict.
pub(super) const WRITE_ATTEMPTS: usize = 6;

/// Reads other objects in one snapshot.
pub(crate) struct StoreLookup {
    snapshot: Snapshot,
}

impl StoreLookup {
    pub(crate) fn new(store: &SpaceStore) -> Self {
        Self { snapshot: store.snapshot() }
    }
}

impl Lookup for StoreLookup {
    fn get(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = key_of(&Collection::new(group, plural), namespace, name);
        let entry = self.snapshot.get(&key)?;
        serde_json::from_slice(&entry.value).ok()
    }

    fn list(&self, group: &str, plural: &str, namespace: Option<&str>) -> Vec<Value> {
        let view = self.snapshot.view(&Collection::new(group, plural));
        view.iter(namespace, None).filter_map(|entry| serde_json::from_slice(&entry.value).ok()).collect()
    }
}

/// Reads the newest state on each call, for decisions that must not use an older one.
pub(crate) struct LiveLookup<'a>(pub &'a SpaceStore);

impl Lookup for LiveLookup<'_> {
    fn get(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        StoreLookup::new(self.0).get(group, plural, namespace, name)
    }

    fn list(&self, group: &str, plural: &str, namespace: Option<&str>) -> Vec<Value> {
        StoreLookup::new(self.0).list(group, plural, namespace)
    }
}

pub(crate) fn key_of(collection: &Collection, namespace: &str, name: &str) -> Key {
    Key { collection: collection.clone(), namespace: namespace.into(), name: name.into() }
}

pub(crate) fn key(d: &Descriptor, namespace: &str, name: &str) -> Key {
    key_of(&d.collection, if d.namespaced { namespace } else { "" }, name)
}

/// Why a commit failed. A conflict has the object that is stored instead.
pub(crate) enum CommitError {
    Conflict(Option<Arc<Entry>>),
    Other(ApiError),
}

pub(crate) async fn put(
    store: &SpaceStore,
    key: Key,
    expect: Expect,
    encoded: Encoded,
) -> Result<Arc<Entry>, CommitError> {
    commit(store, Write { key, expect, action: Action::Put(encoded) }).await
}

pub(crate) async fn remove(
    store: &SpaceStore,
    key: Key,
    expect: Expect,
    last: Encoded,
) -> Result<Arc<Entry>, CommitError> {
    commit(store, Write { key, expect, action: Action::Delete(last) }).await
}

async fn commit(store: &SpaceStore, write: Write) -> Result<Arc<Entry>, CommitError> {
    store.commit(write).await.map_err(|error| match error {
        StoreError::Conflict { actual, .. } => CommitError::Conflict(actual),
        other => CommitError::Other(store_error(&other)),
    })
}

/// The answer to a failure of the store.
pub(crate) fn store_error(error: &StoreError) -> ApiError {
    match error {
        StoreError::Compacted { .. } => {
            ApiError::new(410, Reason::Expired, "The resourceVersion for the provided list is too old.")
        }
        StoreError::Future { asked, current } => revision_too_large(asked.0, current.0),
        StoreError::Closed | StoreError::Disk(_) | StoreError::ReadOnly(_) => {
            ApiError::new(503, Reason::ServiceUnavailable, error.to_string())
        }
        other => ApiError::internal(other),
    }
}

/// 504: the requested revision does not exist yet.
pub(crate) fn revision_too_large(asked: u64, current: u64) -> ApiError {
    let cause = Cause {
        reason: "ResourceVersionTooLarge".into(),
        message: "Too large resource version".into(),
        field: String::new(),
    };
    ApiError::new(
        504,
        Reason::Timeout,
        format!("Timeout: Too large resource version: {asked}, current: {current}"),
    )
    .with_details(Details { causes: vec![cause], retry_after_seconds: Some(1), ..Details::default() })
}
