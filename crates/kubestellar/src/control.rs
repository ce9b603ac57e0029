//! The protocol between commands and the running server: JSON lines over a Unix socket in the data directory.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;

use crate::datadir::DataDir;
use crate::exit::{Exit, Failure, OrFail, not_running};
use crate::shape::Shape;

/// Longest line either side accepts, in bytes.
pub(crate) const MAX_LINE: usize = 1 << 20;

/// The request of a command; one per connection.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub(crate) enum Request {
    /// The server answers with [`Reply::Status`].
    Status,
    /// The server starts everything in `shape` and reports steps until it is ready.
    Shape { shape: Box<Shape> },
    /// The server stops; the connection ends when the server has ended.
    Stop,
}

/// What the server sends, on the socket and to the `up` that started it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase")]
pub(crate) enum Reply {
    Step { text: String, seconds: f64 },
    Ready,
    Failed { exit: u8, what: String, why: String, hint: Option<String> },
    Status { status: Box<ServerStatus> },
}

/// The server's own view, for `kubestellar status`. Shape of `-o json` under `server`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServerStatus {
    pub(crate) pid: u32,
    pub(crate) version: String,
    pub(crate) uptime_seconds: u64,
    /// Resident memory in bytes, if the system reports it.
    pub(crate) memory_bytes: Option<u64>,
    /// Bytes of the store on disk.
    pub(crate) store_bytes: u64,
    pub(crate) url: String,
    pub(crate) simulated_workloads: bool,
    pub(crate) spaces: Vec<SpaceStatus>,
    pub(crate) components: Vec<ComponentStatus>,
    /// Why the store refuses writes at present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) store_failure: Option<String>,
    /// What is wrong with the clock; absent if nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) clock: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SpaceStatus {
    pub(crate) name: String,
    /// `its`, `wds`, `wec`, `host`, or `space` for one without a role.
    pub(crate) role: String,
    pub(crate) ready: bool,
    /// Stopped by its ControlPlane's annotation; its data is kept. `objects` is 0 then: nobody reads it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) suspended: bool,
    pub(crate) url: String,
    pub(crate) objects: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ComponentStatus {
    pub(crate) name: String,
    pub(crate) space: String,
    pub(crate) ready: bool,
    /// Number of restarts after failures.
    pub(crate) restarts: u32,
    pub(crate) last_error: Option<String>,
}

impl Reply {
    pub(crate) fn failed(failure: &Failure) -> Self {
        Self::Failed {
            exit: failure.exit as u8,
            what: failure.what.clone(),
            why: failure.why.clone(),
            hint: failure.hint.clone(),
        }
    }

    /// Encodes it as a line, with the newline.
    pub(crate) fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// Reads replies from a stream.
pub(crate) struct Replies<R>(Lines<BufReader<R>>);

impl<R: AsyncRead + Unpin> Replies<R> {
    pub(crate) fn new(stream: R) -> Self {
        Self(BufReader::new(stream).lines())
    }

    /// Returns the next reply; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Reply>> {
        while let Some(line) = self.0.next_line().await? {
            if let Ok(reply) = serde_json::from_str(&line) {
                return Ok(Some(reply));
            }
        }
        Ok(None)
    }

    /// Reports steps until the server is ready.
    pub(crate) async fn until_ready(&mut self, mut step: impl FnMut(&str, Duration)) -> Result<(), Failure> {
        let what = "starting the server";
        while let Some(reply) = self.next().await.or_fail(what)? {
            match reply {
                Reply::Step { text, seconds } => step(&text, Duration::from_secs_f64(seconds.max(0.0))),
                Reply::Ready => return Ok(()),
                Reply::Failed { exit, what, why, hint } => {
                    return Err(Failure { exit: exit_of(exit), what, why, hint });
                }
                Reply::Status { .. } => {}
            }
        }
        Err(Failure::new(Exit::Failed, what, "the server ended before it was ready"))
    }
}

/// Connects to the server of this data directory and sends `request`.
pub(crate) async fn ask(data: &DataDir, request: &Request) -> Result<Replies<UnixStream>, Failure> {
    let failed = |error: io::Error| {
        let what = format!("asking the server of {}", data.path().display());
        match error.kind() {
            io::ErrorKind::PermissionDenied => data.not_permitted(),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotADirectory => {
                not_running(what, &data.command("up"))
            }
            _ => Failure::new(Exit::NotRunning, what, error),
        }
    };
    let mut stream = UnixStream::connect(data.socket()).await.map_err(failed)?;
    let mut line = serde_json::to_vec(request).or_fail("encoding the request")?;
    line.push(b'\n');
    stream.write_all(&line).await.map_err(failed)?;
    Ok(Replies::new(stream))
}

/// Returns the status of the running server; without a server fails with exit code 6.
pub(crate) async fn status(data: &DataDir) -> Result<ServerStatus, Failure> {
    let mut replies = ask(data, &Request::Status).await?;
    match replies.next().await.or_fail("asking the server")? {
        Some(Reply::Status { status }) => Ok(*status),
        _ => Err(Failure::new(Exit::NotRunning, "asking the server", "it is stopping")),
    }
}

fn exit_of(code: u8) -> Exit {
    [Exit::Usage, Exit::NotFound, Exit::Conflict, Exit::TimedOut, Exit::NotRunning, Exit::Forbidden]
        .into_iter()
        .find(|e| *e as u8 == code)
        .unwrap_or(Exit::Failed)
}
