//! Calling a hook (MC-101 to MC-104, MC-108, MC-206).

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, header};
use machinery::json::parse_strict;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    cache::{Answers, CacheKey},
    config::Settings,
    connect::Proxies,
    credentials::CredentialData,
    transport::{Answer, Http},
};
use crate::{map::answer::LONGEST, metrics::Histogram};

/// Why a call gave nothing that can be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HookError {
    /// No connection, or it broke.
    #[error("http error: {0}")]
    Connect(String),
    /// The name has no address.
    #[error("http error: {0}")]
    Dns(String),
    /// No trust, or no common ground.
    #[error("http error: {0}")]
    Tls(String),
    /// No whole answer in time.
    #[error("http error: no answer within {0:?}")]
    Timeout(Duration),
    /// It redirects without end.
    #[error("http error: more than 10 redirects")]
    Redirects,
    /// 429, with the pause that was asked for.
    #[error("too many requests")]
    TooManyRequests(Option<Duration>),
    /// Anything but 200.
    #[error("unsupported status code: {code} body: {body}")]
    Status { code: u16, body: String },
    /// A body beyond the bound.
    #[error("the answer is larger than 64 MiB")]
    TooLarge,
    /// No JSON.
    #[error("invalid JSON in the answer: {0}")]
    Decode(String),
    /// JSON that breaks the rules.
    #[error("invalid answer: {0}")]
    Validation(String),
}

impl HookError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Dns(_) => "dns",
            Self::Tls(_) => "tls",
            Self::Timeout(_) => "timeout",
            Self::Status { .. } | Self::Redirects => "status",
            Self::TooManyRequests(_) => "too_many_requests",
            Self::TooLarge | Self::Decode(_) => "decode",
            Self::Validation(_) => "validation",
        }
    }
}

/// What is counted of one hook (MC-204, MC-206).
pub struct HookMetrics {
    /// By status code.
    pub requests: Mutex<BTreeMap<u16, u64>>,
    /// By reason.
    pub failures: Mutex<BTreeMap<&'static str, u64>>,
    /// Seconds.
    pub duration: Histogram,
    /// Looking names up: when it began and ended.
    pub dns: [Histogram; 2],
    /// Agreeing on TLS, after the start of the connection: when it began and ended.
    pub tls: [Histogram; 2],
    /// Calls under way.
    pub in_flight: AtomicI64,
}

impl Default for HookMetrics {
    fn default() -> Self {
        Self {
            requests: Mutex::default(),
            failures: Mutex::default(),
            duration: Histogram::of_requests(),
            dns: Histogram::of_dns(),
            tls: Histogram::of_tls(),
            in_flight: AtomicI64::new(0),
        }
    }
}

impl HookMetrics {
    /// Counts a failure.
    pub fn failed(&self, error: &HookError) {
        *self.failures.lock().entry(error.reason()).or_default() += 1;
    }
}

struct InFlight<'a>(&'a HookMetrics);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One hook of one controller.
pub struct HookClient {
    settings: Settings,
    fields: &'static [&'static str],
    http: Mutex<Arc<Http>>,
    proxies: Proxies,
    answers: Mutex<(Answers, Instant)>,
    metrics: Arc<HookMetrics>,
}

/// A request.
pub struct Call<'a> {
    /// Whose answer it is.
    pub key: CacheKey,
    /// The body.
    pub body: &'a Value,
}

