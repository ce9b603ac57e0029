//! The newest time that an installation has seen. If the clock is behind that time, the log and `status` say so.
//!
//! Leases, certificates, tokens and Events carry times. If the clock goes back, the times written before lie in the future. The program
//! cannot know which of the two times is wrong, so it reports the difference, and the user decides.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::datadir::write_atomically;

/// A clock that is behind by less than this is taken for adjusted, and not reported.
const TOLERANCE: Duration = Duration::from_secs(60);
/// How often the newest time is written to disk.
const WRITE_EVERY: Duration = Duration::from_secs(600);

/// The contents of `clock.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    newest: Timestamp,
}

/// The newest time seen, in memory and, from time to time, on disk.
pub(super) struct Clock {
    path: PathBuf,
    seen: Mutex<Seen>,
}

struct Seen {
    newest: SystemTime,
    written: Option<SystemTime>,
    is_behind: bool,
}

impl Clock {
    /// Reads the newest time from disk; `trust` ignores it. A file that cannot be read counts as absent.
    pub(super) fn open(path: &Path, now: SystemTime, trust: bool) -> Self {
        let mark = fs::read(path).ok().and_then(|text| serde_json::from_slice::<Mark>(&text).ok());
        let newest = mark.map(|mark| SystemTime::from(mark.newest)).filter(|_| !trust);
        let seen = Seen { newest: newest.unwrap_or(now), written: newest, is_behind: false };
        let clock = Self { path: path.to_owned(), seen: Mutex::new(seen) };
        clock.observe(now);
        clock
    }

    /// Records the time. Logs once that the clock is behind the newest time.
    pub(super) fn observe(&self, now: SystemTime) {
        let mut seen = self.seen.lock();
        let behind = behind(seen.newest, now);
        if let Some(by) = behind.filter(|_| !seen.is_behind) {
            tracing::warn!(clock = said(now), seen = said(seen.newest), seconds = by.as_secs(), "{ADVICE}");
        }
        seen.is_behind = behind.is_some();
        seen.newest = seen.newest.max(now);
        let newest = seen.newest;
        let is_due =
            |written: SystemTime| newest.duration_since(written).is_ok_and(|past| past >= WRITE_EVERY);
        if seen.written.is_none_or(is_due) {
            // For example because the disk is full. The next call tries again.
            match self.write(newest) {
                Ok(()) => seen.written = Some(newest),
                Err(error) => {
                    tracing::debug!(%error, path = %self.path.display(), "the time could not be written down");
                }
            }
        }
    }

    /// Describes what is wrong with the clock; `None` if nothing is.
    pub(super) fn complaint(&self, now: SystemTime) -> Option<String> {
        let newest = self.seen.lock().newest;
        behind(newest, now).map(|by| {
            let by = crate::commands::status::age(by);
            format!("{}, {by} behind {}, which was seen before: {ADVICE}", said(now), said(newest))
        })
    }

    fn write(&self, newest: SystemTime) -> std::io::Result<()> {
        let newest = Timestamp::try_from(newest).map_err(std::io::Error::other)?;
        let text = serde_json::to_vec(&Mark { newest }).map_err(std::io::Error::other)?;
        write_atomically(&self.path, &text, 0o600)
    }
}

const ADVICE: &str = "the clock is wrong now, or was ahead before; set it, or, if it is right, restart with `kubestellar down` and \
                      `kubestellar up --trust-clock`";

fn behind(newest: SystemTime, now: SystemTime) -> Option<Duration> {
    newest.duration_since(now).ok().filter(|by| *by > TOLERANCE)
}

fn said(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or_else(|_| "a time out of range".to_owned(), |it| format!("{it:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-062: a clock behind the newest time is reported, also after a restart, until it catches up or the user trusts it.
    #[test]
    fn sp_062_a_clock_that_goes_back_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clock.json");
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let year = Duration::from_secs(365 * 24 * 3600);
        let clock = Clock::open(&path, now, false);
        assert_eq!(clock.complaint(now), None);
        assert_eq!(clock.complaint(now - TOLERANCE), None, "adjusted");
        clock.observe(now + year);
        let said = clock.complaint(now).expect("a complaint");
        assert!(said.contains("365d behind 2028-01-15") && said.contains("--trust-clock"), "{said}");

        let restarted = Clock::open(&path, now, false);
        assert!(restarted.complaint(now).is_some());
        assert_eq!(restarted.complaint(now + year), None, "it has caught up");
        assert_eq!(Clock::open(&path, now, true).complaint(now), None);
        assert_eq!(Clock::open(&path, now, false).complaint(now), None, "that is remembered");
        fs::write(&path, "nonsense").unwrap();
        assert_eq!(Clock::open(&path, now, false).complaint(now), None);
    }
}
