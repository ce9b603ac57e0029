//! `/healthz`, `/livez`, `/readyz` (spec 1.2).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{HeaderName, Response, StatusCode};
use machinery::field::quote;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use tokio::time::Instant;

/// One named check, evaluated for each request.
pub struct Check {
    pub name: String,
    pub healthy: bool,
    /// Why the check fails. Anonymous users can read it.
    pub reason: Option<String>,
}

impl Check {
    pub fn new(name: impl Into<String>, healthy: bool) -> Self {
        Self { name: name.into(), healthy, reason: None }
    }

    /// A check that fails if there is a reason.
    pub fn of(name: impl Into<String>, reason: Option<String>) -> Self {
        Self { name: name.into(), healthy: reason.is_none(), reason }
    }
}

/// How long a check must fail before `/livez` reports it, because a restart is the last resort.
pub(crate) const LIVEZ_GRACE: Duration = Duration::from_secs(30);

/// Since when checks have been failing. The time of a check starts when a request first sees it fail.
#[derive(Default)]
pub(crate) struct FailingChecks(Mutex<BTreeMap<String, Instant>>);

impl FailingChecks {
    pub(crate) fn observe(&self, checks: &[Check]) {
        let (mut since, now) = (self.0.lock(), Instant::now());
        since.retain(|name, _| checks.iter().any(|check| check.name == *name && !check.healthy));
        for check in checks.iter().filter(|check| !check.healthy) {
            since.entry(check.name.clone()).or_insert(now);
        }
    }

    /// Makes checks healthy that have failed for less than [`LIVEZ_GRACE`].
    pub(crate) fn ignore_recent(&self, checks: &mut [Check]) {
        let since = self.0.lock();
        for check in checks {
            check.healthy |= since.get(&check.name).is_none_or(|since| since.elapsed() < LIVEZ_GRACE);
        }
    }
}

/// Answers health paths (`/livez`, `/livez/{check}`, `/livez?verbose&exclude=ping`); `None` for other paths (AS-004).
pub fn answer(path: &str, query: &str, checks: &[Check]) -> Option<Response<Bytes>> {
    let mut segments = path.strip_prefix('/')?.splitn(2, '/');
    let endpoint = segments.next().filter(|e| matches!(*e, "healthz" | "livez" | "readyz"))?;
    Some(match segments.next().filter(|rest| !rest.is_empty()) {
        None => all(endpoint, query, checks),
        Some(name) => match checks.iter().find(|c| c.name == name) {
            None => respond(StatusCode::NOT_FOUND, "404 page not found\n".into(), true),
            Some(Check { healthy: true, .. }) => respond(StatusCode::OK, "ok".into(), false),
            Some(check) => {
                let reason = check.reason.as_deref().unwrap_or("reason withheld");
                let body = format!("internal server error: {reason}\n");
                respond(StatusCode::INTERNAL_SERVER_ERROR, body, true)
            }
        },
    })
}

fn all(endpoint: &str, query: &str, checks: &[Check]) -> Response<Bytes> {
    let mut excluded = Vec::new();
    let mut verbose = false;
    for (key, value) in query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, ""))) {
        match key {
            "verbose" => verbose = true,
            "exclude" => excluded.push(percent_decode_str(value).decode_utf8_lossy().into_owned()),
            _ => {}
        }
    }
    let mut text = String::new();
    let mut healthy = true;
    for check in checks {
        // Writing to a string cannot fail.
        if excluded.contains(&check.name) {
            let _ = writeln!(text, "[+]{} excluded: ok", check.name);
        } else if check.healthy {
            let _ = writeln!(text, "[+]{} ok", check.name);
        } else {
            healthy = false;
            let reason = check.reason.as_deref().unwrap_or("reason withheld");
            let _ = writeln!(text, "[-]{} failed: {reason}", check.name);
        }
    }
    excluded.retain(|name| !checks.iter().any(|c| c.name == *name));
    if !excluded.is_empty() {
        let names: Vec<String> = excluded.iter().map(|n| quote(n)).collect();
        let names = names.join(",");
        let _ = writeln!(text, "warn: some health checks cannot be excluded: no matches for {names}");
    }
    if !healthy {
        let _ = writeln!(text, "{endpoint} check failed");
        return respond(StatusCode::INTERNAL_SERVER_ERROR, text, true);
    }
    if !verbose {
        return respond(StatusCode::OK, "ok".into(), false);
    }
    let _ = writeln!(text, "{endpoint} check passed");
    respond(StatusCode::OK, text, true)
}

fn respond(status: StatusCode, body: String, nosniff: bool) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    if nosniff {
        let name = HeaderName::from_static("x-content-type-options");
        headers.insert(name, HeaderValue::from_static("nosniff"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(path: &str, query: &str, sound: bool) -> (u16, String) {
        let checks = [Check::new("ping", true), Check::new("etcd", sound)];
        let response = answer(path, query, &checks).unwrap();
        (response.status().as_u16(), String::from_utf8_lossy(response.body()).into_owned())
    }

    #[test]
    fn as_004_health_texts() {
        assert_eq!(ask("/healthz", "", true), (200, "ok".into()));
        assert_eq!(
            ask("/livez", "verbose", true),
            (200, "[+]ping ok\n[+]etcd ok\nlivez check passed\n".into())
        );
        assert_eq!(
            ask("/readyz", "verbose=1&exclude=ping&exclude=zzz", true),
            (200, "[+]ping excluded: ok\n[+]etcd ok\nwarn: some health checks cannot be excluded: no matches for \"zzz\"\nreadyz check passed\n".into())
        );
        assert_eq!(
            ask("/readyz", "", false),
            (500, "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n".into())
        );
        assert_eq!(ask("/readyz", "exclude=etcd", false).0, 200);
        assert_eq!(ask("/livez/ping", "", false), (200, "ok".into()));
        assert_eq!(ask("/livez/etcd", "", false).0, 500);
        assert_eq!(ask("/livez/none", "", true), (404, "404 page not found\n".into()));
        assert!(answer("/health", "", &[]).is_none());
    }
}
