//! Values of templates.

use std::{collections::BTreeMap, sync::Arc};

/// A value. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// Nothing, or an untyped nil.
    Nil,
    Bool(bool),
    Int(i64),
    /// An element of a string.
    Byte(u8),
    Float(f64),
    Text(Arc<str>),
    Map(Arc<BTreeMap<String, String>>),
}

impl Value {
    pub(super) fn text(text: impl Into<Arc<str>>) -> Self {
        Self::Text(text.into())
    }

    /// Go's name of the type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Nil => "<nil>",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Byte(_) => "uint8",
            Self::Float(_) => "float64",
            Self::Text(_) => "string",
            Self::Map(_) => "map[string]string",
        }
    }

    /// The truth value in `if`.
    pub(super) fn truth(&self) -> bool {
        match self {
            Self::Nil => false,
            Self::Bool(b) => *b,
            Self::Int(n) => *n != 0,
            Self::Byte(n) => *n != 0,
            Self::Float(n) => *n != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::Map(map) => !map.is_empty(),
        }
    }

    /// The value as an integer, if it is one.
    pub(super) fn integer(&self) -> Option<i64> {
        match self {
            Self::Int(n) => Some(*n),
            Self::Byte(n) => Some(i64::from(*n)),
            _ => None,
        }
    }
}
