//! Service-account tokens: TokenRequest, signing and checking (spec 7.3).

mod error;
mod keys;
mod request;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, Header, Validation};
use parking_lot::Mutex;
use rcgen::KeyPair;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::authn::{AcceptedToken, CREDENTIAL_ID};
use crate::identity::UserInfo;
use crate::strategy::Lookup;
use error::key_error;
use keys::SigningKey;

pub use error::TokenError;
pub use keys::VerifyingKey;

/// How many seconds a token outlives the deletion mark of an object that it is bound to, and how far clocks may
/// differ.
const LEEWAY_SECONDS: i64 = 60;
/// Most tokens whose verified claims are cached.
const CACHE_SIZE: usize = 4096;
/// Most bytes of a token. Those that a server issues have less than 2 KiB.
const TOKEN_MAX: usize = 64 << 10;
const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";

type KeySource = Box<dyn Fn() -> Result<String, TokenError> + Send + Sync>;

/// Signs and verifies service-account tokens of one space.
pub struct Issuer {
    url: String,
    audiences: Vec<String>,
    /// Other issuers whose tokens are accepted, if one of the keys signed them.
    other_issuers: Vec<String>,
    /// Keys of other signers.
    other_keys: Vec<VerifyingKey>,
    /// Where clients find the keys; by default below the URL of the issuer.
    jwks_uri: Option<String>,
    source: KeySource,
    keys: OnceLock<SigningKey>,
    making: Mutex<()>,
    /// Cache of verified claims, by hash of the token, because verifying signatures is expensive.
    checked: Mutex<HashMap<[u8; 32], Arc<Claims>>>,
}

fn invalid(why: impl Into<String>) -> TokenError {
    TokenError::Invalid(why.into())
}

