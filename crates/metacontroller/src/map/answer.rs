//! Parses and validates hook answers (MC-043, MC-044, MC-061, MC-062).

use std::{collections::HashSet, time::Duration};

use serde_json::Value;

use crate::{apply, object, resource::Served};

/// An invalid answer; the text names the faulty element.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub String);

/// Identity of an output: index of its resource in the controller's list, namespace (empty for none) and
/// name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutputRef {
    /// Index of the resource.
    pub rule: usize,
    /// Namespace, or empty.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// A desired output.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// Its identity.
    pub place: OutputRef,
    /// Its body, without the fields that hooks must not set.
    pub body: Value,
}

/// A parsed answer of the map hook.
#[derive(Clone, Debug, PartialEq)]
pub struct Mapped {
    /// In the hook's order.
    pub outputs: Vec<Desired>,
    /// Seconds after which the hook wants to be called again.
    pub again_after: Option<f64>,
}

/// What an answer is validated against.
#[derive(Clone, Copy, Debug)]
pub struct MapAnswerContext<'a> {
    /// The declared outputs.
    pub outputs: &'a [Served],
    /// The parent.
    pub parent: &'a Value,
    /// Namespace of the input, empty if it has none.
    pub input_namespace: &'a str,
}

/// Parses the answer of a map hook. Any error rejects the whole answer (MC-043).
pub fn mapped(context: MapAnswerContext<'_>, answer: &Value) -> Result<Mapped, Invalid> {
    let mut seen = HashSet::new();
    let mut outputs = Vec::new();
    for (index, item) in items(answer)?.iter().enumerate() {
        let desired = desired(context, item).map_err(|why| Invalid(format!("outputs[{index}]: {why}")))?;
        if !seen.insert(desired.place.clone()) {
            return Err(Invalid(format!(
                "outputs[{index}]: duplicate output {}",
                context.display(&desired.place)
            )));
        }
        outputs.push(desired);
    }
    Ok(Mapped { outputs, again_after: again_after(answer)? })
}

/// Parses the answer of a tombstone hook: the outputs to keep. Items of other kinds are ignored.
pub fn kept(
    context: MapAnswerContext<'_>,
    answer: &Value,
) -> Result<(HashSet<OutputRef>, Option<f64>), Invalid> {
    let mut kept = HashSet::new();
    for (index, item) in items(answer)?.iter().enumerate() {
        let (kind, name) = (object::kind(item), object::name(item));
        if kind.is_empty() || name.is_empty() {
            return Err(Invalid(format!("outputs[{index}]: kind and metadata.name are required")));
        }
        let (group, _) = object::api_version(item).split_once('/').unwrap_or_default();
        let of_kind = |served: &Served| served.kind == kind && served.gvr.group == group;
        let Some(rule) = context.outputs.iter().position(of_kind) else { continue };
        if let Ok(namespace) = context.namespace(rule, item) {
            kept.insert(OutputRef { rule, namespace, name: name.to_owned() });
        }
    }
    Ok((kept, again_after(answer)?))
}

fn items(answer: &Value) -> Result<&[Value], Invalid> {
    let Some(fields) = answer.as_object() else {
        return Err(Invalid("the answer is not a JSON object".into()));
    };
    match fields.get("outputs") {
        Some(Value::Array(list)) => Ok(list),
        // Go programs encode an empty list as null.
        Some(Value::Null) => Ok(&[]),
        Some(_) => Err(Invalid("outputs must be a list".into())),
        None => Err(Invalid("outputs is missing".into())),
    }
}

/// The longest pause that a hook can request: a year.
pub(crate) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The shortest pause: a hook that wants to be called all the time is called ten times a second.
const SHORTEST: Duration = Duration::from_millis(100);

/// Reads `resyncAfterSeconds`: a positive number, limited to between a tenth of a second and a year.
pub(crate) fn again_after(answer: &Value) -> Result<Option<f64>, Invalid> {
    match answer.get("resyncAfterSeconds") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Number(number)) => {
            let above_zero = number.as_f64().filter(|secs| secs.is_finite() && *secs > 0.0);
            Ok(above_zero.map(|secs| secs.clamp(SHORTEST.as_secs_f64(), LONGEST.as_secs_f64())))
        }
        Some(_) => Err(Invalid("resyncAfterSeconds must be a number".into())),
    }
}

