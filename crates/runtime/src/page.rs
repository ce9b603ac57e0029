//! One page of a list.

use serde::Deserialize;
use serde_json::value::RawValue;

/// A page of a collection, with the objects as they came: one that can't be read is nothing against the others.
///
/// What is not in a list is taken for gone, so what is none must not pass for an empty one: an answer without items, or
/// without a version, is not read (KS-089).
#[derive(Debug, Deserialize)]
#[serde(try_from = "Raw")]
pub struct Page {
    /// Kind of the list, if it tells. Objects of built-in kinds come without theirs.
    pub kind: Option<String>,
    /// Version of the collection.
    pub version: String,
    /// Asks for the next page; empty if this is the last.
    pub more: String,
    /// The objects.
    pub items: Vec<Box<RawValue>>,
}

/// An answer that is no list.
#[derive(Debug, thiserror::Error)]
#[error("the answer is no list: it has no {0}")]
pub(crate) struct NoList(pub(crate) &'static str);

#[derive(Deserialize)]
struct Raw {
    kind: Option<String>,
    #[serde(default)]
    metadata: Meta,
    /// None if the answer has no such field.
    #[serde(default, deserialize_with = "null_is_empty")]
    items: Option<Vec<Box<RawValue>>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    resource_version: String,
    #[serde(rename = "continue")]
    more: String,
}

/// Servers written in Go write an empty list as null.
fn null_is_empty<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<Vec<Box<RawValue>>>, D::Error> {
    Ok(Some(Option::deserialize(d)?.unwrap_or_default()))
}

impl TryFrom<Raw> for Page {
    type Error = NoList;

    fn try_from(raw: Raw) -> Result<Self, NoList> {
        let Meta { resource_version: version, more } = raw.metadata;
        let items = raw.items.ok_or(NoList("items"))?;
        if version.is_empty() {
            return Err(NoList("resourceVersion"));
        }
        Ok(Self { kind: raw.kind, version, more, items })
    }
}
