//! Objects that no envelope can hold in their present form (KS-141). Where an older form of them was delivered, that stays: leaving
//! it out of the envelope would remove a live object because its latest change can't be delivered.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use machinery::json::DEPTH_MAX;
use runtime::failure::message_of;
use serde_json::Value;

use super::super::{Controller, SyncError};
use crate::{
    content::{Content, Identity, Original, Wrapee},
    wrapped::{Mailbox, Seen},
};

/// The older forms that are kept, by destination.
#[derive(Default)]
pub(in crate::controller) struct Kept(HashMap<String, HashMap<Arc<Identity>, Arc<Content>>>);

impl Controller {
    /// Why no envelope can hold it.
    fn unwrappable(&self, content: &Content) -> Option<String> {
        let Content { identity, json, depth, .. } = content;
        let max_size = self.config.limits.max_size;
        let max_depth = DEPTH_MAX - self.config.transport.nesting();
        if json.len() > max_size {
            Some(format!("{identity}: size {} exceeds the maximum {max_size}", json.len()))
        } else if *depth > max_depth {
            Some(format!("{identity}: nesting of {depth} levels exceeds the maximum {max_depth}"))
        } else {
            None
        }
    }

    /// Whether an object was delivered before and can't be in its present form. Cost: a look at each object's size; for those
    /// that are too large one at each envelope.
    pub(super) fn has_older(&self, wrapees: &[Wrapee], there: &BTreeMap<String, Mailbox>) -> bool {
        let holds = |mailbox: &Mailbox, identity| mailbox.values().any(|seen| seen.items.contains(identity));
        wrapees.iter().any(|wrapee| {
            let identity = &wrapee.content.identity;
            self.unwrappable(&wrapee.content).is_some()
                && there.values().any(|mailbox| holds(mailbox, identity))
        })
    }
}

/// Makes what a Binding lists fit into envelopes.
pub(super) struct Fitting<'a> {
    pub(super) controller: &'a Controller,
    /// What was kept before.
    pub(super) before: &'a Kept,
    /// What is kept now.
    pub(super) kept: Kept,
    /// A line for each object that does not fit (KS-097).
    pub(super) errors: Vec<String>,
    troubled: HashSet<(Arc<Identity>, Option<String>)>,
}

impl<'a> Fitting<'a> {
    pub(super) fn new(controller: &'a Controller, before: &'a Kept) -> Self {
        Self { controller, before, kept: Kept::default(), errors: Vec::new(), troubled: HashSet::new() }
    }

    /// Gives `wrapees` without those that can't be wrapped, or with the form of them that the destination has: where that is not
    /// known, it costs a read of the envelope that holds it.
    pub(super) async fn fit(
        &mut self,
        destination: &str,
        wrapees: Vec<Wrapee>,
        mailbox: Option<&Mailbox>,
    ) -> Result<Vec<Wrapee>, SyncError> {
        let (mut fitting, mut read) = (Vec::with_capacity(wrapees.len()), HashMap::new());
        for Wrapee { content, create_only } in wrapees {
            let Some(problem) = self.controller.unwrappable(&content) else {
                fitting.push(Wrapee { content, create_only });
                continue;
            };
            // What has a form of its own in each destination may be too large in one of them.
            let place = content.customised.then(|| destination.to_owned());
            let line = place.as_ref().map_or(problem.clone(), |place| format!("{problem} in {place}"));
            if self.troubled.insert((content.identity.clone(), place)) {
                self.errors.push(line);
            }
            if let Some(older) = self.older(destination, &content, mailbox, &mut read).await? {
                let kept = self.kept.0.entry(destination.to_owned()).or_default();
                kept.insert(content.identity.clone(), older.clone());
                fitting.push(Wrapee { content: older, create_only });
            }
        }
        Ok(fitting)
    }

    async fn older(
        &self,
        destination: &str,
        now: &Content,
        mailbox: Option<&Mailbox>,
        read: &mut HashMap<String, Vec<Value>>,
    ) -> Result<Option<Arc<Content>>, SyncError> {
        if let Some(content) = self.before.0.get(destination).and_then(|known| known.get(&now.identity)) {
            return Ok(Some(content.clone()));
        }
        let holds = |seen: &Seen| !seen.deleting && seen.items.contains(&now.identity);
        let holder = mailbox.and_then(|mailbox| mailbox.iter().find(|(_, seen)| holds(seen)));
        let Some((name, _)) = holder else { return Ok(None) };
        if !read.contains_key(name) {
            let Controller { writer, config, .. } = self.controller;
            let envelope = writer.read(destination, name).await;
            let envelope = envelope.map_err(|error| SyncError::Wrapped(message_of(&error)))?;
            let objects = envelope.map(|envelope| config.transport.objects(&envelope));
            read.insert(name.clone(), objects.unwrap_or_default());
        }
        let objects = read.get(name).map(Vec::as_slice).unwrap_or_default();
        Ok(objects.iter().find_map(|object| as_it_was(object, now)).map(Arc::new))
    }
}

/// The content of a delivered object, if it is an older form of `now`. Of which generation it was is not known.
fn as_it_was(object: &Value, now: &Content) -> Option<Content> {
    let Original { resource, uid, .. } = &now.original;
    let original = Original { resource: resource.clone(), uid: uid.clone(), ..Original::default() };
    Content::new(object, original).filter(|content| content.identity == now.identity)
}
