//! Which proxy a connection goes through, as Go's programs decide from `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`
//! (OCM-071, MC-101). Pure: who reads the variables passes their values.

use std::net::IpAddr;

use http::{HeaderValue, Uri};

/// Values of the variables.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    http: Option<Uri>,
    https: Option<Uri>,
    /// The value of `HTTPS_PROXY` itself.
    https_text: String,
    exceptions: Vec<Exception>,
}

/// An entry of `NO_PROXY`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Exception {
    /// `*`
    Everything,
    /// A network: address and length of the prefix.
    Network(IpAddr, u8),
    /// An address, and the port if only that is meant.
    Address(IpAddr, Option<u16>),
    /// A domain with a leading dot, whether the domain itself is meant beside its subdomains, and the port if only
    /// that is meant.
    Domain { suffix: String, itself: bool, port: Option<u16> },
}

impl Proxies {
    /// Reads the values of the three variables; empty values mean nothing. A proxy without a scheme speaks HTTP. A
    /// value that is no address is ignored, and so is such an entry of `none`.
    pub fn new(http: &str, https: &str, none: &str) -> Self {
        Self {
            http: address(http),
            https: address(https),
            https_text: https.trim_end_matches('/').to_owned(),
            exceptions: none.split(',').filter_map(Exception::read).collect(),
        }
    }

    /// Returns the proxy for `target`. Connections to this machine never use a proxy.
    pub fn of(&self, target: &Uri) -> Option<&Uri> {
        let (proxy, port) = match target.scheme_str() {
            Some("https") => (self.https.as_ref()?, 443),
            _ => (self.http.as_ref()?, 80),
        };
        let host = target.host()?.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let host = host.trim_end_matches('.');
        let (address, port) = (host.parse::<IpAddr>().ok(), target.port_u16().unwrap_or(port));
        let here = host == "localhost" || address.is_some_and(|address| address.is_loopback());
        let direct = here || self.exceptions.iter().any(|one| one.covers(host, address, port));
        (!direct).then_some(proxy)
    }

    /// Returns whether a proxy is the one of `HTTPS_PROXY`, as libraries put it into configurations.
    pub fn is_of_environment(&self, proxy: &Uri) -> bool {
        let text = proxy.to_string();
        !self.https_text.is_empty() && text.trim_end_matches('/') == self.https_text
    }
}

fn address(text: &str) -> Option<Uri> {
    let with_scheme =
        |text: &str| text.parse::<Uri>().ok().filter(|uri| uri.scheme().is_some() && uri.host().is_some());
    if text.is_empty() {
        return None;
    }
    with_scheme(text).or_else(|| with_scheme(&format!("http://{text}")))
}

/// Returns the credential that the URL of a proxy has (`http://user:password@host`), for `Proxy-Authorization`.
pub fn credential(proxy: &Uri) -> Option<HeaderValue> {
    use base64::Engine as _;
    let (user, _) = proxy.authority()?.as_str().rsplit_once('@')?;
    let plain: Vec<u8> = percent_encoding::percent_decode_str(user).collect();
    let encoded = base64::engine::general_purpose::STANDARD.encode(plain);
    let mut value = HeaderValue::from_str(&format!("Basic {encoded}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

impl Exception {
    fn read(entry: &str) -> Option<Self> {
        let entry = entry.trim().to_ascii_lowercase();
        if entry == "*" {
            return Some(Self::Everything);
        }
        if let Some((network, length)) = entry.split_once('/') {
            let (network, length) = (network.parse::<IpAddr>().ok()?, length.parse::<u8>().ok()?);
            let most = if network.is_ipv4() { 32 } else { 128 };
            return (length <= most).then_some(Self::Network(network, length));
        }
        if let Ok(address) = entry.trim_start_matches('[').trim_end_matches(']').parse() {
            return Some(Self::Address(address, None));
        }
        let (host, port) = match entry.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse::<u16>().ok()?)),
            None => (entry.as_str(), None),
        };
        if let Ok(address) = host.trim_start_matches('[').trim_end_matches(']').parse() {
            return Some(Self::Address(address, port));
        }
        // `*.example.com` is another way to write `.example.com`, which does not cover example.com itself.
        let host = host.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(host);
        let itself = !host.starts_with('.');
        let bare = host.strip_prefix('.').unwrap_or(host);
        (!bare.is_empty()).then(|| Self::Domain { suffix: format!(".{bare}"), itself, port })
    }

    fn covers(&self, host: &str, address: Option<IpAddr>, at: u16) -> bool {
        match self {
            Self::Everything => true,
            Self::Network(network, length) => {
                address.is_some_and(|address| within(address, *network, *length))
            }
            Self::Address(own, port) => address == Some(*own) && port.is_none_or(|port| port == at),
            Self::Domain { suffix, itself, port } => {
                let named =
                    host.ends_with(suffix.as_str()) || *itself && suffix.strip_prefix('.') == Some(host);
                named && port.is_none_or(|port| port == at)
            }
        }
    }
}

