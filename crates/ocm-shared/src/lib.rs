//! Open Cluster Management: what hub, agents and add-ons share.
//!
//! * [`rbac`]: who may do what on either side.
//! * [`bootstrap`]: what agents need before they have joined.
//! * [`request`], [`csr`]: certificate signing requests, written and read. `der` has the encoding, [`reserved`] the names nobody gets.
//! * [`cluster`], [`addon`], [`conditions`]: what ManagedClusters and add-ons say, and how conditions are written.

pub mod addon;
pub mod bootstrap;
pub mod cluster;
pub mod conditions;
pub mod csr;
pub mod der;
pub mod rbac;
pub mod request;
pub mod reserved;
