//! Checks of the repository that need code. `cargo xtask tidy` runs them; CI does, too.

mod tidy;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;

const USAGE: &str = "usage: cargo xtask tidy

tidy  Fails on a circle between the files of a crate, on a dependency that the layers forbid and on a requirement id
      that docs/spec does not have. Also prints long files and functions, which is no failure.";

fn main() -> anyhow::Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words != ["tidy"] {
        anyhow::bail!("{USAGE}");
    }
    // Asked at run time: a program that was built for another checkout must not check that one.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").context("start it with `cargo xtask`")?;
    let root = Path::new(&here).parent().context("xtask lies in the workspace")?;
    let findings = tidy::run(root)?;
    findings.print();
    Ok(if findings.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
