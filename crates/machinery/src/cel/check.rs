//! Static checks of an expression: undeclared names, and operands that no operator accepts, as far as their types are
//! known.

use std::collections::BTreeSet;

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators,
};

use super::names::{is_function, is_qualified, type_name};
use super::types::Type;

/// A variable that expressions may use. Its type is a map.
#[derive(Clone, Copy, Debug)]
pub struct Variable<'n> {
    /// Its name.
    pub name: &'n str,
    /// Whether the values of the map are strings; otherwise their type is unknown.
    pub texts: bool,
}

impl<'n> Variable<'n> {
    /// A map with values of any type.
    pub const fn map(name: &'n str) -> Self {
        Self { name, texts: false }
    }

    /// A map with string values.
    pub const fn texts(name: &'n str) -> Self {
        Self { name, texts: true }
    }
}

/// Deeper nested expressions are refused.
pub(super) const MAX_DEPTH: usize = 100;

/// The result of the checks.
#[derive(Clone, Debug, Default)]
pub(super) struct CheckResult {
    /// The variables that the expression uses.
    pub(super) used: BTreeSet<String>,
    /// Those of them that it uses other than by selecting a field.
    pub(super) whole: BTreeSet<String>,
    /// The fields that it selects of variables: variable and field.
    pub(super) selected: BTreeSet<(String, String)>,
    /// Nesting depth. More than [`MAX_DEPTH`] if the check stopped there.
    pub(super) depth: usize,
    /// Errors, with the ids of the nodes.
    pub(super) faults: Vec<(u64, String)>,
}

/// Checks an expression with these declared variables, and with these methods beside the usual functions.
pub(super) fn check(root: &IdedExpr, known: &[Variable], methods: &[&str]) -> CheckResult {
    let mut check = Check { known, methods, facts: CheckResult::default(), bound: Vec::new() };
    check.expr(root, 0);
    check.facts
}

struct Check<'k> {
    known: &'k [Variable<'k>],
    methods: &'k [&'k str],
    facts: CheckResult,
    bound: Vec<(String, Type)>,
}

impl Check<'_> {
    fn expr(&mut self, expr: &IdedExpr, depth: usize) -> Type {
        let depth = depth + 1;
        self.facts.depth = self.facts.depth.max(depth);
        if depth > MAX_DEPTH {
            return Type::Dyn;
        }
        if let Some(name) = type_name(&expr.expr).filter(|name| !self.is_bound(name)) {
            return Type::Kind(name.to_owned());
        }
        match &expr.expr {
            Expr::Unspecified => Type::Dyn,
            Expr::Literal(literal) => literal_type(literal),
            Expr::Ident(name) => self.variable(expr.id, name),
            Expr::Select(select) => {
                let operand = self.operand(&select.operand, &select.field, depth);
                match operand.field() {
                    Some(_) if select.test => Type::Bool,
                    Some(field) => field,
                    None => self.fault(expr.id, format!("type '{operand}' does not support field selection")),
                }
            }
            Expr::Call(call) => self.call(expr.id, call, depth),
            Expr::List(list) => {
                let elements: Vec<Type> = list.elements.iter().map(|one| self.expr(one, depth)).collect();
                Type::List(Box::new(Type::of_all(elements)))
            }
            Expr::Map(map) => {
                let (mut keys, mut values) = (Vec::new(), Vec::new());
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        keys.push(self.expr(&entry.key, depth));
                        values.push(self.expr(&entry.value, depth));
                    }
                }
                Type::Map(Box::new(Type::of_all(keys)), Box::new(Type::of_all(values)))
            }
            Expr::Struct(one) => self.fault(expr.id, undeclared(&one.type_name)),
            Expr::Comprehension(inner) => self.comprehension(inner, depth),
        }
    }

    /// Checks what a field is selected of. A variable is then used for that field only.
    fn operand(&mut self, operand: &IdedExpr, field: &str, depth: usize) -> Type {
        let Expr::Ident(name) = &operand.expr else { return self.expr(operand, depth) };
        let was_whole = self.facts.whole.contains(name);
        let found = self.expr(operand, depth);
        if !was_whole && self.facts.whole.remove(name) {
            self.facts.selected.insert((name.clone(), field.to_owned()));
        }
        found
    }

    /// Records an error. The type of a faulty node is unknown.
    fn fault(&mut self, id: u64, message: String) -> Type {
        self.facts.faults.push((id, message));
        Type::Dyn
    }

    fn is_bound(&self, name: &str) -> bool {
        self.bound.iter().any(|(bound, _)| bound == name) || self.known.iter().any(|known| known.name == name)
    }

    fn variable(&mut self, id: u64, name: &str) -> Type {
        if let Some((_, bound)) = self.bound.iter().rev().find(|(bound, _)| bound == name) {
            return bound.clone();
        }
        let Some(known) = self.known.iter().find(|known| known.name == name) else {
            return self.fault(id, undeclared(name));
        };
        self.facts.used.insert(name.to_owned());
        self.facts.whole.insert(name.to_owned());
        Type::Map(Box::new(Type::Text), Box::new(if known.texts { Type::Text } else { Type::Dyn }))
    }

    fn call(&mut self, id: u64, call: &CallExpr, depth: usize) -> Type {
        let namespace = call.target.as_ref().and_then(|target| match &target.expr {
            Expr::Ident(name) => Some(format!("{name}.{}", call.func_name)),
            _ => None,
        });
        let qualified = namespace.is_some_and(|name| is_qualified(&name));
        let target = call.target.as_ref().filter(|_| !qualified).map(|target| self.expr(target, depth));
        let args: Vec<Type> = call.args.iter().map(|arg| self.expr(arg, depth)).collect();
        if qualified {
            return Type::Dyn;
        }
        let name = call.func_name.as_str();
        if !is_function(name) && !self.methods.contains(&name) {
            return self.fault(id, undeclared(name));
        }
        if matches!(name, operators::LOGICAL_AND | operators::LOGICAL_OR) {
            for (arg, found) in call.args.iter().zip(&args).filter(|(_, found)| !Type::Bool.fits(found)) {
                self.fault(arg.id, format!("expected type 'bool' but found '{found}'"));
            }
            return Type::Bool;
        }
        let all: Vec<&Type> = target.iter().chain(&args).collect();
        super::types::result_of(name, &all).unwrap_or_else(|| {
            let names: Vec<String> = args.iter().map(ToString::to_string).collect();
            let target = target.map_or(String::new(), |target| format!("{target}."));
            let types = format!("{target}({})", names.join(", "));
            self.fault(id, format!("found no matching overload for '{name}' applied to '{types}'"))
        })
    }

    fn comprehension(&mut self, inner: &ComprehensionExpr, depth: usize) -> Type {
        let range = self.expr(&inner.iter_range, depth);
        let element = range.element().unwrap_or_else(|| {
            let why = "(must be list, map, or dynamic)";
            self.fault(
                inner.iter_range.id,
                format!("expression of type '{range}' cannot be range of a comprehension {why}"),
            )
        });
        let gathered = self.expr(&inner.accu_init, depth);
        let before = self.bound.len();
        self.bound.push((inner.iter_var.clone(), element));
        self.bound.extend(inner.iter_var2.clone().map(|name| (name, Type::Dyn)));
        self.bound.push((inner.accu_var.clone(), gathered));
        self.expr(&inner.loop_cond, depth);
        self.expr(&inner.loop_step, depth);
        let result = self.expr(&inner.result, depth);
        self.bound.truncate(before);
        result
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

fn undeclared(name: &str) -> String {
    format!("undeclared reference to '{name}' (in container '')")
}
