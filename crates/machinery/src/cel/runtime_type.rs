//! Types at run time.

use std::sync::Arc;

use kube_cel::cel::objects::Opaque;
use kube_cel::cel::{ExecutionError, Value as Cel};

/// A type used as a value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TypeName(pub(super) String);

impl Opaque for TypeName {
    fn runtime_type_name(&self) -> &'static str {
        "type"
    }
}

/// The value for a type.
pub(super) fn type_of(name: String) -> Cel {
    Cel::Opaque(Arc::new(TypeName(name)))
}

/// The name of a value's type in CEL.
pub(super) fn kind(value: &Cel) -> String {
    let name = match value {
        Cel::Null => "null_type",
        Cel::Bool(_) => "bool",
        Cel::Int(_) => "int",
        Cel::UInt(_) => "uint",
        Cel::Float(_) => "double",
        Cel::String(_) => "string",
        Cel::Bytes(_) => "bytes",
        Cel::List(_) => "list",
        Cel::Map(_) => "map",
        Cel::Timestamp(_) => "google.protobuf.Timestamp",
        Cel::Duration(_) => "google.protobuf.Duration",
        Cel::Opaque(other) => other.runtime_type_name(),
        Cel::Function(..) => "function",
    };
    name.to_owned()
}

/// The error for an argument of a type that the function does not take.
pub(super) fn no_overload(function: &str, value: &Cel) -> ExecutionError {
    ExecutionError::function_error(function, format!("no such overload: {function}({})", kind(value)))
}
