//! The interface of a transport for the generic controller (KS-080), and the implementation for OCM (KS-082);
//! [`bundle`] has another implementation.

pub mod bundle;

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    content::{self, Digest, Wrapee},
    identity::Identity,
};

/// A wrapped object could not be decoded.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UnwrapError(pub String);

/// The payload of a wrapped object: everything but metadata and status.
#[derive(Clone, Debug)]
pub struct Envelope {
    /// The encoded value of [`EnvelopeKind::payload`].
    pub payload: Arc<str>,
    /// Digest of the payload. [`Transport::unwrap`] returns the same digest for the object that the server
    /// stored.
    pub fingerprint: Digest,
}

/// The content of a wrapped object that was read back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unwrapped {
    /// The contained objects in order: the gloss, with the digests that are needed to notice double delivery
    /// (KS-147).
    pub items: Vec<Item>,
    /// Digest of the payload.
    pub fingerprint: Digest,
}

/// One object inside a wrapped object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Identity of the object.
    pub identity: Arc<Identity>,
    /// Digest of the object.
    pub digest: Digest,
    /// True if the object is delivered create-only.
    pub create_only: bool,
}

/// A transport. It is stateless and knows one kind of envelope. Naming, labelling, sharding, customisation
/// and garbage collection are generic code (KS-080).
pub trait Transport: Send + Sync + 'static {
    /// API version, kind and plural resource of the envelope.
    fn kind(&self) -> EnvelopeKind;
    /// Wraps objects in the given order. An empty list gives an empty envelope.
    fn wrap(&self, wrapees: &[&Wrapee]) -> Envelope;
    /// Returns the fingerprint that [`Transport::wrap`] would return, without encoding anything.
    fn fingerprint(&self, wrapees: &[&Wrapee]) -> Digest;
    /// Returns the objects in an envelope, in order; empty if the envelope cannot be decoded.
    fn objects(&self, wrapped: &Value) -> Vec<Value>;
    /// Decodes an envelope of this kind, also one that a server stored.
    ///
    /// # Errors
    ///
    /// If the envelope does not have the form that this transport writes.
    fn unwrap(&self, wrapped: &Value) -> Result<Unwrapped, UnwrapError>;
    /// Bytes of an envelope's payload that belong to no object (KS-145).
    fn base_size(&self) -> usize;
    /// Levels of objects and lists around each object in an envelope.
    fn nesting(&self) -> usize;
    /// Bytes that programs which limit envelopes count for an object beyond its JSON (KS-141).
    fn frame(&self) -> usize;
    /// Bytes that `wrapee` adds to an envelope beyond its own JSON (KS-145).
    fn extra_size(&self, wrapee: &Wrapee) -> usize;
}

/// The API resource of envelopes.
#[derive(Clone, Copy, Debug)]
pub struct EnvelopeKind {
    /// API group.
    pub group: &'static str,
    /// Version.
    pub version: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Plural.
    pub plural: &'static str,
    /// The top-level field that holds the objects.
    pub payload: &'static str,
}

/// The transport with ManifestWorks as envelopes (KS-082).
#[derive(Clone, Copy, Debug, Default)]
pub struct Ocm;

impl Ocm {
    fn config(wrapee: &Wrapee) -> Option<Value> {
        let content = &wrapee.content;
        wrapee.create_only.then(|| {
            json!({"resourceIdentifier": {"group": content.identity.group, "resource": content.original.resource,
                    "namespace": content.identity.namespace, "name": content.identity.name},
                "updateStrategy": {"type": "CreateOnly"}})
        })
    }
}

impl Ocm {
    /// The fields of the spec other than the manifests.
    fn rest(wrapees: &[&Wrapee]) -> Value {
        let configs: Vec<Value> = wrapees.iter().filter_map(|w| Self::config(w)).collect();
        if configs.is_empty() { json!({}) } else { json!({ "manifestConfigs": configs }) }
    }
}

impl Transport for Ocm {
    fn kind(&self) -> EnvelopeKind {
        EnvelopeKind {
            group: "work.open-cluster-management.io",
            version: "v1",
            kind: "ManifestWork",
            plural: "manifestworks",
            payload: "spec",
        }
    }

