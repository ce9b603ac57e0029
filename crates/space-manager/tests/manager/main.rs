//! The Space Manager against a host space in memory.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod hooks;
mod lifecycle;
mod world;
