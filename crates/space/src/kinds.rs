//! The resources of kinds, and the collections of their objects: the built-in ones, and those of the space's
//! CustomResourceDefinitions.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use serde::Deserialize;
use store::{Collection, Event, EventKind, Key, Snapshot};

/// A stored resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) namespaced: bool,
    pub(crate) collection: Collection,
}

impl Resource {
    /// `configmaps`, `deployments.apps`
    pub(crate) fn full_name(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }

    /// Path of the collection in a namespace (empty: cluster-scoped).
    pub(crate) fn path(&self, namespace: &str) -> String {
        let root = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        if namespace.is_empty() {
            format!("{root}/{}", self.plural)
        } else {
            format!("{root}/namespaces/{namespace}/{}", self.plural)
        }
    }

    pub(crate) fn object_path(&self, key: &Key) -> String {
        // Names of some kinds (RBAC) have characters that a path must escape.
        let name = escape(&key.name);
        format!("{}/{name}", self.path(&key.namespace))
    }
}

/// Percent-encodes a path segment.
pub(crate) fn escape(segment: &str) -> String {
    let mut out = String::with_capacity(segment.len());
    for byte in segment.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' | b'@' => {
                out.push(char::from(byte));
            }
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

#[derive(Default)]
struct Table {
    by_kind: HashMap<(String, String), Arc<Resource>>,
    by_collection: HashMap<Collection, Arc<Resource>>,
}

impl Table {
    fn add(&mut self, kind: &str, resource: Resource) {
        let resource = Arc::new(resource);
        self.by_kind.entry((resource.group.clone(), kind.to_owned())).or_insert_with(|| resource.clone());
        self.by_collection.entry(resource.collection.clone()).or_insert(resource);
    }
}

/// The built-in kinds, shared by all spaces of the process.
fn builtin() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let catalog = apiserver::builtin::catalog();
        let mut table = Table::default();
        for group in catalog.groups() {
            for version in &group.versions {
                for d in catalog.in_version(&group.name, version).filter(|d| d.has_verb("delete")) {
                    let resource = Resource {
                        group: d.group.clone(),
                        version: d.version.clone(),
                        plural: d.plural.clone(),
                        namespaced: d.namespaced,
                        collection: d.collection.clone(),
                    };
                    table.add(&d.kind, resource);
                }
            }
        }
        table
    })
}

/// The relevant parts of a CustomResourceDefinition.
#[derive(Deserialize)]
struct Definition {
    spec: DefinitionSpec,
}

#[derive(Deserialize)]
struct DefinitionSpec {
    group: String,
    #[serde(default)]
    scope: String,
    names: Names,
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Deserialize)]
struct Names {
    plural: String,
    kind: String,
}

#[derive(Deserialize)]
struct Version {
    name: String,
    #[serde(default)]
    served: bool,
}

/// Kinds of one space.
#[derive(Default)]
pub(crate) struct Kinds {
    custom: HashMap<String, (String, Arc<Resource>)>,
}

impl Kinds {
    pub(crate) fn definitions() -> Collection {
        Collection::new("apiextensions.k8s.io", "customresourcedefinitions")
    }

    pub(crate) fn start(&mut self, all: &Snapshot) {
        self.custom.clear();
        for entry in all.view(&Self::definitions()).iter(None, None) {
            self.learn(&entry.key.name, &entry.value);
        }
    }

    /// Records an event. Returns true if the kinds may have changed.
    pub(crate) fn observe(&mut self, event: &Event) -> bool {
        if event.entry.key.collection != Self::definitions() {
            return false;
        }
        match event.kind {
            EventKind::Deleted => drop(self.custom.remove(&*event.entry.key.name)),
            _ => self.learn(&event.entry.key.name, &event.entry.value),
        }
        true
    }

    fn learn(&mut self, name: &str, definition: &[u8]) {
        let Ok(Definition { spec }) = serde_json::from_slice(definition) else { return };
        let Some(version) = spec.versions.iter().find(|version| version.served) else { return };
        let resource = Resource {
            collection: Collection::new(&spec.group, &spec.names.plural),
            version: version.name.clone(),
            namespaced: spec.scope == "Namespaced",
            group: spec.group,
            plural: spec.names.plural,
        };
        self.custom.insert(name.to_owned(), (spec.names.kind, Arc::new(resource)));
    }

    pub(crate) fn of_kind(&self, group: &str, kind: &str) -> Option<Arc<Resource>> {
        let key = (group.to_owned(), kind.to_owned());
        if let Some(found) = builtin().by_kind.get(&key) {
            return Some(found.clone());
        }
        let found = self.custom.values().find(|(name, resource)| resource.group == group && name == kind);
        found.map(|(_, resource)| resource.clone())
    }

    pub(crate) fn of_collection(&self, collection: &Collection) -> Option<Arc<Resource>> {
        if let Some(found) = builtin().by_collection.get(collection) {
            return Some(found.clone());
        }
        let (group, plural) = collection.as_str().split_once('/')?;
        self.custom.get(&format!("{plural}.{group}")).map(|(_, resource)| resource.clone())
    }
}
