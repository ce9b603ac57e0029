//! Telling the answers of an API server apart.

use kube::Error;

/// HTTP code of a refusal; none for anything that is no answer.
pub fn code(error: &Error) -> Option<u16> {
    match error {
        Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// The object, or its whole resource, is not there.
pub fn is_not_found(error: &Error) -> bool {
    code(error) == Some(404)
}

/// Someone else wrote first.
pub fn is_conflict(error: &Error) -> bool {
    code(error) == Some(409) && !is_already_exists(error)
}

/// The object is there already.
pub fn is_already_exists(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}

/// The asked version is no longer known; list again.
pub fn is_gone(error: &Error) -> bool {
    code(error) == Some(410)
}

/// The object breaks a rule, or the request isn't understood.
pub fn is_invalid(error: &Error) -> bool {
    matches!(code(error), Some(400 | 422))
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
    code(error) == Some(403)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
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
}
