//! What whole-system tests share: installations in directories of their own, the real binary run against them,
//! clients, and waits that end when the condition holds or fail at a deadline.

mod installation;
mod objects;
mod random;
mod wait;

pub use installation::{Installation, Server, client_of, gone};
pub use objects::{
    apply_status, config_map, create, deployment, dynamic, names, namespace, policy, resource_version, uid,
};
pub use random::{Random, any_seed};
pub use testkit::wait::{DEADLINE, found, when, within};
pub use wait::{until, until_one};
