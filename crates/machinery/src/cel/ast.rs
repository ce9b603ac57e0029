//! Building syntax trees.

use kube_cel::cel::common::ast::{CallExpr, Expr, IdedExpr};

/// A call of a global function.
pub(super) fn call(function: &str, args: Vec<IdedExpr>) -> IdedExpr {
    new_node(Expr::Call(CallExpr { func_name: function.to_owned(), target: None, args }))
}

/// A node without an id of its own.
pub(super) fn new_node(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}
