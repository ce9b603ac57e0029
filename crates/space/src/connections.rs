//! How many connections are served at once, in all and from one client address (AS-070).
//!
//! Until a request on it has been authenticated, a connection is *unknown*. An address has few of these, and each must become
//! known or end within [`UNKNOWN_TIME`]. If an address has as many as it may have, its oldest unknown connection gives way to a
//! new one. So nobody without a credential keeps others out, not even those who share an address.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Most connections that are served at once, if the process may open as many files.
const MOST: usize = 16_384;
/// How long an unknown connection may last. Longer than a slow handshake and slow headers take.
pub(crate) const UNKNOWN_TIME: Duration = Duration::from_secs(45);

/// Bounds on connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    pub(crate) most: usize,
    /// From one client address.
    pub(crate) per_address: usize,
    /// Unknown ones from one client address.
    pub(crate) unknown_per_address: usize,
}

impl ConnectionLimits {
    /// The limits for a process that may open `files` files. A quarter of them stays free for everything else.
    pub(crate) fn for_files(files: u64) -> Self {
        let most = usize::try_from(files - files / 4).unwrap_or(MOST).min(MOST);
        Self { most, per_address: most / 2, unknown_per_address: most / 16 }
    }
}

/// Lets this process open as many files as the system permits it (the soft limit is often 1,024), and returns how many.
pub(crate) fn raise_file_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let unlimited = u64::MAX;
    if current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok() {
        return maximum.unwrap_or(unlimited);
    }
    current.unwrap_or(unlimited)
}

/// The connections of a listener.
pub(crate) struct Connections {
    limits: ConnectionLimits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Addresses without a connection have no entry.
    addresses: HashMap<IpAddr, Share>,
}

/// The connections of one address.
#[derive(Default)]
struct Share {
    all: usize,
    /// The unknown ones, the oldest first. A token is cancelled when its connection must give way.
    unknown: BTreeMap<u64, CancellationToken>,
}

/// A connection that counts. Dropping it frees its place.
pub(crate) struct Admitted {
    connections: Arc<Connections>,
    address: IpAddr,
    number: u64,
    displaced: CancellationToken,
    /// Cancelled when a request has been authenticated.
    known: CancellationToken,
    /// Requests that have no response yet.
    unanswered: AtomicUsize,
}

impl Connections {
    pub(crate) fn new(limits: ConnectionLimits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    /// Counts a connection from an address. `None`: the address has too many, and none is unknown.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Admitted> {
        let address = subscriber(address);
        let displaced = CancellationToken::new();
        let mut state = self.state.lock();
        let share = state.addresses.entry(address).or_default();
        if share.all >= self.limits.per_address || share.unknown.len() >= self.limits.unknown_per_address {
            // The oldest has had the longest time to show a credential.
            let (_, oldest) = share.unknown.pop_first()?;
            oldest.cancel();
            share.all -= 1;
        }
        state.next += 1;
        let number = state.next;
        let share = state.addresses.entry(address).or_default();
        share.all += 1;
        share.unknown.insert(number, displaced.clone());
        drop(state);
        let (known, unanswered) = (CancellationToken::new(), AtomicUsize::new(0));
        Some(Admitted { connections: self.clone(), address, number, displaced, known, unanswered })
    }
}

