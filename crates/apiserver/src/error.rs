//! Errors as clients see them: the Kubernetes `Status` object (AS-002).

use std::collections::HashSet;

use machinery::field;
use serde_json::{Map, Value, json};

/// Machine-readable reason of a failure (`Status.reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Prints no reason.
    Unknown,
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    NotAcceptable,
    AlreadyExists,
    Conflict,
    Expired,
    RequestEntityTooLarge,
    UnsupportedMediaType,
    Invalid,
    TooManyRequests,
    InternalError,
    ServerTimeout,
    Timeout,
    ServiceUnavailable,
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "",
            Self::BadRequest => "BadRequest",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::NotAcceptable => "NotAcceptable",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::Expired => "Expired",
            Self::RequestEntityTooLarge => "RequestEntityTooLarge",
            Self::UnsupportedMediaType => "UnsupportedMediaType",
            Self::Invalid => "Invalid",
            Self::TooManyRequests => "TooManyRequests",
            Self::InternalError => "InternalError",
            Self::ServerTimeout => "ServerTimeout",
            Self::Timeout => "Timeout",
            Self::ServiceUnavailable => "ServiceUnavailable",
        }
    }
}

/// One entry of `Status.details.causes`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    pub reason: String,
    pub message: String,
    pub field: String,
}

/// `Status.details`. Empty strings are not printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    pub name: String,
    pub group: String,
    /// The plural for storage and authorization errors, the Kind for validation errors.
    pub kind: String,
    pub uid: String,
    pub causes: Vec<Cause>,
    /// Also the `Retry-After` header.
    pub retry_after_seconds: Option<u32>,
}

/// A refused request. `code` is the HTTP status, [`ApiError::status`] the body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status.
    pub code: u16,
    pub reason: Reason,
    pub message: String,
    /// `None` leaves the key out; `Some(default)` prints `{}`.
    pub details: Option<Box<Details>>,
    /// Replaces `metadata.continue` (the inconsistent continue token of a 410).
    pub continue_token: Option<String>,
    /// The body is plain text instead of a `Status` (unknown paths: `404 page not found`).
    pub plain: bool,
}

