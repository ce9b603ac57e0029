//! Webhooks: configuration, calls and answers (MC-100 to MC-111).

mod cache;
mod client;
mod config;
mod connect;
mod counters;
mod credentials;
mod error;
mod renewal;
mod transport;

pub use cache::CacheKey;
pub use client::{Call, HookClient};
pub use config::{Endpoint, HookKind, Settings};
pub use counters::HookMetrics;
pub use credentials::{CredentialData, Credentials, Reference};
pub use error::HookError;
pub use renewal::follow;
