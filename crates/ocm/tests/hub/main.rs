//! The hub's controllers and registration agents with whole spaces in memory: real signing requests, real
//! certificates.

mod joining;
mod killed;
#[path = "../support/killing.rs"]
mod killing;
mod lasting;
mod leaving;
mod mailboxes;
mod many;
#[path = "../support/recorded.rs"]
mod recorded;
mod requests;
mod rights;
mod rotation;
mod sets;
mod silence;
mod world;
