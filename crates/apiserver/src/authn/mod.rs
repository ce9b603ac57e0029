//! Authentication: client certificates, bearer tokens, impersonation (spec 8.1, 8.2).

use std::collections::HashMap;
use std::sync::Arc;

use http::header::AUTHORIZATION;

use crate::error::{ApiError, Reason};
use crate::identity::{Caller, UserInfo};
use crate::strategy::Lookup;
use crate::tokens;

mod bootstrap_token;
mod certificate;
mod credential;
mod impersonation;
mod token_file;
pub mod version_1;

pub use credential::{AcceptedToken, AuthnError, CREDENTIAL_ID};
pub use impersonation::impersonate;
pub use token_file::parse_token_file;

use certificate::ClientCa;

/// The group of all callers with a credential.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of all callers without a credential.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// How callers without credentials are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Anonymous {
    /// 401.
    Off,
    /// `system:anonymous` on health and version paths, 401 elsewhere.
    Paths,
    /// `system:anonymous` everywhere. The authorizer decides what it may do: with the default roles, health and
    /// version. A stock server works like this, and answers 403 where `Paths` answers 401.
    #[default]
    On,
}

/// One line of a token file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticToken {
    pub token: String,
    pub user: UserInfo,
}

/// The credentials that an [`Authenticator`] accepts.
#[derive(Clone, Default)]
pub struct AuthnConfig {
    /// PEM bundle of the CAs that sign client certificates of this space.
    pub client_ca: Option<String>,
    /// The entries of the token file.
    pub tokens: Vec<StaticToken>,
    pub service_accounts: Option<Arc<tokens::Issuer>>,
    pub anonymous: Anonymous,
}

/// Checks the credentials of requests to one space.
pub struct Authenticator {
    client_ca: Option<ClientCa>,
    tokens: HashMap<String, UserInfo>,
    service_accounts: Option<Arc<tokens::Issuer>>,
    anonymous: Anonymous,
}

impl Authenticator {
    /// # Errors
    /// The client CA cannot be parsed.
    pub fn new(config: AuthnConfig) -> Result<Self, AuthnError> {
        let client_ca = config.client_ca.as_deref().map(ClientCa::new).transpose()?;
        let tokens = config.tokens.into_iter().map(|t| (t.token, t.user)).collect();
        Ok(Self { client_ca, tokens, service_accounts: config.service_accounts, anonymous: config.anonymous })
    }

    /// The issuer of service-account tokens, if this space has one.
    pub fn issuer(&self) -> Option<&Arc<tokens::Issuer>> {
        self.service_accounts.as_ref()
    }

    /// Determines the caller of a request: from the transport's [`Caller`] in the extensions, else from the bearer
    /// token, else anonymous (AS-061). Impersonation is a second step: [`impersonate`].
    ///
    /// # Errors
    /// 401 for an invalid credential, and for a request without one where anonymous users are not accepted.
    pub fn authenticate(
        &self,
        parts: &http::request::Parts,
        lookup: &dyn Lookup,
    ) -> Result<UserInfo, ApiError> {
        let mut presented = false;
        match parts.extensions.get::<Caller>() {
            Some(Caller::Internal(user)) => return Ok(UserInfo::clone(user)),
            Some(Caller::Certificate(chain)) if !chain.is_empty() => {
                presented = true;
                if let Some(user) = self.client_ca.as_ref().and_then(|ca| ca.verify(chain)) {
                    return Ok(authenticated(user));
                }
            }
            Some(Caller::Certificate(_) | Caller::Plain) | None => {}
        }
        if let Some(token) = bearer(parts) {
            presented = true;
            if let Some(accepted) = self.token(token, &[], lookup) {
                return Ok(accepted.user);
            }
        }
        let path = parts.uri.path();
        match self.anonymous {
            _ if presented => Err(unauthorized()),
            Anonymous::On => Ok(UserInfo::anonymous()),
            Anonymous::Paths if is_public(path) => Ok(UserInfo::anonymous()),
            Anonymous::Paths | Anonymous::Off => Err(unauthorized()),
        }
    }

