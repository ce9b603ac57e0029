//! `kubestellar status` (SP-107).

use std::time::Duration;

use crate::control::{self, ServerStatus};
use crate::datadir::DataDir;
use crate::exit::{Exit, Failure};
use crate::printer::{Format, Printer, table};
use serde_json::json;

/// Show the running server, its spaces and its components.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar status\n  kubestellar status -o json\n  kubestellar status --exit-code && echo healthy"
)]
pub(crate) struct Args {
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// Exit with 9 unless everything is ready; suspended spaces count for nothing
    #[arg(long)]
    exit_code: bool,
}

pub(crate) async fn run(args: &Args, data: &DataDir, out: &Printer) -> Result<Exit, Failure> {
    let status = control::status(data).await?;
    match args.output {
        Format::Json | Format::Yaml => {
            let document =
                json!({ "apiVersion": "cli.kubestellar.io/v1alpha1", "kind": "Status", "server": status });
            out.document(&document, args.output)?;
        }
        Format::Name => {
            out.result(
                &status.spaces.iter().map(|s| format!("space/{}", s.name)).collect::<Vec<_>>().join("\n"),
            );
        }
        Format::Table | Format::Wide => out.result(&text(&status, args.output == Format::Wide)),
    }
    let healthy = status.store_failure.is_none()
        && status.spaces.iter().all(|s| s.ready || s.suspended)
        && status.components.iter().all(|c| c.ready);
    Ok(if args.exit_code && !healthy { Exit::NotInState } else { Exit::Done })
}

fn text(status: &ServerStatus, wide: bool) -> String {
    let memory = status.memory_bytes.map_or_else(|| "<unknown>".to_owned(), mebibytes);
    let refuses = status.store_failure.as_ref().map(|cause| format!(", refuses writes: {cause}"));
    let clock = status.clock.as_ref().map(|complaint| format!("Clock:    {complaint}\n"));
    let head = format!(
        "Server:   running, pid {}, version {}, up {}\nMemory:   {memory}\nStore:    {}{}\n{}URL:      {}\nClusters: simulated, workloads {}\n",
        status.pid,
        status.version,
        age(Duration::from_secs(status.uptime_seconds)),
        mebibytes(status.store_bytes),
        refuses.unwrap_or_default(),
        clock.unwrap_or_default(),
        status.url,
        if status.simulated_workloads { "simulated" } else { "not simulated" },
    );
    let spaces: Vec<Vec<String>> = status
        .spaces
        .iter()
        .map(|s| {
            let (ready, objects) = if s.suspended {
                ("Suspended".to_owned(), "<none>".to_owned())
            } else {
                (yes(s.ready), s.objects.to_string())
            };
            vec![s.name.clone(), s.role.clone(), ready, objects, s.url.clone()]
        })
        .collect();
    let components: Vec<Vec<String>> = status
        .components
        .iter()
        .map(|c| {
            let error = c.last_error.clone().unwrap_or_else(|| "<none>".into());
            vec![c.name.clone(), c.space.clone(), yes(c.ready), c.restarts.to_string(), error]
        })
        .collect();
    let columns = if wide { 5 } else { 4 };
    let cut = |rows: &[Vec<String>]| -> Vec<Vec<String>> {
        rows.iter().map(|r| r.iter().take(columns).cloned().collect()).collect()
    };
    let spaces = table(&["SPACE", "ROLE", "READY", "OBJECTS", "URL"][..columns], &cut(&spaces));
    let components =
        table(&["COMPONENT", "SPACE", "READY", "RESTARTS", "LAST ERROR"][..columns], &cut(&components));
    format!("{head}\n{spaces}\n\n{components}")
}

fn yes(ready: bool) -> String {
    if ready { "True" } else { "False" }.to_owned()
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// `3m12s`, as kubectl prints ages.
pub(crate) fn age(t: Duration) -> String {
    let s = t.as_secs();
    match s {
        0..120 => format!("{s}s"),
        120..7200 if s.is_multiple_of(60) || s >= 600 => format!("{}m", s / 60),
        120..7200 => format!("{}m{}s", s / 60, s % 60),
        7200..172_800 => format!("{}h", s / 3600),
        _ => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-081: ages like kubectl's.
    #[test]
    fn sp_081_ages() {
        let cases = [(5, "5s"), (119, "119s"), (192, "3m12s"), (660, "11m"), (7200, "2h"), (200_000, "2d")];
        for (seconds, text) in cases {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }
}
