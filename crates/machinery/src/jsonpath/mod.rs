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

/// A compiled path. A search visits a bounded number of values (see [`JsonPath::find`]).
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Wildcard,
    /// `..`: the current values and everything below them.
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
    /// A path from the element that is being filtered.
    Path(Vec<Step>),
    Literal(Value),
}

impl JsonPath {
    /// Parses one expression: `{.a.b}`, `.a.b` or `$.a.b`.
    ///
    /// # Errors
    /// The text is not a path, is too long, or is nested too deep.
    pub fn parse(text: &str) -> Result<Self, JsonPathError> {
        let inner = match text.strip_prefix('{') {
            None => text,
            Some(rest) => {
                rest.strip_suffix('}').ok_or_else(|| JsonPathError("unclosed action".to_owned()))?
            }
        };
        Ok(Self { steps: parser::parse(inner)? })
    }

    /// Parses a path as users type it; also accepts `a.b` and `{a.b}`.
    ///
    /// # Errors
    /// As for [`JsonPath::parse`].
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

    /// The names of the members, if the path has the form `.a.b.c`.
    pub fn simple(&self) -> Option<Vec<&str>> {
        self.steps
            .iter()
            .map(|s| match s {
                Step::Field(name) => Some(name.as_str()),
                _ => None,
            })
            .collect()
    }

    /// All values at the path; none if members are missing. Stops after a hundred thousand visited values, so that no
    /// path costs more than reading a large object.
    pub fn find<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        eval::find(root, &self.steps).into_iter().map(|node| node.value).collect()
    }

    /// The first value at the path.
    pub fn first<'a>(&self, root: &'a Value) -> Option<&'a Value> {
        self.find(root).into_iter().next()
    }

    /// Deletes the values at the path. Returns their number. Never deletes the root.
    pub fn remove(&self, root: &mut Value) -> usize {
        let mut paths: Vec<Vec<eval::PathStep>> =
            eval::find(root, &self.steps).iter().map(eval::Node::paths).filter(|p| !p.is_empty()).collect();
        // In reverse order, so that list indexes stay valid.
        paths.sort();
        paths.dedup();
        paths.iter().rev().filter(|place| eval::delete(root, place)).count()
    }
}

impl std::str::FromStr for JsonPath {
    type Err = JsonPathError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}
