//! Why a request got no response, in the words of Go's clients where there are such.

use std::{error::Error, fmt, io};

use http::Uri;
use rustls::CertificateError;

/// A request got no response.
#[derive(Debug)]
pub struct RequestError {
    /// The server, and whether there was a connection.
    what: String,
    cause: String,
    error: hyper_util::client::legacy::Error,
}

impl RequestError {
    pub(super) fn new(target: &Uri, error: hyper_util::client::legacy::Error) -> Self {
        let server = format!(
            "{}://{}",
            target.scheme_str().unwrap_or("http"),
            target.authority().map_or("", |authority| {
                // Nobody's password belongs into a log.
                authority.as_str().rsplit('@').next().unwrap_or_default()
            })
        );
        let what =
            if error.is_connect() { format!("connecting to {server}") } else { format!("asking {server}") };
        let cause = cause(&error);
        Self { what, cause, error }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.cause)
    }
}

impl Error for RequestError {
    /// The first cause. What is between says nothing more.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        chain(&self.error).last()
    }
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

fn cause(error: &(dyn Error + 'static)) -> String {
    if let Some(error) = chain(error).find_map(tls_in) {
        return of_tls(error);
    }
    match chain(error).last() {
        Some(last) => match last.downcast_ref::<io::Error>() {
            Some(error) => of_io(error),
            None => last.to_string(),
        },
        None => error.to_string(),
    }
}

/// Returns the TLS error that an error is or wraps. The source of an [`io::Error`] is not what it wraps, but the source of that.
fn tls_in<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(found) = error.downcast_ref() {
        return Some(found);
    }
    tls_in(error.downcast_ref::<io::Error>()?.get_ref()?)
}

fn of_io(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::TimedOut {
        return "i/o timeout".to_owned();
    }
    let text = error.to_string();
    let plain = text.split(" (os error").next().unwrap_or_default();
    // As in Go, the words of the operating system begin with a small letter.
    match error.raw_os_error() {
        Some(_) => plain.to_lowercase(),
        None => plain.to_owned(),
    }
}

fn of_tls(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(why) => format!("x509: {}", of_certificate(why)),
        rustls::Error::AlertReceived(alert) => format!("remote error: tls: {alert:?}"),
        rustls::Error::InvalidMessage(_) => {
            format!("tls: first record does not look like a TLS handshake ({error})")
        }
        other => format!("tls: {other}"),
    }
}

fn of_certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer => "certificate signed by unknown authority".to_owned(),
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => {
            format!("certificate has expired or is not yet valid: {error}")
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let presented: Vec<_> = presented.iter().map(|name| plain(name)).collect();
            format!("certificate is valid for {}, not {}", presented.join(", "), expected.to_str())
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            format!("certificate specifies an incompatible key usage: {error}")
        }
        // What webpki says of the certificate of a CA. Were it trusted itself, it would have been accepted.
        CertificateError::Other(why) if format!("{why:?}").contains("CaUsedAsEndEntity") => {
            "certificate signed by unknown authority (it is a CA's own, and not one of those that are trusted)".to_owned()
        }
        other => other.to_string(),
    }
}

/// Takes the name out of `DnsName("a")` or `IpAddress(1.2.3.4)`, as rustls prints the names of a certificate.
fn plain(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    inner.trim_matches('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_certificates_are_printed_plainly() {
        assert_eq!(plain("IpAddress(127.0.0.1)"), "127.0.0.1");
        assert_eq!(plain("DnsName(\"a.example\")"), "a.example");
        assert_eq!(plain("a.example"), "a.example");
    }

    /// hyper and its connectors wrap errors in others several times.
    #[test]
    fn tls_errors_are_found_wherever_they_are() {
        let wrapped = io::Error::other(io::Error::other(rustls::Error::DecryptError));
        assert_eq!(cause(&wrapped), "tls: cannot decrypt peer's message");
        assert_eq!(cause(&io::Error::from_raw_os_error(111)), "connection refused");
        assert_eq!(cause(&io::Error::from(io::ErrorKind::TimedOut)), "i/o timeout");
    }
}
