//! Objects that no envelope can hold in their present form (KS-141). If an older form was delivered, that
//! form stays: leaving the object out of the envelope would delete a live object because its latest change
//! cannot be delivered.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use apis::{constants::ORIGIN_OBJECT_GENERATIONS_ANNOTATION, control::generation_key};
use machinery::json::DEPTH_MAX;
use serde_json::Value;

use super::super::Controller;
use crate::{
    content::{Content, Original, Wrapee},
    identity::Identity,
    wrapped::{KnownEnvelope, Mailbox, Origin},
};

/// The older forms that stay delivered, by destination.
#[derive(Default)]
pub(in crate::controller) struct OlderForms(HashMap<String, HashMap<Arc<Identity>, Arc<Content>>>);

impl OlderForms {
    fn get(&self, destination: &str, identity: &Identity) -> Option<&Arc<Content>> {
        self.0.get(destination)?.get(identity)
    }
}

impl Controller {
    fn size(&self, content: &Content) -> usize {
        content.json.len() + self.config.transport.frame()
    }

    fn max_depth(&self) -> usize {
        DEPTH_MAX - self.config.transport.nesting()
    }

    /// Returns whether an envelope can hold the object.
    pub(super) fn is_wrappable(&self, content: &Content) -> bool {
        self.size(content) <= self.config.limits.max_size && content.depth <= self.max_depth()
    }

    /// Returns why no envelope can hold the object.
    pub(super) fn why_not(&self, content: &Content) -> String {
        let (Content { identity, depth, .. }, max_size) = (content, self.config.limits.max_size);
        let size = self.size(content);
        if size > max_size {
            format!("{identity}: size {size} exceeds the maximum {max_size}")
        } else {
            format!("{identity}: nesting of {depth} levels exceeds the maximum {}", self.max_depth())
        }
    }

    /// Returns whether one of `destinations` holds an older form of an object that cannot be wrapped now.
    /// Cost: a look at the size of each object, and for each object that is too large a look at each
    /// envelope.
    pub(super) fn has_older(
        &self,
        origin: &Origin,
        wrapees: &[Wrapee],
        destinations: &BTreeSet<&str>,
        there: &BTreeMap<String, Mailbox>,
        older_forms: &OlderForms,
    ) -> bool {
        let mut large =
            wrapees.iter().map(|wrapee| &*wrapee.content).filter(|content| !self.is_wrappable(content));
        let has = |destination: &str, identity: &Arc<Identity>| {
            older_forms.get(destination, identity).is_some()
                || self.holder(origin, destination, there.get(destination), identity).is_some()
        };
        large.any(|content| destinations.iter().any(|destination| has(destination, &content.identity)))
    }

    /// Returns the name of the envelope that holds an object in a mailbox: one of the Binding's own, or one
    /// of another Binding that delivers the same object.
    fn holder(
        &self,
        origin: &Origin,
        destination: &str,
        mailbox: Option<&Mailbox>,
        identity: &Arc<Identity>,
    ) -> Option<String> {
        let holds = |seen: &KnownEnvelope| !seen.deleting && seen.items.contains(identity);
        let own = mailbox.and_then(|mailbox| mailbox.iter().find(|(_, seen)| holds(seen)));
        let own = own.map(|(name, _)| name.clone());
        own.or_else(|| self.index.lock().envelope_of_other_binding(origin, destination, identity))
    }
}

/// Makes the objects of a Binding fit into the envelopes of single destinations.
pub(super) struct EnvelopeFitter<'a> {
    controller: &'a Controller,
    origin: &'a Origin,
    /// The older forms after the previous run.
    before: &'a OlderForms,
    /// The older forms after this run.
    pub(super) older_forms: OlderForms,
    /// A line for each object that does not fit (KS-097); a separate line for each destination that has its
    /// own form of the object.
    pub(super) errors: Vec<String>,
    reported_problems: HashSet<(Arc<Identity>, Option<String>)>,
}

/// The objects of an envelope, and their generations as far as they are known (OCM-139).
#[derive(Default)]
struct Envelope {
    objects: Vec<Value>,
    generations: BTreeMap<String, i64>,
}

impl<'a> EnvelopeFitter<'a> {
    pub(super) fn new(controller: &'a Controller, origin: &'a Origin, before: &'a OlderForms) -> Self {
        let (errors, reported_problems) = (Vec::new(), HashSet::new());
        Self { controller, origin, before, older_forms: OlderForms::default(), errors, reported_problems }
    }

    /// Returns `wrapees` without the objects that cannot be wrapped, or with the older form that the
    /// destination has. If that form is not cached, reads the envelope that holds it.
    pub(super) async fn fit(
        &mut self,
        destination: &str,
        wrapees: Vec<Wrapee>,
        mailbox: Option<&Mailbox>,
    ) -> Result<Vec<Wrapee>, kube::Error> {
        let (mut fitting, mut read) = (Vec::with_capacity(wrapees.len()), HashMap::new());
        for Wrapee { content, create_only } in wrapees {
            if self.controller.is_wrappable(&content) {
                fitting.push(Wrapee { content, create_only });
                continue;
            }
            self.report_problem(destination, &content);
            if let Some(older_form) = self.older_form(destination, &content, mailbox, &mut read).await? {
                let older_forms = self.older_forms.0.entry(destination.to_owned()).or_default();
                older_forms.insert(content.identity.clone(), older_form.clone());
                fitting.push(Wrapee { content: older_form, create_only });
            }
        }
        Ok(fitting)
    }

    fn report_problem(&mut self, destination: &str, content: &Content) {
        let place = content.customised.then(|| destination.to_owned());
        let line = self.controller.why_not(content);
        let line = place.as_ref().map_or(line.clone(), |place| format!("{line} in {place}"));
        if self.reported_problems.insert((content.identity.clone(), place)) {
            self.errors.push(line);
        }
    }

    async fn older_form(
        &self,
        destination: &str,
        now: &Content,
        mailbox: Option<&Mailbox>,
        read: &mut HashMap<String, Envelope>,
    ) -> Result<Option<Arc<Content>>, kube::Error> {
        if let Some(content) = self.before.get(destination, &now.identity) {
            return Ok(Some(content.clone()));
        }
        let holder = self.controller.holder(self.origin, destination, mailbox, &now.identity);
        let Some(name) = holder else { return Ok(None) };
        if !read.contains_key(&name) {
            let Controller { writer, config, .. } = self.controller;
            let found = writer.read(destination, &name).await?;
            let envelope = found.map(|found| Envelope {
                objects: config.transport.objects(&found),
                generations: told_generations(&found),
            });
            read.insert(name.clone(), envelope.unwrap_or_default());
        }
        Ok(read.get(&name).and_then(|envelope| envelope.as_it_was(now)).map(Arc::new))
    }
}

impl Envelope {
    /// Returns the delivered object as content, if it is an older form of `now`.
    fn as_it_was(&self, now: &Content) -> Option<Content> {
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
