//! Standard functions that behave like cel-go's, where the evaluator's differ or are missing (KS-176).

use std::sync::Arc;

use kube_cel::cel::extractors::This;
use kube_cel::cel::{Context, ExecutionError, ResolveResult, Value as Cel};

use super::ast::{call, new_node};
use super::convert;
use super::functions::shared_functions;
use super::names::TYPES;
use super::runtime_type::{kind, no_overload, type_of};
use super::text::text;

pub(super) fn register(context: &mut Context) {
    for name in TYPES {
        context.add_variable_from_value(name, type_of(name.to_owned()));
    }
    context.add_function("type", |value: Cel| -> ResolveResult { Ok(type_of(kind(&value))) });
    context.add_function("dyn", |value: Cel| -> ResolveResult { Ok(value) });
    context.add_function("size", size);
    context.add_function("bool", |value: Cel| convert(&value, "bool", bool));
    context.add_function("int", |This(value): This<Cel>| convert(&value, "int", int));
    context.add_function("uint", |This(value): This<Cel>| convert(&value, "uint", uint));
    context.add_function("double", |This(value): This<Cel>| convert(&value, "double", double));
    context.add_function("bytes", |value: Cel| convert(&value, "bytes", bytes));
    context.add_function("string", |This(value): This<Cel>| convert(&value, "string", string));
    context.add_function("timestamp", |value: Cel| convert(&value, "timestamp", timestamp));
    context.add_function("duration", |value: Cel| convert(&value, "duration", duration));
    context.add_function("contains", contains);
}

/// Why a conversion failed.
enum ConversionError {
    /// Values of this type cannot be converted.
    Type,
    /// The value does not represent the target type.
    Value,
    /// Another reason.
    Because(&'static str),
}

fn convert(value: &Cel, function: &str, convert: fn(&Cel) -> Result<Cel, ConversionError>) -> ResolveResult {
    convert(value).map_err(|why| match why {
        ConversionError::Type => no_overload(function, value),
        ConversionError::Value => {
            let to = match function {
                "timestamp" => "google.protobuf.Timestamp",
                "duration" => "google.protobuf.Duration",
                other => other,
            };
            let why = format!("type conversion error from '{}' to '{to}'", kind(value));
            ExecutionError::function_error(function, why)
        }
        ConversionError::Because(why) => ExecutionError::function_error(function, why),
    })
}

fn size(This(value): This<Cel>) -> Result<i64, ExecutionError> {
    let size = match &value {
        Cel::List(items) => items.len(),
        Cel::Map(map) => map.map.len(),
        Cel::String(text) => text.chars().count(),
        Cel::Bytes(bytes) => bytes.len(),
        _ => return Err(ExecutionError::function_error("size", "no such overload: size")),
    };
    Ok(i64::try_from(size).unwrap_or(i64::MAX))
}

fn bool(value: &Cel) -> Result<Cel, ConversionError> {
    match value {
        Cel::Bool(_) => Ok(value.clone()),
        Cel::String(text) => match text.as_str() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Cel::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Cel::Bool(false)),
            _ => Err(ConversionError::Value),
        },
        _ => Err(ConversionError::Type),
    }
}

const INT_OVERFLOW: ConversionError = ConversionError::Because("integer overflow");
const UINT_OVERFLOW: ConversionError = ConversionError::Because("unsigned integer overflow");

fn int(value: &Cel) -> Result<Cel, ConversionError> {
    let int = match value {
        Cel::Int(value) => *value,
        Cel::UInt(value) => i64::try_from(*value).map_err(|_| INT_OVERFLOW)?,
        // The bounds are excluded: 2^63 does not fit, and cel-go refuses -2^63 as well.
        Cel::Float(value) if value.abs() < 9_223_372_036_854_775_808.0 => *value as i64,
        Cel::Float(_) => return Err(INT_OVERFLOW),
        Cel::String(text) => text.parse().map_err(|_| ConversionError::Value)?,
        Cel::Timestamp(time) => time.timestamp(),
        Cel::Duration(duration) => duration.num_nanoseconds().ok_or(INT_OVERFLOW)?,
        _ => return Err(ConversionError::Type),
    };
    Ok(Cel::Int(int))
}

