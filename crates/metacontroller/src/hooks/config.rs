//! Interprets a hook's configuration (MC-100 to MC-107, MC-111). Pure.

use std::time::Duration;

use apis::metacontroller::{
    Authorization, BasicAuth, CaBundle, ClientTls, EndpointConfig, EtagConfig, Hook, KeyReference, Webhook,
};
use http::Uri;

use crate::wire::Version;

/// The kinds of hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HookKind {
    Map,
    Tombstone,
    Sync,
    Finalize,
    Customize,
}

impl HookKind {
    /// The name in specs, messages and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Map => "map",
            Self::Tombstone => "tombstone",
            Self::Sync => "sync",
            Self::Finalize => "finalize",
            Self::Customize => "customize",
        }
    }

    /// The top-level fields of the hook's answers.
    pub fn answer_fields(self, decorator: bool) -> &'static [&'static str] {
        match (self, decorator) {
            (Self::Map | Self::Tombstone, _) => &["outputs", "resyncAfterSeconds"],
            (Self::Customize, _) => &["relatedResources"],
            (_, false) => &["status", "children", "resyncAfterSeconds", "finalized"],
            (_, true) => {
                &["labels", "annotations", "status", "attachments", "resyncAfterSeconds", "finalized"]
            }
        }
    }
}

/// Default timeout.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A validated hook. Only the contents of Secrets and ConfigMaps are missing for a call.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which hook.
    pub kind: HookKind,
    /// Form of requests and answers.
    pub version: Version,
    /// The URL.
    pub url: Uri,
    /// Limit of the whole exchange (MC-075).
    pub timeout: Duration,
    /// Whether unknown and duplicate fields are errors.
    pub strict: bool,
    /// Limits of the cache, if answers are cached.
    pub etag: Option<Etag>,
    /// TLS trust and credentials.
    pub endpoint: Endpoint,
}

/// Limits of the answer cache (MC-110).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Etag {
    /// Older answers are not used.
    pub expiry: Option<Duration>,
    /// How often expired answers are dropped.
    pub sweep: Option<Duration>,
}

/// TLS trust and credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Trusted CA certificates.
    pub ca: Option<CaBundle>,
    /// Our client certificate.
    pub tls: Option<ClientTls>,
    /// An Authorization header.
    pub authorization: Option<Authorization>,
    /// User name and password.
    pub basic: Option<BasicAuth>,
}

impl Endpoint {
    fn is_set(&self) -> bool {
        self.ca.is_some() || self.tls.is_some() || self.authorization.is_some() || self.basic.is_some()
    }

    fn check(&self) -> Result<(), String> {
        if self.authorization.is_some() && self.basic.is_some() {
            return Err("authorization and basicAuth exclude each other".into());
        }
        if let Some(ca) = &self.ca {
            let given = [ca.inline.is_some(), ca.secret_ref.is_some(), ca.config_map_ref.is_some()];
            if given.into_iter().filter(|given| *given).count() != 1 {
                return Err("caBundle needs exactly one of inline, secretRef, configMapRef".into());
            }
        }
        if let Some(authorization) = &self.authorization {
            let kind = authorization.type_.as_deref().unwrap_or("Bearer").trim();
            if kind.eq_ignore_ascii_case("basic") {
                return Err("authorization.type must not be Basic; use basicAuth".into());
            }
        }
        let named = |what: &str, name: &str, namespace: &str| {
            if name.is_empty() || namespace.is_empty() {
                Err(format!("{what} needs name and namespace"))
            } else {
                Ok(())
            }
        };
        let key = |what: &str, reference: &KeyReference| named(what, &reference.name, &reference.namespace);
        for reference in self.ca.iter().flat_map(|ca| ca.secret_ref.iter().chain(&ca.config_map_ref)) {
            key("caBundle", reference)?;
        }
        if let Some(tls) = &self.tls {
            named("clientTLS.secretRef", &tls.secret_ref.name, &tls.secret_ref.namespace)?;
        }
        if let Some(authorization) = &self.authorization {
            key("authorization.secretRef", &authorization.secret_ref)?;
        }
        if let Some(basic) = &self.basic {
            named("basicAuth.secretRef", &basic.secret_ref.name, &basic.secret_ref.namespace)?;
        }
        Ok(())
    }
}

