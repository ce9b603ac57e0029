//! Calls a hook (MC-101 to MC-104, MC-108, MC-206).

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, header};
use machinery::json::parse_strict;
use parking_lot::Mutex;
use runtime::proxies::Proxies;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    cache::{Answers, CacheKey},
    config::Settings,
    counters::HookMetrics,
    credentials::CredentialData,
    error::HookError,
    transport::{Answer, Http},
};
use crate::map::answer::LONGEST;

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

/// A request to a hook.
pub struct Call<'a> {
    /// Key of the cached answer.
    pub key: CacheKey,
    /// The body.
    pub body: &'a Value,
}

impl HookClient {
    /// Creates a client with its own connection pool. `fields` are the fields that an answer may have.
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

    /// The counters of the hook.
    pub fn metrics(&self) -> &Arc<HookMetrics> {
        &self.metrics
    }

    /// Replaces the credentials (MC-105).
    ///
    /// # Errors
    ///
    /// If the credentials cannot be used for TLS.
    pub fn renew(&self, material: &CredentialData) -> Result<(), String> {
        let http = Http::new(&self.settings.url, material, &self.proxies, &self.metrics)?;
        *self.http.lock() = Arc::new(http);
        Ok(())
    }

    /// Calls the hook. The timeout covers the whole exchange; dropping the future ends it.
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

/// Parses the header: seconds or a date (MC-073), limited to a year.
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

/// Lists some of many names, for a message.
fn few<T: std::borrow::Borrow<str>>(names: &[T]) -> String {
    let some: Vec<String> = names.iter().take(10).map(|name| excerpt(name.borrow().as_bytes())).collect();
    some.join(", ") + if names.len() > some.len() { ", ..." } else { "" }
}

/// Returns the first KiB of a body, for a message.
fn excerpt(body: &[u8]) -> String {
    let end = body.len().min(1024);
    String::from_utf8_lossy(&body[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MC-073: seconds or a date, within limits.
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
