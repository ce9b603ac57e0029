//! Why a call of a hook failed.

use std::time::Duration;

/// Why a call returned nothing usable.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HookError {
    /// The connection failed or broke.
    #[error("http error: {0}")]
    Connect(String),
    /// The host name could not be resolved.
    #[error("http error: {0}")]
    Dns(String),
    /// TLS failed: an untrusted certificate or no common parameters.
    #[error("http error: {0}")]
    Tls(String),
    /// No complete answer within the timeout.
    #[error("http error: no answer within {0:?}")]
    Timeout(Duration),
    /// Too many redirects.
    #[error("http error: more than 10 redirects")]
    Redirects,
    /// 429, with the requested pause.
    #[error("too many requests")]
    TooManyRequests(Option<Duration>),
    /// A code other than 200.
    #[error("unsupported status code: {code} body: {body}")]
    Status { code: u16, body: String },
    /// The body exceeds the limit.
    #[error("the answer is larger than 64 MiB")]
    TooLarge,
    /// The body is not JSON.
    #[error("invalid JSON in the answer: {0}")]
    Decode(String),
    /// The JSON breaks the rules.
    #[error("invalid answer: {0}")]
    Validation(String),
}

impl HookError {
    /// The `reason` label of the counter of failures (MC-206).
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Dns(_) => "dns",
            Self::Tls(_) => "tls",
            Self::Timeout(_) => "timeout",
            Self::Status { .. } | Self::Redirects => "status",
            Self::TooManyRequests(_) => "too_many_requests",
            Self::TooLarge | Self::Decode(_) => "decode",
            Self::Validation(_) => "validation",
        }
    }
}
