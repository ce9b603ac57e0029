//! Classifies the errors of an API server.

use kube::{Error, core::Status};

/// Returns the `Status` of the API server, if the error carries one.
pub fn status_of(error: &Error) -> Option<&Status> {
    match error {
        Error::Api(status) => Some(status),
        _ => None,
    }
}

/// Returns the HTTP code of a refusal, or 0 if the error is not a response of the server.
pub fn code_of(error: &Error) -> u16 {
    status_of(error).map_or(0, |status| status.code)
}

/// Returns the text to show to a user: the server's message, or the error itself.
pub fn message_of(error: &Error) -> String {
    status_of(error).map_or_else(|| error.to_string(), |status| status.message.clone())
}

/// The object, or its whole resource, does not exist.
pub fn is_not_found(error: &Error) -> bool {
    code_of(error) == 404
}

/// A 404 about this object, and not about a resource that is not served (KS-088).
pub fn is_object_missing(error: &Error, name: &str) -> bool {
    status_of(error)
        .is_some_and(|status| status.code == 404 && status.details.as_ref().is_some_and(|d| d.name == name))
}

/// Any 409: a write conflict, a name that is taken, or a quota that is being computed.
pub fn is_clash(error: &Error) -> bool {
    code_of(error) == 409
}

/// Another client wrote first.
pub fn is_conflict(error: &Error) -> bool {
    is_clash(error) && !is_already_exists(error)
}

/// The object exists already.
pub fn is_already_exists(error: &Error) -> bool {
    is_clash(error) && status_of(error).is_some_and(|status| status.reason == "AlreadyExists")
}

/// The requested resourceVersion has expired; the caller must list again.
pub fn is_gone(error: &Error) -> bool {
    code_of(error) == 410
}

/// The object is invalid, or the server does not understand the request.
pub fn is_invalid(error: &Error) -> bool {
    matches!(code_of(error), 400 | 422)
}

/// A retry cannot succeed until someone changes something: the request is refused for its content or for its
/// user, or the response cannot be decoded.
pub fn is_lasting(error: &Error) -> bool {
    match error {
        // These codes are temporary: credentials may be renewed (401), the request timed out (408, 425),
        // another write was in progress (409), the version expired (410), too many requests (429).
        Error::Api(status) => {
            (400..500).contains(&status.code) && !matches!(status.code, 401 | 408 | 409 | 410 | 425 | 429)
        }
        // A truncated response is temporary, too.
        Error::SerdeError(error) => !error.is_eof(),
        _ => false,
    }
}

/// The user has no permission.
pub fn is_forbidden(error: &Error) -> bool {
    code_of(error) == 403
}

#[cfg(test)]
mod tests {
    use kube::core::response::StatusDetails;
    use serde_json::{Value, from_str};

    use super::*;

    #[test]
    fn what_lasts_and_what_passes() {
        let refusal = |code: u16| Error::Api(Box::new(Status { code, ..Status::default() }));
        for (code, lasting) in [
            (400, true),
            (403, true),
            (404, true),
            (422, true),
            (401, false),
            (409, false),
            (410, false),
            (429, false),
            (500, false),
            (503, false),
        ] {
            assert_eq!(is_lasting(&refusal(code)), lasting, "{code}");
        }
        let deep = "[".repeat(200) + &"]".repeat(200);
        for (text, lasting) in [(deep.as_str(), true), ("{\"a\": oh}", true), ("{\"a\":", false)] {
            let error = from_str::<Value>(text).map_err(Error::SerdeError).unwrap_err();
            assert_eq!(is_lasting(&error), lasting, "{text}");
        }
        assert!(!is_lasting(&Error::Service("no route".into())));
    }

    #[test]
    fn ks_088_a_missing_type_is_not_a_missing_object() {
        let status = |details: Option<StatusDetails>| {
            Error::Api(Box::new(Status {
                code: 404,
                reason: "NotFound".into(),
                details,
                ..Status::default()
            }))
        };
        let named = |name: &str| StatusDetails {
            name: name.into(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        };
        assert!(is_object_missing(&status(Some(named("a"))), "a"));
        assert!(!is_object_missing(&status(Some(named(""))), "a"));
        assert!(!is_object_missing(&status(None), "a"));
    }
}
