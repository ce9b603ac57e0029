//! Webhooks: configuration, calls and answers (MC-100 to MC-111).

mod cache;
mod client;
mod config;
mod connect;
mod credentials;
mod transport;

pub use cache::CacheKey;
pub use client::{Call, HookClient, HookError, HookMetrics};
pub use config::{Endpoint, HookKind, Settings};
pub use connect::Proxies;
pub use credentials::{CredentialData, Credentials, Reference, follow};
