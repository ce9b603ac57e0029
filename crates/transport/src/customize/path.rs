//! The subset of JSONPath that CustomTransforms may use (KS-105): `$`, then `.name` or `["string"]`, each once or more.

use serde_json::Value;

/// Names of object members, from the root on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(Vec<String>);

/// Why a text is not a path; positions are byte offsets (KS-106).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("syntax error at {at}: {problem}")]
pub struct SyntaxError {
    at: usize,
    problem: String,
}

/// Paths whose removal makes an object undeliverable, as does the removal of a parent of such a path
/// (KS-108).
const IDENTITY: [&[&str]; 4] =
    [&["apiVersion"], &["kind"], &["metadata", "name"], &["metadata", "namespace"]];

impl Path {
    /// Parses a path. A path without segments is valid, but cannot be removed.
    pub fn parse(text: &str) -> Result<Self, SyntaxError> {
        let mut scanner = Scanner { text, at: 0 };
        if !scanner.accept('$') {
            return Err(scanner.fault("missing root identifier (dollar sign)"));
        }
        let mut names = Vec::new();
        loop {
            if scanner.accept('.') {
                names.push(scanner.name()?);
            } else if scanner.accept('[') {
                names.push(scanner.quoted()?);
                if !scanner.accept(']') {
                    return Err(scanner.got("missing close bracket"));
                }
            } else if let Some(junk) = scanner.peek() {
                return Err(scanner.fault(format!("extra junk {} after last segment", quoted(Some(junk)))));
            } else {
                return Ok(Self(names));
            }
        }
    }

    /// Returns true if the path denotes the whole object.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if the object is undeliverable without this path (KS-108).
    pub fn is_identity(&self) -> bool {
        IDENTITY.iter().any(|identity| {
            identity.iter().zip(&self.0).all(|(a, b)| a == b) && self.0.len() <= identity.len()
        })
    }

