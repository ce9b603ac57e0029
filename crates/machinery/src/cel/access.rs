//! Field selection and indexing of values, with the errors of cel-go (KS-176, KS-178).

use std::borrow::Cow;
use std::sync::Arc;

use kube_cel::cel::common::ast::{CallExpr, Expr, IdedExpr, operators};
use kube_cel::cel::common::types::{self, CelDouble, CelInt, CelOptional, CelString};
use kube_cel::cel::common::value::Val;
use kube_cel::cel::{Context, ExecutionError, FunctionContext, ResolveResult, Value as Cel};

use super::runtime_type::kind;
use super::text::text;

/// `@path(a.b[c])`: follows fields and indexes.
pub(super) const PATH: &str = "@path";

pub(super) fn register(context: &mut Context) {
    context.add_function(PATH, |ftx: &FunctionContext| -> ResolveResult {
        let path = ftx.args.first().ok_or(ExecutionError::NoSuchOverload)?;
        Cel::try_from(follow(path, ftx.ptx)?.as_ref())
    });
}

/// The operand of a selection or an index expression.
pub(super) fn operand(expr: &mut Expr) -> Option<&mut IdedExpr> {
    match expr {
        Expr::Select(select) => Some(&mut select.operand),
        Expr::Call(CallExpr { func_name, target: None, args })
            if func_name == operators::INDEX && args.len() == 2 =>
        {
            args.first_mut()
        }
        _ => None,
    }
}

/// Follows a path in place. Intermediate values are neither copied nor evaluated twice.
fn follow<'a>(path: &'a IdedExpr, context: &'a Context<'a>) -> Result<Cow<'a, dyn Val>, ExecutionError> {
    match &path.expr {
        Expr::Select(select) => {
            let on = follow(&select.operand, context)?;
            if select.test { has(on.as_ref(), &select.field) } else { field(on, &select.field) }
        }
        Expr::Call(CallExpr { func_name, target: None, args }) if func_name == operators::INDEX => {
            let [on, index] = args.as_slice() else { return Err(ExecutionError::NoSuchOverload) };
            let on = follow(on, context)?;
            element(on, Cel::resolve_val(index, context)?.as_ref())
        }
        _ => Cel::resolve_val(path, context),
    }
}

fn owned<'a>(value: impl Val) -> Cow<'a, dyn Val> {
    Cow::<dyn Val>::Owned(Box::new(value))
}

fn step<'a>(on: Cow<'a, dyn Val>, key: &dyn Val) -> Result<Cow<'a, dyn Val>, ExecutionError> {
    match on {
        Cow::Borrowed(on) => on.as_indexer().ok_or(ExecutionError::NoSuchOverload)?.get(key),
        Cow::Owned(on) => on.into_indexer().ok_or(ExecutionError::NoSuchOverload)?.steal(key).map(Cow::Owned),
    }
}

fn field<'a>(on: Cow<'a, dyn Val>, name: &str) -> Result<Cow<'a, dyn Val>, ExecutionError> {
    match on.get_type() {
        types::MAP_TYPE => step(on, &CelString::from(name)),
        types::LIST_TYPE => Err(unsupported("string")),
        types::OPTIONAL_TYPE => Ok(owned(types::CelBool::from(false))),
        _ => Err(ExecutionError::no_such_key(name)),
    }
}

fn has<'a>(on: &dyn Val, name: &str) -> Result<Cow<'a, dyn Val>, ExecutionError> {
    let found = match on.get_type() {
        types::MAP_TYPE => {
            on.as_container().ok_or(ExecutionError::NoSuchOverload)?.contains(&CelString::from(name))?
        }
        types::LIST_TYPE => return Err(unsupported("string")),
        _ => false,
    };
    Ok(owned(types::CelBool::from(found)))
}

fn element<'a>(on: Cow<'a, dyn Val>, index: &dyn Val) -> Result<Cow<'a, dyn Val>, ExecutionError> {
    match (on.get_type(), index.get_type()) {
        (types::OPTIONAL_TYPE, _) => Ok(optional(on.as_ref(), index)),
        (types::LIST_TYPE, types::INT_TYPE | types::UINT_TYPE) => step(on, index),
        (types::LIST_TYPE, types::DOUBLE_TYPE) => {
            let number = index.downcast_ref::<CelDouble>().map_or(f64::NAN, |number| *number.inner());
            let whole = whole(number).ok_or_else(|| {
                let number = crate::number::text(number);
                ExecutionError::function_error("", format!("unsupported index value {number} in list"))
            })?;
            step(on, &CelInt::from(whole))
        }
        (types::LIST_TYPE, _) => Err(unsupported(&kind(&Cel::try_from(index)?))),
        (types::MAP_TYPE, types::STRING_TYPE | types::INT_TYPE | types::UINT_TYPE | types::BOOL_TYPE) => {
            step(on, index)
        }
        _ => {
            let key = match Cel::try_from(index)? {
                Cel::String(text) => text,
                other => Arc::new(text(&other).unwrap_or_else(|| kind(&other))),
            };
            Err(ExecutionError::NoSuchKey(key))
        }
    }
}

fn optional<'a>(on: &dyn Val, index: &dyn Val) -> Cow<'a, dyn Val> {
    let inner = on.downcast_ref::<CelOptional>().and_then(CelOptional::inner);
    let found = inner.and_then(|on| on.as_indexer()).and_then(|on| on.get(index).ok());
    owned(found.map_or_else(CelOptional::none, |found| CelOptional::of(found.into_owned())))
}

/// The number if it has no fraction.
fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() < 9e18).then_some(number as i64)
}

fn unsupported(kind: &str) -> ExecutionError {
    ExecutionError::function_error("", format!("unsupported index type '{kind}' in list"))
}
