//! Reads the credentials of hooks from Secrets and ConfigMaps (MC-105).

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::HeaderValue;
use runtime::{
    failure::{is_not_found, message_of},
    rest::{Gvr, Rest},
};
use serde_json::Value;

use super::config::Endpoint;

/// The contents that an [`Endpoint`] refers to.
#[derive(Clone, Default)]
pub struct CredentialData {
    pub(super) ca_pem: Option<Vec<u8>>,
    pub(super) identity: Option<(Vec<u8>, Vec<u8>)>,
    pub(super) authorization: Option<HeaderValue>,
}

/// A referenced Secret or ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// `secrets` or `configmaps`.
    pub plural: &'static str,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// Reads what endpoints refer to.
#[derive(Clone)]
pub struct Credentials {
    rest: Rest,
}

pub(super) const SECRETS: &str = "secrets";
const MAPS: &str = "configmaps";

impl Credentials {
    /// Creates a reader.
    pub fn new(rest: Rest) -> Self {
        Self { rest }
    }

    /// Returns the objects that `endpoint` refers to. A change of one of them changes the credentials.
    pub fn references(endpoint: &Endpoint) -> Vec<Reference> {
        let reference = |plural, namespace: &str, name: &str| Reference {
            plural,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let mut all = Vec::new();
        if let Some(ca) = &endpoint.ca {
            all.extend(ca.secret_ref.iter().map(|r| reference(SECRETS, &r.namespace, &r.name)));
            all.extend(ca.config_map_ref.iter().map(|r| reference(MAPS, &r.namespace, &r.name)));
        }
        let secrets = [
            endpoint.tls.as_ref().map(|tls| (&tls.secret_ref.namespace, &tls.secret_ref.name)),
            endpoint.authorization.as_ref().map(|a| (&a.secret_ref.namespace, &a.secret_ref.name)),
            endpoint.basic.as_ref().map(|b| (&b.secret_ref.namespace, &b.secret_ref.name)),
        ];
        all.extend(
            secrets.into_iter().flatten().map(|(namespace, name)| reference(SECRETS, namespace, name)),
        );
        all.sort();
        all.dedup();
        all
    }

    /// Reads the credentials. One request for each reference.
    ///
    /// # Errors
    ///
    /// A text for the user, if a reference cannot be read or lacks a key.
    pub async fn resolve(&self, endpoint: &Endpoint) -> Result<CredentialData, String> {
        let mut material = CredentialData::default();
        if let Some(ca) = &endpoint.ca {
            let key = |key: &Option<String>| key.clone().unwrap_or_else(|| "ca.crt".into());
            let pem = if let Some(inline) = &ca.inline {
                inline.clone().into_bytes()
            } else if let Some(r) = &ca.secret_ref {
                self.value(SECRETS, &r.namespace, &r.name, &key(&r.key)).await?
            } else if let Some(r) = &ca.config_map_ref {
                self.value(MAPS, &r.namespace, &r.name, &key(&r.key)).await?
            } else {
                return Err("caBundle names no source".into());
            };
            material.ca_pem = Some(pem);
        }
        if let Some(tls) = &endpoint.tls {
            let (namespace, name) = (&tls.secret_ref.namespace, &tls.secret_ref.name);
            let certificate = tls.cert_key.as_deref().unwrap_or("tls.crt");
            let key = tls.private_key_key.as_deref().unwrap_or("tls.key");
            material.identity = Some((
                self.value(SECRETS, namespace, name, certificate).await?,
                self.value(SECRETS, namespace, name, key).await?,
            ));
        }
        if let Some(authorization) = &endpoint.authorization {
            let r = &authorization.secret_ref;
            let key = r.key.as_deref().ok_or("authorization.secretRef needs key")?;
            let value = self.text(&r.namespace, &r.name, key).await?;
            let kind = authorization.type_.as_deref().map_or("Bearer", str::trim);
            let kind = if kind.is_empty() { "Bearer" } else { kind };
            material.authorization = Some(sensitive(&format!("{kind} {}", value.trim()))?);
        }
        if let Some(basic) = &endpoint.basic {
            let (namespace, name) = (&basic.secret_ref.namespace, &basic.secret_ref.name);
            let user =
                self.text(namespace, name, basic.username_key.as_deref().unwrap_or("username")).await?;
            let password =
                self.text(namespace, name, basic.password_key.as_deref().unwrap_or("password")).await?;
            if user.contains(':') {
                return Err("basicAuth: the user name must not contain a colon".into());
            }
            material.authorization =
                Some(sensitive(&format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))?);
        }
        Ok(material)
    }

    async fn text(&self, namespace: &str, name: &str, key: &str) -> Result<String, String> {
        let value = self.value(SECRETS, namespace, name, key).await?;
        String::from_utf8(value).map_err(|_| format!("secret {namespace}/{name}: {key} is not text"))
    }

    async fn value(
        &self,
        plural: &'static str,
        namespace: &str,
        name: &str,
        key: &str,
    ) -> Result<Vec<u8>, String> {
        let what = format!("{} {namespace}/{name}", plural.trim_end_matches('s'));
        let found: Result<Value, _> = self.rest.get(&Gvr::new("", "v1", plural), namespace, name).await;
        let object = match found {
            Ok(object) => object,
            Err(error) if is_not_found(&error) => return Err(format!("{what} not found")),
            Err(error) => return Err(format!("{what}: {}", message_of(&error))),
        };
        let text = |part: &str| object.get(part).and_then(|data| data.get(key)).and_then(Value::as_str);
        let bytes =
            |encoded: &str| STANDARD.decode(encoded).map_err(|_| format!("{what}: {key} is not base64"));
        if plural == SECRETS {
            return text("data").map(bytes).unwrap_or_else(|| Err(format!("{what} has no key {key}")));
        }
        match (text("data"), text("binaryData")) {
            (Some(plain), _) => Ok(plain.as_bytes().to_vec()),
            (None, Some(encoded)) => bytes(encoded),
            (None, None) => Err(format!("{what} has no key {key}")),
        }
    }
}

fn sensitive(value: &str) -> Result<HeaderValue, String> {
    let mut value =
        HeaderValue::from_str(value).map_err(|_| "the credential is no valid header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}