/// Returns whether the first `length` bits of both addresses are the same.
fn within(address: IpAddr, network: IpAddr, length: u8) -> bool {
    let (a, b) = match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits()) << 96, u128::from(b.to_bits()) << 96),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits()),
        _ => return false,
    };
    length == 0 || (a ^ b) >> (128 - u32::from(length)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goes(none: &str, target: &str) -> Option<String> {
        let proxies = Proxies::new("http://plain:3128", "secure:3129", none);
        proxies.of(&target.parse().unwrap()).map(|proxy| proxy.host().unwrap().to_owned())
    }

    /// OCM-071: the cases of Go's `httpproxy`.
    #[test]
    fn ocm_071_what_no_proxy_covers() {
        let (direct, proxied) = (None, Some("secure".to_owned()));
        for (none, target, wanted) in [
            ("", "https://hub.example", &proxied),
            ("*", "https://hub.example", &direct),
            ("other, * ", "https://hub.example", &direct),
            ("hub.example", "https://hub.example", &direct),
            ("hub.example", "https://a.hub.example:6443", &direct),
            ("hub.example", "https://ahub.example", &proxied),
            (".hub.example", "https://hub.example", &proxied),
            (".hub.example", "https://a.b.hub.example", &direct),
            ("*.hub.example", "https://a.hub.example", &direct),
            ("*.hub.example", "https://hub.example", &proxied),
            ("HUB.example", "https://Hub.Example.", &direct),
            ("hub.example:6443", "https://hub.example:6443", &direct),
            ("hub.example:6443", "https://hub.example", &proxied),
            ("hub.example:443", "https://hub.example", &direct),
            ("hub.example:x", "https://hub.example", &proxied),
            ("10.0.0.0/8", "https://10.1.2.3:6443", &direct),
            ("10.0.0.0/8", "https://11.1.2.3:6443", &proxied),
            ("10.0.0.0/33", "https://10.1.2.3", &proxied),
            ("0.0.0.0/0", "https://10.1.2.3", &direct),
            ("0.0.0.0/0", "https://hub.example", &proxied),
            ("0.0.0.0/0", "https://[fd00::1]", &proxied),
            ("fd00::/8", "https://[fd00::1]:6443", &direct),
            ("10.1.2.3", "https://10.1.2.3:6443", &direct),
            ("10.1.2.3:6443", "https://10.1.2.3:6443", &direct),
            ("10.1.2.3:6443", "https://10.1.2.3", &proxied),
            ("fd00::1", "https://[fd00::1]", &direct),
            ("[fd00::1]:6443", "https://[fd00::1]:6443", &direct),
            ("[fd00::1]:6443", "https://[fd00::1]", &proxied),
            (",, .,", "https://hub.example", &proxied),
            ("", "https://localhost:6443", &direct),
            ("", "https://127.9.9.9", &direct),
            ("", "https://[::1]:6443", &direct),
        ] {
            assert_eq!(&goes(none, target), wanted, "NO_PROXY={none} {target}");
        }
        assert_eq!(goes("hub.example", "http://other.example").as_deref(), Some("plain"));
        assert!(Proxies::new("", "", "").of(&"https://hub.example".parse().unwrap()).is_none());
    }

    /// OCM-071: a library that read the variable itself may have kept it without a scheme, or with a path.
    #[test]
    fn ocm_071_the_proxy_of_the_environment_is_known() {
        for text in ["http://proxy:3128", "http://proxy:3128/", "proxy:3128"] {
            let proxies = Proxies::new("", text, "");
            assert!(proxies.is_of_environment(&text.parse().unwrap()), "{text}");
            assert!(!proxies.is_of_environment(&"http://other:3128".parse().unwrap()));
        }
        assert!(!Proxies::default().is_of_environment(&"http://proxy:3128".parse().unwrap()));
    }

    /// MC-101: user and password of a proxy.
    #[test]
    fn mc_101_credentials_of_proxies() {
        let of = |text: &str| credential(&text.parse().unwrap());
        assert_eq!(of("http://user:word@plain:3128").unwrap(), "Basic dXNlcjp3b3Jk");
        assert_eq!(of("http://user:pa%40ss@plain:3128").unwrap(), "Basic dXNlcjpwYUBzcw==");
        assert!(of("http://plain:3128").is_none());
    }
}
