//! Figures.

use std::time::Duration;

use anyhow::{Context, Result};

/// Times of single changes, in order of size.
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn new(mut all: Vec<Duration>) -> Self {
        all.sort_unstable();
        Self(all)
    }

    fn at(&self, part: f64) -> f64 {
        let index = ((self.0.len() as f64 * part).ceil() as usize).clamp(1, self.0.len().max(1)) - 1;
        self.0.get(index).map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "p50 {:.1} ms, p99 {:.1} ms, largest {:.1} ms of {}",
            self.at(0.5),
            self.at(0.99),
            self.at(1.0),
            self.0.len()
        )
    }
}

/// Processes that are accounted for, by name.
pub(crate) struct Processes(Vec<(String, u32)>);

impl Processes {
    pub(crate) fn new(pids: &[String]) -> Result<Self> {
        let read = |text: &String| {
            let (name, pid) = text.split_once('=').context("--pids wants NAME=PID")?;
            Ok((name.to_owned(), pid.parse().context("--pids wants NAME=PID")?))
        };
        Ok(Self(pids.iter().map(read).collect::<Result<_>>()?))
    }

    /// Resident memory now and at its peak.
    pub(crate) fn memory(&self) -> String {
        let mut lines = Vec::new();
        for (name, pid) in &self.0 {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let mib = |what: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(what));
                let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
                kib.unwrap_or(f64::NAN) / 1024.0
            };
            lines.push(format!(
                "resident memory of {name}: {:.0} MiB, at its peak {:.0} MiB",
                mib("VmRSS:"),
                mib("VmHWM:")
            ));
        }
        lines.join("\n")
    }

    /// Processor time used so far, by name.
    pub(crate) fn cpu(&self) -> Vec<(String, Duration)> {
        let of = |pid: u32| -> Option<Duration> {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let mut words = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
            let ticks = words.next()?.parse::<u64>().ok()? + words.next()?.parse::<u64>().ok()?;
            // Hundredths of a second on Linux, whatever its own clock does.
            Some(Duration::from_millis(ticks * 10))
        };
        self.0.iter().map(|(name, pid)| (name.clone(), of(*pid).unwrap_or_default())).collect()
    }

    /// Processor time since `before`, for each of `events`.
    pub(crate) fn cpu_for_each(&self, before: &[(String, Duration)], events: usize) -> String {
        let used = self.cpu().into_iter().zip(before);
        let lines = used.map(|((name, now), (_, then))| {
            let each = now.saturating_sub(*then).as_secs_f64() * 1000.0 / events.max(1) as f64;
            format!("{name} {each:.3} ms")
        });
        lines.collect::<Vec<_>>().join(", ")
    }
}