fn uint(value: &Cel) -> Result<Cel, ConversionError> {
    let uint = match value {
        Cel::UInt(value) => *value,
        Cel::Int(value) => u64::try_from(*value).map_err(|_| UINT_OVERFLOW)?,
        Cel::Float(value) if (0.0..18_446_744_073_709_551_616.0).contains(value) => *value as u64,
        Cel::Float(_) => return Err(UINT_OVERFLOW),
        // A sign is not allowed in the text of a uint.
        Cel::String(text) if text.starts_with('+') => return Err(ConversionError::Value),
        Cel::String(text) => text.parse().map_err(|_| ConversionError::Value)?,
        _ => return Err(ConversionError::Type),
    };
    Ok(Cel::UInt(uint))
}

fn double(value: &Cel) -> Result<Cel, ConversionError> {
    let double = match value {
        Cel::Float(value) => *value,
        Cel::Int(value) => *value as f64,
        Cel::UInt(value) => *value as f64,
        Cel::String(text) => crate::number::parse(text).map_err(|_| ConversionError::Value)?,
        _ => return Err(ConversionError::Type),
    };
    Ok(Cel::Float(double))
}

fn bytes(value: &Cel) -> Result<Cel, ConversionError> {
    match value {
        Cel::Bytes(_) => Ok(value.clone()),
        Cel::String(text) => Ok(Cel::Bytes(Arc::new(text.as_bytes().to_vec()))),
        _ => Err(ConversionError::Type),
    }
}

fn string(value: &Cel) -> Result<Cel, ConversionError> {
    if let Some(text) = text(value) {
        return Ok(Cel::String(Arc::new(text)));
    }
    match value {
        Cel::Bytes(_) => Err(ConversionError::Because("invalid UTF-8 in bytes, cannot convert to string")),
        // IP addresses and similar types.
        Cel::Opaque(_) => evaluator_function("string", value).ok_or(ConversionError::Type),
        _ => Err(ConversionError::Type),
    }
}

fn timestamp(value: &Cel) -> Result<Cel, ConversionError> {
    match value {
        Cel::Timestamp(_) => Ok(value.clone()),
        Cel::String(text) => convert::timestamp(text).ok_or(ConversionError::Value),
        Cel::Int(seconds) => {
            let time = jiff::Timestamp::from_second(*seconds)
                .map_err(|_| ConversionError::Because("timestamp overflow"))?;
            convert::timestamp(&time.to_string()).ok_or(ConversionError::Because("timestamp overflow"))
        }
        _ => Err(ConversionError::Type),
    }
}

fn duration(value: &Cel) -> Result<Cel, ConversionError> {
    match value {
        Cel::Duration(_) => Ok(value.clone()),
        Cel::String(_) => evaluator_function("duration", value).ok_or(ConversionError::Value),
        Cel::Int(nanos) => {
            let text = Cel::String(Arc::new(format!("{nanos}ns")));
            evaluator_function("duration", &text).ok_or(ConversionError::Value)
        }
        _ => Err(ConversionError::Type),
    }
}

/// The result of the evaluator's own function.
fn evaluator_function(function: &str, value: &Cel) -> Option<Cel> {
    let mut context = shared_functions().new_inner_scope();
    context.add_variable_from_value("x", value.clone());
    let x = new_node(kube_cel::cel::common::ast::Expr::Ident("x".to_owned()));
    Cel::resolve(&call(function, vec![x]), &context).ok()
}

/// The evaluator's own function fails on receivers that are not strings without an error.
fn contains(This(text): This<Arc<String>>, part: Arc<String>) -> bool {
    text.contains(part.as_str())
}
