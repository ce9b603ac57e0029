//! Value validations of a schema, parsed once.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use regex::Regex;
use serde_json::{Map, Number, Value};

use super::types::{MAX_DEPTH, Type};

/// Bound on the compiled size of one pattern, in bytes.
const REGEX_SIZE: usize = 1 << 20;

/// The validations of one value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Validations {
    pub(crate) format: Option<String>,
    pub(crate) allowed: Option<EnumValues>,
    pub(crate) pattern: Option<Pattern>,
    pub(crate) minimum: Option<(Number, bool)>,
    pub(crate) maximum: Option<(Number, bool)>,
    pub(crate) multiple_of: Option<Number>,
    pub(crate) length: Range,
    pub(crate) items: Range,
    pub(crate) properties: Range,
    pub(crate) unique: bool,
    pub(crate) required: Vec<String>,
    pub(crate) all_of: Vec<NestedSchema>,
    pub(crate) any_of: Vec<NestedSchema>,
    pub(crate) one_of: Vec<NestedSchema>,
    pub(crate) not: Option<Box<NestedSchema>>,
    pub(crate) rules: Vec<Rule>,
}

/// A regular expression. It is compiled on first use, because definitions may have hundreds and each takes
/// milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    pub(crate) source: String,
    compiled: OnceLock<Option<Arc<Regex>>>,
}

impl Pattern {
    fn new(source: &str) -> Self {
        Self { source: source.to_owned(), compiled: OnceLock::new() }
    }

    /// Whether a text matches. Nothing matches a pattern that does not compile; definitions cannot have one.
    pub(crate) fn fits(&self, text: &str) -> bool {
        self.compiled().is_some_and(|pattern| pattern.is_match(text))
    }

    fn compiled(&self) -> Option<&Regex> {
        self.compiled.get_or_init(|| compile(&self.source).ok()).as_deref()
    }
}

/// The values of an `enum`.
#[derive(Clone, Debug)]
pub(crate) struct EnumValues {
    pub(crate) values: Vec<Value>,
    texts: HashSet<String>,
    /// Whole numbers.
    whole: HashSet<i64>,
    /// The bits of numbers as [`f64`]: of whole numbers, and of others.
    whole_bits: HashSet<u64>,
    other_bits: HashSet<u64>,
    /// Lists, objects, booleans and null.
    rest: HashSet<Value>,
}

impl EnumValues {
    fn new(values: Vec<Value>) -> Self {
        let mut out = Self {
            texts: HashSet::new(),
            whole: HashSet::new(),
            whole_bits: HashSet::new(),
            other_bits: HashSet::new(),
            rest: HashSet::new(),
            values: Vec::new(),
        };
        for value in &values {
            match value {
                Value::String(text) => drop(out.texts.insert(text.clone())),
                Value::Number(number) => match number.as_i64() {
                    Some(whole) => {
                        out.whole.insert(whole);
                        out.whole_bits.insert(bits(number));
                    }
                    None => drop(out.other_bits.insert(bits(number))),
                },
                other => drop(out.rest.insert(other.clone())),
            }
        }
        Self { values, ..out }
    }

    /// Whether the value is in the enum. `1` and `1.0` are equal.
    pub(crate) fn has(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.texts.contains(text),
            Value::Number(number) => match number.as_i64() {
                Some(whole) => self.whole.contains(&whole) || self.other_bits.contains(&bits(number)),
                None => {
                    let bits = bits(number);
                    self.whole_bits.contains(&bits) || self.other_bits.contains(&bits)
                }
            },
            other => self.rest.contains(other),
        }
    }
}

fn bits(number: &Number) -> u64 {
    let float = number.as_f64().unwrap_or_default();
    // Zero has two representations.
    if float == 0.0 { 0 } else { float.to_bits() }
}

/// Bounds of a size.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Range {
    pub(crate) min: Option<u64>,
    pub(crate) max: Option<u64>,
}

/// A schema inside `allOf`, `anyOf`, `oneOf` or `not`.
#[derive(Clone, Debug, Default)]
pub(crate) struct NestedSchema {
    pub(crate) kind: Type,
    pub(crate) checks: Validations,
    /// Sorted by name.
    pub(crate) fields: Vec<(String, NestedSchema)>,
    pub(crate) elements: Option<Box<NestedSchema>>,
    pub(crate) additional: Option<Box<NestedSchema>>,
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

impl Validations {
    /// Parses the validations; `None` if the schema has none.
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
        let subs = |key: &str| -> Result<Vec<NestedSchema>, String> {
            let list = definition.get(key).and_then(Value::as_array);
            list.into_iter().flatten().map(|one| NestedSchema::read(one, depth + 1)).collect()
        };
        Ok(Self {
            format: text("format").map(str::to_owned),
            allowed: definition
                .get("enum")
                .and_then(Value::as_array)
                .filter(|list| !list.is_empty())
                .map(|list| EnumValues::new(list.clone())),
            pattern: text("pattern").map(Pattern::new),
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
            not: definition
                .get("not")
                .map(|one| NestedSchema::read(one, depth + 1))
                .transpose()?
                .map(Box::new),
            rules: rules(definition.get("x-kubernetes-validations")),
        })
    }
}

impl Validations {
    /// Compiles all patterns.
    pub(super) fn prepare(&self) {
        if let Some(pattern) = &self.pattern {
            pattern.compiled();
        }
        for sub in self.all_of.iter().chain(&self.any_of).chain(&self.one_of).chain(self.not.as_deref()) {
            sub.prepare();
        }
    }
}

impl NestedSchema {
    fn prepare(&self) {
        self.checks.prepare();
        let inner = self.fields.iter().map(|(_, sub)| sub);
        inner.chain(self.elements.as_deref()).chain(self.additional.as_deref()).for_each(Self::prepare);
    }

    pub(super) fn field(&self, name: &str) -> Option<&Self> {
        let at = self.fields.binary_search_by(|(own, _)| own.as_str().cmp(name)).ok()?;
        self.fields.get(at).map(|(_, sub)| sub)
    }

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
            kind: Type::of(definition),
            checks: Validations::read(definition, depth)?,
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

/// Compiles a pattern, or returns the compiled one if it is in use elsewhere. Versions of a definition often share
/// patterns, and the parts of a schema are checked one by one.
pub(super) fn compile(pattern: &str) -> Result<Arc<Regex>, String> {
    static IN_USE: OnceLock<Mutex<HashMap<String, Weak<Regex>>>> = OnceLock::new();
    let in_use = || IN_USE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = in_use().get(pattern).and_then(Weak::upgrade) {
        return Ok(known);
    }
    let compiled = Arc::new(read(pattern)?);
    let mut all = in_use();
    // Drops unused patterns whenever the map would have to grow.
    if all.len() == all.capacity() {
        all.retain(|_, known| known.strong_count() > 0);
    }
    all.insert(pattern.to_owned(), Arc::downgrade(&compiled));
    Ok(compiled)
}

/// Compiles a pattern. Known errors are printed as in Go.
fn read(pattern: &str) -> Result<Regex, String> {
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
