//! Wraps a client so that it counts its requests and obeys a rate limit.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use kube::{Client, client::Body};
use tokio::time::Instant;
use tower::Service;

use crate::{
    limiter::{Limiter, RequestClass},
    metrics::RequestMetrics,
};

/// Returns the same client, but its requests wait for `limiter` and are counted in `metrics`.
///
/// Cost per request: parsing the path. Response bodies are read here only for failed requests, to find the
/// reason.
pub fn observed(client: Client, limiter: Option<Arc<Limiter>>, metrics: RequestMetrics) -> Client {
    let namespace = client.default_namespace().to_owned();
    Client::new(Calls { client, limiter, metrics }, namespace)
}

#[derive(Clone)]
struct Calls {
    client: Client,
    limiter: Option<Arc<Limiter>>,
    metrics: RequestMetrics,
}

impl Service<Request<Body>> for Calls {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, kube::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), kube::Error>> {
        // `call` polls the inner client: a request that waits for the limiter must not occupy a slot of the
        // inner client.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let me = self.clone();
        Box::pin(async move { me.send(request).await })
    }
}

impl Calls {
    async fn send(self, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        let (call, method) = (Call::of(&request), request.method().clone());
        let asked = Instant::now();
        if let Some(limiter) = &self.limiter {
            let waited = limiter.wait(call.load).await;
            self.metrics.limited(method.as_str(), waited);
        }
        let sent = Instant::now();
        let outcome = self.client.send(request).await;
        let code = outcome.as_ref().ok().map(|response| response.status().as_u16());
        self.metrics.answered(method.as_str(), code, sent.elapsed());
        let (outcome, error) = match outcome {
            Ok(response) if response.status().is_client_error() || response.status().is_server_error() => {
                let (parts, body) = response.into_parts();
                let body = body.collect_bytes().await?;
                let reason = reason(parts.status, &body);
                (Ok(Response::from_parts(parts, Body::from(body))), format!("apiStatus:{reason}"))
            }
            Ok(response) => (Ok(response), String::new()),
            // client-go reports its transport errors under this name.
            Err(error) => (Err(error), "*url.Error".to_owned()),
        };
        if let Some(resource) = &call.resource {
            self.metrics.called(resource, call.method, &error, asked.elapsed());
        }
        outcome
    }
}

/// Returns the reason of a `Status` body. For any other body, returns the reason that client-go derives from
/// the code.
fn reason(code: StatusCode, body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Status {
        reason: String,
    }
    match serde_json::from_slice::<Status>(body) {
        Ok(status) if !status.reason.is_empty() => status.reason,
        _ => match code.as_u16() {
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            405 => "MethodNotAllowed",
            409 => "Conflict",
            410 => "Gone",
            422 => "Invalid",
            429 => "TooManyRequests",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            500 => "InternalError",
            _ => "Unknown",
        }
        .to_owned(),
    }
}

/// The labels of one request in the metrics.
#[derive(Debug, PartialEq, Eq)]
struct Call {
    /// `<plural>.<version>.<group>`, which ends with a dot for the core group. `None` if the path does not
    /// name a resource.
    resource: Option<String>,
    method: &'static str,
    load: RequestClass,
}

impl Call {
    fn of<B>(request: &Request<B>) -> Self {
        let content_type =
            request.headers().get(http::header::CONTENT_TYPE).and_then(|it| it.to_str().ok()).unwrap_or("");
        Self::from_parts(request.method(), request.uri(), content_type)
    }

    fn from_parts(method: &Method, uri: &http::Uri, content_type: &str) -> Self {
        let watch = uri.query().is_some_and(|query| {
            query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1" | "watch"))
        });
        let Some(target) = Target::of(uri.path()) else {
            return Self { resource: None, method: "get", load: RequestClass::Collection };
        };
        let status = target.subresource.as_deref() == Some("status");
        let apply = content_type.starts_with("application/apply-patch");
        let name = match (method, target.named) {
            (&Method::GET, _) if watch => "watch",
            (&Method::GET, true) => "get",
            (&Method::GET, false) => "list",
            (&Method::POST, _) => "create",
            (&Method::PUT, _) if status => "update_status",
            (&Method::PUT, _) => "update",
            (&Method::PATCH, _) if apply && status => "apply_status",
            (&Method::PATCH, _) if apply => "apply",
            (&Method::PATCH, _) => "patch",
            (&Method::DELETE, true) => "delete",
            (&Method::DELETE, false) => "delete_collection",
            _ => "get",
        };
        let load =
            if matches!(name, "watch" | "list") { RequestClass::Collection } else { RequestClass::Object };
        Self { resource: Some(target.resource), method: name, load }
    }
}

struct Target {
    resource: String,
    named: bool,
    subresource: Option<String>,
}

