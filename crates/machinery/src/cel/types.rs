//! Static types, as far as they are known, and the result types of operators.

use std::fmt;

use kube_cel::cel::common::ast::operators;

/// The static type of an expression. Unknown types fit every operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Type {
    /// Unknown.
    Dyn,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Null,
    Timestamp,
    Duration,
    /// A type, by its name.
    Kind(String),
    /// A list with elements of a type.
    List(Box<Type>),
    /// A map with keys and values of types.
    Map(Box<Type>, Box<Type>),
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dyn => "dyn",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::Text => "string",
            Self::Bytes => "bytes",
            Self::Null => "null",
            Self::Timestamp => "timestamp",
            Self::Duration => "duration",
            Self::Kind(name) => return write!(f, "type({name})"),
            Self::List(element) => return write!(f, "list({element})"),
            Self::Map(key, value) => return write!(f, "map({key}, {value})"),
        })
    }
}

impl Type {
    /// The common type of all; unknown if they differ.
    pub(super) fn of_all(types: Vec<Self>) -> Self {
        let mut types = types.into_iter();
        let Some(first) = types.next() else { return Self::Dyn };
        if types.all(|one| one == first) { first } else { Self::Dyn }
    }

    /// Whether values of both types may have the same type. Null fits every type, and maps fit each other.
    pub(super) fn fits(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dyn | Self::Null, _) | (_, Self::Dyn | Self::Null) => true,
            (Self::Map(..), Self::Map(..)) | (Self::Kind(_), Self::Kind(_)) => true,
            (Self::List(one), Self::List(other)) => one.fits(other),
            _ => self == other,
        }
    }

    /// The type of a field; `None` if the type has no fields.
    pub(super) fn field(&self) -> Option<Self> {
        match self {
            Self::Dyn => Some(Self::Dyn),
            Self::Map(_, value) => Some((**value).clone()),
            _ => None,
        }
    }

    /// The type of a loop's elements; `None` if the type cannot be iterated.
    pub(super) fn element(&self) -> Option<Self> {
        match self {
            Self::Dyn => Some(Self::Dyn),
            Self::List(element) | Self::Map(element, _) => Some((**element).clone()),
            _ => None,
        }
    }

    fn is_ordered(&self) -> bool {
        use Type::{Bool, Bytes, Double, Duration, Int, Text, Timestamp, Uint};
        matches!(self, Bool | Int | Uint | Double | Text | Bytes | Timestamp | Duration)
    }
}

/// The result type of operators and common functions; `None` if no overload accepts the arguments.
pub(super) fn result_of(function: &str, args: &[&Type]) -> Option<Type> {
    use Type::{Bool, Bytes, Double, Dyn, Int, List, Map, Null, Text, Uint};
    if let Some((takes, gives)) = conversion(function) {
        return args.iter().all(|arg| matches!(arg, Dyn | Null) || takes.contains(arg)).then_some(gives);
    }
    match (function, args) {
        (operators::LOGICAL_NOT, [Dyn | Bool]) => Some(Bool),
        (operators::NEGATE, [Dyn | Int | Double]) => args.first().map(|arg| (*arg).clone()),
        (operators::LOGICAL_NOT | operators::NEGATE, _) => None,
        (operators::CONDITIONAL, [Dyn | Bool, yes, no]) => {
            yes.fits(no).then(|| if yes == no { (*yes).clone() } else { Dyn })
        }
        (operators::CONDITIONAL, _) => None,
        (operators::EQUALS | operators::NOT_EQUALS, [left, right]) => left.fits(right).then_some(Bool),
        (
            operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS,
            [left, right],
        ) => match (left, right) {
            (Dyn, _) | (_, Dyn) => Some(Bool),
            (left, right) => (left == right && left.is_ordered()).then_some(Bool),
        },
        (operators::IN, [_, Dyn | Map(..)]) => Some(Bool),
        (operators::IN, [one, List(element)]) => one.fits(element).then_some(Bool),
        (operators::IN, _) => None,
        (operators::INDEX, [Dyn, _]) => Some(Dyn),
        (operators::INDEX, [Map(_, value), _]) => Some((**value).clone()),
        (operators::INDEX, [List(element), Dyn | Int | Uint]) => Some((**element).clone()),
        (operators::INDEX, _) => None,
        (
            operators::ADD
            | operators::SUBSTRACT
            | operators::MULTIPLY
            | operators::DIVIDE
            | operators::MODULO,
            [left, right],
        ) => arithmetic(function, left, right),
        ("size", [Dyn | Null | Text | Bytes | List(_) | Map(..)]) => Some(Int),
        ("size", _) => None,
        ("type", [Type::Kind(_)]) => Some(Type::Kind("type".to_owned())),
        ("type", [one]) => Some(Type::Kind(one.to_string())),
        ("startsWith" | "endsWith" | "matches", _) => Some(Bool),
        _ => Some(Dyn),
    }
}

/// The argument types and the result type of a conversion.
fn conversion(function: &str) -> Option<(&'static [Type], Type)> {
    use Type::{Bool, Bytes, Double, Duration, Int, Text, Timestamp, Uint};
    Some(match function {
        "int" => (&[Int, Uint, Double, Text, Timestamp, Duration], Int),
        "uint" => (&[Int, Uint, Double, Text], Uint),
        "double" => (&[Int, Uint, Double, Text], Double),
        "bool" => (&[Bool, Text], Bool),
        "bytes" => (&[Bytes, Text], Bytes),
        "string" => (&[Bool, Int, Uint, Double, Text, Bytes, Timestamp, Duration], Text),
        "timestamp" => (&[Int, Text, Timestamp], Timestamp),
        "duration" => (&[Int, Text, Duration], Duration),
        _ => return None,
    })
}

fn arithmetic(operator: &str, left: &Type, right: &Type) -> Option<Type> {
    use Type::{Bytes, Double, Duration, Dyn, Int, List, Text, Timestamp, Uint};
    match (operator, left, right) {
        (_, Dyn, _) | (_, _, Dyn) => Some(Dyn),
        (operators::ADD, List(one), List(other)) => {
            left.fits(right).then(|| if one == other { left.clone() } else { List(Box::new(Dyn)) })
        }
        (operators::ADD, Text | Bytes, _) => (left == right).then(|| left.clone()),
        (operators::ADD, Timestamp, Duration) | (operators::ADD, Duration, Timestamp) => Some(Timestamp),
        (operators::SUBSTRACT, Timestamp, Duration) => Some(Timestamp),
        (operators::SUBSTRACT, Timestamp, Timestamp) => Some(Duration),
        (operators::ADD | operators::SUBSTRACT, Duration, Duration) => Some(Duration),
        (operators::MODULO, Double, Double) => None,
        _ => (left == right && matches!(left, Int | Uint | Double)).then(|| left.clone()),
    }
}
