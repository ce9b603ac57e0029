//! The HTTP API of a space: Kubernetes' wire protocol over a [`store`].
//!
//! A request's way ([`server::ApiServer::call`]): authenticate and impersonate, find a place among the requests under
//! way, authorise, resolve the resource, decode (types, pruning, defaults), field ownership, prepare (allocation, what
//! admission plug-ins do), validate, commit, encode. Sockets and TLS are somebody else's: a request comes with its
//! [`identity::Caller`] in its extensions.
//!
//! * [`server`], [`path`], [`request`], [`response`], [`error`], [`codec`], [`encode`]: the pipeline and its ends.
//! * `handlers`, `watch`: one generic handler for all kinds.
//! * [`descriptor`], [`catalog`], [`strategy`]: what is served, as data, and what a kind does differently.
//!   [`builtin`] and [`kinds`] have the built-in ones, [`crd`] those of CustomResourceDefinitions.
//! * [`authn`], [`authz`], [`tokens`], [`reviews`]: who is asking, and may they.
//! * `work`: what keeps a processor busy, off the threads that answer.
//! * [`discovery`], [`openapi`], [`table`], [`health`], [`version`], `metrics`: what clients ask about.

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
mod state;
pub mod strategy;
pub mod table;
pub mod tokens;
pub mod version;
mod watch;
mod work;
