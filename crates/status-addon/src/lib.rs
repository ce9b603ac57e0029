//! The status add-on's agent: a WorkStatus in the mailbox for every delivered object that has a status.
//!
//! * [`decide`]: pure, from what is known of one object to what its WorkStatus must become.
//! * [`view`]: what the agent knows, kept by four feeds; no client, no await.
//! * [`run`]: the agent. One changed object costs at most one write in the inventory space, whatever else there is.

mod agent;
pub mod decide;
mod items;
mod measures;
mod unserved;
pub mod view;

pub use agent::{Config, Error, run};
