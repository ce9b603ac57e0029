//! The HTTP API of a space: the Kubernetes wire protocol over a [`store`].
//!
//! [`server::ApiServer::call`] answers a request in these steps: authenticate and impersonate, limit the requests in
//! flight, authorise, resolve the resource, decode (types, pruning, defaults), track field ownership, prepare
//! (allocation, built-in admission), validate, commit, encode. Sockets and TLS belong to the caller: a request comes
//! with its [`identity::Caller`] in its extensions.
//!
//! * [`server`], [`path`], [`request`], [`response`], [`error`], [`codec`], [`encode`]: the pipeline, from bytes to
//!   bytes.
//! * `handlers`, `watch`: one generic handler for all kinds.
//! * [`descriptor`], [`catalog`], [`strategy`]: what is served, and how a kind differs from the generic behaviour.
//!   [`builtin`] and [`kinds`] define the built-in kinds, [`crd`] those of CustomResourceDefinitions.
//! * [`authn`], [`authz`], [`tokens`], [`reviews`]: authentication and authorization.
//! * `work`: CPU-heavy work, off the threads that answer requests.
//! * [`discovery`], [`openapi`], [`table`], [`health`], [`version`], `metrics`: what clients can ask about the server.

pub mod admission;
pub mod authn;
pub mod authz;
mod bootstrap;
pub mod builtin;
pub mod catalog;
pub mod codec;
pub mod crd;
pub mod descriptor;
pub mod discovery;
pub mod encode;
pub mod error;
mod handlers;
pub mod health;
pub mod identity;
pub mod kinds;
mod metrics;
pub mod openapi;
pub mod path;
pub mod request;
pub mod response;
pub mod reviews;
pub mod server;
mod service_network;
mod state;
pub mod strategy;
pub mod table;
pub mod tokens;
pub mod version;
mod watch;
mod work;

pub use service_network::{ServiceNetwork, ServiceNetworkError};