fn desired(context: MapAnswerContext<'_>, item: &Value) -> Result<Desired, String> {
    if !item.is_object() {
        return Err("is not an object".into());
    }
    let text = |value: Option<&Value>, field: &str| match value.and_then(Value::as_str) {
        Some(text) if !text.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("{field} is required")),
    };
    let api_version = text(item.get("apiVersion"), "apiVersion")?;
    let kind = text(item.get("kind"), "kind")?;
    let meta = item.get("metadata").filter(|meta| meta.is_object());
    let named = meta.and_then(|meta| meta.get("name"));
    if named.is_none() && meta.is_some_and(|meta| meta.get("generateName").is_some()) {
        return Err("metadata.name is required; generateName would make a new object with each call".into());
    }
    let name = text(named, "metadata.name")?;
    let namespace = meta.and_then(|meta| meta.get("namespace")).and_then(Value::as_str).unwrap_or_default();
    if !object::is_segment(&name) || !(namespace.is_empty() || object::is_segment(namespace)) {
        return Err(format!("metadata: {:?} can't be a name", object::display(namespace, &name)));
    }
    let declared = |served: &Served| served.kind == kind && served.gvr.api_version() == api_version;
    let Some(rule) = context.outputs.iter().position(declared) else {
        return Err(format!("undeclared output type {kind}.{api_version}"));
    };
    for field in ["labels", "annotations"] {
        let ok = match meta.and_then(|meta| meta.get(field)) {
            None | Some(Value::Null) => true,
            Some(Value::Object(map)) => map.values().all(Value::is_string),
            Some(_) => false,
        };
        if !ok {
            return Err(format!("metadata.{field} must be a map of strings"));
        }
    }
    let controller = object::controller_uid(item);
    if !controller.is_empty() && controller != object::uid(context.parent) {
        return Err("metadata.ownerReferences names a controller other than the parent".into());
    }
    let namespace = context.namespace(rule, item)?;
    let mut body = apply::sanitized(item.clone());
    if let Some(meta) = object::metadata_mut(&mut body) {
        meta.remove("generateName");
        if namespace.is_empty() {
            meta.remove("namespace");
        } else {
            meta.insert("namespace".into(), namespace.clone().into());
        }
    }
    Ok(Desired { place: OutputRef { rule, namespace, name }, body })
}

