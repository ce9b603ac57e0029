//! The whole system: the real binary on loopback, in directories of its own, driven as users drive it.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]
#![allow(unreachable_pub, reason = "the helpers are a module of this program")]

#[path = "../support/mod.rs"]
mod support;

mod acceptance;
mod by_name;
mod components;
mod crash;
mod demo;
mod dropin;
mod environment;
mod faults;
mod fleet;
mod helm;
mod hosting;
mod hub;
mod inventory;
mod isolation;
mod large;
mod leading;
mod lifecycle;
mod link;
mod metacontroller;
mod readme;
mod repair;
mod restart;
mod scenarios;
mod spaces;