/// An object that a token names.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Reference {
    name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    uid: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct KubernetesClaims {
    namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<Reference>,
    serviceaccount: Reference,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Claims {
    #[serde(default)]
    aud: Vec<String>,
    #[serde(default)]
    exp: i64,
    #[serde(default)]
    iat: i64,
    iss: String,
    #[serde(default)]
    jti: String,
    #[serde(rename = "kubernetes.io")]
    private: KubernetesClaims,
    #[serde(default)]
    nbf: i64,
    sub: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct LegacyClaims {
    iss: String,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    secret: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    name: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    uid: String,
    sub: String,
}

impl Issuer {
    /// A new RSA key in PKCS#8 PEM. Takes some hundred milliseconds: see [`Issuer::lazy`].
    ///
    /// # Errors
    /// The system has no randomness, or the key cannot be encoded.
    pub fn generate_key() -> Result<String, TokenError> {
        Ok(KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).map_err(key_error)?.serialize_pem())
    }

    /// `key_pem`: private key, RSA or EC P-256 (PKCS#8, PKCS#1 or SEC 1). `issuer`: the URL in `iss`. `audiences`: those of this API
    /// server; if empty, `[issuer]`.
    ///
    /// # Errors
    /// The key cannot be read.
    pub fn new(key_pem: &str, issuer: &str, audiences: &[String]) -> Result<Self, TokenError> {
        let keys = SigningKey::from_pem(key_pem)?;
        let out = Self::lazy(|| Err(TokenError::Key("no source".into())), issuer, audiences);
        // The cell is new, so it is empty.
        let _ = out.keys.set(keys);
        Ok(out)
    }

    /// Like [`Issuer::new`], but `source` loads the key (or makes and saves it) when it is first needed. A space that
    /// never issues a token has no cost.
    pub fn lazy(
        source: impl Fn() -> Result<String, TokenError> + Send + Sync + 'static,
        issuer: &str,
        audiences: &[String],
    ) -> Self {
        let audiences = if audiences.is_empty() { vec![issuer.to_owned()] } else { audiences.to_vec() };
        Self {
            url: issuer.to_owned(),
            audiences,
            other_issuers: Vec::new(),
            other_keys: Vec::new(),
            jwks_uri: None,
            source: Box::new(source),
            keys: OnceLock::new(),
            making: Mutex::default(),
            checked: Mutex::default(),
        }
    }

    /// Accepts tokens of other issuers, too, and tokens that other keys signed.
    #[must_use]
    pub fn trusting(mut self, issuers: Vec<String>, keys: Vec<VerifyingKey>) -> Self {
        (self.other_issuers, self.other_keys) = (issuers, keys);
        self
    }

    /// Says where clients find the keys, if that is not below the URL of the issuer.
    #[must_use]
    pub fn keys_at(mut self, uri: String) -> Self {
        self.jwks_uri = Some(uri);
        self
    }

    /// The audiences of this API server.
    pub fn audiences(&self) -> &[String] {
        &self.audiences
    }

    fn keys(&self) -> Result<&SigningKey, TokenError> {
        if let Some(keys) = self.keys.get() {
            return Ok(keys);
        }
        let _one_at_a_time = self.making.lock();
        if self.keys.get().is_none() {
            // The lock is held, so no other thread sets the cell.
            let _ = self.keys.set(SigningKey::from_pem(&(self.source)()?)?);
        }
        self.keys.get().ok_or_else(|| TokenError::Key("no key".into()))
    }

    fn sign<T: Serialize>(&self, claims: &T) -> Result<String, TokenError> {
        let keys = self.keys()?;
        let kid = Some(keys.public.id.clone());
        let header = Header { typ: None, kid, ..Header::new(keys.public.algorithm) };
        jsonwebtoken::encode(&header, claims, &keys.encoding).map_err(key_error)
    }

    /// The token for a Secret of type `kubernetes.io/service-account-token`. It does not expire, and is valid as long
    /// as the Secret contains it.
    ///
    /// # Errors
    /// The key cannot be loaded.
    pub fn secret_token(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        secret: &str,
    ) -> Result<String, TokenError> {
        self.sign(&LegacyClaims {
            iss: LEGACY_ISSUER.into(),
            namespace: namespace.into(),
            secret: secret.into(),
            name: name.into(),
            uid: uid.into(),
            sub: format!("system:serviceaccount:{namespace}:{name}"),
        })
    }

    /// Verifies a token and returns its service account. `audiences`: the audiences that are accepted; `[]` means this
    /// server.
    ///
    /// # Errors
    /// The token is malformed, wrongly signed, expired, for another audience, or an object that it is bound to is
    /// gone.
    pub fn verify(
        &self,
        token: &str,
        audiences: &[String],
        lookup: &dyn Lookup,
    ) -> Result<AcceptedToken, TokenError> {
        match peek_issuer(token).as_deref() {
            Some(LEGACY_ISSUER) => self.verify_legacy(token, audiences, lookup),
            Some(issuer) if self.is_accepted(issuer) => self.verify_claims(token, audiences, lookup),
            _ => Err(invalid("another issuer's")),
        }
    }

    fn is_accepted(&self, issuer: &str) -> bool {
        issuer == self.url || self.other_issuers.iter().any(|other| other == issuer)
    }

    /// Verifies the signature, with the key that the token names or else with each that there is.
    fn decode<T: serde::de::DeserializeOwned>(&self, token: &str) -> Result<T, TokenError> {
        let kid = key_id(token)?;
        if let Some(known) = self.other_keys.iter().find(|key| kid.as_ref() == Some(&key.id)) {
            return decode_with(known, token);
        }
        let own = decode_with(&self.keys()?.public, token);
        if own.is_ok() || kid.is_some() {
            return own;
        }
        self.other_keys.iter().find_map(|key| decode_with(key, token).ok()).map_or(own, Ok)
    }

    fn signed_claims(&self, token: &str) -> Result<Arc<Claims>, TokenError> {
        let hash: [u8; 32] = Sha256::digest(token).into();
        if let Some(known) = self.checked.lock().get(&hash) {
            return Ok(known.clone());
        }
        let claims: Arc<Claims> = Arc::new(self.decode(token)?);
        let mut checked = self.checked.lock();
        if checked.len() >= CACHE_SIZE {
            checked.clear();
        }
        checked.insert(hash, claims.clone());
        Ok(claims)
    }

    fn verify_claims(
        &self,
        token: &str,
        audiences: &[String],
        lookup: &dyn Lookup,
    ) -> Result<AcceptedToken, TokenError> {
        let claims = self.signed_claims(token)?;
        let now = jiff::Timestamp::now().as_second();
        if !self.is_accepted(&claims.iss) {
            return Err(invalid("another issuer's"));
        }
        if now > claims.exp.saturating_add(LEEWAY_SECONDS) || now < claims.nbf.saturating_sub(LEEWAY_SECONDS)
        {
            return Err(invalid("not valid at this time"));
        }
        let wanted = if audiences.is_empty() { &self.audiences } else { audiences };
        let matching: Vec<String> = wanted.iter().filter(|a| claims.aud.contains(a)).cloned().collect();
        if matching.is_empty() {
            return Err(invalid("for another audience"));
        }
        let private = &claims.private;
        let namespace = private.namespace.as_str();
        let name = &private.serviceaccount.name;
        if claims.sub != format!("system:serviceaccount:{namespace}:{name}") {
            return Err(invalid("subject and service account differ"));
        }
        exists(lookup, "serviceaccounts", namespace, &private.serviceaccount, now)?;
        let mut user = service_account_user(namespace, name, &private.serviceaccount.uid);
        if let Some(secret) = &private.secret {
            exists(lookup, "secrets", namespace, secret, now)?;
        }
        let mut extra = |key: &str, value: &str| {
            user.extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_owned()]);
        };
        if let Some(pod) = &private.pod {
            exists(lookup, "pods", namespace, pod, now)?;
            extra("pod-name", &pod.name);
            extra("pod-uid", &pod.uid);
        }
        if let Some(node) = &private.node {
            // In the token of a pod, the node is information only. A token that is bound to the node itself ends with
            // the node.
            if private.pod.is_none() {
                exists(lookup, "nodes", "", node, now)?;
            }
            extra("node-name", &node.name);
            if !node.uid.is_empty() {
                extra("node-uid", &node.uid);
            }
        }
        user.extra.insert(CREDENTIAL_ID.into(), vec![format!("JTI={}", claims.jti)]);
        Ok(AcceptedToken { user, audiences: matching })
    }

    fn verify_legacy(
        &self,
        token: &str,
        audiences: &[String],
        lookup: &dyn Lookup,
    ) -> Result<AcceptedToken, TokenError> {
        let claims: LegacyClaims = self.decode(token)?;
        let matching: Vec<String> = if audiences.is_empty() {
            self.audiences.clone()
        } else {
            audiences.iter().filter(|a| self.audiences.contains(a)).cloned().collect()
        };
        if matching.is_empty() {
            return Err(invalid("for another audience"));
        }
        let namespace = claims.namespace.as_str();
        let now = jiff::Timestamp::now().as_second();
        let account = Reference { name: claims.name.clone(), uid: claims.uid.clone() };
        exists(lookup, "serviceaccounts", namespace, &account, now)?;
        let secret = lookup
            .get("", "secrets", namespace, &claims.secret)
            .ok_or_else(|| invalid("its secret is gone"))?;
        if text(&secret, "/data/token") != STANDARD.encode(token) {
            return Err(invalid("its secret has another token"));
        }
        Ok(AcceptedToken {
            user: service_account_user(namespace, &claims.name, &claims.uid),
            audiences: matching,
        })
    }

    /// Body of `/openid/v1/jwks` (`application/jwk-set+json`).
    ///
    /// # Errors
    /// The key cannot be loaded.
    pub fn jwks(&self) -> Result<Value, TokenError> {
        let own = &self.keys()?.public;
        let others = self.other_keys.iter().filter(|key| key.id != own.id);
        let keys: Vec<Value> = std::iter::once(own).chain(others).map(|key| key.public.clone()).collect();
        Ok(json!({ "keys": keys }))
    }

    /// Body of `/.well-known/openid-configuration`.
    pub fn openid_configuration(&self) -> Value {
        // A key that is not loaded yet is generated by us, and generated keys are RSA.
        let algorithm = match self.keys.get().map(|k| k.public.algorithm) {
            Some(Algorithm::ES256) => "ES256",
            _ => "RS256",
        };
        json!({
            "issuer": self.url,
            "jwks_uri": self
                .jwks_uri
                .clone()
                .unwrap_or_else(|| format!("{}/openid/v1/jwks", self.url.trim_end_matches('/'))),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [algorithm],
        })
    }
}

