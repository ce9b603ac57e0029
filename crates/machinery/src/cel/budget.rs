//! The budget of an evaluation. It belongs to the thread that evaluates.

use std::cell::Cell;

use kube_cel::cel::objects::Key;
use kube_cel::cel::{ExecutionError, Value as Cel};

/// Cost limit of one evaluation: Kubernetes' limit for one expression. Unit: visited values; 16 bytes of text count as
/// one value.
pub(crate) const BUDGET: u64 = 1_000_000;

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(0) };
    static EXHAUSTED: Cell<bool> = const { Cell::new(false) };
}

/// The cost of a run.
pub(crate) struct Spent {
    /// Cost in visited values.
    pub(crate) cost: u64,
    /// The budget ran out, so the result is not valid.
    pub(crate) exhausted: bool,
}

/// Runs something on this thread with a budget.
pub(super) fn with_budget<T>(budget: u64, run: impl FnOnce() -> T) -> (T, Spent) {
    LEFT.set(budget);
    EXHAUSTED.set(false);
    let done = run();
    (done, Spent { cost: budget - LEFT.get(), exhausted: EXHAUSTED.get() })
}

/// Whether the budget has run out. Then the error must not be absorbed.
pub(super) fn is_exhausted() -> bool {
    EXHAUSTED.get()
}

/// Pays for visiting or copying a value.
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
            // Keeps code that ignores the error from doing more work.
            LEFT.set(0);
            EXHAUSTED.set(true);
            Err(ExecutionError::function_error("", "operation cancelled: actual cost limit exceeded"))
        }
    }
}

/// The number of values in a value.
pub(super) fn size(value: &Cel) -> u64 {
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
