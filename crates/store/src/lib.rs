//! The MVCC store of spaces.
//!
//! An [`Engine`] keeps many spaces in one journal; a [`SpaceStore`] is one of them. Current state is a
//! persistent ordered map in memory, durability comes from an embedded database below it.
//!
//! A write goes: [`SpaceStore::commit`] → a place in the bounded backlog → decision (check, number, show to those who do
//! not wait for the disk: [`SpaceStore::ahead`]) by whichever writer is at it → journal thread (one disk transaction for
//! all that waits) → snapshot → watchers → answer. Reads touch none of this.

mod committer;
mod disk;
mod engine;
mod error;
mod hub;
mod journal;
mod past;
mod record;
mod space;
mod state;
#[cfg(test)]
mod tests;
mod topics;
mod tree;
mod types;
mod watch;

pub use engine::{Engine, Limits};
pub use error::StoreError;
pub use space::SpaceStore;
pub use state::{Snapshot, View};
pub use tree::Iter;
pub use types::*;
pub use watch::Watch;
