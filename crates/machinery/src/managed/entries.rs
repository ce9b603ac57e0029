//! The entries of `metadata.managedFields`.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::set::PathSet;
use super::writer::{Operation, Writer};
use crate::schema::Schema;

/// Most Update entries that an object keeps.
pub(super) const MAX_UPDATERS: usize = 10;
/// The manager that takes over the fields of the oldest Update entries.
const ANCIENT: &str = "ancient-changes";

/// Sort key of entries, as in Kubernetes: operation (Apply first), time, manager, version, subresource.
pub(super) type Order<'a> = (bool, &'a str, &'a str, &'a str, &'a str);

/// The identity of an entry's manager: manager, whether it applies, subresource, and the version. The version does not
/// count for Apply.
type Owner = (String, bool, String, Option<String>);

/// One entry: the fields of one manager.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) manager: String,
    pub(super) operation: Operation,
    pub(super) api_version: String,
    pub(super) subresource: String,
    pub(super) time: Option<String>,
    pub(super) set: PathSet,
}

impl Entry {
    pub(super) fn new(writer: &Writer, set: PathSet) -> Self {
        Self {
            manager: writer.manager.clone(),
            operation: writer.operation,
            api_version: writer.api_version.clone(),
            subresource: writer.subresource.clone(),
            time: None,
            set,
        }
    }

    /// Whether both entries belong to the same manager. The version does not count for Apply.
    pub(super) fn same_owner(&self, other: &Self) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    /// Equal for entries of the [same owner](Self::same_owner).
    fn owner(&self) -> Owner {
        let applies = self.operation == Operation::Apply;
        let version = (!applies).then(|| self.api_version.clone());
        (self.manager.clone(), applies, self.subresource.clone(), version)
    }

    fn parse(value: &Value) -> Option<Self> {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
        let operation = match text("operation") {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        if text("apiVersion").is_empty() || text("fieldsType") != "FieldsV1" {
            return None;
        }
        let set = match value.get("fieldsV1") {
            None | Some(Value::Null) => PathSet::default(),
            Some(fields) => PathSet::parse(fields)?,
        };
        Some(Self {
            manager: text("manager").to_owned(),
            operation,
            api_version: text("apiVersion").to_owned(),
            subresource: text("subresource").to_owned(),
            time: value.get("time").and_then(Value::as_str).map(str::to_owned),
            set,
        })
    }

    pub(super) fn encode(&self) -> Value {
        let mut out = Map::new();
        let mut put = |key: &str, value: &str| {
            if !value.is_empty() {
                out.insert(key.to_owned(), Value::String(value.to_owned()));
            }
        };
        put("manager", &self.manager);
        put("operation", self.operation.as_str());
        put("apiVersion", &self.api_version);
        put("time", self.time.as_deref().unwrap_or_default());
        put("fieldsType", "FieldsV1");
        put("subresource", &self.subresource);
        out.insert("fieldsV1".to_owned(), self.set.to_fields());
        Value::Object(out)
    }

    fn order(&self) -> Order<'_> {
        let time = self.time.as_deref().unwrap_or_default();
        let updates = self.operation == Operation::Update;
        (updates, time, &self.manager, &self.api_version, &self.subresource)
    }

    /// The manager as conflicts print it.
    pub(super) fn print(&self) -> String {
        let mut out = crate::field::quote(&self.manager);
        if !self.subresource.is_empty() {
            out.push_str(" with subresource ");
            out.push_str(&crate::field::quote(&self.subresource));
        }
        if self.operation == Operation::Update {
            out.push_str(" using ");
            out.push_str(&self.api_version);
        }
        out
    }

    /// The sort key of conflicts: the identity as Kubernetes prints it.
    pub(super) fn identity(&self) -> String {
        let version = if self.operation == Operation::Update { self.api_version.as_str() } else { "" };
        format!("{:?}{}{version}{}", self.manager, self.operation.as_str(), self.subresource)
    }
}

/// All entries of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Managers(pub(super) Vec<Entry>);

impl Managers {
    /// Parses the entries; `None` if one does not decode.
    pub(super) fn parse(fields: &Value) -> Option<Self> {
        match fields {
            Value::Null => Some(Self::default()),
            Value::Array(entries) => {
                let mut out: Vec<Entry> = Vec::with_capacity(entries.len());
                let mut owners: HashMap<Owner, usize> = HashMap::with_capacity(entries.len());
                for one in entries {
                    let entry = Entry::parse(one)?;
                    // Of two entries of one owner the later one counts.
                    let place = *owners.entry(entry.owner()).or_insert(out.len());
                    match out.get_mut(place) {
                        Some(earlier) => *earlier = entry,
                        None => out.push(entry),
                    }
                }
                Some(Self(out))
            }
            _ => None,
        }
    }

