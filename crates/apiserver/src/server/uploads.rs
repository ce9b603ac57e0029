//! Request bodies that are still on their way (AS-070).
//!
//! A body that has arrived whole with its request costs nothing here, and a request takes its place among those that are
//! worked on only when its body is there. A body that has to be waited for is an *upload*. A user has a share of the uploads
//! and of the bytes that they hold, so that a slow client takes neither places nor memory from others. An upload must
//! advance. A user who has no upload left gets the place of his own oldest one, if that one is slow.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::{ApiError, Details, Reason};

/// A timer that ends later than this is a sign that the process stood still.
const LATE: Duration = Duration::from_secs(1);
/// How long what has arrived meanwhile may then take to be read.
const SECOND_LOOK: Duration = Duration::from_secs(2);

/// Bounds on the uploads of a server.
#[derive(Clone, Copy, Debug)]
pub struct UploadLimits {
    /// Number of uploads at once.
    pub most: usize,
    /// Number of uploads of one user at once.
    pub per_user: usize,
    /// Bytes that all uploads hold.
    pub bytes: usize,
    /// Bytes that the uploads of one user hold.
    pub bytes_per_user: usize,
    /// Longest time in which no byte arrives.
    pub silence: Duration,
    /// Time that an upload has in any case.
    pub grace: Duration,
    /// Bytes per second that must arrive after that, on average.
    pub rate: u32,
    /// After this time, an upload may lose its place to a new one of the same user.
    pub slow: Duration,
}

impl Default for UploadLimits {
    fn default() -> Self {
        Self {
            most: 600,
            per_user: 150,
            bytes: 256 << 20,
            bytes_per_user: 64 << 20,
            silence: Duration::from_secs(10),
            grace: Duration::from_secs(10),
            rate: 8 << 10,
            slow: Duration::from_secs(2),
        }
    }
}

/// The uploads of a server.
pub(super) struct Uploads {
    limits: UploadLimits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    count: usize,
    bytes: usize,
    next: u64,
    /// Users without an upload have no entry.
    users: HashMap<String, Share>,
}

/// The uploads of one user, the oldest first.
#[derive(Default)]
struct Share {
    bytes: usize,
    uploads: VecDeque<Running>,
}

struct Running {
    id: u64,
    begun: Instant,
    /// Cancelled when a newer upload gets the place.
    displaced: CancellationToken,
}

/// An upload that has a place. Dropping it frees the place and its bytes.
pub(super) struct Upload<'u> {
    uploads: &'u Uploads,
    user: String,
    id: u64,
    bytes: usize,
    begun: Instant,
    last: Instant,
    displaced: CancellationToken,
}

impl Uploads {
    pub(super) fn new(limits: UploadLimits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    /// Begins an upload that holds `bytes` already.
    ///
    /// # Errors
    /// 429 if the user, or all users together, have no place or no bytes left.
    pub(super) fn begin(&self, user: &str, bytes: usize) -> Result<Upload<'_>, ApiError> {
        let now = Instant::now();
        let mut state = self.state.lock();
        let own = state.users.get(user).map_or(0, |share| share.uploads.len());
        if own >= self.limits.per_user || state.count >= self.limits.most {
            state.displace(user, now, self.limits.slow)?;
        }
        let id = state.next;
        state.next += 1;
        state.count += 1;
        let displaced = CancellationToken::new();
        let running = Running { id, begun: now, displaced: displaced.clone() };
        state.users.entry(user.to_owned()).or_default().uploads.push_back(running);
        drop(state);
        let user = user.to_owned();
        let mut upload = Upload { uploads: self, user, id, bytes: 0, begun: now, last: now, displaced };
        upload.received(bytes)?;
        Ok(upload)
    }
}

impl State {
    /// Takes the place of the user's oldest upload if that one is slow.
    fn displace(&mut self, user: &str, now: Instant, slow: Duration) -> Result<(), ApiError> {
        let share = self.users.get_mut(user);
        let oldest = share.and_then(|share| share.uploads.pop_front_if(|oldest| now - oldest.begun >= slow));
        oldest.ok_or_else(ApiError::too_many_requests)?.displaced.cancel();
        self.count -= 1;
        Ok(())
    }
}

impl Upload<'_> {
    /// Counts bytes that have arrived.
    ///
    /// # Errors
    /// 429 if the user, or all users together, hold too many bytes.
    pub(super) fn received(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.last = Instant::now();
        let limits = &self.uploads.limits;
        let mut state = self.uploads.state.lock();
        let all = state.bytes + bytes;
        // An upload that has been displaced has an entry no more if it was the user's last one.
        let share = state.users.entry(self.user.clone()).or_default();
        let own = share.bytes + bytes;
        if own > limits.bytes_per_user || all > limits.bytes {
            state.forget_if_unused(&self.user);
            return Err(ApiError::too_many_requests());
        }
        share.bytes = own;
        state.bytes = all;
        self.bytes += bytes;
        Ok(())
    }

    /// Waits for the next part of the body.
    ///
    /// # Errors
    /// 408 if the body does not advance as it must, 429 if a newer upload of the user needs the place.
    pub(super) async fn wait<T>(&self, next: impl Future<Output = T>) -> Result<T, ApiError> {
        let limits = &self.uploads.limits;
        let earned = Duration::from_secs_f64(self.bytes as f64 / f64::from(limits.rate.max(1)));
        let until = (self.last + limits.silence).min(self.begun + limits.grace + earned);
        let too_slow = async {
            tokio::time::sleep_until(until).await;
            // If this process itself has stood still, it reads what has arrived meanwhile.
            if until.elapsed() > LATE {
                tokio::time::sleep(SECOND_LOOK).await;
            }
        };
        tokio::select! {
            biased;
            () = self.displaced.cancelled() => Err(ApiError::too_many_requests()),
            next = next => Ok(next),
            () = too_slow => {
                let message = "Timeout: the body of the request arrives too slowly";
                Err(ApiError::new(408, Reason::Timeout, message).with_details(Details::default()))
            }
        }
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        let mut state = self.uploads.state.lock();
        state.bytes -= self.bytes;
        let Some(share) = state.users.get_mut(&self.user) else { return };
        share.bytes -= self.bytes;
        let place = share.uploads.iter().position(|running| running.id == self.id);
        if let Some(place) = place {
            share.uploads.remove(place);
            state.count -= 1;
        }
        state.forget_if_unused(&self.user);
    }
}