impl HookClient {
    /// A client with a pool of connections of its own. `fields` are those an answer may have.
    pub fn new(
        settings: Settings,
        fields: &'static [&'static str],
        material: &CredentialData,
        proxies: &Proxies,
    ) -> Result<Self, String> {
        let metrics = Arc::<HookMetrics>::default();
        let http = Http::new(&settings.url, material, proxies, &metrics)?;
        Ok(Self {
            settings,
            proxies: proxies.clone(),
            fields,
            http: Mutex::new(Arc::new(http)),
            answers: Mutex::new((Answers::default(), Instant::now())),
            metrics,
        })
    }

    /// Its configuration.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What it counts into.
    pub fn metrics(&self) -> &Arc<HookMetrics> {
        &self.metrics
    }

    /// Goes on with other credentials (MC-105).
    pub fn renew(&self, material: &CredentialData) -> Result<(), String> {
        let http = Http::new(&self.settings.url, material, &self.proxies, &self.metrics)?;
        *self.http.lock() = Arc::new(http);
        Ok(())
    }

    /// One call. The whole exchange has the hook's timeout; dropping the future ends it.
    pub async fn call(&self, call: Call<'_>) -> Result<Arc<Value>, HookError> {
        let outcome = self.exchange(call).await;
        if let Err(error) = &outcome {
            self.metrics.failed(error);
        }
        outcome
    }

    async fn exchange(&self, call: Call<'_>) -> Result<Arc<Value>, HookError> {
        let kind = self.settings.kind.as_str();
        let body = serde_json::to_vec(call.body).map_err(|error| HookError::Decode(error.to_string()))?;
        tracing::trace!(hook = kind, url = %self.settings.url, body = %String::from_utf8_lossy(&body), "request");
        let cached = self
            .settings
            .etag
            .and_then(|etag| self.answers.lock().0.get(&call.key, etag.expiry, Instant::now()));
        let http = self.http.lock().clone();
        let began = Instant::now();
        self.metrics.in_flight.fetch_add(1, Ordering::Relaxed);
        let flight = InFlight(&self.metrics);
        let tag = cached.as_ref().map(|cached| &*cached.etag);
        let posted = http.post(&self.settings.url, Bytes::from(body), tag);
        let answer = match tokio::time::timeout(self.settings.timeout, posted).await {
            Ok(answer) => answer?,
            Err(_) => return Err(HookError::Timeout(self.settings.timeout)),
        };
        drop(flight);
        *self.metrics.requests.lock().entry(answer.status.as_u16()).or_default() += 1;
        self.metrics.duration.observe(began.elapsed().as_secs_f64());
        tracing::trace!(hook = kind, status = %answer.status, body = %String::from_utf8_lossy(&answer.body), "answer");
        match (answer.status.as_u16(), cached) {
            (429, _) => Err(HookError::TooManyRequests(retry_after(&answer.headers))),
            (304 | 412, Some(cached)) => self.decode(&cached.body),
            (200, _) => self.accept(call.key, &answer),
            (code, _) => Err(HookError::Status { code, body: excerpt(&answer.body) }),
        }
    }

    fn accept(&self, key: CacheKey, answer: &Answer) -> Result<Arc<Value>, HookError> {
        let value = self.decode(&answer.body)?;
        let tag = answer.headers.get(header::ETAG).and_then(|tag| tag.to_str().ok());
        if let (Some(etag), Some(tag)) = (self.settings.etag, tag) {
            let now = Instant::now();
            let mut answers = self.answers.lock();
            answers.0.put(key, tag, &answer.body, now);
            if let Some((expiry, sweep)) = etag.expiry.zip(etag.sweep)
                && now.saturating_duration_since(answers.1) > sweep
            {
                answers.0.sweep(expiry, now);
                answers.1 = now;
            }
        }
        Ok(value)
    }

    fn decode(&self, body: &[u8]) -> Result<Arc<Value>, HookError> {
        let (value, duplicates) = parse_strict(body).map_err(|error| HookError::Decode(error.0))?;
        let unknown: Vec<_> = value
            .as_object()
            .into_iter()
            .flatten()
            .map(|(field, _)| field.as_str())
            .filter(|field| !self.fields.contains(field))
            .collect();
        if !unknown.is_empty() || !duplicates.is_empty() {
            let text = format!("unknown fields [{}], duplicate fields [{}]", few(&unknown), few(&duplicates));
            if self.settings.strict {
                return Err(HookError::Validation(text));
            }
            tracing::debug!(hook = self.settings.kind.as_str(), text, "ignored in an answer");
        }
        Ok(Arc::new(value))
    }
}

/// Seconds, or a date (MC-073); a year at most.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds).min(LONGEST)).filter(|pause| !pause.is_zero());
    }
    let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    let pause = date.duration_since(jiff::Timestamp::now());
    let seconds = u64::try_from(pause.as_secs() + i64::from(pause.subsec_nanos() > 0)).ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST)).filter(|pause| !pause.is_zero())
}

/// Some of many names, for a message.
fn few<T: std::borrow::Borrow<str>>(names: &[T]) -> String {
    let some: Vec<String> = names.iter().take(10).map(|name| excerpt(name.borrow().as_bytes())).collect();
    some.join(", ") + if names.len() > some.len() { ", ..." } else { "" }
}

/// The first KiB of a body, for a message.
fn excerpt(body: &[u8]) -> String {
    let end = body.len().min(1024);
    String::from_utf8_lossy(&body[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MC-073: seconds or a date, within reason.
    #[test]
    fn mc_073_retry_after_is_at_most_a_year() {
        let read = |text: &'static str| {
            retry_after(&HeaderMap::from_iter([(
                header::RETRY_AFTER,
                header::HeaderValue::from_static(text),
            )]))
        };
        assert_eq!(read("7"), Some(Duration::from_secs(7)));
        assert_eq!(read("18446744073709551615"), Some(LONGEST));
        assert_eq!(read("Tue, 01 Jan 2999 00:00:00 GMT"), Some(LONGEST));
        assert_eq!((read("0"), read("-1"), read("soon")), (None, None, None));
        assert_eq!(read("Wed, 21 Oct 2015 07:28:00 GMT"), None);
    }
}
