//! The MVCC store of spaces.
//!
//! An [`Engine`] keeps many spaces in one log; a [`SpaceStore`] is one of them. Current state is a persistent ordered map
//! in memory; a log of our own below it makes writes durable and gives everything back at start (see `log`).
//!
//! A write goes: [`SpaceStore::commit`] → a place in the bounded backlog → decision (check, number, publish to readers that
//! do not wait for the disk: [`SpaceStore::ahead`]) by the thread that is deciding → journal thread (one group of the log
//! for everything that waits) → snapshot → watchers → answer. Reads touch none of this.
//!
//! When the disk refuses a write, the writes that had not reached it are refused and taken back, the store is read-only
//! ([`Engine::failure`]), and opens itself again when the disk takes writes.

mod aging;
mod committer;
mod compaction;
mod core;
mod engine;
mod error;
mod historical_read;
mod hub;
mod journal;
mod limits;
mod log;
mod published;
mod record;
mod ring;
mod space;
mod state;
#[cfg(test)]
mod tests;
mod topics;
mod tree;
mod types;
mod watch;
mod watcher;

pub use engine::Engine;
pub use error::StoreError;
pub use limits::Limits;
pub use log::{Dropped, Repaired};
pub use space::SpaceStore;
pub use state::{Snapshot, View};
pub use tree::Iter;
pub use types::*;
pub use watch::Watch;
