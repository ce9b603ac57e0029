//! Field selectors: `metadata.name=x,status.phase!=Running`.

use std::fmt::{self, Write as _};

use super::SelectorError;

/// How a field is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FieldOp {
    Eq,
    NotEq,
}

/// One comparison.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldRequirement {
    pub field: String,
    pub op: FieldOp,
    pub value: String,
}

/// A conjunction of comparisons. The empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

impl FieldSelector {
    pub fn everything() -> Self {
        Self::default()
    }

    /// Parses a selector. The caller checks whether the fields exist.
    ///
    /// # Errors
    /// The text is not a field selector.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for term in split_terms(text).into_iter().filter(|t| !t.is_empty()) {
            let (field, op, value) = split_term(term).ok_or_else(|| {
                SelectorError(format!("invalid selector: '{text}'; can't understand '{term}'"))
            })?;
            requirements.push(FieldRequirement { field: field.to_owned(), op, value: unescape(value)? });
        }
        Ok(Self { requirements })
    }

    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }

    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The value that the selector requires of a field, if it requires equality.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.requirements.iter().find(|r| r.field == field && r.op == FieldOp::Eq).map(|r| r.value.as_str())
    }

    /// Whether an object with these fields is selected. A missing field is empty.
    pub fn matches<V: AsRef<str>>(&self, field: impl Fn(&str) -> Option<V>) -> bool {
        self.requirements.iter().all(|r| {
            let actual = field(&r.field);
            let equal = actual.as_ref().map_or("", AsRef::as_ref) == r.value;
            equal == (r.op == FieldOp::Eq)
        })
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            f.write_str(&requirement.field)?;
            f.write_str(if requirement.op == FieldOp::Eq { "=" } else { "!=" })?;
            for c in requirement.value.chars() {
                if matches!(c, '\\' | ',' | '=') {
                    f.write_char('\\')?;
                }
                f.write_char(c)?;
            }
        }
        Ok(())
    }
}

/// Splits at commas without a preceding backslash.
fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(text.get(start..i).unwrap_or_default());
                start = i + 1;
            }
            _ => {}
        }
    }
    terms.push(text.get(start..).unwrap_or_default());
    terms
}

fn split_term(term: &str) -> Option<(&str, FieldOp, &str)> {
    let at = term.find(['!', '=']).and_then(|first| {
        // A `!` without a following `=` belongs to the field.
        (first..term.len()).find(|i| {
            let rest = term.as_bytes().get(*i..).unwrap_or_default();
            rest.starts_with(b"!=") || rest.starts_with(b"=")
        })
    })?;
    let (field, rest) = term.split_at_checked(at)?;
    [("!=", FieldOp::NotEq), ("==", FieldOp::Eq), ("=", FieldOp::Eq)]
        .into_iter()
        .find_map(|(sign, op)| rest.strip_prefix(sign).map(|value| (field, op, value)))
}

fn unescape(value: &str) -> Result<String, SelectorError> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                other => {
                    let sequence: String = std::iter::once('\\').chain(other).collect();
                    return Err(SelectorError(format!(
                        "invalid field selector: invalid escape sequence: {sequence}"
                    )));
                }
            },
            ',' | '=' => {
                let text = format!("invalid field selector: unescaped character in value: {c}");
                return Err(SelectorError(text));
            }
            _ => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn as_024_field_selectors() {
        let shown = |t: &str| FieldSelector::parse(t).map_or_else(|e| e.to_string(), |s| s.to_string());
        assert_eq!(shown("metadata.name=a,status.phase!=Running"), "metadata.name=a,status.phase!=Running");
        assert_eq!(shown("a==b,"), "a=b");
        assert_eq!(shown(r"a=b\,c\=d\\"), r"a=b\,c\=d\\");
        assert_eq!(
            shown("metadata.name"),
            "invalid selector: 'metadata.name'; can't understand 'metadata.name'"
        );
        assert_eq!(shown(r"a=\x"), r"invalid field selector: invalid escape sequence: \x");
        assert_eq!(shown("a=b=c"), "invalid field selector: unescaped character in value: =");
    }

    #[test]
    fn as_024_missing_fields_are_empty() {
        let selects = |t: &str| {
            FieldSelector::parse(t).is_ok_and(|s| s.matches(|f| (f == "spec.nodeName").then_some("n1")))
        };
        assert!(selects("spec.nodeName=n1") && !selects("spec.nodeName="));
        assert!(selects("x=") && selects("x!=1") && !selects("x=1") && selects(""));
    }

    proptest! {
        #[test]
        fn field_selectors_round_trip(terms in prop::collection::vec(("[a-z.]{1,8}", any::<bool>(), "[a-z,=\\\\!ü]{0,6}"), 0..4)) {
            let requirements = terms
                .into_iter()
                .map(|(field, eq, value)| FieldRequirement { field, op: if eq { FieldOp::Eq } else { FieldOp::NotEq }, value })
                .collect();
            let selector = FieldSelector { requirements };
            prop_assert_eq!(FieldSelector::parse(&selector.to_string()), Ok(selector));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in ".*|[a-z=!,\\\\]{0,20}") {
            let _ = FieldSelector::parse(&text);
        }
    }
}
