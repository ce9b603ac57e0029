//! The API of a space, driven by requests.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod certificates;
mod common;
mod crud;
mod custom;
mod generic;
mod hostile;
mod limits;
mod list_watch;
mod protobuf;
mod rights;
mod surface_rbac;
