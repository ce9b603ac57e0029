//! CEL rules of custom resources: `x-kubernetes-validations` (AS-044; spec 6.4).

pub(crate) mod build;
mod check;
pub(crate) mod compiled;
mod fields;
mod identifier;
mod program;
mod query;
#[cfg(test)]
mod tests;
mod value;

use std::sync::Arc;

use kube_cel::cel::objects::OptionalValue;
use kube_cel::cel::{Context, Value as Cel};
use serde_json::Value;

pub use check::compile;
pub use query::{Answer, Query, QueryError};

use crate::cel::budget::{BUDGET, Spent};
use crate::cel::environment::environment;
use crate::cel::error_text;
use crate::field::{self, Path};
use crate::schema::Schema;
use crate::schema::graph::{Graph, Id, Type};
use crate::schema::old_elements::OldElements;
use crate::schema::validations::Rule;
use build::compiled;
use compiled::{CompiledRule, CompiledRules};

/// Cost limit of one run of a rule (`PerCallLimit` in Kubernetes).
const RULE_BUDGET: u64 = BUDGET;
/// Cost limit of all rules of one object (`RuntimeCELCostBudget` in Kubernetes).
const OBJECT_BUDGET: u64 = 10_000_000;
/// Longest message of a `messageExpression`, in bytes.
const MAX_MESSAGE: usize = 5 * 1024;

/// Whether the type has any rules.
pub fn has_rules(schema: &Schema) -> bool {
    !compiled(schema.graph()).rules.is_empty()
}

/// Whether any rule must run: the value that it is about exists and, on updates, has changed, or it is a transition
/// rule. Walks over the values that can have rules, which is far cheaper than running one.
pub fn any_applies(schema: &Schema, new: &Value, old: Option<&Value>) -> bool {
    let compiled = compiled(schema.graph());
    !compiled.rules.is_empty() && compiled.applies(schema.graph(), schema.id(), new, old)
}

/// Evaluates the rules of a custom resource or of a part of one. `old` is given on updates only: transition rules run,
/// and errors of unchanged values are dropped.
pub fn validate(schema: &Schema, new: &Value, old: Option<&Value>) -> Vec<field::Error> {
    validate_at(schema, new, old, &Path::root())
}

/// Like [`validate`] for a part of an object (`status`) at `path`.
pub fn validate_at(schema: &Schema, new: &Value, old: Option<&Value>, path: &Path) -> Vec<field::Error> {
    let compiled = compiled(schema.graph());
    let mut run = Evaluation {
        graph: schema.graph(),
        compiled: &compiled,
        budget: OBJECT_BUDGET,
        errors: Vec::new(),
        stopped: false,
    };
    run.node(schema.id(), new, old, path);
    run.errors
}

/// The whole validation of a custom resource: schema, unique list elements, and rules. Rules do not run on malformed
/// objects. `prefix` is the name of a part (`status`).
pub fn validate_object(
    schema: &Schema,
    new: &Value,
    old: Option<&Value>,
    prefix: Option<&str>,
) -> Vec<field::Error> {
    let mut errors = match (prefix, old) {
        (Some(prefix), old) => schema.validate_part(new, old, prefix),
        (None, Some(old)) => schema.validate_update(new, old),
        (None, None) => schema.validate(new),
    };
    if !has_rules(schema) {
        return errors;
    }
    let blocking = [
        "FieldValueNotSupported",
        "FieldValueRequired",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    ];
    if errors.iter().any(|e| blocking.contains(&e.reason())) {
        errors.push(field::Error::invalid_nil(
            &Path::root(),
            "some validation rules were not checked because the object was invalid; \
             correct the existing errors to complete validation",
        ));
        return errors;
    }
    errors.extend(validate_at(schema, new, old, &prefix.map_or_else(Path::root, Path::field)));
    errors
}

struct Evaluation<'g> {
    graph: &'g Graph,
    compiled: &'g CompiledRules,
    budget: u64,
    errors: Vec<field::Error>,
    stopped: bool,
}

