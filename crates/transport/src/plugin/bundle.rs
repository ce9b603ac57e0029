//! A transport without OCM. Envelopes are ConfigMaps, for any program that fetches them and applies their
//! objects.
//!
//! `data["objects.json"]` is a `v1` `List` of the objects, so that `kubectl get cm NAME -o
//! go-template='{{index .data "objects.json"}}' | kubectl apply -f -` is an agent. If some objects are
//! create-only, `data["createOnly.json"]` lists these: group, resource, namespace and name of each.

use serde_json::{Value, json};

use super::{Envelope, EnvelopeKind, Item, Transport, UnwrapError, Unwrapped, fingerprint};
use crate::{
    content::{self, Digest, Wrapee, quoted_length},
    identity::Identity,
};

/// The transport with ConfigMaps as envelopes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bundle;

const OBJECTS: &str = "objects.json";
const CREATE_ONLY: &str = "createOnly.json";
const HEAD: &str = r#"{"apiVersion":"v1","kind":"List","items":["#;

fn reference(wrapee: &Wrapee) -> Option<Value> {
    let content = &wrapee.content;
    wrapee.create_only.then(|| {
        json!({"group": content.identity.group, "resource": content.original.resource,
            "namespace": content.identity.namespace, "name": content.identity.name})
    })
}

fn references(wrapees: &[&Wrapee]) -> Value {
    Value::Array(wrapees.iter().filter_map(|wrapee| reference(wrapee)).collect())
}

fn parsed(data: &serde_json::Map<String, Value>, key: &str) -> Result<Option<Value>, UnwrapError> {
    let Some(text) = data.get(key) else { return Ok(None) };
    let text = text.as_str().ok_or_else(|| UnwrapError(format!("data[{key:?}] is no text")))?;
    let value = serde_json::from_str(text).map_err(|error| UnwrapError(format!("data[{key:?}]: {error}")))?;
    Ok(Some(value))
}

impl Transport for Bundle {
    fn kind(&self) -> EnvelopeKind {
        EnvelopeKind { group: "", version: "v1", kind: "ConfigMap", plural: "configmaps", payload: "data" }
    }

    fn wrap(&self, wrapees: &[&Wrapee]) -> Envelope {
        let mut list = String::from(HEAD);
        for (index, wrapee) in wrapees.iter().enumerate() {
            if index > 0 {
                list.push(',');
            }
            list.push_str(&wrapee.content.json);
        }
        list.push_str("]}");
        let mut data = json!({OBJECTS: list});
        let references = references(wrapees);
        if references.as_array().is_some_and(|all| !all.is_empty()) {
            data[CREATE_ONLY] = references.to_string().into();
        }
        Envelope { payload: data.to_string().into(), fingerprint: self.fingerprint(wrapees) }
    }

    fn fingerprint(&self, wrapees: &[&Wrapee]) -> Digest {
        fingerprint(&references(wrapees), wrapees.iter().map(|wrapee| &wrapee.content.digest))
    }

    fn objects(&self, wrapped: &Value) -> Vec<Value> {
        let data = wrapped.get("data").and_then(Value::as_object);
        let list = data.and_then(|data| parsed(data, OBJECTS).ok().flatten());
        match list.and_then(|mut list| Some(list.get_mut("items")?.take())) {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        }
    }

    fn unwrap(&self, wrapped: &Value) -> Result<Unwrapped, UnwrapError> {
        let Some(data) = wrapped.get("data").and_then(Value::as_object) else {
            return Err(UnwrapError("data is missing".into()));
        };
        let list =
            parsed(data, OBJECTS)?.ok_or_else(|| UnwrapError(format!("data[{OBJECTS:?}] is missing")))?;
        let nothing = Vec::new();
        let objects = list.get("items").and_then(Value::as_array).unwrap_or(&nothing);
        let references = parsed(data, CREATE_ONLY)?.unwrap_or_else(|| json!([]));
        let once = |identity: &Identity| {
            references.as_array().unwrap_or(&nothing).iter().any(|reference| {
                let field = |key: &str| reference.get(key).and_then(Value::as_str).unwrap_or_default();
                field("group") == identity.group
                    && field("namespace") == identity.namespace
                    && field("name") == identity.name
            })
        };
        let digests: Vec<Digest> = objects.iter().map(content::digest).collect();
        let items = objects.iter().zip(&digests).filter_map(|(object, digest)| {
            let identity = Identity::of(object)?;
            Some(Item { create_only: once(&identity), identity: identity.into(), digest: *digest })
        });
        let items = items.collect();
        // A key that this transport does not write counts as a difference.
        let extra: Vec<&String> = data.keys().filter(|key| *key != OBJECTS && *key != CREATE_ONLY).collect();
        let rest = if extra.is_empty() { references } else { json!([references, extra]) };
        Ok(Unwrapped { items, fingerprint: fingerprint(&rest, digests.iter()) })
    }

