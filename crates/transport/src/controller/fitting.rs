//! Objects that no envelope can hold in their present form (KS-141). If an older form was delivered, that
//! form stays: leaving the object out of the envelope would delete a live object because its latest change
//! cannot be delivered.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use super::{
    older_forms::{DeliveredEnvelope, OlderForms},
    packing::Packing,
    shared::Shared,
};
use crate::{
    content::{Content, Wrapee},
    identity::Identity,
    wrapped::{KnownEnvelope, Mailbox, Origin},
    write::Writer,
};

/// Returns whether one of `destinations` holds an older form of an object that cannot be wrapped now.
/// Cost: a look at the size of each object, and for each object that is too large a look at each
/// envelope.
pub(super) fn has_older(
    shared: &Shared,
    origin: &Origin,
    wrapees: &[Wrapee],
    destinations: &BTreeSet<&str>,
    there: &BTreeMap<String, Mailbox>,
    older_forms: &OlderForms,
) -> bool {
    let packing = Packing::new(&shared.config);
    let mut large =
        wrapees.iter().map(|wrapee| &*wrapee.content).filter(|content| !packing.is_wrappable(content));
    let has = |destination: &str, identity: &Arc<Identity>| {
        older_forms.get(destination, identity).is_some()
            || holder(shared, origin, destination, there.get(destination), identity).is_some()
    };
    large.any(|content| destinations.iter().any(|destination| has(destination, &content.identity)))
}

/// Returns the name of the envelope that holds an object in a mailbox: one of the Binding's own, or one
/// of another Binding that delivers the same object.
fn holder(
    shared: &Shared,
    origin: &Origin,
    destination: &str,
    mailbox: Option<&Mailbox>,
    identity: &Arc<Identity>,
) -> Option<String> {
    let holds = |seen: &KnownEnvelope| !seen.deleting && seen.items.contains(identity);
    let own = mailbox.and_then(|mailbox| mailbox.iter().find(|(_, seen)| holds(seen)));
    let own = own.map(|(name, _)| name.clone());
    own.or_else(|| {
        shared.with(|state| state.envelopes().envelope_of_other_binding(origin, destination, identity))
    })
}

/// Makes the objects of a Binding fit into the envelopes of single destinations.
pub(super) struct EnvelopeFitter<'a> {
    shared: &'a Shared,
    writer: &'a Writer,
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

impl<'a> EnvelopeFitter<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        writer: &'a Writer,
        origin: &'a Origin,
        before: &'a OlderForms,
    ) -> Self {
        let (errors, reported_problems) = (Vec::new(), HashSet::new());
        Self { shared, writer, origin, before, older_forms: OlderForms::default(), errors, reported_problems }
    }

    /// Returns `wrapees` without the objects that cannot be wrapped, or with the older form that the
    /// destination has. If that form is not cached, reads the envelope that holds it.
    pub(super) async fn fit(
        &mut self,
        destination: &str,
        wrapees: Vec<Wrapee>,
        mailbox: Option<&Mailbox>,
    ) -> Result<Vec<Wrapee>, kube::Error> {
        let packing = Packing::new(&self.shared.config);
        let (mut fitting, mut read) = (Vec::with_capacity(wrapees.len()), HashMap::new());
        for Wrapee { content, create_only } in wrapees {
            if packing.is_wrappable(&content) {
                fitting.push(Wrapee { content, create_only });
                continue;
            }
            self.report_problem(destination, &content, packing.why_not(&content));
            if let Some(older_form) = self.older_form(destination, &content, mailbox, &mut read).await? {
                self.older_forms.keep(destination, older_form.clone());
                fitting.push(Wrapee { content: older_form, create_only });
            }
        }
        Ok(fitting)
    }

    fn report_problem(&mut self, destination: &str, content: &Content, line: String) {
        let place = content.customised.then(|| destination.to_owned());
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
        read: &mut HashMap<String, DeliveredEnvelope>,
    ) -> Result<Option<Arc<Content>>, kube::Error> {
        if let Some(content) = self.before.get(destination, &now.identity) {
            return Ok(Some(content.clone()));
        }
        let holder = holder(self.shared, self.origin, destination, mailbox, &now.identity);
        let Some(name) = holder else { return Ok(None) };
        if !read.contains_key(&name) {
            let found = self.writer.read(destination, &name).await?;
            let transport = &*self.shared.config.transport;
            let envelope = found.map(|found| DeliveredEnvelope::new(&found, transport));
            read.insert(name.clone(), envelope.unwrap_or_default());
        }
        Ok(read.get(&name).and_then(|envelope| envelope.as_it_was(now)).map(Arc::new))
    }
}
