//! Checks of paths inside volumes.

use machinery::field::Path;

use super::check::Errs;

/// Checks that a path is relative and has no step back.
pub(super) fn descending(value: &str, place: &Path, errs: &mut Errs) {
    if value.starts_with('/') {
        errs.invalid_str(place, value, "must be a relative path");
    }
    no_backsteps(value, place, errs);
}

/// Checks that a path has no step back.
pub(super) fn no_backsteps(value: &str, place: &Path, errs: &mut Errs) {
    if value.split('/').any(|part| part == "..") {
        errs.invalid_str(place, value, "must not contain '..'");
    }
}
