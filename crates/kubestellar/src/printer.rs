//! The only writer to the terminal: results go to stdout, everything else to stderr (SP-081, SP-082).

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

/// Writes the output of one command.
#[derive(Clone, Debug)]
pub(crate) struct Printer {
    quiet: bool,
    fancy: bool,
}

impl Printer {
    /// Uses colour and spinner only on a capable terminal, and only if the user did not switch them off.
    pub(crate) fn new(quiet: bool, no_color: bool) -> Self {
        let plain = no_color
            || std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty())
            || std::env::var("TERM").is_ok_and(|t| t == "dumb");
        Self { quiet, fancy: !quiet && !plain && std::io::stderr().is_terminal() }
    }

    /// Prints a finished step: `ok  its1 ready (0.21s)`.
    pub(crate) fn step(&self, what: &str, took: Option<Duration>) {
        if self.quiet {
            return;
        }
        let took = took.map(|t| format!(" ({})", seconds(t))).unwrap_or_default();
        let ok = if self.fancy { "\u{1b}[32mok\u{1b}[0m" } else { "ok" };
        say(&format!("{ok}  {what}{took}"));
    }

    /// Prints a remark to stderr.
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

    /// Prints a message about what was done to stdout, unless `--quiet` is set (SP-082).
    pub(crate) fn closing(&self, text: &str) {
        if !self.quiet {
            self.result(text);
        }
    }

    /// Prints a result to stdout, also with `--quiet`. A closed pipe is not an error.
    #[allow(clippy::unused_self, reason = "the printer is the one door to stdout")]
    pub(crate) fn result(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{}", text.trim_end_matches('\n'));
    }

    /// Returns a spinner for a long step; `None` if stderr is no terminal.
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

    /// Prints a document as JSON or YAML. The caller handles `Table`, `Wide` and `Name`.
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

/// Writes a line to stderr. It is no error if stderr is closed, or a file on a full disk.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// `0.21s`, `12.3s`.
pub(crate) fn seconds(t: Duration) -> String {
    let s = t.as_secs_f64();
    if s < 10.0 { format!("{s:.2}s") } else { format!("{s:.1}s") }
}

/// Formats a table as kubectl does: upper-case header, three spaces between the columns.
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
