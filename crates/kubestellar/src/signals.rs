//! Ctrl-C and SIGTERM (SP-087).

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Failure, OrFail};

/// The signals that ask a command to give up. While this exists none of them ends the process: it has something to tidy up first,
/// however often it is asked.
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

    /// The exit code that the next signal asks for.
    pub(crate) async fn next(&mut self) -> Exit {
        tokio::select! {
            _ = self.interrupt.recv() => Exit::Interrupted,
            _ = self.terminate.recv() => Exit::Terminated,
            _ = self.hang_up.recv() => Exit::HungUp,
        }
    }
}

/// A token that the first SIGINT or SIGTERM cancels; the second one ends the process at once.
/// Nothing acknowledged is lost by that: a write is durable before it is answered.
pub(crate) fn stop_token() -> CancellationToken {
    stop_token_or(None)
}

/// The same, with a code of its own for the end by a second signal.
pub(crate) fn stop_token_or(second: Option<i32>) -> CancellationToken {
    let token = CancellationToken::new();
    let stop = token.clone();
    // Lives as long as the process: there is nobody to hand the second signal to but the process itself.
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
