//! Collection of validation errors, and checks that many kinds share.

use machinery::field::{Error, Errors, Path};
use machinery::quantity::Quantity;
use machinery::{names, selector::LabelSelector};
use serde_json::Value;

use super::value::{at, entries, int, text};

pub(crate) const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
pub(crate) const IMMUTABLE: &str = "field is immutable";

/// Errors in the order in which they are found.
#[derive(Default)]
pub(crate) struct Errs(pub Errors);

impl Errs {
    pub(crate) fn required(&mut self, at: &Path, detail: &str) {
        self.0.push(Error::required(at, detail));
    }

    pub(crate) fn invalid(&mut self, at: &Path, value: &Value, detail: &str) {
        // The value may be a whole list, so it is printed only if the error is kept.
        if !self.0.is_full() {
            self.0.push(Error::invalid(at, value, detail));
        }
    }

    pub(crate) fn invalid_str(&mut self, at: &Path, value: &str, detail: &str) {
        self.0.push(Error::invalid_str(at, value, detail));
    }

    /// An error with a value printed by the caller, for structures that Kubernetes prints in its internal form.
    pub(crate) fn invalid_text(&mut self, at: &Path, printed: &str, detail: &str) {
        self.0.push(Error::invalid_text(at, printed, detail));
    }

    pub(crate) fn unsupported(&mut self, at: &Path, value: &str, supported: &[&str]) {
        self.0.push(Error::not_supported(at, &Value::from(value), supported));
    }

    pub(crate) fn unsupported_bool(&mut self, at: &Path, value: bool, supported: &[&str]) {
        self.0.push(Error::not_supported(at, &Value::from(value), supported));
    }

    pub(crate) fn duplicate(&mut self, at: &Path, value: &Value) {
        self.0.push(Error::duplicate(at, value));
    }

    pub(crate) fn forbidden(&mut self, at: &Path, detail: &str) {
        self.0.push(Error::forbidden(at, detail));
    }

    pub(crate) fn not_found(&mut self, at: &Path, value: &Value) {
        self.0.push(Error::not_found(at, value));
    }

    pub(crate) fn too_long(&mut self, at: &Path, max: usize) {
        self.0.push(Error::too_long(at, max));
    }

    /// Adds one error per fault of a name.
    pub(crate) fn names(&mut self, at: &Path, value: &str, texts: Vec<String>) {
        for detail in texts {
            self.invalid_str(at, value, &detail);
        }
    }

    /// Checks a required name.
    pub(crate) fn required_name(&mut self, at: &Path, value: &str, rule: fn(&str) -> Vec<String>) {
        if value.is_empty() {
            self.required(at, "");
        } else {
            self.names(at, value, rule(value));
        }
    }

    /// Checks that a required value is one of `supported`, which must be sorted.
    pub(crate) fn required_enum(&mut self, at: &Path, value: &str, supported: &[&str]) {
        if value.is_empty() {
            self.required(at, "");
        } else {
            self.one_of(at, value, supported);
        }
    }

    /// Checks that a value is one of `supported`, which must be sorted.
    pub(crate) fn one_of(&mut self, at: &Path, value: &str, supported: &[&str]) {
        if !supported.contains(&value) {
            self.unsupported(at, value, supported);
        }
    }

    /// Checks that `object[key]` is absent or at least 0.
    pub(crate) fn non_negative(&mut self, object: &Value, parent: &Path, key: &str) {
        if let Some(n) = int(object, key).filter(|n| *n < 0) {
            self.invalid(&parent.child(key), &Value::from(n), NOT_NEGATIVE);
        }
    }

    /// Checks that `object[key]` is absent or positive.
    pub(crate) fn positive(&mut self, object: &Value, parent: &Path, key: &str) {
        if let Some(n) = int(object, key).filter(|n| *n <= 0) {
            self.invalid(&parent.child(key), &Value::from(n), "must be greater than 0");
        }
    }

