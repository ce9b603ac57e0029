//! What all controllers share: informers, work queues, back-off, shutdown.
//!
//! * [`Source`]: what is followed: a resource of one API server, or a part of it.
//! * [`informer`]: follows a source into a [`Store`] and reports the changes. [`feed`] reports them without
//!   keeping the objects.
//! * [`Inputs`]: the informers of one controller, waited for together. [`InformerSet`]: informers that are
//!   started and stopped at run time.
//! * [`Queue`]: a work queue of keys with de-duplication, one worker per key, back-off and delay.
//! * [`ResourceVersion`]: the order of versions. [`OwnWrite`]: a write that the watch has not reported yet.
//! * [`Coalescer`]: decides when a stream of changes is written.
//! * [`Tasks`], [`TaskPool`]: tasks that have an owner.
//! * [`install`]: installs CustomResourceDefinitions and waits until they are served.
//! * [`election`]: elects one leader among several processes, with a Lease.
//! * [`metrics`], [`endpoints`], [`calls`], [`limiter`]: the metrics of a process, its HTTP endpoints, and a
//!   client that counts its requests and obeys a rate limit.
//! * [`tls`]: what a TLS client accepts and shows, as in Go. [`connect`]: clients of API servers that do so, and whose errors name
//!   the cause.
//! * [`retry_until_done()`]: small jobs that must succeed at some time.
//! * [`events`]: Events on objects, counted and rate-limited.
//! * [`rest`], [`mapper`]: requests and discovery for any resource as plain JSON, for components that learn at
//!   run time which resources they handle. [`Paging`]: lists in pages.
//!
//! What a watch can report is not polled, so an idle controller does nothing. Two things cannot be watched
//! and are polled: a resource that is not served yet, once per second, and the Lease of an election.

pub mod backoff;
pub mod calls;
pub mod coalesce;
pub mod connect;
pub mod election;
pub mod endpoints;
mod escape;
pub mod events;
pub mod failure;
pub mod feed;
mod follow;
pub mod informer;
mod informers;
mod inputs;
pub mod install;
pub mod limiter;
mod log_once;
pub mod mapper;
pub mod metrics;
mod object_key;
mod own_write;
mod page;
pub mod proxies;
pub mod queue;
mod resource_version;
pub mod rest;
mod retry;
mod source;
mod store;
mod tasks;
pub mod tls;
mod watch_event;
mod watched;
mod without_managed_fields;
mod workers;

pub use backoff::Backoff;
pub use coalesce::Coalescer;
pub use informer::{Event, PartialObject};
pub use informers::{Handler, InformerSet};
pub use inputs::Inputs;
pub use install::install;
pub use object_key::ObjectKey;
pub use own_write::{OwnWrite, Report};
pub use page::{Page, Paging};
pub use queue::Queue;
pub use resource_version::ResourceVersion;
pub use retry::retry_until_done;
pub use source::Source;
pub use store::Store;
pub use tasks::{TaskError, TaskPool, Tasks, panic_text};
pub use watched::Watched;
pub use without_managed_fields::WithoutManagedFields;
pub use workers::{Next, work};

/// A component sets this to true once its caches are filled and it works.
pub type Ready = tokio::sync::watch::Sender<bool>;
