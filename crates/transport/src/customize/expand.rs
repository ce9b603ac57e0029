//! Template expansion in the texts of an object (KS-120 … KS-127).
//!
//! Templates are parsed once per object, and expanded once per object and set of properties.

use machinery::template::{Limits, Template};
use serde_json::Value;

use super::properties::Properties;
use crate::{clean, identity::Identity};

/// Most steps that the expansion of one object for one destination may take, over all its texts (KS-123).
/// Each text has its own limits as well.
const STEPS: usize = 1_000_000;
/// Most bytes of all expanded texts of one object.
const BYTES: usize = 2 * 1024 * 1024;

/// An object that requests customisation, with its templates parsed.
#[derive(Debug)]
pub struct Templated {
    object: Value,
    leaves: Vec<Leaf>,
}

#[derive(Debug)]
struct Leaf {
    /// Path in the syntax of `Value::pointer`.
    pointer: String,
    /// Path for users: `.key` and `[index]`.
    path: String,
    template: Template,
}

impl Templated {
    /// Returns `None` unless the object requests expansion and contains a template. That does not depend on
    /// destinations (KS-124).
    pub fn of(object: &Value) -> Option<Self> {
        if !clean::wants_expansion(object) {
            return None;
        }
        let mut leaves = Vec::new();
        find(object, &mut String::new(), &mut String::new(), &mut leaves);
        (!leaves.is_empty()).then(|| Self { object: object.clone(), leaves })
    }

    /// Returns the object for `destination`, or its errors, one line for each faulty text (KS-126).
    pub fn expand(
        &self,
        destination: &str,
        identity: &Identity,
        properties: &Properties,
    ) -> Result<Value, Vec<String>> {
        let (mut object, mut errors) = (self.object.clone(), Vec::new());
        let (mut steps, mut bytes) = (STEPS, BYTES);
        for leaf in &self.leaves {
            let name = format!("{destination}/{identity}{}", leaf.path);
            let own = Limits::default();
            let limits = Limits { steps: own.steps.min(steps), output: own.output.min(bytes), ..own };
            let (expanded, taken) = leaf.template.expand_counting(&name, properties, &limits);
            steps = steps.saturating_sub(taken);
            match expanded {
                Ok(text) => {
                    bytes = bytes.saturating_sub(text.len());
                    if let Some(slot) = object.pointer_mut(&leaf.pointer) {
                        *slot = Value::String(text);
                    }
                }
                Err(error) => errors.push(error.to_string()),
            }
        }
        if errors.is_empty() { Ok(object) } else { Err(errors) }
    }
}

/// Finds the texts that contain a template, in sorted order of keys. Keys themselves are never templates
/// (KS-121).
fn find(value: &Value, pointer: &mut String, path: &mut String, leaves: &mut Vec<Leaf>) {
    let (pointer_length, path_length) = (pointer.len(), path.len());
    match value {
        Value::String(text) if text.contains("{{") => {
            let template = Template::new(text, &Limits::default());
            leaves.push(Leaf { pointer: pointer.clone(), path: path.clone(), template });
        }
        Value::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_by_key(|(key, _)| *key);
            for (key, member) in sorted {
                pointer.push('/');
                pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
                path.push('.');
                path.push_str(key);
                find(member, pointer, path, leaves);
                pointer.truncate(pointer_length);
                path.truncate(path_length);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                pointer.push_str(&format!("/{index}"));
                path.push_str(&format!("[{index}]"));
                find(item, pointer, path, leaves);
                pointer.truncate(pointer_length);
                path.truncate(path_length);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use super::*;
    use serde_json::json;

    fn map(annotation: &str, data: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "site", "namespace": "shop",
            "annotations": {"control.kubestellar.io/expand-templates": annotation}}, "data": data})
    }

    fn properties(pairs: &[(&str, &str)]) -> Properties {
        Arc::new(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>())
    }

    fn expand(object: &Value) -> Result<Value, Vec<String>> {
        let identity = Identity::of(object).expect("complete");
        let all = properties(&[("clusterName", "boreas"), ("n", "7")]);
        Templated::of(object).expect("templates").expand("boreas", &identity, &all)
    }

    #[test]
    fn ks_124_only_the_annotation_with_a_template_wants_customisation() {
        for (annotation, text, wants) in [
            ("true", "{{.x}}", true),
            ("true", "{{ broken", true),
            ("true", "plain", false),
            ("true", "{ {.x}}", false),
            ("yes", "{{.x}}", false),
        ] {
            assert_eq!(
                Templated::of(&map(annotation, json!({"k": text}))).is_some(),
                wants,
                "{annotation} {text}"
            );
        }
        assert!(Templated::of(&map("true", json!({"{{.key}}": "plain"}))).is_none(), "keys are no templates");
    }

    #[test]
    fn ks_121_texts_anywhere_are_expanded_and_nothing_else() {
        let mut object = map(
            "true",
            json!({"url": "https://{{.clusterName}}/", "plain": "}} {", "number": "{{ .n }}", "a/b~c": "{{.n}}"}),
        );
        object["metadata"]["labels"] = json!({"where": "{{ .clusterName }}", "{{.n}}": "x"});
        object["list"] = json!([1, "{{.n}}", [{"x": "{{ len .clusterName }}"}], true, null]);
        let got = expand(&object).expect("fine");
        assert_eq!(
            got["data"],
            json!({"url": "https://boreas/", "plain": "}} {", "number": "7", "a/b~c": "7"}),
            "results stay texts"
        );
        assert_eq!(got["metadata"]["labels"], json!({"where": "boreas", "{{.n}}": "x"}));
        assert_eq!(got["list"], json!([1, "7", [{"x": "6"}], true, null]));
    }

    #[test]
    fn ks_126_errors_name_destination_object_path_and_cause() {
        let object =
            map("true", json!({"url": "https://{{.siteId}}/", "bad": "{{ if }}", "list": ["{{.y}}"]}));
        assert_eq!(
            expand(&object).expect_err("three"),
            [
                "template: boreas/ConfigMap(shop/site).data.bad:1: missing value for if",
                "template: boreas/ConfigMap(shop/site).data.list[0]:1:2: executing \
                 \"boreas/ConfigMap(shop/site).data.list[0]\" at <.y>: map has no entry for key \"y\"",
                "template: boreas/ConfigMap(shop/site).data.url:1:10: executing \
                 \"boreas/ConfigMap(shop/site).data.url\" at <.siteId>: map has no entry for key \"siteId\"",
            ]
        );
    }

    /// KS-123: the limits of single texts do not add up to an unlimited object.
    #[test]
    fn ks_123_an_object_is_bounded_as_a_whole() {
        let texts = |text: &str, count: usize| {
            let all: serde_json::Map<String, Value> =
                (0..count).map(|n| (format!("k{n}"), json!(text))).collect();
            map("true", Value::Object(all))
        };
        let long = texts(&format!("{{{{ range 900 }}}}{}{{{{ end }}}}", "x".repeat(1000)), 4);
        assert!(expand(&long).expect_err("too long")[0].contains("output exceeds"));
        let slow = texts("{{ range 30000 }}{{ $x := 1 }}{{ end }}", 30);
        assert!(expand(&slow).expect_err("too slow")[0].contains("steps"));
    }
}
