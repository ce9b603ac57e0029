//! The input and output of authorization.

/// The API group of roles and bindings.
pub const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

/// The action that a request wants. Resource requests do not use `path`; other requests use only `verb` and `path`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes<'a> {
    pub verb: &'a str,
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub path: &'a str,
    pub resource_request: bool,
}

/// The decision, with the text that review APIs show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Allow { reason: String },
    NoOpinion { reason: String },
}
