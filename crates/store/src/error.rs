//! What can go wrong, in terms a caller can act on.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::{Entry, Key, Revision};

/// Every failure of the store. Cheap to clone, because one failed batch answers many callers.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The precondition did not hold; `actual` is what is stored now. Served as 409 (or 404 when nothing is).
    #[error("{}/{}/{} is at revision {}", key.collection.as_str(), key.namespace, key.name,
        actual.as_ref().map_or(0, |entry| entry.revision.0))]
    Conflict { key: Key, actual: Option<Arc<Entry>> },
    /// The watch or page started before the kept history. List again. Served as 410 `Expired`.
    #[error("revision {asked} is gone; history starts after {oldest}")]
    Compacted { asked: Revision, oldest: Revision },
    /// The revision has not been assigned yet. Served as 504 `Timeout` ("Too large resource version").
    #[error("revision {asked} is in the future; the current one is {current}")]
    Future { asked: Revision, current: Revision },
    /// The disk refused this write. It has no effect. Served as 503.
    #[error("writing to the disk: {0}")]
    Disk(#[source] Arc<io::Error>),
    /// The disk refused an earlier write. Reads continue. The store retries until the disk accepts writes again.
    /// Served as 503.
    #[error("the store is read-only, because the disk refuses writes: {0}")]
    ReadOnly(#[source] Arc<io::Error>),
    /// The engine was closed, or the space removed.
    #[error("the store is closed")]
    Closed,
    /// Another process (or engine) has the directory open.
    #[error("{} is in use by another process", path.display())]
    Locked { path: PathBuf },
    /// The directory or file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Access { path: PathBuf, source: Arc<io::Error> },
    /// There is no store where one must be.
    #[error("{} holds no store, although this installation has been in use; restore a backup, or start once with \
        --repair to begin with an empty one", path.display())]
    Missing { path: PathBuf },
    /// The file holds something this program did not write.
    #[error("{} is damaged: {detail}", path.display())]
    Corrupt { path: PathBuf, detail: String },
}
