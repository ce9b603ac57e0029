//! The fields that an expression selects.

use kube_cel::cel::common::ast::Expr;

use super::identifier::unescape;
use super::program::{Expression, VARIABLES};
use crate::schema::graph::{Graph, Id, Type};

/// The first field that a rule selects below `self` and that objects of this type cannot have.
pub(super) fn undefined_field(expression: &Expression, graph: &Graph, id: Id) -> Option<String> {
    let mut missing = None;
    fields(&expression.program.expression().expr, graph, id, &mut missing);
    missing
}

/// Follows chains of selections that start at `self`. Returns the type at their end, if it is known.
fn fields(expr: &Expr, graph: &Graph, id: Id, missing: &mut Option<String>) -> Option<Id> {
    let mut visit = |one: &Expr| drop_place(fields(one, graph, id, missing));
    match expr {
        Expr::Ident(name) if VARIABLES.contains(&name.as_str()) => Some(id),
        Expr::Select(select) => {
            let at = fields(&select.operand.expr, graph, id, missing)?;
            let node = graph.resolve(at).1;
            let declared = node.field(&unescape(&select.field));
            if let Some(field) = declared {
                return (node.kind == Type::Object && &*field.name != "metadata").then_some(field.node);
            }
            if node.kind == Type::Object
                && !node.fields.is_empty()
                && node.additional.is_none()
                && !node.preserve
            {
                missing.get_or_insert_with(|| select.field.clone());
            }
            None
        }
        Expr::Call(call) => {
            call.target.iter().for_each(|t| visit(&t.expr));
            call.args.iter().for_each(|a| visit(&a.expr));
            None
        }
        Expr::List(list) => {
            list.elements.iter().for_each(|e| visit(&e.expr));
            None
        }
        Expr::Comprehension(inner) => {
            // A loop over `self` may shadow `self`; then the type is unknown.
            if VARIABLES.contains(&inner.iter_var.as_str()) {
                return None;
            }
            for part in
                [&inner.iter_range, &inner.accu_init, &inner.loop_cond, &inner.loop_step, &inner.result]
            {
                visit(&part.expr);
            }
            None
        }
        _ => None,
    }
}

fn drop_place(_: Option<Id>) {}
