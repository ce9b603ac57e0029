//! A space as a whole: API server, certificates, the generic controllers of a Kubernetes control plane, and,
//! for simulated clusters, workload controllers.
//!
//! * [`Space`]: store, keys and API server of one space, and clients of it without sockets ([`Space::client`]).
//! * [`listener`]: one TLS listener for all spaces of a process. [`pki`]: its certificates, and each space's.
//! * [`controllers`]: what every control plane has. [`workloads`]: what stands for the nodes of a simulated cluster.
//!
//! [`controllers`] and [`workloads`] read the store of their space, where a snapshot shows every earlier write, and write
//! through its API under the same rules as any client. One watch of the store serves each of the two (`follow`).
//! Nothing here knows of policies or of delivery.

pub mod controllers;
mod follow;
mod kinds;
pub mod listener;
mod local;
pub mod pki;
mod space;
pub mod workloads;

pub use space::{Identity, Space, SpaceConfig, SpaceError, token_issuer};
