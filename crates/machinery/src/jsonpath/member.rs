//! The subset of JSONPath that CustomTransforms use (KS-105): members of objects, no lists.

use std::fmt;

use serde_json::Value;

/// Why a path was refused (KS-106). Positions count bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("syntax error at {position}: {what}")]
pub struct MemberPathError {
    /// Byte offset in the path.
    pub position: usize,
    pub what: String,
}

/// Names of members, outermost first. Empty: the whole object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberPath {
    segments: Vec<String>,
}

impl MemberPath {
    /// Parses `$.spec["a.b/c"].suspend`.
    ///
    /// # Errors
    /// The first character that does not fit.
    pub fn parse(text: &str) -> Result<Self, MemberPathError> {
        let Some(rest) = text.strip_prefix('$') else {
            return Err(MemberPathError {
                position: 0,
                what: "missing root identifier (dollar sign)".to_owned(),
            });
        };
        let mut reader = Reader { text, rest };
        let mut segments = Vec::new();
        while let Some(next) = reader.rest.chars().next() {
            let segment = match next {
                '.' => {
                    reader.skip(1);
                    reader.shorthand()?
                }
                '[' => {
                    reader.skip(1);
                    reader.quoted()?
                }
                _ => return Err(reader.error(&format!("extra junk '{next}' after last segment"))),
            };
            segments.push(segment);
        }
        Ok(Self { segments })
    }

    /// Whether the path is `$` alone, which cannot be removed.
    pub fn is_whole_object(&self) -> bool {
        self.segments.is_empty()
    }

    pub fn segments(&self) -> &[String] {
        &self.segments
    }

    /// Deletes the member. Returns whether it existed.
    pub fn remove(&self, root: &mut Value) -> bool {
        let Some((last, way)) = self.segments.split_last() else { return false };
        let mut at = root;
        for name in way {
            let Some(next) = at.as_object_mut().and_then(|map| map.get_mut(name)) else { return false };
            at = next;
        }
        at.as_object_mut().is_some_and(|map| map.remove(last).is_some())
    }
}

impl fmt::Display for MemberPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("$")?;
        for segment in &self.segments {
            let mut chars = segment.chars();
            if chars.next().is_some_and(starts_name) && chars.all(continues_name) {
                write!(f, ".{segment}")?;
            } else {
                write!(f, "[{}]", Value::from(segment.as_str()))?;
            }
        }
        Ok(())
    }
}

fn starts_name(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || !c.is_ascii()
}

fn continues_name(c: char) -> bool {
    starts_name(c) || c.is_ascii_digit()
}

struct Reader<'a> {
    text: &'a str,
    rest: &'a str,
}

impl Reader<'_> {
    fn error(&self, what: &str) -> MemberPathError {
        MemberPathError { position: self.text.len() - self.rest.len(), what: what.to_owned() }
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    /// An error about the next character. At the end of the text it names no character.
    fn expected(&self, what: &str) -> MemberPathError {
        let got: String = self.rest.chars().take(1).collect();
        self.error(&format!("{what}, got '{got}'"))
    }

    fn shorthand(&mut self) -> Result<String, MemberPathError> {
        if !self.rest.starts_with(starts_name) {
            return Err(self.expected("expected member-name-shorthand"));
        }
        let end = self.rest.find(|c| !continues_name(c)).unwrap_or(self.rest.len());
        let name = self.rest.get(..end).unwrap_or_default().to_owned();
        self.skip(end);
        Ok(name)
    }

    /// Parses a JSON string and the closing bracket.
    fn quoted(&mut self) -> Result<String, MemberPathError> {
        if !self.rest.starts_with('"') {
            return Err(self.expected("expected open quote"));
        }
        let mut escaped = false;
        let close = self.rest.char_indices().skip(1).find(|(_, c)| {
            let closes = *c == '"' && !escaped;
            escaped = *c == '\\' && !escaped;
            closes
        });
        let Some((close, _)) = close else {
            self.skip(self.rest.len());
            return Err(self.error("missing close quote"));
        };
        let literal = self.rest.get(..=close).unwrap_or_default();
        let name = serde_json::from_str(literal).map_err(|e| self.error(&format!("invalid string: {e}")))?;
        self.skip(close + 1);
        if !self.rest.starts_with(']') {
            return Err(self.expected("missing close bracket"));
        }
        self.skip(1);
        Ok(name)
    }
}
