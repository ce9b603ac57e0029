//! Compiled rules, and what is known of them without running them.

use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr};
use kube_cel::cel::{Context, Program};

use crate::cel::metered::{Metered, Outcome};
use crate::cel::names::NAMESPACES;
use crate::cel::read::guarded;
use crate::cel::{Fault, show, unread};

/// Rules without a known variable are not rules.
pub(super) const VARIABLES: [&str; 2] = ["self", "oldSelf"];

/// One compiled expression.
#[derive(Debug)]
pub(super) struct Expression {
    pub(super) program: Program,
    metered: Metered,
    facts: Facts,
}

/// What an expression does, as far as it can be seen.
#[derive(Debug, Default)]
struct Facts {
    uses_old: bool,
}

impl Expression {
    /// A rule over `self` and `oldSelf`.
    pub(super) fn compile(source: &str) -> Result<Self, String> {
        Self::compile_over(source, &VARIABLES)
    }

    /// An expression over these variables.
    pub(super) fn compile_over(source: &str, variables: &[&str]) -> Result<Self, String> {
        // All that goes through it calls itself as deep as it is nested.
        let read = |source: &str| {
            let program = Program::compile(source).map_err(|e| unread(source, e))?;
            let mut facts = Facts::default();
            let mut scope = variables.iter().map(|name| (*name).to_owned()).collect();
            let unknown = facts.scan(&program.expression().expr, &mut scope);
            let depth = depth(&program.expression().expr);
            let metered = Metered::new(program.expression().clone(), depth);
            Ok((Self { program, metered, facts }, unknown))
        };
        let (this, unknown) = guarded(source, read).map_err(|e| format!("compilation failed: {e}"))?;
        if let Some(name) = unknown {
            let why = format!("undeclared reference to '{name}' (in container '')");
            return Err(format!("compilation failed: {}", show(source, vec![Fault::new(1, 1, why)])));
        }
        Ok(this)
    }

    /// Runs it in a scope below [`crate::cel::environment`], for at most `budget`.
    pub(super) fn run(&self, context: &Context, budget: u64) -> Outcome {
        self.metered.run(context, budget)
    }

    /// How deep it is nested; operators in a row are, too.
    pub(super) fn depth(&self) -> usize {
        self.metered.depth()
    }

    /// It asks for the former value.
    pub(super) fn uses_old(&self) -> bool {
        self.facts.uses_old
    }
}

impl Facts {
    /// Looks at all, and finds the first variable that nobody declared.
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
                // `optional.of`, `math.abs`: the target is a name, not a variable.
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
            // There are no types to make values of, and the evaluator can't.
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

/// How deep an expression is nested.
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
