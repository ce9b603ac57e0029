//! Aggregated ClusterRoles (spec 7.5).

use machinery::selector::LabelSelector;
use serde_json::Value;

/// The rules an aggregated ClusterRole shall have: the union of those of all ClusterRoles its selectors match, in
/// order of selectors, then names, each rule once. `None` for a role without `aggregationRule`, and for one whose
/// selectors are invalid. Costs one look at each role per selector.
pub fn aggregate(role: &Value, all: &[Value]) -> Option<Vec<Value>> {
    let selectors = role.get("aggregationRule")?.get("clusterRoleSelectors").and_then(Value::as_array);
    let own_name = name(role);
    let mut by_name: Vec<&Value> = all.iter().filter(|r| name(r) != own_name).collect();
    by_name.sort_by_key(|r| name(r));
    let mut rules: Vec<Value> = Vec::new();
    for selector in selectors.into_iter().flatten() {
        let selector = LabelSelector::from_object(selector).ok()?;
        for other in by_name.iter().filter(|r| selector.matches(|key| label(r, key))) {
            for rule in other.get("rules").and_then(Value::as_array).into_iter().flatten() {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    Some(rules)
}

fn name(role: &Value) -> &str {
    role.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

fn label<'a>(role: &'a Value, key: &str) -> Option<&'a str> {
    role.get("metadata")?.get("labels")?.get(key)?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn as_056_aggregated_roles_gather_the_rules_of_matching_roles_once() {
        let rule = |r: &str| json!({"apiGroups": [""], "resources": [r], "verbs": ["get"]});
        let part = |name: &str, rules: Value| json!({"metadata": {"name": name, "labels": {"x": "1"}}, "rules": rules});
        let whole = json!({
            "metadata": {"name": "whole", "labels": {"x": "1"}}, "rules": [rule("old")],
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"x": "1"}}]},
        });
        let all = [
            part("b", json!([rule("pods"), rule("secrets")])),
            part("a", json!([rule("secrets")])),
            whole.clone(),
            json!({"metadata": {"name": "c"}, "rules": [rule("nodes")]}),
        ];
        assert_eq!(aggregate(&whole, &all), Some(vec![rule("secrets"), rule("pods")]));
        assert_eq!(aggregate(&all[0], &all), None);
    }
}
