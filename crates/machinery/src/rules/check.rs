//! Checks of the rules of a schema, when a definition is written.

use serde_json::{Map, Value};

use super::fields::undefined_field;
use super::program::Expression;
use super::steps;
use crate::cel::{SourceError, print_errors};
use crate::field::{Error, Path};
use crate::schema::Schema;
use crate::schema::validations::rules;

/// Deeper schemas are refused by other checks.
const MAX_DEPTH: usize = 64;

/// Errors of the rules of an `openAPIV3Schema` (AS-044; spec 6.4). `path` is the path of the schema. Costs are not
/// estimated; they are limited when rules run.
pub fn compile(openapi: &Value, path: &Path) -> Vec<Error> {
    let mut errors = Vec::new();
    if let Some(props) = openapi.as_object() {
        walk(props, path, None, true, &mut errors, 0);
    }
    errors
}

/// `loose` is the path below which elements cannot be correlated between versions.
fn walk(
    props: &Map<String, Value>,
    path: &Path,
    loose: Option<&Path>,
    root: bool,
    errors: &mut Vec<Error>,
    depth: usize,
) {
    if depth > MAX_DEPTH {
        return;
    }
    let rules = rules(props.get("x-kubernetes-validations"));
    if !rules.is_empty() {
        let schema = if root {
            Schema::structural(&Value::Object(props.clone()), "", "", "").ok()
        } else {
            Schema::node_of(props).ok()
        };
        for (index, rule) in rules.iter().enumerate() {
            let at = path.child("x-kubernetes-validations").index(index);
            one(rule, schema.as_ref(), &at, loose, errors);
        }
    }
    let child = |key: &str| props.get(key).and_then(Value::as_object);
    for (name, inner) in child("properties").into_iter().flatten() {
        if let Some(inner) = inner.as_object() {
            walk(inner, &path.child("properties").key(name), loose, false, errors, depth + 1);
        }
    }
    if let Some(inner) = child("items") {
        let here = path.child("items");
        let keyed = props.get("x-kubernetes-list-type").and_then(Value::as_str) == Some("map");
        let loose = loose.or(if keyed { None } else { Some(&here) });
        walk(inner, &here, loose, false, errors, depth + 1);
    }
    if let Some(inner) = child("additionalProperties") {
        walk(inner, &path.child("additionalProperties"), loose, false, errors, depth + 1);
    }
}

fn one(
    rule: &crate::schema::validations::Rule,
    schema: Option<&Schema>,
    at: &Path,
    loose: Option<&Path>,
    errors: &mut Vec<Error>,
) {
    const REASONS: [&str; 4] =
        ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
    let text = rule.expression.trim();
    if text.is_empty() {
        return errors.push(Error::required(&at.child("rule"), "rule is not specified"));
    }
    let broken = |text: &str| text.contains(['\n', '\r']);
    if !rule.message.is_empty() && rule.message.trim().is_empty() {
        let why = "message must be non-empty if specified";
        errors.push(Error::invalid_str(&at.child("message"), &rule.message, why));
    } else if broken(rule.message.trim()) {
        let why = "message must not contain line breaks";
        errors.push(Error::invalid_str(&at.child("message"), &rule.message, why));
    } else if broken(text) && rule.message.is_empty() {
        let why = "message must be specified if rule contains line breaks";
        errors.push(Error::required(&at.child("message"), why));
    }
    if !rule.message_expression.is_empty() && rule.message_expression.trim().is_empty() {
        let why = "must be non-empty if specified";
        errors.push(Error::required(&at.child("messageExpression"), why));
    }
    if !rule.reason.is_empty() && !REASONS.contains(&rule.reason.as_str()) {
        errors.push(Error::not_supported(&at.child("reason"), &Value::from(rule.reason.as_str()), &REASONS));
    }
    if !rule.field_path.is_empty() {
        field_path(&rule.field_path, schema, at, errors);
    }
    match Expression::compile(&rule.expression) {
        Err(fault) => errors.push(Error::invalid_str(&at.child("rule"), &rule.expression, &fault)),
        Ok(expression) => {
            if let Some(loose) = loose.filter(|_| expression.uses_old()) {
                let why = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {loose}"
                );
                errors.push(Error::invalid_str(&at.child("rule"), &rule.expression, &why));
            }
            if rule.optional_old_self && !expression.uses_old() {
                let why = "may not be set if oldSelf is not used in rule";
                errors.push(Error::invalid(&at.child("optionalOldSelf"), &Value::Bool(true), why));
            }
            if let Some(schema) = schema.filter(|_| !rule.optional_old_self)
                && let Some(name) = undefined_field(&expression, schema.graph(), schema.id())
            {
                let source = rule.expression.as_str();
                let place = source.find(&format!(".{name}")).unwrap_or_default();
                let fault = SourceError::at(source, place, format!("undefined field '{name}'"));
                let why = format!("compilation failed: {}", print_errors(source, vec![fault]));
                errors.push(Error::invalid_str(&at.child("rule"), &rule.expression, &why));
            }
        }
    }
    if !rule.message_expression.trim().is_empty()
        && let Err(fault) = Expression::compile(&rule.message_expression)
    {
        let fault = fault.replacen("compilation failed", "messageExpression compilation failed", 1);
        errors.push(Error::invalid_str(&at.child("messageExpression"), &rule.message_expression, &fault));
    }
}

fn field_path(field: &str, schema: Option<&Schema>, at: &Path, errors: &mut Vec<Error>) {
    let at = at.child("fieldPath");
    let why = |why: &str| Error::invalid_str(&at, field, &format!("fieldPath must be a valid path: {why}"));
    let Some(steps) = steps(field).filter(|s| !s.is_empty()) else {
        return errors.push(why("must be a JSON path that starts with a dot"));
    };
    let mut here = schema.cloned();
    for step in &steps {
        let Some(now) = here else { return };
        here = now.field(step).or_else(|| now.additional());
        if here.is_none() {
            return errors.push(why("does not refer to a valid field"));
        }
    }
}
