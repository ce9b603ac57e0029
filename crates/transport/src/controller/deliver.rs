//! Brings the mailboxes of one Binding into the desired state.
//!
//! As long as no object requests customisation, all destinations get the same envelopes. In a mailbox that is
//! in order, only the changed envelopes are looked at.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use apis::control::{Binding, Extent, bounded_errors_to};
use futures::{StreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use runtime::failure::message_of;

use self::older_forms::EnvelopeFitter;
pub(super) use self::older_forms::OlderForms;
use super::{
    BindingMemory, Controller, SyncError,
    layout::{Layout, Scope},
};
use crate::{
    content::{Content, Wrapee, generations},
    customize::properties::Properties,
    identity::Identity,
    plan::{self, DesiredEnvelope, ExistingEnvelope, Step},
    plugin::{Envelope, Item},
    shard::{self, Names, ShardItem},
    wrapped::{KnownEnvelope, Mailbox, Origin},
    write::{Target, WriteError},
};

mod older_forms;

/// Limit of the errors reported for one object's templates, so that there is room for those of other objects.
const OF_ONE_OBJECT: Extent = Extent { lines: 100, bytes: 32 * 1024 };

/// A planned envelope, for one or all destinations.
struct PlannedEnvelope {
    wanted: DesiredEnvelope,
    members: Vec<Wrapee>,
    envelope: OnceLock<Envelope>,
    contents: OnceLock<Arc<Vec<Item>>>,
}

type PlannedShards = BTreeMap<String, PlannedEnvelope>;

/// The result for one mailbox.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) place: String,
    /// What failed and will be retried.
    pub(super) failure: Option<String>,
    /// Why something is not delivered and not retried.
    pub(super) withheld: Option<String>,
    /// Names that belong to objects of another Binding, with that Binding (KS-098).
    pub(super) taken: BTreeMap<String, Origin>,
}

impl Outcome {
    fn in_order(&self) -> bool {
        self.failure.is_none() && self.withheld.is_none() && self.taken.is_empty()
    }
}

/// The input and the result of an expansion.
struct Expansion {
    of: Arc<Content>,
    properties: Properties,
    result: Result<Arc<Content>, Vec<String>>,
}

/// The last expansions, by destination and original.
#[derive(Default)]
pub(super) struct Expansions(HashMap<String, HashMap<Arc<Identity>, Expansion>>);

impl Expansions {
    /// Returns the cached result for this content with these properties.
    fn known(
        &self,
        destination: &str,
        content: &Arc<Content>,
        properties: &Properties,
    ) -> Option<Result<Arc<Content>, Vec<String>>> {
        let known = self.0.get(destination)?.get(&content.identity)?;
        let same = Arc::ptr_eq(&known.of, content)
            && (Arc::ptr_eq(&known.properties, properties) || known.properties == *properties);
        same.then(|| known.result.clone())
    }
}

