//! `kubestellar down` (SP-105).

use std::io::{BufRead, IsTerminal};
use std::time::Duration;

use crate::control::{self, Request};
use crate::datadir::{DataDir, Purged, quoted};
use crate::duration;
use crate::exit::{Exit, Failure, OrFail};
use crate::kubeconfig;
use crate::printer::{Printer, seconds};
use crate::shape::Shape;

/// Stop the server of an installation. Data and kubeconfig entries stay, so `up` continues where it was.
///
/// With --purge, removes what the installation keeps in its data directory. Files of others stay, and a directory that is
/// not the data directory of an installation is not touched.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  kubestellar down\n  kubestellar down --purge --yes")]
pub(crate) struct Args {
    /// Also remove all data of the installation, and its entries from the kubeconfig
    #[arg(long)]
    purge: bool,
    /// Leave the kubeconfig entries alone even with --purge
    #[arg(long, requires = "purge")]
    keep_contexts: bool,
    /// Do not ask before removing data
    #[arg(short, long)]
    yes: bool,
    /// Longest wait for the server to stop, such as 90s or 5m; 0 waits without limit
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration::parse)]
    timeout: Duration,
}

/// Runs the command. `named` says whether the user has named the directory, by flag or environment.
pub(crate) async fn run(
    args: &Args,
    data: &DataDir,
    named: bool,
    kubeconfigs: &[std::path::PathBuf],
    out: &Printer,
) -> Result<Exit, Failure> {
    if args.purge {
        if data.may_be_purged()? {
            unambiguous(data, named)?;
        }
        confirm(args, data)?;
    }
    let started = std::time::Instant::now();
    if stop_server(data, args.timeout).await? {
        out.step("server stopped", Some(started.elapsed()));
    } else {
        out.note("no server is running");
    }
    if args.purge {
        let removed = purge(args, data, kubeconfigs, out).await?;
        let dir = data.path().display();
        match removed {
            Purged::Nothing => out.note(&format!("there is nothing in {dir}")),
            Purged::All => out.step(&format!("removed {dir}"), None),
            Purged::Contents => {
                out.step(&format!("removed the installation in {dir}; the directory itself stays"), None);
            }
        }
    }
    Ok(Exit::Done)
}

/// Refuses if a demo that was left running exists beside an installation and the user names neither: which of the two a command
/// finds depends on which of them runs.
fn unambiguous(data: &DataDir, named: bool) -> Result<(), Failure> {
    let (own, demo) = (DataDir::resolve(None)?, DataDir::kept_demo());
    let Some(demo) = demo.filter(|demo| !named && *demo != own && own.may_be_purged().unwrap_or(true)) else {
        return Ok(());
    };
    let (this, other) = if demo == *data { ("a demo", &own) } else { ("an installation", &demo) };
    let why = format!("this is {this}, and {} is there, too: name the one you mean", other.path().display());
    Err(Failure::new(Exit::Usage, format!("removing {}", data.path().display()), why).hint(format!(
        "kubestellar --data-dir {} down --purge, or kubestellar --data-dir {} down --purge",
        quoted(data.path()),
        quoted(other.path())
    )))
}

/// Asks the server to stop and waits until it has ended. Returns false if none was running.
async fn stop_server(data: &DataDir, timeout: Duration) -> Result<bool, Failure> {
    if !data.is_locked()? {
        return Ok(false);
    }
    let mut replies = control::ask(data, &Request::Stop).await?;
    let gone = async { while let Ok(Some(_)) = replies.next().await {} };
    let late = || {
        Failure::new(
            Exit::TimedOut,
            "stopping the server",
            format!("it still runs after {}", seconds(timeout)),
        )
        .hint(format!("see its log, {}", data.log().display()))
    };
    if timeout.is_zero() {
        gone.await;
    } else {
        tokio::time::timeout(timeout, gone).await.map_err(|_| late())?;
    }
    // The server closes the connection just before it exits. The lock is released when the process ends.
    let lock = data.clone();
    let released = tokio::task::spawn_blocking(move || lock.wait_unlocked());
    match tokio::time::timeout(Duration::from_secs(10), released).await {
        Ok(done) => done.or_fail("stopping the server")?.map(|()| true),
        Err(_) => Err(late()),
    }
}

fn confirm(args: &Args, data: &DataDir) -> Result<(), Failure> {
    if args.yes {
        return Ok(());
    }
    let what = format!("removing {}", data.path().display());
    if !std::io::stdin().is_terminal() {
        return Err(Failure::new(Exit::Usage, what, "this needs a yes").hint("add --yes"));
    }
    eprint!("Remove all data in {}? [y/N] ", data.path().display());
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).or_fail("reading the answer")?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        Ok(())
    } else {
        Err(Failure::new(Exit::Failed, what, "not confirmed"))
    }
}

async fn purge(
    args: &Args,
    data: &DataDir,
    kubeconfigs: &[std::path::PathBuf],
    out: &Printer,
) -> Result<Purged, Failure> {
    if !data.may_be_purged()? {
        return Ok(Purged::Nothing);
    }
    // Holding the lock keeps a server from starting while its files are removed.
    let _lock = data.lock().await?;
    if let Some(shape) = Shape::load(data)?
        && !args.keep_contexts
    {
        kubeconfig::remove_from(kubeconfigs, &shape.installation)?;
        // Files that an earlier `up` was told to use: without them the installation can go as well.
        for file in shape.kubeconfigs.iter().filter(|file| !kubeconfigs.contains(file)) {
            if let Err(failure) = kubeconfig::remove_from(std::slice::from_ref(file), &shape.installation) {
                out.note(&format!("contexts stay in {}: {}", file.display(), failure.why));
            }
        }
    }
    data.purge()
}