impl Target {
    /// Parses `/api/v1/…` and `/apis/GROUP/VERSION/…`. An inner layer adds the path prefix of the server's
    /// URL, so no prefix is expected here.
    fn of(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, version, mut rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        // `namespaces/NAME/RESOURCE`, unless the last part is a subresource of the Namespace itself.
        if let ["namespaces", _, resource, ..] = rest
            && !(group.is_empty() && matches!(*resource, "status" | "finalize"))
        {
            rest = rest.get(2..)?;
        }
        let (plural, rest) = rest.split_first()?;
        Some(Self {
            resource: format!("{plural}.{version}.{group}"),
            named: !rest.is_empty(),
            subresource: rest.get(1).map(|it| (*it).to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{limiter::Rate, metrics::Metrics};
    use std::convert::Infallible;

    /// KS-220: the resource and method of each request are labelled as the Go programs label them.
    #[test]
    fn ks_220_resources_and_methods() {
        let bindings = "/apis/control.kubestellar.io/v1alpha1/bindings";
        let cases = [
            ("GET", "/api/v1/namespaces/shop/configmaps/a", "", "configmaps.v1.", "get"),
            ("GET", "/api/v1/configmaps?limit=5", "", "configmaps.v1.", "list"),
            ("GET", "/api/v1/pods?watch=true&limit=5", "", "pods.v1.", "watch"),
            ("GET", "/api/v1/namespaces/shop", "", "namespaces.v1.", "get"),
            ("PUT", "/api/v1/namespaces/shop/finalize", "", "namespaces.v1.", "update"),
            ("PUT", "/api/v1/namespaces/shop/status", "", "namespaces.v1.", "update_status"),
            ("POST", bindings, "application/json", "bindings.v1alpha1.control.kubestellar.io", "create"),
            (
                "PUT",
                &format!("{bindings}/b/status"),
                "",
                "bindings.v1alpha1.control.kubestellar.io",
                "update_status",
            ),
            ("PUT", &format!("{bindings}/b"), "", "bindings.v1alpha1.control.kubestellar.io", "update"),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/a/deployments/d",
                "application/merge-patch+json",
                "deployments.v1.apps",
                "patch",
            ),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/a/deployments/d",
                "application/apply-patch+yaml",
                "deployments.v1.apps",
                "apply",
            ),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/a/deployments/d/status",
                "application/apply-patch+yaml",
                "deployments.v1.apps",
                "apply_status",
            ),
            ("DELETE", "/apis/apps/v1/namespaces/a/deployments/d", "", "deployments.v1.apps", "delete"),
            (
                "DELETE",
                "/apis/apps/v1/namespaces/a/deployments",
                "",
                "deployments.v1.apps",
                "delete_collection",
            ),
        ];
        for (method, uri, content_type, resource, name) in cases {
            let call = Call::from_parts(&method.parse().unwrap(), &uri.parse().unwrap(), content_type);
            assert_eq!((call.resource.as_deref(), call.method), (Some(resource), name), "{method} {uri}");
            assert_eq!(
                call.load == RequestClass::Collection,
                matches!(name, "list" | "watch"),
                "{method} {uri}"
            );
        }
        for path in ["/apis", "/api", "/apis/apps/v1", "/version", "/openapi/v2", "/apis/apps"] {
            assert_eq!(Call::from_parts(&Method::GET, &path.parse().unwrap(), "").resource, None, "{path}");
        }
    }

    fn server(code: u16, body: &'static str) -> Client {
        let answer = move |_: Request<Body>| async move {
            let body = Body::from(body.as_bytes().to_vec());
            Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
        };
        Client::new(tower::service_fn(answer), "default")
    }

    /// KS-220, KS-224: each request is counted with its outcome, and the caller receives the response.
    #[tokio::test]
    async fn ks_224_requests_are_counted_and_pass() {
        let metrics = Metrics::default();
        let get = |client: Client| async move {
            let request = Request::get("/api/v1/namespaces/shop/configmaps/a").body(Vec::new()).unwrap();
            client.request::<serde_json::Value>(request).await
        };
        let counted = metrics.requests("its.example:443", Some("its"));
        assert_eq!(
            get(observed(server(200, "{}"), None, counted.clone())).await.unwrap(),
            serde_json::json!({})
        );
        let refused = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"AlreadyExists","code":409,"message":"it is there"}"#;
        let error = get(observed(server(409, refused), None, counted)).await.unwrap_err();
        assert!(crate::failure::is_already_exists(&error), "{error:?}");
        let text = metrics.text();
        let call = |error: &str| {
            format!(
                "kubestellar_apiserver_call_latency_seconds_count{{space=\"its\",resource=\"configmaps.v1.\",method=\"get\",error=\"{error}\"}} 1"
            )
        };
        let wanted = [
            "rest_client_requests_total{code=\"200\",method=\"GET\",host=\"its.example:443\"} 1".to_owned(),
            "rest_client_requests_total{code=\"409\",method=\"GET\",host=\"its.example:443\"} 1".to_owned(),
            "rest_client_request_duration_seconds_count{verb=\"GET\",host=\"its.example:443\"} 2".to_owned(),
            call(""),
            call("apiStatus:AlreadyExists"),
        ];
        for line in wanted {
            assert!(text.lines().any(|it| it == line), "no {line} in {text}");
        }
    }

    /// KS-210: a client keeps to its rate.
    #[tokio::test(start_paused = true)]
    async fn ks_210_requests_wait_for_their_turn() {
        let metrics = Metrics::default();
        let limiter = Arc::new(Limiter::new(Rate { qps: 2.0, burst: 3 }));
        let client = observed(server(200, "{}"), Some(limiter), metrics.requests("h", None));
        let start = Instant::now();
        for _ in 0..7 {
            let request = Request::get("/api/v1/namespaces/a").body(Vec::new()).unwrap();
            client.request::<serde_json::Value>(request).await.unwrap();
        }
        assert_eq!(start.elapsed().as_millis(), 2000);
        let text = metrics.text();
        assert!(
            text.contains("rest_client_rate_limiter_duration_seconds_count{verb=\"GET\",host=\"h\"} 7"),
            "{text}"
        );
        assert!(
            !text.contains("kubestellar_apiserver_call_latency_seconds_count"),
            "no space, no calls: {text}"
        );
    }
}
