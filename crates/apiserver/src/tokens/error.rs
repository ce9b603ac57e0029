//! Why a token cannot be signed or is not accepted.

#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("service-account key: {0}")]
    Key(String),
    #[error("invalid token: {0}")]
    Invalid(String),
}

pub(super) fn key_error(error: impl std::fmt::Display) -> TokenError {
    TokenError::Key(error.to_string())
}
