//! Decodes objects without their `metadata.managedFields`. The field managers are repeated in each element of
//! a list and decode to a tree of small strings: for a Binding of a thousand objects, many times the size of
//! the Binding itself.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, IntoDeserializer, MapAccess, Visitor},
};

/// An object that is decoded without its `managedFields`, for requests: what is followed is decoded like this anyway
/// ([`Watched::read`](crate::Watched::read)).
#[derive(Clone, Debug)]
pub struct WithoutManagedFields<K>(pub K);

impl<'de, K: Deserialize<'de>> Deserialize<'de> for WithoutManagedFields<K> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        read(from).map(Self)
    }
}

/// Decodes an object and skips its `managedFields`.
pub(crate) fn read<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    T::deserialize(SkipField { inner: from, path: &["metadata", "managedFields"] })
}

/// Wraps a deserializer, visitor or seed and skips the field that `path` leads to.
struct SkipField<T> {
    inner: T,
    path: &'static [&'static str],
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for SkipField<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_map(SkipField { inner: visitor, path: self.path })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_option(SkipField { inner: visitor, path: self.path })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_newtype_struct(name, SkipField { inner: visitor, path: self.path })
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for SkipField<V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(formatter)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Fields { map, path: self.path, on_path: false })
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(SkipField { inner: from, path: self.path })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(SkipField { inner: from, path: self.path })
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for SkipField<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(SkipField { inner: from, path: self.path })
    }
}

/// The fields of an object.
struct Fields<A> {
    map: A,
    path: &'static [&'static str],
    /// True if the path leads through the field whose value comes next.
    on_path: bool,
}

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Fields<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        while let Some(Name(name)) = self.map.next_key()? {
            self.on_path = self.path.first().is_some_and(|first| *first == name);
            if !self.on_path || self.path.len() > 1 {
                return seed.deserialize(name.into_deserializer()).map(Some);
            }
            self.map.next_value::<IgnoredAny>()?;
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        match self.path {
            [_, path @ ..] if self.on_path => self.map.next_value_seed(SkipField { inner: seed, path }),
            _ => self.map.next_value_seed(seed),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Resource, api::DynamicObject};
    use serde_json::{Value, json};

    use super::WithoutManagedFields;

    /// Nothing else is lost, not even a field of the same name elsewhere, and the skipped value may be
    /// anything.
    #[test]
    fn only_managed_fields_are_passed_over() {
        let deep = json!({"metadata": {"managedFields": [1]}, "managedFields": {}});
        let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "managedFields": 1, "metadata": {
            "name": "a", "labels": {"managedFields": "kept"}, "resourceVersion": "7",
            "managedFields": [{"manager": "m", "fieldsV1": {"f:data": {}}}], "generation": 3,
        }, "more": deep, "data": {"metadata": "x"}});
        let read: BTreeMap<String, Value> = super::read(&object).unwrap();
        let dynamic: DynamicObject = super::read(&object).unwrap();
        let typed: ConfigMap =
            serde_json::from_str::<WithoutManagedFields<_>>(&object.to_string()).unwrap().0;
        object["metadata"].as_object_mut().unwrap().remove("managedFields");
        assert_eq!(json!(read), object);
        assert_eq!(json!(dynamic), object);
        assert_eq!(typed, serde_json::from_value(object.clone()).unwrap());
        object["metadata"]["managedFields"] = "nonsense".into();
        let Wrapped(read) = super::read(&object).unwrap();
        assert!(read.meta().managed_fields.is_none() && read.meta().generation == Some(3));
    }

    #[derive(serde::Deserialize)]
    struct Wrapped(ConfigMap);

    /// Input that cannot be decoded without this wrapper cannot be decoded with it, and the error is the
    /// same.
    #[test]
    fn faults_are_told_as_ever() {
        for text in ["null", r#"{"metadata": 1}"#, r#"{"metadata": {"name": 1}}"#, r#"{"metadata": {"#] {
            let plain = serde_json::from_str::<ConfigMap>(text).unwrap_err().to_string();
            let ours = serde_json::from_str::<WithoutManagedFields<ConfigMap>>(text).unwrap_err().to_string();
            assert_eq!(ours, plain);
        }
        assert!(serde_json::from_str::<WithoutManagedFields<ConfigMap>>(r#"{"metadata": null}"#).is_ok());
    }
}
