//! The binding controller over whole spaces in memory, with servers that fail and controllers that come back.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "binding/scene.rs"]
mod scene;

#[path = "binding/churn.rs"]
mod churn;
#[path = "binding/faults.rs"]
mod faults;
#[path = "binding/policies.rs"]
mod policies;
