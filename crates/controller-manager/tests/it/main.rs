//! Both controllers over whole spaces in memory: with servers that fail, controllers that come back, and what users see of
//! what clusters report.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod churn;
mod collected;
mod faults;
mod policies;
mod releases;
mod reporting;
mod returned;
mod scene;
mod secrets;
mod spaces;
