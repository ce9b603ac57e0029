//! Expressions that stop when their budget is spent.

use std::panic::AssertUnwindSafe;

use kube_cel::cel::common::ast::IdedExpr;
use kube_cel::cel::{Context, ExecutionError, Value as Cel};

use super::budget::{Spent, with_budget};
use super::rewrite::rewrite;

/// An expression that pays for what it does.
#[derive(Clone, Debug)]
pub(crate) struct Metered {
    root: IdedExpr,
    depth: usize,
}

/// What a run of a [`Metered`] expression came to; nothing if it could not be run.
pub(crate) type Outcome = Option<(Result<Cel, ExecutionError>, Spent)>;

impl Metered {
    /// Of a parsed expression that is nested this deep.
    pub(crate) fn new(mut root: IdedExpr, depth: usize) -> Self {
        rewrite(&mut root);
        Self { root, depth }
    }

    /// How deep it is nested.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Runs it in a scope below [`environment`], for at most `budget`.
    pub(crate) fn run(&self, context: &Context, budget: u64) -> Outcome {
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

/// What is nested deeper is run on a thread of its own, as the evaluator takes some 10 KiB of stack for each level, several
/// times that without optimisation. Only what is used of a stack is memory.
const DEEP: usize = 16;
const DEEP_STACK: usize = 64 << 20;
const LEVEL_STACK: usize = 128 << 10;