impl Controller {
    /// Shards, plans and writes. Returns the result for each destination (KS-093).
    pub(super) async fn deliver(
        &self,
        binding: &Binding,
        wrapees: Vec<Wrapee>,
        memory: &mut BindingMemory,
        errors: &mut Vec<String>,
    ) -> Result<Vec<Outcome>, SyncError> {
        let origin = self.origin(&binding.metadata.name.clone().unwrap_or_default());
        let uid = binding.metadata.uid.clone().unwrap_or_default();
        let names = Names { binding: &origin.binding, binding_uid: &uid, wds: &origin.wds };
        if let Some(problem) = names.problem(&self.config.limits) {
            errors.push(problem);
            return Ok(Vec::new());
        }
        // Read the counters before the envelopes: a foreign change in between is then looked at again.
        let (foreign_changes, there) = {
            let index = self.index.lock();
            (index.foreign_changes(&origin), index.of(&origin))
        };
        let destinations: BTreeSet<&str> = binding
            .spec
            .destinations
            .iter()
            .map(|d| d.cluster_id.as_str())
            .filter(|d| !d.is_empty())
            .collect();
        // Take the layout out of memory, so that it is not used again if this call ends early.
        let layout = memory.layout.take();
        let differ = wrapees.iter().any(|w| w.content.templated.is_some())
            || self.has_older(&origin, &wrapees, &destinations, &there, &memory.older_forms);
        let (shards, frozen) = if differ {
            self.shards_each(&names, &destinations, &wrapees, &there, memory, errors).await?
        } else {
            memory.expansions = Expansions::default();
            self.adaptation.lock().properties.set_sensitive(&origin.binding, BTreeSet::new());
            memory.older_forms = OlderForms::default();
            let (wrapees, rest): (Vec<_>, Vec<_>) =
                wrapees.into_iter().partition(|wrapee| self.is_wrappable(&wrapee.content));
            // KS-141.
            errors.extend(rest.iter().map(|wrapee| self.why_not(&wrapee.content)));
            let placement = layout.as_ref().map(|layout| &layout.placement);
            (Shards::Same(self.shard(&names, wrapees, placement, there.values())), false)
        };
        let fresh = shards.layout(&names);
        let changed = Arc::new(match (&layout, &fresh) {
            (Some(layout), Some(fresh)) => layout.changed(&fresh.prints),
            _ => BTreeSet::new(),
        });
        let foreign_change = |place: &str| foreign_changes.get(place).copied().unwrap_or_default();
        let generation = binding.metadata.generation.unwrap_or_default().to_string();
        let (no_shards, no_seen) = (PlannedShards::new(), Mailbox::default());
        let places: BTreeSet<&str> =
            destinations.iter().copied().chain(there.keys().map(String::as_str)).collect();
        let mut settled = HashMap::new();
        let (mut jobs, mut outcomes) = (Vec::new(), Vec::new());
        for place in places {
            let listed = destinations.contains(place);
            if frozen && listed {
                continue;
            }
            let scope = match (&layout, &fresh) {
                (Some(layout), Some(_)) if listed => layout.scope(place, foreign_change(place), &changed),
                _ => Scope::Everything,
            };
            if scope == Scope::Nothing {
                settled.insert(place.to_owned(), foreign_change(place));
                continue;
            }
            let wanted = match shards.of(place) {
                _ if !listed => &no_shards,
                Ok(wanted) => wanted,
                Err(why) => {
                    let failure = Some(why.to_owned());
                    outcomes.push(Outcome { place: place.to_owned(), failure, ..Outcome::default() });
                    continue;
                }
            };
            let seen = there.get(place).unwrap_or(&no_seen);
            jobs.push(self.settle(place, &origin, &generation, wanted, seen, scope));
        }
        let width = self.config.parallel_destinations.max(1);
        outcomes.extend(stream::iter(jobs).buffer_unordered(width).collect::<Vec<Outcome>>().await);
        outcomes.sort_by(|a, b| a.place.cmp(&b.place));
        let in_order = outcomes.iter().filter(|o| o.in_order() && destinations.contains(o.place.as_str()));
        settled.extend(in_order.map(|o| (o.place.clone(), foreign_change(&o.place))));
        memory.layout = fresh.map(|fresh| Layout { settled, ..fresh });
        Ok(outcomes)
    }

    /// Computes the envelopes for each destination separately (KS-125). Returns true if an object could not
    /// be expanded; then no change is propagated (KS-096, KS-127).
    async fn shards_each(
        &self,
        names: &Names<'_>,
        destinations: &BTreeSet<&str>,
        wrapees: &[Wrapee],
        there: &BTreeMap<String, Mailbox>,
        memory: &mut BindingMemory,
        errors: &mut Vec<String>,
    ) -> Result<(Shards, bool), SyncError> {
        let templated: Vec<Arc<Content>> =
            wrapees.iter().filter(|w| w.content.templated.is_some()).map(|w| w.content.clone()).collect();
        let properties: BTreeMap<String, Properties> = {
            // Register as sensitive before reading the properties, so that every later change is noticed.
            let all = &mut self.adaptation.lock().properties;
            let concerned = destinations.iter().filter(|_| !templated.is_empty());
            let every: BTreeSet<String> = concerned.map(|d| (*d).to_owned()).collect();
            all.set_sensitive(names.binding, every.clone());
            every.into_iter().map(|destination| (destination.clone(), all.of(&destination))).collect()
        };
        let known = std::mem::take(&mut memory.expansions);
        // Templates are users' programs. Their cost is bounded, but still too high for a thread of the async
        // runtime.
        let expanded = tokio::task::spawn_blocking({
            let properties = properties.clone();
            move || expand_all(&known, &templated, &properties)
        });
        let expansions = expanded.await?;
        let (mut troubled, mut failed) = (HashSet::new(), false);
        let origin = self.origin(names.binding);
        let (mut each, mut fitter) =
            (BTreeMap::new(), EnvelopeFitter::new(self, &origin, &memory.older_forms));
        for destination in destinations {
            let (own, problems) = tailored(destination, wrapees, expansions.0.get(*destination));
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
            let shards = own.map(|own| self.shard(names, own, None, mailbox));
            each.insert((*destination).to_owned(), shards.map_err(|error| message_of(&error)));
        }
        errors.append(&mut fitter.errors);
        (memory.expansions, memory.older_forms) = (expansions, fitter.older_forms);
        Ok((Shards::Each(each), failed))
    }

