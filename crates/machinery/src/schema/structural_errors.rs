//! Errors of the schema of a CustomResourceDefinition (AS-039; spec 6.1).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use regex::Regex;
use serde_json::{Map, Value};

use super::types::MAX_DEPTH;
use super::{Schema, validations};
use crate::field::{Error, Errors, Path};

type Props = Map<String, Value>;

/// Most regular expressions in the schemas of one definition; each takes up to some ten milliseconds to compile. Equal
/// ones count once.
pub const PATTERNS_MAX: usize = 1000;

/// The compiled regular expressions of one definition, or their errors. While this exists, they are not compiled
/// again.
#[derive(Debug, Default)]
pub struct Patterns(HashMap<String, Result<Arc<Regex>, String>>);

impl Patterns {
    /// The error of a pattern.
    fn fault(&mut self, pattern: &str) -> Option<String> {
        if let Some(known) = self.0.get(pattern) {
            return known.as_ref().err().cloned();
        }
        if self.0.len() >= PATTERNS_MAX {
            return Some(format!("the definition has more than {PATTERNS_MAX} different patterns"));
        }
        let compiled = validations::compile(pattern)
            .map_err(|fault| format!("must be a valid regular expression, but isn't: {fault}"));
        let fault = compiled.as_ref().err().cloned();
        self.0.insert(pattern.to_owned(), compiled);
        fault
    }
}

/// Errors of an `openAPIV3Schema` at `path`. CEL rules have their own check ([`crate::rules::compile`]). Pass the same
/// `patterns` for all schemas of a definition.
pub fn structural_errors(openapi: &Value, path: &Path, patterns: &mut Patterns) -> Vec<Error> {
    let Some(root) = openapi.as_object() else { return vec![Error::required(path, "")] };
    let mut errors = Errors::default();
    if flag(root, "nullable") {
        errors.push(Error::forbidden(&path.child("nullable"), "nullable cannot be true at the root"));
    }
    let mut generic = KeywordChecks { errors: &mut errors, unstructured: false, patterns };
    generic.schema(root, path, 0);
    if generic.unstructured {
        return errors.into_vec();
    }
    let before = errors.len();
    structure(root, path, Level::Root, &mut errors, 0);
    if errors.len() == before {
        defaults(root, path, &mut errors, 0);
    }
    errors.into_vec()
}

fn flag(props: &Props, key: &str) -> bool {
    props.get(key).and_then(Value::as_bool).unwrap_or_default()
}

fn text<'p>(props: &'p Props, key: &str) -> &'p str {
    props.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn properties(props: &Props) -> impl Iterator<Item = (&String, &Props)> {
    let all = props.get("properties").and_then(Value::as_object).into_iter().flatten();
    all.filter_map(|(name, one)| Some((name, one.as_object()?)))
}

fn property<'p>(props: &'p Props, name: &str) -> Option<&'p Props> {
    object(object(props, "properties")?, name)
}

fn object<'p>(props: &'p Props, key: &str) -> Option<&'p Props> {
    props.get(key).and_then(Value::as_object)
}

/// The schemas inside `allOf`, `anyOf`, `oneOf` and `not`, with their paths.
fn junctors<'p>(props: &'p Props, path: &Path) -> Vec<(Path, &'p Props)> {
    let mut out = Vec::new();
    for key in ["allOf", "anyOf", "oneOf"] {
        for (index, one) in props.get(key).and_then(Value::as_array).into_iter().flatten().enumerate() {
            out.extend(one.as_object().map(|one| (path.child(key).index(index), one)));
        }
    }
    out.extend(object(props, "not").map(|one| (path.child("not"), one)));
    out
}

/// Checks of every schema, also inside junctors.
struct KeywordChecks<'e> {
    errors: &'e mut Errors,
    patterns: &'e mut Patterns,
    /// A keyword occurs that structural schemas cannot have.
    unstructured: bool,
}

