//! The resources of the WDS that are watched at present (KS-030 … KS-037).

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
    time::Duration,
};

use kube::{Client, api::ApiResource};
use parking_lot::Mutex;
use runtime::{Backoff, Event, InformerSet, PartialObject, Source, Store, TaskPool};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    feed::Feed,
    resources::{AllowedGroups, CrdAction, CrdFacts, api_resource, can_watch, is_watched, priority},
    unknown::UnknownResources,
};
use crate::{Config, identity::GroupResource};

/// The watches on workload objects: those of the resources that discovery finds at the start, and those of
/// CRDs as they come and go.
pub(super) struct Watches {
    client: Client,
    allowed: AllowedGroups,
    feed: Arc<Feed>,
    informers: Arc<InformerSet<PartialObject>>,
    /// Resources whose CRD is deleted or serves no version; discovery may lag behind that. The lock is held
    /// while watches are started and stopped.
    unserved: Mutex<BTreeSet<GroupResource>>,
    /// True once discovery has read every group that answers.
    discovered: watch::Sender<bool>,
    /// Groups whose discovery fails. Entries of existing Bindings about their objects stay (KS-030).
    silent: Arc<Mutex<BTreeSet<String>>>,
}

/// The resources that discovery found, and the groups whose discovery failed.
struct Found {
    resources: Vec<ApiResource>,
    silent: BTreeSet<String>,
}

impl Watches {
    pub(super) fn new(client: Client, config: &Config, feed: Arc<Feed>, stop: &CancellationToken) -> Self {
        let (set, listener) = (Arc::new(OnceLock::new()), feed.clone());
        let informers = {
            let set: Arc<OnceLock<std::sync::Weak<InformerSet<PartialObject>>>> = set.clone();
            Arc::new(InformerSet::new(
                client.clone(),
                stop,
                Arc::new(move |resource: &ApiResource, event: Event<PartialObject>| match event {
                    Event::Synced => {
                        let informers = set.get().and_then(std::sync::Weak::upgrade);
                        if let Some(store) = informers.and_then(|informers| informers.get(resource)) {
                            listener.on_listed(resource, &store);
                        }
                    }
                    event => listener.on_object(resource, event),
                }),
            ))
        };
        // Set before any watch is started, so that the handler always finds it.
        let _ = set.set(Arc::downgrade(&informers));
        Self {
            client,
            allowed: config.api_groups.clone(),
            feed,
            informers,
            unserved: Mutex::default(),
            discovered: watch::Sender::new(false),
            silent: Arc::default(),
        }
    }