    /// Distributes objects over envelopes. An object stays in its envelope according to `placement`, or else
    /// according to `there`.
    fn shard<'a>(
        &self,
        names: &Names<'_>,
        wrapees: Vec<Wrapee>,
        placement: Option<&BTreeMap<Arc<Identity>, usize>>,
        there: impl IntoIterator<Item = &'a Mailbox>,
    ) -> PlannedShards {
        let transport = &*self.config.transport;
        let mut current = BTreeMap::new();
        if placement.is_none() {
            for (name, seen) in there.into_iter().flat_map(|mailbox| mailbox.iter()) {
                let Some(number) = names.number(name) else { continue };
                for identity in seen.items.iter() {
                    current.entry(identity.clone()).or_insert(number);
                }
            }
        }
        let shard_items: Vec<ShardItem> = wrapees
            .iter()
            .map(|w| ShardItem {
                identity: w.content.identity.clone(),
                uid: w.content.original.uid.clone(),
                size: w.content.json.len() + transport.extra_size(w),
            })
            .collect();
        let current = placement.unwrap_or(&current);
        shard::assign(&shard_items, current, names, &self.config.limits, transport.base_size())
            .into_iter()
            .map(|shard| {
                let members = shard.members.iter().filter_map(|index| wrapees.get(*index).cloned()).collect();
                (shard.name, self.planned(members))
            })
            .collect()
    }

    fn planned(&self, members: Vec<Wrapee>) -> PlannedEnvelope {
        let items = members.iter().map(|w| w.content.identity.clone()).collect();
        let fingerprint = self.config.transport.fingerprint(&members.iter().collect::<Vec<_>>());
        let wanted = DesiredEnvelope { items: Arc::new(items), fingerprint };
        PlannedEnvelope { wanted, members, envelope: OnceLock::new(), contents: OnceLock::new() }
    }

    /// Returns the envelope with its present objects plus those that it will receive ([`Step::Extend`]).
    fn extended(
        &self,
        planned: &PlannedEnvelope,
        have: Option<&Arc<KnownEnvelope>>,
        shards: &PlannedShards,
    ) -> PlannedEnvelope {
        let have = have.map(|seen| seen.items.clone()).unwrap_or_default();
        let given = |w: &&Wrapee| {
            have.contains(&w.content.identity) && !planned.wanted.items.contains(&w.content.identity)
        };
        let moving = shards.values().flat_map(|shard| &shard.members).filter(given);
        self.planned(planned.members.iter().chain(moving).cloned().collect())
    }

    /// Brings one mailbox into the desired state, as far as the names are free.
    async fn settle(
        &self,
        place: &str,
        origin: &Origin,
        generation: &str,
        shards: &PlannedShards,
        seen: &Mailbox,
        scope: Scope,
    ) -> Outcome {
        let existing: BTreeMap<String, ExistingEnvelope> = seen
            .iter()
            .filter(|(name, _)| scope.covers(name))
            .map(|(name, seen)| (name.clone(), seen.existing()))
            .collect();
        let wanted: BTreeMap<String, DesiredEnvelope> = shards
            .iter()
            .filter(|(name, _)| scope.covers(name))
            .map(|(name, planned)| (name.clone(), planned.wanted.clone()))
            .collect();
        let mut plan = plan::plan(&existing, &wanted);
        let mut outcome = Outcome {
            place: place.to_owned(),
            taken: self.taken(place, origin, &wanted),
            ..Outcome::default()
        };
        if self.adaptation.lock().properties.is_terminating(place) && plan.only_deletions() {
            // The hub empties the mailbox of a cluster that is being deleted; filling it again would never
            // end.
            outcome.withheld = Some("its ManagedCluster is being deleted; nothing new goes there".to_owned());
            let mut expected = self.expected.lock();
            for name in wanted.keys() {
                expected.remove(&(place.to_owned(), name.clone()));
            }
        } else {
            let mut expected = self.expected.lock();
            for (name, want) in wanted.iter().filter(|(name, _)| !outcome.taken.contains_key(*name)) {
                expected.insert((place.to_owned(), name.clone()), want.fingerprint);
            }
        }
        for number in 0..plan.phases.len() {
            plan.hold_back(&outcome.taken.keys().cloned().collect(), &existing, &wanted);
            let steps: Vec<_> = plan
                .phases
                .get(number)
                .into_iter()
                .flatten()
                .map(|step| async move {
                    (
                        step.name().to_owned(),
                        self.execute(place, origin, generation, step, shards, seen).await,
                    )
                })
                .collect();
            let results: Vec<(String, Result<(), WriteError>)> =
                stream::iter(steps).buffer_unordered(8).collect().await;
            for (name, result) in results {
                match result {
                    Ok(()) => {}
                    Err(WriteError::Taken(owner)) => {
                        self.expected.lock().remove(&(place.to_owned(), name.clone()));
                        outcome.taken.insert(name, owner);
                    }
                    Err(error @ (WriteError::Request(_) | WriteError::Gone)) => {
                        // The write may have succeeded in spite of the error. Without an expectation, its
                        // event causes a new look.
                        self.expected.lock().remove(&(place.to_owned(), name));
                        outcome.failure.get_or_insert_with(|| error.to_string());
                    }
                }
            }
            if outcome.failure.is_some() {
                break;
            }
        }
        outcome
    }

    /// Returns the wanted names that belong to other Bindings according to the index, without a request.
    fn taken(
        &self,
        place: &str,
        origin: &Origin,
        wanted: &BTreeMap<String, DesiredEnvelope>,
    ) -> BTreeMap<String, Origin> {
        let index = self.index.lock();
        wanted
            .keys()
            .filter_map(|name| {
                let other = index.get(&(place.to_owned(), name.clone()))?;
                (*other.origin != *origin).then(|| (name.clone(), (*other.origin).clone()))
            })
            .collect()
    }

    async fn execute(
        &self,
        place: &str,
        origin: &Origin,
        generation: &str,
        step: &Step,
        shards: &PlannedShards,
        seen: &Mailbox,
    ) -> Result<(), WriteError> {
        let (name, create) = match step {
            Step::Delete(name) => {
                self.expected.lock().remove(&(place.to_owned(), name.clone()));
                let Some(old) = seen.get(name) else { return Ok(()) };
                return Ok(self.writer.delete(place, name, &old.uid).await?);
            }
            Step::Create(name) => (name, true),
            Step::Update(name) | Step::Extend(name) => (name, false),
        };
        let Some(planned) = shards.get(name) else { return Ok(()) };
        let extended =
            matches!(step, Step::Extend(_)).then(|| self.extended(planned, seen.get(name), shards));
        let planned = extended.as_ref().unwrap_or(planned);
        let envelope = planned
            .envelope
            .get_or_init(|| self.config.transport.wrap(&planned.members.iter().collect::<Vec<_>>()));
        let objects = self.config.object_generations.then(|| generations(&planned.members)).flatten();
        let target =
            Target { namespace: place, name, origin, generation, objects, payload: &envelope.payload };
        let key = (place.to_owned(), name.clone());
        self.index.lock().begin(&key);
        let written = if create {
            self.writer.create(&target).await
        } else {
            let old = seen.get(name);
            let version = old.map(|old| old.resource_version.as_str().to_owned());
            let finalizers = old.map(|old| old.finalizers.clone());
            self.writer.update(&target, version, finalizers).await
        };
        let remembered = match written {
            Ok(written) => self.remember(&key, &written, planned, origin).await,
            Err(error) => Err(error),
        };
        self.index.lock().end(&key);
        remembered
    }

    /// Records what was written, unless the object was deleted in the meantime.
    async fn remember(
        &self,
        key: &(String, String),
        written: &ObjectMeta,
        planned: &PlannedEnvelope,
        origin: &Origin,
    ) -> Result<(), WriteError> {
        let contents = planned.contents.get_or_init(|| {
            let item = |w: &Wrapee| Item {
                identity: w.content.identity.clone(),
                digest: w.content.digest,
                create_only: w.create_only,
            };
            Arc::new(planned.members.iter().map(item).collect())
        });
        let fingerprint = planned.wanted.fingerprint;
        let touched = loop {
            {
                let mut index = self.index.lock();
                if !index.take_deleted(key) {
                    let items = planned.wanted.items.clone();
                    break index.wrote(
                        key.clone(),
                        KnownEnvelope::new(written, fingerprint, contents.clone(), items),
                    );
                }
            }
            // An object of that name was deleted during the write: the one just written, or its predecessor.
            let uid = written.uid.as_deref().unwrap_or_default();
            if !self.writer.is_there(&key.0, &key.1, uid).await? {
                return Err(WriteError::Gone);
            }
        };
        self.enqueue_all(touched.into_iter().filter(|o| o != origin).collect());
        Ok(())
    }
}

