//! The work agent: applies the ManifestWorks of a mailbox in the cluster (`spec` of OCM, section 3).
//!
//! * State, pure: `state` takes in events and says what to process; `records`, `backoff`, `wanted`, `measures` and
//!   [`HubNames`] are its parts.
//! * Decisions, pure: `plan` says what to do about each manifest of a work and what to remove; `check` says what holds for
//!   every plan. [`rules`], [`merge`], [`leftover`], [`ignore`], [`jq`], [`conditions`], [`completion`], [`feedback`],
//!   [`removal`] and `eviction` decide single questions.
//! * Execution: `agent` runs watches and workers, `pass` carries out the plan of a work and `manifest` that of one
//!   manifest, `leaving` and `orphaned` remove, `report` writes the status, `feeds` follows the kinds of applied objects.

mod agent;
mod apply;
mod backoff;
mod check;
pub mod completion;
pub mod conditions;
mod config;
mod eviction;
mod executor;
pub mod feedback;
mod feeds;
mod flight;
pub mod ignore;
pub mod jq;
mod leaving;
pub mod leftover;
mod manifest;
mod measures;
pub mod merge;
#[cfg(test)]
mod merge_tests;
mod names;
mod objects;
mod orphaned;
mod outcome;
mod pass;
mod plan;
mod records;
pub mod removal;
mod report;
pub mod rules;
mod shared;
mod state;
mod steps;
mod turns;
mod wanted;

pub use agent::run;
pub use config::{Config, Error};
pub use names::{HubNames, hub_hash};