fn text(object: &Value, pointer: &str) -> String {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn decode_with<T: serde::de::DeserializeOwned>(key: &VerifyingKey, token: &str) -> Result<T, TokenError> {
    let mut validation = Validation::new(key.algorithm);
    // Times and audience are checked on each use of the token.
    validation.validate_exp = false;
    validation.validate_aud = false;
    validation.required_spec_claims.clear();
    let data = jsonwebtoken::decode(token, &key.decoding, &validation).map_err(|e| invalid(e.to_string()))?;
    Ok(data.claims)
}

/// The id of the key that a token names. Refuses what different readers understand differently: keys that a JSON object has
/// twice, and extensions of the header, which nobody may ignore who does not know them (RFC 7515, 4.1.11; RFC 7797).
fn key_id(token: &str) -> Result<Option<String>, TokenError> {
    if token.len() > TOKEN_MAX {
        return Err(invalid("too long"));
    }
    let mut header = None;
    // The signature is no JSON.
    for part in token.split('.').take(2) {
        let text = URL_SAFE_NO_PAD.decode(part).map_err(|e| invalid(e.to_string()))?;
        let (value, duplicates) = machinery::json::parse_strict(&text).map_err(|e| invalid(e.to_string()))?;
        if let Some(twice) = duplicates.first() {
            return Err(invalid(format!("{twice} stands there twice")));
        }
        header.get_or_insert(value);
    }
    let header = header.unwrap_or_default();
    if let Some(extension) = ["crit", "b64"].into_iter().find(|name| header.get(name).is_some()) {
        return Err(invalid(format!("its header needs an extension: {extension}")));
    }
    Ok(header.get("kid").and_then(Value::as_str).map(ToOwned::to_owned))
}

/// The issuer that a token claims. Nothing of the token is verified yet.
fn peek_issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Peek {
        iss: String,
    }
    let mut parts = token.split('.');
    let payload = parts.nth(1)?;
    parts.next()?;
    let bytes = URL_SAFE_NO_PAD.decode(payload).ok()?;
    serde_json::from_slice::<Peek>(&bytes).ok().map(|p| p.iss)
}

fn service_account_user(namespace: &str, name: &str, uid: &str) -> UserInfo {
    UserInfo {
        name: format!("system:serviceaccount:{namespace}:{name}"),
        uid: uid.to_owned(),
        groups: vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")],
        extra: std::collections::BTreeMap::new(),
    }
}

/// Checks that the object exists, has the expected uid, and has not been marked as deleted for longer than the leeway.
fn exists(
    lookup: &dyn Lookup,
    plural: &str,
    namespace: &str,
    wanted: &Reference,
    now: i64,
) -> Result<(), TokenError> {
    let object = lookup
        .get("", plural, namespace, &wanted.name)
        .ok_or_else(|| invalid(format!("{plural} {} is gone", wanted.name)))?;
    if text(&object, "/metadata/uid") != wanted.uid {
        return Err(invalid(format!("{plural} {} is another one", wanted.name)));
    }
    let deleted = text(&object, "/metadata/deletionTimestamp").parse::<jiff::Timestamp>();
    if deleted.is_ok_and(|d| now > d.as_second().saturating_add(LEEWAY_SECONDS)) {
        return Err(invalid(format!("{plural} {} is being deleted", wanted.name)));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