    /// The user of a bearer token; `None` if the token is not valid. `audiences`: the audiences that are accepted;
    /// `[]` means this server. Also answers TokenReviews.
    pub fn token(&self, token: &str, audiences: &[String], lookup: &dyn Lookup) -> Option<AcceptedToken> {
        // A lookup in a hash map does not take constant time, but its timing reveals a keyed hash only.
        if let Some(user) = self.tokens.get(token) {
            return Some(AcceptedToken { user: authenticated(user.clone()), audiences: audiences.to_vec() });
        }
        if let Some(issuer) = &self.service_accounts
            && let Ok(accepted) = issuer.verify(token, audiences, lookup)
        {
            return Some(AcceptedToken { user: authenticated(accepted.user), ..accepted });
        }
        let user = bootstrap_token::verify(token, lookup)?;
        Some(AcceptedToken { user: authenticated(user), audiences: audiences.to_vec() })
    }
}

fn authenticated(mut user: UserInfo) -> UserInfo {
    if !user.in_group(AUTHENTICATED) {
        user.groups.push(AUTHENTICATED.into());
    }
    user
}

/// The token of an Authorization header. Other schemes, and a scheme without token, count as no credential.
fn bearer(parts: &http::request::Parts) -> Option<&str> {
    let value = parts.headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let mut words = value.splitn(3, ' ');
    let scheme = words.next()?;
    let token = words.next()?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn is_public(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    matches!(first, "healthz" | "livez" | "readyz" | "version")
}

/// The 401 answer.
pub fn unauthorized() -> ApiError {
    ApiError::new(401, Reason::Unauthorized, "Unauthorized")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    pub(super) struct Nothing;

    impl Lookup for Nothing {
        fn get(&self, _: &str, _: &str, _: &str, _: &str) -> Option<Value> {
            None
        }
        fn list(&self, _: &str, _: &str, _: Option<&str>) -> Vec<Value> {
            Vec::new()
        }
    }

    fn ask(anonymous: Anonymous, path: &str, header: Option<&str>) -> Result<String, u16> {
        let tokens = parse_token_file("T,admin,uid-1,\"system:masters,x\"\n").unwrap();
        let authenticator =
            Authenticator::new(AuthnConfig { tokens, anonymous, ..AuthnConfig::default() }).unwrap();
        let mut request = http::Request::get(path);
        if let Some(header) = header {
            request = request.header("Authorization", header);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        authenticator.authenticate(&parts, &Nothing).map(|u| u.name).map_err(|e| e.code)
    }

    #[test]
    fn as_061_tokens_and_anonymous_callers() {
        assert_eq!(ask(Anonymous::On, "/api", Some("Bearer T")), Ok("admin".into()));
        assert_eq!(ask(Anonymous::On, "/api", Some("bearer T")), Ok("admin".into()));
        assert_eq!(ask(Anonymous::On, "/api", Some("Bearer U")), Err(401));
        assert_eq!(ask(Anonymous::On, "/healthz", Some("Bearer U")), Err(401));
        for no_credential in [None, Some("Basic dTpw"), Some("Bearer"), Some("Nonsense")] {
            assert_eq!(ask(Anonymous::On, "/api", no_credential), Ok("system:anonymous".into()));
            assert_eq!(ask(Anonymous::Off, "/api", no_credential), Err(401));
            assert_eq!(ask(Anonymous::Paths, "/api", no_credential), Err(401));
            assert_eq!(ask(Anonymous::Paths, "/livez/ping", no_credential), Ok("system:anonymous".into()));
        }
    }

    #[test]
    fn as_061_every_authenticated_user_is_in_the_group() {
        let tokens = parse_token_file("T,admin,uid-1,\"system:masters,x\"\n").unwrap();
        let authenticator = Authenticator::new(AuthnConfig { tokens, ..AuthnConfig::default() }).unwrap();
        let user = authenticator.token("T", &[], &Nothing).unwrap().user;
        assert_eq!(user.groups, ["system:masters", "x", "system:authenticated"]);
        assert_eq!(user.uid, "uid-1");
    }
}