    /// Checks that the value at a dotted path has not changed.
    pub(crate) fn immutable(&mut self, dotted: &str, new: &Value, old: &Value) {
        let value = at(new, dotted);
        if value != at(old, dotted) {
            self.invalid(&super::value::path(dotted), value, IMMUTABLE);
        }
    }

    pub(crate) fn port(&mut self, at: &Path, port: i64) {
        if !(1..=65535).contains(&port) {
            self.invalid(at, &Value::from(port), "must be between 1 and 65535, inclusive");
        }
    }

    /// Checks a port number or port name.
    pub(crate) fn port_or_name(&mut self, at: &Path, value: &Value) {
        match value {
            Value::String(name) => self.names(at, name, names::port_name(name)),
            other => self.port(at, other.as_i64().unwrap_or_default()),
        }
    }

    /// Checks that a count or percentage is at least 0.
    pub(crate) fn int_or_percent(&mut self, at: &Path, value: &Value) {
        match value {
            Value::Null => {}
            Value::String(text) => {
                let digits = text.strip_suffix('%').unwrap_or_default();
                if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                    self.invalid_str(
                        at,
                        text,
                        "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')",
                    );
                }
            }
            other => {
                if other.as_i64().is_some_and(|n| n < 0) {
                    self.invalid(at, other, NOT_NEGATIVE);
                }
            }
        }
    }

    /// Checks the syntax of a label map.
    pub(crate) fn labels(&mut self, at: &Path, labels: &Value) {
        for (key, value) in labels.as_object().into_iter().flatten() {
            self.names(at, key, names::qualified_name(key));
            let value = value.as_str().unwrap_or_default();
            self.names(at, value, names::label_value(value));
        }
    }

    /// Checks a label selector object; returns the parsed selector if it is valid. An absent selector selects nothing.
    pub(crate) fn selector(&mut self, at: &Path, selector: &Value) -> Option<LabelSelector> {
        if selector.is_null() {
            return None;
        }
        match LabelSelector::from_object(selector) {
            Ok(parsed) => Some(parsed),
            Err(errors) => {
                let prefix = at.to_string();
                self.0.extend(errors.into_iter().map(|mut e| {
                    e.field = if e.field.is_empty() || e.field == "<nil>" {
                        prefix.clone()
                    } else {
                        format!("{prefix}.{}", e.field)
                    };
                    e
                }));
                None
            }
        }
    }

    /// Checks that the amounts of a resource list are not negative.
    pub(crate) fn quantities(&mut self, at: &Path, amounts: &Value) {
        for (name, amount) in amounts.as_object().into_iter().flatten() {
            if is_negative(amount) {
                self.invalid(&at.key(name), amount, NOT_NEGATIVE);
            }
        }
    }
}

/// Whether an amount is below zero. The sign of a canonical amount comes first.
pub(crate) fn is_negative(amount: &Value) -> bool {
    match amount {
        Value::String(s) => s.trim_start().starts_with('-'),
        other => other.as_f64().is_some_and(|n| n < 0.0),
    }
}

/// Parses an amount.
pub(crate) fn quantity(amount: &Value) -> Option<Quantity> {
    match amount {
        Value::String(s) => Quantity::parse(s).ok(),
        other => Quantity::parse(&other.to_string()).ok(),
    }
}

/// Whether a parsed selector selects the labels.
pub(crate) fn selects(selector: &LabelSelector, labels: &Value) -> bool {
    selector.matches(|key| labels.get(key).and_then(Value::as_str))
}

/// Whether a label selector object has no requirements.
pub(crate) fn selects_all(selector: &Value) -> bool {
    entries(selector, "matchLabels").next().is_none()
        && super::value::list(selector, "matchExpressions").is_empty()
}

/// `metadata.name`.
pub(crate) fn name(object: &Value) -> &str {
    text(object, "metadata.name")
}
