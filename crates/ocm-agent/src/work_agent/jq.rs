//! The subset of jq for paths: `del(<expression>)` for path expressions (OCM-082). Pure.
//!
//! Members (`.a`, `."a"`, `.["a"]`), elements (`.[0]`, `.[]`), pipes, alternatives (`,`), `select` with a
//! comparison, and `?`. Anything else is rejected. The cost is bounded by the size of object and expression,
//! while full jq would need a time limit.

use serde_json::Value;

/// Most paths that an expression may produce.
const MOST: usize = 100_000;

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Member(String),
    Element(i64),
    Each,
    Select(Vec<Step>, Test),
    /// Produces nothing where the step would fail.
    Optional(Box<Step>),
}

#[derive(Clone, Debug, PartialEq)]
enum Test {
    Truthy,
    Equal(Value),
    NotEqual(Value),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PathStep {
    Index(usize),
    Key(String),
}

/// Deletes what the expression denotes; a missing path is no error.
pub fn delete(object: &mut Value, expression: &str) -> Result<(), String> {
    let alternatives = Parser::new(expression).alternatives()?;
    let mut places = Vec::new();
    for steps in &alternatives {
        for (place, _) in walk(object, steps)? {
            if place.is_empty() {
                return Err("jq expression result is not a valid object".into());
            }
            places.push(place);
        }
    }
    places.sort();
    places.dedup();
    // From the last path to the first, so that indexes stay valid.
    for place in places.iter().rev() {
        remove(object, place);
    }
    Ok(())
}

fn walk<'a>(object: &'a Value, steps: &[Step]) -> Result<Vec<(Vec<PathStep>, &'a Value)>, String> {
    let mut found: Vec<(Vec<PathStep>, &Value)> = vec![(Vec::new(), object)];
    for step in steps {
        let mut next = Vec::new();
        for (place, value) in found {
            take(step, &place, value, &mut next)?;
            if next.len() > MOST {
                return Err("jq expression leads to too many places".into());
            }
        }
        found = next;
    }
    Ok(found)
}

