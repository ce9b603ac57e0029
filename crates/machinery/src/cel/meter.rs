//! Makes expressions pay for what they do.
//!
//! The evaluator has no cost limit of its own. So before an expression runs, calls of functions that do nothing but pay are
//! put around whatever can take long or grow: one step of a loop pays for its element and for what it has gathered
//! so far (both are copied), functions pay for what they are given, and those whose answer can be larger than that
//! for the answer. Payment comes before the work. Besides, what the evaluator does otherwise than the language is done by
//! functions of our own: `==` and `!=` compare numbers of different types by their value; paths ([`access`]), `&&`, `||`,
//! `all` and `exists` ([`logic`]).

use std::cell::Cell;
use std::sync::{Arc, OnceLock};

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators,
};
use kube_cel::cel::extractors::{Arguments, This};
use kube_cel::cel::objects::Key;
use kube_cel::cel::{Context, ExecutionError, Value as Cel};

use super::{access, logic, names, standard, times};

/// Work that one evaluation may need, in values walked over (16 bytes of text are one): Kubernetes' limit for one
/// expression.
pub(crate) const BUDGET: u64 = 1_000_000;
/// What compiling a regular expression costs, for each byte.
const REGEX_BYTE: u64 = 200;
/// What it costs at least when it can repeat things.
const REGEX_REPEAT: u64 = 50_000;

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(0) };
    static EXHAUSTED: Cell<bool> = const { Cell::new(false) };
}

/// What became of a run.
pub(crate) struct Spent {
    /// Work that was done.
    pub(crate) cost: u64,
    /// It was stopped, or would have been: what it came to does not count.
    pub(crate) exhausted: bool,
}

/// Runs something on this thread with this budget.
pub(super) fn with_budget<T>(budget: u64, run: impl FnOnce() -> T) -> (T, Spent) {
    LEFT.set(budget);
    EXHAUSTED.set(false);
    let done = run();
    (done, Spent { cost: budget - LEFT.get(), exhausted: EXHAUSTED.get() })
}

/// Whether all has been spent: then nothing may go on, whatever errors are else good for.
pub(super) fn is_exhausted() -> bool {
    EXHAUSTED.get()
}

/// Pays for what walks over a value or copies it.
pub(super) fn pay_for(value: &Cel) -> Result<(), ExecutionError> {
    pay(size(value))
}

pub(super) fn pay(cost: u64) -> Result<(), ExecutionError> {
    match LEFT.get().checked_sub(cost) {
        Some(left) => {
            LEFT.set(left);
            Ok(())
        }
        None => {
            // Nothing that goes on in spite of the error gets far.
            LEFT.set(0);
            EXHAUSTED.set(true);
            Err(ExecutionError::function_error("", "operation cancelled: actual cost limit exceeded"))
        }
    }
}

fn paid(value: Cel, cost: u64) -> Result<Cel, ExecutionError> {
    pay(cost).map(|()| value)
}

/// Number of values in a value.
fn size(value: &Cel) -> u64 {
    match value {
        Cel::List(items) => items.iter().fold(1, |sum: u64, one| sum.saturating_add(size(one))),
        Cel::Map(map) => {
            let key = |key: &Key| if let Key::String(text) = key { 1 + text.len() as u64 / 16 } else { 1 };
            map.map.iter().fold(1, |sum: u64, (k, v)| sum.saturating_add(key(k)).saturating_add(size(v)))
        }
        Cel::String(text) => 1 + text.len() as u64 / 16,
        Cel::Bytes(bytes) => 1 + bytes.len() as u64 / 16,
        _ => 1,
    }
}

fn regex_cost(value: &Cel) -> u64 {
    let Cel::String(pattern) = value else { return 1 };
    let repeats = pattern.contains('{') || pattern.contains("\\p") || pattern.contains("\\P");
    pattern.len() as u64 * REGEX_BYTE + if repeats { REGEX_REPEAT } else { 0 }
}

/// A format asks for digits by number.
fn format_cost(value: &Cel) -> u64 {
    let Cel::String(text) = value else { return 1 };
    let digits = text.split('.').skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        if end == 0 { 0 } else { rest.get(..end).and_then(|it| it.parse::<u64>().ok()).unwrap_or(u64::MAX) }
    });
    digits.fold(size(value), u64::saturating_add)
}

