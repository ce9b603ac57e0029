//! Open Cluster Management: the agents of a cluster.
//!
//! * [`work_agent`]: applies in a cluster what the ManifestWorks of its mailbox hold, and reports. It works with any
//!   hub that has the work API, whoever wrote the ManifestWorks.
//! * [`registration`]: gets a cluster into the inventory of a hub, and keeps it there. Works with any OCM hub.
//! * [`provide`]: makes in a cluster what an agent needs to begin, as far as it may.
//! * [`leave`]: takes out of a cluster what its agents made there.
//!
//! Each gets clients and a token; none knows whether these lead to embedded spaces.

pub mod leave;
pub mod provide;
pub mod registration;
pub mod work_agent;
