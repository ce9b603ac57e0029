//! The transport controller between a WDS and an ITS in memory: what appears in the mailboxes. The tests
//! create Bindings by hand, as any user may (KS-010).

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "spaces/faults.rs"]
mod faults;
#[path = "spaces/scene.rs"]
mod scene;

#[path = "spaces/bad_input.rs"]
mod bad_input;
#[path = "spaces/delivery.rs"]
mod delivery;
#[path = "spaces/failures.rs"]
mod failures;
