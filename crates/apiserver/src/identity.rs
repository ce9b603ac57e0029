//! The identity of callers.

use std::collections::BTreeMap;

/// The authenticated caller of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    /// Further attributes, by key.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// The caller that presented no credential.
    pub fn anonymous() -> Self {
        Self {
            name: "system:anonymous".into(),
            groups: vec!["system:unauthenticated".into()],
            ..Self::default()
        }
    }

    /// A component of this process. Adds `system:authenticated` to its groups.
    pub fn internal(name: &str, groups: &[&str]) -> Self {
        let mut groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
        groups.push("system:authenticated".into());
        Self { name: name.into(), groups, ..Self::default() }
    }

    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}

/// What the transport has verified about the caller. The listener, or the in-process client, puts it into the
/// extensions of the request.
#[derive(Clone, Debug)]
pub enum Caller {
    /// A connection without client certificate.
    Plain,
    /// The DER chain of a client that has proved possession of the key. The chain is not yet checked against any CA.
    Certificate(std::sync::Arc<Vec<rustls_pki_types::CertificateDer<'static>>>),
    /// A component in this process, already identified.
    Internal(std::sync::Arc<UserInfo>),
}

/// An extension of a response: the server has authenticated and authorised the caller, so the listener sets no time limit
/// on the connection.
#[derive(Clone, Copy, Debug)]
pub struct KnownCaller;

/// An extension of a request: the caller reads and writes without waiting for the disk (see [`store::SpaceStore::ahead`]).
/// Only in-process clients add it; no listener does.
#[derive(Clone, Copy, Debug)]
pub struct ReadAhead;
