//! Response bodies that are still on their way (AS-070).
//!
//! A response stays in memory until its client has read it. A user has a share of the bytes that such *downloads* hold, so that
//! clients that do not read take no memory from others, and a download must advance: [`ConnectionDownloads::stalled`] tells
//! the listener when to close a connection whose client does not read. If a new response needs bytes that a user's slow
//! downloads hold, the connection of the oldest of them is closed at once.
//!
//! What a watch sends counts while its client has not read it, but a watch need not advance: it lasts as long as its client
//! keeps it, and falls behind in the store's history without a cost.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use http::Response;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::ApiError;
use crate::response::{Body, HeldBody, ReadProgress};

/// Most downloads of a user that are looked at for one that is slow.
const VISITED: usize = 1024;
/// A timer that ends later than this is a sign that the process stood still, and no client could read.
const LATE: Duration = Duration::from_secs(1);
/// How long clients then have at least.
const SECOND_LOOK: Duration = Duration::from_secs(2);

/// Bounds on the downloads of a server.
#[derive(Clone, Copy, Debug)]
pub struct DownloadLimits {
    /// Bytes that all downloads hold.
    pub bytes: usize,
    /// Bytes that the downloads of one user hold. One download may hold more if it is the user's only one.
    pub bytes_per_user: usize,
    /// Smaller responses do not count.
    pub small: usize,
    /// Longest time in which the client reads nothing.
    pub silence: Duration,
    /// Time that a download has in any case.
    pub grace: Duration,
    /// Bytes per second that the client must read after that, on average.
    pub rate: u32,
    /// A download that has not advanced for this time may be ended if its bytes are needed.
    pub slow: Duration,
}

impl Default for DownloadLimits {
    fn default() -> Self {
        Self {
            bytes: 512 << 20,
            bytes_per_user: 128 << 20,
            small: 4 << 10,
            // Kubernetes ends a response after 60 s in all. A full socket buffer of 2 MiB looks like silence for as long.
            silence: Duration::from_secs(60),
            grace: Duration::from_secs(60),
            rate: 16 << 10,
            slow: Duration::from_secs(2),
        }
    }
}

/// The downloads of a server.
pub(super) struct Downloads(Arc<Ledger>);

struct Ledger {
    limits: DownloadLimits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bytes: usize,
    next: u64,
    /// Users without a download have no entry.
    users: HashMap<Arc<str>, Share>,
}

/// The downloads of one user, the oldest first.
#[derive(Default)]
struct Share {
    bytes: usize,
    running: BTreeMap<u64, Running>,
}

struct Running {
    bytes: usize,
    progress: Arc<Progress>,
    connection: Arc<ConnectionDownloads>,
}

/// How far a client has read.
struct Progress(Mutex<Read>);

#[derive(Clone, Copy)]
struct Read {
    begun: Instant,
    bytes: u64,
    last: Instant,
}

/// A download that counts. Dropping it frees its bytes.
struct Download {
    ledger: Arc<Ledger>,
    user: Arc<str>,
    id: u64,
    progress: Arc<Progress>,
    connection: Arc<ConnectionDownloads>,
    /// The number of the download on its connection, if it must advance.
    timed: Option<u64>,
}

/// Whose response it is, and over which connection it goes.
#[derive(Clone)]
pub(super) struct Recipient {
    pub(super) user: Arc<str>,
    pub(super) connection: Arc<ConnectionDownloads>,
}

impl Downloads {
    pub(super) fn new(limits: DownloadLimits) -> Self {
        Self(Arc::new(Ledger { limits, state: Mutex::default() }))
    }

    /// Makes room for another response of the user.
    ///
    /// # Errors
    /// 429 if the downloads of the user, or of all users, hold all bytes that they may hold, and none is slow.
    pub(super) fn make_room(&self, user: &str) -> Result<(), ApiError> {
        self.0.state.lock().make_room(user, 1, &self.0.limits)
    }

    /// Counts the body of a response until the client has read it.
    ///
    /// # Errors
    /// As [`Downloads::make_room`], unless the response is that of a write, which has happened: that one is only counted.
    pub(super) fn deliver(
        &self,
        response: Response<Body>,
        recipient: &Recipient,
        of_write: bool,
    ) -> Result<Response<Body>, ApiError> {
        let held = match response.body() {
            Body::Full(bytes) => bytes.as_ref().map_or(0, Bytes::len),
            // The store has most of these bytes, too, unless the objects change meanwhile.
            Body::Chunks { remaining, .. } => usize::try_from(*remaining / 8).unwrap_or(usize::MAX),
            Body::Stream(_) => return Ok(response.map(|body| self.counted_stream(body, recipient))),
            Body::Held(_) => return Ok(response),
        };
        if held < self.0.limits.small {
            return Ok(response);
        }
        let download = self.0.begin(recipient, held, Rule { may_refuse: !of_write, must_advance: true })?;
        Ok(response.map(|body| Body::Held(HeldBody::new(body, Arc::new(download)))))
    }

