//! Conditions in a status: when their time moves, and how one replaces another.
//!
//! `lastTransitionTime` is the time of the last change of the *status*; other reasons and messages leave it alone. The kinds of
//! `control.kubestellar.io` differ: there it moves with every part of the condition (`apis::condition`, KS-008).

use serde_json::Value;

/// Returns the time of a condition that now has `status`: that of the `old` one (its status and its time) if the status is the
/// same, else `now`.
pub fn transition<T>(old: Option<(&str, T)>, status: &str, now: T) -> T {
    match old {
        Some((kept, since)) if kept == status => since,
        _ => now,
    }
}

/// Does the same for the condition `type_` of a list. An empty time counts as none.
pub fn since<'a>(
    conditions: impl IntoIterator<Item = &'a Value>,
    type_: &str,
    status: &str,
    now: &'a str,
) -> &'a str {
    let text =
        |condition: &'a Value, field: &str| condition.get(field).and_then(Value::as_str).unwrap_or_default();
    let old = conditions.into_iter().find(|condition| text(condition, "type") == type_);
    let old = old.map(|old| (text(old, "status"), text(old, "lastTransitionTime")));
    transition(old.filter(|(_, since)| !since.is_empty()), status, now)
}

/// Replaces the condition of the type of `new` where it stands, or appends `new`.
pub fn put(conditions: &mut Vec<Value>, new: Value) {
    match conditions.iter_mut().find(|old| old.get("type") == new.get("type")) {
        Some(old) => *old = new,
        None => conditions.push(new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// OCM-087 and the same rule in every other status: the time moves with the status, and with nothing else.
    #[test]
    fn ocm_087_the_time_moves_with_the_status() {
        let old = |status: &str, since: Value| json!({"type": "Ready", "status": status, "reason": "A", "message": "a", "lastTransitionTime": since});
        let other = json!({"type": "Other", "status": "True", "lastTransitionTime": "then"});
        for (name, list, status, expected) in [
            ("no conditions", vec![], "True", "now"),
            ("only others", vec![other.clone()], "True", "now"),
            ("the same status", vec![other.clone(), old("True", json!("then"))], "True", "then"),
            ("another status", vec![old("True", json!("then"))], "False", "now"),
            ("unknown before", vec![old("Unknown", json!("then"))], "False", "now"),
            ("an empty time", vec![old("True", json!(""))], "True", "now"),
            ("no time", vec![old("True", Value::Null)], "True", "now"),
            ("a time that is no text", vec![old("True", json!(5))], "True", "now"),
            ("no object", vec![json!("Ready"), old("True", json!("then"))], "True", "then"),
        ] {
            assert_eq!(since(&list, "Ready", status, "now"), expected, "{name}");
        }
    }

    #[test]
    fn a_condition_is_replaced_where_it_stands() {
        let named = |type_: &str, status: &str| json!({"type": type_, "status": status});
        let mut list = vec![named("A", "True"), named("B", "True")];
        put(&mut list, named("A", "False"));
        put(&mut list, named("C", "True"));
        assert_eq!(list, [named("A", "False"), named("B", "True"), named("C", "True")]);
    }
}
