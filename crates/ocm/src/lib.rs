//! Open Cluster Management: hub, registration agent, work agent and add-ons.
//!
//! * [`work_agent`]: applies the ManifestWorks of a mailbox in a cluster, and reports. It works with any hub
//!   that has the work API, whoever created the ManifestWorks.
//! * [`hub`]: accepts clusters, approves their certificates, grants permissions to their agents, and reports
//!   which clusters are available.
//! * [`registration`]: registers a cluster with a hub and keeps it registered. It works with any OCM hub.
//! * [`provide`]: creates in a cluster what an agent needs to start, as far as permissions allow.
//! * [`leave`]: removes from a cluster what its agents created there.
//! * [`addon`]: add-ons on the hub: placements, installation, identities, deployment, health.
//! * [`enroll`]: does the part of the administrators, on both sides of the handshake, for a cluster that this
//!   process serves.
//!
//! Each gets clients and a token; none knows whether the clients lead to embedded spaces.

pub mod addon;
mod condition;
mod der;
pub mod enroll;
pub mod hub;
pub mod leave;
pub mod provide;
pub mod rbac;
pub mod registration;
pub mod work_agent;
