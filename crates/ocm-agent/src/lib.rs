//! Open Cluster Management: the agents of a cluster.
//!
//! * [`work_agent`]: applies the ManifestWorks of a mailbox in a cluster, and reports. It works with any hub
//!   that has the work API, by whichever program the ManifestWorks were created.
//! * [`registration`]: registers a cluster with a hub and keeps it registered. It works with any OCM hub.
//! * [`provide`]: creates in a cluster what an agent needs to start, as far as permissions allow.
//! * [`leave`]: removes from a cluster what its agents created there.
//!
//! Each gets clients and a token; none knows whether the clients lead to embedded spaces.

pub mod leave;
pub mod provide;
pub mod registration;
pub mod work_agent;
