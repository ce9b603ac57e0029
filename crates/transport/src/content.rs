//! Digest and encoded form of one workload object.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use apis::control::generation_key;
use machinery::json::depth;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{customize::expand::Templated, identity::Identity};

/// Digest of an object's meaning: equal for values that an API server would store alike.
pub type Digest = [u8; 32];

/// The WDS object from which a content was made.
#[derive(Clone, Debug, Default)]
pub struct Original {
    /// Plural resource name, lower case.
    pub resource: String,
    /// UID. It names the envelope when each object has an envelope of its own (KS-098).
    pub uid: String,
    /// resourceVersion at the time of reading.
    pub resource_version: String,
    /// Generation at the time of reading; 0 if the kind has no generations.
    pub generation: i64,
}

impl Content {
    /// Encodes an object for delivery. Returns `None` if it has no name or kind. Cost: O(its size).
    pub fn new(object: &Value, original: Original) -> Option<Self> {
        Some(Self {
            identity: Arc::new(Identity::of(object)?),
            original,
            depth: depth(object),
            json: object.to_string().into(),
            digest: digest(object),
            templated: None,
            customised: false,
            quoted: OnceLock::new(),
        })
    }

    /// Bytes that the JSON takes inside a JSON string. Computed on the first call.
    pub fn quoted_length(&self) -> usize {
        *self.quoted.get_or_init(|| quoted_length(&self.json))
    }

    /// The content for one destination; `object` is the result of the expansion.
    pub fn customised(&self, object: &Value) -> Option<Self> {
        let content = Self::new(object, self.original.clone())?;
        (!content.identity.name.is_empty()).then_some(Self { customised: true, ..content })
    }
}

/// Bytes that `text` takes inside a JSON string.
pub(crate) fn quoted_length(text: &str) -> usize {
    text.bytes()
        .map(|byte| match byte {
            b'"' | b'\\' => 2,
            0..=0x1f => 6,
            _ => 1,
        })
        .sum()
}

/// One transformed workload object, encoded once for every envelope that holds it.
#[derive(Clone, Debug)]
pub struct Content {
    /// Identity of the object.
    pub identity: Arc<Identity>,
    /// The WDS object it was made from.
    pub original: Original,
    /// The object as JSON.
    pub json: Arc<str>,
    /// Levels of nested objects and lists.
    pub depth: usize,
    /// Digest of the object.
    pub digest: Digest,
    /// The object's templates, if it requests customisation (KS-124).
    pub templated: Option<Arc<Templated>>,
    /// True if this is the form for one destination.
    pub customised: bool,
    /// See [`Content::quoted_length`].
    pub quoted: OnceLock<usize>,
}

/// A content together with how a Binding wants it delivered.
#[derive(Clone, Debug)]
pub struct Wrapee {
    /// The object.
    pub content: Arc<Content>,
    /// Create the object if it does not exist, and never change it.
    pub create_only: bool,
}

/// Most bytes that the annotation with generations may take; API servers accept 256 KiB of annotations.
const MAX_GENERATIONS_BYTES: usize = 200 * 1024;

/// Returns the annotation with the generations of the objects in an envelope (OCM-139), or `None` if there
/// are none or if it would be too large.
pub fn generations(members: &[Wrapee]) -> Option<String> {
    let counted =
        members.iter().map(|member| &member.content).filter(|content| content.original.generation > 0);
    let generations: BTreeMap<String, i64> = counted
        .map(|content| {
            let Identity { group, kind, namespace, name } = &*content.identity;
            (generation_key(group, kind, namespace, name), content.original.generation)
        })
        .collect();
    let text = serde_json::to_string(&generations).ok()?;
    (!generations.is_empty() && text.len() <= MAX_GENERATIONS_BYTES).then_some(text)
}

/// Digests `value`. Differences that a server adds or normalises do not count: null members, empty labels and
/// annotations, and whole numbers written as floats.
pub fn digest(value: &Value) -> Digest {
    let mut hasher = Sha256::new();
    feed(&mut hasher, value, true);
    hasher.finalize().into()
}

/// Combines digests in order.
pub fn combine<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Digest {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().into()
}