impl Evaluation<'_> {
    fn node(&mut self, id: Id, value: &Value, old: Option<&Value>, path: &Path) {
        let (id, node) = self.graph.resolve(id);
        if self.stopped || value.is_null() || self.compiled.has_rules_below.get(id as usize) != Some(&true) {
            return;
        }
        self.rules(id, value, old, path);
        match value {
            Value::Object(map) => {
                for (key, one) in map {
                    let before = old.and_then(|o| o.get(key));
                    if let Some(field) = node.field(key) {
                        self.node(field.node, one, before, &path.child(key));
                    } else if let Some(element) = node.additional {
                        self.node(element, one, before, &path.key(key));
                    }
                }
            }
            Value::Array(items) => {
                let Some(element) = node.items else { return };
                let old_elements = OldElements::new(self.graph, id, old);
                for (index, item) in items.iter().enumerate() {
                    self.node(element, item, old_elements.of(index, item), &path.index(index));
                }
            }
            _ => {}
        }
    }

    fn rules(&mut self, id: Id, value: &Value, old: Option<&Value>, path: &Path) {
        let compiled = self.compiled;
        let Some(rules) = compiled.rules.get(&id) else { return };
        let unchanged = old == Some(value);
        let mut context: Option<Context> = None;
        for rule in rules.iter().filter(|rule| rule.applies(old, unchanged)) {
            let expression = match &rule.rule {
                Ok(expression) => expression,
                Err(fault) => {
                    let detail = format!("rule compile error: {fault}");
                    self.errors.push(field::Error::invalid_str(path, self.type_name(id), &detail));
                    continue;
                }
            };
            let graph = self.graph;
            let context = context.get_or_insert_with(|| {
                let mut context = environment().new_inner_scope();
                context.add_variable_from_value("self", value::convert(graph, id, value, false));
                context
            });
            if expression.uses_old() {
                let before = old.map(|old| value::convert(graph, id, old, false));
                let bound = if rule.source.optional_old_self {
                    let optional = before.map_or_else(OptionalValue::none, OptionalValue::of);
                    Cel::Opaque(Arc::new(optional))
                } else {
                    before.unwrap_or(Cel::Null)
                };
                context.add_variable_from_value("oldSelf", bound);
            }
            let limit = self.budget.min(RULE_BUDGET);
            let Some((outcome, spent)) = expression.run(context, limit) else {
                let detail = format!("the rule can't be evaluated: {}", name(&rule.source));
                self.errors.push(field::Error::invalid_str(path, self.type_name(id), &detail));
                continue;
            };
            if !self.pay(&spent, rule, id, path) {
                return;
            }
            match outcome {
                Ok(Cel::Bool(true)) => {}
                Ok(_) => {
                    let Some(detail) = self.message(rule, context, id, path) else { return };
                    let error =
                        rule_error(&rule.source, &error_path(path, &rule.source.field_path), value, &detail);
                    self.errors.push(error);
                }
                Err(error) => {
                    let detail = match error_text(&error) {
                        text if text.starts_with("no such overload") => format!(
                            "'{text}': call arguments did not match a supported operator, function or macro signature \
                             for rule: {}",
                            name(&rule.source)
                        ),
                        text => format!("{text} evaluating rule: {}", name(&rule.source)),
                    };
                    let at = error_path(path, &rule.source.field_path);
                    let shown = Value::from(self.type_name(id));
                    self.errors.push(rule_error(&rule.source, &at, &shown, &detail));
                }
            }
        }
    }

    /// Subtracts the cost of a run from the budget. If it is exceeded, adds an error, stops all rules and returns
    /// false.
    fn pay(&mut self, spent: &Spent, rule: &CompiledRule, id: Id, path: &Path) -> bool {
        let short = self.budget < RULE_BUDGET;
        self.budget = self.budget.saturating_sub(spent.cost);
        if !spent.exhausted {
            return true;
        }
        let detail = if short {
            "validation failed due to running out of cost budget, no further validation rules will be run"
                .to_owned()
        } else {
            format!(
                "'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to \
                 call cost exceeds limit for rule: {}",
                name(&rule.source)
            )
        };
        self.stop(&detail, id, path);
        false
    }

    fn stop(&mut self, detail: &str, id: Id, path: &Path) {
        self.stopped = true;
        self.errors.push(field::Error::invalid_str(path, self.type_name(id), detail));
    }

    /// The message of a failed rule. `None` if the budget ran out, which stops all rules.
    fn message(&mut self, rule: &CompiledRule, context: &Context, id: Id, path: &Path) -> Option<String> {
        let limit = self.budget.min(RULE_BUDGET);
        let run = rule.message.as_ref().and_then(|expression| expression.run(context, limit));
        if let Some((outcome, spent)) = run {
            self.budget = self.budget.saturating_sub(spent.cost);
            if spent.exhausted && limit < RULE_BUDGET {
                let why = "messageExpression evaluation failed due to running out of cost budget, no further \
                           validation rules will be run";
                self.stop(why, id, path);
                return None;
            }
            if let (Ok(Cel::String(text)), false) = (outcome, spent.exhausted) {
                let text = text.trim();
                if !text.is_empty() && !text.contains('\n') && text.len() <= MAX_MESSAGE {
                    return Some(text.to_owned());
                }
            }
        }
        Some(if rule.source.message.is_empty() {
            format!("failed rule: {}", name(&rule.source))
        } else {
            name(&rule.source).to_owned()
        })
    }

    fn type_name(&self, id: Id) -> &'static str {
        match self.graph.resolve(id).1.kind {
            Type::Object => "object",
            Type::Array => "array",
            Type::Integer | Type::Int32 | Type::Int64 => "integer",
            Type::Number => "number",
            Type::Boolean => "boolean",
            Type::Any | Type::IntOrString | Type::SchemaOrBool | Type::SchemaOrArray => "",
            _ => "string",
        }
    }
}

/// How errors name a rule: by its message or its expression.
fn name(rule: &Rule) -> &str {
    if rule.message.is_empty() { rule.expression.trim() } else { rule.message.trim() }
}

fn rule_error(rule: &Rule, path: &Path, value: &Value, detail: &str) -> field::Error {
    match rule.reason.as_str() {
        "FieldValueForbidden" => field::Error::forbidden(path, detail),
        "FieldValueRequired" => field::Error::required(path, detail),
        "FieldValueDuplicate" => field::Error::duplicate(path, value),
        // Errors do not print objects and lists.
        _ if value.is_object() || value.is_array() => field::Error::invalid_omitted(path, detail),
        _ => field::Error::invalid(path, value, detail),
    }
}

/// The path of an error with a `fieldPath` (`.spec['x-y'].z`).
fn error_path(path: &Path, field: &str) -> Path {
    let mut out = path.clone();
    for step in steps(field).unwrap_or_default() {
        out = out.child(&step);
    }
    out
}

/// The steps of a `fieldPath`; `None` if it is malformed.
fn steps(field: &str) -> Option<Vec<String>> {
    let mut out = Vec::new();
    let mut rest = field;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            let step = after.get(..end).filter(|s| !s.is_empty())?;
            out.push(step.to_owned());
            rest = after.get(end..)?;
        } else {
            let after = rest.strip_prefix("['")?;
            let end = after.find("']")?;
            out.push(after.get(..end)?.to_owned());
            rest = after.get(end + 2..)?;
        }
    }
    Some(out)
}
