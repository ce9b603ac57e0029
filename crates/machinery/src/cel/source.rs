//! From text to an expression that is safe to run.

use std::collections::BTreeSet;

use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr};
use kube_cel::cel::parser::Parser;

use crate::rules::guarded;

/// What is known of an expression.
pub(super) struct Facts {
    /// The variables that it uses.
    pub(super) used: BTreeSet<String>,
    /// How deep it is nested.
    pub(super) depth: usize,
}

/// Parses `source`, whose variables must be among `known`.
pub(super) fn parse(source: &str, known: &[&str]) -> Result<(IdedExpr, Facts), String> {
    guarded(source, || {
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
    known: &'k [&'k str],
    facts: Facts,
    bound: Vec<String>,
}

impl Check<'_> {
    fn expr(&mut self, expr: &Expr, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("nested more than {} levels deep", MAX_DEPTH));
        }
        let depth = depth + 1;
        self.facts.depth = self.facts.depth.max(depth);
        match expr {
            Expr::Unspecified | Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.variable(name),
            Expr::Select(select) => self.expr(&select.operand.expr, depth),
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
                    call.target.iter().try_for_each(|target| self.expr(&target.expr, depth))?;
                }
                call.args.iter().try_for_each(|arg| self.expr(&arg.expr, depth))
            }
            Expr::List(list) => list.elements.iter().try_for_each(|one| self.expr(&one.expr, depth)),
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    self.expr(&entry.key.expr, depth)?;
                    self.expr(&entry.value.expr, depth)
                }
                EntryExpr::StructField(_) => Err("a map has no fields".to_owned()),
            }),
            Expr::Struct(one) => Err(undeclared(&one.type_name)),
            Expr::Comprehension(inner) => {
                self.expr(&inner.iter_range.expr, depth)?;
                self.expr(&inner.accu_init.expr, depth)?;
                let before = self.bound.len();
                self.bound.push(inner.iter_var.clone());
                self.bound.extend(inner.iter_var2.clone());
                self.bound.push(inner.accu_var.clone());
                for part in [&inner.loop_cond, &inner.loop_step, &inner.result] {
                    self.expr(&part.expr, depth)?;
                }
                self.bound.truncate(before);
                Ok(())
            }
        }
    }

    fn variable(&mut self, name: &str) -> Result<(), String> {
        if self.bound.iter().any(|bound| bound == name) {
            return Ok(());
        }
        if !self.known.contains(&name) {
            return Err(undeclared(name));
        }
        self.facts.used.insert(name.to_owned());
        Ok(())
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