    fn wrap(&self, wrapees: &[&Wrapee]) -> Envelope {
        let rest = Self::rest(wrapees);
        let mut spec =
            String::with_capacity(64 + wrapees.iter().map(|w| w.content.json.len() + 1).sum::<usize>());
        spec.push('{');
        if let Some(configs) = rest.get("manifestConfigs") {
            spec.push_str("\"manifestConfigs\":");
            spec.push_str(&configs.to_string());
            spec.push(',');
        }
        spec.push_str("\"workload\":{\"manifests\":[");
        for (index, wrapee) in wrapees.iter().enumerate() {
            if index > 0 {
                spec.push(',');
            }
            spec.push_str(&wrapee.content.json);
        }
        spec.push_str("]}}");
        Envelope {
            payload: spec.into(),
            fingerprint: fingerprint(&rest, wrapees.iter().map(|w| &w.content.digest)),
        }
    }

    fn fingerprint(&self, wrapees: &[&Wrapee]) -> Digest {
        fingerprint(&Self::rest(wrapees), wrapees.iter().map(|w| &w.content.digest))
    }

    fn objects(&self, wrapped: &Value) -> Vec<Value> {
        wrapped.get("spec").map(|spec| manifests(spec).to_vec()).unwrap_or_default()
    }

    fn unwrap(&self, wrapped: &Value) -> Result<Unwrapped, UnwrapError> {
        let Some(spec) = wrapped.get("spec").filter(|spec| spec.is_object()) else {
            return Err(UnwrapError("spec is missing".into()));
        };
        let nothing = Vec::new();
        let manifests = manifests(spec);
        let mut rest = without_manifests(spec);
        strip_defaults(&mut rest);
        let configs = rest.get("manifestConfigs").and_then(Value::as_array).unwrap_or(&nothing);
        let once = |identity: &Identity| {
            configs.iter().any(|config| {
                let target = config.get("resourceIdentifier");
                let field =
                    |key: &str| target.and_then(|t| t.get(key)).and_then(Value::as_str).unwrap_or_default();
                config.pointer("/updateStrategy/type").and_then(Value::as_str) == Some("CreateOnly")
                    && field("group") == identity.group
                    && field("namespace") == identity.namespace
                    && field("name") == identity.name
            })
        };
        let digests: Vec<Digest> = manifests.iter().map(content::digest).collect();
        let fingerprint = fingerprint(&Value::Object(rest.clone()), digests.iter());
        let mut items = Vec::with_capacity(manifests.len());
        for (manifest, digest) in manifests.iter().zip(digests) {
            // A manifest of another writer may be unreadable. Then the fingerprint differs, and the envelope
            // is replaced.
            if let Some(identity) = Identity::of(manifest) {
                items.push(Item { create_only: once(&identity), identity: Arc::new(identity), digest });
            }
        }
        Ok(Unwrapped { items, fingerprint })
    }

    fn base_size(&self) -> usize {
        r#"{"manifestConfigs":[],"workload":{"manifests":[]}}"#.len()
    }

    fn nesting(&self) -> usize {
        // The ManifestWork, its spec, the workload, the list of manifests.
        4
    }

    fn frame(&self) -> usize {
        // OCM counts a manifest in its protobuf encoding: twice a tag and a length of three bytes.
        8
    }

    fn extra_size(&self, wrapee: &Wrapee) -> usize {
        1 + Self::config(wrapee).map_or(0, |config| config.to_string().len() + 1)
    }
}

fn fingerprint<'a>(rest: &Value, digests: impl Iterator<Item = &'a Digest>) -> Digest {
    let manifests = content::combine(digests.map(Digest::as_slice));
    content::combine([content::digest(rest).as_slice(), manifests.as_slice()])
}

/// Drops what the ManifestWork CRD defaults, so that the stored spec compares equal to the written one
/// (KS-091).
fn strip_defaults(rest: &mut serde_json::Map<String, Value>) {
    if let Some(Value::Array(configs)) = rest.get_mut("manifestConfigs") {
        for config in configs.iter_mut().filter_map(Value::as_object_mut) {
            if config.get("feedbackScrapeType").and_then(Value::as_str) == Some("Poll") {
                config.remove("feedbackScrapeType");
            }
        }
        if configs.is_empty() {
            rest.remove("manifestConfigs");
        }
    }
}

