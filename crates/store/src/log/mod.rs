//! The log: what makes writes durable and gives everything back.
//!
//! A directory holds log segments (`log-00000001`…), the parts of at most one snapshot (`snapshot-00000002.0`…) and the
//! [`manifest`], which names them. A write is a group of records at the end of the last segment: one write, one flush. When
//! segments hold much more than state and history need, a snapshot is written beside them by a thread of its own, the
//! manifest is replaced, and the segments that it stands for are removed. Bytes: [`mod@format`]; [`mark`].
//!
//! # What a start makes of what it finds
//!
//! *Every byte is read and checked before anything is served.* A file that is named and is not there, is another one or an
//! older one, a record, a sealed segment or a snapshot part that does not match its checksum: the store is not opened
//! ([`crate::StoreError::Corrupt`]). A store that was closed in order has only sealed files.
//!
//! After a crash the last segment is not sealed. Groups are written one at a time: the next is begun when the one before is
//! durable. So what is not whole was acknowledged if a whole group follows, and it is damage. Without one behind it, it is a
//! write that was interrupted, and is cut, unless the [`mark`] says that it was acknowledged. The mark is exact after a
//! crash of the process. After a power cut it is exact if nothing had been written for a second; otherwise it may lag behind
//! by what the system had not yet written back. So one case remains: the power fails within a second of a write, and the
//! disk damages exactly the group that was acknowledged last. Then that group passes for one that was interrupted.
//!
//! A group that the disk refused is overwritten before its writers are told, so that it does not come back when the process
//! dies before the log is reopened.

pub(crate) mod damage;
pub(crate) mod format;
pub(crate) mod manifest;
pub(crate) mod mark;
pub(crate) mod medium;
pub(crate) mod migrate;
mod open;
mod recovery;
mod repair;
mod replay;
mod scan;
pub(crate) mod snapshot;
mod unreadable;
mod verify;
mod writer;

#[cfg(test)]
pub(crate) use migrate::image;
pub(crate) use open::open;
#[cfg(test)]
pub(crate) use open::open_on;
pub(crate) use repair::repair;
#[cfg(test)]
pub(crate) use repair::repair_on;
pub use repair::{Dropped, Repaired};
pub(crate) use replay::Loaded;
pub(crate) use writer::{Change, Log, SEGMENT_BYTES};
