//! The network that Services get their cluster IPs from (AS-016).

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// The shortest and the longest prefix that kube-apiserver takes.
const PREFIXES: std::ops::RangeInclusive<u32> = 12..=29;

/// An IPv4 network. Nothing routes to its addresses; they only have to be unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceNetwork {
    /// The first address, with all bits behind the prefix 0.
    first: u32,
    prefix: u32,
}

impl Default for ServiceNetwork {
    fn default() -> Self {
        Self { first: Ipv4Addr::new(10, 96, 0, 0).into(), prefix: 12 }
    }
}

/// The text is not a network that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceNetworkError {
    #[error("it is not an IPv4 network such as 10.0.0.0/24; other kinds of networks are not supported")]
    NotIpv4,
    #[error("its prefix is not between /{} and /{}", PREFIXES.start(), PREFIXES.end())]
    Size,
}

impl FromStr for ServiceNetwork {
    type Err = ServiceNetworkError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, prefix) = text.split_once('/').ok_or(ServiceNetworkError::NotIpv4)?;
        let address: Ipv4Addr = address.parse().map_err(|_| ServiceNetworkError::NotIpv4)?;
        let prefix: u32 = prefix.parse().map_err(|_| ServiceNetworkError::NotIpv4)?;
        if !PREFIXES.contains(&prefix) {
            return Err(ServiceNetworkError::Size);
        }
        Ok(Self { first: u32::from(address) & (u32::MAX << (32 - prefix)), prefix })
    }
}

impl fmt::Display for ServiceNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.first), self.prefix)
    }
}

impl ServiceNetwork {
    pub(crate) fn contains(self, address: Ipv4Addr) -> bool {
        u32::from(address) >> (32 - self.prefix) == self.first >> (32 - self.prefix)
    }

    /// How many addresses at the start are reserved for Services that request one, as in Kubernetes (KEP-3070): 16 to 256, and
    /// none in a network that is not larger than that. The address of the network itself is never given out.
    fn reserved(self) -> u32 {
        let size = 1u32 << (32 - self.prefix);
        if size <= 16 { 1 } else { (size / 16).clamp(16, 256) }
    }

    /// An address that is not used; `None` if all are. The search begins at a place that `seed` chooses, so that an address is
    /// not used again soon. Reserved addresses are taken when there are no others.
    pub(crate) fn free(self, used: &BTreeSet<Ipv4Addr>, seed: u128) -> Option<Ipv4Addr> {
        let (reserved, last) = (self.reserved(), (1u32 << (32 - self.prefix)) - 1);
        let size = last.saturating_sub(reserved).max(1);
        // The remainder is smaller than `size`.
        let start = (seed % u128::from(size)) as u32;
        let upper = (0..size).map(|i| reserved + (start + i) % size);
        upper
            .chain(1..reserved)
            .map(|n| Ipv4Addr::from(self.first + n))
            .find(|address| !used.contains(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AS-016: `--service-cluster-ip-range` takes what kube-apiserver takes of IPv4.
    #[test]
    fn as_016_networks_of_services() {
        let parsed = |text: &str| text.parse::<ServiceNetwork>().map(|network| network.to_string());
        assert_eq!(parsed("10.0.0.0/24"), Ok("10.0.0.0/24".into()));
        assert_eq!(parsed("10.0.0.77/24"), Ok("10.0.0.0/24".into()));
        assert_eq!(ServiceNetwork::default().to_string(), "10.96.0.0/12");
        for text in ["10.0.0.0/8", "10.0.0.0/30", "10.0.0.0/99"] {
            assert_eq!(parsed(text), Err(ServiceNetworkError::Size), "{text}");
        }
        for text in ["", "10.0.0.0", "fd00::/108", "10.0.0.0/24,fd00::/108", "10.0.0.0/x"] {
            assert_eq!(parsed(text), Err(ServiceNetworkError::NotIpv4), "{text}");
        }
    }

    /// AS-016: every address but that of the network and that of its end is given out, the reserved ones last.
    #[test]
    fn as_016_all_addresses_of_a_network_are_usable() {
        for (text, first, all) in
            [("10.0.0.0/24", 16, 254), ("10.0.0.0/29", 1, 6), ("10.0.0.0/28", 1, 14), ("10.0.0.0/27", 16, 30)]
        {
            let network: ServiceNetwork = text.parse().unwrap();
            let mut used = BTreeSet::new();
            while let Some(address) = network.free(&used, 7 + used.len() as u128) {
                assert!(network.contains(address));
                let unreserved = usize::from(address.octets()[3]) >= first;
                assert_eq!(
                    unreserved,
                    used.len() < all - (first - 1),
                    "{text}: {address} after {}",
                    used.len()
                );
                assert!(used.insert(address), "{text}: {address} twice");
            }
            assert_eq!(used.len(), all, "{text}");
            assert!(!used.contains(&Ipv4Addr::new(10, 0, 0, 0)));
        }
    }
}
