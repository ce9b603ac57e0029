//! Objects that no envelope can hold in their present form (KS-141). Where an older form of them was delivered, that stays: leaving
//! it out of the envelope would remove a live object because its latest change can't be delivered.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use apis::{constants::ORIGIN_OBJECT_GENERATIONS_ANNOTATION, control::generation_key};
use machinery::json::DEPTH_MAX;
use serde_json::Value;

use super::super::Controller;
use crate::{
    content::{Content, Identity, Original, Wrapee},
    wrapped::{Mailbox, Origin, Seen},
};

/// The older forms that are kept, by destination.
#[derive(Default)]
pub(in crate::controller) struct Kept(HashMap<String, HashMap<Arc<Identity>, Arc<Content>>>);

impl Kept {
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

    /// Whether an envelope can hold it.
    pub(super) fn is_wrappable(&self, content: &Content) -> bool {
        self.size(content) <= self.config.limits.max_size && content.depth <= self.max_depth()
    }

    /// Why no envelope can hold it.
    pub(super) fn why_not(&self, content: &Content) -> String {
        let (Content { identity, depth, .. }, max_size) = (content, self.config.limits.max_size);
        let size = self.size(content);
        if size > max_size {
            format!("{identity}: size {size} exceeds the maximum {max_size}")
        } else {
            format!("{identity}: nesting of {depth} levels exceeds the maximum {}", self.max_depth())
        }
    }

    /// Whether one of `destinations` has an older form of an object that can't be wrapped as it is now. Cost: a look at each
    /// object's size; for those that are too large one at each envelope.
    pub(super) fn has_older(
        &self,
        origin: &Origin,
        wrapees: &[Wrapee],
        destinations: &BTreeSet<&str>,
        there: &BTreeMap<String, Mailbox>,
        kept: &Kept,
    ) -> bool {
        let mut large =
            wrapees.iter().map(|wrapee| &*wrapee.content).filter(|content| !self.is_wrappable(content));
        let has = |destination: &str, identity: &Arc<Identity>| {
            kept.get(destination, identity).is_some()
                || self.holder(origin, destination, there.get(destination), identity).is_some()
        };
        large.any(|content| destinations.iter().any(|destination| has(destination, &content.identity)))
    }

    /// Name of the envelope that holds an object in a mailbox: one of the Binding's own or, when two deliver the same, of another.
    fn holder(
        &self,
        origin: &Origin,
        destination: &str,
        mailbox: Option<&Mailbox>,
        identity: &Arc<Identity>,
    ) -> Option<String> {
        let holds = |seen: &Seen| !seen.deleting && seen.items.contains(identity);
        let own = mailbox.and_then(|mailbox| mailbox.iter().find(|(_, seen)| holds(seen)));
        let own = own.map(|(name, _)| name.clone());
        own.or_else(|| self.index.lock().neighbour(origin, destination, identity))
    }
}

/// Makes what a Binding lists fit into the envelopes of single destinations.
pub(super) struct Fitting<'a> {
    controller: &'a Controller,
    origin: &'a Origin,
    /// What was kept before.
    before: &'a Kept,
    /// What is kept now.
    pub(super) kept: Kept,
    /// A line for each object that does not fit (KS-097), and for each destination if it has a form of its own there.
    pub(super) errors: Vec<String>,
    troubled: HashSet<(Arc<Identity>, Option<String>)>,
}

/// The objects of an envelope, and their generations as far as they are known (OCM-139).
#[derive(Default)]
struct Envelope {
    objects: Vec<Value>,
    generations: BTreeMap<String, i64>,
}

impl<'a> Fitting<'a> {
    pub(super) fn new(controller: &'a Controller, origin: &'a Origin, before: &'a Kept) -> Self {
        let (errors, troubled) = (Vec::new(), HashSet::new());
        Self { controller, origin, before, kept: Kept::default(), errors, troubled }
    }

    /// Gives `wrapees` without those that can't be wrapped, or with the form of them that the destination has: where that is not
    /// known, it costs a read of the envelope that holds it.
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
            self.tell(destination, &content);
            if let Some(older) = self.older(destination, &content, mailbox, &mut read).await? {
                let kept = self.kept.0.entry(destination.to_owned()).or_default();
                kept.insert(content.identity.clone(), older.clone());
                fitting.push(Wrapee { content: older, create_only });
            }
        }
        Ok(fitting)
    }

    fn tell(&mut self, destination: &str, content: &Content) {
        let place = content.customised.then(|| destination.to_owned());
        let line = self.controller.why_not(content);
        let line = place.as_ref().map_or(line.clone(), |place| format!("{line} in {place}"));
        if self.troubled.insert((content.identity.clone(), place)) {
            self.errors.push(line);
        }
    }

    async fn older(
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
    /// The content of a delivered object that is an older form of `now`.
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
    let told =
        annotations.and_then(|all| all.get(ORIGIN_OBJECT_GENERATIONS_ANNOTATION)).and_then(Value::as_str);
    told.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}
