//! The transport controller turns a Binding in the WDS into wrapped objects in the mailbox of each
//! destination.
//!
//! * [`clean`]: what is removed from every object (KS-100 … KS-108); [`identity`] and [`content`]: its
//!   identity, digest and encoding.
//! * [`plugin`]: the interface of a transport (KS-080), and the plugin for OCM (KS-082).
//! * [`shard`] and [`plan`]: pure decisions: which object goes into which envelope, and what to write.
//! * [`customize`]: CustomTransforms, properties of WECs and template expansion.
//! * [`run`]: the controller.

pub mod clean;
pub mod content;
mod controller;
pub mod customize;
pub mod identity;
mod objects;
pub mod plan;
pub mod plugin;
pub mod shard;
mod wrapped;
mod write;

pub use controller::{Config, run};
