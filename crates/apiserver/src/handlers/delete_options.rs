//! `DeleteOptions`, from the body or the query (spec 3.5).

use serde_json::Value;

use super::RequestContext;
use crate::codec::decode::parse_as;
use crate::error::ApiError;
use crate::request::{self, Query, dry_run, invalid_options};

/// A field, its type in Go, and whether a value fits it.
type FieldType = (&'static str, &'static str, fn(&Value) -> bool);

const TYPES: &[FieldType] = &[
    ("gracePeriodSeconds", "int64", Value::is_i64),
    ("orphanDependents", "bool", Value::is_boolean),
    ("propagationPolicy", "v1.DeletionPropagation", Value::is_string),
    ("dryRun", "[]string", Value::is_array),
    ("preconditions", "v1.Preconditions", Value::is_object),
];

/// The checked `DeleteOptions` of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    pub(super) grace: Option<i64>,
    pub(super) uid: Option<String>,
    pub(super) revision: Option<String>,
    pub(super) orphan_dependents: Option<bool>,
    pub(super) policy: Option<String>,
    pub(super) dry_run: bool,
}

impl DeleteOptions {
    /// Reads the options from the body, or from the query if the body is empty.
    ///
    /// # Errors
    /// 400, 415 or 422 for a body or options that are not valid.
    pub(super) fn parse(cx: &RequestContext<'_>, body: &[u8]) -> Result<Self, ApiError> {
        if body.is_empty() {
            return Self::from_query(cx.query);
        }
        Self::from_value(&parse_as(cx.headers, body, "DeleteOptions")?)
    }

    fn from_query(query: &Query) -> Result<Self, ApiError> {
        let mut errors = Vec::new();
        let dry_run = dry_run(query.all("dryRun").map(str::to_owned).collect(), &mut errors);
        let options = Self {
            grace: query.integer("gracePeriodSeconds")?,
            orphan_dependents: query.optional_flag("orphanDependents"),
            policy: query.get("propagationPolicy").map(str::to_owned),
            uid: query.get("uid").filter(|t| !t.is_empty()).map(str::to_owned),
            revision: query.get("resourceVersion").filter(|t| !t.is_empty()).map(str::to_owned),
            dry_run,
        };
        options.check(errors)
    }

    pub(super) fn from_value(value: &Value) -> Result<Self, ApiError> {
        for (key, wanted, fits) in TYPES {
            if let Some(given) = value.get(key).filter(|v| !v.is_null() && !fits(v)) {
                let kind = machinery::json::type_name(given);
                return Err(ApiError::bad_request(format!(
                    "json: cannot unmarshal {kind} into Go struct field DeleteOptions.{key} of type {wanted}"
                )));
            }
        }
        let mut errors = Vec::new();
        let directives = value.get("dryRun").and_then(Value::as_array).into_iter().flatten();
        let directives = directives.filter_map(|v| v.as_str().map(str::to_owned)).collect();
        let dry_run = dry_run(directives, &mut errors);
        let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let options = Self {
            grace: value.get("gracePeriodSeconds").and_then(Value::as_i64),
            uid: text("/preconditions/uid"),
            revision: text("/preconditions/resourceVersion"),
            orphan_dependents: value.get("orphanDependents").and_then(Value::as_bool),
            policy: text("/propagationPolicy"),
            dry_run,
        };
        options.check(errors)
    }

    fn check(self, mut errors: Vec<machinery::field::Error>) -> Result<Self, ApiError> {
        if let Some(policy) = &self.policy {
            if self.orphan_dependents.is_some() {
                let body = format!(
                    "Invalid value: {policy:?}: orphanDependents and deletionPropagation cannot be both set"
                );
                errors.push(request::option_error("propagationPolicy", "FieldValueInvalid", body));
            }
            if !matches!(policy.as_str(), "Foreground" | "Background" | "Orphan") {
                let body = format!(
                    "Unsupported value: {policy:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
                );
                errors.push(request::option_error("propagationPolicy", "FieldValueNotSupported", body));
            }
        }
        invalid_options("DeleteOptions", &errors)?;
        Ok(self)
    }
}
