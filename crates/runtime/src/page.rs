//! Lists in pages.

use kube::core::params::ListParams;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::failure;

/// Where a paged list goes on.
///
/// Servers keep old versions for a limited time. If a list takes longer, the server answers the request for its next page
/// with 410. Then the list begins anew, with everything in one page, which is the only one that cannot come too late.
#[derive(Clone, Debug)]
pub struct Paging {
    limit: Option<u32>,
    more: String,
}

impl Paging {
    /// A list that begins, with `limit` objects per page.
    pub fn new(limit: u32) -> Self {
        Self { limit: Some(limit), more: String::new() }
    }

    /// Most objects of the next page; `None` for all.
    pub fn limit(&self) -> Option<u32> {
        self.limit
    }

    /// The continue token of the next page; empty for the first page.
    pub fn token(&self) -> &str {
        &self.more
    }

    /// The parameters of the request for the next page.
    pub(crate) fn params(&self) -> ListParams {
        let continue_token = (!self.more.is_empty()).then(|| self.more.clone());
        ListParams { limit: self.limit, continue_token, ..ListParams::default() }
    }

    /// The request of a page failed. Returns true if the list begins anew: what was read of it must be forgotten, and the
    /// next page is requested.
    pub fn begins_anew(&mut self, error: &kube::Error) -> bool {
        let anew = failure::is_gone(error) && self.limit.is_some();
        if anew {
            *self = Self { limit: None, more: String::new() };
        }
        anew
    }

    /// A page was read; `more` is the continue token in it. Returns whether there are more pages.
    pub fn goes_on(&mut self, more: &str) -> bool {
        more.clone_into(&mut self.more);
        !more.is_empty()
    }
}

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

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn answer(code: u16) -> kube::Error {
        kube::Error::Api(Box::new(Status { code, ..Status::default() }))
    }

    /// A list whose version expires begins anew once, in one page; other errors are the caller's.
    #[test]
    fn a_list_that_takes_too_long_is_read_in_one_page() {
        let mut paging = Paging::new(500);
        assert!(!paging.begins_anew(&answer(500)) && !paging.begins_anew(&answer(404)));
        assert!(paging.goes_on("next"));
        assert_eq!((paging.limit(), paging.token()), (Some(500), "next"));
        assert!(paging.begins_anew(&answer(410)));
        assert_eq!((paging.limit(), paging.token()), (None, ""));
        assert!(!paging.begins_anew(&answer(410)), "there is no smaller request to fall back to");
        assert!(!paging.goes_on(""));
    }
}