fn take<'a>(
    step: &Step,
    place: &[PathStep],
    value: &'a Value,
    next: &mut Vec<(Vec<PathStep>, &'a Value)>,
) -> Result<(), String> {
    let mut push = |last: Option<PathStep>, value: &'a Value| {
        next.push((place.iter().cloned().chain(last).collect(), value));
    };
    match (step, value) {
        (Step::Member(_) | Step::Element(_), Value::Null) => {}
        (Step::Member(name), Value::Object(map)) => {
            if let Some(one) = map.get(name) {
                push(Some(PathStep::Key(name.clone())), one);
            }
        }
        (Step::Element(index), Value::Array(items)) => {
            let at = usize::try_from(if *index < 0 { items.len() as i64 + index } else { *index });
            if let Some((at, one)) = at.ok().and_then(|at| Some((at, items.get(at)?))) {
                push(Some(PathStep::Index(at)), one);
            }
        }
        (Step::Each, Value::Array(items)) => {
            items.iter().enumerate().for_each(|(at, one)| push(Some(PathStep::Index(at)), one));
        }
        (Step::Each, Value::Object(map)) => {
            map.iter().for_each(|(key, one)| push(Some(PathStep::Key(key.clone())), one));
        }
        (Step::Select(path, test), _) => {
            let found = walk(value, path)?.first().map_or(&Value::Null, |(_, one)| *one);
            let holds = match test {
                Test::Truthy => !matches!(found, Value::Null | Value::Bool(false)),
                Test::Equal(wanted) => found == wanted,
                Test::NotEqual(wanted) => found != wanted,
            };
            if holds {
                push(None, value);
            }
        }
        (Step::Optional(step), _) => drop(take(step, place, value, next)),
        (Step::Member(name), other) => {
            return Err(format!("expected an object but got: {} (at {name:?})", kind(other)));
        }
        (Step::Element(_), other) => return Err(format!("expected an array but got: {}", kind(other))),
        (Step::Each, other) => return Err(format!("cannot iterate over: {}", kind(other))),
    }
    Ok(())
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn remove(object: &mut Value, place: &[PathStep]) {
    let Some((last, parents)) = place.split_last() else { return };
    let mut at = object;
    for step in parents {
        let below = match (step, at) {
            (PathStep::Key(key), Value::Object(map)) => map.get_mut(key),
            (PathStep::Index(index), Value::Array(items)) => items.get_mut(*index),
            _ => None,
        };
        let Some(below) = below else { return };
        at = below;
    }
    match (last, at) {
        (PathStep::Key(key), Value::Object(map)) => drop(map.remove(key)),
        (PathStep::Index(index), Value::Array(items)) if *index < items.len() => drop(items.remove(*index)),
        _ => {}
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Self { rest: text.trim() }
    }

    fn eat(&mut self, token: &str) -> bool {
        let rest = self.rest.trim_start();
        let found = rest.strip_prefix(token);
        self.rest = found.unwrap_or(rest);
        found.is_some()
    }

    fn unexpected<T>(&self) -> Result<T, String> {
        let near: String = self.rest.chars().take(20).collect();
        if near.is_empty() {
            return Err("failed to parse jq expression: unexpected end".into());
        }
        Err(format!("failed to parse jq expression: {near:?} is no path, or not supported"))
    }

    fn alternatives(&mut self) -> Result<Vec<Vec<Step>>, String> {
        let mut all = vec![self.pipe()?];
        while self.eat(",") {
            all.push(self.pipe()?);
        }
        if self.rest.trim().is_empty() { Ok(all) } else { self.unexpected() }
    }

    fn pipe(&mut self) -> Result<Vec<Step>, String> {
        let mut steps = Vec::new();
        loop {
            if self.eat("select(") {
                let path = self.path()?;
                let test = if self.eat("==") {
                    Test::Equal(self.literal()?)
                } else if self.eat("!=") {
                    Test::NotEqual(self.literal()?)
                } else {
                    Test::Truthy
                };
                if !self.eat(")") {
                    return self.unexpected();
                }
                steps.push(Step::Select(path, test));
            } else {
                steps.extend(self.path()?);
            }
            if !self.eat("|") {
                return Ok(steps);
            }
        }
    }

    /// `.`, `.a.b[0]["c"][]?`
    fn path(&mut self) -> Result<Vec<Step>, String> {
        if !self.eat(".") {
            return self.unexpected();
        }
        let mut steps = Vec::new();
        let mut dotted = true;
        loop {
            if self.rest.starts_with('[') {
                self.rest = self.rest.strip_prefix('[').unwrap_or_default();
                steps.push(self.bracket()?);
            } else if dotted && self.rest.starts_with('"') {
                let name = self.literal()?;
                steps.push(Step::Member(name.as_str().unwrap_or_default().to_owned()));
            } else if dotted {
                let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
                let (name, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
                if name.is_empty() {
                    // The identity, if nothing came before.
                    return if steps.is_empty() { Ok(steps) } else { self.unexpected() };
                }
                if name.starts_with(|c: char| c.is_ascii_digit()) {
                    return self.unexpected();
                }
                self.rest = rest;
                steps.push(Step::Member(name.to_owned()));
            }
            if let Some(rest) = self.rest.strip_prefix('?') {
                self.rest = rest;
                // The question mark applies to the whole path up to here.
                for step in &mut steps {
                    if !matches!(step, Step::Optional(_)) {
                        let strict = std::mem::replace(step, Step::Each);
                        *step = Step::Optional(Box::new(strict));
                    }
                }
            }
            dotted = self.rest.starts_with('.');
            if dotted {
                self.rest = self.rest.strip_prefix('.').unwrap_or_default();
            } else if !self.rest.starts_with('[') {
                return Ok(steps);
            }
        }
    }

    fn bracket(&mut self) -> Result<Step, String> {
        if self.eat("]") {
            return Ok(Step::Each);
        }
        let step = match self.literal()? {
            Value::String(name) => Step::Member(name),
            Value::Number(n) if n.is_i64() => Step::Element(n.as_i64().unwrap_or_default()),
            _ => return self.unexpected(),
        };
        if self.eat("]") { Ok(step) } else { self.unexpected() }
    }

    fn literal(&mut self) -> Result<Value, String> {
        let mut values = serde_json::Deserializer::from_str(self.rest).into_iter::<Value>();
        match values.next() {
            Some(Ok(value @ (Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null))) => {
                self.rest = self.rest.get(values.byte_offset()..).unwrap_or_default();
                Ok(value)
            }
            _ => self.unexpected(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn after(expression: &str) -> Result<Value, String> {
        let mut object =
            json!({"a": {"b": 1, "c-d": 2}, "l": [{"n": "x", "v": 1}, {"n": "y", "v": 2}], "z": null});
        delete(&mut object, expression).map(|()| object)
    }

    #[test]
    fn ocm_082_path_expressions_delete() {
        for (expression, pointers) in [
            (".a.b", vec!["/a/b"]),
            (".a[\"c-d\"]", vec!["/a/c-d"]),
            (".a.\"c-d\"", vec!["/a/c-d"]),
            (".a | .b", vec!["/a/b"]),
            (".l[].v", vec!["/l/0/v", "/l/1/v"]),
            (".l[-1]", vec!["/l/1"]),
            (".l[] | select(.n == \"y\") | .v", vec!["/l/1/v"]),
            (".l[] | select(.n != \"y\").v", vec![]),
            (".a.b, .l[0].n", vec!["/a/b", "/l/0/n"]),
            (".a.none.such, .z.x, .l[7]", vec!["/l/7"]),
            (".a.b?", vec!["/a/b"]),
        ] {
            match after(expression) {
                Ok(object) => {
                    for pointer in pointers {
                        assert_eq!(object.pointer(pointer), None, "{expression}");
                    }
                }
                Err(error) => assert!(expression.contains(").v"), "{expression}: {error}"),
            }
        }
        assert_eq!(after(".l[] | select(.n == \"y\") | .v").unwrap_or_default()["l"][0]["v"], 1);
    }

    #[test]
    fn ocm_082_a_question_mark_forgives_what_comes_before_it() {
        for bad in [".z[]", ".a.b[]", ".l.n", ".a.b.x", ".l[]?.n.x"] {
            assert!(after(bad).is_err(), "{bad}");
        }
        for expression in [".z[]?", ".a.b[]?", ".l.n?", ".a.b.x?", ".a.b[]?.x", ".l.n[]?"] {
            assert_eq!(after(expression), after(".none"), "{expression}");
        }
        assert_eq!(after(".l[]?.v"), after(".l[].v"));
    }

    #[test]
    fn ocm_082_what_is_no_path_is_refused() {
        for bad in
            ["", "a", ".a[", ".a.b)", ".l | map(.v)", "range(9)", ".a..b", ".a.b.c.d", ".", ".l.x", ".a.1"]
        {
            assert!(after(bad).is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_expression_panics(text in "[.\\[\\]a-c\"|, ()=!0-9?-]{0,24}") {
            drop(after(&text));
        }
    }
}
