//! What a handler knows about its request.

use std::sync::Arc;

use http::HeaderMap;

use super::store_access;
use crate::authz::Attributes;
use crate::catalog::Catalog;
use crate::codec::negotiate::{self, Endpoint, Media, Shape};
use crate::descriptor::Descriptor;
use crate::error::{ApiError, Reason};
use crate::identity::UserInfo;
use crate::path::RequestInfo;
use crate::request::Query;
use crate::state::ServerState;

/// One authorised request and everything that its handler needs.
pub(crate) struct RequestContext<'a> {
    pub state: &'a Arc<ServerState>,
    /// Reads return durable writes only, except for write requests and for callers that [`ReadAhead`](crate::identity::ReadAhead).
    pub store: &'a store::SpaceStore,
    pub catalog: &'a Arc<Catalog>,
    pub descriptor: &'a Arc<Descriptor>,
    pub info: &'a RequestInfo,
    pub query: &'a Query,
    pub headers: &'a HeaderMap,
    pub user: &'a UserInfo,
    /// The client in whose queue the heavy work of this request waits.
    pub client: &'a crate::work::Client,
    /// The whole request runs as heavy work, on a thread that serves no other request.
    pub on_worker_thread: bool,
    pub user_agent: &'a str,
    /// RFC 3339, seconds.
    pub now: String,
    /// Texts for `Warning` headers. A refused request has them, too.
    pub warnings: Vec<String>,
}

impl RequestContext<'_> {
    pub(crate) fn media(&self, endpoint: Endpoint) -> Result<Media, ApiError> {
        negotiate::negotiate(self.headers, self.query, endpoint, self.descriptor.is_custom())
    }

    /// Negotiates the representation of one object, or with `list` of a list.
    ///
    /// # Errors
    /// 406 if the client asks for `PartialObjectMetadata` of a list, or for `PartialObjectMetadataList` of one object.
    pub(crate) fn media_of(&self, list: bool) -> Result<Media, ApiError> {
        let media = self.media(if list { Endpoint::List } else { Endpoint::Item })?;
        let d = self.descriptor;
        let package = if d.group.is_empty() { "core" } else { d.group.split('.').next().unwrap_or_default() };
        let type_name = |kind: &str| {
            if d.is_custom() { "*unstructured.Unstructured".to_owned() } else { format!("*{package}.{kind}") }
        };
        let refused = match (media.shape, list) {
            (Shape::Metadata { .. }, true) => format!(
                "you requested PartialObjectMetadata, but the requested object is a list ({})",
                type_name(&d.list_kind)
            ),
            (Shape::MetadataList { .. }, false) => format!(
                "you requested PartialObjectMetadataList, but the requested object is not a list ({})",
                type_name(&d.kind)
            ),
            _ => return Ok(media),
        };
        Err(ApiError::new(406, Reason::NotAcceptable, refused))
    }

    /// The namespace of this request's objects; empty for cluster-scoped ones.
    pub(crate) fn namespace(&self) -> &str {
        self.info.namespace_of_objects(self.descriptor.namespaced)
    }

    /// The stored object `name` of this request's resource and namespace.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) fn stored(&self, name: &str) -> Result<Arc<store::Entry>, ApiError> {
        let key = store_access::key(self.descriptor, self.namespace(), name);
        self.store.snapshot().get(&key).ok_or_else(|| self.not_found(name))
    }

    pub(crate) fn not_found(&self, name: &str) -> ApiError {
        ApiError::not_found(&self.descriptor.group, &self.descriptor.plural, name)
    }

    pub(crate) fn modified(&self, name: &str) -> ApiError {
        ApiError::modified(&self.descriptor.group, &self.descriptor.plural, name)
    }

    pub(crate) fn forbidden(&self, name: &str, why: &str) -> ApiError {
        ApiError::forbidden(&self.descriptor.group, &self.descriptor.plural, name, why)
    }

    /// Called between two steps of a request. Heavy work whose client has disconnected is dropped here.
    pub(crate) async fn cancellation_point(&self) {
        if self.on_worker_thread {
            tokio::task::yield_now().await;
        }
    }

    /// Authorises another verb than that of the request line (`create` for a PUT or apply that creates).
    pub(crate) fn authorize(&self, verb: &str) -> Result<(), ApiError> {
        let attributes = Attributes {
            verb,
            group: &self.info.group,
            version: &self.info.version,
            resource: &self.info.resource,
            subresource: &self.info.subresource,
            namespace: &self.info.namespace,
            name: &self.info.name,
            path: &self.info.path,
            resource_request: true,
        };
        self.state.config.authorizer.authorize(self.user, &attributes)
    }
}
