//! Older forms of objects that no envelope can hold in their present form (KS-141). Pure.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use apis::{constants::ORIGIN_OBJECT_GENERATIONS_ANNOTATION, control::generation_key};
use serde_json::Value;

use crate::{
    content::{Content, Original},
    identity::Identity,
    plugin::Transport,
};

/// The older forms that stay delivered, by destination.
#[derive(Default)]
pub(super) struct OlderForms(HashMap<String, HashMap<Arc<Identity>, Arc<Content>>>);

impl OlderForms {
    pub(super) fn get(&self, destination: &str, identity: &Identity) -> Option<&Arc<Content>> {
        self.0.get(destination)?.get(identity)
    }

    /// Keeps the older form of an object for a destination.
    pub(super) fn keep(&mut self, destination: &str, older_form: Arc<Content>) {
        let forms = self.0.entry(destination.to_owned()).or_default();
        forms.insert(older_form.identity.clone(), older_form);
    }
}

/// The objects of an envelope, and their generations as far as they are known (OCM-139).
#[derive(Default)]
pub(super) struct DeliveredEnvelope {
    objects: Vec<Value>,
    generations: BTreeMap<String, i64>,
}

impl DeliveredEnvelope {
    /// Reads an envelope.
    pub(super) fn new(envelope: &Value, transport: &dyn Transport) -> Self {
        Self { objects: transport.objects(envelope), generations: told_generations(envelope) }
    }

    /// Returns the delivered object as content, if it is an older form of `now`.
    pub(super) fn as_it_was(&self, now: &Content) -> Option<Content> {
        let Original { resource, uid, .. } = &now.original;
        let Identity { group, kind, namespace, name } = &*now.identity;
        let generation = self.generations.get(&generation_key(group, kind, namespace, name));
        let original = Original {
            resource: resource.clone(),
            uid: uid.clone(),
            generation: generation.copied().unwrap_or_default(),
            ..Original::default()
        };
        let is_it = |object: &&Value| Identity::of(object).as_ref() == Some(&*now.identity);
        Content::new(self.objects.iter().find(is_it)?, original)
    }
}

fn told_generations(envelope: &Value) -> BTreeMap<String, i64> {
    let annotations = envelope.get("metadata").and_then(|metadata| metadata.get("annotations"));
    let reported =
        annotations.and_then(|all| all.get(ORIGIN_OBJECT_GENERATIONS_ANNOTATION)).and_then(Value::as_str);
    reported.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}
