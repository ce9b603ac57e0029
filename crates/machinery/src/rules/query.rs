//! CEL expressions over whole objects whose types are not known: conditions of ManifestWorks (OCM-091).

use std::sync::OnceLock;

use kube_cel::KubeCelExt as _;
use kube_cel::cel::objects::Key;
use kube_cel::cel::{Context, Value as Cel};
use serde_json::Value;

use super::program::Expression;
use super::{value, words};

/// An expression over named variables.
#[derive(Debug)]
pub struct Query(Expression);

/// What an expression comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A truth value.
    Bool(bool),
    /// A text.
    Text(String),
    /// A value of another type, which has this name.
    Other(&'static str),
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// It is not CEL, or names what is not there.
    #[error("{0}")]
    Compile(String),
    /// It failed.
    #[error("{0}")]
    Evaluate(String),
    /// It may need more work than it is granted.
    #[error("operation cancelled: actual cost limit exceeded")]
    Budget,
}

impl Query {
    /// Compiles it; `variables` are all that it may name.
    pub fn compile(source: &str, variables: &[&str]) -> Result<Self, QueryError> {
        Expression::compile_over(source, variables).map(Self).map_err(QueryError::Compile)
    }

    /// Evaluates it. `budget` is the work it may do; what it may have done, by an upper bound taken before it runs, is
    /// taken off. An expression blocks for as long as it runs.
    pub fn evaluate(&self, variables: &[(&str, &Value)], budget: &mut u64) -> Result<Answer, QueryError> {
        let width =
            variables.iter().map(|(_, v)| value::widest(v, self.0.splits())).max().unwrap_or_default();
        let cost = self.0.cost(width);
        if cost > *budget {
            return Err(QueryError::Budget);
        }
        *budget -= cost;
        let mut context = functions().new_inner_scope();
        for (name, one) in variables {
            context.add_variable_from_value(*name, value::plain(one));
        }
        match self.0.program.execute(&context) {
            Ok(Cel::Bool(value)) => Ok(Answer::Bool(value)),
            Ok(Cel::String(text)) => Ok(Answer::Text(text.to_string())),
            Ok(Cel::Int(_)) => Ok(Answer::Other("int64")),
            Ok(Cel::UInt(_)) => Ok(Answer::Other("uint64")),
            Ok(Cel::Float(_)) => Ok(Answer::Other("float64")),
            Ok(Cel::List(_)) => Ok(Answer::Other("list")),
            Ok(Cel::Map(_)) => Ok(Answer::Other("map")),
            Ok(Cel::Null) => Ok(Answer::Other("null")),
            Ok(_) => Ok(Answer::Other("object")),
            Err(error) => Err(QueryError::Evaluate(words(&error))),
        }
    }
}

/// All functions of rules, and `hasConditions(status)`: there is a list of conditions that is not empty.
fn functions() -> &'static Context<'static> {
    static FUNCTIONS: OnceLock<Context<'static>> = OnceLock::new();
    FUNCTIONS.get_or_init(|| {
        let mut context = Context::default().with_all();
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
    }
}
