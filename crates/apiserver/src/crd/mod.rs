//! CustomResourceDefinitions: validation, the resources that they define, and their life cycle (spec 6).
//!
//! One [`Follower`] per space watches them. An event costs the work of one definition (compiling its schemas if its
//! spec has changed) and one new [`crate::catalog::Catalog`], whose size is the number of served resources. A burst of
//! events makes one catalog.

mod cleanup;
mod compile;
mod definition;
mod follower;
mod server_writes;
mod status;
mod strategy;
mod supervise;
#[cfg(test)]
mod tests;
mod validation;
mod versions;

pub use self::compile::descriptors;
pub(crate) use self::definition::DEFINITION;
pub use self::follower::Follower;
pub use self::strategy::CustomStrategy;
pub use self::supervise::{FollowerHealth, supervise};

use store::Collection;

pub(crate) const GROUP: &str = "apiextensions.k8s.io";
pub(crate) const PLURAL: &str = "customresourcedefinitions";

/// The collection of CustomResourceDefinitions.
pub(crate) fn collection() -> Collection {
    Collection::new(GROUP, PLURAL)
}

/// Keeps a definition until its instances are deleted.
pub(crate) const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
