//! The result of checking a credential.

use crate::identity::UserInfo;

/// Key in `UserInfo.extra` that identifies the credential.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// A source of credentials that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum AuthnError {
    #[error("client CA: {0}")]
    ClientCa(String),
    #[error("token file, line {line}: {why}")]
    TokenFile { line: usize, why: String },
}

/// An accepted token, and the audiences for which it is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedToken {
    pub user: UserInfo,
    /// Empty for tokens without audiences (static ones).
    pub audiences: Vec<String>,
}
