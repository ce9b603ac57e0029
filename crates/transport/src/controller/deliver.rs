//! Bringing the mailboxes of one Binding into the wanted state.
//!
//! As long as no object wants customisation, all destinations get the same envelopes, and of each mailbox that is in
//! order only what changed is looked at.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use apis::control::{Binding, Extent, bounded_errors_to};
use futures::{StreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use runtime::failure::message_of;

use self::kept::Fitting;
pub(super) use self::kept::Kept;
use super::{
    Controller, Memory, SyncError,
    layout::{Layout, Scope},
};
use crate::{
    content::{Content, Identity, Wrapee, generations},
    customize::properties::Properties,
    plan::{self, Existing, Step, Wanted},
    plugin::{Envelope, Item},
    shard::{self, Names, Piece},
    wrapped::{Mailbox, Origin, Seen},
    write::{Target, WriteError},
};

mod kept;

/// So much is told of one object's templates, so that there is room for others.
const OF_ONE_OBJECT: Extent = Extent { lines: 100, bytes: 32 * 1024 };

/// An envelope to be, for one or all destinations.
struct Planned {
    wanted: Wanted,
    members: Vec<Wrapee>,
    envelope: OnceLock<Envelope>,
    contents: OnceLock<Arc<Vec<Item>>>,
}

type PlannedShards = BTreeMap<String, Planned>;

/// What became of one mailbox.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) place: String,
    /// What went wrong, and will be tried again.
    pub(super) failure: Option<String>,
    /// Why something is not delivered, which is not tried again.
    pub(super) withheld: Option<String>,
    /// Names that are in use for objects of others, and whose those are (KS-098).
    pub(super) taken: BTreeMap<String, Origin>,
}

impl Outcome {
    fn in_order(&self) -> bool {
        self.failure.is_none() && self.withheld.is_none() && self.taken.is_empty()
    }
}

/// What a customised object came of, and what came of it.
struct Expansion {
    of: Arc<Content>,
    properties: Properties,
    result: Result<Arc<Content>, Vec<String>>,
}

/// The last expansions, by destination and original.
#[derive(Default)]
pub(super) struct Expansions(HashMap<String, HashMap<Arc<Identity>, Expansion>>);

impl Expansions {
    /// What this content comes to with these properties, if that is known.
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
    /// Shards, plans and writes. Gives what became of each destination (KS-093).
    pub(super) async fn deliver(
        &self,
        binding: &Binding,
        wrapees: Vec<Wrapee>,
        memory: &mut Memory,
        errors: &mut Vec<String>,
    ) -> Result<Vec<Outcome>, SyncError> {
        let origin = self.origin(&binding.metadata.name.clone().unwrap_or_default());
        let uid = binding.metadata.uid.clone().unwrap_or_default();
        let names = Names { binding: &origin.binding, binding_uid: &uid, wds: &origin.wds };
        if let Some(problem) = names.problem(&self.config.limits) {
            errors.push(problem);
            return Ok(Vec::new());
        }
        // Counted before looking: what is disturbed meanwhile is looked at again.
        let (disturbances, there) = {
            let index = self.index.lock();
            (index.disturbances(&origin), index.of(&origin))
        };
        let destinations: BTreeSet<&str> = binding
            .spec
            .destinations
            .iter()
            .map(|d| d.cluster_id.as_str())
            .filter(|d| !d.is_empty())
            .collect();
        // Taken, so that it is not believed in should this come to a sudden end.
        let layout = memory.layout.take();
        let differ = wrapees.iter().any(|w| w.content.templated.is_some())
            || self.has_older(&origin, &wrapees, &destinations, &there, &memory.kept);
        let (shards, frozen) = if differ {
            self.shards_each(&names, &destinations, &wrapees, &there, memory, errors).await?
        } else {
            memory.expansions = Expansions::default();
            self.adaptation.lock().properties.set_sensitive(&origin.binding, BTreeSet::new());
            memory.kept = Kept::default();
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
        let disturbance = |place: &str| disturbances.get(place).copied().unwrap_or_default();
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
                (Some(layout), Some(_)) if listed => layout.scope(place, disturbance(place), &changed),
                _ => Scope::Everything,
            };
            if scope == Scope::Nothing {
                settled.insert(place.to_owned(), disturbance(place));
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
        settled.extend(in_order.map(|o| (o.place.clone(), disturbance(&o.place))));
        memory.layout = fresh.map(|fresh| Layout { settled, ..fresh });
        Ok(outcomes)
    }

    /// One set of shards for each destination (KS-125). True if an object could not be expanded: then nothing new is
    /// propagated (KS-096, KS-127).
    async fn shards_each(
        &self,
        names: &Names<'_>,
        destinations: &BTreeSet<&str>,
        wrapees: &[Wrapee],
        there: &BTreeMap<String, Mailbox>,
        memory: &mut Memory,
        errors: &mut Vec<String>,
    ) -> Result<(Shards, bool), SyncError> {
        let templated: Vec<Arc<Content>> =
            wrapees.iter().filter(|w| w.content.templated.is_some()).map(|w| w.content.clone()).collect();
        let properties: BTreeMap<String, Properties> = {
            // Sensitive first: a change from here on is heard of.
            let all = &mut self.adaptation.lock().properties;
            let concerned = destinations.iter().filter(|_| !templated.is_empty());
            let every: BTreeSet<String> = concerned.map(|d| (*d).to_owned()).collect();
            all.set_sensitive(names.binding, every.clone());
            every.into_iter().map(|destination| (destination.clone(), all.of(&destination))).collect()
        };
        let known = std::mem::take(&mut memory.expansions);
        // Templates are a user's programs: bounded, but nothing for a thread that others wait for.
        let expanded = tokio::task::spawn_blocking({
            let properties = properties.clone();
            move || expand_all(&known, &templated, &properties)
        });
        let expansions = expanded.await?;
        let (mut troubled, mut failed) = (HashSet::new(), false);
        let origin = self.origin(names.binding);
        let (mut each, mut fitting) = (BTreeMap::new(), Fitting::new(self, &origin, &memory.kept));
        for destination in destinations {
            let (own, problems) = tailored(destination, wrapees, expansions.0.get(*destination));
            failed |= !problems.is_empty();
            for (identity, lines) in problems {
                // KS-097: one destination is enough to say what is wrong with an object.
                if troubled.insert(identity.clone()) {
                    let rest = format!("template: {destination}/{identity}: ");
                    errors.extend(bounded_errors_to(OF_ONE_OBJECT, lines, &rest));
                }
            }
            let mailbox = there.get(*destination);
            let own = fitting.fit(destination, own, mailbox).await;
            let shards = own.map(|own| self.shard(names, own, None, mailbox));
            each.insert((*destination).to_owned(), shards.map_err(|error| message_of(&error)));
        }
        errors.append(&mut fitting.errors);
        (memory.expansions, memory.kept) = (expansions, fitting.kept);
        Ok((Shards::Each(each), failed))
    }

    /// Distributes objects over envelopes. They keep the place they have by `placement`, or else by what is `there`.
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
        let pieces: Vec<Piece> = wrapees
            .iter()
            .map(|w| Piece {
                identity: w.content.identity.clone(),
                uid: w.content.original.uid.clone(),
                size: w.content.json.len() + transport.extra_size(w),
            })
            .collect();
        let current = placement.unwrap_or(&current);
        shard::assign(&pieces, current, names, &self.config.limits, transport.base_size())
            .into_iter()
            .map(|shard| {
                let members = shard.members.iter().filter_map(|index| wrapees.get(*index).cloned()).collect();
                (shard.name, self.planned(members))
            })
            .collect()
    }

