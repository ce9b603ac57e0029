//! Label selectors, and parsing them from objects.

use std::fmt;

use serde_json::Value;

use super::requirement::{LabelOp, LabelRequirement};
use super::{SelectorError, parser};
use crate::{
    field::{Error, Path},
    metadata, names,
};

/// A conjunction of requirements. The empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelSelector {
    requirements: Vec<LabelRequirement>,
    nothing: bool,
}

impl LabelSelector {
    pub fn everything() -> Self {
        Self::default()
    }

    /// A selector that matches no object.
    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), nothing: true }
    }

    /// Makes a selector from requirements, which it sorts.
    pub fn from_requirements(mut requirements: Vec<LabelRequirement>) -> Self {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Self { requirements, nothing: false }
    }

    /// Parses the text form, as in the query parameter `labelSelector`.
    ///
    /// # Errors
    /// The text is not a label selector.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        parser::parse(text).map(Self::from_requirements)
    }

    /// Parses a `LabelSelector` object. As in Kubernetes, `{}` matches everything and `null` nothing.
    ///
    /// # Errors
    /// All errors of the object.
    pub fn from_object(object: &Value) -> Result<Self, Vec<Error>> {
        Self::from_object_at(object, &Path::root())
    }

    /// [`Self::from_object`] with errors below `path`.
    ///
    /// # Errors
    /// All errors of the object.
    pub fn from_object_at(object: &Value, path: &Path) -> Result<Self, Vec<Error>> {
        if object.is_null() {
            return Ok(Self::nothing());
        }
        let errors = validate_label_selector(object, path);
        if !errors.is_empty() {
            return Err(errors);
        }
        let mut requirements = Vec::new();
        for (key, value) in object.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
            requirements.push(LabelRequirement {
                key: key.clone(),
                op: LabelOp::Equals,
                values: value.as_str().map(str::to_owned).into_iter().collect(),
            });
        }
        for expression in object.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            let op = match text(expression, "operator") {
                "In" => LabelOp::In,
                "NotIn" => LabelOp::NotIn,
                "Exists" => LabelOp::Exists,
                _ => LabelOp::DoesNotExist,
            };
            let values = values(expression).map(str::to_owned).collect();
            requirements.push(LabelRequirement { key: text(expression, "key").to_owned(), op, values });
        }
        Ok(Self::from_requirements(requirements))
    }

    /// The requirements, sorted by key.
    pub fn requirements(&self) -> &[LabelRequirement] {
        &self.requirements
    }

    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    pub fn is_nothing(&self) -> bool {
        self.nothing
    }

    /// A label (key, value) that every selected object has, if the selector requires one.
    pub fn exact(&self) -> Option<(&str, &str)> {
        self.requirements.iter().find_map(|r| match (r.op, r.values.len()) {
            (LabelOp::Equals | LabelOp::DoubleEquals | LabelOp::In, 1) => {
                r.values.first().map(|value| (r.key.as_str(), value.as_str()))
            }
            _ => None,
        })
    }

    /// Whether an object with these labels is selected.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(label(&r.key)))
    }

    /// Whether a `metadata.labels` map is selected.
    pub fn matches_labels(&self, labels: &Value) -> bool {
        self.matches(|key| labels.get(key).and_then(Value::as_str))
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn values(expression: &Value) -> impl Iterator<Item = &str> {
    expression.get("values").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// The errors of a `LabelSelector` object.
pub fn validate_label_selector(object: &Value, path: &Path) -> Vec<Error> {
    let labels = object.get("matchLabels").unwrap_or(&Value::Null);
    let mut errors = metadata::validate_labels(labels, &path.child("matchLabels"));
    let expressions = object.get("matchExpressions").and_then(Value::as_array).into_iter().flatten();
    for (i, expression) in expressions.enumerate() {
        errors.extend(expression_errors(expression, &path.child("matchExpressions").index(i)));
    }
    errors
}

fn expression_errors(expression: &Value, path: &Path) -> Vec<Error> {
    let mut errors = Vec::new();
    let empty = values(expression).next().is_none();
    let at = path.child("values");
    match text(expression, "operator") {
        "In" | "NotIn" => {
            if empty {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(Error::required(&at, detail));
            }
        }
        "Exists" | "DoesNotExist" => {
            if !empty {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(Error::forbidden(&at, detail));
            }
        }
        other => {
            errors.push(Error::invalid_str(&path.child("operator"), other, "not a valid selector operator"));
        }
    }
    let key = text(expression, "key");
    for detail in names::qualified_name(key) {
        errors.push(Error::invalid_str(&path.child("key"), key, &detail));
    }
    for (i, value) in values(expression).enumerate() {
        for detail in names::label_value(value) {
            errors.push(Error::invalid_str(&at.index(i), value, &detail));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use std::collections::BTreeSet;

    use super::*;

    fn shown(text: &str) -> String {
        LabelSelector::parse(text).map_or_else(|e| e.to_string(), |s| s.to_string())
    }

    #[test]
    fn as_024_label_selector_errors() {
        for (text, message) in [
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
            ("a=c d", "found 'd', expected: ',' or 'end of string'"),
            (",,", "found ',', expected: !, identifier, or 'end of string'"),
            (
                "n>foo",
                "unable to parse requirement: values[0]: Invalid value: \"foo\": for 'Gt', 'Lt' operators, the value \
                 must be an integer",
            ),
            (
                "-a=1",
                "unable to parse requirement: <nil>: Invalid value: \"-a\": name part must consist of alphanumeric \
                 characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  \
                 or 'my.name',  or '123-abc', regex used for validation is \
                 '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            ),
            ("a,", "found '', expected: identifier after ','"),
            ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
            ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("!", "unable to parse requirement: found '', expected: identifier"),
            ("!a=b", "found '=', expected: ',' or 'end of string'"),
            ("a=(", "unable to parse requirement: found '(', expected: identifier"),
        ] {
            assert_eq!(shown(text), message, "{text}");
        }
        assert!(
            shown("a=-x")
                .starts_with("unable to parse requirement: values[0][a]: Invalid value: \"-x\": a valid")
        );
    }

    #[test]
    fn as_024_label_selectors_are_canonical() {
        for (text, canonical) in [
            (" b = 1 , a!=2", "a!=2,b=1"),
            ("x in (c,a,b)", "x in (a,b,c)"),
            ("x notin ()", "x notin ()"),
            ("x in (,a)", "x in (,a)"),
            ("x in (a,)", "x in (,a)"),
            ("in in (in,notin)", "in in (in,notin)"),
            ("!k,e,k==v,n>5,m<3", "e,!k,k==v,m<3,n>5"),
            ("k=", "k="),
            ("", ""),
        ] {
            assert_eq!(shown(text), canonical, "{text}");
            assert_eq!(shown(canonical), canonical, "{text}");
        }
    }

    #[test]
    fn as_024_label_selectors_match() {
        let labels = json!({"n": "1", "odd": "true"});
        let selects = |t: &str| LabelSelector::parse(t).is_ok_and(|s| s.matches_labels(&labels));
        for yes in
            ["", "n=1", "n==1", "n!=2", "x!=1", "n in (1,2)", "x notin (1)", "odd", "!even", "n>0", "n<2"]
        {
            assert!(selects(yes), "{yes}");
        }
        for no in
            ["n=2", "x=1", "n!=1", "x in (1)", "n notin (1)", "x", "!odd", "n>1", "odd>1", "x<1", "nothing="]
        {
            assert!(!selects(no), "{no}");
        }
    }

    #[test]
    fn as_024_selectors_of_objects() {
        let of = |object: Value| LabelSelector::from_object(&object);
        let shown = |object: Value| of(object).map(|s| s.to_string()).map_err(|e| e[0].to_string());
        let both = json!({"matchLabels": {"b": "1"}, "matchExpressions": [
            {"key": "a", "operator": "In", "values": ["y", "x"]}, {"key": "c", "operator": "DoesNotExist"}]});
        assert_eq!(shown(both), Ok("a in (x,y),b=1,!c".to_owned()));
        assert!(of(json!({})).is_ok_and(|s| s.is_everything() && s.matches(|_| None)));
        assert!(of(Value::Null).is_ok_and(|s| s.is_nothing() && !s.matches(|_| None)));
        let expression = |e: Value| shown(json!({"matchExpressions": [e]}));
        assert_eq!(
            expression(json!({"key": "a", "operator": "In"})),
            Err("matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'".into())
        );
        assert_eq!(
            expression(json!({"key": "a", "operator": "Is"})),
            Err("matchExpressions[0].operator: Invalid value: \"Is\": not a valid selector operator".into())
        );
        assert!(expression(json!({"key": "a", "operator": "Exists", "values": ["x"]})).is_err());
        assert!(expression(json!({"key": "a b", "operator": "Exists"})).is_err());
    }

    fn requirement() -> impl Strategy<Value = LabelRequirement> {
        let key = "([a-z]{1,4}/)?[a-z]{1,4}";
        let value = "[a-z0-9]{0,4}";
        let one = prop::collection::btree_set(value, 1..=1);
        let many = prop::collection::btree_set(value, 1..4);
        let number = prop::collection::btree_set("[1-9][0-9]{0,3}", 1..=1);
        prop_oneof![
            (
                key,
                prop_oneof![Just(LabelOp::Equals), Just(LabelOp::DoubleEquals), Just(LabelOp::NotEquals)],
                one
            )
                .boxed(),
            (key, prop_oneof![Just(LabelOp::In), Just(LabelOp::NotIn)], many).boxed(),
            (key, prop_oneof![Just(LabelOp::GreaterThan), Just(LabelOp::LessThan)], number).boxed(),
            (key, prop_oneof![Just(LabelOp::Exists), Just(LabelOp::DoesNotExist)], Just(BTreeSet::new()))
                .boxed(),
        ]
        .prop_map(|(key, op, values)| LabelRequirement { key, op, values })
    }

    proptest! {
        #[test]
        fn label_selectors_round_trip(requirements in prop::collection::vec(requirement(), 0..5)) {
            let selector = LabelSelector::from_requirements(requirements);
            prop_assert_eq!(LabelSelector::parse(&selector.to_string()), Ok(selector));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in ".*|[a-z =!,()<>]{0,20}") {
            let _ = LabelSelector::parse(&text);
        }
    }
}
