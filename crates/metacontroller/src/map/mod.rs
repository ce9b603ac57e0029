//! The MapController creates outputs for each parent from each of the inputs that the parent selects (MC-001
//! to MC-097).
//!
//! The unit of work, retry and concurrency is one parent and one input. [`mapping`] decides from the caches
//! what an item needs; [`work`] calls the hook and writes; [`run`] turns events into items. Pure parts:
//! [`key`], [`selector`], [`answer`], [`group`], [`status`], [`parents`].

pub mod answer;
pub mod group;
pub mod key;
pub mod mapping;
pub mod parents;
pub mod run;
pub mod selector;
pub mod setup;
pub mod status;
pub mod work;
