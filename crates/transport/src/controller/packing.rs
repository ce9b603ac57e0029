//! Which objects a Binding puts into which envelopes. Pure.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use machinery::json::DEPTH_MAX;

use super::{config::Config, layout::Layout};
use crate::{
    content::{Content, Wrapee},
    identity::Identity,
    plan::DesiredEnvelope,
    plugin::{Envelope, Item, Transport},
    shard::{self, Limits, Names, ShardItem},
    wrapped::{KnownEnvelope, Mailbox},
};

/// A planned envelope, for one or all destinations.
pub(super) struct PlannedEnvelope {
    pub(super) wanted: DesiredEnvelope,
    pub(super) members: Vec<Wrapee>,
    pub(super) envelope: OnceLock<Envelope>,
    pub(super) contents: OnceLock<Arc<Vec<Item>>>,
}

pub(super) type PlannedShards = BTreeMap<String, PlannedEnvelope>;

/// Packs objects into envelopes of one transport, within its limits.
#[derive(Clone, Copy)]
pub(super) struct Packing<'a> {
    transport: &'a dyn Transport,
    limits: &'a Limits,
}

impl<'a> Packing<'a> {
    pub(super) fn new(config: &'a Config) -> Self {
        Self { transport: &*config.transport, limits: &config.limits }
    }

    /// Distributes objects over envelopes. An object stays in its envelope according to `placement`, or else
    /// according to `there`.
    pub(super) fn shard<'m>(
        &self,
        names: &Names<'_>,
        wrapees: Vec<Wrapee>,
        placement: Option<&BTreeMap<Arc<Identity>, usize>>,
        there: impl IntoIterator<Item = &'m Mailbox>,
    ) -> PlannedShards {
        let transport = self.transport;
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
        shard::assign(&shard_items, current, names, self.limits, transport.base_size())
            .into_iter()
            .map(|shard| {
                let members = shard.members.iter().filter_map(|index| wrapees.get(*index).cloned()).collect();
                (shard.name, self.planned(members))
            })
            .collect()
    }

    pub(super) fn planned(&self, members: Vec<Wrapee>) -> PlannedEnvelope {
        let items = members.iter().map(|w| w.content.identity.clone()).collect();
        let fingerprint = self.transport.fingerprint(&members.iter().collect::<Vec<_>>());
        let wanted = DesiredEnvelope { items: Arc::new(items), fingerprint };
        PlannedEnvelope { wanted, members, envelope: OnceLock::new(), contents: OnceLock::new() }
    }

    /// Returns the envelope with its present objects plus those that it will receive ([`Step::Extend`]).
    pub(super) fn extended(
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

    fn size(&self, content: &Content) -> usize {
        content.json.len() + self.transport.frame()
    }

    fn max_depth(&self) -> usize {
        DEPTH_MAX - self.transport.nesting()
    }

    /// Returns whether an envelope can hold the object.
    pub(super) fn is_wrappable(&self, content: &Content) -> bool {
        self.size(content) <= self.limits.max_size && content.depth <= self.max_depth()
    }

    /// Returns why no envelope can hold the object.
    pub(super) fn why_not(&self, content: &Content) -> String {
        let (Content { identity, depth, .. }, max_size) = (content, self.limits.max_size);
        let size = self.size(content);
        if size > max_size {
            format!("{identity}: size {size} exceeds the maximum {max_size}")
        } else {
            format!("{identity}: nesting of {depth} levels exceeds the maximum {}", self.max_depth())
        }
    }
}

/// The envelopes of a Binding.
pub(super) enum Shards {
    /// The same for all destinations.
    Same(PlannedShards),
    /// Envelopes for each destination, or why they are not known.
    Each(BTreeMap<String, Result<PlannedShards, String>>),
}

impl Shards {
    pub(super) fn of(&self, destination: &str) -> Result<&PlannedShards, &str> {
        static NONE: PlannedShards = BTreeMap::new();
        match self {
            Self::Same(shards) => Ok(shards),
            Self::Each(each) => {
                each.get(destination).map_or(Ok(&NONE), |shards| shards.as_ref().map_err(String::as_str))
            }
        }
    }

    /// Returns what to remember for the next run, if all destinations get the same envelopes.
    pub(super) fn layout(&self, names: &Names<'_>) -> Option<Layout> {
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
