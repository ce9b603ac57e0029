//! OpenAPI value validation of custom resources (AS-042; spec 6.3).

use std::cell::Cell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::formats;
use super::graph::{Graph, Id, Node, StackPath, Step, Type};
use super::old_elements::OldElements;
use super::types::ListType;
use super::validations::{NestedSchema, Range, Validations};
use crate::field::{self, Errors, Path};

/// Most errors of one validation.
const MAX_ERRORS: usize = 200;
/// Most steps of the validation of one object: visited values, once for each schema that applies to them. Clients
/// control the product of schemas inside junctors and of elements.
const STEPS_MAX: u64 = 50_000_000;
/// Bytes of text that a pattern matches in one step.
const BYTES_OF_A_STEP: u64 = 32;

pub(super) fn validate(
    graph: &Graph,
    id: Id,
    value: &Value,
    old: Option<&Value>,
    prefix: Option<&str>,
) -> Vec<field::Error> {
    let mut run = Run { graph, prefix, errors: Errors::default(), steps: Cell::new(0) };
    run.node(id, value, old, &StackPath::ROOT);
    run.lists(id, value, old, &StackPath::ROOT);
    if run.is_exhausted() {
        let why = format!("the object can't be validated in {STEPS_MAX} steps");
        run.errors.push(field::Error::forbidden(&run.base(), &why));
    }
    run.errors.into_vec()
}

struct Run<'g> {
    graph: &'g Graph,
    prefix: Option<&'g str>,
    errors: Errors,
    steps: Cell<u64>,
}

/// Errors of one value. Their number helps to choose the alternative that fits best.
type Faults = Errors;

