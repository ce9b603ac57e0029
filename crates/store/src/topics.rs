//! Which watchers want which events: an index of watchers by scope.
//!
//! One event costs a few look-ups (its namespace, its name, those of its labels that a watch names) and one visit
//! per watcher found there. Watchers of anything else are not touched: a thousand agents that each follow one object
//! of a collection cost the others nothing.

use std::collections::HashMap;
use std::sync::Arc;

use crate::watcher::Watcher;
use crate::{Collection, Event, Only, Scope};

type Watchers = HashMap<u64, Arc<Watcher>>;

/// A scope within its collection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ScopeKey {
    namespace: Option<Arc<str>>,
    only: Option<Only>,
}

/// Watchers of one collection.
#[derive(Debug, Default)]
struct Topic {
    /// Those of the whole collection.
    all: Watchers,
    by_scope: HashMap<ScopeKey, Watchers>,
    /// Label keys that scopes name, with the number of these scopes.
    labels: HashMap<Arc<str>, usize>,
}

impl Topic {
    fn is_empty(&self) -> bool {
        self.all.is_empty() && self.by_scope.is_empty()
    }

    fn subscribe(&mut self, scope: ScopeKey, id: u64, watcher: Arc<Watcher>) {
        if scope == (ScopeKey { namespace: None, only: None }) {
            self.all.insert(id, watcher);
            return;
        }
        if !self.by_scope.contains_key(&scope)
            && let Some(Only::Label { key, .. }) = &scope.only
        {
            *self.labels.entry(key.clone()).or_default() += 1;
        }
        self.by_scope.entry(scope).or_default().insert(id, watcher);
    }

    fn unsubscribe(&mut self, scope: &ScopeKey, id: u64) {
        if self.all.remove(&id).is_some() {
            return;
        }
        let Some(watchers) = self.by_scope.get_mut(scope) else { return };
        watchers.remove(&id);
        if !watchers.is_empty() {
            return;
        }
        self.by_scope.remove(scope);
        if let Some(Only::Label { key, .. }) = &scope.only
            && let Some(count) = self.labels.get_mut(key)
        {
            *count -= 1;
            if *count == 0 {
                self.labels.remove(key);
            }
        }
    }

    fn visit(&self, event: &Event, visit: &mut impl FnMut(&Watcher)) {
        self.all.values().for_each(|watcher| visit(watcher));
        if self.by_scope.is_empty() {
            return;
        }
        let at = |scope: ScopeKey, visit: &mut dyn FnMut(&Watcher)| {
            for watcher in self.by_scope.get(&scope).into_iter().flat_map(HashMap::values) {
                visit(watcher);
            }
        };
        let key = &event.entry.key;
        let namespaces = [None, Some(key.namespace.clone()).filter(|n| !n.is_empty())];
        for (nth, namespace) in namespaces.into_iter().enumerate() {
            if nth == 1 {
                let Some(namespace) = &namespace else { break };
                at(ScopeKey { namespace: Some(namespace.clone()), only: None }, visit);
            }
            let only = |only| ScopeKey { namespace: namespace.clone(), only: Some(only) };
            at(only(Only::Name(key.name.clone())), visit);
            for label in self.labels.keys() {
                let now = event.entry.meta.labels.get(&**label);
                let before = event.previous.as_ref().and_then(|old| old.meta.labels.get(&**label));
                for value in now.into_iter().chain(before.filter(|before| now != Some(before))) {
                    at(only(Only::Label { key: label.clone(), value: (**value).into() }), visit);
                }
            }
        }
    }
}

/// All watchers of a space.
#[derive(Debug, Default)]
pub(crate) struct Topics {
    collections: HashMap<Collection, Topic>,
    /// Those that watch the whole space.
    everything: Watchers,
}

impl Topics {
    pub(crate) fn subscribe(&mut self, scope: Option<&Scope>, id: u64, watcher: Arc<Watcher>) {
        match scope {
            None => drop(self.everything.insert(id, watcher)),
            Some(scope) => {
                let topic = self.collections.entry(scope.collection.clone()).or_default();
                topic.subscribe(scope_key(scope), id, watcher);
            }
        }
    }

    pub(crate) fn unsubscribe(&mut self, scope: Option<&Scope>, id: u64) {
        let Some(scope) = scope else {
            self.everything.remove(&id);
            return;
        };
        let Some(topic) = self.collections.get_mut(&scope.collection) else { return };
        topic.unsubscribe(&scope_key(scope), id);
        if topic.is_empty() {
            self.collections.remove(&scope.collection);
        }
    }

    /// Calls `visit` with each watcher that the event concerns, once.
    pub(crate) fn concerned(&self, event: &Event, mut visit: impl FnMut(&Watcher)) {
        self.everything.values().for_each(|watcher| visit(watcher));
        if let Some(topic) = self.collections.get(&event.entry.key.collection) {
            topic.visit(event, &mut visit);
        }
    }

    pub(crate) fn each(&self, visit: impl FnMut(&Arc<Watcher>)) {
        let of_topics = self
            .collections
            .values()
            .flat_map(|topic| topic.all.values().chain(topic.by_scope.values().flat_map(HashMap::values)));
        self.everything.values().chain(of_topics).for_each(visit);
    }
}

#[cfg(test)]
impl Topics {
    /// Watchers, and what is left behind of those that went.
    pub(crate) fn size(&self) -> usize {
        let mut count = self.everything.len();
        for topic in self.collections.values() {
            let watchers = topic.all.len() + topic.by_scope.values().map(HashMap::len).sum::<usize>();
            let hollow = topic.by_scope.values().filter(|watchers| watchers.is_empty()).count()
                + topic.labels.len().saturating_sub(topic.by_scope.len());
            count += watchers + hollow + usize::from(watchers == 0);
        }
        count
    }
}

fn scope_key(scope: &Scope) -> ScopeKey {
    ScopeKey { namespace: scope.namespace.clone(), only: scope.only.clone() }
}