impl KeywordChecks<'_> {
    fn schema(&mut self, props: &Props, path: &Path, depth: usize) {
        if depth > MAX_DEPTH {
            self.errors.push(Error::forbidden(path, "nested too deep"));
            self.unstructured = true;
            return;
        }
        for key in ["$ref", "definitions", "dependencies", "id", "additionalItems", "patternProperties"] {
            let given = props.get(key).is_some_and(|v| !v.is_null() && v.as_str() != Some(""));
            if given {
                self.errors.push(Error::forbidden(&path.child(key), &format!("{key} is not supported")));
                self.unstructured = true;
            }
        }
        if flag(props, "uniqueItems") {
            let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.errors.push(Error::forbidden(&path.child("uniqueItems"), why));
        }
        self.additional(props, path);
        self.kind(props, path);
        if let Some(pattern) = props.get("pattern").and_then(Value::as_str)
            && let Some(fault) = self.patterns.fault(pattern)
        {
            self.errors.push(Error::invalid_str(&path.child("pattern"), pattern, &fault));
        }
        if props.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
            let at = path.child("x-kubernetes-preserve-unknown-fields");
            self.errors.push(Error::invalid(&at, &Value::Bool(false), "must be true or undefined"));
        }
        self.list(props, path);
        self.map(props, path);
        for (name, one) in properties(props) {
            self.schema(one, &path.child("properties").key(name), depth + 1);
        }
        if let Some(items) = object(props, "items") {
            self.schema(items, &path.child("items"), depth + 1);
        }
        if props.get("items").is_some_and(Value::is_array) {
            let why = "items must be a schema object and not an array";
            self.errors.push(Error::forbidden(&path.child("items"), why));
            self.unstructured = true;
        }
        if let Some(additional) = object(props, "additionalProperties") {
            self.schema(additional, &path.child("additionalProperties"), depth + 1);
        }
        for (at, one) in junctors(props, path) {
            self.schema(one, &at, depth + 1);
        }
    }

    fn additional(&mut self, props: &Props, path: &Path) {
        let at = path.child("additionalProperties");
        match props.get("additionalProperties") {
            None | Some(Value::Null) => {}
            Some(Value::Bool(false)) => {
                let why = "additionalProperties cannot be set to false";
                self.errors.push(Error::forbidden(&at, why));
            }
            Some(_) if object(props, "properties").is_some_and(|p| !p.is_empty()) => {
                let why = "additionalProperties and properties are mutual exclusive";
                self.errors.push(Error::forbidden(&at, why));
            }
            Some(_) => {}
        }
    }

    fn kind(&mut self, props: &Props, path: &Path) {
        const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
        match text(props, "type") {
            "" => {}
            "null" => {
                let why = "type cannot be set to null, use nullable as an alternative";
                self.errors.push(Error::forbidden(&path.child("type"), why));
            }
            kind if !TYPES.contains(&kind) => {
                self.errors.push(Error::not_supported(&path.child("type"), &Value::from(kind), &TYPES));
            }
            _ => {}
        }
    }

    fn list(&mut self, props: &Props, path: &Path) {
        let kind = text(props, "x-kubernetes-list-type");
        let keys_at = path.child("x-kubernetes-list-map-keys");
        let keys = props.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
        let names: Vec<&str> = keys.into_iter().flatten().filter_map(Value::as_str).collect();
        if !kind.is_empty() && text(props, "type") != "array" {
            let why = "must be array if x-kubernetes-list-type is specified";
            self.errors.push(Error::invalid_str(&path.child("type"), text(props, "type"), why));
        }
        if !names.is_empty() && kind != "map" {
            let at = path.child("x-kubernetes-list-type");
            let why = "must be map if x-kubernetes-list-map-keys is non-empty";
            self.errors.push(if kind.is_empty() {
                Error::required(&at, why)
            } else {
                Error::invalid_str(&at, kind, why)
            });
        }
        match kind {
            "" | "atomic" => {}
            "set" => self.set(props, path),
            "map" if names.is_empty() => {
                let why = "must not be empty if x-kubernetes-list-type is map";
                self.errors.push(Error::required(&keys_at, why));
            }
            "map" => self.keyed(props, path, &names),
            other => {
                let at = path.child("x-kubernetes-list-type");
                self.errors.push(Error::not_supported(&at, &Value::from(other), &["atomic", "map", "set"]));
            }
        }
    }

    fn set(&mut self, props: &Props, path: &Path) {
        let at = path.child("items");
        let Some(items) = object(props, "items") else {
            return self
                .errors
                .push(Error::required(&at, "must have a schema if x-kubernetes-list-type is set"));
        };
        if flag(items, "nullable") {
            let why = "cannot be nullable when x-kubernetes-list-type is set";
            self.errors.push(Error::forbidden(&at.child("nullable"), why));
        }
        let (mark, wrong) = match text(items, "type") {
            "object" => ("x-kubernetes-map-type", text(items, "x-kubernetes-map-type") != "atomic"),
            "array" => {
                ("x-kubernetes-list-type", !matches!(text(items, "x-kubernetes-list-type"), "" | "atomic"))
            }
            _ => return,
        };
        if wrong {
            let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
            let given = text(items, mark);
            self.errors.push(if given.is_empty() {
                Error::invalid_nil(&at.child(mark), why)
            } else {
                Error::invalid_str(&at.child(mark), given, why)
            });
        }
    }

    fn keyed(&mut self, props: &Props, path: &Path, names: &[&str]) {
        let at = path.child("items");
        let keys_at = path.child("x-kubernetes-list-map-keys");
        let Some(items) = object(props, "items") else {
            return self
                .errors
                .push(Error::required(&at, "must have a schema if x-kubernetes-list-type is map"));
        };
        if flag(items, "nullable") {
            let why = "cannot be nullable when x-kubernetes-list-type is map";
            self.errors.push(Error::forbidden(&at.child("nullable"), why));
        }
        if text(items, "type") != "object" {
            let why = "must be object if parent array's x-kubernetes-list-type is map";
            self.errors.push(Error::invalid_str(&at.child("type"), text(items, "type"), why));
        }
        let required: HashSet<&str> = items
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let mut seen = HashSet::new();
        for (index, name) in names.iter().enumerate() {
            if !seen.insert(*name) {
                self.errors.push(Error::duplicate(&keys_at.index(index), &Value::from(*name)));
                continue;
            }
            let Some(key) = property(items, name) else {
                let why = "entries must all be names of item properties";
                self.errors.push(Error::invalid(&keys_at.index(index), &Value::from(*name), why));
                continue;
            };
            let key_at = at.child("properties").key(name);
            if matches!(text(key, "type"), "object" | "array") {
                let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                self.errors.push(Error::invalid_str(&key_at.child("type"), text(key, "type"), why));
            }
            if flag(key, "nullable") {
                let why = "cannot be nullable when it is a key of a list with x-kubernetes-list-type map";
                self.errors.push(Error::forbidden(&key_at.child("nullable"), why));
            }
            if !key.contains_key("default") && !required.contains(name) {
                let why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
                self.errors.push(Error::required(&key_at.child("default"), why));
            }
        }
    }

    fn map(&mut self, props: &Props, path: &Path) {
        let kind = text(props, "x-kubernetes-map-type");
        if kind.is_empty() {
            return;
        }
        if text(props, "type") != "object" {
            let why = "must be object if x-kubernetes-map-type is specified";
            self.errors.push(Error::invalid_str(&path.child("type"), text(props, "type"), why));
        }
        if !matches!(kind, "atomic" | "granular") {
            let at = path.child("x-kubernetes-map-type");
            self.errors.push(Error::not_supported(&at, &Value::from(kind), &["atomic", "granular"]));
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Field,
    Item,
}

/// Checks that a schema is structural.
fn structure(props: &Props, path: &Path, level: Level, errors: &mut Errors, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    kind(props, path, level, errors);
    let type_at = path.child("type");
    let kind = text(props, "type");
    if flag(props, "x-kubernetes-embedded-resource") {
        let why = "must be object if x-kubernetes-embedded-resource is true";
        match kind {
            "object" => {}
            "" => errors.push(Error::required(&type_at, why)),
            other => errors.push(Error::invalid_str(&type_at, other, why)),
        }
        if properties(props).next().is_none() && !flag(props, "x-kubernetes-preserve-unknown-fields") {
            let why = "must not be empty if x-kubernetes-embedded-resource is true without \
                       x-kubernetes-preserve-unknown-fields";
            errors.push(Error::required(&path.child("properties"), why));
        }
    }
    if level == Level::Root || flag(props, "x-kubernetes-embedded-resource") {
        metadata(props, path, errors);
    }
    if kind == "array" && object(props, "items").is_none() {
        errors.push(Error::required(&path.child("items"), "must be specified"));
    }
    for (at, one) in junctors(props, path) {
        value_only(one, &at, flag(props, "x-kubernetes-int-or-string"), errors, depth + 1);
        complete(one, props, &at, path, errors, depth + 1);
    }
    for (name, one) in properties(props) {
        // The type of metadata is fixed; its schema was checked above.
        if level == Level::Root && name == "metadata" {
            continue;
        }
        structure(one, &path.child("properties").key(name), Level::Field, errors, depth + 1);
    }
    if let Some(items) = object(props, "items") {
        structure(items, &path.child("items"), Level::Item, errors, depth + 1);
    }
    if let Some(additional) = object(props, "additionalProperties") {
        structure(additional, &path.child("additionalProperties"), Level::Field, errors, depth + 1);
    }
}

fn kind(props: &Props, path: &Path, level: Level, errors: &mut Errors) {
    let at = path.child("type");
    let int_or_string = flag(props, "x-kubernetes-int-or-string");
    match text(props, "type") {
        "" if flag(props, "x-kubernetes-preserve-unknown-fields") => {}
        "" if level == Level::Root => errors.push(Error::required(&at, "must not be empty at the root")),
        "" if int_or_string => {}
        "" => {
            let what = if level == Level::Item { "array items" } else { "object fields" };
            errors.push(Error::required(&at, &format!("must not be empty for specified {what}")));
        }
        "object" => {}
        other if level == Level::Root => {
            errors.push(Error::invalid_str(&at, other, "must be object at the root"));
        }
        _ => {}
    }
    if int_or_string {
        if level == Level::Root {
            let at = path.child("x-kubernetes-int-or-string");
            errors.push(Error::invalid(&at, &Value::Bool(true), "must be false at the root"));
        } else if !text(props, "type").is_empty() {
            let why = "must be empty if x-kubernetes-int-or-string is true";
            errors.push(Error::forbidden(&at, why));
        }
    }
}

/// Checks the few things that a schema may say about metadata.
fn metadata(props: &Props, path: &Path, errors: &mut Errors) {
    for (name, one) in properties(props) {
        let at = path.child("properties").key(name);
        match name.as_str() {
            "apiVersion" | "kind" if text(one, "type") != "string" => {
                errors.push(Error::invalid_str(&at.child("type"), text(one, "type"), "must be string"));
            }
            "metadata" => {
                if text(one, "type") != "object" {
                    errors.push(Error::invalid_str(&at.child("type"), text(one, "type"), "must be object"));
                }
                let allowed = ["type", "description", "title", "properties"];
                let only_names = one.iter().all(|(key, _)| allowed.contains(&key.as_str()))
                    && properties(one).all(|(key, _)| matches!(key.as_str(), "name" | "generateName"));
                if !only_names {
                    let why = "must not specify anything other than name and generateName, but metadata is implicitly specified";
                    errors.push(Error::forbidden(&at, why));
                }
            }
            _ => {}
        }
    }
}

/// Checks that schemas inside junctors have value validations only.
fn value_only(props: &Props, path: &Path, int_or_string: bool, errors: &mut Errors, depth: usize) {
    const FORBIDDEN: [(&str, &str); 12] = [
        ("type", "must be empty to be structural"),
        ("title", "must be empty to be structural"),
        ("description", "must be empty to be structural"),
        ("default", "must be undefined to be structural"),
        ("nullable", "must be false to be structural"),
        ("additionalProperties", "must be undefined to be structural"),
        ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
        ("x-kubernetes-embedded-resource", "must be false to be structural"),
        ("x-kubernetes-int-or-string", "must be false to be structural"),
        ("x-kubernetes-list-map-keys", "must be empty to be structural"),
        ("x-kubernetes-list-type", "must be undefined to be structural"),
        ("x-kubernetes-map-type", "must be undefined to be structural"),
    ];
    if depth > MAX_DEPTH {
        return;
    }
    for (key, why) in FORBIDDEN {
        let given = match props.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::String(text)) => !text.is_empty() || key == "default",
            Some(_) => true,
        };
        // `x-kubernetes-int-or-string` has one allowed form in `anyOf`.
        let allowed = key == "type" && int_or_string && matches!(text(props, "type"), "integer" | "string");
        if given && !allowed {
            errors.push(Error::forbidden(&path.child(key), why));
        }
    }
    for (name, one) in properties(props) {
        value_only(one, &path.child("properties").key(name), false, errors, depth + 1);
    }
    if let Some(items) = object(props, "items") {
        value_only(items, &path.child("items"), false, errors, depth + 1);
    }
    for (at, one) in junctors(props, path) {
        value_only(one, &at, int_or_string, errors, depth + 1);
    }
}