    /// Removes what the path denotes. Does nothing if the path does not exist in the object or leads through
    /// something that is not an object.
    pub fn remove_from(&self, object: &mut Value) {
        let Some((last, before)) = self.0.split_last() else { return };
        let parent = before.iter().try_fold(object, |value, name| value.as_object_mut()?.get_mut(name));
        if let Some(members) = parent.and_then(Value::as_object_mut) {
            members.remove(last);
        }
    }
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl Scanner<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn accept(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    fn fault(&self, problem: impl Into<String>) -> SyntaxError {
        SyntaxError { at: self.at, problem: problem.into() }
    }

    fn got(&self, expected: &str) -> SyntaxError {
        self.fault(format!("{expected}, got {}", quoted(self.peek())))
    }

    fn name(&mut self) -> Result<String, SyntaxError> {
        if !self.peek().is_some_and(starts_name) {
            return Err(self.got("expected member-name-shorthand"));
        }
        let name: String =
            self.rest().chars().take_while(|c| starts_name(*c) || c.is_ascii_digit()).collect();
        self.at += name.len();
        Ok(name)
    }

    fn quoted(&mut self) -> Result<String, SyntaxError> {
        if self.peek() != Some('"') {
            return Err(self.got("expected open quote"));
        }
        let (start, mut escaped) = (self.at, false);
        let close = self.rest().char_indices().skip(1).find(|(_, c)| {
            let closes = *c == '"' && !escaped;
            escaped = *c == '\\' && !escaped;
            closes
        });
        let Some((close, _)) = close.map(|(at, c)| (start + at + 1, c)) else {
            self.at = self.text.len();
            return Err(self.fault("missing close quote"));
        };
        self.at = close;
        let literal = self.text.get(start..close).unwrap_or_default();
        serde_json::from_str(literal).map_err(|_| SyntaxError { at: start, problem: "invalid string".into() })
    }
}

fn starts_name(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || !c.is_ascii()
}

/// Formats a character as Go's `%q` does; past the end of the text as a zero.
fn quoted(c: Option<char>) -> String {
    match c {
        None => r"'\x00'".into(),
        Some('\'') => r"'\''".into(),
        Some('\\') => r"'\\'".into(),
        Some('\n') => r"'\n'".into(),
        Some('\r') => r"'\r'".into(),
        Some('\t') => r"'\t'".into(),
        Some(c) if c.is_ascii_control() => format!(r"'\x{:02x}'", u32::from(c)),
        Some(c) if c.is_control() => format!(r"'\u{:04x}'", u32::from(c)),
        Some(c) => format!("'{c}'"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn ks_105_paths() {
        let cases: [(&str, &[&str]); 6] = [
            ("$.spec.suspend", &["spec", "suspend"]),
            (r#"$["metadata"].labels["a.b/c"]"#, &["metadata", "labels", "a.b/c"]),
            (r#"$["a\"]b"]["\u00e9"]"#, &["a\"]b", "é"]),
            ("$.été_1", &["été_1"]),
            (r#"$[""]"#, &[""]),
            ("$", &[]),
        ];
        for (text, names) in cases {
            let path = Path::parse(text).expect(text);
            assert_eq!(path.0, names, "{text}");
            assert_eq!(path.is_root(), names.is_empty());
        }
    }

    #[test]
    fn ks_106_syntax_errors() {
        let cases = [
            ("", "syntax error at 0: missing root identifier (dollar sign)"),
            ("'x", "syntax error at 0: missing root identifier (dollar sign)"),
            (" $.a", "syntax error at 0: missing root identifier (dollar sign)"),
            ("$.", r"syntax error at 2: expected member-name-shorthand, got '\x00'"),
            ("$..a", "syntax error at 2: expected member-name-shorthand, got '.'"),
            ("$.1", "syntax error at 2: expected member-name-shorthand, got '1'"),
            ("$[", r"syntax error at 2: expected open quote, got '\x00'"),
            ("$.data[", r"syntax error at 7: expected open quote, got '\x00'"),
            ("$[]", "syntax error at 2: expected open quote, got ']'"),
            ("$['a']", r"syntax error at 2: expected open quote, got '\''"),
            ("$.a[0]", "syntax error at 4: expected open quote, got '0'"),
            ("$.a[*]", "syntax error at 4: expected open quote, got '*'"),
            ("$.a[?(@.b)]", "syntax error at 4: expected open quote, got '?'"),
            (r#"$["a""#, r"syntax error at 5: missing close bracket, got '\x00'"),
            (r#"$["a"x"#, "syntax error at 5: missing close bracket, got 'x'"),
            (r#"$["a"#, "syntax error at 4: missing close quote"),
            (r#"$["é\""#, "syntax error at 7: missing close quote"),
            ("$.a b", "syntax error at 3: extra junk ' ' after last segment"),
            ("$é", "syntax error at 1: extra junk 'é' after last segment"),
            (r#"$["\q"]"#, "syntax error at 2: invalid string"),
        ];
        for (text, error) in cases {
            assert_eq!(Path::parse(text).expect_err(text).to_string(), error, "{text}");
        }
    }

    #[test]
    fn ks_105_only_object_members_are_navigated() {
        let object = json!({"a": {"b": {"c": 1, "d": 2}}, "list": [{"x": 1}], "text": "t", "null": null});
        let cases = [
            ("$.a.b.c", json!({"a": {"b": {"d": 2}}, "list": [{"x": 1}], "text": "t", "null": null})),
            ("$.a", json!({"list": [{"x": 1}], "text": "t", "null": null})),
            ("$.null", json!({"a": {"b": {"c": 1, "d": 2}}, "list": [{"x": 1}], "text": "t"})),
            ("$.a.nothing.c", object.clone()),
            ("$.list.x", object.clone()),
            (r#"$.list["0"]"#, object.clone()),
            ("$.text.x", object.clone()),
            ("$.null.x", object.clone()),
            ("$", object.clone()),
        ];
        for (path, expected) in cases {
            let mut changed = object.clone();
            Path::parse(path).expect(path).remove_from(&mut changed);
            assert_eq!(changed, expected, "{path}");
        }
    }

    #[test]
    fn ks_108_identity_is_recognised() {
        for (path, identity) in [
            ("$.kind", true),
            ("$.apiVersion", true),
            ("$.metadata", true),
            ("$.metadata.name", true),
            (r#"$["metadata"]["namespace"]"#, true),
            ("$.metadata.labels", false),
            ("$.metadata.name.x", false),
            ("$.spec.kind", false),
        ] {
            assert_eq!(Path::parse(path).expect(path).is_identity(), identity, "{path}");
        }
    }

    proptest! {
        /// KS-105: any text is either a path or an error, and any list of names can be written as a path.
        #[test]
        fn ks_105_parsing_is_total(text in "\\$?[.\\[\\]\"\\\\a-z0é '*]{0,12}", names in proptest::collection::vec(".{0,6}", 0..5)) {
            let _ = Path::parse(&text);
            let written: Vec<String> = names.iter().map(|name| format!("[{}]", json!(name))).collect();
            prop_assert_eq!(Path::parse(&format!("${}", written.concat())).map(|path| path.0), Ok(names));
        }
    }
}
