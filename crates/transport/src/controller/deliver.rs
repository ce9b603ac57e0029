//! Brings the mailboxes of one Binding into the desired state.
//!
//! As long as no object requests customisation, all destinations get the same envelopes. In a mailbox that is
//! in order, only the changed envelopes are looked at.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use apis::control::{Binding, Extent, bounded_errors_to};
use futures::{StreamExt, stream};
use runtime::failure::message_of;

use super::{
    expansion::{Expansions, expand_all, tailored},
    fitting::{EnvelopeFitter, has_older},
    layout::{Layout, Scope},
    mailbox::{Mailboxes, Order, Outcome},
    memory::BindingMemory,
    older_forms::OlderForms,
    packing::{Packing, PlannedShards, Shards},
    work::SyncError,
};
use crate::{
    content::{Content, Wrapee},
    customize::properties::Properties,
    shard::Names,
    wrapped::{Mailbox, Origin},
};

/// Limit of the errors reported for one object's templates, so that there is room for those of other objects.
const OF_ONE_OBJECT: Extent = Extent { lines: 100, bytes: 32 * 1024 };

/// The result of a delivery.
#[derive(Default)]
pub(super) struct Delivered {
    /// For each mailbox that was looked at, in order (KS-093).
    pub(super) outcomes: Vec<Outcome>,
    /// Lines about objects that are not delivered.
    pub(super) errors: Vec<String>,
}

/// What one delivery is about.
struct Delivery<'a> {
    origin: &'a Origin,
    names: Names<'a>,
    destinations: BTreeSet<&'a str>,
    /// The envelopes as they are, by mailbox.
    there: BTreeMap<String, Mailbox>,
    /// How often other clients changed the envelopes in a mailbox.
    foreign_changes: HashMap<String, u64>,
}

/// How a mailbox is dealt with.
enum Look {
    /// It is in order.
    Settled,
    /// It cannot be said what belongs there.
    Unknown(String),
    /// These envelopes are compared.
    Compare(Scope),
}

impl Mailboxes {
    /// Shards, plans and writes.
    pub(super) async fn deliver(
        &self,
        binding: &Binding,
        wrapees: Vec<Wrapee>,
        memory: &mut BindingMemory,
    ) -> Result<Delivered, SyncError> {
        let name = binding.metadata.name.as_deref().unwrap_or_default();
        // Read the counters before the envelopes: a foreign change in between is then looked at again.
        let (origin, (foreign_changes, there)) = self.shared.with(|state| {
            let origin = state.origin(name);
            let delivered = state.delivered(&origin);
            (origin, delivered)
        });
        let uid = binding.metadata.uid.as_deref().unwrap_or_default();
        let names = Names { binding: &origin.binding, binding_uid: uid, wds: &origin.wds };
        if let Some(problem) = names.problem(&self.shared.config.limits) {
            return Ok(Delivered { errors: vec![problem], ..Delivered::default() });
        }
        let listed = binding.spec.destinations.iter().map(|d| d.cluster_id.as_str());
        let destinations = listed.filter(|d| !d.is_empty()).collect();
        let delivery = Delivery { origin: &origin, names, destinations, there, foreign_changes };
        // Take the layout out of memory, so that it is not used again if this call ends early.
        let layout = memory.layout.take();
        let mut errors = Vec::new();
        let (shards, frozen) = self.shards(&delivery, wrapees, memory, layout.as_ref(), &mut errors).await?;
        let fresh = shards.layout(&delivery.names);
        let looks = delivery.looks(layout.as_ref(), fresh.as_ref(), &shards, frozen);
        let generation = binding.metadata.generation.unwrap_or_default().to_string();
        let (outcomes, settled) = self.carry_out(&delivery, looks, &shards, &generation).await;
        memory.layout = fresh.map(|fresh| Layout { settled, ..fresh });
        Ok(Delivered { outcomes, errors })
    }

    /// Writes into the mailboxes, several at a time. Returns the results in order, and the mailboxes that are in order
    /// with their counters of foreign changes.
    async fn carry_out(
        &self,
        delivery: &Delivery<'_>,
        looks: BTreeMap<&str, Look>,
        shards: &Shards,
        generation: &str,
    ) -> (Vec<Outcome>, HashMap<String, u64>) {
        let (no_shards, no_seen) = (PlannedShards::new(), Mailbox::default());
        let (mut settled, mut outcomes, mut jobs) = (HashMap::new(), Vec::new(), Vec::new());
        for (place, look) in looks {
            match look {
                Look::Settled => drop(settled.insert(place.to_owned(), delivery.foreign_change(place))),
                Look::Unknown(why) => {
                    let failure = Some(why);
                    outcomes.push(Outcome { place: place.to_owned(), failure, ..Outcome::default() });
                }
                Look::Compare(scope) => {
                    let listed = delivery.destinations.contains(place);
                    let wanted = if listed { shards.of(place).unwrap_or(&no_shards) } else { &no_shards };
                    let seen = delivery.there.get(place).unwrap_or(&no_seen);
                    let origin = delivery.origin;
                    jobs.push(self.settle(Order { place, origin, generation, shards: wanted, seen, scope }));
                }
            }
        }
        let width = self.shared.config.parallel_destinations.max(1);
        outcomes.extend(stream::iter(jobs).buffer_unordered(width).collect::<Vec<Outcome>>().await);
        outcomes.sort_by(|a, b| a.place.cmp(&b.place));
        let in_order =
            outcomes.iter().filter(|o| o.is_in_order() && delivery.destinations.contains(o.place.as_str()));
        settled.extend(in_order.map(|o| (o.place.clone(), delivery.foreign_change(&o.place))));
        (outcomes, settled)
    }

