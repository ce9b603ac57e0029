//! The one door to the terminal: results on stdout, everything else on stderr (SP-081, SP-082).

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::exit::{Exit, Failure, OrFail};

/// `-o`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    #[default]
    Table,
    Wide,
    Json,
    Yaml,
    Name,
}

/// How this run talks.
#[derive(Clone, Debug)]
pub(crate) struct Printer {
    quiet: bool,
    fancy: bool,
}

impl Printer {
    /// `fancy` (colour, spinner) only on a terminal that can, and only when nobody turned it off.
    pub(crate) fn new(quiet: bool, no_color: bool) -> Self {
        let plain = no_color
            || std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty())
            || std::env::var("TERM").is_ok_and(|t| t == "dumb");
        Self { quiet, fancy: !quiet && !plain && std::io::stderr().is_terminal() }
    }

    /// One finished step, `ok  its1 ready (0.21s)`.
    pub(crate) fn step(&self, what: &str, took: Option<Duration>) {
        if self.quiet {
            return;
        }
        let took = took.map(|t| format!(" ({})", seconds(t))).unwrap_or_default();
        let ok = if self.fancy { "\u{1b}[32mok\u{1b}[0m" } else { "ok" };
        say(&format!("{ok}  {what}{took}"));
    }

    /// A remark on stderr.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            say(text);
        }
    }

    pub(crate) fn failure(&self, failure: &Failure) {
        let text = failure.to_string();
        match text.strip_prefix("error:") {
            Some(rest) if self.fancy => say(&format!("\u{1b}[31merror:\u{1b}[0m{rest}")),
            _ => say(&text),
        }
    }

    /// What a person reads after something was done, on stdout: nothing when quiet (SP-082).
    pub(crate) fn closing(&self, text: &str) {
        if !self.quiet {
            self.result(text);
        }
    }

    /// Result text on stdout, also when quiet. A closed pipe is not an error.
    #[allow(clippy::unused_self, reason = "the printer is the one door to stdout")]
    pub(crate) fn result(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{}", text.trim_end_matches('\n'));
    }

    /// A spinner while something takes its time; `None` off a terminal.
    pub(crate) fn spinner(&self, what: &str) -> Option<ProgressBar> {
        if !self.fancy {
            return None;
        }
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(100));
        Some(bar)
    }

    /// One document in the asked-for machine format; `Table`, `Wide` and `Name` are the caller's.
    pub(crate) fn document<T: Serialize>(&self, value: &T, format: Format) -> Result<(), Failure> {
        let text = match format {
            Format::Yaml => serde_saphyr::to_string(value).or_fail("printing the result")?,
            Format::Json => serde_json::to_string_pretty(value).or_fail("printing the result")?,
            Format::Table | Format::Wide | Format::Name => {
                return Err(Failure::new(Exit::Usage, "printing the result", "not a document format"));
            }
        };
        self.result(&text);
        Ok(())
    }
}

/// A line on stderr. One that is closed, or on a full disk, is not an error.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// `0.21s`, `12.3s`.
pub(crate) fn seconds(t: Duration) -> String {
    let s = t.as_secs_f64();
    if s < 10.0 { format!("{s:.2}s") } else { format!("{s:.1}s") }
}

/// Columns as kubectl prints them: upper-case header, three spaces between.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> =
            cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}", width = *width)).collect();
        padded.join("   ").trim_end().to_owned()
    };
    let mut lines = vec![line(&mut header.iter().copied())];
    lines.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-081: tables look like kubectl's.
    #[test]
    fn sp_081_table_is_aligned() {
        let rows = vec![vec!["its1".into(), "its".into()], vec!["cluster10".into(), "wec".into()]];
        assert_eq!(table(&["NAME", "ROLE"], &rows), "NAME        ROLE\nits1        its\ncluster10   wec");
    }
}
