//! Expiry of Events, an hour after their last update (AS-058).

use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use store::{Collection, Entry};

/// How long events are kept.
pub(crate) const TTL: Duration = Duration::from_secs(60 * 60);

/// The collection of Events, which core and `events.k8s.io` share.
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

/// When the last occurrence of an Event was recorded.
pub(crate) fn last_seen(entry: &Entry) -> Option<Timestamp> {
    let event: Seen = serde_json::from_slice(&entry.value).ok()?;
    let times = [event.last_timestamp, event.at, event.metadata.creation_timestamp];
    times.into_iter().flatten().filter_map(|time| time.parse().ok()).max()
}

/// The remaining life of an Event. Zero if the Event lies further in the future than its life time: it was written while the
/// clock was ahead, and would stay too long.
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
