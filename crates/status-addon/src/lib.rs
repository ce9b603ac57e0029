//! The agent of the status add-on: writes a WorkStatus into the mailbox for every delivered object that has a
//! status.
//!
//! * [`decide`]: pure; decides about the WorkStatus of one object.
//! * [`view`]: the state of the agent, updated from four feeds; no client, no await.
//! * [`run`]: the agent. One changed object costs at most one write in the inventory space, independent of
//!   everything else.

mod agent;
pub mod decide;
mod items;
mod measures;
mod unserved;
pub mod view;

pub use agent::{Config, run};
