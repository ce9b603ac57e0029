//! A space as a whole: API server, certificates, the generic controllers of a Kubernetes control plane, and, for
//! simulated clusters, workload controllers.
//!
//! * [`Space`]: store, keys and API server of one space, and in-process clients ([`Space::client`]).
//! * [`listener`]: one TLS listener for all spaces of a process. [`pki`]: its certificates, and those of each space.
//! * [`controllers`]: the controllers of every control plane. [`workloads`]: the simulation of a cluster's nodes.
//!
//! [`controllers`] and [`workloads`] read the store of their space, where a snapshot shows every earlier write, and
//! write through its API under the same rules as any client. Each uses one watch of the store (`follow`). Nothing here
//! knows about policies or delivery.

mod addressed;
mod by_name;
mod certificate;
mod connections;
pub mod controllers;
mod follow;
mod host;
mod kinds;
pub mod listener;
mod local;
pub mod pki;
mod route;
mod router;
mod space;
#[cfg(test)]
mod testing;
mod timer;
mod tls;
mod unread;
pub mod workloads;

pub use addressed::server_name;
pub use space::{Identity, Space, SpaceConfig, SpaceError, token_issuer};
