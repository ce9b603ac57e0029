//! Retries small jobs until they succeed, while no other work waits for them.

use std::{fmt::Display, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::log_once::LogOnce;

/// Pause between two tries.
const PAUSE: Duration = Duration::from_secs(10);

/// Tries every ten seconds until `attempt` succeeds, and returns its result. Returns `None` once `stop` is
/// cancelled. Logs a failure together with `what` when it differs from the last one.
pub async fn retry_until_done<T, E: Display, F: Future<Output = Result<T, E>>>(
    what: &str,
    stop: &CancellationToken,
    mut attempt: impl FnMut() -> F,
) -> Option<T> {
    let mut logged = LogOnce::default();
    loop {
        let tried = tokio::select! {
            tried = attempt() => tried,
            () = stop.cancelled() => return None,
        };
        match tried {
            Ok(done) => return Some(done),
            Err(error) if logged.should_log(&error.to_string()) => {
                tracing::warn!(what, %error, "will be tried again until it is done");
            }
            Err(error) => tracing::debug!(what, %error, "will be tried again"),
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_tried_until_it_is_done_or_nobody_wants_it() {
        let (stop, start, mut tries) = (CancellationToken::new(), Instant::now(), 0);
        let done = retry_until_done("a thing", &stop, || {
            tries += 1;
            std::future::ready(if tries < 4 { Err("not yet") } else { Ok(tries) })
        });
        assert_eq!(done.await, Some(4));
        assert_eq!(start.elapsed(), 3 * PAUSE);
        let never = retry_until_done("a thing", &stop, || std::future::ready(Err::<(), _>("never")));
        let end = async {
            tokio::time::sleep(5 * PAUSE).await;
            stop.cancel();
        };
        assert_eq!(tokio::join!(never, end).0, None);
    }
}
