//! From text to an expression that is safe to run.

use std::collections::BTreeSet;

use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use kube_cel::cel::parser::Parser;

use super::Variable;
use crate::rules::guarded;

/// What is known of an expression.
pub(super) struct Facts {
    /// The variables that it uses.
    pub(super) used: BTreeSet<String>,
    /// How deep it is nested.
    pub(super) depth: usize,
}

/// Parses `source`, whose variables must be among `known`.
pub(super) fn parse(source: &str, known: &[Variable]) -> Result<(IdedExpr, Facts), String> {
    guarded(source, |source| {
        let root = Parser::default().parse(source).map_err(|errors| {
            let lines = errors.errors.iter().map(|error| {
                format!(
                    "ERROR: <input>:{}:{}: {}",
                    error.pos.0,
                    error.pos.1 + 1,
                    error.msg.replace('\n', " ")
                )
            });
            lines.collect::<Vec<_>>().join("; ")
        })?;
        let facts = Facts { used: BTreeSet::new(), depth: 0 };
        let mut check = Check { known, facts, bound: Vec::new() };
        check.expr(&root.expr, 0)?;
        Ok((root, check.facts))
    })
}

/// Expressions that are nested deeper are refused.
const MAX_DEPTH: usize = 100;

struct Check<'k> {
    known: &'k [Variable<'k>],
    facts: Facts,
    bound: Vec<(String, Option<Type>)>,
}

/// What is known of the type of a value without looking; where nothing is, anything goes until it is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Null,
    List,
    Map,
    /// A map whose values are texts.
    Texts,
}

impl Type {
    fn is_number(self) -> bool {
        matches!(self, Self::Int | Self::Uint | Self::Double)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::Text => "string",
            Self::Bytes => "bytes",
            Self::Null => "null",
            Self::List => "list(dyn)",
            Self::Map => "map(dyn, dyn)",
            Self::Texts => "map(string, string)",
        }
    }
}

type Checked = Result<Option<Type>, String>;

impl Check<'_> {
    fn expr(&mut self, expr: &Expr, depth: usize) -> Checked {
        if depth > MAX_DEPTH {
            return Err(format!("nested more than {MAX_DEPTH} levels deep"));
        }
        let depth = depth + 1;
        self.facts.depth = self.facts.depth.max(depth);
        match expr {
            Expr::Unspecified => Ok(None),
            Expr::Literal(literal) => Ok(Some(literal_type(literal))),
            Expr::Ident(name) => self.variable(name),
            Expr::Select(select) => {
                let operand = self.expr(&select.operand.expr, depth)?;
                match operand {
                    None | Some(Type::Map) if !select.test => Ok(None),
                    Some(Type::Texts) if !select.test => Ok(Some(Type::Text)),
                    None | Some(Type::Map | Type::Texts) => Ok(Some(Type::Bool)),
                    Some(other) => Err(format!("type '{}' does not support field selection", other.name())),
                }
            }
            Expr::Call(call) => {
                let namespace = call.target.as_ref().and_then(|target| match &target.expr {
                    Expr::Ident(name) => Some(format!("{name}.{}", call.func_name)),
                    _ => None,
                });
                let qualified = namespace.is_some_and(|name| QUALIFIED.contains(&name.as_str()));
                if !qualified {
                    if !is_function(&call.func_name) {
                        return Err(undeclared(&call.func_name));
                    }
                    if let Some(target) = &call.target {
                        self.expr(&target.expr, depth)?;
                    }
                }
                let mut args = Vec::with_capacity(call.args.len());
                for arg in &call.args {
                    args.push(self.expr(&arg.expr, depth)?);
                }
                if qualified { Ok(None) } else { result_of(&call.func_name, &args) }
            }
            Expr::List(list) => {
                for one in &list.elements {
                    self.expr(&one.expr, depth)?;
                }
                Ok(Some(Type::List))
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else {
                        return Err("a map has no fields".to_owned());
                    };
                    self.expr(&entry.key.expr, depth)?;
                    self.expr(&entry.value.expr, depth)?;
                }
                Ok(Some(Type::Map))
            }
            Expr::Struct(one) => Err(undeclared(&one.type_name)),
            Expr::Comprehension(inner) => {
                let range = self.expr(&inner.iter_range.expr, depth)?;
                if let Some(other) = range
                    && !matches!(other, Type::List | Type::Map | Type::Texts)
                {
                    let why = "must be a list, a map or of a type that is not known before";
                    return Err(format!(
                        "expression of type '{}' cannot be range of a comprehension ({why})",
                        other.name()
                    ));
                }
                let gathered = self.expr(&inner.accu_init.expr, depth)?;
                let before = self.bound.len();
                self.bound.push((inner.iter_var.clone(), None));
                self.bound.extend(inner.iter_var2.clone().map(|name| (name, None)));
                self.bound.push((inner.accu_var.clone(), gathered));
                self.expr(&inner.loop_cond.expr, depth)?;
                self.expr(&inner.loop_step.expr, depth)?;
                let result = self.expr(&inner.result.expr, depth)?;
                self.bound.truncate(before);
                Ok(result)
            }
        }
    }

    fn variable(&mut self, name: &str) -> Checked {
        if let Some((_, bound)) = self.bound.iter().rev().find(|(bound, _)| bound == name) {
            return Ok(*bound);
        }
        let Some(known) = self.known.iter().find(|known| known.name == name) else {
            return Err(undeclared(name));
        };
        self.facts.used.insert(name.to_owned());
        Ok(Some(if known.texts { Type::Texts } else { Type::Map }))
    }
}