    /// Discovers the served resources and watches them; retries until every group has answered. Starts when
    /// the CRDs are known, because a CRD overrides discovery for its resource.
    pub(super) async fn discover(&self, crds: &Store<CrdFacts>, stop: &CancellationToken) {
        tokio::select! {
            () = crds.synced() => {}
            () = stop.cancelled() => return,
        }
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(300));
        loop {
            let done = match find(&self.client).await {
                Ok(found) => {
                    found.resources.into_iter().for_each(|resource| self.watch_new(resource));
                    for group in &found.silent {
                        tracing::warn!(group, "discovery of an API group failed; will be tried again");
                    }
                    let done = found.silent.is_empty();
                    *self.silent.lock() = found.silent;
                    self.feed.unknown(|| self.unknown());
                    self.discovered.send_replace(true);
                    done
                }
                Err(error) => {
                    tracing::warn!(%error, "discovery; will be tried again");
                    false
                }
            };
            if done {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.pause()) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Waits until every object that existed at the start is known. Resources that cannot be listed delay
    /// this by at most `patience`.
    pub(super) async fn synced(&self, patience: Duration) {
        // The sender lives in `self`, so the wait cannot fail.
        let _ = self.discovered.subscribe().wait_for(|done| *done).await;
        let all = async {
            for (_, store) in self.informers.stores() {
                store.synced().await;
            }
        };
        if tokio::time::timeout(patience, all).await.is_err() {
            for resource in self.unlisted() {
                tracing::warn!(%resource, "cannot be listed; continuing without its objects");
            }
        }
        self.feed.unknown(|| self.unknown());
    }

    fn unlisted(&self) -> Vec<GroupResource> {
        let stores = self.informers.stores().into_iter().filter(|(_, store)| !store.is_synced());
        stores.map(|(resource, _)| GroupResource::new(&resource.group, &resource.plural)).collect()
    }

    fn unknown(&self) -> UnknownResources {
        UnknownResources {
            groups: self.silent.lock().clone(),
            resources: self.unlisted().into_iter().collect(),
        }
    }

    pub(super) fn on_crd(&self, event: Event<CrdFacts>) {
        let (Some(crd), gone) = (event.object(), matches!(event, Event::Deleted(_))) else { return };
        let resource = crd.resource();
        if !is_watched(&resource, &self.allowed) {
            return;
        }
        match crd.action() {
            _ if gone => self.stop(&resource),
            CrdAction::Stop => self.stop(&resource),
            CrdAction::Watch(resource) => self.watch(resource),
            CrdAction::Wait => {}
        }
    }

    /// Watches a resource, unless it is watched already in some version.
    fn watch_new(&self, resource: ApiResource) {
        let id = GroupResource::new(&resource.group, &resource.plural);
        let unserved = self.unserved.lock();
        if is_watched(&id, &self.allowed)
            && !unserved.contains(&id)
            && self.running(&resource.group, &resource.plural).is_none()
        {
            self.switch_to(resource);
        }
    }

    /// Watches a resource in this version and in no other (KS-036).
    fn watch(&self, resource: ApiResource) {
        let mut unserved = self.unserved.lock();
        unserved.remove(&GroupResource::new(&resource.group, &resource.plural));
        self.switch_to(resource);
    }

    /// The caller holds `unserved`.
    fn switch_to(&self, resource: ApiResource) {
        match self.running(&resource.group, &resource.plural) {
            Some(running) if running == resource => return,
            Some(other) => drop(self.informers.stop(&other)),
            None => {}
        }
        tracing::debug!(resource = resource.plural, group = resource.group, "watching");
        self.feed.on_resource(&resource);
        self.informers.start(Source::all(resource).metadata());
    }

    fn stop(&self, resource: &GroupResource) {
        let mut unserved = self.unserved.lock();
        unserved.insert(resource.clone());
        if let Some(running) = self.running(&resource.group, &resource.plural) {
            tracing::debug!(%resource, "no longer watching");
            self.informers.stop(&running);
            self.feed.on_resource_gone(resource);
        }
    }

    fn running(&self, group: &str, plural: &str) -> Option<ApiResource> {
        let resources = self.informers.resources().into_iter();
        resources.into_iter().find(|resource| resource.group == group && resource.plural == plural)
    }

    /// The tasks of the watches.
    pub(super) fn tasks(&self) -> &TaskPool {
        self.informers.tasks()
    }

    pub(super) async fn shutdown(&self) {
        self.informers.shutdown().await;
    }
}

/// Discovers the preferred version of each resource that can be watched. Uses aggregated discovery if the
/// server supports it, otherwise reads group by group.
async fn find(client: &Client) -> Result<Found, kube::Error> {
    let (core, rest) =
        futures::try_join!(client.list_core_api_versions_aggregated(), client.list_api_groups_aggregated())?;
    if rest.items.is_empty() || core.items.is_empty() {
        return find_by_group(client).await;
    }
    let mut found = Found { resources: Vec::new(), silent: BTreeSet::new() };
    for group in core.items.into_iter().chain(rest.items) {
        let name = group.metadata.and_then(|meta| meta.name).unwrap_or_default();
        let mut seen = BTreeSet::new();
        for version in group.versions {
            let version_name = version.version.unwrap_or_default();
            if version.freshness.as_deref() == Some("Stale") && version.resources.is_empty() {
                found.silent.insert(name.clone());
            }
            for resource in version.resources {
                let plural = resource.resource.unwrap_or_default();
                let kind = resource.response_kind.and_then(|kind| kind.kind).unwrap_or_default();
                if can_watch(&resource.verbs) && seen.insert(plural.clone()) {
                    found.resources.push(api_resource(&name, &version_name, &kind, &plural));
                }
            }
        }
    }
    Ok(found)
}

async fn find_by_group(client: &Client) -> Result<Found, kube::Error> {
    let mut found = Found { resources: Vec::new(), silent: BTreeSet::new() };
    let core = client.list_core_api_resources("v1").await?;
    found.resources.extend(watchable("", "v1", core, &mut BTreeSet::new()));
    for group in client.list_api_groups().await?.groups {
        let preferred = group.preferred_version.as_ref().map(|it| it.version.clone());
        let mut versions = group.versions;
        versions.sort_by_key(|it| (Some(&it.version) != preferred.as_ref(), priority(&it.version)));
        let mut seen = BTreeSet::new();
        for version in versions {
            match client.list_api_group_resources(&version.group_version).await {
                Ok(list) => {
                    found.resources.extend(watchable(&group.name, &version.version, list, &mut seen));
                }
                Err(_) => drop(found.silent.insert(group.name.clone())),
            }
        }
    }
    Ok(found)
}

fn watchable(
    group: &str,
    version: &str,
    list: k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList,
    seen: &mut BTreeSet<String>,
) -> Vec<ApiResource> {
    let resources = list.resources.into_iter().filter(|it| !it.name.contains('/') && can_watch(&it.verbs));
    let new = resources.filter(|it| seen.insert(it.name.clone()));
    new.map(|it| api_resource(group, version, &it.kind, &it.name)).collect()
}
