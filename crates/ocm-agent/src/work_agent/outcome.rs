//! The outcome of one manifest in a pass.

use apis::ocm::work::{AppliedResource, FeedbackValue, ManifestResourceMeta};
use runtime::rest::Gvr;

use super::{
    backoff::RetryAt,
    completion::Ruled,
    conditions::{Applied, Available, Feedback},
};

/// The outcome of one manifest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    pub(crate) meta: ManifestResourceMeta,
    pub(crate) applied: Applied,
    pub(crate) available: Available,
    pub(crate) feedback: Feedback,
    pub(crate) values: Vec<FeedbackValue>,
    pub(crate) ruled: Vec<Ruled>,
    /// Other works that hold the object with different content.
    pub(crate) rivals: Vec<String>,
    /// The object, if it exists.
    pub(crate) resource: Option<AppliedResource>,
    /// Whether the identity or existence of the object is not known; nothing is removed then (OCM-093).
    pub(crate) uncertain: bool,
    /// When to retry although nothing changed.
    pub(crate) again: Option<RetryAt>,
    /// Whether the agent lacks a permission.
    pub(crate) forbidden: bool,
    /// The work was deleted during the pass: nothing was done.
    pub(crate) superseded: bool,
}

impl Done {
    /// The object exists.
    pub(crate) fn exists(meta: ManifestResourceMeta, gvr: &Gvr, uid: &str) -> Self {
        let resource = AppliedResource {
            group: gvr.group.clone(),
            version: gvr.version.clone(),
            resource: gvr.plural.clone(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: uid.to_owned(),
        };
        Self { meta, available: Available::Yes, resource: Some(resource), ..Self::default() }
    }

    /// The manifest is invalid; only a change of the work helps.
    pub(crate) fn refused(meta: ManifestResourceMeta, message: &str, available: Available) -> Self {
        Self { meta, applied: Applied::Failed(message.to_owned()), available, ..Self::default() }
    }

    /// The resource of the manifest is not known, so nothing may be removed.
    pub(crate) fn unresolved(meta: ManifestResourceMeta, message: String) -> Self {
        Self {
            meta,
            applied: Applied::Failed(message),
            available: Available::Incomplete,
            uncertain: true,
            again: Some(RetryAt::Backoff),
            ..Self::default()
        }
    }

    /// Not tried, because the work was deleted.
    pub(crate) fn superseded(meta: ManifestResourceMeta) -> Self {
        Self { meta, superseded: true, uncertain: true, ..Self::default() }
    }

    /// Returns whether the resource of the manifest is not known.
    pub(crate) fn is_unresolved(&self) -> bool {
        self.meta.resource.is_empty() && self.uncertain
    }
}