fn literal_type(literal: &LiteralValue) -> Type {
    match literal {
        LiteralValue::Boolean(_) => Type::Bool,
        LiteralValue::Bytes(_) => Type::Bytes,
        LiteralValue::Double(_) => Type::Double,
        LiteralValue::Int(_) => Type::Int,
        LiteralValue::Null => Type::Null,
        LiteralValue::String(_) => Type::Text,
        LiteralValue::UInt(_) => Type::Uint,
    }
}

/// The type of what operators and a few functions give; an error if no operator takes such values.
fn result_of(function: &str, args: &[Option<Type>]) -> Checked {
    use Type::{Bool, Bytes, Double, Int, List, Map, Null, Text, Texts, Uint};
    let refused = || {
        let types: Vec<_> = args.iter().map(|arg| arg.map_or("dyn", Type::name)).collect();
        Err(format!("found no matching overload for '{function}' applied to '({})'", types.join(", ")))
    };
    let all = |fits: fn(Type) -> bool| args.iter().flatten().all(|arg| fits(*arg));
    let pair = match args {
        [Some(left), Some(right)] => Some((*left, *right)),
        _ => None,
    };
    match function {
        operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT => {
            if all(|it| it == Bool) {
                Ok(Some(Bool))
            } else {
                refused()
            }
        }
        operators::CONDITIONAL => match args {
            [None | Some(Bool), yes, no] => Ok(if yes == no { *yes } else { None }),
            _ => refused(),
        },
        operators::ADD => match pair {
            Some((left, right))
                if left == right && matches!(left, Int | Uint | Double | Text | Bytes | List) =>
            {
                Ok(Some(left))
            }
            Some(_) => refused(),
            None => Ok(None),
        },
        operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE => match pair {
            Some((left, right)) if left == right && left.is_number() => Ok(Some(left)),
            Some(_) => refused(),
            None => Ok(None),
        },
        operators::MODULO => match pair {
            Some((Int, Int)) => Ok(Some(Int)),
            Some((Uint, Uint)) => Ok(Some(Uint)),
            Some(_) => refused(),
            None => Ok(None),
        },
        operators::NEGATE => {
            if all(|it| matches!(it, Int | Double)) {
                Ok(args.first().copied().flatten())
            } else {
                refused()
            }
        }
        operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS => {
            match pair {
                Some((left, right)) if left.is_number() && right.is_number() => Ok(Some(Bool)),
                Some((left, right)) if left == right && matches!(left, Bool | Text | Bytes) => Ok(Some(Bool)),
                Some(_) => refused(),
                None => Ok(Some(Bool)),
            }
        }
        operators::EQUALS | operators::NOT_EQUALS => match pair {
            Some((Null, _) | (_, Null) | (Map | Texts, Map | Texts)) | None => Ok(Some(Bool)),
            Some((left, right)) if left == right || left.is_number() && right.is_number() => Ok(Some(Bool)),
            Some(_) => refused(),
        },
        operators::IN => match args {
            [_, None | Some(List | Map | Texts)] => Ok(Some(Bool)),
            _ => refused(),
        },
        operators::INDEX => match args.first() {
            Some(Some(Texts)) => Ok(Some(Text)),
            _ => Ok(None),
        },
        "size" | "int" => Ok(Some(Int)),
        "double" => Ok(Some(Double)),
        "string" => Ok(Some(Text)),
        "startsWith" | "endsWith" | "matches" => Ok(Some(Bool)),
        _ => Ok(None),
    }
}

