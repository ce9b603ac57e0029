//! `kubestellar down` (SP-105).

use std::io::{BufRead, IsTerminal};
use std::time::Duration;

use crate::control::{self, Request};
use crate::datadir::DataDir;
use crate::exit::{Exit, Failure, OrFail};
use crate::kubeconfig;
use crate::printer::Printer;
use crate::shape::Shape;

/// Stop the server of an installation. Data and kubeconfig entries stay, so `up` continues where it was.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  kubestellar down\n  kubestellar down --purge --yes")]
pub(crate) struct Args {
    /// Also remove all data of the installation, and its entries from the kubeconfig
    #[arg(long)]
    pub(crate) purge: bool,
    /// Leave the kubeconfig entries alone even with --purge
    #[arg(long, requires = "purge")]
    pub(crate) keep_contexts: bool,
    /// Do not ask before removing data
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Longest wait for the server to stop, in seconds; 0 waits without limit
    #[arg(long, default_value_t = 60)]
    pub(crate) timeout: u64,
}

pub(crate) async fn run(
    args: &Args,
    data: &DataDir,
    kubeconfigs: &[std::path::PathBuf],
    out: &Printer,
) -> Result<Exit, Failure> {
    if args.purge {
        confirm(args, data)?;
    }
    let started = std::time::Instant::now();
    if stop_server(data, args.timeout).await? {
        out.step("server stopped", Some(started.elapsed()));
    } else {
        out.note("no server is running");
    }
    if args.purge {
        purge(args, data, kubeconfigs)?;
        out.step(&format!("removed {}", data.path().display()), None);
    }
    Ok(Exit::Done)
}

/// Asks the server to stop and waits until it is gone. `false` when none was running.
async fn stop_server(data: &DataDir, timeout: u64) -> Result<bool, Failure> {
    if !data.is_locked() {
        return Ok(false);
    }
    let mut replies = control::ask(data, &Request::Stop).await?;
    let gone = async { while let Ok(Some(_)) = replies.next().await {} };
    let late = || {
        Failure::new(Exit::TimedOut, "stopping the server", format!("it still runs after {timeout} s"))
            .hint(format!("see its log, {}", data.log().display()))
    };
    if timeout == 0 {
        gone.await;
    } else {
        tokio::time::timeout(Duration::from_secs(timeout), gone).await.map_err(|_| late())?;
    }
    // The server closes the connection as the last thing before it exits; the lock goes with the process.
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

fn purge(args: &Args, data: &DataDir, kubeconfigs: &[std::path::PathBuf]) -> Result<(), Failure> {
    if let Some(shape) = Shape::load(data)?
        && !args.keep_contexts
    {
        kubeconfig::remove_from(kubeconfigs, &shape.installation)?;
    }
    data.remove()
}
