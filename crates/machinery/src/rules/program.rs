//! Compiled rules, and their static properties.

use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr};
use kube_cel::cel::{Context, Program};

use crate::cel::metered::{MeteredExpression, RunResult};
use crate::cel::names::NAMESPACES;
use crate::cel::parse_guarded::parse_guarded;
use crate::cel::{SourceError, parse_errors, print_errors};

/// The variables of rules.
pub(super) const VARIABLES: [&str; 2] = ["self", "oldSelf"];

/// One compiled expression.
#[derive(Debug)]
pub(super) struct Expression {
    pub(super) program: Program,
    metered: MeteredExpression,
    properties: Properties,
}

/// Static properties of an expression.
#[derive(Debug, Default)]
struct Properties {
    uses_old: bool,
}

impl Expression {
    /// Compiles a rule over `self` and `oldSelf`.
    pub(super) fn compile(source: &str) -> Result<Self, String> {
        Self::compile_over(source, &VARIABLES)
    }

    /// Compiles an expression over these variables.
    pub(super) fn compile_over(source: &str, variables: &[&str]) -> Result<Self, String> {
        // All of this recurses as deep as the expression is nested.
        let read = |source: &str| {
            let program = Program::compile(source).map_err(|e| parse_errors(source, e))?;
            let mut properties = Properties::default();
            let mut scope = variables.iter().map(|name| (*name).to_owned()).collect();
            let unknown = properties.scan(&program.expression().expr, &mut scope);
            let depth = depth(&program.expression().expr);
            let metered = MeteredExpression::new(program.expression().clone(), depth);
            Ok((Self { program, metered, properties }, unknown))
        };
        let (this, unknown) = parse_guarded(source, read).map_err(|e| format!("compilation failed: {e}"))?;
        if let Some(name) = unknown {
            let why = format!("undeclared reference to '{name}' (in container '')");
            return Err(format!(
                "compilation failed: {}",
                print_errors(source, vec![SourceError::new(1, 1, why)])
            ));
        }
        Ok(this)
    }

    /// Runs the expression in a scope below [`environment`](crate::cel::environment::environment), for at most
    /// `budget`.
    pub(super) fn run(&self, context: &Context, budget: u64) -> RunResult {
        self.metered.run(context, budget)
    }

    /// Nesting depth. Operators in a row count as nested.
    pub(super) fn depth(&self) -> usize {
        self.metered.depth()
    }

    /// Whether the expression uses `oldSelf`.
    pub(super) fn uses_old(&self) -> bool {
        self.properties.uses_old
    }
}

impl Properties {
    /// Scans the expression. Returns the first undeclared variable.
    fn scan(&mut self, expr: &Expr, scope: &mut Vec<String>) -> Option<String> {
        let all = |this: &mut Self, list: &[IdedExpr], scope: &mut Vec<String>| {
            list.iter().find_map(|one| this.scan(&one.expr, scope))
        };
        match expr {
            Expr::Unspecified => None,
            Expr::Ident(name) => {
                self.uses_old |= name == "oldSelf";
                let known =
                    scope.contains(name) || name.starts_with('@') || NAMESPACES.contains(&name.as_str());
                (!known).then(|| name.clone())
            }
            Expr::Literal(_) => None,
            Expr::Select(select) => self.scan(&select.operand.expr, scope),
            Expr::Call(call) => {
                let target = call.target.as_ref();
                // In `optional.of` and `math.abs` the target is a namespace, not a variable.
                let namespace = target
                    .is_some_and(|t| matches!(&t.expr, Expr::Ident(n) if NAMESPACES.contains(&n.as_str())));
                let found = if namespace { None } else { target.and_then(|t| self.scan(&t.expr, scope)) };
                found.or_else(|| all(self, &call.args, scope))
            }
            Expr::List(list) => all(self, &list.elements, scope),
            Expr::Map(map) => map.entries.iter().find_map(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    let key = self.scan(&entry.key.expr, scope);
                    key.or_else(|| self.scan(&entry.value.expr, scope))
                }
                EntryExpr::StructField(field) => self.scan(&field.value.expr, scope),
            }),
            // There are no message types, and the evaluator cannot construct messages.
            Expr::Struct(one) => Some(one.type_name.clone()),
            Expr::Comprehension(inner) => {
                let range = self.scan(&inner.iter_range.expr, scope);
                let init = range.or_else(|| self.scan(&inner.accu_init.expr, scope));
                let before = scope.len();
                scope.push(inner.iter_var.clone());
                scope.extend(inner.iter_var2.clone());
                scope.push(inner.accu_var.clone());
                let parts = [&inner.loop_cond, &inner.loop_step, &inner.result];
                let found = init.or_else(|| parts.into_iter().find_map(|p| self.scan(&p.expr, scope)));
                scope.truncate(before);
                found
            }
        }
    }
}

/// Nesting depth of an expression.
fn depth(expr: &Expr) -> usize {
    let of = |one: &IdedExpr| depth(&one.expr);
    1 + match expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) => 0,
        Expr::Select(select) => of(&select.operand),
        Expr::Call(call) => {
            call.target.iter().map(|it| of(it)).chain(call.args.iter().map(of)).max().unwrap_or(0)
        }
        Expr::List(list) => list.elements.iter().map(of).max().unwrap_or(0),
        Expr::Map(map) => {
            let entries = map.entries.iter().map(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => of(&entry.key).max(of(&entry.value)),
                EntryExpr::StructField(field) => of(&field.value),
            });
            entries.max().unwrap_or(0)
        }
        Expr::Comprehension(inner) => {
            let parts =
                [&inner.iter_range, &inner.accu_init, &inner.loop_cond, &inner.loop_step, &inner.result];
            parts.into_iter().map(of).max().unwrap_or(0)
        }
    }
}