    /// Computes the envelopes. Returns true if an object could not be expanded; then no change is propagated (KS-096,
    /// KS-127).
    async fn shards(
        &self,
        delivery: &Delivery<'_>,
        wrapees: Vec<Wrapee>,
        memory: &mut BindingMemory,
        layout: Option<&Layout>,
        errors: &mut Vec<String>,
    ) -> Result<(Shards, bool), SyncError> {
        let Delivery { origin, names, destinations, there, .. } = delivery;
        let differ = wrapees.iter().any(|w| w.content.templated.is_some())
            || has_older(&self.shared, origin, &wrapees, destinations, there, &memory.older_forms);
        if differ {
            return self.shards_each(delivery, &wrapees, memory, errors).await;
        }
        memory.expansions = Expansions::default();
        memory.older_forms = OlderForms::default();
        self.shared.with(|state| {
            state.adaptation_mut().properties.set_sensitive(&origin.binding, BTreeSet::new());
        });
        let packing = Packing::new(&self.shared.config);
        let (wrapees, rest): (Vec<_>, Vec<_>) =
            wrapees.into_iter().partition(|wrapee| packing.is_wrappable(&wrapee.content));
        // KS-141.
        errors.extend(rest.iter().map(|wrapee| packing.why_not(&wrapee.content)));
        let placement = layout.map(|layout| &layout.placement);
        Ok((Shards::Same(packing.shard(names, wrapees, placement, there.values())), false))
    }

    /// Computes the envelopes for each destination separately (KS-125).
    async fn shards_each(
        &self,
        delivery: &Delivery<'_>,
        wrapees: &[Wrapee],
        memory: &mut BindingMemory,
        errors: &mut Vec<String>,
    ) -> Result<(Shards, bool), SyncError> {
        let Delivery { origin, names, destinations, there, .. } = delivery;
        let templated: Vec<Arc<Content>> =
            wrapees.iter().filter(|w| w.content.templated.is_some()).map(|w| w.content.clone()).collect();
        let concerned = destinations.iter().filter(|_| !templated.is_empty());
        let concerned: BTreeSet<String> = concerned.map(|d| (*d).to_owned()).collect();
        let properties: BTreeMap<String, Properties> = self.shared.with(|state| {
            // Registered as sensitive together with reading the properties, so that every later change is noticed.
            let all = &mut state.adaptation_mut().properties;
            all.set_sensitive(names.binding, concerned.clone());
            concerned.into_iter().map(|destination| (destination.clone(), all.of(&destination))).collect()
        });
        let known = std::mem::take(&mut memory.expansions);
        // Templates are users' programs. Their cost is bounded, but still too high for a thread of the async
        // runtime.
        let expanded = tokio::task::spawn_blocking(move || expand_all(&known, &templated, &properties));
        let expansions = expanded.await?;
        let (mut troubled, mut failed) = (HashSet::new(), false);
        let packing = Packing::new(&self.shared.config);
        let (mut each, mut fitter) =
            (BTreeMap::new(), EnvelopeFitter::new(&self.shared, &self.writer, origin, &memory.older_forms));
        for destination in destinations {
            let (own, problems) = tailored(destination, wrapees, expansions.of(destination));
            failed |= !problems.is_empty();
            for (identity, lines) in problems {
                // KS-097: each faulty object is reported for its first destination only.
                if troubled.insert(identity.clone()) {
                    let rest = format!("template: {destination}/{identity}: ");
                    errors.extend(bounded_errors_to(OF_ONE_OBJECT, lines, &rest));
                }
            }
            let mailbox = there.get(*destination);
            let own = fitter.fit(destination, own, mailbox).await;
            let shards = own.map(|own| packing.shard(names, own, None, mailbox));
            each.insert((*destination).to_owned(), shards.map_err(|error| message_of(&error)));
        }
        errors.append(&mut fitter.errors);
        (memory.expansions, memory.older_forms) = (expansions, fitter.older_forms);
        Ok((Shards::Each(each), failed))
    }
}

impl Delivery<'_> {
    fn foreign_change(&self, place: &str) -> u64 {
        self.foreign_changes.get(place).copied().unwrap_or_default()
    }

    /// Returns which mailboxes to look at: the destinations, and those that hold envelopes and are no destination any
    /// more. Destinations are left out if the delivery is frozen.
    fn looks(
        &self,
        layout: Option<&Layout>,
        fresh: Option<&Layout>,
        shards: &Shards,
        frozen: bool,
    ) -> BTreeMap<&str, Look> {
        let layouts = layout.zip(fresh);
        let changed = layouts.map(|(layout, fresh)| layout.changed(&fresh.prints)).unwrap_or_default();
        let changed = Arc::new(changed);
        let look = |place: &str| {
            if !self.destinations.contains(place) {
                return Some(Look::Compare(Scope::Everything));
            }
            if frozen {
                return None;
            }
            let scope = layouts.map_or(Scope::Everything, |(layout, _)| {
                layout.scope(place, self.foreign_change(place), &changed)
            });
            Some(match (scope, shards.of(place)) {
                (Scope::Nothing, _) => Look::Settled,
                (_, Err(why)) => Look::Unknown(why.to_owned()),
                (scope, Ok(_)) => Look::Compare(scope),
            })
        };
        let places = self.destinations.iter().copied().chain(self.there.keys().map(String::as_str));
        places.filter_map(|place| Some((place, look(place)?))).collect()
    }
}

#[cfg(test)]
mod tests;
