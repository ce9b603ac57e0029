//! Why work of the status controller fails.

/// Why an item could not be processed. It will be retried.
#[derive(Debug, thiserror::Error)]
pub(super) enum StatusError {
    /// A request failed.
    #[error(transparent)]
    Kube(#[from] kube::Error),
    /// The evaluation of expressions ended early.
    #[error("the evaluation of StatusCollectors ended early")]
    Evaluation,
}
