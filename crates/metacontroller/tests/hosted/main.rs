//! Hosted controllers with a whole space in memory and a scripted hook server.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]
#![allow(clippy::pedantic, reason = "scripts, not a library")]
#![allow(clippy::disallowed_names, reason = "Foo is what the kind is called")]
#![allow(unreachable_pub, reason = "modules of one test program")]

mod careless;
mod children;
mod client;
mod composite;
mod decorator;
mod definitions;
mod hook;
mod incremental;
mod inputs;
mod misbehaviour;
mod objects;
mod ownership;
mod rolling;
mod secure;
mod selectors;
mod sharing;
mod snapshots;
mod tombstone;
mod undeclared;
mod world;
mod writing;
