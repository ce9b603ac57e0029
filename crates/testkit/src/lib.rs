//! What tests of several crates share.
//!
//! * [`wait`]: waiting for a condition, with a deadline.
//! * [`killing`]: sizes, seeds and comparisons of tests in which agents are killed.
//! * `ocm`: the resources and conditions of Open Cluster Management (feature `spaces`).
//! * `recorded`: clients whose requests are recorded (feature `spaces`).
//! * `side`: a space in memory, with the requests that tests send to it (feature `spaces`).

pub mod killing;
#[cfg(feature = "spaces")]
pub mod ocm;
#[cfg(feature = "spaces")]
pub mod recorded;
#[cfg(feature = "spaces")]
pub mod side;
pub mod wait;
