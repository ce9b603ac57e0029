//! The requests of a customize hook (MC-113 to MC-115). Pure.

use machinery::selector::LabelSelector;
use serde_json::Value;

use crate::{object, resource::Served, wire::Version};

/// One kind of requested related objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Group and version.
    pub api_version: String,
    /// Plural.
    pub resource: String,
    /// Names; empty for all.
    pub names: Vec<String>,
    /// Namespace; empty for all.
    pub namespace: String,
    /// Labels.
    pub labels: LabelSelector,
    /// Label selector for the namespace.
    pub namespaces: Option<LabelSelector>,
}

/// The fields of a rule.
const FIELDS: [&str; 6] =
    ["apiVersion", "resource", "labelSelector", "namespaceSelector", "namespace", "names"];

/// Parses an answer of a customize hook; `strict` also rejects unknown fields of rules.
///
/// # Errors
///
/// A text for the user.
pub fn read(answer: &Value, strict: bool) -> Result<Vec<Rule>, String> {
    if !answer.is_object() {
        return Err("the answer is not a JSON object".into());
    }
    let list = match answer.get("relatedResources") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(_) => return Err("relatedResources must be a list".into()),
    };
    let rules = list.iter().enumerate();
    let read = |rule: &Value| match unknown(rule).filter(|_| strict) {
        Some(field) => Err(format!("unknown field {field}")),
        None => one(rule),
    };
    rules.map(|(index, rule)| read(rule).map_err(|why| format!("relatedResources[{index}]: {why}"))).collect()
}

fn unknown(rule: &Value) -> Option<&str> {
    let fields = rule.as_object().into_iter().flatten().map(|(field, _)| field.as_str());
    fields.into_iter().find(|field| !FIELDS.contains(field))
}

fn one(rule: &Value) -> Result<Rule, String> {
    let text = |field: &str| match rule.get(field) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(format!("{field} must be a string")),
    };
    let (api_version, resource, namespace) = (text("apiVersion")?, text("resource")?, text("namespace")?);
    if api_version.is_empty() || resource.is_empty() {
        return Err("apiVersion and resource are required".into());
    }
    let names: Vec<String> = match rule.get("names") {
        None | Some(Value::Null) => Vec::new(),
        Some(list) => serde_json::from_value(list.clone()).map_err(|_| "names must be a list of strings")?,
    };
    let selector = |field: &str| match rule.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(object) => LabelSelector::from_object(object).map(Some).map_err(|errors| {
            let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
            format!("{field}: {}", errors.join(", "))
        }),
    };
    let (labels, namespaces) = (selector("labelSelector")?, selector("namespaceSelector")?);
    if !names.is_empty() && (labels.is_some() || namespaces.is_some()) {
        return Err("names exclude labelSelector and namespaceSelector".into());
    }
    if !namespace.is_empty() && namespaces.is_some() {
        return Err("namespace excludes namespaceSelector".into());
    }
    let labels = labels.unwrap_or_else(LabelSelector::everything);
    Ok(Rule { api_version, resource, names, namespace, labels, namespaces })
}

impl Rule {
    /// Restricts a rule to what a parent in `parent_namespace` may request (MC-115): in v1, only its own
    /// namespace.
    pub fn scoped(
        mut self,
        served: &Served,
        parent_namespace: &str,
        version: Version,
    ) -> Result<Self, String> {
        if !served.namespaced && self.namespaces.is_some() {
            return Err(format!("namespaceSelector makes no sense for {}", served.group_resource()));
        }
        if version == Version::V1 && !parent_namespace.is_empty() && served.namespaced {
            if self.namespaces.is_some() {
                return Err("namespaceSelector needs hook version v2 where the parent has a namespace".into());
            }
            if !self.namespace.is_empty() && self.namespace != parent_namespace {
                return Err(format!(
                    "namespace {:?} is not that of the parent; hook version v2 allows it",
                    self.namespace
                ));
            }
            self.namespace = parent_namespace.to_owned();
        }
        Ok(self)
    }

    /// Returns whether an object is requested. `namespace_labels` returns the labels of a namespace.
    pub fn matches(&self, object: &Value, namespace_labels: impl FnOnce(&str) -> Value) -> bool {
        let (namespace, name) = (object::namespace(object), object::name(object));
        (self.namespace.is_empty() || self.namespace == namespace)
            && (self.names.is_empty() || self.names.iter().any(|one| one == name))
            && self.labels.matches_labels(object::labels(object))
            && self
                .namespaces
                .as_ref()
                .is_none_or(|wanted| wanted.matches_labels(&namespace_labels(namespace)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::rest::Gvr;
    use serde_json::json;

    /// MC-114, MC-115: which fields can be combined, and what v1 rejects.
    #[test]
    fn mc_114_combinations() {
        let read_one = |more: Value| {
            let mut rule = json!({"apiVersion": "v1", "resource": "configmaps"});
            rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            read(&json!({"relatedResources": [rule]}), false).map(|mut rules| rules.remove(0))
        };
        assert!(read_one(json!({"names": ["a"], "labelSelector": {}})).is_err());
        assert!(read_one(json!({"names": ["a"], "namespaceSelector": {}})).is_err());
        assert!(read_one(json!({"namespace": "a", "namespaceSelector": {}})).is_err());
        assert!(
            read_one(json!({"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Foo"}]}}))
                .is_err()
        );
        assert_eq!(read(&json!({}), true), Ok(vec![]));
        let odd = json!({"relatedResources": [{"apiVersion": "v1", "resource": "configmaps", "name": "a"}]});
        assert!(read(&odd, false).is_ok(), "MC-104: ignored where it is loose");
        assert_eq!(read(&odd, true).unwrap_err(), "relatedResources[0]: unknown field name");
        let maps = Served {
            gvr: Gvr::new("", "v1", "configmaps"),
            kind: "ConfigMap".into(),
            namespaced: true,
            has_status: false,
        };
        let wide = read_one(json!({"namespaceSelector": {"matchLabels": {"t": "1"}}})).unwrap();
        assert!(wide.clone().scoped(&maps, "n", Version::V1).is_err());
        let wide = wide.scoped(&maps, "n", Version::V2).unwrap();
        let object = json!({"metadata": {"name": "a", "namespace": "m"}});
        assert!(wide.matches(&object, |_| json!({"t": "1"})) && !wide.matches(&object, |_| json!({})));
        assert!(read_one(json!({"namespace": "m"})).unwrap().scoped(&maps, "n", Version::V1).is_err());
        let own = read_one(json!({"names": ["a"]})).unwrap().scoped(&maps, "n", Version::V1).unwrap();
        assert!(!own.matches(&object, |_| Value::Null));
    }
}
