//! `&&`, `||`, `all` and `exists`: an operand that decides the result absorbs errors of the others, in any order
//! (KS-176).

use std::sync::Arc;

use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, operators};
use kube_cel::cel::objects::Key;
use kube_cel::cel::{Context, ExecutionError, FunctionContext, ResolveResult, Value as Cel};

use super::budget;
use super::runtime_type::kind;

/// Converts the range of a loop into the list of its elements.
pub(super) const RANGE: &str = "@range";
/// `a && b`
pub(super) const AND: &str = "@and";
/// `a || b`
pub(super) const OR: &str = "@or";
/// `range.all(name, body)`, as `@all(range, name, body, weight)`
pub(super) const ALL: &str = "@all";
/// `range.exists(name, body)`, likewise
pub(super) const EXISTS: &str = "@exists";

pub(super) fn register(context: &mut Context) {
    context.add_function(RANGE, |range: Cel| iterate(&range).map(|elements| Cel::List(Arc::new(elements))));
    context.add_function(AND, |ftx: &FunctionContext| -> ResolveResult { operands(ftx, false) });
    context.add_function(OR, |ftx: &FunctionContext| -> ResolveResult { operands(ftx, true) });
    context.add_function(ALL, |ftx: &FunctionContext| -> ResolveResult { elements(ftx, false) });
    context.add_function(EXISTS, |ftx: &FunctionContext| -> ResolveResult { elements(ftx, true) });
}

/// The function that replaces a macro, and the expression that it evaluates for each element.
pub(super) fn quantifier(inner: &mut ComprehensionExpr) -> Option<(&'static str, IdedExpr)> {
    let gathered = |expr: &IdedExpr| matches!(&expr.expr, Expr::Ident(name) if *name == inner.accu_var);
    let Expr::Call(CallExpr { func_name, target: None, args }) = &inner.loop_step.expr else { return None };
    let function = match func_name.as_str() {
        operators::LOGICAL_AND => ALL,
        operators::LOGICAL_OR => EXISTS,
        _ => return None,
    };
    if inner.iter_var2.is_some()
        || args.len() != 2
        || !gathered(&inner.result)
        || !args.first().is_some_and(gathered)
    {
        return None;
    }
    let Expr::Call(step) = std::mem::take(&mut inner.loop_step.expr) else { return None };
    step.args.into_iter().next_back().map(|body| (function, body))
}

/// The elements of a loop's range. Map keys are sorted.
fn iterate(range: &Cel) -> Result<Vec<Cel>, ExecutionError> {
    match range {
        Cel::List(items) => Ok(items.to_vec()),
        Cel::Map(map) => {
            let mut keys: Vec<&Key> = map.map.keys().collect();
            keys.sort();
            Ok(keys.into_iter().map(value_of).collect())
        }
        other => {
            let mut name = kind(other);
            name = name.trim_start_matches("google.protobuf.").trim_end_matches("_type").to_owned();
            if let Some(first) = name.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            Err(ExecutionError::function_error("", format!("got 'types.{name}', expected iterable type")))
        }
    }
}

fn value_of(key: &Key) -> Cel {
    match key {
        Key::Int(value) => Cel::Int(*value),
        Key::Uint(value) => Cel::UInt(*value),
        Key::Bool(value) => Cel::Bool(*value),
        Key::String(text) => Cel::String(text.clone()),
    }
}

/// The result of a logical operator: `decisive` if an operand has this value, else the first error, else the other
/// value.
struct LogicResult {
    decisive: bool,
    error: Option<ExecutionError>,
}

impl LogicResult {
    /// Adds one operand. Returns the result if this operand decides, or if the budget is spent.
    fn take(&mut self, operand: ResolveResult) -> Option<ResolveResult> {
        match operand {
            Ok(Cel::Bool(found)) if found == self.decisive => return Some(Ok(Cel::Bool(found))),
            Ok(Cel::Bool(_)) => {}
            Err(error) if budget::is_exhausted() => return Some(Err(error)),
            Err(error) => {
                self.error.get_or_insert(error);
            }
            Ok(_) => {
                self.error.get_or_insert(ExecutionError::NoSuchOverload);
            }
        }
        None
    }

    fn end(self) -> ResolveResult {
        self.error.map_or(Ok(Cel::Bool(!self.decisive)), Err)
    }
}

fn operands(ftx: &FunctionContext, decisive: bool) -> ResolveResult {
    let mut result = LogicResult { decisive, error: None };
    for operand in ftx.args {
        if let Some(end) = result.take(Cel::resolve(operand, ftx.ptx)) {
            return end;
        }
    }
    result.end()
}

fn elements(ftx: &FunctionContext, decisive: bool) -> ResolveResult {
    let [range, variable, body, weight] = ftx.args else { return Err(ExecutionError::NoSuchOverload) };
    let (Expr::Ident(variable), Cel::Int(weight)) = (&variable.expr, Cel::resolve(weight, ftx.ptx)?) else {
        return Err(ExecutionError::NoSuchOverload);
    };
    let range = Cel::resolve(range, ftx.ptx)?;
    // Pays for copying all elements.
    budget::pay_for(&range)?;
    let mut result = LogicResult { decisive, error: None };
    for element in iterate(&range)? {
        budget::pay(weight.unsigned_abs() + 1)?;
        let mut scope = ftx.ptx.new_inner_scope();
        scope.add_variable_from_value(variable.as_str(), element);
        if let Some(end) = result.take(Cel::resolve(body, &scope)) {
            return end;
        }
    }
    result.end()
}
