//! The components as processes of their own, connected by kubeconfigs, with the flags, endpoints and exit codes of the Go
//! programs that they replace (SP-126, KS-215). `up` runs the same code.
//!
//! They share `goflags` (spellings of flags, logging flags), `connection` (kubeconfigs and limits), `spaces` (finds a space
//! by its ControlPlane), `election` and `process` (endpoints, leader election, shutdown).

mod connection;
pub(crate) mod controller_manager;
mod election;
mod entry;
pub(crate) mod get_kubeconfig;
mod goflags;
pub(crate) mod metacontroller;
pub(crate) mod ocm;
mod process;
mod secure;
pub(crate) mod space_manager;
mod spaces;
pub(crate) mod status_addon;
pub(crate) mod status_agent;
pub(crate) mod transport_controller;
pub(crate) mod work_agent;
pub(crate) mod work_flags;

pub(crate) use goflags::{KlogFlags, boolean, normalise};
