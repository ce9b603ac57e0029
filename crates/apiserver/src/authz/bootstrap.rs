//! The RBAC objects that every space has from the start (spec 7.5).

use std::sync::OnceLock;

use serde_json::{Map, Value, json};

use super::rules::{Rule, missing_rights};
use super::{RBAC_GROUP, aggregate};

const DATA: &str = include_str!("../data/rbac-bootstrap.json");
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// Default cluster roles, roles and bindings, without server-set metadata. Aggregated roles have their rules. Roles
/// come before bindings, cluster-scoped objects before those of `kube-system` and `kube-public` (AS-056).
pub fn objects() -> Vec<Value> {
    static OBJECTS: OnceLock<Vec<Value>> = OnceLock::new();
    OBJECTS.get_or_init(load).clone()
}

fn load() -> Vec<Value> {
    // The data is part of the program; a parse error is a defect of the build that the tests show.
    let data: Map<String, Value> = serde_json::from_str(DATA).unwrap_or_default();
    let mut cluster_roles = section(&data, "clusterroles", "ClusterRole");
    // Aggregated roles can aggregate aggregated roles, so this repeats until nothing changes.
    loop {
        let before = cluster_roles.clone();
        for role in &mut cluster_roles {
            if let Some(rules) = aggregate(role, &before) {
                role["rules"] = Value::Array(rules);
            }
        }
        if before == cluster_roles {
            break;
        }
    }
    let mut out = cluster_roles;
    out.extend(section(&data, "clusterrolebindings", "ClusterRoleBinding"));
    out.extend(section(&data, "roles", "Role"));
    out.extend(section(&data, "rolebindings", "RoleBinding"));
    out
}

fn section(data: &Map<String, Value>, key: &str, kind: &str) -> Vec<Value> {
    let entries = data.get(key).and_then(Value::as_object).into_iter().flatten();
    entries.filter_map(|(id, body)| object(kind, id, body)).collect()
}

fn object(kind: &str, id: &str, body: &Value) -> Option<Value> {
    let mut body = body.as_object()?.clone();
    let mut metadata = Map::new();
    match id.split_once('/') {
        Some((namespace, name)) => {
            metadata.insert("namespace".into(), namespace.into());
            metadata.insert("name".into(), name.into());
        }
        None => drop(metadata.insert("name".into(), id.into())),
    }
    for key in ["labels", "annotations"] {
        if let Some(value) = body.remove(key) {
            metadata.insert(key.into(), value);
        }
    }
    body.insert("apiVersion".into(), format!("{RBAC_GROUP}/v1").into());
    body.insert("kind".into(), kind.into());
    body.insert("metadata".into(), Value::Object(metadata));
    Some(Value::Object(body))
}

/// What to write so that `existing` has everything of `wanted`. Adds missing rules, subjects, selectors, labels and
/// annotations and keeps the rest. `None` if nothing is missing, or if the annotation `autoupdate` is `"false"`. A
/// binding to another role is replaced; the caller must delete and create it.
pub fn reconcile(existing: &Value, wanted: &Value) -> Option<Value> {
    let annotation =
        existing.get("metadata").and_then(|m| m.get("annotations")).and_then(|a| a.get(AUTOUPDATE));
    if annotation.and_then(Value::as_str) == Some("false") {
        return None;
    }
    let mut out = existing.clone();
    merge_metadata(&mut out, wanted);
    if wanted.get("roleRef").is_some() {
        if out.get("roleRef") != wanted.get("roleRef") {
            out["roleRef"] = wanted["roleRef"].clone();
            out["subjects"] = wanted["subjects"].clone();
        }
        append_missing(&mut out, wanted, &["subjects"]);
    } else if wanted.get("aggregationRule").is_some() {
        if !out.get("aggregationRule").is_some_and(Value::is_object) {
            out["aggregationRule"] = json!({});
        }
        append_missing(&mut out, wanted, &["aggregationRule", "clusterRoleSelectors"]);
    } else {
        append_rules(&mut out, wanted);
    }
    (out != *existing).then_some(out)
}

