//! Webhooks: what their configuration means, calling them, what they answer (MC-100 to MC-111).

mod cache;
mod client;
mod config;
mod credentials;
mod transport;

pub use cache::CacheKey;
pub use client::{Call, HookClient, HookError, HookMetrics};
pub use config::{Endpoint, HookKind, Settings, duration};
pub use credentials::{Credentials, Material, Reference, follow};
