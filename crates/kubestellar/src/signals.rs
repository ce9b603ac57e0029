//! Ctrl-C and SIGTERM (SP-087).

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

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
