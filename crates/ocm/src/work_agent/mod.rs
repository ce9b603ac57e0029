//! The work agent: what a ManifestWork in the mailbox holds is applied in the cluster (`spec` of OCM, section 3).
//!
//! Pure decisions: [`rules`], [`merge`], [`conditions`], [`feedback`], [`removal`]. The rest is shell.

mod agent;
mod apply;
pub mod conditions;
pub mod feedback;
mod leaving;
pub mod merge;
#[cfg(test)]
mod merge_tests;
mod pass;
mod records;
pub mod removal;
mod report;
pub mod rules;

pub use agent::{Config, Error, hub_hash, run};
