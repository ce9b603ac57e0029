//! Open Cluster Management: what hub, agents and add-ons share.
//!
//! * [`rbac`]: the permissions of the components on both sides.
//! * [`bootstrap`]: what agents need before they have joined.
//! * [`request`], [`csr`]: writes certificate signing requests and decides about them. `der` has the
//!   encoding, [`reserved`] the names that no cluster may have.
//! * [`clock`]: times that a clock which was ahead has written.
//! * [`object`]: name and identity of any object.
//! * [`cluster`], [`addon`], [`conditions`]: access to ManagedClusters and add-ons, and the conditions that
//!   several components write.

pub mod addon;
pub mod bootstrap;
pub mod clock;
pub mod cluster;
pub mod conditions;
pub mod csr;
pub mod der;
pub mod object;
pub mod rbac;
pub mod request;
pub mod reserved;
