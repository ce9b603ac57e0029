//! `kubestellar serve` (SP-106).

use crate::datadir::DataDir;
use crate::exit::{Exit, Failure, OrFail};
use crate::server::{self, Elsewhere, Reporter};
use crate::shape::Shape;

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
    /// Drop from a damaged store exactly what is damaged, list it, and keep the damaged files as *.damaged
    #[arg(long)]
    repair: bool,
    /// Report progress as JSON lines on stdout (what `up` reads)
    #[arg(long, hide = true)]
    report: bool,
    /// Serve the shape that comes on stdin (what `up` asks for)
    #[arg(long, hide = true)]
    shape_from_stdin: bool,
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
    let shape = if args.shape_from_stdin {
        let read = tokio::task::spawn_blocking(|| std::io::read_to_string(std::io::stdin()));
        let text = read.await.or_fail("reading the shape")?.or_fail("reading the shape")?;
        serde_json::from_str(&text).or_fail("reading the shape")?
    } else {
        Shape::fulfil(Shape::load(data)?.as_ref(), &args.shape.wish()?, &uuid())?
    };
    server::run(data, shape, &args.without, args.repair, reporter, crate::signals::stop_token()).await
}
