//! How many connections are served at once, in all and from one client address (AS-070).
//!
//! Until a request on it has been authenticated, a connection is *unknown*. An address has few of these, and each must become
//! known or end within [`UNKNOWN_TIME`]: so nobody without a credential keeps others out, whatever he sends or does not send.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

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
    addresses: Mutex<HashMap<IpAddr, Counts>>,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    all: usize,
    unknown: usize,
}

/// A connection that counts. Dropping it frees its place.
pub(crate) struct Admitted {
    connections: Arc<Connections>,
    address: IpAddr,
    known: AtomicBool,
    /// Requests that have no response yet.
    unanswered: AtomicUsize,
}

impl Connections {
    pub(crate) fn new(limits: ConnectionLimits) -> Self {
        Self { limits, addresses: Mutex::default() }
    }

    /// Counts a connection from an address; `None` if the address has too many.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Admitted> {
        let address = subscriber(address);
        let mut addresses = self.addresses.lock();
        let counts = addresses.get(&address).copied().unwrap_or_default();
        if counts.all >= self.limits.per_address || counts.unknown >= self.limits.unknown_per_address {
            return None;
        }
        addresses.insert(address, Counts { all: counts.all + 1, unknown: counts.unknown + 1 });
        let (known, unanswered) = (AtomicBool::new(false), AtomicUsize::new(0));
        Some(Admitted { connections: self.clone(), address, known, unanswered })
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
        if known && !self.known.swap(true, Ordering::Relaxed) {
            self.change(|counts| counts.unknown -= 1);
        }
    }

    /// Waits until the connection has had its time and is still unknown. Never returns for one that is known.
    pub(crate) async fn expires(&self) {
        loop {
            tokio::time::sleep(UNKNOWN_TIME).await;
            if self.known.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            if self.unanswered.load(Ordering::Relaxed) == 0 {
                return;
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut Counts)) {
        let mut addresses = self.connections.addresses.lock();
        if let Some(counts) = addresses.get_mut(&self.address) {
            change(counts);
            if counts.all == 0 {
                addresses.remove(&self.address);
            }
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let unknown = usize::from(!self.known.load(Ordering::Relaxed));
        self.change(|counts| {
            counts.all -= 1;
            counts.unknown -= unknown;
        });
    }
}

/// What one subscriber has: an IPv4 address, or an IPv6 network of 64 bits.
fn subscriber(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
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

    /// AS-070: an address has a share of the connections, and a smaller one of those without an authenticated request.
    #[test]
    fn as_070_an_address_has_a_share_of_the_connections() {
        let (connections, address) = (connections(), "192.0.2.1".parse().unwrap());
        let admit = || connections.admit(address);
        let first = admit().unwrap();
        let second = admit().unwrap();
        assert!(admit().is_none(), "two are unknown");
        assert!(connections.admit("192.0.2.2".parse().unwrap()).is_some(), "another address");
        for known in [false, true, true] {
            first.begin();
            first.answered(known);
        }
        let third = admit().unwrap();
        second.begin();
        second.answered(true);
        assert!(admit().is_none(), "three in all");
        drop((first, second, third));
        assert!(connections.addresses.lock().is_empty());
    }

    /// AS-070: addresses that belong to one subscriber count together.
    #[test]
    fn as_070_a_network_counts_as_one_address() {
        let of = |text: &str| subscriber(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
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
