//! What a schema of a custom resource demands of values, read once.

use regex::Regex;
use serde_json::{Map, Number, Value};

use super::graph::Type;
use super::structural::{MAX_DEPTH, kind};

/// Bound on the compiled size of one pattern.
const REGEX_SIZE: usize = 1 << 20;

/// Demands on one value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checks {
    pub(crate) format: Option<String>,
    pub(crate) allowed: Option<Vec<Value>>,
    pub(crate) pattern: Option<(String, Regex)>,
    pub(crate) minimum: Option<(Number, bool)>,
    pub(crate) maximum: Option<(Number, bool)>,
    pub(crate) multiple_of: Option<Number>,
    pub(crate) length: Range,
    pub(crate) items: Range,
    pub(crate) properties: Range,
    pub(crate) unique: bool,
    pub(crate) required: Vec<String>,
    pub(crate) all_of: Vec<Sub>,
    pub(crate) any_of: Vec<Sub>,
    pub(crate) one_of: Vec<Sub>,
    pub(crate) not: Option<Box<Sub>>,
    pub(crate) rules: Vec<Rule>,
}

/// Allowed sizes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Range {
    pub(crate) min: Option<u64>,
    pub(crate) max: Option<u64>,
}

/// A schema inside `allOf`, `anyOf`, `oneOf` or `not`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sub {
    pub(crate) kind: Type,
    pub(crate) checks: Checks,
    pub(crate) fields: Vec<(String, Sub)>,
    pub(crate) elements: Option<Box<Sub>>,
    pub(crate) additional: Option<Box<Sub>>,
    pub(crate) nullable: bool,
}

/// One entry of `x-kubernetes-validations`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rule {
    pub(crate) expression: String,
    pub(crate) message: String,
    pub(crate) message_expression: String,
    pub(crate) reason: String,
    pub(crate) field_path: String,
    pub(crate) optional_old_self: bool,
}

impl Checks {
    /// `None` when the definition demands nothing.
    pub(crate) fn parse(definition: &Map<String, Value>) -> Result<Option<Self>, String> {
        let checks = Self::read(definition, 0)?;
        let asks =
            ["format", "enum", "pattern", "minimum", "maximum", "multipleOf", "minLength", "maxLength"];
        let more = ["minItems", "maxItems", "minProperties", "maxProperties", "uniqueItems", "required"];
        let rest = ["allOf", "anyOf", "oneOf", "not", "x-kubernetes-validations"];
        let some = asks.iter().chain(&more).chain(&rest).any(|key| definition.contains_key(*key));
        Ok(some.then_some(checks))
    }

    fn read(definition: &Map<String, Value>, depth: usize) -> Result<Self, String> {
        if depth > MAX_DEPTH {
            return Err("nested too deep".to_owned());
        }
        let number = |key: &str| definition.get(key).and_then(Value::as_number).cloned();
        let count = |key: &str| definition.get(key).and_then(Value::as_u64);
        let flag = |key: &str| definition.get(key).and_then(Value::as_bool).unwrap_or_default();
        let text = |key: &str| definition.get(key).and_then(Value::as_str).filter(|s| !s.is_empty());
        let subs = |key: &str| -> Result<Vec<Sub>, String> {
            let list = definition.get(key).and_then(Value::as_array);
            list.into_iter().flatten().map(|one| Sub::read(one, depth + 1)).collect()
        };
        let pattern = match text("pattern") {
            Some(pattern) => Some((pattern.to_owned(), compile(pattern)?)),
            None => None,
        };
        Ok(Self {
            format: text("format").map(str::to_owned),
            allowed: definition.get("enum").and_then(Value::as_array).filter(|l| !l.is_empty()).cloned(),
            pattern,
            minimum: number("minimum").map(|n| (n, flag("exclusiveMinimum"))),
            maximum: number("maximum").map(|n| (n, flag("exclusiveMaximum"))),
            multiple_of: number("multipleOf"),
            length: Range { min: count("minLength"), max: count("maxLength") },
            items: Range { min: count("minItems"), max: count("maxItems") },
            properties: Range { min: count("minProperties"), max: count("maxProperties") },
            unique: flag("uniqueItems"),
            required: strings(definition.get("required")),
            all_of: subs("allOf")?,
            any_of: subs("anyOf")?,
            one_of: subs("oneOf")?,
            not: definition.get("not").map(|one| Sub::read(one, depth + 1)).transpose()?.map(Box::new),
            rules: rules(definition.get("x-kubernetes-validations")),
        })
    }
}

impl Sub {
    fn read(value: &Value, depth: usize) -> Result<Self, String> {
        let Some(definition) = value.as_object() else { return Err("a schema is not an object".to_owned()) };
        let mut fields = Vec::new();
        for (name, one) in definition.get("properties").and_then(Value::as_object).into_iter().flatten() {
            fields.push((name.clone(), Self::read(one, depth + 1)?));
        }
        let nested = |key: &str| -> Result<Option<Box<Self>>, String> {
            definition
                .get(key)
                .filter(|v| v.is_object())
                .map(|v| Self::read(v, depth + 1).map(Box::new))
                .transpose()
        };
        Ok(Self {
            kind: kind(definition),
            checks: Checks::read(definition, depth)?,
            fields,
            elements: nested("items")?,
            additional: nested("additionalProperties")?,
            nullable: definition.get("nullable").and_then(Value::as_bool).unwrap_or_default(),
        })
    }
}

fn strings(value: Option<&Value>) -> Vec<String> {
    value
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

pub(crate) fn rules(value: Option<&Value>) -> Vec<Rule> {
    let read = |one: &Value| {
        let text = |key: &str| one.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        Rule {
            expression: text("rule"),
            message: text("message"),
            message_expression: text("messageExpression"),
            reason: text("reason"),
            field_path: text("fieldPath"),
            optional_old_self: one.get("optionalOldSelf").and_then(Value::as_bool).unwrap_or_default(),
        }
    };
    value.and_then(Value::as_array).into_iter().flatten().map(read).collect()
}

/// Compiles a pattern; the fault is told in Go's words where they are known.
pub(super) fn compile(pattern: &str) -> Result<Regex, String> {
    regex::RegexBuilder::new(pattern).size_limit(REGEX_SIZE).build().map_err(|error| {
        let text = error.to_string();
        let fault = if text.contains("unclosed character class") {
            let from = pattern.rfind('[').unwrap_or_default();
            format!("missing closing ]: `{}`", pattern.get(from..).unwrap_or_default())
        } else if text.contains("unclosed group") {
            format!("missing closing ): `{pattern}`")
        } else if text.contains("unopened group") {
            format!("unexpected ): `{pattern}`")
        } else if text.contains("repetition operator missing expression") {
            let operator =
                pattern.find(['*', '+', '?']).and_then(|at| pattern.get(at..=at)).unwrap_or_default();
            format!("missing argument to repetition operator: `{operator}`")
        } else if text.contains("look-around") {
            "invalid or unsupported Perl syntax: `(?`".to_owned()
        } else if text.contains("backreferences") {
            "invalid escape sequence".to_owned()
        } else {
            text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
        };
        format!("error parsing regexp: {fault}")
    })
}
