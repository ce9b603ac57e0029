//! Small things that have to be done sooner or later, and for which nothing waits.

use std::{fmt::Display, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::told::Told;

/// Between two tries.
const PAUSE: Duration = Duration::from_secs(10);

/// Tries every ten seconds until it is done, and gives what came of it; or until `stop`. Why it could not be done is logged
/// when that is news, with `what` it was.
pub async fn persist<T, E: Display, F: Future<Output = Result<T, E>>>(
    what: &str,
    stop: &CancellationToken,
    mut attempt: impl FnMut() -> F,
) -> Option<T> {
    let mut told = Told::default();
    loop {
        let tried = tokio::select! {
            tried = attempt() => tried,
            () = stop.cancelled() => return None,
        };
        match tried {
            Ok(done) => return Some(done),
            Err(error) if told.is_news(&error.to_string()) => {
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
        let done = persist("a thing", &stop, || {
            tries += 1;
            std::future::ready(if tries < 4 { Err("not yet") } else { Ok(tries) })
        });
        assert_eq!(done.await, Some(4));
        assert_eq!(start.elapsed(), 3 * PAUSE);
        let never = persist("a thing", &stop, || std::future::ready(Err::<(), _>("never")));
        let end = async {
            tokio::time::sleep(5 * PAUSE).await;
            stop.cancel();
        };
        assert_eq!(tokio::join!(never, end).0, None);
    }
}
