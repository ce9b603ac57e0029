//! Maps kinds to resources by discovery. Results are cached by group and version; only a miss causes a
//! request.

use std::{collections::HashMap, sync::Arc};

use futures::future::BoxFuture;
use kube::{Client, Error};
use parking_lot::RwLock;

use crate::failure::is_not_found;
use crate::rest::Gvr;

/// A kind and its resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// The resource.
    pub gvr: Gvr,
    /// The kind.
    pub kind: String,
    /// False for cluster-scoped resources.
    pub namespaced: bool,
}

type Table = Arc<Vec<Mapped>>;

/// The cache; cheap to clone.
#[derive(Clone)]
pub struct Mapper {
    client: Client,
    tables: Arc<RwLock<HashMap<String, Table>>>,
}

impl Mapper {
    /// An empty cache over `client`.
    pub fn new(client: Client) -> Self {
        Self { client, tables: Arc::default() }
    }

    /// Returns the resource of `kind`, or `None` if the server does not serve it.
    ///
    /// # Errors
    ///
    /// If discovery fails for another reason than 404.
    pub async fn by_kind(&self, api_version: &str, kind: &str) -> Result<Option<Mapped>, Error> {
        self.lookup(api_version, |mapped| mapped.kind == kind).await
    }

    /// Returns the kind of a resource, or `None` if the server does not serve it.
    ///
    /// # Errors
    ///
    /// If discovery fails for another reason than 404.
    pub async fn by_resource(&self, gvr: &Gvr) -> Result<Option<Mapped>, Error> {
        self.lookup(&gvr.api_version(), |mapped| mapped.gvr.plural == gvr.plural).await
    }

    /// Drops the cached entries of a group and version. Call this for instance when a request for one of its
    /// resources met 404.
    pub fn forget(&self, api_version: &str) {
        self.tables.write().remove(api_version);
    }

    /// Returns the resource in a version that is served now: the given version if possible, otherwise another
    /// version of its group. Always sends requests and refreshes the cache.
    ///
    /// # Errors
    ///
    /// If discovery fails for another reason than 404.
    pub fn served<'a>(&'a self, gvr: &'a Gvr) -> BoxFuture<'a, Result<Option<Mapped>, Error>> {
        Box::pin(self.find_served(gvr))
    }

    async fn find_served(&self, gvr: &Gvr) -> Result<Option<Mapped>, Error> {
        let same = |mapped: &&Mapped| mapped.gvr.plural == gvr.plural;
        let mut versions = vec![gvr.version.clone()];
        if !gvr.group.is_empty() {
            let groups = self.client.list_api_groups().await?;
            let group = groups.groups.into_iter().find(|group| group.name == gvr.group);
            let others = group.into_iter().flat_map(|group| group.versions).map(|version| version.version);
            versions.extend(others.filter(|version| *version != gvr.version));
        }
        for version in versions {
            let other = Gvr { version, ..gvr.clone() };
            let table = self.fetch(&other.api_version()).await?;
            let found = table.iter().find(same).cloned();
            self.tables.write().insert(other.api_version(), table);
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    async fn lookup(
        &self,
        api_version: &str,
        wanted: impl Fn(&Mapped) -> bool,
    ) -> Result<Option<Mapped>, Error> {
        let known = self.tables.read().get(api_version).cloned();
        if let Some(found) = known.and_then(|table| table.iter().find(|m| wanted(m)).cloned()) {
            return Ok(Some(found));
        }
        let table = self.fetch(api_version).await?;
        let found = table.iter().find(|m| wanted(m)).cloned();
        self.tables.write().insert(api_version.to_owned(), table);
        Ok(found)
    }

    async fn fetch(&self, api_version: &str) -> Result<Table, Error> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let answer = if group.is_empty() {
            self.client.list_core_api_resources(version).await
        } else {
            self.client.list_api_group_resources(api_version).await
        };
        let list = match answer {
            Ok(list) => list,
            Err(error) if is_not_found(&error) => return Ok(Table::default()),
            Err(error) => return Err(error),
        };
        let entries = list.resources.into_iter().filter(|r| !r.name.contains('/'));
        Ok(Arc::new(
            entries
                .map(|r| Mapped {
                    gvr: Gvr::new(group, version, &r.name),
                    kind: r.kind,
                    namespaced: r.namespaced,
                })
                .collect(),
        ))
    }
}
