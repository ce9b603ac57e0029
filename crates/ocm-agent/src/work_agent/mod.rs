//! The work agent: applies the ManifestWorks of a mailbox in the cluster (`spec` of OCM, section 3).
//!
//! Pure decisions: [`rules`], [`merge`], [`ignore`], [`jq`], [`conditions`], [`completion`], [`feedback`],
//! [`removal`]. Pure state: `records`, `backoff`, `wanted`, `eviction`. The other modules do the I/O.

mod agent;
mod apply;
mod backoff;
pub mod completion;
pub mod conditions;
mod eviction;
mod executor;
pub mod feedback;
pub mod ignore;
pub mod jq;
mod kinds;
mod leaving;
mod manifest;
mod measures;
pub mod merge;
#[cfg(test)]
mod merge_tests;
mod orphaned;
mod outcome;
mod pass;
mod records;
pub mod removal;
mod report;
pub mod rules;
mod wanted;

pub use agent::{Config, Error, hub_hash, run};
