//! What tests of several crates share.
//!
//! * [`recorded`]: clients whose requests are written down.
//! * [`killing`]: sizes, seeds and comparisons of tests in which agents are killed.

pub mod killing;
pub mod recorded;
