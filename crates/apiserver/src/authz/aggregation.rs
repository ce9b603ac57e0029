//! Aggregated ClusterRoles (spec 7.5).

use machinery::selector::LabelSelector;
use serde_json::Value;

/// The rules that an aggregated ClusterRole should have: the union of the rules of all ClusterRoles that its selectors
/// match, ordered by selector, then name, without duplicates. `None` for a role without `aggregationRule` or with
/// invalid selectors. Costs one visit of each role per selector.
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
