//! Paths outside the resources: discovery, health, OpenAPI, version, metrics, token issuer.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode};

use super::ApiServer;
use crate::catalog::Catalog;
use crate::codec::negotiate::{self, Endpoint};
use crate::encode;
use crate::error::{ApiError, Details, Reason};
use crate::handlers::output;
use crate::identity::UserInfo;
use crate::path::RequestInfo;
use crate::request::Query;
use crate::response::{self, Body};
use crate::{discovery, health, metrics, version};

impl ApiServer {
    /// Answers a request for a path outside the resources.
    pub(super) async fn non_resource(
        self: &Arc<Self>,
        parts: &Parts,
        query: &Query,
        info: &RequestInfo,
        user: &UserInfo,
    ) -> Result<Response<Body>, ApiError> {
        let (path, headers) = (info.path.as_str(), &parts.headers);
        let raw_query = parts.uri.query().unwrap_or_default();
        let read = matches!(parts.method, Method::GET | Method::HEAD);
        let catalog = self.catalog.load_full();
        if read {
            if let Some(answer) = health::answer(path, raw_query, &self.checks_of(path)) {
                return Ok(answer.map(Body::from));
            }
            if path.starts_with("/openapi/")
                && let Some(answer) = self.openapi_document(&catalog, parts, path, user).await?
            {
                return Ok(answer.map(Body::from));
            }
        }
        if parts.method == Method::GET {
            if path == "/metrics" {
                let text = self.state.metrics.text(self.store(), &catalog);
                return Ok(response::new(StatusCode::OK, metrics::CONTENT_TYPE, text));
            }
            let advertise = &self.state.config.advertise;
            if let Some(answer) = discovery::answer(&catalog, path, headers, advertise) {
                return answer.map(|a| a.map(Body::from));
            }
        }
        let known = self.document(path)?;
        match known {
            Some((_, value)) if parts.method == Method::GET => {
                if path.ends_with("/jwks") {
                    return key_set(headers, &value);
                }
                let media = negotiate::negotiate(headers, query, Endpoint::Plain, false)?;
                output::value(StatusCode::OK, media, &value)
            }
            None if !is_known(path) => Err(ApiError::page_not_found()),
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    /// Answers a path of OpenAPI on a worker thread: making a document takes up to some hundred milliseconds.
    async fn openapi_document(
        self: &Arc<Self>,
        catalog: &Arc<Catalog>,
        parts: &Parts,
        path: &str,
        user: &UserInfo,
    ) -> Result<Option<Response<Bytes>>, ApiError> {
        let (server, catalog, path) = (self.clone(), catalog.clone(), path.to_owned());
        let (query, headers) = (parts.uri.query().unwrap_or_default().to_owned(), parts.headers.clone());
        let answer = move || server.openapi.answer(&catalog, &path, &query, &headers).transpose();
        self.state.work.run(&self.client(parts, user), usize::MAX, answer).await?
    }

    fn document(&self, path: &str) -> Result<Option<(&'static str, serde_json::Value)>, ApiError> {
        let issuer = self.state.issuer();
        Ok(match (path, issuer) {
            ("/version" | "/version/", _) => Some(("version", version::info())),
            ("/.well-known/openid-configuration", Some(issuer)) => {
                Some(("openid", issuer.openid_configuration()))
            }
            ("/openid/v1/jwks", Some(issuer)) => Some(("jwks", issuer.jwks().map_err(ApiError::internal)?)),
            _ => None,
        })
    }
}

/// The key set of the token issuer. It has one media type, its own.
fn key_set(headers: &HeaderMap, keys: &serde_json::Value) -> Result<Response<Body>, ApiError> {
    const KIND: &str = "application/jwk-set+json";
    let accept = headers.get(http::header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("*/*");
    if !accept.split(',').any(|clause| clause.contains(KIND) || clause.trim().starts_with("*/*")) {
        let message = format!("406: Not Acceptable\n\nAvailable representations: {KIND}");
        return Err(ApiError::new(406, Reason::NotAcceptable, message).with_details(Details::default()));
    }
    Ok(response::new(StatusCode::OK, KIND, encode::value_bytes(keys)))
}

fn is_known(path: &str) -> bool {
    let path = path.trim_end_matches('/');
    matches!(
        path,
        "" | "/api" | "/apis" | "/version" | "/api/v1" | "/metrics" | "/openapi/v2" | "/openapi/v3"
    )
}
