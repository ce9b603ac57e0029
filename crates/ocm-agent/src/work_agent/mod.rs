//! The work agent: applies the ManifestWorks of a mailbox in the cluster (`spec` of OCM, section 3).
//!
//! Pure decisions: [`rules`], [`merge`], [`leftover`], [`ignore`], [`jq`], [`conditions`], [`completion`], [`feedback`],
//! [`removal`], [`HubNames`]. Pure state: `records`, `backoff`, `wanted`, `eviction`. The other modules do the I/O.

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
pub mod leftover;
mod manifest;
mod measures;
pub mod merge;
#[cfg(test)]
mod merge_tests;
mod names;
mod orphaned;
mod outcome;
mod pass;
mod records;
pub mod removal;
mod report;
pub mod rules;
mod wanted;

pub use agent::{Config, Error, run};
pub use names::{HubNames, hub_hash};