fn undeclared(name: &str) -> String {
    format!("undeclared reference to '{name}' (in container '')")
}

fn is_function(name: &str) -> bool {
    // Operators are no words.
    !name.starts_with(|c: char| c.is_ascii_alphabetic()) || FUNCTIONS.contains(&name)
}

/// All names, for tests.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.into_iter().chain(QUALIFIED)
}

/// Functions and methods.
const FUNCTIONS: [&str; 89] = [
    "add",
    "asApproximateFloat",
    "asInteger",
    "bytes",
    "charAt",
    "cidr",
    "compareTo",
    "contains",
    "containsCIDR",
    "containsIP",
    "distinct",
    "double",
    "duration",
    "endsWith",
    "family",
    "find",
    "findAll",
    "first",
    "flatten",
    "format",
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "getEscapedPath",
    "getFullYear",
    "getHost",
    "getHostname",
    "getHours",
    "getMilliseconds",
    "getMinutes",
    "getMonth",
    "getPort",
    "getQuery",
    "getScheme",
    "getSeconds",
    "hasValue",
    "indexOf",
    "int",
    "ip",
    "isCIDR",
    "isGlobalUnicast",
    "isGreaterThan",
    "isIP",
    "isInteger",
    "isLessThan",
    "isLinkLocalMulticast",
    "isLinkLocalUnicast",
    "isLoopback",
    "isQuantity",
    "isSemver",
    "isSorted",
    "isURL",
    "isUnspecified",
    "join",
    "last",
    "lastIndexOf",
    "lowerAscii",
    "major",
    "masked",
    "matches",
    "max",
    "min",
    "minor",
    "or",
    "orValue",
    "patch",
    "prefixLength",
    "quantity",
    "replace",
    "reverse",
    "semver",
    "sign",
    "size",
    "slice",
    "sort",
    "split",
    "startsWith",
    "string",
    "sub",
    "substring",
    "sum",
    "timestamp",
    "trim",
    "uint",
    "upperAscii",
    "url",
    "validate",
    "value",
];

/// Functions whose names have a dot.
const QUALIFIED: [&str; 44] = [
    "base64.decode",
    "base64.encode",
    "format.byte",
    "format.date",
    "format.datetime",
    "format.dns1035Label",
    "format.dns1035LabelPrefix",
    "format.dns1123Label",
    "format.dns1123LabelPrefix",
    "format.dns1123Subdomain",
    "format.dns1123SubdomainPrefix",
    "format.labelValue",
    "format.named",
    "format.qualifiedName",
    "format.uri",
    "format.uuid",
    "ip.isCanonical",
    "jsonpatch.escapeKey",
    "lists.range",
    "math.abs",
    "math.bitAnd",
    "math.bitNot",
    "math.bitOr",
    "math.bitShiftLeft",
    "math.bitShiftRight",
    "math.bitXor",
    "math.ceil",
    "math.floor",
    "math.greatest",
    "math.isFinite",
    "math.isInf",
    "math.isNaN",
    "math.least",
    "math.round",
    "math.sign",
    "math.sqrt",
    "math.trunc",
    "optional.none",
    "optional.of",
    "optional.ofNonZeroValue",
    "sets.contains",
    "sets.equivalent",
    "sets.intersects",
    "strings.quote",
];
