//! What tests of several crates share.
//!
//! * [`recorded`]: clients whose requests are recorded.
//! * [`killing`]: sizes, seeds and comparisons of tests in which agents are killed.

pub mod killing;
pub mod recorded;
