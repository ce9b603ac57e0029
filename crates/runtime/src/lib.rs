//! What all controllers share: informers, work queues, back-off, shutdown.
//!
//! * [`informer`]: follows one resource of one API server into a [`Store`], handing out deltas.
//! * [`InformerSet`]: informers that come and go at run time.
//! * [`Queue`]: keyed work with de-duplication, exclusivity, back-off and delay.
//! * [`Coalescer`]: when a stream of changes is to be written down.
//! * [`Tasks`]: tasks with an owner.
//! * [`install`]: CustomResourceDefinitions, until they are served.
//! * [`election`]: one leader among several processes, by a Lease.
//! * [`metrics`], [`endpoints`], [`calls`], [`limiter`]: what a process counts and serves, and how hard it may ask.
//! * [`persist()`]: small things that have to be done sooner or later.
//! * [`events`]: Events on objects, counted and within bounds.
//! * [`rest`], [`mapper`], [`feed`]: any resource as plain JSON, for components that learn at run time what they
//!   handle: requests, discovery, projected watches.
//!
//! What a watch tells is not polled for: an idle controller does nothing. Two things have no watch and are asked for: a
//! resource that is not served yet, every second, and the Lease of an election.

pub mod backoff;
pub mod calls;
pub mod coalesce;
pub mod election;
pub mod endpoints;
pub mod events;
pub mod failure;
pub mod feed;
mod follow;
pub mod informer;
mod informers;
pub mod install;
pub mod limiter;
mod line;
pub mod mapper;
pub mod metrics;
mod page;
mod persist;
pub mod queue;
pub mod rest;
mod store;
mod tasks;
mod told;
mod unmanaged;

pub use backoff::Backoff;
pub use coalesce::Coalescer;
pub use informer::{Event, Light, Source, Watched};
pub use informers::{Handler, InformerSet};
pub use install::install;
pub use page::Page;
pub use persist::persist;
pub use queue::{Next, Queue, work};
pub use store::{ObjectKey, Store};
pub use tasks::{TaskError, Tasks, guarded, panic_text};

/// Set to true by a component once its caches are filled and it works.
pub type Ready = tokio::sync::watch::Sender<bool>;
