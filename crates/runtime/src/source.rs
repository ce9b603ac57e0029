//! What is followed.

use kube::{Resource, api::ApiResource};

use crate::rest::Gvr;

/// A collection to follow: a resource of one API server, all of it or a part.
///
/// [`informer`](crate::informer) keeps its objects in a store, [`feed`](crate::feed) keeps their keys, and an
/// [`InformerSet`](crate::InformerSet) follows several sources that come and go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The resource. Its kind is empty if the source was made from a [`Gvr`].
    pub resource: ApiResource,
    /// The namespace; empty for all, or for a cluster-scoped resource.
    pub namespace: String,
    /// Label selector; empty for all.
    pub label_selector: String,
    /// Field selector; empty for all.
    pub field_selector: String,
    /// Request `PartialObjectMetadata` instead of whole objects. The type of the objects must then be
    /// [`PartialObject`](crate::PartialObject), or another one that needs nothing else.
    pub metadata_only: bool,
}

impl Source {
    /// All objects of a resource.
    pub fn all(resource: impl Into<ApiResource>) -> Self {
        Self {
            resource: resource.into(),
            namespace: String::new(),
            label_selector: String::new(),
            field_selector: String::new(),
            metadata_only: false,
        }
    }

    /// All objects of a typed kind.
    pub fn of<K: Resource<DynamicType = ()>>() -> Self {
        Self::all(ApiResource::erase::<K>(&()))
    }

    /// Restricts the source to one namespace.
    pub fn namespaced(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Restricts the source to objects that match this label selector.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.label_selector = selector.into();
        self
    }

    /// Restricts the source to objects that match this field selector.
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.field_selector = selector.into();
        self
    }

    /// Restricts the source to the object of this name. With a namespaced resource also restrict the namespace.
    pub fn named(self, name: &str) -> Self {
        self.fields(format!("metadata.name={name}"))
    }

    /// Requests metadata only.
    pub fn metadata(mut self) -> Self {
        self.metadata_only = true;
        self
    }

    /// The path of the collection.
    pub(crate) fn path(&self) -> String {
        let ApiResource { group, version, plural, .. } = &self.resource;
        Gvr::new(group, version, plural).path(&self.namespace)
    }

    /// The selectors, as parameters of a query.
    pub(crate) fn selectors(&self) -> Vec<(&'static str, String)> {
        let all = [("labelSelector", &self.label_selector), ("fieldSelector", &self.field_selector)];
        let set = all.into_iter().filter(|(_, selector)| !selector.is_empty());
        set.map(|(name, selector)| (name, selector.clone())).collect()
    }
}

impl From<Gvr> for ApiResource {
    /// Without a kind, which a [`Gvr`] does not tell.
    fn from(gvr: Gvr) -> Self {
        let api_version = gvr.api_version();
        Self { group: gvr.group, version: gvr.version, api_version, kind: String::new(), plural: gvr.plural }
    }
}