fn merge_metadata(out: &mut Value, wanted: &Value) {
    for key in ["labels", "annotations"] {
        let Some(add) = wanted.get("metadata").and_then(|m| m.get(key)).and_then(Value::as_object) else {
            continue;
        };
        if !out["metadata"][key].is_object() {
            out["metadata"][key] = json!({});
        }
        for (name, value) in add {
            out["metadata"][key][name] = value.clone();
        }
    }
}

fn append_missing(out: &mut Value, wanted: &Value, path: &[&str]) {
    let pointer: String = path.iter().flat_map(|p| ["/", p]).collect();
    let Some(add) = wanted.pointer(&pointer).and_then(Value::as_array) else { return };
    let mut at = &mut *out;
    for key in path {
        at = &mut at[*key];
    }
    if !at.is_array() {
        *at = json!([]);
    }
    if let Some(list) = at.as_array_mut() {
        for value in add {
            if !list.contains(value) {
                list.push(value.clone());
            }
        }
    }
}

fn append_rules(out: &mut Value, wanted: &Value) {
    let parse = |object: &Value| -> Vec<Rule> {
        let list = object.get("rules").and_then(Value::as_array).cloned().unwrap_or_default();
        list.into_iter().filter_map(|r| serde_json::from_value(r).ok()).collect()
    };
    let wanted = parse(wanted);
    // If the rules cannot be compared, all are added.
    let add = missing_rights(&parse(out), &wanted).unwrap_or(wanted);
    if add.is_empty() {
        return;
    }
    if !out["rules"].is_array() {
        out["rules"] = json!([]);
    }
    if let Some(list) = out["rules"].as_array_mut() {
        list.extend(add.into_iter().filter_map(|rule| serde_json::to_value(rule).ok()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(kind: &str, name: &str) -> Value {
        objects()
            .into_iter()
            .find(|o| o["kind"] == kind && o["metadata"]["name"] == name)
            .unwrap_or(Value::Null)
    }

    #[test]
    fn as_056_all_default_objects_are_there() {
        assert_eq!(objects().len(), 69 + 50 + 7 + 7);
        let admin = find("ClusterRole", "cluster-admin");
        assert_eq!(admin["metadata"]["labels"]["kubernetes.io/bootstrapping"], "rbac-defaults");
        assert_eq!(admin["rules"][0]["verbs"], json!(["*"]));
        let binding = find("RoleBinding", "system::extension-apiserver-authentication-reader");
        assert_eq!(binding["metadata"]["namespace"], "kube-system");
    }

    #[test]
    fn as_056_aggregated_defaults_have_their_rules() {
        let resources = |name: &str| find("ClusterRole", name)["rules"].to_string();
        assert!(resources("view").contains("configmaps"));
        assert!(!resources("view").contains("secrets"));
        assert!(resources("edit").contains("secrets"));
        assert!(!resources("edit").contains("rolebindings"));
        assert!(resources("admin").contains("rolebindings"));
        assert!(resources("admin").contains("secrets"));
    }

    #[test]
    fn as_056_reconciliation_adds_what_is_missing_and_keeps_the_rest() {
        let wanted = find("ClusterRole", "system:discovery");
        assert_eq!(reconcile(&wanted, &wanted), None);
        let mut changed = wanted.clone();
        changed["rules"] = json!([{"verbs": ["get"], "nonResourceURLs": ["/mine"]}]);
        changed["metadata"]["labels"] = json!({"own": "x"});
        let mended = reconcile(&changed, &wanted).unwrap_or_default();
        assert_eq!(mended["rules"][0]["nonResourceURLs"], json!(["/mine"]));
        assert!(mended["rules"].to_string().contains("/openapi/*"));
        assert_eq!(mended["metadata"]["labels"]["own"], "x");
        assert_eq!(mended["metadata"]["labels"]["kubernetes.io/bootstrapping"], "rbac-defaults");
        changed["metadata"]["annotations"][AUTOUPDATE] = json!("false");
        assert_eq!(reconcile(&changed, &wanted), None);
    }
}
