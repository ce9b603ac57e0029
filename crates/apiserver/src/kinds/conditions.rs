//! Validation of `status.conditions` of the common type (`metav1.Condition`).

use std::collections::BTreeSet;

use machinery::field::Path;
use machinery::names;
use serde_json::Value;

use super::check::Errs;
use super::value::{at, has, int, text};

const REASON_MAX: usize = 1024;
const MESSAGE_MAX: usize = 32 * 1024;
const REASON_TEXT: &str = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'";
const REASON_PATTERN: &str = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?";

/// Validates a list of conditions.
pub(super) fn check(conditions: &[Value], place: &Path, errs: &mut Errs) {
    let mut seen = BTreeSet::new();
    for (i, condition) in conditions.iter().enumerate() {
        let here = place.index(i);
        let kind = text(condition, "type");
        if !seen.insert(kind) {
            errs.duplicate(&here.child("type"), &kind.into());
        }
        errs.names(&here.child("type"), kind, names::qualified_name(kind));
        errs.one_of(&here.child("status"), text(condition, "status"), &["False", "True", "Unknown"]);
        if let Some(n) = int(condition, "observedGeneration").filter(|n| *n < 0) {
            errs.invalid(
                &here.child("observedGeneration"),
                &Value::from(n),
                "must be greater than or equal to zero",
            );
        }
        if !has(condition, "lastTransitionTime") {
            errs.required(&here.child("lastTransitionTime"), "");
        }
        reason(at(condition, "reason").as_str().unwrap_or_default(), &here.child("reason"), errs);
        if text(condition, "message").len() > MESSAGE_MAX {
            errs.too_long(&here.child("message"), MESSAGE_MAX);
        }
    }
}

fn reason(reason: &str, place: &Path, errs: &mut Errs) {
    if reason.is_empty() {
        errs.required(place, "");
        return;
    }
    let bytes = reason.as_bytes();
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let fits = bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().copied().is_some_and(word)
        && bytes.iter().all(|b| word(*b) || matches!(b, b',' | b':'));
    if !fits {
        errs.invalid_str(
            place,
            reason,
            &names::regex_error(
                REASON_TEXT,
                REASON_PATTERN,
                &["my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB"],
            ),
        );
    }
    if reason.len() > REASON_MAX {
        errs.too_long(place, REASON_MAX);
    }
}
