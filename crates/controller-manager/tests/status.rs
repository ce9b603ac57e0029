//! The status controller between two whole spaces in memory: what users see of the clusters' reports.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "status/collected.rs"]
mod collected;
#[path = "status/reporting.rs"]
mod reporting;
#[path = "status/returned.rs"]
mod returned;
#[allow(dead_code, reason = "shared with tests that use other parts of it")]
#[path = "binding/scene.rs"]
mod scene;