impl Settings {
    /// Parses a hook's configuration.
    ///
    /// # Errors
    ///
    /// A text for the user that begins as users of the original know it (MC-100).
    pub fn read(kind: HookKind, hook: &Hook, endpoints: &[EndpointConfig]) -> Result<Self, String> {
        let version = match hook.version.as_deref() {
            None | Some("" | "v1") => Version::V1,
            Some("v2") => Version::V2,
            Some(other) => return Err(format!("invalid hook version {other:?}")),
        };
        let invalid = |why: String| format!("invalid webhook config: {} hook: {why}", kind.as_str());
        let webhook = hook.webhook.as_ref().ok_or_else(|| invalid("webhook is missing".into()))?;
        let url = url(webhook).map_err(invalid)?;
        let own = Endpoint {
            ca: webhook.ca_bundle.clone(),
            tls: webhook.client_tls.clone(),
            authorization: webhook.authorization.clone(),
            basic: webhook.basic_auth.clone(),
        };
        let endpoint = if own.is_set() { own } else { shared(&url, endpoints) };
        endpoint.check().map_err(invalid)?;
        let strict = match webhook.response_unmarshall_mode.as_deref() {
            None | Some("") => version == Version::V2,
            Some("strict") => true,
            Some("loose") => false,
            Some(other) => return Err(invalid(format!("responseUnMarshallMode {other:?}"))),
        };
        let timeout = match webhook.timeout.as_deref() {
            None => TIMEOUT,
            Some(text) => timeout(text).map_err(invalid)?.unwrap_or_else(|| {
                tracing::info!(hook = kind.as_str(), "a timeout that is not positive means 10s");
                TIMEOUT
            }),
        };
        Ok(Self { kind, version, url, timeout, strict, etag: webhook.etag.as_ref().and_then(etag), endpoint })
    }
}

fn etag(config: &EtagConfig) -> Option<Etag> {
    let period = |seconds: Option<i64>| {
        let seconds = seconds.and_then(|secs| u64::try_from(secs).ok()).filter(|secs| *secs > 0);
        seconds.map(Duration::from_secs)
    };
    let expiry = period(config.cache_timeout_seconds.map(Into::into));
    let sweep = period(config.cache_cleanup_seconds.map(Into::into)).or(expiry);
    config.enabled.unwrap_or(false).then_some(Etag { expiry, sweep })
}

fn url(webhook: &Webhook) -> Result<Uri, String> {
    let text = match (&webhook.url, &webhook.service, &webhook.path) {
        (Some(url), ..) if !url.is_empty() => url.clone(),
        (_, Some(service), Some(path)) => {
            if service.name.is_empty() || service.namespace.is_empty() {
                return Err("service needs name and namespace".into());
            }
            let protocol = service.protocol.as_deref().filter(|text| !text.is_empty()).unwrap_or("http");
            let port = service.port.filter(|port| *port != 0).unwrap_or(80);
            let slash = if path.starts_with('/') { "" } else { "/" };
            format!("{protocol}://{}.{}:{port}{slash}{path}", service.name, service.namespace)
        }
        _ => return Err("either url, or service and path, must be given".into()),
    };
    let uri: Uri = text.parse().map_err(|error| format!("url {text:?}: {error}"))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(_)) => Ok(uri),
        _ => Err(format!("url {text:?} must be http or https, with a host")),
    }
}

/// Returns `None` if the duration is zero or negative.
fn timeout(text: &str) -> Result<Option<Duration>, String> {
    let wrong = || format!("timeout: {text:?} is not a duration such as 500ms or 1m30s");
    let nanos = machinery::duration::nanos(text).ok_or_else(wrong)?;
    Ok(u64::try_from(nanos).ok().filter(|nanos| *nanos > 0).map(Duration::from_nanos))
}

