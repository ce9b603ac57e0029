//! The server's end of the control socket.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::control::{MAX_LINE, Reply, Request};
use crate::datadir::DataDir;
use crate::exit::{Exit, Failure, OrFail};
use crate::shape::Shape;

use super::Reporter;
use super::overview::Overview;

/// Longest path of a Unix socket that the operating system accepts, in bytes.
const MAX_SOCKET_PATH: usize = 107;

/// A request of a connection: the installation should have everything of this shape.
pub(crate) struct Ask {
    pub(crate) shape: Box<Shape>,
    pub(crate) report: Reporter,
    pub(crate) finished: oneshot::Sender<()>,
}

/// The socket. Dropping it removes the file.
pub(crate) struct ControlSocket {
    listener: UnixListener,
    path: std::path::PathBuf,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl ControlSocket {
    /// Binds the socket. The caller holds the directory's lock, so an existing socket is that of a dead server.
    pub(crate) fn bind(data: &DataDir) -> Result<Self, Failure> {
        let path = data.socket();
        let what = format!("opening the control socket {}", path.display());
        let _ = std::fs::remove_file(&path);
        if path.as_os_str().len() > MAX_SOCKET_PATH {
            let why = format!("the path is longer than the {MAX_SOCKET_PATH} bytes a socket's may have");
            return Err(Failure::new(Exit::Failed, what, why).hint("choose a shorter --data-dir"));
        }
        let listener = UnixListener::bind(&path).or_fail(&what)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).or_fail(what)?;
        Ok(Self { listener, path })
    }

    /// Serves until `done`. Connections that asked for the stop stay open until then.
    pub(super) async fn serve(
        self,
        asks: mpsc::Sender<Ask>,
        overview: Arc<Overview>,
        shutdown: CancellationToken,
        done: CancellationToken,
    ) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = done.cancelled() => break,
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let (asks, overview) = (asks.clone(), overview.clone());
                        connections.spawn(serve_one(stream, asks, overview, shutdown.clone(), done.clone()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "control socket");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
        connections.shutdown().await;
    }
}

async fn serve_one(
    stream: UnixStream,
    asks: mpsc::Sender<Ask>,
    overview: Arc<Overview>,
    shutdown: CancellationToken,
    done: CancellationToken,
) {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut reader = BufReader::new(read.take(MAX_LINE as u64));
    if reader.read_line(&mut line).await.is_err() {
        return;
    }
    let request = match serde_json::from_str(&line) {
        Ok(request) => request,
        Err(error) => {
            let failure = Failure::new(Exit::Usage, "reading the request", error);
            let _ = write.write_all(&Reply::failed(&failure).line()).await;
            return;
        }
    };
    match request {
        Request::Stop => {
            shutdown.cancel();
            done.cancelled().await;
        }
        Request::Status => {
            let status = Box::new(overview.status());
            let _ = write.write_all(&Reply::Status { status }.line()).await;
        }
        Request::Shape { shape } => {
            let (sender, mut replies) = mpsc::unbounded_channel();
            let (finished, mut end) = oneshot::channel();
            if asks.send(Ask { shape, report: Reporter::channel(sender), finished }).await.is_err() {
                return;
            }
            loop {
                tokio::select! {
                    biased;
                    Some(reply) = replies.recv() => {
                        if write.write_all(&reply.line()).await.is_err() {
                            return;
                        }
                    }
                    _ = &mut end => break,
                }
            }
            while let Ok(reply) = replies.try_recv() {
                let _ = write.write_all(&reply.line()).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Instant, SystemTime};

    use store::Engine;

    use super::*;
    use crate::control;
    use crate::server::clock::Clock;
    use crate::server::components::States;
    use crate::shape::Wish;

    /// SP-107: `status` is answered while the installation is busy with something else.
    #[tokio::test]
    async fn sp_107_status_does_not_wait_for_a_change_under_way() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::resolve(Some(dir.path())).unwrap();
        data.create().unwrap();
        let shape = Shape::fulfil(None, &Wish::default(), "id").unwrap();
        let (engine, clock) = (Engine::in_memory(), Clock::open(&data.clock(), SystemTime::now(), false));
        let overview =
            Overview::new(&data, &shape, Instant::now(), States::default(), &engine, &Arc::new(clock));
        let overview = Arc::new(overview);
        let (asks, inbox) = mpsc::channel(1);
        let (shutdown, done) = (CancellationToken::new(), CancellationToken::new());
        let socket = ControlSocket::bind(&data).unwrap();
        let serving = tokio::spawn(socket.serve(asks, overview, shutdown, done.clone()));
        // Nothing reads the inbox.
        let growing = control::ask(&data, &Request::Shape { shape: Box::new(shape) }).await.unwrap();
        let status = tokio::time::timeout(Duration::from_secs(60), control::status(&data)).await;
        assert_eq!(status.expect("an answer").unwrap().pid, std::process::id());
        done.cancel();
        serving.await.unwrap();
        drop((growing, inbox));
    }
}