    fn planned(&self, members: Vec<Wrapee>) -> Planned {
        let items = members.iter().map(|w| w.content.identity.clone()).collect();
        let fingerprint = self.config.transport.fingerprint(&members.iter().collect::<Vec<_>>());
        let wanted = Wanted { items: Arc::new(items), fingerprint };
        Planned { wanted, members, envelope: OnceLock::new(), contents: OnceLock::new() }
    }

    /// An envelope with what it has and other envelopes are to have, too ([`Step::Extend`]).
    fn extended(&self, planned: &Planned, have: Option<&Arc<Seen>>, shards: &PlannedShards) -> Planned {
        let have = have.map(|seen| seen.items.clone()).unwrap_or_default();
        let given = |w: &&Wrapee| {
            have.contains(&w.content.identity) && !planned.wanted.items.contains(&w.content.identity)
        };
        let moving = shards.values().flat_map(|shard| &shard.members).filter(given);
        self.planned(planned.members.iter().chain(moving).cloned().collect())
    }

    /// Brings one mailbox into the wanted state, as far as names are free.
    async fn settle(
        &self,
        place: &str,
        origin: &Origin,
        generation: &str,
        shards: &PlannedShards,
        seen: &Mailbox,
        scope: Scope,
    ) -> Outcome {
        let existing: BTreeMap<String, Existing> = seen
            .iter()
            .filter(|(name, _)| scope.covers(name))
            .map(|(name, seen)| (name.clone(), seen.existing()))
            .collect();
        let wanted: BTreeMap<String, Wanted> = shards
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
            // The hub empties the mailbox of a cluster that is deleted; filling it again would never end.
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
                        // It may have been done all the same. Then the echo is news, whatever is wanted by that time.
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

    /// Wanted names that the index knows to be in use for others: no need to ask.
    fn taken(
        &self,
        place: &str,
        origin: &Origin,
        wanted: &BTreeMap<String, Wanted>,
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
            let version = old.map(|old| old.resource_version.clone());
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

    /// Notes what was written, unless it is gone by now.
    async fn remember(
        &self,
        key: &(String, String),
        written: &ObjectMeta,
        planned: &Planned,
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
                if !index.went(key) {
                    let items = planned.wanted.items.clone();
                    break index.wrote(key.clone(), Seen::new(written, fingerprint, contents.clone(), items));
                }
            }
            // Something of that name went meanwhile: what was written, or what was there before it.
            let uid = written.uid.as_deref().unwrap_or_default();
            if !self.writer.is_there(&key.0, &key.1, uid).await? {
                return Err(WriteError::Gone);
            }
        };
        self.enqueue_all(touched.into_iter().filter(|o| o != origin).collect());
        Ok(())
    }
}

/// Expands all of `contents` for all destinations, as far as the outcome is not known.
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

/// An object that can't go to a destination, and lines that say why.
type Problem = (Arc<Identity>, Vec<String>);

/// What goes to one destination, and lines about the objects that can't (KS-126): their expansion failed, or made them into
/// an object that is there already. Two would fight over it, and neither Binding nor cluster would show why.
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
        // One that is listed twice is no matter of templates.
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
    /// Or why it is not known what is to be in a mailbox.
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

    /// What is to be remembered when it is the same for all.
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