impl Run<'_> {
    fn step(&self, cost: u64) {
        self.steps.set(self.steps.get().saturating_add(cost));
    }

    fn is_exhausted(&self) -> bool {
        self.steps.get() > STEPS_MAX
    }

    fn base(&self) -> Path {
        self.prefix.map_or_else(Path::root, Path::field)
    }

    fn path(&self, at: &StackPath) -> (Path, String) {
        let name = at.render(false);
        let base = self.base();
        (if name.is_empty() { base } else { base.child(&name) }, name)
    }

    fn node(&mut self, id: Id, value: &Value, old: Option<&Value>, at: &StackPath) {
        // Unchanged parts may stay invalid.
        self.step(1);
        if old == Some(value) || self.errors.len() > MAX_ERRORS || self.is_exhausted() {
            return;
        }
        let graph = self.graph;
        let node = graph.resolve(id).1;
        let mut faults = Faults::default();
        self.kind(node.kind, node.nullable, value, at, &mut faults);
        match &node.checks {
            Some(checks) => self.checks(checks, node.kind, value, at, &mut faults),
            None => self.range(node.kind, None, value, at, &mut faults),
        }
        self.errors.extend(faults);
        match value {
            Value::Object(map) => {
                for (key, one) in map {
                    let Some(child) = node.field(key).map(|f| f.node).or(node.additional) else { continue };
                    let before = old.and_then(|o| o.get(key));
                    self.node(child, one, before, &at.field(key));
                }
            }
            Value::Array(items) => {
                let Some(element) = node.items else { return };
                let old_elements = OldElements::new(graph, id, old);
                for (index, item) in items.iter().enumerate() {
                    self.node(element, item, old_elements.of(index, item), &at.index(index));
                }
            }
            _ => {}
        }
    }

    fn kind(&self, kind: Type, nullable: bool, value: &Value, at: &StackPath, faults: &mut Faults) {
        let wants = match kind {
            Type::Object => "object",
            Type::Array => "array",
            Type::String | Type::Bytes | Type::Time | Type::MicroTime | Type::Quantity => "string",
            Type::Integer | Type::Int32 | Type::Int64 => "integer",
            Type::Number => "number",
            Type::Boolean => "boolean",
            Type::IntOrString => "integer,string",
            Type::Any | Type::SchemaOrBool | Type::SchemaOrArray => return,
        };
        let got = type_name(value);
        let fits = wants.split(',').any(|one| one == got)
            || (got == "integer" && wants == "number")
            || (got == "null" && nullable);
        if !fits {
            let (path, name) = self.path(at);
            faults.push(field::Error::type_invalid(
                &path,
                got,
                &format!("{name} in body must be of type {wants}: {got:?}"),
            ));
        }
    }

    fn checks(&self, checks: &Validations, kind: Type, value: &Value, at: &StackPath, faults: &mut Faults) {
        if !value.is_null() {
            self.junctors(checks, value, at, faults);
            match value {
                Value::String(text) => self.string(checks, text, at, faults),
                Value::Number(_) => self.number(checks, kind, value, at, faults),
                Value::Array(items) => self.array(checks, items, at, faults),
                _ => {}
            }
        }
        if let Some(allowed) = &checks.allowed
            && !allowed.has(value)
        {
            let printed: Vec<String> = allowed
                .values
                .iter()
                .map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned))
                .collect();
            let printed: Vec<&str> = printed.iter().map(String::as_str).collect();
            faults.push(field::Error::not_supported(&self.path(at).0, value, &printed));
        }
        if let Value::Object(map) = value {
            self.object(checks, map, at, faults);
        }
    }

    fn string(&self, checks: &Validations, text: &str, at: &StackPath, faults: &mut Faults) {
        let invalid = |detail: String| {
            let (path, name) = self.path(at);
            field::Error::invalid_str(&path, text, &format!("{name} in body {detail}"))
        };
        let Range { min, max } = checks.length;
        if min.is_some() || max.is_some() {
            let length = text.chars().count() as u64;
            if let Some(max) = max.filter(|max| length > *max) {
                faults.push(field::Error::too_long(
                    &self.path(at).0,
                    usize::try_from(max).unwrap_or(usize::MAX),
                ));
            }
            if let Some(min) = min.filter(|min| length < *min) {
                faults.push(invalid(format!("should be at least {min} chars long")));
            }
        }
        if let Some(pattern) = &checks.pattern {
            self.step(text.len() as u64 / BYTES_OF_A_STEP);
            if !pattern.fits(text) {
                faults.push(invalid(format!("should match '{}'", pattern.source)));
            }
        }
        if let Some(format) = &checks.format
            && !formats::fits(format, text)
        {
            let (path, name) = self.path(at);
            let format = formats::print(format);
            let detail = format!("{name} in body must be of type {format}: {}", field::quote(text));
            faults.push(field::Error::type_invalid(&path, text, &detail));
        }
    }

    /// Checks for fractions of integers and for the range of the format.
    fn range(&self, kind: Type, format: Option<&str>, value: &Value, at: &StackPath, faults: &mut Faults) {
        let Value::Number(number) = value else { return };
        if kind != Type::Integer {
            return;
        }
        let fits = match (number.as_i64(), format) {
            (Some(int), Some("int32")) => i32::try_from(int).is_ok(),
            (Some(_), _) => true,
            (None, _) => number.as_f64().is_some_and(|f| f.fract() == 0.0),
        };
        if !fits {
            let with = match format {
                Some(format @ ("int32" | "int64")) => format!("with format {format}"),
                _ => "(default format)".to_owned(),
            };
            let name = at.render(false);
            faults.push(field::Error::invalid_str(
                &self.base(),
                "",
                &format!("Checked value must be of type integer {with} in {name}"),
            ));
        }
    }

    fn number(&self, checks: &Validations, kind: Type, value: &Value, at: &StackPath, faults: &mut Faults) {
        self.range(kind, checks.format.as_deref(), value, at, faults);
        let invalid = |detail: String| {
            let (path, name) = self.path(at);
            field::Error::invalid(&path, value, &format!("{name} in body should be {detail}"))
        };
        let below = |a: &Value, b: &Value| compare(a, b) == Some(std::cmp::Ordering::Less);
        if let Some(factor) = &checks.multiple_of
            && !multiple(value, factor.as_f64().unwrap_or_default())
        {
            faults.push(invalid(format!("a multiple of {factor}")));
        }
        if let Some((limit, exclusive)) = &checks.maximum {
            let bound = Value::Number(limit.clone());
            if below(&bound, value) || (*exclusive && equal(&bound, value)) {
                let or = if *exclusive { "" } else { " or equal to" };
                faults.push(invalid(format!("less than{or} {}", print_number(&bound))));
            }
        }
        if let Some((limit, exclusive)) = &checks.minimum {
            let bound = Value::Number(limit.clone());
            if below(value, &bound) || (*exclusive && equal(&bound, value)) {
                let or = if *exclusive { "" } else { " or equal to" };
                faults.push(invalid(format!("greater than{or} {}", print_number(&bound))));
            }
        }
    }

    fn array(&self, checks: &Validations, items: &[Value], at: &StackPath, faults: &mut Faults) {
        let length = items.len() as u64;
        if let Some(min) = checks.items.min.filter(|min| length < *min) {
            let (path, name) = self.path(at);
            let detail = format!("{name} in body should have at least {min} items");
            faults.push(field::Error::invalid(&path, &Value::from(length), &detail));
        }
        if let Some(max) = checks.items.max.filter(|max| length > *max) {
            let max = usize::try_from(max).unwrap_or(usize::MAX);
            faults.push(field::Error::too_many(&self.path(at).0, items.len(), max));
        }
        if checks.unique {
            let mut seen = BTreeSet::new();
            if !items.iter().all(|one| seen.insert(one.to_string())) {
                let (path, name) = self.path(at);
                let detail = format!("{name} in body shouldn't contain duplicates");
                faults.push(field::Error::invalid_str(&path, "", &detail));
            }
        }
    }

    fn object(&self, checks: &Validations, map: &Map<String, Value>, at: &StackPath, faults: &mut Faults) {
        let size = map.len() as u64;
        if let Some(min) = checks.properties.min.filter(|min| size < *min) {
            let (path, name) = self.path(at);
            let detail = format!("{name} in body should have at least {min} properties");
            faults.push(field::Error::invalid(&path, &Value::from(size), &detail));
        }
        if let Some(max) = checks.properties.max.filter(|max| size > *max) {
            let max = usize::try_from(max).unwrap_or(usize::MAX);
            faults.push(field::Error::too_many(&self.path(at).0, map.len(), max));
        }
        for name in &checks.required {
            if faults.len() > MAX_ERRORS {
                return;
            }
            if !map.contains_key(name) {
                faults.push(field::Error::required(&self.path(&at.field(name)).0, ""));
            }
        }
    }

    fn junctors(&self, checks: &Validations, value: &Value, at: &StackPath, faults: &mut Faults) {
        let tell = |text: String, faults: &mut Faults| {
            faults.push(field::Error::invalid_str(&self.base(), "", &text));
        };
        if !checks.any_of.is_empty() {
            let (valid, best) = self.alternatives(&checks.any_of, value, at);
            if valid == 0 {
                tell(format!("{:?} must validate at least one schema (anyOf)", at.render(false)), faults);
                faults.extend(best);
            }
        }
        if !checks.one_of.is_empty() {
            let (valid, best) = self.alternatives(&checks.one_of, value, at);
            if valid != 1 {
                let found = if valid == 0 {
                    "Found none valid".to_owned()
                } else {
                    format!("Found {valid} valid alternatives")
                };
                let name = at.render(false);
                tell(format!("{name:?} must validate one and only one schema (oneOf). {found}"), faults);
                if valid == 0 {
                    faults.extend(best);
                }
            }
        }
        if !checks.all_of.is_empty() {
            let mut valid = 0;
            for sub in &checks.all_of {
                let mut inner = Faults::default();
                self.sub(sub, value, at, &mut inner);
                valid += usize::from(inner.is_empty());
                faults.extend(inner);
            }
            if valid != checks.all_of.len() {
                let none = if valid == 0 { ". None validated" } else { "" };
                tell(format!("{:?} must validate all the schemas (allOf){none}", at.render(false)), faults);
            }
        }
        if let Some(not) = &checks.not {
            let mut inner = Faults::default();
            self.sub(not, value, at, &mut inner);
            if inner.is_empty() {
                tell(format!("{:?} must not validate the schema (not)", at.render(false)), faults);
            }
        }
    }

    /// The number of matching alternatives, and the errors of the one that fits best.
    fn alternatives(&self, subs: &[NestedSchema], value: &Value, at: &StackPath) -> (usize, Faults) {
        let mut valid = 0;
        let mut best: Option<Faults> = None;
        for sub in subs {
            let mut inner = Faults::default();
            self.sub(sub, value, at, &mut inner);
            if inner.is_empty() {
                valid += 1;
            } else if best.is_none() {
                best = Some(inner);
            }
        }
        (valid, best.unwrap_or_default())
    }

    fn sub(&self, sub: &NestedSchema, value: &Value, at: &StackPath, faults: &mut Faults) {
        self.step(1);
        if faults.len() > MAX_ERRORS || self.is_exhausted() {
            return;
        }
        if sub.kind != Type::Any {
            self.kind(sub.kind, sub.nullable, value, at, faults);
        }
        self.checks(&sub.checks, sub.kind, value, at, faults);
        match value {
            Value::Object(map) => {
                if !sub.fields.is_empty() {
                    for (key, one) in map {
                        if let Some(inner) = sub.field(key) {
                            self.sub(inner, one, &at.field(key), faults);
                        }
                    }
                }
                if let Some(additional) = &sub.additional {
                    for (key, one) in map.iter().filter(|(key, _)| sub.field(key).is_none()) {
                        self.sub(additional, one, &at.field(key), faults);
                    }
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    if let Some(element) = &sub.elements {
                        self.sub(element, item, &at.index(index), faults);
                    }
                }
            }
            _ => {}
        }
    }

    /// Checks that elements of sets and keys of keyed lists are unique.
    fn lists(&mut self, id: Id, value: &Value, old: Option<&Value>, at: &StackPath) {
        if old == Some(value) {
            return;
        }
        let graph = self.graph;
        let node = graph.resolve(id).1;
        match value {
            Value::Object(map) => {
                for (key, one) in map {
                    let Some(child) = node.field(key).map(|f| f.node).or(node.additional) else { continue };
                    self.lists(child, one, old.and_then(|o| o.get(key)), &at.field(key));
                }
            }
            Value::Array(items) => {
                self.duplicates(graph.list_type(id), node, items, at);
                let Some(element) = node.items else { return };
                let old_elements = OldElements::new(graph, id, old);
                for (index, item) in items.iter().enumerate() {
                    self.lists(element, item, old_elements.of(index, item), &at.index(index));
                }
            }
            _ => {}
        }
    }

    fn duplicates(&mut self, list: ListType, node: &Node, items: &[Value], at: &StackPath) {
        let key_of = |item: &Value| match list {
            ListType::Map => item.as_object().map(|map| Value::Object(keys_of(self.graph, node, map))),
            ListType::Set => Some(item.clone()),
            ListType::Atomic => None,
        };
        let mut seen = BTreeSet::new();
        for (index, item) in items.iter().enumerate() {
            let Some(key) = key_of(item).filter(|_| !self.errors.is_full()) else { continue };
            if !seen.insert(key.to_string()) {
                self.errors.push(field::Error::duplicate(&self.list_path(&at.index(index)), &key));
            }
        }
    }

    /// The path of a list. Map keys are printed in brackets.
    fn list_path(&self, at: &StackPath) -> Path {
        let mut steps = Vec::new();
        let mut here = Some(at);
        while let Some(one) = here {
            steps.push(one.step);
            here = one.parent;
        }
        steps.into_iter().rev().fold(self.base(), |path, step| match step {
            Step::Root => path,
            Step::Field(name) => path.child(name),
            Step::Index(index) => path.index(index),
        })
    }
}