impl State {
    fn forget_if_unused(&mut self, user: &str) {
        if self.users.get(user).is_some_and(|share| share.uploads.is_empty() && share.bytes == 0) {
            self.users.remove(user);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    fn code<T>(outcome: Result<T, ApiError>) -> u16 {
        outcome.err().map_or(200, |error| error.code)
    }

    fn uploads(change: impl FnOnce(&mut UploadLimits)) -> Uploads {
        let mut limits = UploadLimits::default();
        change(&mut limits);
        Uploads::new(limits)
    }

    fn is_unused(uploads: &Uploads) -> bool {
        let state = uploads.state.lock();
        state.users.is_empty() && state.count == 0 && state.bytes == 0
    }

    /// AS-070: a body that stops, and one that trickles, are given up; one that advances is not.
    #[tokio::test(start_paused = true)]
    async fn as_070_a_body_must_advance() {
        let uploads = uploads(|_| ());
        let begun = Instant::now();
        let silent = uploads.begin("alice", 1 << 20).unwrap();
        assert_eq!(code(silent.wait(pending::<()>()).await), 408);
        assert_eq!(begun.elapsed(), Duration::from_secs(10));
        let mut trickling = uploads.begin("alice", 0).unwrap();
        let begun = Instant::now();
        let ended = loop {
            let outcome = trickling.wait(tokio::time::sleep(Duration::from_secs(1))).await;
            if outcome.is_err() {
                break outcome;
            }
            trickling.received(1).unwrap();
        };
        assert_eq!(code(ended), 408);
        assert!(begun.elapsed() <= Duration::from_secs(11), "{:?}", begun.elapsed());
        let mut steady = uploads.begin("alice", 0).unwrap();
        for _ in 0..55 {
            assert_eq!(code(steady.wait(tokio::time::sleep(Duration::from_secs(1))).await), 200);
            steady.received(8 << 10).unwrap();
        }
        drop((silent, trickling, steady));
        assert!(is_unused(&uploads));
    }

    /// AS-070: what has arrived while this process stood still is read.
    #[tokio::test(start_paused = true)]
    async fn as_070_a_pause_of_the_server_is_not_the_fault_of_an_upload() {
        let uploads = uploads(|_| ());
        let upload = uploads.begin("alice", 1 << 20).unwrap();
        let (arrives, arrived) = tokio::sync::oneshot::channel();
        let mut next = std::pin::pin!(upload.wait(arrived));
        assert!(futures::poll!(&mut next).is_pending());
        tokio::time::advance(Duration::from_secs(600)).await;
        assert!(futures::poll!(&mut next).is_pending());
        arrives.send(()).unwrap();
        assert_eq!(code(next.await), 200);
    }

    /// AS-070: the uploads of one user are bounded, and those of others are not affected.
    #[tokio::test(start_paused = true)]
    async fn as_070_a_user_has_a_share_of_the_uploads() {
        let uploads = uploads(|limits| (limits.most, limits.per_user) = (3, 2));
        let first = uploads.begin("alice", 0).unwrap();
        let second = uploads.begin("alice", 0).unwrap();
        assert_eq!(code(uploads.begin("alice", 0)), 429, "both are young");
        let other = uploads.begin("bob", 0).unwrap();
        assert_eq!(code(uploads.begin("carol", 0)), 429, "all places are taken, and none by her");
        tokio::time::advance(Duration::from_secs(2)).await;
        let third = uploads.begin("alice", 0).unwrap();
        assert_eq!(code(first.wait(ready(())).await), 429, "the oldest has lost its place");
        assert_eq!(code(second.wait(ready(())).await), 200);
        assert_eq!(code(other.wait(ready(())).await), 200);
        drop((first, second, third, other));
        assert!(is_unused(&uploads));
    }

    /// AS-070: so are the bytes that uploads hold.
    #[tokio::test(start_paused = true)]
    async fn as_070_a_user_has_a_share_of_the_bytes() {
        let uploads = uploads(|limits| (limits.bytes, limits.bytes_per_user) = (30, 20));
        let mut first = uploads.begin("alice", 15).unwrap();
        assert_eq!(code(first.received(6)), 429);
        first.received(5).unwrap();
        assert_eq!(code(uploads.begin("alice", 1)), 429);
        let mut other = uploads.begin("bob", 10).unwrap();
        assert_eq!(code(other.received(1)), 429, "others have the rest");
        drop(first);
        other.received(10).unwrap();
        drop(other);
        assert!(is_unused(&uploads));
    }
}
