//! Telling the answers of an API server apart.

use kube::{Error, core::Status};

/// The API server's own answer, when the error is one.
pub fn status_of(error: &Error) -> Option<&Status> {
    match error {
        Error::Api(status) => Some(status),
        _ => None,
    }
}

/// HTTP code of a refusal; 0 for anything that is no answer.
pub fn code_of(error: &Error) -> u16 {
    status_of(error).map_or(0, |status| status.code)
}

/// Text for a user: the server's message, or the error itself.
pub fn message_of(error: &Error) -> String {
    status_of(error).map_or_else(|| error.to_string(), |status| status.message.clone())
}

/// The object, or its whole resource, is not there.
pub fn is_not_found(error: &Error) -> bool {
    code_of(error) == 404
}

/// 404 that speaks of this very object, as opposed to a resource type that is not served (KS-088).
pub fn is_object_missing(error: &Error, name: &str) -> bool {
    status_of(error)
        .is_some_and(|status| status.code == 404 && status.details.as_ref().is_some_and(|d| d.name == name))
}

/// Any 409: someone else wrote first, the name is taken, or a quota is being counted.
pub fn is_clash(error: &Error) -> bool {
    code_of(error) == 409
}

/// Someone else wrote first.
pub fn is_conflict(error: &Error) -> bool {
    is_clash(error) && !is_already_exists(error)
}

/// The object is there already.
pub fn is_already_exists(error: &Error) -> bool {
    is_clash(error) && status_of(error).is_some_and(|status| status.reason == "AlreadyExists")
}

/// The asked version is no longer known; list again.
pub fn is_gone(error: &Error) -> bool {
    code_of(error) == 410
}

/// The object breaks a rule, or the request isn't understood.
pub fn is_invalid(error: &Error) -> bool {
    matches!(code_of(error), 400 | 422)
}

/// Trying again changes nothing until somebody has mended something: it is refused for what it is or for who asks, or the
/// answer can't be read.
pub fn is_lasting(error: &Error) -> bool {
    match error {
        // These pass: who one is, may be told anew; it took too long; others write; the past is forgotten; too many ask.
        Error::Api(status) => {
            (400..500).contains(&status.code) && !matches!(status.code, 401 | 408 | 409 | 410 | 425 | 429)
        }
        // An answer that was cut off passes, too.
        Error::SerdeError(error) => !error.is_eof(),
        _ => false,
    }
}

/// Not allowed.
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