    /// A stream ends when the user holds too many bytes.
    fn counted_stream(&self, body: Body, recipient: &Recipient) -> Body {
        let Body::Stream(stream) = body else { return body };
        let (ledger, recipient) = (self.0.clone(), recipient.clone());
        let counted = stream.map(move |chunk| {
            if chunk.len() < ledger.limits.small {
                return Some(chunk);
            }
            let rule = Rule { may_refuse: true, must_advance: false };
            let download = ledger.begin(&recipient, chunk.len(), rule).ok()?;
            Some(HeldBody::part(chunk, Arc::new(download)))
        });
        Body::stream(
            counted.take_while(|chunk| std::future::ready(chunk.is_some())).filter_map(std::future::ready),
        )
    }
}

#[derive(Clone, Copy)]
struct Rule {
    may_refuse: bool,
    must_advance: bool,
}

impl Ledger {
    fn begin(
        self: &Arc<Self>,
        recipient: &Recipient,
        bytes: usize,
        rule: Rule,
    ) -> Result<Download, ApiError> {
        let now = Instant::now();
        let progress = Arc::new(Progress(Mutex::new(Read { begun: now, bytes: 0, last: now })));
        let Recipient { user, connection } = recipient.clone();
        let mut state = self.state.lock();
        let room = state.make_room(&user, bytes, &self.limits);
        if rule.may_refuse {
            room?;
        }
        let id = state.next;
        state.next += 1;
        state.bytes += bytes;
        let share = state.users.entry(user.clone()).or_default();
        share.bytes += bytes;
        let running = Running { bytes, progress: progress.clone(), connection: connection.clone() };
        share.running.insert(id, running);
        drop(state);
        let timed = rule.must_advance.then(|| connection.begin(self.limits, progress.clone()));
        Ok(Download { ledger: self.clone(), user, id, progress, connection, timed })
    }
}

impl State {
    /// Ends slow downloads until the user may hold `bytes` more.
    fn make_room(&mut self, user: &str, bytes: usize, limits: &DownloadLimits) -> Result<(), ApiError> {
        loop {
            let own = self.users.get(user).map_or(0, |share| share.bytes);
            let too_many = |held: usize, most: usize| held > 0 && held.saturating_add(bytes) > most;
            let victim = if too_many(own, limits.bytes_per_user) {
                user.to_owned()
            } else if too_many(self.bytes, limits.bytes) {
                let heaviest = self.users.iter().max_by_key(|(_, share)| share.bytes);
                heaviest.map(|(name, _)| name.to_string()).unwrap_or_default()
            } else {
                return Ok(());
            };
            self.end_slow(&victim, limits.slow).ok_or_else(ApiError::too_many_requests)?;
        }
    }

    /// Closes the connection of the user's oldest download that does not advance, and frees its bytes.
    fn end_slow(&mut self, user: &str, slow: Duration) -> Option<()> {
        let now = Instant::now();
        let running = &self.users.get(user)?.running;
        let mut oldest = running.iter().take(VISITED);
        let id = *oldest.find(|(_, it)| now - it.progress.0.lock().last >= slow)?.0;
        self.forget(user, id)?.connection.close();
        Some(())
    }

    fn forget(&mut self, user: &str, id: u64) -> Option<Running> {
        let share = self.users.get_mut(user)?;
        let gone = share.running.remove(&id)?;
        share.bytes -= gone.bytes;
        self.bytes -= gone.bytes;
        if share.running.is_empty() {
            self.users.remove(user);
        }
        Some(gone)
    }
}

impl ReadProgress for Download {
    fn advanced(&self, bytes: usize) {
        let mut read = self.progress.0.lock();
        read.bytes += bytes as u64;
        read.last = Instant::now();
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        let gone = self.ledger.state.lock().forget(&self.user, self.id);
        drop(gone);
        if let Some(number) = self.timed {
            self.connection.state.lock().running.remove(&number);
        }
    }
}

/// The downloads of one connection. The listener puts it into the extensions of each request; responses without it, such as
/// those of in-process clients, do not count.
#[derive(Default)]
pub struct ConnectionDownloads {
    state: Mutex<OnConnection>,
    changed: Notify,
}

#[derive(Default)]
struct OnConnection {
    next: u64,
    /// Those that must advance.
    running: BTreeMap<u64, (DownloadLimits, Arc<Progress>)>,
    /// [`ConnectionDownloads::stalled`] waits for a time, and looks again then.
    waits: bool,
    /// The bytes are needed.
    closed: bool,
}

