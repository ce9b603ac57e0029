//! Ctrl-C and SIGTERM (SP-087).

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Failure, OrFail};

/// The signals that ask a command to give up. While this value exists, no signal ends the process, however often it comes: the
/// command has to clean up first.
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Interrupts {
    pub(crate) fn catch() -> Result<Self, Failure> {
        let catch = |kind| signal(kind).or_fail("preparing for signals");
        Ok(Self {
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
            hang_up: catch(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal and returns its exit code.
    pub(crate) async fn next(&mut self) -> Exit {
        tokio::select! {
            _ = self.interrupt.recv() => Exit::Interrupted,
            _ = self.terminate.recv() => Exit::Terminated,
            _ = self.hang_up.recv() => Exit::HungUp,
        }
    }
}

/// Returns a token that the first SIGINT or SIGTERM cancels. The second signal ends the process at once. That loses no
/// acknowledged write, because a write is durable before it is answered.
pub(crate) fn stop_token() -> CancellationToken {
    stop_token_or(None)
}

/// The same, with an exit code for the end by a second signal.
pub(crate) fn stop_token_or(second: Option<i32>) -> CancellationToken {
    let token = CancellationToken::new();
    let stop = token.clone();
    // The task lives as long as the process, because it ends the process.
    tokio::spawn(async move {
        let (Ok(mut int), Ok(mut term)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
        else {
            return;
        };
        let code = tokio::select! { _ = int.recv() => 130, _ = term.recv() => 143 };
        tracing::info!("stopping");
        stop.cancel();
        tokio::select! { _ = int.recv() => {}, _ = term.recv() => {} }
        std::process::exit(second.unwrap_or(code));
    });
    token
}