    fn base_size(&self) -> usize {
        json!({OBJECTS: format!("{HEAD}]}}"), CREATE_ONLY: "[]"}).to_string().len()
    }

    fn nesting(&self) -> usize {
        // The List and its items; in the ConfigMap they are one text.
        2
    }

    fn frame(&self) -> usize {
        0
    }

    fn extra_size(&self, wrapee: &Wrapee) -> usize {
        let content = &wrapee.content;
        let reference = reference(wrapee).map_or(0, |config| quoted_length(&config.to_string()) + 1);
        1 + content.quoted_length() - content.json.len() + reference
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::wrapee, *};

    fn stored(envelope: &Envelope) -> Value {
        json!({"data": serde_json::from_str::<Value>(&envelope.payload).expect("an envelope is JSON")})
    }

    /// KS-080: another kind of envelope behind the same interface.
    #[test]
    fn ks_080_a_bundle_is_a_list_in_a_config_map() {
        let (once, always) = (wrapee("ConfigMap", "once", true), wrapee("Secret", "always", false));
        let envelope = Bundle.wrap(&[&always, &once]);
        let seen = stored(&envelope);
        let list: Value = serde_json::from_str(seen["data"][OBJECTS].as_str().expect("text")).expect("JSON");
        assert_eq!((list["kind"].as_str(), list["items"].as_array().map(Vec::len)), (Some("List"), Some(2)));
        let back = Bundle.unwrap(&seen).expect("readable");
        assert_eq!(back.fingerprint, envelope.fingerprint);
        let names: Vec<_> = back.items.iter().map(|i| (i.identity.name.as_str(), i.create_only)).collect();
        assert_eq!(names, [("always", false), ("once", true)]);
        let empty = Bundle.wrap(&[]);
        assert_eq!(Bundle.unwrap(&stored(&empty)).expect("readable").fingerprint, empty.fingerprint);
    }

    #[test]
    fn ks_084_tampering_with_a_bundle_shows() {
        let envelope = Bundle.wrap(&[&wrapee("ConfigMap", "a", false)]);
        for (key, value) in [
            ("other", "x".to_owned()),
            (CREATE_ONLY, r#"[{"resource":"configmaps","namespace":"n","name":"a"}]"#.to_owned()),
            (OBJECTS, format!("{HEAD}]}}")),
        ] {
            let mut tampered = stored(&envelope);
            tampered["data"][key] = value.into();
            let seen = Bundle.unwrap(&tampered).expect("readable");
            assert_ne!(seen.fingerprint, envelope.fingerprint, "{key}");
        }
        let mut broken = stored(&envelope);
        broken["data"][OBJECTS] = "{".into();
        assert!(Bundle.unwrap(&broken).is_err());
    }

    #[test]
    fn ks_145_sizes_add_up_to_the_bundle() {
        let all = [wrapee("ConfigMap", "a\"b", true), wrapee("Secret", "b", false)];
        let sum = Bundle.base_size()
            + all.iter().map(|w| w.content.json.len() + Bundle.extra_size(w)).sum::<usize>();
        let real = Bundle.wrap(&all.iter().collect::<Vec<_>>()).payload.len();
        assert!(sum >= real && sum - real <= 8, "{sum} {real}");
        let counted = all.iter().map(|w| w.content.quoted.get().copied());
        assert!(counted.eq(all.iter().map(|w| Some(quoted_length(&w.content.json)))), "counted once");
    }
}
