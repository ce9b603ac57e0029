//! Events live for an hour after they were last written (AS-058).

use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use store::{Collection, Entry};

/// How long events are kept.
pub(crate) const TTL: Duration = Duration::from_secs(60 * 60);

/// Core events and those of `events.k8s.io` are the same objects.
pub(crate) fn collection() -> Collection {
    Collection::new("", "events")
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Seen {
    #[serde(default)]
    last_timestamp: Option<String>,
    #[serde(default, rename = "eventTime")]
    at: Option<String>,
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    creation_timestamp: Option<String>,
}

/// When a stored event was last seen, as far as it says.
pub(crate) fn last_seen(entry: &Entry) -> Option<Timestamp> {
    let event: Seen = serde_json::from_slice(&entry.value).ok()?;
    let times = [event.last_timestamp, event.at, event.metadata.creation_timestamp];
    times.into_iter().flatten().filter_map(|time| time.parse().ok()).max()
}

/// What is left of an event's life. One that was seen later than it could live was written while the clock was ahead: nothing is left,
/// else it would stay until that time.
pub(crate) fn remaining(last_seen: Timestamp, now: Timestamp) -> Duration {
    if last_seen.duration_since(now).unsigned_abs() > TTL && last_seen > now {
        return Duration::ZERO;
    }
    let age = now.as_millisecond().saturating_sub(last_seen.as_millisecond());
    TTL.saturating_sub(Duration::from_millis(u64::try_from(age).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_058_an_event_lives_for_an_hour_after_its_last_write() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let now = at("2026-01-01T12:00:00Z");
        let cases = [
            ("2026-01-01T12:00:00Z", 3600),
            ("2026-01-01T11:30:00Z", 1800),
            ("2026-01-01T10:00:00Z", 0),
            ("2026-01-01T13:00:00Z", 3600),
            ("2026-01-01T13:00:01Z", 0),
            ("2027-01-01T12:00:00Z", 0),
        ];
        for (seen, left) in cases {
            assert_eq!(remaining(at(seen), now), Duration::from_secs(left), "{seen}");
        }
    }
}
