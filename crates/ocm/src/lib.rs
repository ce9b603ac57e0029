//! Open Cluster Management: hub, registration agent, work agent and add-ons.
//!
//! * [`work_agent`]: applies in a cluster what the ManifestWorks of its mailbox hold, and reports. It works with any
//!   hub that has the work API, whoever wrote the ManifestWorks.
//! * [`hub`]: accepts clusters, approves their certificates, grants their agents rights, and tells who is there.
//! * [`registration`]: gets a cluster into the inventory of a hub, and keeps it there. Works with any OCM hub.
//! * [`provide`]: makes in a cluster what an agent needs to begin, as far as it may.
//! * [`leave`]: takes out of a cluster what its agents made there.
//! * [`addon`]: add-ons on the hub: placements, installation, identities, deployment, health.
//! * [`enroll`]: does for a cluster that this process serves what administrators do on both sides of the handshake.
//!
//! Each gets clients and a token; none knows whether these lead to embedded spaces.

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
