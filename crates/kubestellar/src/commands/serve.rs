//! `kubestellar serve` (SP-106).

use std::io::BufRead as _;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::datadir::DataDir;
use crate::exit::{Exit, Failure, OrFail};
use crate::server::{self, Elsewhere, Options, Reporter};
use crate::shape::Shape;

use super::background::KEEP;
use super::up::{ShapeArgs, uuid};

/// Run the server in the foreground, for service managers, containers and debugging.
///
/// Serves what the data directory remembers, with what the flags add. Stops orderly on Ctrl-C or SIGTERM.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar serve\n  kubestellar serve --data-dir /var/lib/kubestellar --clusters 0\n  kubestellar serve --without controller-manager"
)]
pub(crate) struct Args {
    #[command(flatten)]
    shape: ShapeArgs,
    /// Leave these components to other processes, this time (repeatable, or comma separated)
    #[arg(long, value_name = "COMPONENT", value_delimiter = ',')]
    without: Vec<Elsewhere>,
    /// The clock is right, although the installation has seen later times
    #[arg(long)]
    trust_clock: bool,
    /// Drop from a damaged store exactly what is damaged, list it, and keep the damaged files as *.damaged
    #[arg(long)]
    repair: bool,
    /// Report progress as JSON lines on stdout (what `up` reads)
    #[arg(long, hide = true)]
    report: bool,
    /// Serve the shape that comes on stdin, in one line (what `up` asks for)
    #[arg(long, hide = true)]
    shape_from_stdin: bool,
    /// End when stdin closes, and remove the data directory, unless stdin says to keep it first (what `demo` asks for)
    #[arg(long, hide = true, requires = "shape_from_stdin")]
    until_stdin_closes: bool,
}

impl Args {
    fn options(&self) -> Options {
        Options { without: self.without.clone(), trust_clock: self.trust_clock, repair: self.repair }
    }
}

pub(crate) async fn run(args: &Args, data: &DataDir) -> Result<Exit, Failure> {
    let reporter = if args.report { Reporter::stdout() } else { Reporter::log() };
    let outcome = serve(args, data, reporter.clone()).await;
    if let Err(failure) = &outcome {
        reporter.failed(failure);
    }
    outcome.map(|()| Exit::Done)
}

async fn serve(args: &Args, data: &DataDir, reporter: Reporter) -> Result<(), Failure> {
    let stop = crate::signals::stop_token();
    if !args.shape_from_stdin {
        let shape = Shape::fulfil(Shape::load(data)?.as_ref(), &args.shape.wish()?, &uuid())?;
        return server::run(data, shape, args.options(), reporter, stop).await;
    }
    let mut stdin = lines_of_stdin();
    let shape = stdin.recv().await;
    if !args.until_stdin_closes {
        let shape = serde_json::from_str(&shape.unwrap_or_default()).or_fail("reading the shape")?;
        return server::run(data, shape, args.options(), reporter, stop).await;
    }
    match shape {
        Some(shape) => for_demo(args, data, &shape, stdin, reporter, stop).await,
        // The demo ended before it sent anything.
        None => data.purge().map(drop),
    }
}

/// Reads lines of stdin until it closes, on a thread that ends with the process.
fn lines_of_stdin() -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel(1);
    tokio::task::spawn_blocking(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Serves a demo, and removes everything when the demo's process ends, unless it asked to keep it.
async fn for_demo(
    args: &Args,
    data: &DataDir,
    shape: &str,
    mut stdin: mpsc::Receiver<String>,
    reporter: Reporter,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let (told, all) = (AtomicBool::new(false), stop.clone());
    let abandoned = async {
        while let Some(line) = stdin.recv().await {
            if line == KEEP {
                std::future::pending::<()>().await;
            }
        }
        told.store(true, Ordering::Relaxed);
        all.cancel();
        std::future::pending::<()>().await;
    };
    let serving = async {
        let shape = serde_json::from_str(shape).or_fail("reading the shape")?;
        server::run(data, shape, args.options(), reporter, stop).await
    };
    let outcome = tokio::select! {
        outcome = serving => outcome,
        () = abandoned => Ok(()),
    };
    if told.load(Ordering::Relaxed) {
        data.purge()?;
    }
    outcome
}
