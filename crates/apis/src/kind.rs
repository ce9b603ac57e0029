//! The root type of an API kind.
//!
//! kube's own derive requires a `spec`, and cannot express a kind with `results` instead of a `spec`, or with
//! further fields besides `status`. Our kinds need that, so this macro replaces the derive.

/// The properties of a kind besides `apiVersion`, `kind` and `metadata`, for its schema.
pub(crate) trait Root {
    /// Returns name, schema and whether the schema requires the property.
    fn properties(generator: &mut schemars::SchemaGenerator) -> Vec<(&'static str, schemars::Schema, bool)>;
    /// Description of the kind.
    const DOC: &'static str;
}

/// Declares the root struct of a kind with serde, [`kube::Resource`] and constructors.
///
/// `always` fields are always serialised, and default when absent; `optional` ones are `Option`s. `required`
/// ones are like `always`, and the schema requires them.
macro_rules! kind {
    (
        $(#[doc = $doc:literal])+
        $name:ident = $group:expr, $version:literal, $plural:literal, $scope:ident;
        $(required $(#[doc = $rdoc:literal])* $rfield:ident : $rty:ty;)*
        $(always $(#[doc = $adoc:literal])* $afield:ident : $aty:ty;)*
        $(optional $(#[doc = $odoc:literal])* $ofield:ident as $okey:literal : $oty:ty;)*
    ) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
        #[serde(default)]
        pub struct $name {
            /// Name, labels, owners and the rest that every object has.
            pub metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            $($(#[doc = $rdoc])* pub $rfield: $rty,)*
            $($(#[doc = $adoc])* pub $afield: $aty,)*
            $($(#[doc = $odoc])* #[serde(rename = $okey)] pub $ofield: Option<$oty>,)*
        }

        impl $name {
            /// An otherwise empty object of this name.
            pub fn named(name: impl Into<String>) -> Self {
                let mut new = Self::default();
                new.metadata.name = Some(name.into());
                new
            }

            /// An otherwise empty object of this name in this namespace.
            pub fn namespaced(namespace: impl Into<String>, name: impl Into<String>) -> Self {
                let mut new = Self::named(name);
                new.metadata.namespace = Some(namespace.into());
                new
            }

            /// How this kind is addressed with dynamic types.
            pub fn api_resource() -> kube::api::ApiResource {
                kube::api::ApiResource::erase::<Self>(&())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeMap as _;
                let mut map = serializer.serialize_map(None)?;
                map.serialize_entry("apiVersion", &crate::kind::api_version($group, $version))?;
                map.serialize_entry("kind", stringify!($name))?;
                map.serialize_entry("metadata", &self.metadata)?;
                $(map.serialize_entry(stringify!($rfield), &self.$rfield)?;)*
                $(map.serialize_entry(stringify!($afield), &self.$afield)?;)*
                $(if let Some(value) = &self.$ofield { map.serialize_entry($okey, value)?; })*
                map.end()
            }
        }

        impl kube::Resource for $name {
            type DynamicType = ();
            type Scope = kube::core::$scope;
            fn kind((): &()) -> std::borrow::Cow<'_, str> { stringify!($name).into() }
            fn group((): &()) -> std::borrow::Cow<'_, str> { $group.into() }
            fn version((): &()) -> std::borrow::Cow<'_, str> { $version.into() }
            fn plural((): &()) -> std::borrow::Cow<'_, str> { $plural.into() }
            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta { &self.metadata }
            fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }

        impl crate::kind::Root for $name {
            const DOC: &'static str = concat!($($doc, "\n"),+);
            fn properties(
                generator: &mut schemars::SchemaGenerator,
            ) -> Vec<(&'static str, schemars::Schema, bool)> {
                let _ = &generator;
                vec![
                    $((stringify!($rfield), generator.subschema_for::<$rty>(), true),)*
                    $((stringify!($afield), generator.subschema_for::<$aty>(), false),)*
                    $(($okey, generator.subschema_for::<$oty>(), false),)*
                ]
            }
        }
    };
}
pub(crate) use kind;

/// `group/version`.
pub(crate) fn api_version(group: &str, version: &str) -> String {
    format!("{group}/{version}")
}