/// Expands all of `contents` for all destinations, unless the result is cached.
fn expand_all(
    known: &Expansions,
    contents: &[Arc<Content>],
    properties: &BTreeMap<String, Properties>,
) -> Expansions {
    let one = |destination: &str, content: &Arc<Content>, properties: &Properties| {
        let result = known
            .known(destination, content, properties)
            .unwrap_or_else(|| expand(destination, content, properties));
        Expansion { of: content.clone(), properties: properties.clone(), result }
    };
    let each = properties.iter().map(|(destination, properties)| {
        let all = contents
            .iter()
            .map(|content| (content.identity.clone(), one(destination, content, properties)))
            .collect();
        (destination.clone(), all)
    });
    Expansions(each.collect())
}

/// An object that cannot be delivered to a destination, and lines that say why.
type Problem = (Arc<Identity>, Vec<String>);

/// Selects what is delivered to one destination and reports the objects that cannot be (KS-126). An object
/// cannot be delivered if its expansion failed, or if it expanded to an object that exists already: the two
/// would overwrite each other, and neither the Binding nor the cluster would show why.
fn tailored(
    destination: &str,
    wrapees: &[Wrapee],
    results: Option<&HashMap<Arc<Identity>, Expansion>>,
) -> (Vec<Wrapee>, Vec<Problem>) {
    let (mut own, mut problems) = (Vec::with_capacity(wrapees.len()), Vec::new());
    let mut origins: HashMap<Arc<Identity>, &Wrapee> = HashMap::with_capacity(wrapees.len());
    for wrapee in wrapees {
        let original = &wrapee.content.identity;
        let content = match results.and_then(|results| results.get(original)).map(|it| &it.result) {
            None => &wrapee.content,
            Some(Ok(content)) => content,
            Some(Err(lines)) => {
                problems.push((original.clone(), lines.clone()));
                continue;
            }
        };
        let first = *origins.entry(content.identity.clone()).or_insert(wrapee);
        // An object that is listed twice is not a template error.
        if first.content.identity != *original {
            let (first, both) = (&first.content.identity, &content.identity);
            let line =
                format!("template: {destination}/{original}: it and {first} would both be {both} there");
            problems.push((original.clone(), vec![line]));
            continue;
        }
        own.push(Wrapee { content: content.clone(), create_only: wrapee.create_only });
    }
    (own, problems)
}

