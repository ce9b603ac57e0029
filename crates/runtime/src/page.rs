//! One page of a list.

use serde::Deserialize;
use serde_json::value::RawValue;

/// A page of a collection. The objects stay encoded, so that an object that cannot be decoded does not affect
/// the others.
///
/// Objects that are missing from a list count as deleted. So a response that is not a list must not be taken
/// for an empty list: a response without `items` or without a version is rejected (KS-089).
#[derive(Debug, Deserialize)]
#[serde(try_from = "Raw")]
pub struct Page {
    /// Kind of the list, if the response states it. Objects of built-in kinds come without their kind.
    pub kind: Option<String>,
    /// resourceVersion of the collection.
    pub version: String,
    /// Continue token of the next page; empty on the last page.
    pub more: String,
    /// The encoded objects.
    pub items: Vec<Box<RawValue>>,
}

/// The response is not a list; it lacks the named field.
#[derive(Debug, thiserror::Error)]
#[error("the response is not a list: it has no {0}")]
pub(crate) struct NoList(pub(crate) &'static str);

#[derive(Deserialize)]
struct Raw {
    kind: Option<String>,
    #[serde(default)]
    metadata: Meta,
    /// `None` if the response has no such field.
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

/// Servers written in Go encode an empty list as null.
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
