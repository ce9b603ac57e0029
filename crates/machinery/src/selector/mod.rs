//! Label and field selectors (AS-024).

mod fields;
mod labels;
mod parser;

pub use fields::{FieldOp, FieldRequirement, FieldSelector};
pub use labels::{LabelOp, LabelRequirement, LabelSelector, validate_label_selector};

/// Why a selector was refused; the text is that of the API server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub String);
