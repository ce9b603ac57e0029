//! Decides which inputs a parent selects (MC-011 to MC-018).

use apis::metacontroller::{MAP_DEPTH_ANNOTATION, MAP_KEY_ANNOTATION};
use machinery::selector::LabelSelector;
use serde_json::Value;

use crate::object;

/// Inputs that are outputs of outputs down to this depth are not mapped (MC-016).
pub const MAX_DEPTH: u32 = 8;

/// Parses a parent's `spec.selector`. Unlike in a CompositeController, an absent or empty selector selects
/// everything. A selector that cannot be parsed is an error and never means "nothing" (MC-013).
pub fn parse(parent: &Value) -> Result<LabelSelector, String> {
    let selector = match parent.pointer("/spec/selector") {
        None | Some(Value::Null) => return Ok(LabelSelector::everything()),
        Some(selector) => selector,
    };
    check_shape(selector)?;
    LabelSelector::from_object(selector)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}

/// Checks the JSON types, which the shared parser leaves to schemas.
fn check_shape(selector: &Value) -> Result<(), String> {
    let Some(fields) = selector.as_object() else { return Err("must be an object".into()) };
    let strings = |list: &Value| list.as_array().is_some_and(|list| list.iter().all(Value::is_string));
    match fields.get("matchLabels") {
        None | Some(Value::Null) => {}
        Some(Value::Object(labels)) if labels.values().all(Value::is_string) => {}
        Some(_) => return Err("matchLabels: must be a map of strings".into()),
    }
    let expressions = match fields.get("matchExpressions") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(list)) => list,
        Some(_) => return Err("matchExpressions: must be a list".into()),
    };
    for (index, one) in expressions.iter().enumerate() {
        let text = |field: &str| one.get(field).is_some_and(Value::is_string);
        if !one.is_object() || !text("key") || !text("operator") {
            return Err(format!("matchExpressions[{index}]: must have key and operator"));
        }
        if one.get("values").is_some_and(|values| !values.is_null() && !strings(values)) {
            return Err(format!("matchExpressions[{index}].values: must be a list of strings"));
        }
    }
    Ok(())
}

/// Returns how many levels of outputs led to an object (MC-016).
pub fn depth(input: &Value) -> u32 {
    let written = object::annotation(input, MAP_DEPTH_ANNOTATION).and_then(|text| text.parse().ok());
    written.unwrap_or_else(|| u32::from(object::annotation(input, MAP_KEY_ANNOTATION).is_some()))
}

/// Returns whether `input` belongs to `parent`: its labels match, it is not the parent itself, and the parent
/// does not control it (MC-012, MC-014, MC-004). The caller checks the scope.
pub fn is_eligible(parent: &Value, selector: &LabelSelector, input: &Value) -> bool {
    let uid = object::uid(parent);
    selector.matches_labels(object::labels(input))
        && object::controller_uid(input) != uid
        && object::uid(input) != uid
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// MC-010, MC-011 and MC-013: absent and empty selectors select everything; one that cannot be parsed is
    /// an error.
    #[test]
    fn mc_013_unreadable_selectors_are_errors() {
        for everything in [
            json!({}),
            json!({"selector": null}),
            json!({"selector": {}}),
            json!({"selector": {"matchLabels": {}, "matchExpressions": []}}),
        ] {
            assert!(parse(&json!({"spec": everything})).unwrap().is_everything(), "{everything}");
        }
        let bad = [
            json!("x"),
            json!([]),
            json!({"matchLabels": []}),
            json!({"matchLabels": {"a": 1}}),
            json!({"matchLabels": {"a b": "c"}}),
            json!({"matchLabels": {"a": "b c"}}),
            json!({"matchExpressions": {}}),
            json!({"matchExpressions": [{"key": "a", "operator": "Foo"}]}),
            json!({"matchExpressions": [{"key": "a", "operator": "In"}]}),
            json!({"matchExpressions": [{"key": "a", "operator": "In", "values": []}]}),
            json!({"matchExpressions": [{"key": "a", "operator": "In", "values": "b"}]}),
            json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
            json!({"matchExpressions": [{"operator": "Exists"}]}),
        ];
        for selector in bad {
            assert!(parse(&json!({"spec": {"selector": selector}})).is_err(), "{selector}");
        }
    }

    /// MC-014, MC-016.
    #[test]
    fn mc_014_own_outputs_and_the_parent_are_no_inputs() {
        let parent = json!({"metadata": {"uid": "p"}});
        let all = LabelSelector::everything();
        let owned = |uid: &str, controller: bool| json!({"metadata": {"uid": "i", "ownerReferences": [{"uid": uid, "controller": controller}]}});
        assert!(!is_eligible(&parent, &all, &parent));
        assert!(!is_eligible(&parent, &all, &owned("p", true)));
        assert!(is_eligible(&parent, &all, &owned("p", false)), "a plain reference does not count");
        assert!(is_eligible(&parent, &all, &owned("q", true)));
        let with = |annotations: Value| depth(&json!({"metadata": {"annotations": annotations}}));
        assert_eq!(with(json!({})), 0);
        assert_eq!(with(json!({MAP_KEY_ANNOTATION: "k"})), 1);
        assert_eq!(with(json!({MAP_KEY_ANNOTATION: "k", MAP_DEPTH_ANNOTATION: "5"})), 5);
        assert_eq!(with(json!({MAP_KEY_ANNOTATION: "k", MAP_DEPTH_ANNOTATION: "x"})), 1);
    }
}
