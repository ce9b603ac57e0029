//! Which space a request is for (SP-055, SP-056).
//!
//! A space has a path, `https://HOST:PORT/spaces/<name>`, and server names, `<name>.localhost` and `<name>.localtest.me`. The
//! path of the URL, the `Host` header (or `:authority`) and the server name of the TLS handshake (SNI) may each name the
//! space. Those that do must agree: nobody, such as a proxy that decides by one of them, may be mistaken about which space
//! a request goes to. This is the only place that decides it; the space then authenticates and authorises.

use http::{Request, header};

/// Domains whose direct subdomains are the server names of spaces: names that mean this machine without any set-up (RFC
/// 6761), and the domain of the original, which public DNS resolves to 127.0.0.1.
const DOMAINS: [&str; 2] = ["localhost", "localtest.me"];

const PATH: &str = "/spaces/";

/// The server name of a space that clients are given.
pub fn server_name(space: &str) -> String {
    format!("{space}.{}", DOMAINS[0])
}

/// The space that a host name is for, in lower case.
pub(crate) fn space_of_host(host: &str) -> Option<String> {
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    DOMAINS.iter().find_map(|domain| Some(host.strip_suffix(domain)?.strip_suffix('.')?.to_owned()))
}

/// What a request says about its space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addressed {
    /// Absent: the request is for the process.
    pub(crate) space: Option<String>,
    /// How many leading bytes of the path name the space. The rest is the path in the space.
    pub(crate) prefix: usize,
}

/// Two parts of a request name different spaces.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{first} names the space {one:?}, {second} names the space {other:?}")]
pub(crate) struct Misdirected {
    first: &'static str,
    one: String,
    second: &'static str,
    other: String,
}

/// Which space the request is for. `sni`: the server name of the TLS handshake.
///
/// # Errors
/// Path, host and server name disagree.
pub(crate) fn addressed<B>(sni: Option<&str>, request: &Request<B>) -> Result<Addressed, Misdirected> {
    let uri = request.uri();
    let in_path = uri.path().strip_prefix(PATH).and_then(|rest| rest.split('/').next());
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.and_then(|host| host.parse::<http::uri::Authority>().ok());
    let named = [
        ("the server name of the TLS connection", sni.and_then(space_of_host)),
        ("the host of the URL", uri.host().and_then(space_of_host)),
        ("the Host header", host.and_then(|host| space_of_host(host.host()))),
        ("the path", in_path.map(ToOwned::to_owned)),
    ];
    let mut named = named.into_iter().filter_map(|(what, space)| Some((what, space?)));
    let Some((first, space)) = named.next() else { return Ok(Addressed::default()) };
    if let Some((second, other)) = named.find(|(_, other)| *other != space) {
        return Err(Misdirected { first, one: space, second, other });
    }
    let prefix = in_path.map_or(0, |name| PATH.len() + name.len());
    Ok(Addressed { space: Some(space), prefix })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str, host: &str) -> Request<()> {
        let builder = Request::get(uri);
        let builder = if host.is_empty() { builder } else { builder.header(header::HOST, host) };
        builder.body(()).unwrap()
    }

    fn ask(sni: &str, uri: &str, host: &str) -> Result<(Option<String>, usize), ()> {
        let found = addressed(Some(sni).filter(|sni| !sni.is_empty()), &request(uri, host));
        found.map(|it| (it.space, it.prefix)).map_err(drop)
    }

    /// SP-055, SP-056: a space is named by path, host or server name.
    #[test]
    fn sp_056_a_space_has_a_path_and_server_names() {
        let wds1 = |prefix| Ok((Some("wds1".to_owned()), prefix));
        for (sni, uri, host, wanted) in [
            ("", "/api", "127.0.0.1:9443", Ok((None, 0))),
            ("localhost", "/api", "localhost:9443", Ok((None, 0))),
            ("kubernetes.default.svc", "/api", "[::1]:9443", Ok((None, 0))),
            ("", "/spaces/wds1/api", "127.0.0.1:9443", wds1(12)),
            ("", "/spaces/wds1", "", wds1(12)),
            ("wds1.localhost", "/api", "127.0.0.1:9443", wds1(0)),
            ("", "/api", "wds1.localhost:9443", wds1(0)),
            ("wds1.localhost", "/api", "WDS1.LocalHost.:9443", wds1(0)),
            ("wds1.localtest.me", "/api", "wds1.localtest.me", wds1(0)),
            ("wds1.localhost", "/spaces/wds1/api", "127.0.0.1:9443", wds1(12)),
            ("wds1.localhost", "https://wds1.localhost:9443/api", "", wds1(0)),
            ("example.org", "/spaces/wds1/", "example.org", wds1(12)),
            ("", "/api", "wds1.localhost.example.org", Ok((None, 0))),
            ("", "/api", "wds1localhost", Ok((None, 0))),
        ] {
            assert_eq!(ask(sni, uri, host), wanted, "{sni} {uri} {host}");
        }
    }

    /// SP-056: a request that names two spaces reaches neither.
    #[test]
    fn sp_056_names_that_disagree_are_refused() {
        for (sni, uri, host) in [
            ("its1.localhost", "/api", "wds1.localhost:9443"),
            ("its1.localhost", "/spaces/wds1/api", "127.0.0.1:9443"),
            ("", "/spaces/wds1/api", "its1.localhost:9443"),
            ("wds1.localhost", "/spaces/its1/api", "wds1.localhost"),
            ("", "https://its1.localhost/api", "wds1.localhost"),
            ("wds1.localhost", "/spaces//api", "127.0.0.1"),
            ("wds1.localhost", "/api", "its1.localtest.me"),
        ] {
            assert_eq!(ask(sni, uri, host), Err(()), "{sni} {uri} {host}");
        }
    }
}
