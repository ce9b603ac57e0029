//! What an object must offer so that it can be followed.

use std::any::Any;

use kube::{
    Resource,
    api::{ApiResource, DynamicObject, TypeMeta},
};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};

use crate::{object_key::ObjectKey, without_managed_fields};

/// An object that an [informer](crate::informer) or a [feed](crate::feed) can follow.
pub trait Watched: DeserializeOwned + Clone + Send + Sync + 'static {
    /// Namespace and name.
    fn key(&self) -> ObjectKey;
    /// `metadata.resourceVersion`.
    fn version(&self) -> &str;
    /// Decodes the object. Override this to skip fields that no reader needs.
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::deserialize(from)
    }
    /// Called with the kind before the object is stored or reported. Lists do not repeat the kind in each object;
    /// override this to set it.
    fn received(&mut self, _: &ApiResource) {}
}

/// An object that is decoded with [`Watched::read`].
pub(crate) struct Decoded<T>(pub(crate) T);

impl<'de, T: Watched> Deserialize<'de> for Decoded<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        T::read(from).map(Self)
    }
}

impl<K: Resource + DeserializeOwned + Clone + Send + Sync + 'static> Watched for K {
    fn key(&self) -> ObjectKey {
        ObjectKey::of(self.meta())
    }

    fn version(&self) -> &str {
        self.meta().resource_version.as_deref().unwrap_or("")
    }

    /// `managedFields` are skipped: no reader needs them, and they would be the larger part of
    /// the memory.
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        without_managed_fields::read(from)
    }

    fn received(&mut self, resource: &ApiResource) {
        if let Some(object) = (self as &mut dyn Any).downcast_mut::<DynamicObject>()
            && object.types.is_none()
        {
            let (api_version, kind) = (resource.api_version.clone(), resource.kind.clone());
            object.types = Some(TypeMeta { api_version, kind });
        }
    }
}
