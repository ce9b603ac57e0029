//! Reports the progress of a starting server to the process that waits for it.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use crate::control::Reply;
use crate::exit::Failure;

/// The destination of the steps. If the reader is gone, the server goes on.
#[derive(Clone)]
pub(crate) struct Reporter(Arc<dyn Fn(Reply) + Send + Sync>);

impl Reporter {
    /// JSON lines on stdout, for the `up` that started this process.
    pub(crate) fn stdout() -> Self {
        Self(Arc::new(|reply| {
            let mut out = std::io::stdout().lock();
            let _ = out.write_all(&reply.line()).and_then(|()| out.flush());
        }))
    }

    /// The log.
    pub(crate) fn log() -> Self {
        Self(Arc::new(|reply| match reply {
            Reply::Step { text, seconds } => tracing::info!(seconds, "{text}"),
            Reply::Ready => tracing::info!("ready"),
            Reply::Failed { .. } | Reply::Status { .. } => {}
        }))
    }

    /// A task of this process. A start has a handful of steps, so the channel needs no bound.
    pub(crate) fn channel(sender: UnboundedSender<Reply>) -> Self {
        Self(Arc::new(move |reply| {
            let _ = sender.send(reply);
        }))
    }

    pub(crate) fn step(&self, text: impl Into<String>, took: Duration) {
        (self.0)(Reply::Step { text: text.into(), seconds: took.as_secs_f64() });
    }

    pub(crate) fn ready(&self) {
        (self.0)(Reply::Ready);
    }

    pub(crate) fn failed(&self, failure: &Failure) {
        (self.0)(Reply::failed(failure));
    }
}