/// The keys of an element of a keyed list, with defaults.
fn keys_of(graph: &Graph, node: &Node, item: &Map<String, Value>) -> Map<String, Value> {
    let element = node.items.map(|id| graph.resolve(id).1);
    let mut keys = Map::new();
    for key in &node.list_keys {
        let default = || {
            let field = element?.field(key)?;
            graph.node(field.node).default.as_ref()
        };
        if let Some(value) = item.get(key).or_else(default) {
            keys.insert(key.clone(), value.clone());
        }
    }
    keys
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
        Value::Number(n) if n.is_i64() || n.is_u64() || n.as_f64().is_some_and(|f| f.fract() == 0.0) => {
            "integer"
        }
        Value::Number(_) => "number",
    }
}

fn compare(a: &Value, b: &Value) -> Option<std::cmp::Ordering> {
    match (a.as_i64(), b.as_i64()) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => a.as_f64()?.partial_cmp(&b.as_f64()?),
    }
}

/// JSON equality. `1` and `1.0` are equal.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(_), Value::Number(_)) => compare(a, b) == Some(std::cmp::Ordering::Equal),
        _ => a == b,
    }
}

fn multiple(value: &Value, factor: f64) -> bool {
    if factor == 0.0 {
        return true;
    }
    if factor.fract() == 0.0
        && let Some(int) = value.as_i64()
    {
        return int % (factor as i64) == 0;
    }
    let quotient = value.as_f64().unwrap_or_default() / factor;
    (quotient - quotient.round()).abs() < 1e-9
}

/// A value as Go prints it: whole floats without a fraction.
fn print_number(value: &Value) -> String {
    match value.as_f64() {
        Some(float) if float.fract() == 0.0 && float.abs() < 1e21 && value.as_i64().is_none() => {
            format!("{float}")
        }
        _ => value.to_string(),
    }
}
