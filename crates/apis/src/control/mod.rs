//! `control.kubestellar.io/v1alpha1`.

mod binding;
mod binding_policy;
mod combined_status;
mod custom_transform;
mod errors;
mod status_collector;
mod work_status;

pub use binding::{
    Binding, BindingEntry, BindingSpec, BindingStatus, ClusterScopeDownsyncClause, Destination,
    DownsyncModulation, DownsyncObjectClauses, NamespaceScopeDownsyncClause,
};
pub use binding_policy::{BindingPolicy, BindingPolicySpec, BindingPolicyStatus, DownsyncPolicyClause};
pub use combined_status::{
    AggregationError, CombinedStatus, NamedStatusCombination, RowError, StatusCombinationRow, Value,
    ValueType,
};
pub use custom_transform::{CustomTransform, CustomTransformSpec, CustomTransformStatus};
pub use errors::{Extent, bounded_errors, bounded_errors_to};
pub use status_collector::{
    NamedAggregator, NamedExpression, StatusCollector, StatusCollectorSpec, StatusCollectorStatus,
};
pub use work_status::{SourceRef, StatusDetails, WorkStatus, WorkStatusSpec, generation_key};

/// `skip_serializing_if` for booleans that are omitted when false.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !value
}

/// Any JSON object, owned as a whole.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct RawObject(pub serde_json::Value);

impl schemars::JsonSchema for RawObject {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "RawObject".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        crate::schema::atomic_object(generator)
    }
}