impl MapAnswerContext<'_> {
    /// MC-043.3.
    fn namespace(&self, rule: usize, item: &Value) -> Result<String, String> {
        let namespaced = self.outputs.get(rule).is_some_and(|served| served.namespaced);
        let (asked, parent) = (object::namespace(item), object::namespace(self.parent));
        match (namespaced, asked) {
            (false, "") => Ok(String::new()),
            (false, asked) => Err(format!("wrong namespace {asked:?}: the kind is cluster-scoped")),
            (true, "") if !parent.is_empty() => Ok(parent.to_owned()),
            (true, asked) if !parent.is_empty() && asked != parent => {
                Err(format!("wrong namespace {asked:?}: the parent is in {parent:?}"))
            }
            (true, "") if !self.input_namespace.is_empty() => Ok(self.input_namespace.to_owned()),
            (true, "") => Err("namespace required: neither parent nor input has one".into()),
            (true, asked) => Ok(asked.to_owned()),
        }
    }

    fn display(&self, place: &OutputRef) -> String {
        let kind = self.outputs.get(place.rule).map_or("", |served| served.kind.as_str());
        format!("{kind} {}", object::display(&place.namespace, &place.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::rest::Gvr;
    use serde_json::json;

    fn served(group: &str, plural: &str, kind: &str, namespaced: bool) -> Served {
        Served { gvr: Gvr::new(group, "v1", plural), kind: kind.into(), namespaced, has_status: false }
    }

    fn outputs() -> Vec<Served> {
        vec![served("", "configmaps", "ConfigMap", true), served("example.com", "things", "Thing", false)]
    }

    fn read(parent_namespace: &str, input_namespace: &str, list: Value) -> Result<Mapped, String> {
        let parent = json!({"metadata": {"uid": "p", "namespace": parent_namespace}});
        let outputs = outputs();
        let context = MapAnswerContext { outputs: &outputs, parent: &parent, input_namespace };
        mapped(context, &json!({"outputs": list})).map_err(|invalid| invalid.0)
    }

    /// MC-A-44: each error has its text and rejects valid siblings as well.
    #[test]
    fn mc_a_44_faults_reject_the_whole_answer() {
        let good = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "good"}});
        let map = |metadata: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
        let cases = [
            (json!(1), "is not an object"),
            (json!({"kind": "ConfigMap", "metadata": {"name": "a"}}), "apiVersion is required"),
            (json!({"apiVersion": "v1", "metadata": {"name": "a"}}), "kind is required"),
            (
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}),
                "undeclared output type",
            ),
            (
                json!({"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "a"}}),
                "undeclared output type",
            ),
            (map(json!({})), "metadata.name is required"),
            (map(json!({"name": 5})), "metadata.name is required"),
            (map(json!({"generateName": "a-"})), "generateName"),
            (map(json!({"name": "../secrets/a"})), "can't be a name"),
            (map(json!({"name": "a?dryRun=All"})), "can't be a name"),
            (map(json!({"name": "a", "namespace": "ns1/secrets"})), "can't be a name"),
            (map(json!({"name": "a", "namespace": "other"})), "wrong namespace"),
            (map(json!({"name": "good"})), "duplicate output"),
            (map(json!({"name": "good", "namespace": "ns1"})), "duplicate output"),
            (map(json!({"name": "a", "labels": {"n": 5}})), "metadata.labels"),
            (map(json!({"name": "a", "annotations": ["n"]})), "metadata.annotations"),
            (map(json!({"name": "a", "ownerReferences": [{"uid": "x", "controller": true}]})), "controller"),
        ];
        for (item, phrase) in cases {
            let error = read("ns1", "ns1", json!([good, item])).unwrap_err();
            assert!(error.contains(phrase) && error.starts_with("outputs[1]"), "{item}: {error}");
        }
    }

    /// MC-043.3: the namespace of an output that names none.
    #[test]
    fn mc_043_namespaces_default() {
        let place = |parent: &str, input: &str, metadata: Value| {
            read(parent, input, json!([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}]))
                .map(|mapped| mapped.outputs[0].place.namespace.clone())
        };
        assert_eq!(place("ns1", "", json!({"name": "a"})).unwrap(), "ns1");
        assert_eq!(place("", "ns2", json!({"name": "a"})).unwrap(), "ns2");
        assert_eq!(place("", "ns2", json!({"name": "a", "namespace": "x"})).unwrap(), "x");
        assert!(place("", "", json!({"name": "a"})).unwrap_err().contains("namespace required"));
        let thing = json!([{"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a", "namespace": "x"}}]);
        assert!(read("", "", thing).unwrap_err().contains("wrong namespace"));
    }

    /// Any number, however large, results in a pause that can be represented.
    #[test]
    fn a_resync_is_at_most_a_year_off() {
        let read = |secs: f64| again_after(&json!({"resyncAfterSeconds": secs})).unwrap();
        assert_eq!(read(1e19), Some(LONGEST.as_secs_f64()));
        assert_eq!(read(1e-9), Some(0.1));
        assert_eq!(read(f64::MAX), Some(LONGEST.as_secs_f64()));
        assert_eq!((read(1.5), read(0.0), read(-1e19)), (Some(1.5), None, None));
    }

    /// MC-040, MC-044: required fields, and fields that are removed.
    #[test]
    fn mc_044_system_fields_are_stripped() {
        let outputs = outputs();
        let parent = json!({"metadata": {"uid": "p", "namespace": "n"}});
        let context = MapAnswerContext { outputs: &outputs, parent: &parent, input_namespace: "n" };
        for bad in [
            json!(null),
            json!([]),
            json!({}),
            json!({"outputs": {}}),
            json!({"outputs": [1]}),
            json!({"outputs": [], "resyncAfterSeconds": "1"}),
        ] {
            assert!(mapped(context, &bad).is_err(), "{bad}");
        }
        assert_eq!(mapped(context, &json!({"outputs": null})).unwrap().outputs, vec![]);
        let echo = json!({"outputs": [{"apiVersion": "v1", "kind": "ConfigMap", "status": {"a": 1},
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "1", "managedFields": [1], "creationTimestamp": "t"}}]});
        let read = mapped(context, &echo).unwrap();
        let plain =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"}});
        assert_eq!(read.outputs[0].body, plain);
    }

    /// MC-062: the tombstone hook names the outputs to keep; other fields of an item are ignored.
    #[test]
    fn mc_062_kept_outputs_are_named() {
        let outputs = outputs();
        let parent = json!({"metadata": {"uid": "p", "namespace": "n"}});
        let context = MapAnswerContext { outputs: &outputs, parent: &parent, input_namespace: "n" };
        let answer = json!({"outputs": [
            {"apiVersion": "v9", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"changed": "1"}},
            {"apiVersion": "v1", "kind": "Other", "metadata": {"name": "b"}},
        ], "resyncAfterSeconds": 2.5});
        let (kept_places, after) = kept(context, &answer).unwrap();
        assert_eq!(
            kept_places.into_iter().collect::<Vec<_>>(),
            [OutputRef { rule: 0, namespace: "n".into(), name: "a".into() }]
        );
        assert_eq!(after, Some(2.5));
        assert!(kept(context, &json!({})).is_err());
        assert!(kept(context, &json!({"outputs": [{"kind": "ConfigMap"}]})).is_err());
    }
}
