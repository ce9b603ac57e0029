//! The components alone, each against kubeconfigs, with the flags, endpoints and manners of the Go program it can
//! replace (SP-126, KS-215): what runs inside `up` is the same code.
//!
//! What they share: `goflags` (spelling and logging flags), `connection` (kubeconfigs and limits), `spaces` (finding
//! them by ControlPlane), `election` and `process` (endpoints, turn as leader, end).

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
mod spaces;
pub(crate) mod status_addon;
pub(crate) mod status_agent;
pub(crate) mod transport_controller;
pub(crate) mod work_agent;
pub(crate) mod work_flags;

pub(crate) use goflags::normalise;