impl Admitted {
    /// A request has arrived.
    pub(crate) fn begin(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    /// The request has a response; `known`: its client was authenticated.
    pub(crate) fn answered(&self, known: bool) {
        self.unanswered.fetch_sub(1, Ordering::Relaxed);
        if known && !self.known.is_cancelled() {
            self.known.cancel();
            let mut state = self.connections.state.lock();
            if let Some(share) = state.addresses.get_mut(&self.address) {
                share.unknown.remove(&self.number);
            }
        }
    }

    /// Waits until the connection has to give way to a newer one of its address.
    pub(crate) async fn displaced(&self) {
        self.displaced.cancelled().await;
    }

    /// Waits until the connection has had its time and is still unknown. Never returns for one that is known.
    pub(crate) async fn expires(&self) {
        loop {
            tokio::select! {
                () = self.known.cancelled() => std::future::pending::<()>().await,
                () = tokio::time::sleep(UNKNOWN_TIME) => {}
            }
            if self.unanswered.load(Ordering::Relaxed) == 0 {
                return;
            }
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if self.displaced.is_cancelled() {
            return;
        }
        let mut state = self.connections.state.lock();
        if let Some(share) = state.addresses.get_mut(&self.address) {
            share.all -= 1;
            share.unknown.remove(&self.number);
            if share.all == 0 {
                state.addresses.remove(&self.address);
            }
        }
    }
}

/// What one subscriber has: an IPv4 address, or an IPv6 network of 64 bits. The machine itself has all of loopback.
fn subscriber(address: IpAddr) -> IpAddr {
    let address = address.to_canonical();
    if address.is_loopback() {
        return IpAddr::V4(Ipv4Addr::LOCALHOST);
    }
    match address {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections() -> Arc<Connections> {
        Arc::new(Connections::new(ConnectionLimits { most: 10, per_address: 3, unknown_per_address: 2 }))
    }

    /// AS-070: an address has a share of the connections, and a smaller one of those without an authenticated request, of
    /// which the oldest gives way.
    #[test]
    fn as_070_an_address_has_a_share_of_the_connections() {
        let (connections, address) = (connections(), "192.0.2.1".parse().unwrap());
        let admit = || connections.admit(address);
        let is_displaced = |connection: &Admitted| connection.displaced.is_cancelled();
        let first = admit().unwrap();
        let other = connections.admit("192.0.2.2".parse().unwrap()).unwrap();
        let second = admit().unwrap();
        let third = admit().unwrap();
        assert!(is_displaced(&first) && !is_displaced(&second), "two are unknown, the oldest gives way");
        assert!(!is_displaced(&other), "another address");
        for known in [false, true, true] {
            second.begin();
            second.answered(known);
        }
        let fourth = admit().unwrap();
        assert!(!is_displaced(&second) && !is_displaced(&third));
        let fifth = admit().unwrap();
        assert!(is_displaced(&third) && !is_displaced(&second), "three in all; a known one stays");
        for connection in [&fourth, &fifth] {
            connection.begin();
            connection.answered(true);
        }
        assert!(admit().is_none(), "three in all, and all are known");
        drop((first, second, third, fourth, fifth, other));
        assert!(connections.state.lock().addresses.is_empty());
    }

    /// AS-070: addresses that belong to one subscriber count together.
    #[test]
    fn as_070_a_network_counts_as_one_address() {
        let of = |text: &str| subscriber(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_eq!(of("127.0.0.1"), of("127.99.3.4"));
        assert_eq!(of("127.0.0.1"), of("::1"));
        assert_eq!(of("127.0.0.1"), of("::ffff:127.0.0.2"));
        assert_ne!(of("::1"), of("::2"));
    }

    /// AS-070: an unknown connection has an end, but not while a request is being answered.
    #[tokio::test(start_paused = true)]
    async fn as_070_an_unknown_connection_has_an_end() {
        let connection = connections().admit("192.0.2.1".parse().unwrap()).unwrap();
        connection.expires().await;
        connection.begin();
        let busy = tokio::time::timeout(UNKNOWN_TIME * 3, connection.expires()).await;
        assert!(busy.is_err(), "a request is under way");
        connection.answered(false);
        connection.expires().await;
        connection.begin();
        connection.answered(true);
        assert!(tokio::time::timeout(UNKNOWN_TIME * 3, connection.expires()).await.is_err());
    }

    /// AS-070: files stay free for the store, whatever connections take.
    #[test]
    fn as_070_connections_leave_files_for_the_store() {
        assert_eq!(ConnectionLimits::for_files(1024).most, 768);
        assert_eq!(ConnectionLimits::for_files(u64::MAX).most, MOST);
    }
}
