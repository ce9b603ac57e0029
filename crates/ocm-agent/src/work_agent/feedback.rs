//! Reads status feedback from a live object (OCM-090). Pure.

use apis::ocm::work::{
    FIELD_BOOLEAN, FIELD_INTEGER, FIELD_JSON_RAW, FIELD_STRING, FeedbackRule, FeedbackValue, FieldValue,
};
use machinery::jsonpath::JsonPath;
use serde_json::Value;

use super::{conditions::Feedback, merge::text};

/// Longest JSON text that the schema of ManifestWorks allows, in bytes.
pub const MAX_JSON_RAW: usize = 1024;

/// How lists, maps and fractions are reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Raw {
    /// Not at all: they are errors.
    #[default]
    Refused,
    /// As JSON text of at most this many bytes (feature gate RawFeedbackJsonString).
    UpTo(usize),
}

/// Reads the values that the rules request. Values read before an error are still reported.
pub fn read(rules: &[FeedbackRule], raw: Raw, object: &Value) -> (Vec<FeedbackValue>, Feedback) {
    if rules.is_empty() {
        return (Vec::new(), Feedback::None);
    }
    let (mut values, mut errors) = (Vec::new(), Vec::new());
    let mut take = |name: &str, found: &[&Value], errors: &mut Vec<String>| match value(name, found, raw) {
        // The list of values is a map by name: the first one wins.
        Ok(Some(new)) if values.iter().all(|v: &FeedbackValue| v.name != new.name) => values.push(new),
        Ok(_) => {}
        Err(error) => errors.push(error),
    };
    for rule in rules {
        if rule.type_ == "WellKnownStatus" {
            match well_known(object) {
                Ok(found) => {
                    for (name, one) in found {
                        take(name, one.as_slice(), &mut errors);
                    }
                }
                Err(error) => errors.push(error),
            }
            continue;
        }
        for path in &rule.json_paths {
            let (_, version) = split_version(text(object, "apiVersion"));
            if !path.version.is_empty() && path.version != version {
                errors.push(format!(
                    "version set in the path {} is not matched for the related resource",
                    path.name
                ));
                continue;
            }
            match JsonPath::relaxed(&path.path) {
                Ok(parsed) => take(&path.name, &parsed.find(object), &mut errors),
                Err(error) => errors.push(format!(
                    "failed to parse json path {} of {} with error: {error}",
                    path.path, path.name
                )),
            }
        }
    }
    let outcome = if errors.is_empty() { Feedback::Synced } else { Feedback::Failed(aggregate(&errors)) };
    (values, outcome)
}

/// Nothing is read, because the executor of the work may not read the object.
pub fn withheld(rules: &[FeedbackRule], why: &str) -> Feedback {
    if rules.is_empty() { Feedback::None } else { Feedback::Failed(why.to_owned()) }
}

fn split_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// Several errors as one text, as in Kubernetes.
fn aggregate(errors: &[String]) -> String {
    match errors {
        [one] => one.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}

type Named<'a> = (&'static str, Option<&'a Value>);

fn well_known(object: &Value) -> Result<Vec<Named<'_>>, String> {
    let condition = |type_: &str| {
        object
            .pointer("/status/conditions")
            .and_then(Value::as_array)
            .and_then(|all| all.iter().find(|c| text(c, "type") == type_))
            .and_then(|c| c.get("status"))
    };
    let status = |key: &str| object.get("status").and_then(|s| s.get(key));
    let (api_version, kind) = (text(object, "apiVersion"), text(object, "kind"));
    match (api_version, kind) {
        ("apps/v1", "Deployment") => Ok(vec![
            ("ReadyReplicas", status("readyReplicas")),
            ("Replicas", status("replicas")),
            ("AvailableReplicas", status("availableReplicas")),
        ]),
        ("apps/v1", "DaemonSet") => Ok(vec![
            ("NumberReady", status("numberReady")),
            ("DesiredNumberScheduled", status("desiredNumberScheduled")),
            ("NumberAvailable", status("numberAvailable")),
        ]),
        ("batch/v1", "Job") => {
            Ok(vec![("JobComplete", condition("Complete")), ("JobSucceeded", status("succeeded"))])
        }
        ("v1", "Pod") => Ok(vec![("PodReady", condition("Ready")), ("PodPhase", status("phase"))]),
        _ => {
            let (group, version) = split_version(api_version);
            let slash = if group.is_empty() { format!("/{version}") } else { format!("{group}/{version}") };
            Err(format!("cannot find the wellknown statuses for resource with gvk {slash}, Kind={kind}"))
        }
    }
}

