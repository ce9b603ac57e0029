//! JSONPath in the dialect of Kubernetes (printer columns, `kubectl -o jsonpath`), and the subset that
//! CustomTransforms use.

mod eval;
mod member;
mod parser;
#[cfg(test)]
mod tests;

use serde_json::Value;

pub use member::{MemberPath, MemberPathError};

/// Why a path was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct JsonPathError(pub String);

/// A compiled path. Finding visits a bounded number of values (see [`JsonPath::find`]).
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Wildcard,
    /// `..`: the values so far and everything below them.
    Descend,
    Index(i64),
    Slice {
        start: Option<i64>,
        end: Option<i64>,
        step: i64,
    },
    Filter(Box<Filter>),
    Union(Vec<Vec<Step>>),
}

#[derive(Clone, Debug, PartialEq)]
struct Filter {
    left: Operand,
    test: Test,
    right: Operand,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Exists,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    /// From the element that is being filtered.
    Path(Vec<Step>),
    Literal(Value),
}

impl JsonPath {
    /// Reads one expression: `{.a.b}`, `.a.b` or `$.a.b`.
    pub fn parse(text: &str) -> Result<Self, JsonPathError> {
        let inner = match text.strip_prefix('{') {
            None => text,
            Some(rest) => {
                rest.strip_suffix('}').ok_or_else(|| JsonPathError("unclosed action".to_owned()))?
            }
        };
        Ok(Self { steps: parser::parse(inner)? })
    }

    /// Reads what users type where only a path can stand: also `a.b` and `{a.b}`.
    pub fn relaxed(text: &str) -> Result<Self, JsonPathError> {
        let inner = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(text);
        let path = inner.strip_prefix('$').unwrap_or(inner);
        if path.is_empty() || path.contains(['{', '}']) && !path.contains(['\'', '"']) {
            return Err(JsonPathError(format!(
                "unexpected path string, expected a 'name1.name2' or '.name1.name2' or '{{name1.name2}}' or \
                 '{{.name1.name2}}', got {text:?}"
            )));
        }
        let dotted = if path.starts_with(['.', '[']) { path.to_owned() } else { format!(".{path}") };
        Ok(Self { steps: parser::parse(&dotted)? })
    }

    /// The names of the members, if the path is nothing but `.a.b.c`.
    pub fn simple(&self) -> Option<Vec<&str>> {
        self.steps
            .iter()
            .map(|s| match s {
                Step::Field(name) => Some(name.as_str()),
                _ => None,
            })
            .collect()
    }

    /// All values the path leads to; what is missing leads nowhere. Stops after a hundred thousand values have been
    /// looked at, so that no path costs more than reading a large object does.
    pub fn find<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        eval::find(root, &self.steps).into_iter().map(|node| node.value).collect()
    }

    /// The first value the path leads to.
    pub fn first<'a>(&self, root: &'a Value) -> Option<&'a Value> {
        self.find(root).into_iter().next()
    }

    /// Deletes what the path leads to; how many values went. The root itself is never deleted.
    pub fn remove(&self, root: &mut Value) -> usize {
        let mut places: Vec<Vec<eval::Place>> =
            eval::find(root, &self.steps).iter().map(eval::Node::places).filter(|p| !p.is_empty()).collect();
        // From the back, so that places in lists stay true.
        places.sort();
        places.dedup();
        places.iter().rev().filter(|place| eval::delete(root, place)).count()
    }
}

impl std::str::FromStr for JsonPath {
    type Err = JsonPathError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}
