//! Which `Host` headers are accepted (SP-056): those that Go's HTTP server accepts.
//!
//! A proxy and this server must see the same host in a request. Where they could differ, the request is refused.

use http::uri::Authority;
use http::{HeaderValue, Request, Version, header};

/// Why a request cannot be answered: what it says about its host is doubtful.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HostFault {
    #[error("missing required Host header")]
    Missing,
    #[error("too many Host headers")]
    Many,
    #[error("malformed Host header")]
    Malformed,
    #[error("the Host header differs from :authority")]
    Differs,
}

/// # Errors
/// The request has several `Host` headers, or none where it needs one, or one that is no host or not that of its URL.
pub(crate) fn check_host<B>(request: &Request<B>) -> Result<(), HostFault> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let Some(host) = hosts.next() else {
        return if request.version() == Version::HTTP_11 { Err(HostFault::Missing) } else { Ok(()) };
    };
    if hosts.next().is_some() {
        return Err(HostFault::Many);
    }
    if !is_host(host) {
        return Err(HostFault::Malformed);
    }
    // In HTTP/1.1 the host of an absolute URL overrides the header (RFC 9112, 3.2.2).
    let authority = request.uri().authority().filter(|_| request.version() >= Version::HTTP_2);
    match authority {
        Some(authority) if !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()) => {
            Err(HostFault::Differs)
        }
        _ => Ok(()),
    }
}

/// Whether a value is a host with or without a port, or empty.
fn is_host(value: &HeaderValue) -> bool {
    // As in Go: what the grammar of RFC 3986 allows, and no user.
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"!$%&()*+,-.:;=[]'_~".contains(byte);
    let bytes = value.as_bytes();
    bytes.is_empty() || (bytes.iter().all(allowed) && Authority::try_from(bytes).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(version: Version, uri: &str, hosts: &[&[u8]]) -> Result<(), HostFault> {
        let builder = Request::get(uri).version(version);
        let add = |builder: http::request::Builder, host: &&[u8]| builder.header(header::HOST, *host);
        check_host(&hosts.iter().fold(builder, add).body(()).unwrap())
    }

    /// SP-056: what is doubtful about the host of a request is refused.
    #[test]
    fn sp_056_doubtful_hosts_are_refused() {
        use HostFault::{Differs, Malformed, Many, Missing};
        let (one, two) = (Version::HTTP_11, Version::HTTP_2);
        let cases: [(Version, &str, &[&[u8]], Result<(), HostFault>); 17] = [
            (one, "/", &[b"wds1.localhost:9443"], Ok(())),
            (one, "/", &[b"[::1]:9443"], Ok(())),
            (one, "/", &[b""], Ok(())),
            (one, "/", &[], Err(Missing)),
            (Version::HTTP_10, "/", &[], Ok(())),
            (one, "/", &[b"a", b"b"], Err(Many)),
            (one, "/", &[b"a", b"a"], Err(Many)),
            (one, "/", &[b"a/b"], Err(Malformed)),
            (one, "/", &[b"a b"], Err(Malformed)),
            (one, "/", &[b"user@wds1.localhost"], Err(Malformed)),
            (one, "/", &[b"wds1.localhost\xff"], Err(Malformed)),
            (one, "/", &[b"[::1"], Err(Malformed)),
            (one, "https://wds1.localhost/", &[b"other"], Ok(())),
            (two, "https://wds1.localhost/", &[], Ok(())),
            (two, "https://wds1.localhost/", &[b"WDS1.localhost"], Ok(())),
            (two, "https://wds1.localhost/", &[b"its1.localhost"], Err(Differs)),
            (two, "https://wds1.localhost/", &[b"wds1.localhost", b"wds1.localhost"], Err(Many)),
        ];
        for (version, uri, hosts, wanted) in cases {
            let shown: Vec<_> = hosts.iter().map(|host| String::from_utf8_lossy(host)).collect();
            assert_eq!(check(version, uri, hosts), wanted, "{version:?} {uri} {shown:?}");
        }
    }
}