fn expand(
    destination: &str,
    content: &Arc<Content>,
    properties: &Properties,
) -> Result<Arc<Content>, Vec<String>> {
    let Some(templated) = &content.templated else { return Ok(content.clone()) };
    let object = templated.expand(destination, &content.identity, properties)?;
    content.customised(&object).map(Arc::new).ok_or_else(|| {
        vec![format!("template: {destination}/{}: expansion leaves no name or kind", content.identity)]
    })
}

enum Shards {
    Same(PlannedShards),
    /// Envelopes for each destination, or why they are not known.
    Each(BTreeMap<String, Result<PlannedShards, String>>),
}

impl Shards {
    fn of(&self, destination: &str) -> Result<&PlannedShards, &str> {
        static NONE: PlannedShards = BTreeMap::new();
        match self {
            Self::Same(shards) => Ok(shards),
            Self::Each(each) => {
                each.get(destination).map_or(Ok(&NONE), |shards| shards.as_ref().map_err(String::as_str))
            }
        }
    }

    /// Returns what to remember for the next run, if all destinations get the same envelopes.
    fn layout(&self, names: &Names<'_>) -> Option<Layout> {
        let Self::Same(shards) = self else { return None };
        let mut layout = Layout::default();
        for (name, planned) in shards {
            layout.prints.insert(name.clone(), planned.wanted.fingerprint);
            if let Some(number) = names.number(name) {
                layout.placement.extend(planned.wanted.items.iter().map(|item| (item.clone(), number)));
            }
        }
        Some(layout)
    }
}

#[cfg(test)]
pub(super) mod tests;
