//! CEL's own functions and those of Kubernetes, unmetered.

use std::sync::OnceLock;

use kube_cel::KubeCelExt as _;
use kube_cel::cel::Context;

/// The functions, built once because there are many.
pub(super) fn shared_functions() -> &'static Context<'static> {
    static FUNCTIONS: OnceLock<Context<'static>> = OnceLock::new();
    FUNCTIONS.get_or_init(functions)
}

/// A new context with the functions.
pub(super) fn functions() -> Context<'static> {
    Context::default().with_all()
}