impl ApiError {
    pub fn new(code: u16, reason: Reason, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None, continue_token: None, plain: false }
    }

    #[must_use]
    pub fn with_details(mut self, details: Details) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    /// `404 page not found` in plain text: unknown group, version or path.
    pub fn page_not_found() -> Self {
        Self { plain: true, ..Self::new(404, Reason::NotFound, "404 page not found\n") }
    }

    /// 404 from routing: an unknown resource of a known group and version.
    pub(crate) fn no_such_resource() -> Self {
        Self::routing(404, Reason::NotFound, "the server could not find the requested resource")
    }

    /// 405 from routing.
    pub(crate) fn method_not_allowed() -> Self {
        Self::routing(
            405,
            Reason::MethodNotAllowed,
            "the server does not allow this method on the requested resource",
        )
    }

    /// 415 from routing.
    pub(crate) fn unsupported_media_type() -> Self {
        Self::routing(415, Reason::UnsupportedMediaType, "415: Unsupported Media Type")
    }

    fn routing(code: u16, reason: Reason, message: &str) -> Self {
        Self::new(code, reason, message).with_details(Details::default())
    }

    /// 429 in plain text. The response has a `Retry-After` header.
    pub(crate) fn too_many_requests() -> Self {
        let message = "Too many requests, please try again later.";
        Self { plain: true, ..Self::new(429, Reason::TooManyRequests, message) }
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, Reason::BadRequest, message)
    }

    /// `group`/`resource` as in the URL.
    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        Self::new(404, Reason::NotFound, format!("{} \"{name}\" not found", qualified(resource, group)))
            .with_details(Self::about(group, resource, name))
    }

    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        Self::new(
            409,
            Reason::AlreadyExists,
            format!("{} \"{name}\" already exists", qualified(resource, group)),
        )
        .with_details(Self::about(group, resource, name))
    }

    pub fn conflict(group: &str, resource: &str, name: &str, why: &str) -> Self {
        Self::new(
            409,
            Reason::Conflict,
            format!("Operation cannot be fulfilled on {} \"{name}\": {why}", qualified(resource, group)),
        )
        .with_details(Self::about(group, resource, name))
    }

    /// A conflict with a free text, without details.
    pub fn conflict_text(message: impl Into<String>) -> Self {
        Self::new(409, Reason::Conflict, message).with_details(Details::default())
    }

    /// The conflict of an optimistic lock.
    pub fn modified(group: &str, resource: &str, name: &str) -> Self {
        Self::conflict(
            group,
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub fn forbidden(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let subject = match (resource.is_empty(), name.is_empty()) {
            (true, _) => "forbidden".to_owned(),
            (false, true) => format!("{} is forbidden", qualified(resource, group)),
            (false, false) => format!("{} \"{name}\" is forbidden", qualified(resource, group)),
        };
        Self::new(403, Reason::Forbidden, format!("{subject}: {why}"))
            .with_details(Self::about(group, resource, name))
    }

    /// 422 with one cause per error. The message prints identical errors once.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[field::Error]) -> Self {
        let mut seen = HashSet::new();
        let texts = errors.iter().map(ToString::to_string);
        let texts: Vec<String> = texts.filter(|text| seen.insert(text.clone())).collect();
        let list = match texts.as_slice() {
            [] => "<nil>".to_owned(),
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let causes = errors
            .iter()
            .map(|e| Cause {
                reason: e.reason().to_owned(),
                message: e.message().to_owned(),
                field: e.field.clone(),
            })
            .collect();
        let details = Details { causes, ..Self::about(group, kind, name) };
        Self::new(422, Reason::Invalid, format!("{} \"{name}\" is invalid: {list}", qualified(kind, group)))
            .with_details(details)
    }

    pub fn internal(error: impl std::fmt::Display) -> Self {
        let message = error.to_string();
        let cause = Cause { message: message.clone(), ..Cause::default() };
        Self::new(500, Reason::InternalError, format!("Internal error occurred: {message}"))
            .with_details(Details { causes: vec![cause], ..Details::default() })
    }

    fn about(group: &str, kind: &str, name: &str) -> Details {
        Details { name: name.into(), group: group.into(), kind: kind.into(), ..Details::default() }
    }

    /// The `v1 Status` body.
    pub fn status(&self) -> Value {
        let mut metadata = Map::new();
        if let Some(token) = &self.continue_token {
            metadata.insert("continue".into(), token.clone().into());
        }
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if let Some(map) = status.as_object_mut() {
            if self.reason != Reason::Unknown {
                map.insert("reason".into(), self.reason.as_str().into());
            }
            if let Some(details) = &self.details {
                map.insert("details".into(), details.to_value());
            }
        }
        status
    }
}

impl Details {
    fn to_value(&self) -> Value {
        let mut out = Map::new();
        for (key, text) in
            [("name", &self.name), ("group", &self.group), ("kind", &self.kind), ("uid", &self.uid)]
        {
            if !text.is_empty() {
                out.insert(key.into(), text.clone().into());
            }
        }
        if !self.causes.is_empty() {
            out.insert("causes".into(), self.causes.iter().map(Cause::to_value).collect());
        }
        if let Some(seconds) = self.retry_after_seconds {
            out.insert("retryAfterSeconds".into(), seconds.into());
        }
        Value::Object(out)
    }
}

impl Cause {
    fn to_value(&self) -> Value {
        let mut out = Map::new();
        for (key, text) in [("reason", &self.reason), ("message", &self.message), ("field", &self.field)] {
            if !text.is_empty() {
                out.insert(key.into(), text.clone().into());
            }
        }
        Value::Object(out)
    }
}

/// `name.group`, or `name` in the core group: how messages name resources and kinds.
pub fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}