/// Returns the value of one path. If there are several, only the first counts, unless they can be reported
/// together as JSON.
fn value(name: &str, found: &[&Value], raw: Raw) -> Result<Option<FeedbackValue>, String> {
    let field = match (found, raw) {
        ([] | [Value::Null], _) => return Ok(None),
        ([_, _, ..], Raw::UpTo(most)) => json_text(name, &serde_json::json!(found), most)?,
        ([Value::Bool(b), ..], _) => {
            FieldValue { type_: FIELD_BOOLEAN.into(), boolean: Some(*b), ..FieldValue::default() }
        }
        ([Value::String(s), ..], _) => {
            FieldValue { type_: FIELD_STRING.into(), string: Some(s.clone()), ..FieldValue::default() }
        }
        ([Value::Number(n), ..], _) if n.is_i64() => {
            FieldValue { type_: FIELD_INTEGER.into(), integer: n.as_i64(), ..FieldValue::default() }
        }
        ([other], Raw::UpTo(most)) => json_text(name, other, most)?,
        ([Value::Null, ..], Raw::Refused) => return Ok(None),
        ([other, ..], Raw::Refused) => {
            let type_ = match other {
                Value::Array(_) => "[]interface {}",
                Value::Object(_) => "map[string]interface {}",
                _ => "float64",
            };
            return Err(format!("the type {type_} of the value for {name} is not found"));
        }
    };
    Ok(Some(FeedbackValue { name: name.into(), value: field }))
}

fn json_text(name: &str, value: &Value, most: usize) -> Result<FieldValue, String> {
    let text = value.to_string();
    if text.len() > most.min(MAX_JSON_RAW) {
        return Err(format!(
            "the length of returned json raw string for name {name} is larger than the maximum length {}",
            most.min(MAX_JSON_RAW)
        ));
    }
    Ok(FieldValue { type_: FIELD_JSON_RAW.into(), json_raw: Some(text), ..FieldValue::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rules(value: Value) -> Vec<FeedbackRule> {
        serde_json::from_value(value).expect("rules")
    }

    #[test]
    fn ocm_090_well_known_values_of_a_deployment() {
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "status": {"replicas": 2, "readyReplicas": 1}});
        let (values, outcome) = read(&rules(json!([{"type": "WellKnownStatus"}])), Raw::Refused, &object);
        let read: Vec<_> = values.iter().map(|v| (v.name.as_str(), v.value.integer)).collect();
        assert_eq!(read, [("ReadyReplicas", Some(1)), ("Replicas", Some(2))], "a missing value is no value");
        assert_eq!(outcome, Feedback::Synced);
    }

    #[test]
    fn ocm_090_unknown_kinds_and_versions_are_errors_of_the_feedback_only() {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap"});
        let (_, outcome) = read(&rules(json!([{"type": "WellKnownStatus"}])), Raw::Refused, &object);
        assert_eq!(
            outcome,
            Feedback::Failed(
                "cannot find the wellknown statuses for resource with gvk /v1, Kind=ConfigMap".into()
            )
        );
        let rules = rules(
            json!([{"type": "JSONPaths", "jsonPaths": [{"name": "x", "path": ".a", "version": "v2"}]}]),
        );
        assert!(matches!(read(&rules, Raw::Refused, &object).1, Feedback::Failed(_)));
        assert_eq!(read(&[], Raw::Refused, &object), (vec![], Feedback::None));
    }

    #[test]
    fn ocm_090_values_that_are_not_plain() {
        let object = json!({"apiVersion": "v1", "kind": "X", "l": [1, 2], "m": {"a": true}, "f": 1.5, "n": null,
            "long": ["x".repeat(1024)], "s": "text", "big": [{"v": 1}, {"v": "b"}]});
        let path = |path: &str| {
            rules(json!([{"type": "JSONPaths", "jsonPaths": [{"name": "v", "path": path},
            {"name": "s", "path": ".s"}]}]))
        };
        let json = |text: &str| Some(text.to_owned());
        for (at, raw, expected) in [
            (".l", None, json("[1,2]")),
            (".m", None, json(r#"{"a":true}"#)),
            (".f", None, json("1.5")),
            (".big[*].v", Some(1), json(r#"[1,"b"]"#)),
        ] {
            let (values, outcome) = read(&path(at), Raw::UpTo(MAX_JSON_RAW), &object);
            assert_eq!((values[0].value.json_raw.clone(), outcome), (expected, Feedback::Synced), "{at}");
            let (values, outcome) = read(&path(at), Raw::Refused, &object);
            assert_eq!(
                values.last().and_then(|v| v.value.string.as_deref()),
                Some("text"),
                "others are read"
            );
            match raw {
                Some(first) => assert_eq!(values[0].value.integer, Some(first), "the first of several"),
                None => assert!(
                    matches!(outcome, Feedback::Failed(e) if e.contains("of the value for v")),
                    "{at}"
                ),
            }
        }
        let (values, outcome) = read(&path(".long"), Raw::UpTo(4096), &object);
        assert_eq!(values.len(), 1);
        assert!(matches!(outcome, Feedback::Failed(e) if e.ends_with("the maximum length 1024")));
        assert_eq!(read(&path(".n"), Raw::Refused, &object).1, Feedback::Synced, "null is no value");
        let (values, outcome) = read(&path(".l["), Raw::Refused, &object);
        assert_eq!(values.len(), 1, "{values:?}");
        assert!(
            matches!(outcome, Feedback::Failed(e) if e.starts_with("failed to parse json path .l[ of v"))
        );
    }
}
