//! The functions that expressions may call: CEL's own, those of Kubernetes, and those that [`super::rewrite`] inserts.

use std::sync::{Arc, OnceLock};

use kube_cel::cel::extractors::{Arguments, This};
use kube_cel::cel::{Context, ExecutionError, Value as Cel};

use super::budget::{pay, size};
use super::functions::functions;
use super::{access, logic, standard, times};

/// Cost of compiling a regular expression, per byte.
const REGEX_BYTE: u64 = 200;
/// Least cost of a regular expression with repetitions or Unicode classes.
const REGEX_REPEAT: u64 = 50_000;

fn paid(value: Cel, cost: u64) -> Result<Cel, ExecutionError> {
    pay(cost).map(|()| value)
}

fn regex_cost(value: &Cel) -> u64 {
    let Cel::String(pattern) = value else { return 1 };
    let repeats = pattern.contains('{') || pattern.contains("\\p") || pattern.contains("\\P");
    pattern.len() as u64 * REGEX_BYTE + if repeats { REGEX_REPEAT } else { 0 }
}

/// The cost of a format string: its precisions ask for that many digits.
fn format_cost(value: &Cel) -> u64 {
    let Cel::String(text) = value else { return 1 };
    let digits = text.split('.').skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        if end == 0 { 0 } else { rest.get(..end).and_then(|it| it.parse::<u64>().ok()).unwrap_or(u64::MAX) }
    });
    digits.fold(size(value), u64::saturating_add)
}

/// All functions of rules, and those that [`rewrite`](super::rewrite) inserts.
pub(crate) fn environment() -> &'static Context<'static> {
    static ENVIRONMENT: OnceLock<Context<'static>> = OnceLock::new();
    ENVIRONMENT.get_or_init(own_environment)
}

/// A new context with these functions, to which functions can be added.
pub(crate) fn own_environment() -> Context<'static> {
    let mut context = functions();
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

/// Like the function of Kubernetes, but pays for the result, which can be larger than all arguments together.
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

/// Like the function of Kubernetes, but pays for the result. Accepts lists of strings only.
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
