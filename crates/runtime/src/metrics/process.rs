//! What the operating system knows about this process, read when the metrics are requested.

use std::{fmt, fs};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

/// Reads `/proc`. Without `/proc`, these metrics are missing.
#[derive(Debug)]
pub(super) struct Process;

/// Linux reports processor time to programs in hundredths of a second, whatever the frequency of its own
/// clock.
const TICKS_PER_SECOND: f64 = 100.0;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        if let Some(seconds) = processor_seconds() {
            let counter = ConstCounter::new(seconds);
            let help = "Total user and system CPU time spent in seconds";
            let metric =
                encoder.encode_descriptor("process_cpu_seconds", help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let size = |what: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(what))?;
            line.split_whitespace().next()?.parse::<i64>().ok().map(|kib| kib * 1024)
        };
        let files = fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as i64);
        let gauges = [
            ("process_resident_memory_bytes", "Resident memory size in bytes", size("VmRSS:")),
            ("process_virtual_memory_bytes", "Virtual memory size in bytes", size("VmSize:")),
            ("process_open_fds", "Number of open file descriptors", files),
        ];
        for (name, help, value) in gauges {
            let Some(value) = value else { continue };
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

fn processor_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // Skip the program's name, which may contain anything. The state is then the first word, utime and stime
    // are the 12th and 13th.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut words = rest.split_whitespace().skip(11);
    let ticks = words.next()?.parse::<f64>().ok()? + words.next()?.parse::<f64>().ok()?;
    Some(ticks / TICKS_PER_SECOND)
}
