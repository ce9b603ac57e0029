//! Rewrites an expression before it runs, so that it pays for its work and deviates less from the CEL specification.
//!
//! Calls of functions that only pay are put around everything that can take long or grow: one step of a loop pays for its
//! element and for what it has accumulated so far (both are copied), functions pay for their arguments, and functions whose
//! result can be larger than their arguments pay for the result. Payment comes before the work. Where the evaluator deviates
//! from the specification, the rewritten expression calls functions of this module instead: `==` and `!=` compare numbers of
//! different types by their value; paths ([`access`]), `&&`, `||`, `all` and `exists` ([`logic`]).

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators,
};

use super::ast::{call, new_node};
use super::names::NAMESPACES;
use super::{access, logic, names};

/// Inserts payments, and replaces operations that deviate from the specification.
pub(super) fn rewrite(expr: &mut IdedExpr) {
    if let Some(name) = names::type_name(&expr.expr) {
        expr.expr = Expr::Ident(name.to_owned());
    }
    if access::operand(&mut expr.expr).is_some() {
        rewrite_path(expr);
        wrap(access::PATH, expr);
        return;
    }
    match &mut expr.expr {
        Expr::Unspecified | Expr::Literal(_) | Expr::Ident(_) | Expr::Struct(_) | Expr::Select(_) => {}
        Expr::List(list) => list.elements.iter_mut().for_each(rewrite),
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    rewrite(&mut entry.key);
                    rewrite(&mut entry.value);
                }
            }
        }
        Expr::Comprehension(inner) => {
            if let Some(quantifier) = rewrite_loop(inner) {
                *expr = quantifier;
            }
        }
        Expr::Call(inner) => rewrite_call(inner),
    }
}

/// Rewrites the operand and the indexes of a path.
fn rewrite_path(path: &mut IdedExpr) {
    if access::operand(&mut path.expr).is_none() {
        return rewrite(path);
    }
    if let Expr::Call(index) = &mut path.expr {
        index.args.iter_mut().skip(1).for_each(rewrite);
    }
    if let Some(operand) = access::operand(&mut path.expr) {
        rewrite_path(operand);
    }
}

/// Rewrites a loop. Returns the call that replaces it, if one does.
fn rewrite_loop(inner: &mut ComprehensionExpr) -> Option<IdedExpr> {
    let weight = new_node(Expr::Literal(LiteralValue::Int(
        (nodes(&inner.loop_step) + nodes(&inner.loop_cond)).into(),
    )));
    rewrite(&mut inner.iter_range);
    let item = new_node(Expr::Ident(inner.iter_var.clone()));
    if let Some((function, mut body)) = logic::quantifier(inner) {
        rewrite(&mut body);
        return Some(call(function, vec![std::mem::take(&mut inner.iter_range), item, body, weight]));
    }
    wrap(logic::RANGE, &mut inner.iter_range);
    for part in [&mut inner.accu_init, &mut inner.loop_cond, &mut inner.loop_step, &mut inner.result] {
        rewrite(part);
    }
    let step = std::mem::take(&mut inner.loop_step);
    inner.loop_step = call("@step", vec![weight, item, step]);
    None
}

fn rewrite_call(inner: &mut CallExpr) {
    let namespaced = inner.target.as_ref().is_some_and(|target| match &target.expr {
        Expr::Ident(name) => NAMESPACES.contains(&name.as_str()),
        _ => false,
    });
    if !namespaced && let Some(target) = &mut inner.target {
        rewrite(target);
    }
    inner.args.iter_mut().for_each(rewrite);
    match inner.func_name.as_str() {
        operators::LOGICAL_AND => logic::AND.clone_into(&mut inner.func_name),
        operators::LOGICAL_OR => logic::OR.clone_into(&mut inner.func_name),
        operators::EQUALS => "@equals".clone_into(&mut inner.func_name),
        operators::NOT_EQUALS => "@differs".clone_into(&mut inner.func_name),
        operators::ADD => inner.args.iter_mut().for_each(|arg| wrap("@pay", arg)),
        operators::IN => inner.args.iter_mut().skip(1).for_each(|arg| wrap("@pay", arg)),
        name if !name.starts_with(|c: char| c.is_ascii_alphabetic()) => {}
        name => {
            let (of_target, of_args) = match name {
                "distinct" | "contains" | "equivalent" | "intersects" if namespaced || name == "distinct" => {
                    ("@paySquare", "@paySquare")
                }
                "matches" | "find" | "findAll" => ("@pay", "@payRegex"),
                "format" => ("@payFormat", "@pay"),
                "range" => ("@pay", "@payCount"),
                _ => ("@pay", "@pay"),
            };
            if !namespaced && let Some(target) = &mut inner.target {
                wrap(of_target, target);
            }
            inner.args.iter_mut().for_each(|arg| wrap(of_args, arg));
        }
    }
}

fn wrap(function: &str, expr: &mut IdedExpr) {
    if matches!(&expr.expr, Expr::Literal(literal) if !matches!(literal, LiteralValue::String(_) | LiteralValue::Int(_)))
    {
        return;
    }
    let inner = std::mem::take(expr);
    *expr = call(function, vec![inner]);
}

/// The number of nodes, without those of inner loops, which pay for themselves.
fn nodes(expr: &IdedExpr) -> i64 {
    1 + match &expr.expr {
        Expr::Call(inner) => {
            inner.target.iter().map(|it| nodes(it)).sum::<i64>() + inner.args.iter().map(nodes).sum::<i64>()
        }
        Expr::Select(select) => nodes(&select.operand),
        Expr::List(list) => list.elements.iter().map(nodes).sum(),
        Expr::Map(map) => map
            .entries
            .iter()
            .map(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => nodes(&entry.key) + nodes(&entry.value),
                EntryExpr::StructField(_) => 1,
            })
            .sum(),
        _ => 0,
    }
}