/// All functions of rules, and those that [`rewrite`] puts in.
pub(crate) fn environment() -> &'static Context<'static> {
    static ENVIRONMENT: OnceLock<Context<'static>> = OnceLock::new();
    ENVIRONMENT.get_or_init(own_environment)
}

/// The same, to be added to.
pub(crate) fn own_environment() -> Context<'static> {
    let mut context = crate::rules::functions();
    context.add_function("@pay", |value: Cel| {
        let cost = size(&value);
        paid(value, cost)
    });
    context.add_function("@paySquare", |value: Cel| {
        let cost = size(&value);
        paid(value, cost.saturating_mul(cost))
    });
    context.add_function("@payRegex", |value: Cel| {
        let cost = regex_cost(&value);
        paid(value, cost)
    });
    context.add_function("@payFormat", |value: Cel| {
        let cost = format_cost(&value);
        paid(value, cost)
    });
    context.add_function("@payCount", |value: Cel| {
        let cost = if let Cel::Int(count) = value { u64::try_from(count).unwrap_or(0) } else { 1 };
        paid(value, cost)
    });
    context.add_function("@step", |weight: i64, item: Cel, step: Cel| {
        let cost = weight.unsigned_abs() + size(&item) + size(&step);
        paid(step, cost)
    });
    context.add_function("@equals", |left: Cel, right: Cel| -> Result<bool, ExecutionError> {
        pay(size(&left).min(size(&right)))?;
        Ok(left == right)
    });
    context.add_function("@differs", |left: Cel, right: Cel| -> Result<bool, ExecutionError> {
        pay(size(&left).min(size(&right)))?;
        Ok(left != right)
    });
    context.add_function("replace", replace);
    context.add_function("join", join);
    for register in [access::register, logic::register, standard::register, times::register] {
        register(&mut context);
    }
    context
}

/// As Kubernetes' own, whose answer can be larger than all it is given together.
fn replace(This(this): This<Arc<String>>, Arguments(args): Arguments) -> Result<Cel, ExecutionError> {
    let (Some(Cel::String(from)), Some(Cel::String(to))) = (args.first(), args.get(1)) else {
        return Err(ExecutionError::NoSuchOverload);
    };
    let times = match args.get(2) {
        None => usize::MAX,
        Some(Cel::Int(times)) => usize::try_from(*times).unwrap_or(usize::MAX),
        Some(_) => return Err(ExecutionError::NoSuchOverload),
    };
    let places = if from.is_empty() { this.len() + 1 } else { this.len() / from.len() };
    pay((places.min(times) as u64).saturating_mul(1 + to.len() as u64) / 16)?;
    Ok(Cel::String(Arc::new(this.replacen(from.as_str(), to, times))))
}

/// As Kubernetes' own, which takes lists of strings only.
fn join(This(this): This<Arc<Vec<Cel>>>, Arguments(args): Arguments) -> Result<Cel, ExecutionError> {
    let empty = Arc::new(String::new());
    let separator = match args.first() {
        None => &empty,
        Some(Cel::String(separator)) => separator,
        Some(_) => return Err(ExecutionError::NoSuchOverload),
    };
    pay((this.len() as u64).saturating_mul(1 + separator.len() as u64) / 16)?;
    let parts = this.iter().map(|part| match part {
        Cel::String(text) => Ok(text.as_str()),
        _ => Err(ExecutionError::NoSuchOverload),
    });
    let parts: Vec<&str> = parts.collect::<Result<_, _>>()?;
    Ok(Cel::String(Arc::new(parts.join(separator))))
}

/// Puts the payments in, and our own functions in the place of what the evaluator does otherwise than the language.
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

/// What a path begins with, and the indexes on its way.
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

/// A loop, or what does its work instead.
fn rewrite_loop(inner: &mut ComprehensionExpr) -> Option<IdedExpr> {
    let weight =
        ided(Expr::Literal(LiteralValue::Int((nodes(&inner.loop_step) + nodes(&inner.loop_cond)).into())));
    rewrite(&mut inner.iter_range);
    let item = ided(Expr::Ident(inner.iter_var.clone()));
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
        Expr::Ident(name) => crate::rules::NAMES.contains(&name.as_str()),
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

pub(super) fn call(function: &str, args: Vec<IdedExpr>) -> IdedExpr {
    ided(Expr::Call(CallExpr { func_name: function.to_owned(), target: None, args }))
}

pub(super) fn ided(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

/// Number of nodes, those of inner loops left out: these pay for themselves.
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
