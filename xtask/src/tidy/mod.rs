//! `cargo xtask tidy`: rules of structure that neither the compiler nor clippy knows.

mod circles;
mod dependencies;
mod ids;
mod sizes;
mod source;
#[cfg(test)]
mod tests;

use std::path::Path;

/// What was found. Violations fail the check, notes do not.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) violations: Vec<String>,
    pub(crate) notes: Vec<String>,
}

impl Findings {
    /// Notes and violations to stderr, a closing line to stdout.
    #[allow(clippy::print_stdout, clippy::print_stderr)]
    pub(crate) fn print(&self) {
        for note in &self.notes {
            eprintln!("note: {note}");
        }
        for violation in &self.violations {
            eprintln!("error: {violation}");
        }
        println!("tidy: {} violations, {} notes", self.violations.len(), self.notes.len());
    }
}

/// Checks the repository at `root`.
///
/// # Errors
/// A file or folder that cannot be read.
pub(crate) fn run(root: &Path) -> anyhow::Result<Findings> {
    let crates = source::crates(root)?;
    let mut findings = Findings::default();
    for one in &crates {
        findings.violations.extend(circles::check(one));
        findings.violations.extend(dependencies::check(one));
        findings.notes.extend(sizes::check(one));
    }
    findings.violations.extend(ids::check(root, &crates)?);
    Ok(findings)
}
