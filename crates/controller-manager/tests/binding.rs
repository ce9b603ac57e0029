//! The binding controller with whole spaces in memory, failing servers and restarted controllers.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "binding/scene.rs"]
mod scene;

#[path = "binding/churn.rs"]
mod churn;
#[path = "binding/faults.rs"]
mod faults;
#[path = "binding/policies.rs"]
mod policies;
