//! The metrics of requests that client-go has (KS-224), and those of calls that KubeStellar has (KS-220).

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

use super::{Timings, shown, timed};

#[derive(Clone)]
pub(super) struct Families {
    requests: Family<ResponseLabels, Counter>,
    durations: Timings<RequestLabels>,
    limited: Timings<RequestLabels>,
    calls: Timings<CallLabels>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResponseLabels {
    code: String,
    method: String,
    host: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: String,
    host: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    space: String,
    resource: String,
    method: String,
    error: String,
}

fn request_durations() -> Histogram {
    Histogram::new([0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0])
}

fn call_durations() -> Histogram {
    Histogram::new([0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0])
}

impl Families {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let requests = "Number of HTTP requests, partitioned by status code, method, and host";
        let took = "Request latency in seconds. Broken down by verb, and host";
        let waited = "Client side rate limiter latency in seconds. Broken down by verb, and host";
        let calls = ("kubestellar_apiserver_call_latency_seconds", "apiserver call latency in seconds");
        Self {
            requests: shown(registry, "rest_client_requests", requests),
            durations: timed(registry, "rest_client_request_duration_seconds", took, request_durations),
            limited: timed(registry, "rest_client_rate_limiter_duration_seconds", waited, request_durations),
            calls: timed(registry, calls.0, calls.1, call_durations),
        }
    }

    pub(super) fn of(&self, host: &str, space: Option<&str>) -> RequestMetrics {
        let (host, space) = (host.to_owned(), space.map(str::to_owned));
        RequestMetrics { families: self.clone(), host, space }
    }
}

/// The metrics of one client.
#[derive(Clone)]
pub struct RequestMetrics {
    families: Families,
    host: String,
    space: Option<String>,
}

impl RequestMetrics {
    /// A request waited this long for the client's rate limiter.
    pub fn limited(&self, method: &str, waited: Duration) {
        let labels = RequestLabels { verb: method.to_owned(), host: self.host.clone() };
        self.families.limited.get_or_create(&labels).observe(waited.as_secs_f64());
    }

    /// A request was answered with this code, or got no answer (`None`).
    pub fn answered(&self, method: &str, code: Option<u16>, took: Duration) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        let labels = ResponseLabels { code, method: method.to_owned(), host: self.host.clone() };
        self.families.requests.get_or_create(&labels).inc();
        let labels = RequestLabels { verb: method.to_owned(), host: self.host.clone() };
        self.families.durations.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// A call to `resource` (`<plural>.<version>.<group>`) ended with `error`, which is empty for success.
    pub fn called(&self, resource: &str, method: &str, error: &str, took: Duration) {
        let Some(space) = self.space.clone() else { return };
        let labels = CallLabels {
            space,
            resource: resource.to_owned(),
            method: method.to_owned(),
            error: error.to_owned(),
        };
        self.families.calls.get_or_create(&labels).observe(took.as_secs_f64());
    }
}