/// Checks that fields inside junctors are declared outside.
fn complete(
    inner: &Props,
    outer: &Props,
    inner_at: &Path,
    outer_at: &Path,
    errors: &mut Errors,
    depth: usize,
) {
    if depth > MAX_DEPTH {
        return;
    }
    for (name, one) in properties(inner) {
        let mentioned = inner_at.child("properties").key(name);
        let declared_at = outer_at.child("properties").key(name);
        match property(outer, name).or_else(|| object(outer, "additionalProperties")) {
            Some(declared) => complete(one, declared, &mentioned, &declared_at, errors, depth + 1),
            None => errors.push(undeclared(&declared_at, &mentioned)),
        }
    }
    if let Some(items) = object(inner, "items") {
        let mentioned = inner_at.child("items");
        let declared_at = outer_at.child("items");
        match object(outer, "items") {
            Some(declared) => complete(items, declared, &mentioned, &declared_at, errors, depth + 1),
            None => errors.push(undeclared(&declared_at, &mentioned)),
        }
    }
    for (at, one) in junctors(inner, inner_at) {
        complete(one, outer, &at, outer_at, errors, depth + 1);
    }
}

fn undeclared(at: &Path, mentioned: &Path) -> Error {
    Error::required(at, &format!("because it is defined in {mentioned}"))
}

/// Checks that defaults fit their schema.
fn defaults(props: &Props, path: &Path, errors: &mut Errors, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    if let Some(default) = props.get("default").filter(|d| !d.is_null()) {
        let at = path.child("default");
        if let Ok(schema) = Schema::node_of(props) {
            let mut pruned = default.clone();
            if schema.prune(&mut pruned).is_empty() {
                errors.extend(schema.validate_part(&pruned, None, &at.to_string()));
            } else {
                errors.push(Error::invalid(&at, default, "must be pruned"));
            }
        }
    }
    for (name, one) in properties(props) {
        if depth == 0 && name == "metadata" {
            continue;
        }
        defaults(one, &path.child("properties").key(name), errors, depth + 1);
    }
    if let Some(items) = object(props, "items") {
        defaults(items, &path.child("items"), errors, depth + 1);
    }
    if let Some(additional) = object(props, "additionalProperties") {
        defaults(additional, &path.child("additionalProperties"), errors, depth + 1);
    }
}
