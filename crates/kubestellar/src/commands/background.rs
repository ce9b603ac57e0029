//! Starts a server in the background. `up` leaves it running, `demo` ends it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::control::Replies;
use crate::datadir::DataDir;
use crate::exit::{Exit, Failure, OrFail};
use crate::printer::{Printer, seconds};
use crate::shape::Shape;

/// The line that `demo` sends to its server before it leaves it running.
pub(crate) const KEEP: &str = "keep";

const WHAT: &str = "starting the server";

/// A server process. It goes on when this value is dropped. A server that was started [for a demo](Background::for_demo) ends by
/// itself and removes its directory when the pipe to it closes without [`Background::keep`].
pub(crate) struct Background {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    data: DataDir,
}

impl Background {
    /// Starts a server that outlives this process.
    pub(crate) fn spawn(data: &DataDir, more: &[&str]) -> Result<Self, Failure> {
        data.create()?;
        Self::begin(data, more)
    }

    /// Starts a server that ends with this process, however that ends. The directory must exist.
    pub(crate) fn for_demo(data: &DataDir) -> Result<Self, Failure> {
        Self::begin(data, &["--until-stdin-closes"])
    }

    fn begin(data: &DataDir, more: &[&str]) -> Result<Self, Failure> {
        let log = log(data)?;
        let program = std::env::current_exe().or_fail(WHAT)?;
        let mut command = std::process::Command::new(program);
        command.args(["serve", "--report", "--shape-from-stdin"]).args(more);
        command.arg("--data-dir").arg(data.path());
        // A process group of its own: a Ctrl-C at this terminal must not reach the server.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).process_group(0);
        let mut child = tokio::process::Command::from(command).spawn().or_fail(WHAT)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        Ok(Self { child, stdin, stdout, data: data.clone() })
    }

    /// Sends the shape to the server. The server saves it once it listens: if it fails before, the saved shape stays as it was.
    pub(crate) async fn tell(&mut self, shape: &Shape) -> Result<(), Failure> {
        let mut text = serde_json::to_vec(shape).or_fail(WHAT)?;
        text.push(b'\n');
        if let Some(stdin) = &mut self.stdin {
            // A server that ended before it read this has given the reason on its stdout.
            let _ = stdin.write_all(&text).await;
        }
        Ok(())
    }

    /// Closes the pipe to a server that outlives this process.
    pub(crate) fn close(&mut self) {
        self.stdin = None;
    }

    /// Waits until the server is ready. A `timeout` of zero means no limit.
    pub(crate) async fn ready(&mut self, timeout: Duration, out: &Printer) -> Result<(), Failure> {
        let stdout = self.stdout.take().ok_or_else(|| Failure::new(Exit::Failed, WHAT, "no pipe to it"))?;
        let waited = follow(Replies::new(stdout), timeout, out).await;
        waited.map_err(|failure| match failure.hint {
            None => failure.hint(log_hint(&self.data)),
            Some(_) => failure,
        })
    }

    /// Leaves a demo's server running without this process.
    pub(crate) async fn keep(mut self) -> Result<(), Failure> {
        let mut stdin = self.stdin.take().ok_or_else(|| Failure::new(Exit::Failed, WHAT, "no pipe to it"))?;
        stdin.write_all(format!("{KEEP}\n").as_bytes()).await.or_fail("keeping the demo's server")
    }

    /// Stops a demo's server, and kills it after `patience`.
    pub(crate) async fn end(mut self, patience: Duration) -> Result<ExitStatus, Failure> {
        let what = "stopping the demo's server";
        drop((self.stdin.take(), self.stdout.take()));
        if let Ok(ended) = tokio::time::timeout(patience, self.child.wait()).await {
            return ended.or_fail(what);
        }
        self.child.start_kill().or_fail(what)?;
        self.child.wait().await.or_fail(what)
    }
}

/// The log of a server in the background.
fn log(data: &DataDir) -> Result<File, Failure> {
    let path = data.log();
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&path)
        .or_fail(format!("opening the log {}", path.display()))
}

/// Returns a hint at the log. If the log is empty, tries whether anything can be written to it, and reports that.
fn log_hint(data: &DataDir) -> String {
    let path = data.log();
    let written = OpenOptions::new().append(true).open(&path).and_then(|mut file| {
        use std::io::Write as _;
        file.write_all(b"up: the server did not start\n")?;
        file.sync_data()
    });
    match written {
        Ok(()) => format!("see its log, {}", path.display()),
        Err(error) => format!("its log, {}, can't be written: {error}", path.display()),
    }
}

/// Shows the steps of a starting or growing server until it is ready. A `timeout` of zero means no limit.
pub(crate) async fn follow<R: AsyncRead + Unpin>(
    mut replies: Replies<R>,
    timeout: Duration,
    out: &Printer,
) -> Result<(), Failure> {
    let spinner = out.spinner("starting");
    let ready = replies.until_ready(|text, took| match &spinner {
        Some(bar) => bar.suspend(|| out.step(text, Some(took))),
        None => out.step(text, Some(took)),
    });
    let outcome = if timeout.is_zero() {
        ready.await
    } else {
        tokio::time::timeout(timeout, ready).await.unwrap_or_else(|_| {
            let why = format!("not ready after {}", seconds(timeout));
            Err(Failure::new(Exit::TimedOut, "waiting for the server", why))
        })
    };
    if let Some(bar) = spinner {
        bar.finish_and_clear();
    }
    outcome
}
