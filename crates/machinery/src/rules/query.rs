//! CEL expressions over objects of unknown type: conditions of ManifestWorks (OCM-091).

use std::sync::OnceLock;

use kube_cel::cel::objects::Key;
use kube_cel::cel::{Context, Value as Cel};
use serde_json::Value;

use super::program::Expression;
use crate::cel::convert::from_json;
use crate::cel::environment::own_environment;
use crate::cel::error_text;

/// An expression over named variables.
#[derive(Debug)]
pub struct Query(Expression);

/// Most nesting levels, as in the library that Kubernetes uses, because the stack of the evaluating thread is limited.
const MAX_DEPTH: usize = 250;

/// The result of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A truth value.
    Bool(bool),
    /// A text.
    Text(String),
    /// A value of another type, with the name of the type.
    Other(&'static str),
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The expression does not parse, or uses undeclared names.
    #[error("{0}")]
    Compile(String),
    /// The evaluation failed.
    #[error("{0}")]
    Evaluate(String),
    /// The budget is spent.
    #[error("operation cancelled: actual cost limit exceeded")]
    Budget,
}

impl Query {
    /// Compiles an expression that may use `variables` only.
    ///
    /// # Errors
    /// [`QueryError::Compile`].
    pub fn compile(source: &str, variables: &[&str]) -> Result<Self, QueryError> {
        let expression = Expression::compile_over(source, variables).map_err(QueryError::Compile)?;
        if expression.depth() > MAX_DEPTH {
            let why = format!("compilation failed: expression recursion limit exceeded: {MAX_DEPTH}");
            return Err(QueryError::Compile(why));
        }
        Ok(Self(expression))
    }

    /// Evaluates the expression. `budget` is the work that it may do, and is reduced by the work that it did. Blocks
    /// the thread, for about a second per million.
    ///
    /// # Errors
    /// [`QueryError::Evaluate`] or [`QueryError::Budget`].
    pub fn evaluate(&self, variables: &[(&str, &Value)], budget: &mut u64) -> Result<Answer, QueryError> {
        let mut context = functions().new_inner_scope();
        for (name, one) in variables {
            // Variables are copied, which is far cheaper than evaluating expressions on them.
            *budget = budget.checked_sub(parts(one) / 8).ok_or(QueryError::Budget)?;
            context.add_variable_from_value(*name, from_json(one));
        }
        let broken = || QueryError::Evaluate("the expression can't be evaluated".to_owned());
        let (outcome, spent) = self.0.run(&context, *budget).ok_or_else(broken)?;
        *budget = budget.saturating_sub(spent.cost);
        if spent.exhausted {
            return Err(QueryError::Budget);
        }
        match outcome {
            Ok(Cel::Bool(value)) => Ok(Answer::Bool(value)),
            Ok(Cel::String(text)) => Ok(Answer::Text(text.to_string())),
            Ok(Cel::Int(_)) => Ok(Answer::Other("int64")),
            Ok(Cel::UInt(_)) => Ok(Answer::Other("uint64")),
            Ok(Cel::Float(_)) => Ok(Answer::Other("float64")),
            Ok(Cel::List(_)) => Ok(Answer::Other("list")),
            Ok(Cel::Map(_)) => Ok(Answer::Other("map")),
            Ok(Cel::Null) => Ok(Answer::Other("null")),
            Ok(_) => Ok(Answer::Other("object")),
            Err(error) => Err(QueryError::Evaluate(error_text(&error))),
        }
    }
}

/// The number of values in a value.
fn parts(value: &Value) -> u64 {
    1 + match value {
        Value::Array(items) => items.iter().map(parts).sum::<u64>(),
        Value::Object(map) => map.values().map(parts).sum::<u64>(),
        Value::String(text) => text.len() as u64 / 16,
        _ => 0,
    }
}

/// All functions of rules, and `hasConditions(status)`: whether `status` has a list of conditions that is not empty.
fn functions() -> &'static Context<'static> {
    static FUNCTIONS: OnceLock<Context<'static>> = OnceLock::new();
    FUNCTIONS.get_or_init(|| {
        let mut context = own_environment();
        context.add_function("hasConditions", |status: Cel| -> bool {
            let Cel::Map(status) = status else { return false };
            let conditions = status.map.get(&Key::String("conditions".to_owned().into()));
            matches!(conditions, Some(Cel::List(list)) if !list.is_empty())
        });
        context
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ask(source: &str, object: &Value) -> Result<Answer, QueryError> {
        Query::compile(source, &["object"])?.evaluate(&[("object", object)], &mut 100_000)
    }

    #[test]
    fn ocm_091_expressions_over_objects() {
        let object =
            json!({"spec": {"replicas": 2}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        for (source, expected) in [
            ("object.spec.replicas == 2", Answer::Bool(true)),
            (
                "object.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')",
                Answer::Bool(true),
            ),
            ("hasConditions(object.status)", Answer::Bool(true)),
            ("hasConditions(object.spec)", Answer::Bool(false)),
            ("has(object.status.phase)", Answer::Bool(false)),
            ("'replicas: ' + string(object.spec.replicas)", Answer::Text("replicas: 2".into())),
            ("object.spec.replicas", Answer::Other("int64")),
        ] {
            assert_eq!(ask(source, &object), Ok(expected), "{source}");
        }
    }

    #[test]
    fn ocm_091_faults_of_expressions() {
        let object = json!({"spec": {}});
        assert!(matches!(ask("object.spec.", &object), Err(QueryError::Compile(_))));
        assert!(matches!(ask("subject.spec == 1", &object), Err(QueryError::Compile(_))));
        assert_eq!(ask("object.spec.x == 1", &object), Err(QueryError::Evaluate("no such key: x".into())));
        let wide = json!({"l": vec![0; 1000]});
        assert_eq!(ask("object.l.all(a, object.l.all(b, a == b))", &wide), Err(QueryError::Budget));
        // An expression of any length gets an answer: too deep ones are refused.
        let sum = |terms: usize| ask(&format!("1{} == {terms}", " + 1".repeat(terms - 1)), &object);
        assert_eq!(sum(200), Ok(Answer::Bool(true)));
        assert!(matches!(sum(400), Err(QueryError::Compile(_))));
        let nested =
            |depth: usize| ask(&format!("{}object{} == 1", "[".repeat(depth), "]".repeat(depth)), &object);
        assert!(matches!(nested(50), Ok(Answer::Bool(false)) | Err(QueryError::Evaluate(_))));
        assert!(matches!(nested(1900), Err(QueryError::Compile(_))));
    }
}
