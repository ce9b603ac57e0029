//! The generic resource handler: one for all kinds, parameterised by a [`Descriptor`](crate::descriptor::Descriptor).

mod binding;
mod connect;
mod context;
mod create;
mod delete;
mod delete_options;
mod dispatch;
mod eviction;
pub(crate) mod list;
mod metadata;
mod object;
pub(crate) mod output;
mod patch;
mod pod_log;
mod read;
mod review;
mod scale;
pub(crate) mod store_access;
mod token;
mod update;
pub(crate) mod watch_request;

pub(crate) use context::RequestContext;
pub(crate) use dispatch::handle;
pub(crate) use read::Presenter;
pub(crate) use store_access::{LiveLookup, StoreLookup, store_error};
