//! What became of one manifest in a pass.

use apis::ocm::work::{AppliedResource, FeedbackValue, ManifestResourceMeta};
use runtime::rest::Gvr;

use super::{
    backoff::RetryAt,
    completion::Ruled,
    conditions::{Applied, Available, Feedback},
};

/// What became of one manifest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    pub(crate) meta: ManifestResourceMeta,
    pub(crate) applied: Applied,
    pub(crate) available: Available,
    pub(crate) feedback: Feedback,
    pub(crate) values: Vec<FeedbackValue>,
    pub(crate) ruled: Vec<Ruled>,
    /// Other works that hold a different content of the object.
    pub(crate) rivals: Vec<String>,
    /// The object, when there is one.
    pub(crate) resource: Option<AppliedResource>,
    /// Its identity or existence could not be found out; nothing is removed then (OCM-093).
    pub(crate) uncertain: bool,
    /// It is to be tried again although nothing changed.
    pub(crate) again: Option<RetryAt>,
    /// The agent may not do that.
    pub(crate) forbidden: bool,
    /// The work went while it was being applied: nothing was done.
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

    /// Nothing can be made of the manifest; only a change of the work helps.
    pub(crate) fn refused(meta: ManifestResourceMeta, message: &str, available: Available) -> Self {
        Self { meta, applied: Applied::Failed(message.to_owned()), available, ..Self::default() }
    }

    /// Nobody knows which resource the manifest is of, so that nothing may be removed.
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

    /// It was not tried as the work went meanwhile.
    pub(crate) fn superseded(meta: ManifestResourceMeta) -> Self {
        Self { meta, superseded: true, uncertain: true, ..Self::default() }
    }

    /// The resource of the manifest is not known.
    pub(crate) fn is_unresolved(&self) -> bool {
        self.meta.resource.is_empty() && self.uncertain
    }
}
