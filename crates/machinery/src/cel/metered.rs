//! Expressions that stop when their budget is spent.

use std::panic::AssertUnwindSafe;

use kube_cel::cel::common::ast::IdedExpr;
use kube_cel::cel::{Context, ExecutionError, Value as Cel};

use super::budget::{Spent, with_budget};
use super::rewrite::rewrite;

/// An expression that pays for its work.
#[derive(Clone, Debug)]
pub(crate) struct MeteredExpression {
    root: IdedExpr,
    depth: usize,
}

/// The result of a run of a [`MeteredExpression`] expression, and its cost; `None` if the run panicked.
pub(crate) type RunResult = Option<(Result<Cel, ExecutionError>, Spent)>;

impl MeteredExpression {
    /// Rewrites a parsed expression of this nesting depth.
    pub(crate) fn new(mut root: IdedExpr, depth: usize) -> Self {
        rewrite(&mut root);
        Self { root, depth }
    }

    /// Nesting depth.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Runs the expression in a scope below [`environment`](super::environment::environment), for at most `budget`.
    pub(crate) fn run(&self, context: &Context, budget: u64) -> RunResult {
        let run = || with_budget(budget, || Cel::resolve(&self.root, context));
        if self.depth <= DEEP {
            return std::panic::catch_unwind(AssertUnwindSafe(run)).ok();
        }
        std::thread::scope(|threads| {
            let stack = self.depth.saturating_mul(LEVEL_STACK).max(DEEP_STACK);
            let runner = std::thread::Builder::new().stack_size(stack).spawn_scoped(threads, run);
            runner.ok()?.join().ok()
        })
    }
}

/// Expressions nested deeper than this run on a thread of their own: the evaluator needs some 10 KiB of stack per
/// level, and several times that without optimisation. Only the used part of a stack occupies memory.
const DEEP: usize = 16;
const DEEP_STACK: usize = 64 << 20;
const LEVEL_STACK: usize = 128 << 10;