fn manifests(spec: &Value) -> &[Value] {
    spec.pointer("/workload/manifests").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Returns the fields of a ManifestWork's spec other than the manifests.
fn without_manifests(spec: &Value) -> serde_json::Map<String, Value> {
    let mut copy = serde_json::Map::new();
    for (key, value) in spec.as_object().into_iter().flatten() {
        if key != "workload" {
            copy.insert(key.clone(), value.clone());
        } else if let Some(workload) = value.as_object() {
            let others: serde_json::Map<String, Value> = workload
                .iter()
                .filter(|(k, _)| *k != "manifests")
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            if !others.is_empty() {
                copy.insert(key.clone(), Value::Object(others));
            }
        }
    }
    copy
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::content::{Content, Original};

    pub(super) fn wrapee(kind: &str, name: &str, create_only: bool) -> Wrapee {
        let object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "n"}});
        let original = Original {
            resource: format!("{}s", kind.to_lowercase()),
            uid: name.into(),
            ..Original::default()
        };
        let content = Content::new(&object, original).expect("complete");
        Wrapee { content: Arc::new(content), create_only }
    }

    fn spec(envelope: &Envelope) -> Value {
        serde_json::from_str(&envelope.payload).expect("an envelope is JSON")
    }

    #[test]
    fn ks_082_create_only_objects_get_a_config_and_no_others() {
        let (once, always) = (wrapee("ConfigMap", "once", true), wrapee("ConfigMap", "always", false));
        assert_eq!(
            spec(&Ocm.wrap(&[&always, &once])),
            json!({"manifestConfigs": [{"resourceIdentifier": {"group": "", "resource": "configmaps", "namespace": "n",
                    "name": "once"}, "updateStrategy": {"type": "CreateOnly"}}],
                "workload": {"manifests": [
                    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "always", "namespace": "n"}},
                    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "once", "namespace": "n"}}]}})
        );
        assert_eq!(spec(&Ocm.wrap(&[&always])).get("manifestConfigs"), None);
        assert_eq!(
            spec(&Ocm.wrap(&[])),
            json!({"workload": {"manifests": []}}),
            "an empty list, an empty envelope"
        );
    }

    #[test]
    fn ks_080_unwrap_reads_what_wrap_wrote_also_after_defaulting() {
        let (once, always) = (wrapee("ConfigMap", "once", true), wrapee("ConfigMap", "always", false));
        let envelope = Ocm.wrap(&[&once, &always]);
        let mut stored = json!({"spec": spec(&envelope)});
        stored["spec"]["manifestConfigs"][0]["feedbackScrapeType"] = json!("Poll");
        stored["spec"]["workload"]["manifests"][1]["metadata"]["labels"] = json!({});
        let seen = Ocm.unwrap(&stored).expect("readable");
        assert_eq!(seen.fingerprint, envelope.fingerprint);
        let names: Vec<_> = seen.items.iter().map(|i| (i.identity.name.as_str(), i.create_only)).collect();
        assert_eq!(names, [("once", true), ("always", false)]);
    }

    #[test]
    fn ks_084_any_tampering_changes_the_fingerprint() {
        let one = wrapee("ConfigMap", "a", false);
        let envelope = Ocm.wrap(&[&one]);
        for (pointer, value) in [
            ("/spec/workload/manifests/0/data", json!({"k": "v"})),
            ("/spec/deleteOption", json!({"propagationPolicy": "Orphan"})),
            ("/spec/manifestConfigs", json!([{"resourceIdentifier": {"resource": "x", "name": "y"}}])),
        ] {
            let mut stored = json!({"spec": spec(&envelope)});
            let (parent, key) = pointer.rsplit_once('/').expect("has a slash");
            stored.pointer_mut(parent).expect("exists")[key] = value;
            assert_ne!(Ocm.unwrap(&stored).expect("readable").fingerprint, envelope.fingerprint, "{pointer}");
        }
    }

    #[test]
    fn ks_145_sizes_add_up_to_the_envelope() {
        let all = [wrapee("ConfigMap", "a", true), wrapee("Secret", "b", false), wrapee("Secret", "c", true)];
        let sum =
            Ocm.base_size() + all.iter().map(|w| w.content.json.len() + Ocm.extra_size(w)).sum::<usize>();
        let real = Ocm.wrap(&all.iter().collect::<Vec<_>>()).payload.len();
        assert!(sum >= real && sum - real <= 4, "{sum} {real}");
    }
}
