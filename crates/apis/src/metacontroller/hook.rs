//! Hooks: where they are, and how they are called.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A hook.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Hook {
    /// Version of requests and answers; v1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["v1", "v2"]))]
    pub version: Option<String>,
    /// The webhook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
}

/// A hook that is called by HTTP.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Webhook {
    /// URL of the hook; it takes precedence over service and path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Longest wait for the answer, for example 500ms or 1m30s. Default is 10s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// Path at the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Service in the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceReference>,
    /// Whether answers are cached by their ETag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etag: Option<EtagConfig>,
    /// loose: unknown fields of an answer are ignored. strict: they are errors. Default: loose for v1, strict for v2.
    #[serde(rename = "responseUnMarshallMode", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["loose", "strict"]))]
    pub response_unmarshall_mode: Option<String>,
    /// Trusted CA certificates; the default is those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<CaBundle>,
    /// Client certificate.
    #[serde(rename = "clientTLS", skip_serializing_if = "Option::is_none")]
    pub client_tls: Option<ClientTls>,
    /// Authorization header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization: Option<Authorization>,
    /// User name and password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basic_auth: Option<BasicAuth>,
}

/// A Service in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ServiceReference {
    /// Name.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// Namespace.
    #[schemars(extend("x-required" = true))]
    pub namespace: String,
    /// Port; 80 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// http (default) or https.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

/// Caching of answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EtagConfig {
    /// Whether answers are cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// How long an answer is kept; absent for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_timeout_seconds: Option<i32>,
    /// How often old answers are removed; absent for as often as they get old.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_cleanup_seconds: Option<i32>,
}

/// CA certificates, from exactly one source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CaBundle {
    /// PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inline: Option<String>,
    /// In a Secret; key ca.crt by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<KeyReference>,
    /// In a ConfigMap; key ca.crt by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<KeyReference>,
}

/// A value in a Secret or ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct KeyReference {
    /// Name.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// Namespace.
    #[schemars(extend("x-required" = true))]
    pub namespace: String,
    /// Key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SecretReference {
    /// Name.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// Namespace.
    #[schemars(extend("x-required" = true))]
    pub namespace: String,
}

/// A certificate and its key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientTls {
    /// The Secret they are in.
    #[schemars(extend("x-required" = true))]
    pub secret_ref: SecretReference,
    /// Key of the certificate; tls.crt by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_key: Option<String>,
    /// Key of the private key; tls.key by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_key_key: Option<String>,
}

/// An Authorization header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Authorization {
    /// Scheme of the header; Bearer by default. Basic is not allowed.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Secret key with the rest of the header.
    #[schemars(extend("x-required" = true))]
    pub secret_ref: KeyReference,
}

/// User name and password.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BasicAuth {
    /// The Secret they are in.
    #[schemars(extend("x-required" = true))]
    pub secret_ref: SecretReference,
    /// Key of the user name; username by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username_key: Option<String>,
    /// Key of the password; password by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_key: Option<String>,
}

/// TLS settings and credentials for one host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointConfig {
    /// Host, or host and port.
    #[schemars(extend("x-required" = true))]
    pub host: String,
    /// Trusted CA certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<CaBundle>,
    /// Client certificate.
    #[serde(rename = "clientTLS", skip_serializing_if = "Option::is_none")]
    pub client_tls: Option<ClientTls>,
    /// Authorization header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization: Option<Authorization>,
    /// User name and password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basic_auth: Option<BasicAuth>,
}