fn feed(hasher: &mut Sha256, value: &Value, top: bool) {
    match value {
        Value::Null => hasher.update(b"n"),
        Value::Bool(b) => hasher.update(if *b { b"t" } else { b"f" }),
        Value::Number(number) => {
            hasher.update(b"#");
            hasher.update(number_text(number).as_bytes());
            hasher.update(b";");
        }
        Value::String(text) => {
            hasher.update(b"s");
            hasher.update((text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        Value::Array(items) => {
            hasher.update(b"[");
            for item in items {
                feed(hasher, item, false);
            }
            hasher.update(b"]");
        }
        Value::Object(members) => {
            hasher.update(b"{");
            for (key, member) in members {
                if member.is_null() || (top && key == "metadata" && empty_metadata(member)) {
                    continue;
                }
                hasher.update((key.len() as u64).to_le_bytes());
                hasher.update(key.as_bytes());
                if top && key == "metadata" {
                    feed_metadata(hasher, member);
                } else {
                    feed(hasher, member, false);
                }
            }
            hasher.update(b"}");
        }
    }
}

fn feed_metadata(hasher: &mut Sha256, metadata: &Value) {
    let Some(members) = metadata.as_object() else { return feed(hasher, metadata, false) };
    hasher.update(b"{");
    for (key, member) in members {
        if member.is_null() || is_empty(member) {
            continue;
        }
        hasher.update((key.len() as u64).to_le_bytes());
        hasher.update(key.as_bytes());
        feed(hasher, member, false);
    }
    hasher.update(b"}");
}

fn empty_metadata(metadata: &Value) -> bool {
    metadata.as_object().is_some_and(|m| m.values().all(|v| v.is_null() || is_empty(v)))
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

/// Prints a float without a fraction as an integer, as Go's JSON encoder does.
fn number_text(number: &serde_json::Number) -> String {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < EXACT => {
            format!("{float:.0}")
        }
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OCM-139: an envelope carries the generations of objects that have one, if there is room.
    #[test]
    fn ocm_139_generations_of_an_envelope() {
        let wrapee = |kind: &str, name: &str, generation: i64| {
            let object = serde_json::json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "n"}});
            let content =
                Content::new(&object, Original { generation, ..Original::default() }).expect("complete");
            Wrapee { content: Arc::new(content), create_only: false }
        };
        let two = [wrapee("Deployment", "a", 3), wrapee("Plain", "b", 0)];
        assert_eq!(generations(&two).as_deref(), Some(r#"{"apps/Deployment/n/a":3}"#));
        assert_eq!(generations(&two[1..]), None);
        let many: Vec<Wrapee> =
            (0..2000).map(|n| wrapee("Deployment", &format!("{n}{}", "x".repeat(100)), 1)).collect();
        assert_eq!(generations(&many), None, "more than an API server takes");
    }
    use serde_json::json;

    #[test]
    fn ks_091_what_a_server_normalises_is_no_difference() {
        let cases = [
            (json!({"metadata": {"name": "a", "labels": {}}}), json!({"metadata": {"name": "a"}}), true),
            (json!({"spec": {"nodePort": null}}), json!({"spec": {}}), true),
            (json!({"spec": {"n": 1.0}}), json!({"spec": {"n": 1}}), true),
            (json!({"spec": {"n": 1.5}}), json!({"spec": {"n": 1}}), false),
            (json!({"spec": {"labels": {}}}), json!({"spec": {}}), false),
            (json!({"a": "b", "c": "d"}), json!({"a": "bc", "d": ""}), false),
            (json!([1, 2]), json!([12]), false),
            (json!([["a"], "b"]), json!([["a", "b"]]), false),
        ];
        for (left, right, equal) in cases {
            assert_eq!(digest(&left) == digest(&right), equal, "{left} / {right}");
        }
    }

    #[test]
    fn ks_126_identities_read_like_the_original() {
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "namespace": "n"}});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}});
        assert_eq!(Identity::of(&deployment).map(|i| i.to_string()).as_deref(), Some("Deployment.apps(n/a)"));
        assert_eq!(Identity::of(&namespace).map(|i| i.to_string()).as_deref(), Some("Namespace(n)"));
        assert_eq!(Identity::of(&json!({"kind": "X"})), None);
    }
}
