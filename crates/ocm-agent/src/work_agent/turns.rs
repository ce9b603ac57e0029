//! One removal of an object at a time.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use tokio::sync::{Mutex, MutexGuard};

use super::rules::Target;

/// Locks by object. One is held while the new owner of an object is decided and written; without it, one work could hand an object
/// over to another work that is releasing it. Objects share a lock by chance, which costs waiting and nothing else.
pub(crate) struct Turns([Mutex<()>; 64]);

impl Default for Turns {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Turns {
    /// Waits for the turn at an object.
    pub(crate) async fn at(&self, target: &Target) -> Option<MutexGuard<'_, ()>> {
        let mut hasher = DefaultHasher::new();
        target.hash(&mut hasher);
        let lock = self.0.get(hasher.finish() as usize % self.0.len())?;
        Some(lock.lock().await)
    }
}
