//! HTTP for hooks: certificates, redirects, limited bodies (MC-101, MC-105).

use std::{error::Error as _, sync::Arc};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header, uri::Scheme};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Incoming};
use hyper_rustls::{ConfigBuilderExt, HttpsConnectorBuilder};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use runtime::{
    proxies::Proxies,
    tls::{ServerVerifier, identity, trusted},
};
use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};

use super::{
    connect::{Connector, TimedTls, authorization},
    counters::HookMetrics,
    credentials::CredentialData,
    error::HookError,
};

/// Larger bodies of answers are rejected (MC-070).
pub(super) const MAX_BODY: usize = 64 << 20;
/// How much of an error response is read.
const MAX_ERROR_BODY: usize = 4 << 10;
const MAX_REDIRECTS: usize = 10;

/// A connection pool with one set of credentials.
pub(super) struct Http {
    client: Client<TimedTls, Full<Bytes>>,
    authorization: Option<HeaderValue>,
    proxies: Proxies,
}

/// A response.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Http {
    pub(super) fn new(
        url: &Uri,
        material: &CredentialData,
        proxies: &Proxies,
        metrics: &Arc<HookMetrics>,
    ) -> Result<Self, String> {
        let connector = Connector::new(proxies.clone(), metrics.clone());
        let tls = tls(url.scheme_str() == Some("https"), material)?;
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let timed = TimedTls { inner: https, metrics: metrics.clone() };
        let client = Client::builder(TokioExecutor::new()).build(timed);
        let authorization = material.authorization.clone();
        Ok(Self { client, authorization, proxies: proxies.clone() })
    }

    /// Sends one POST and returns the whole body. Follows redirects that keep the method (MC-101).
    pub(super) async fn post(&self, url: &Uri, body: Bytes, etag: Option<&str>) -> Result<Answer, HookError> {
        let mut at = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(url, &at, body.clone(), etag).await?;
            let redirect = matches!(response.status().as_u16(), 307 | 308);
            match response.headers().get(header::LOCATION).filter(|_| redirect) {
                Some(location) => at = join(&at, location)?,
                None => return read(response).await,
            }
        }
        Err(HookError::Redirects)
    }

    async fn send(
        &self,
        first: &Uri,
        at: &Uri,
        body: Bytes,
        etag: Option<&str>,
    ) -> Result<Response<Incoming>, HookError> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(at)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json");
        if let (Some(value), true) = (&self.authorization, may_know(first, at)) {
            request = request.header(header::AUTHORIZATION, value);
        }
        if let Some(etag) = etag {
            request = request.header(header::IF_NONE_MATCH, etag);
        }
        if let Some(credential) = authorization(&self.proxies, at) {
            request = request.header(header::PROXY_AUTHORIZATION, credential);
        }
        let request = request.body(Full::new(body)).map_err(|error| HookError::Connect(error.to_string()))?;
        self.client.request(request).await.map_err(|error| classify(&error))
    }
}

/// Returns whether a redirect target may receive the credential: only the host it was given for, and never in
/// clear text if the first URL was https.
fn may_know(first: &Uri, at: &Uri) -> bool {
    let encrypted = |uri: &Uri| uri.scheme() == Some(&Scheme::HTTPS);
    at.authority() == first.authority() && (encrypted(at) || !encrypted(first))
}

fn join(base: &Uri, location: &HeaderValue) -> Result<Uri, HookError> {
    let bad = || HookError::Connect(format!("redirected to {location:?}"));
    let target: Uri = location.to_str().map_err(|_| bad())?.parse().map_err(|_| bad())?;
    if target.scheme().is_some() {
        return Ok(target);
    }
    let mut parts = base.clone().into_parts();
    parts.path_and_query = target.path_and_query().cloned();
    Uri::from_parts(parts).map_err(|_| bad())
}

/// Reads a body up to the limit; an endless body is cut off there.
async fn read(response: Response<Incoming>) -> Result<Answer, HookError> {
    let (head, mut body) = response.into_parts();
    let good = head.status == StatusCode::OK;
    let bound = if good { MAX_BODY } else { MAX_ERROR_BODY };
    if good && body.size_hint().lower() > bound as u64 {
        return Err(HookError::TooLarge);
    }
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| HookError::Connect(format!("reading the answer: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > bound {
            if good {
                return Err(HookError::TooLarge);
            }
            bytes.extend_from_slice(&data[..bound - bytes.len()]);
            break;
        }
        bytes.extend_from_slice(&data);
    }
    Ok(Answer { status: head.status, headers: head.headers, body: bytes.freeze() })
}

fn classify(error: &hyper_util::client::legacy::Error) -> HookError {
    let mut texts = vec![error.to_string()];
    let mut source = error.source();
    let mut tls = false;
    while let Some(cause) = source {
        tls |= cause.is::<rustls::Error>();
        if let Some(io) = cause.downcast_ref::<std::io::Error>() {
            tls |= io.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
        }
        let text = cause.to_string();
        if texts.last() != Some(&text) {
            texts.push(text);
        }
        source = cause.source();
    }
    let text = texts.join(": ");
    if tls {
        HookError::Tls(text)
    } else if text.contains("dns error") {
        HookError::Dns(text)
    } else {
        HookError::Connect(text)
    }
}

fn tls(needed: bool, material: &CredentialData) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match &material.ca_pem {
        Some(pem) => {
            let verifier = trusted(pem).and_then(ServerVerifier::new).map_err(|error| error.to_string())?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
        None if needed => {
            builder.with_native_roots().map_err(|error| format!("the system's certificates: {error}"))?
        }
        None => builder.with_root_certificates(RootCertStore::empty()),
    };
    Ok(match &material.identity {
        Some((certificate, key)) => {
            let shown = identity(certificate, key).map_err(|error| error.to_string())?;
            builder.with_client_cert_resolver(shown)
        }
        None => builder.with_no_client_auth(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MC-101: a redirect passes the credential neither to another host nor from https to http.
    #[test]
    fn mc_101_credentials_stay_where_they_are_safe() {
        let may = |first: &str, at: &str| may_know(&first.parse().unwrap(), &at.parse().unwrap());
        assert!(may("https://h/map", "https://h/other"));
        assert!(may("http://h/map", "http://h/other"));
        assert!(may("http://h/map", "https://h/map"));
        assert!(!may("https://h/map", "http://h/map"));
        assert!(!may("https://h/map", "https://other/map"));
        assert!(!may("https://h/map", "https://h:8443/map"));
    }
}