impl ConnectionDownloads {
    fn begin(&self, limits: DownloadLimits, progress: Arc<Progress>) -> u64 {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.running.insert(number, (limits, progress));
        // The end of a later download is later than the time that is waited for already.
        if !std::mem::replace(&mut state.waits, true) {
            self.changed.notify_one();
        }
        number
    }

    fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_one();
    }

    /// Waits until the connection has to be closed, because its client does not read. Cancel safe.
    pub fn stalled(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.wait())
    }

    async fn wait(&self) {
        loop {
            let end = {
                let mut state = self.state.lock();
                if state.closed {
                    return;
                }
                let end = state.running.values().map(|(limits, progress)| progress.end(limits)).min();
                state.waits = end.is_some();
                end
            };
            let Some(end) = end else {
                self.changed.notified().await;
                continue;
            };
            if end <= Instant::now() {
                return;
            }
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep_until(end) => {
                    let late = end.elapsed();
                    if late > LATE {
                        let time = late + SECOND_LOOK;
                        self.state.lock().running.values().for_each(|(_, progress)| progress.forgive(time));
                    }
                }
            }
        }
    }
}

impl Progress {
    /// When the download is given up, if it does not advance until then.
    fn end(&self, limits: &DownloadLimits) -> Instant {
        let read = *self.0.lock();
        let earned = Duration::from_secs_f64(read.bytes as f64 / f64::from(limits.rate.max(1)));
        (read.last + limits.silence).min(read.begun + limits.grace + earned)
    }

    /// Does not count a time in which the process stood still.
    fn forgive(&self, time: Duration) {
        let mut read = self.0.lock();
        read.begun += time;
        read.last += time;
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    const MIB: usize = 1 << 20;

    fn downloads(change: impl FnOnce(&mut DownloadLimits)) -> Downloads {
        let mut limits = DownloadLimits::default();
        change(&mut limits);
        Downloads::new(limits)
    }

    fn to(user: &str) -> Recipient {
        Recipient { user: user.into(), connection: Arc::default() }
    }

    fn response(bytes: usize) -> Response<Body> {
        Response::new(Body::from(vec![b'x'; bytes]))
    }

    fn code<T>(outcome: Result<T, ApiError>) -> u16 {
        outcome.err().map_or(200, |error| error.code)
    }

    fn is_unused(downloads: &Downloads) -> bool {
        let state = downloads.0.state.lock();
        state.users.is_empty() && state.bytes == 0
    }

    async fn is_stalled_within(connection: &ConnectionDownloads, time: Duration) -> bool {
        tokio::time::timeout(time, connection.stalled()).await.is_ok()
    }

    /// AS-070: a response counts until the connection has let go of its last byte, and arrives as it is.
    #[tokio::test(start_paused = true)]
    async fn as_070_a_response_counts_until_it_is_read() {
        let downloads = downloads(|_| ());
        let text: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[1]).collect();
        let chunks: Vec<Bytes> = text.chunks(70_000).map(Bytes::copy_from_slice).collect();
        let chunked = Body::Chunks { chunks: Box::new(chunks.into_iter()), remaining: text.len() as u64 };
        for body in [Body::from(text.clone()), chunked] {
            let recipient = to("alice");
            let response = downloads.deliver(Response::new(body), &recipient, false).unwrap();
            let mut body = response.into_body();
            assert_eq!(http_body::Body::size_hint(&body).exact(), Some(text.len() as u64));
            let mut parts = Vec::new();
            while let Some(frame) = body.frame().await {
                parts.push(frame.unwrap().into_data().unwrap());
            }
            assert!(http_body::Body::is_end_stream(&body) && parts.len() > 4);
            drop(body);
            assert_eq!(parts.concat(), text);
            let last = parts.pop();
            drop(parts);
            assert!(!is_unused(&downloads), "the connection still has a part");
            drop(last);
            assert!(is_unused(&downloads));
            assert!(!is_stalled_within(&recipient.connection, Duration::from_secs(600)).await);
        }
        assert_eq!(code(downloads.deliver(response(100), &to("alice"), false)), 200);
        assert!(is_unused(&downloads), "small ones do not count");
    }

    /// AS-070: a client that stops reading, and one that reads a byte now and then, lose their connection; one that advances
    /// does not.
    #[tokio::test(start_paused = true)]
    async fn as_070_a_client_must_read() {
        let downloads = downloads(|_| ());
        let (silent, begun) = (to("alice"), Instant::now());
        let unread = downloads.deliver(response(MIB), &silent, false).unwrap();
        silent.connection.stalled().await;
        assert_eq!(begun.elapsed(), Duration::from_secs(60));
        drop(unread);
        for (pause, lasts) in [(10, true), (3, false)] {
            let slow = to("alice");
            let begun = Instant::now();
            let mut body = downloads.deliver(response(2 * MIB), &slow, false).unwrap().into_body();
            let reading = async {
                while body.frame().await.is_some() {
                    tokio::time::sleep(Duration::from_secs(pause)).await;
                }
            };
            let cut = tokio::select! {
                () = reading => false,
                () = slow.connection.stalled() => true,
            };
            assert_eq!(cut, lasts, "64 KiB each {pause} s");
            assert!(!cut || begun.elapsed() < Duration::from_secs(120), "{:?}", begun.elapsed());
        }
        assert!(is_unused(&downloads));
    }