    pub(super) fn of(object: &Value) -> Option<Self> {
        object.pointer("/metadata/managedFields").map_or_else(|| Some(Self::default()), Self::parse)
    }

    pub(super) fn position(&self, entry: &Entry) -> Option<usize> {
        self.0.iter().position(|one| one.same_owner(entry))
    }

    pub(super) fn drop_empty(&mut self) {
        self.0.retain(|one| !one.set.is_empty());
    }

    /// Merges the oldest Update entries by version until at most [`MAX_UPDATERS`] are left.
    pub(super) fn cap(&mut self) {
        let count = self.0.iter().filter(|e| e.operation == Operation::Update).count();
        if count <= MAX_UPDATERS {
            return;
        }
        let mut excess = count - MAX_UPDATERS;
        self.sort();
        // By version: the first entry, and the entry that takes over the fields of further ones.
        let mut firsts: HashMap<String, usize> = HashMap::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut buckets: Vec<Entry> = Vec::new();
        let mut kept: Vec<Option<Entry>> = Vec::new();
        for entry in std::mem::take(&mut self.0) {
            if entry.operation == Operation::Apply || excess == 0 {
                kept.push(Some(entry));
            } else if let Some(bucket) =
                places.get(&entry.api_version).and_then(|place| buckets.get_mut(*place))
            {
                bucket.set.extend(&entry.set);
                bucket.time = entry.time;
                excess -= 1;
            } else if let Some(mut bucket) =
                firsts.get(&entry.api_version).and_then(|first| kept.get_mut(*first)).and_then(Option::take)
            {
                // The second entry of a version: both become one.
                bucket.set.extend(&entry.set);
                bucket.manager = ANCIENT.to_owned();
                bucket.subresource = String::new();
                bucket.time = entry.time;
                places.insert(entry.api_version, buckets.len());
                buckets.push(bucket);
                excess -= 1;
            } else {
                firsts.insert(entry.api_version.clone(), kept.len());
                kept.push(Some(entry));
            }
        }
        let mut kept: Vec<Entry> = kept.into_iter().flatten().collect();
        let mut owners: HashMap<Owner, usize> = HashMap::new();
        for (at, entry) in kept.iter().enumerate() {
            owners.entry(entry.owner()).or_insert(at);
        }
        for bucket in buckets {
            match owners.get(&bucket.owner()).and_then(|at| kept.get_mut(*at)) {
                Some(own) => own.set.extend(&bucket.set),
                None => kept.push(bucket),
            }
        }
        self.0 = kept;
    }

    /// Sorts by [`Order`].
    fn sort(&mut self) {
        self.0.sort_by(|a, b| a.order().cmp(&b.order()));
    }

    /// Writes the entries into an object. Without entries, removes the field.
    pub(super) fn write(mut self, object: &mut Value) {
        self.sort();
        let Some(object) = object.as_object_mut() else { return };
        if self.0.is_empty() {
            if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                meta.remove("managedFields");
            }
            return;
        }
        let meta = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        if let Some(meta) = meta.as_object_mut() {
            let entries = self.0.iter().map(Entry::encode).collect();
            meta.insert("managedFields".to_owned(), Value::Array(entries));
        }
    }
}

/// Fields that nobody owns.
pub(super) fn never_owned() -> &'static PathSet {
    static STRIPPED: std::sync::OnceLock<PathSet> = std::sync::OnceLock::new();
    STRIPPED.get_or_init(|| {
        PathSet::of_fields([
            "apiVersion",
            "kind",
            "metadata",
            "metadata.name",
            "metadata.namespace",
            "metadata.creationTimestamp",
            "metadata.selfLink",
            "metadata.uid",
            "metadata.clusterName",
            "metadata.generation",
            "metadata.managedFields",
            "metadata.resourceVersion",
            "metadata.deletionTimestamp",
        ])
    })
}

/// An object of the kind of `like` with nothing set.
pub(super) fn empty_object(schema: &Schema, like: &Value) -> Value {
    let mut empty_object = schema.zero();
    if let (Some(empty_object), Some(like)) = (empty_object.as_object_mut(), like.as_object()) {
        for key in ["apiVersion", "kind"] {
            if let Some(value) = like.get(key) {
                empty_object.insert(key.to_owned(), value.clone());
            }
        }
    }
    empty_object
}
