//! Media types.

/// Media type of objects and lists.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// Media type of watches.
pub const WATCH_MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf;stream=watch";
pub(crate) const SERIALIZERS: &str = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf";
