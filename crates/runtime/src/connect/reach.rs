//! Which addresses a client connects to. For kubeconfigs that come from others: whoever writes one must not make this process
//! talk to what only this machine can reach.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::{BoxError, Service};

/// The addresses that a client connects to. Names are judged by the addresses that they have at each connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// All addresses.
    #[default]
    Everywhere,
    /// Those that an API server may have: no link-local ones, where clouds serve the credentials of machines, and none that
    /// stand for no machine or for many.
    Servers,
    /// Those of [`Reach::Servers`] on other machines.
    OtherMachines,
}

impl Reach {
    /// Returns what is wrong with an address, if the client must not connect to it.
    fn refusal(self, address: IpAddr) -> Option<&'static str> {
        let address = address.to_canonical();
        let link_local = match address {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        match self {
            Self::Everywhere => None,
            _ if link_local => Some("a link-local address"),
            _ if address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST) => {
                Some("an address of many machines")
            }
            _ if address.is_unspecified() => Some("no address of a machine"),
            Self::OtherMachines if address.is_loopback() => {
                Some("an address of this machine, which is the pod itself")
            }
            Self::Servers | Self::OtherMachines => None,
        }
    }

    fn check(self, address: IpAddr) -> io::Result<()> {
        match self.refusal(address) {
            None => Ok(()),
            Some(what) => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("{address} is {what}; this program connects to no such address"),
            )),
        }
    }
}

/// Connects by TCP to the addresses of a [`Reach`].
#[derive(Clone)]
pub(super) struct Tcp {
    inner: HttpConnector<Resolver>,
    reach: Reach,
}

impl Tcp {
    pub(super) fn new(reach: Reach) -> Self {
        let mut inner = HttpConnector::new_with_resolver(Resolver { inner: GaiResolver::new(), reach });
        inner.enforce_http(false);
        inner.set_nodelay(true);
        Self { inner, reach }
    }
}

impl Service<Uri> for Tcp {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(BoxError::from)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        // An address in the URL is not resolved.
        let host = target.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let refused = host.parse().ok().and_then(|address| self.reach.check(address).err());
        let connecting = self.inner.call(target);
        Box::pin(async move {
            match refused {
                Some(refused) => Err(refused.into()),
                None => connecting.await.map_err(BoxError::from),
            }
        })
    }
}

/// Resolves names to the addresses of a [`Reach`].
#[derive(Clone)]
struct Resolver {
    inner: GaiResolver,
    reach: Reach,
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (resolving, reach) = (self.inner.call(name), self.reach);
        Box::pin(async move {
            let found: Vec<SocketAddr> = resolving.await?.collect();
            let allowed: Vec<SocketAddr> =
                found.iter().copied().filter(|address| reach.refusal(address.ip()).is_none()).collect();
            match found.first() {
                Some(first) if allowed.is_empty() => reach.check(first.ip()).map(|()| allowed.into_iter()),
                _ => Ok(allowed.into_iter()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-038: which addresses a kubeconfig of others may name.
    #[test]
    fn sp_038_addresses_that_are_no_clusters() {
        for (address, servers, others) in [
            ("10.0.0.1", true, true),
            ("2001:db8::1", true, true),
            ("127.0.0.1", true, false),
            ("127.8.0.1", true, false),
            ("::1", true, false),
            ("::ffff:127.0.0.1", true, false),
            ("169.254.169.254", false, false),
            ("::ffff:169.254.169.254", false, false),
            ("fe80::1", false, false),
            ("0.0.0.0", false, false),
            ("::", false, false),
            ("224.0.0.1", false, false),
            ("ff02::1", false, false),
            ("255.255.255.255", false, false),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(Reach::Servers.refusal(address).is_none(), servers, "{address}");
            assert_eq!(Reach::OtherMachines.refusal(address).is_none(), others, "{address}");
            assert_eq!(Reach::Everywhere.refusal(address), None, "{address}");
        }
    }
}