    /// AS-070: time in which this process stood still is not the fault of its clients.
    #[tokio::test(start_paused = true)]
    async fn as_070_a_pause_of_the_server_is_not_the_fault_of_its_clients() {
        let downloads = downloads(|_| ());
        let recipient = to("alice");
        let body = downloads.deliver(response(MIB), &recipient, false).unwrap();
        let mut stalled = recipient.connection.stalled();
        assert!(futures::poll!(&mut stalled).is_pending());
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert!(futures::poll!(&mut stalled).is_pending());
        let resumed = Instant::now();
        stalled.await;
        assert!(resumed.elapsed() <= Duration::from_secs(61), "{:?}", resumed.elapsed());
        drop(body);
    }

    /// AS-070: a user has a share of the bytes. What its slow downloads hold goes to new ones.
    #[tokio::test(start_paused = true)]
    async fn as_070_a_user_has_a_share_of_the_bytes() {
        let downloads = downloads(|limits| (limits.bytes, limits.bytes_per_user) = (40 * MIB, 20 * MIB));
        let (first, second) = (to("alice"), to("alice"));
        let large = downloads.deliver(response(15 * MIB), &first, false).unwrap();
        let other = downloads.deliver(response(10 * MIB), &to("bob"), false).unwrap();
        assert_eq!(code(downloads.deliver(response(6 * MIB), &second, false)), 429, "the first is young");
        assert_eq!(code(downloads.make_room("alice")), 200);
        let written = downloads.deliver(response(6 * MIB), &second, true).unwrap();
        assert_eq!(code(downloads.make_room("alice")), 429, "a write has happened, the next one does not");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(code(downloads.make_room("alice")), 200);
        assert!(is_stalled_within(&first.connection, Duration::from_secs(1)).await);
        assert!(!is_stalled_within(&second.connection, Duration::from_secs(1)).await);
        drop((large, other, written));
        assert!(is_unused(&downloads));
        let alone = downloads.deliver(response(50 * MIB), &first, false);
        assert_eq!(code(alone), 200, "one is always possible");
    }

    /// AS-070: if all bytes are held, whoever holds most of them gives way.
    #[tokio::test(start_paused = true)]
    async fn as_070_who_holds_most_gives_way() {
        let downloads = downloads(|limits| (limits.bytes, limits.bytes_per_user) = (40 * MIB, 30 * MIB));
        let (mallory, bob) = (to("mallory"), to("bob"));
        let held = [
            downloads.deliver(response(12 * MIB), &mallory, false).unwrap(),
            downloads.deliver(response(12 * MIB), &mallory, false).unwrap(),
            downloads.deliver(response(12 * MIB), &bob, false).unwrap(),
        ];
        assert_eq!(code(downloads.deliver(response(5 * MIB), &to("carol"), false)), 429);
        tokio::time::advance(Duration::from_secs(2)).await;
        let mine = downloads.deliver(response(5 * MIB), &to("carol"), false);
        assert!(mine.is_ok());
        assert!(is_stalled_within(&mallory.connection, Duration::from_secs(1)).await);
        assert!(!is_stalled_within(&bob.connection, Duration::from_secs(1)).await);
        drop((held, mine));
        assert!(is_unused(&downloads));
    }

    /// AS-070: a watch may be as slow as it likes, and its unread bytes count.
    #[tokio::test(start_paused = true)]
    async fn as_070_a_slow_watch_lasts_and_counts() {
        let downloads = downloads(|limits| limits.bytes_per_user = 20 * MIB);
        let recipient = to("alice");
        let events = futures::stream::repeat_with(|| Bytes::from(vec![b'x'; 8 * MIB]));
        let watch = downloads.deliver(Response::new(Body::stream(events)), &recipient, false).unwrap();
        let mut body = watch.into_body();
        let first = body.frame().await.unwrap().unwrap();
        assert!(!is_stalled_within(&recipient.connection, Duration::from_secs(3600)).await);
        let young = [body.frame().await.unwrap().unwrap()];
        assert_eq!(code(downloads.make_room("alice")), 200);
        // The first is slow: its connection gives way to the third.
        let third = body.frame().await.unwrap().unwrap();
        assert!(is_stalled_within(&recipient.connection, Duration::from_secs(1)).await);
        assert!(body.frame().await.is_none(), "no bytes are left");
        drop((first, young, third, body));
        assert!(is_unused(&downloads));
    }
}
