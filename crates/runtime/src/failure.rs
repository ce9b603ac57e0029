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

/// Not allowed.
pub fn is_forbidden(error: &Error) -> bool {
    code(error) == Some(403)
}