/// Returns the first entry for the host of `url` (MC-111).
fn shared(url: &Uri, endpoints: &[EndpointConfig]) -> Endpoint {
    let host = url.host().unwrap_or_default().to_ascii_lowercase();
    let default = if url.scheme_str() == Some("https") { 443 } else { 80 };
    let port = url.port_u16().unwrap_or(default);
    let with_port = format!("{host}:{port}");
    let found = endpoints.iter().find(|entry| {
        let entry = entry.host.trim().to_ascii_lowercase();
        entry == with_port || entry == host
    });
    found.map_or_else(Endpoint::default, |entry| Endpoint {
        ca: entry.ca_bundle.clone(),
        tls: entry.client_tls.clone(),
        authorization: entry.authorization.clone(),
        basic: entry.basic_auth.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(hook: Value) -> Result<Settings, String> {
        read_with(hook, json!([]))
    }

    fn read_with(hook: Value, endpoints: Value) -> Result<Settings, String> {
        let (hook, endpoints): (Hook, Vec<EndpointConfig>) =
            (serde_json::from_value(hook).unwrap(), serde_json::from_value(endpoints).unwrap());
        Settings::read(HookKind::Map, &hook, &endpoints)
    }

    /// MC-100: the URL of a service has no `.svc`, and either a URL or a service must be given.
    #[test]
    fn mc_100_urls() {
        let url = |webhook: Value| read(json!({"webhook": webhook})).map(|s| s.url.to_string());
        let service = |more: Value| {
            let mut service = json!({"name": "a", "namespace": "b"});
            service.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            url(json!({"service": service, "path": "/map"}))
        };
        assert_eq!(service(json!({})).unwrap(), "http://a.b:80/map");
        assert_eq!(service(json!({"port": 8443, "protocol": "https"})).unwrap(), "https://a.b:8443/map");
        assert_eq!(
            url(json!({"url": "http://x/y?z=1", "service": {"name": "a", "namespace": "b"}, "path": "/p"}))
                .unwrap(),
            "http://x/y?z=1"
        );
        for bad in [
            json!({}),
            json!({"path": "/a"}),
            json!({"service": {"name": "a", "namespace": "b"}}),
            json!({"service": {"name": "", "namespace": "b"}, "path": "/"}),
            json!({"url": "ftp://a/b"}),
            json!({"url": "/a"}),
            json!({"url": "http://"}),
        ] {
            let error = url(bad.clone()).unwrap_err();
            assert!(error.starts_with("invalid webhook config:"), "{bad}: {error}");
        }
    }

    /// MC-101, MC-A-46: strictness follows the version unless it is given.
    #[test]
    fn mc_a_46_strictness() {
        let strict = |version: &str, mode: Value| {
            read(json!({"version": version, "webhook": {"url": "http://a", "responseUnMarshallMode": mode}}))
                .unwrap()
                .strict
        };
        assert!(!strict("v1", Value::Null));
        assert!(strict("v2", Value::Null));
        assert!(!strict("v2", json!("loose")));
        assert!(strict("v1", json!("strict")));
    }

    /// MC-105, MC-106: settings that exclude each other.
    #[test]
    fn mc_106_credentials_are_checked() {
        let secret = json!({"name": "s", "namespace": "n"});
        let with = |more: Value| {
            let mut webhook = json!({"url": "https://a"});
            webhook.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            read(json!({"webhook": webhook}))
        };
        assert!(with(json!({"caBundle": {"inline": "x"}})).is_ok());
        assert!(with(json!({"caBundle": {}})).is_err());
        assert!(with(json!({"caBundle": {"inline": "x", "secretRef": secret}})).is_err());
        assert!(with(json!({"authorization": {"type": "bAsic", "secretRef": secret}})).is_err());
        assert!(
            with(json!({"authorization": {"secretRef": secret}, "basicAuth": {"secretRef": secret}}))
                .is_err()
        );
        assert!(with(json!({"clientTLS": {"secretRef": {"name": "", "namespace": "n"}}})).is_err());
    }

    /// MC-111: hosts are compared without case, and a default port equals no port; the hook's own fields take
    /// precedence as a whole.
    #[test]
    fn mc_111_endpoints_by_host() {
        let endpoints = json!([
            {"host": "other", "caBundle": {"inline": "0"}},
            {"host": "Example.COM:443", "caBundle": {"inline": "1"}},
            {"host": "a.b:80", "caBundle": {"inline": "2"}},
        ]);
        let found = |webhook: Value| {
            let settings = read_with(json!({"webhook": webhook}), endpoints.clone()).unwrap();
            settings.endpoint.ca.and_then(|ca| ca.inline).unwrap_or_default()
        };
        assert_eq!(found(json!({"url": "https://example.com/x"})), "1");
        assert_eq!(found(json!({"url": "http://example.com/x"})), "");
        assert_eq!(found(json!({"service": {"name": "a", "namespace": "b"}, "path": "/x"})), "2");
        assert_eq!(found(json!({"url": "https://example.com", "caBundle": {"inline": "own"}})), "own");
    }

    /// MC-075, MC-101: timeouts are Go durations; a timeout that is not positive counts as none.
    #[test]
    fn mc_075_timeouts() {
        let ms = |text: &str| timeout(text).map(|d| d.map(|d| d.as_millis()));
        assert_eq!(ms("1m30s"), Ok(Some(90_000)));
        assert_eq!(ms("500ms"), Ok(Some(500)));
        assert_eq!(ms("1.5h"), Ok(Some(5_400_000)));
        assert_eq!(ms("0"), Ok(None));
        assert_eq!(ms("0s"), Ok(None));
        assert_eq!(ms("-3s"), Ok(None));
        for bad in ["", "5", "s", "1x", "1s5", "..s", "1e3s"] {
            assert!(timeout(bad).is_err(), "{bad}");
        }
    }
}
