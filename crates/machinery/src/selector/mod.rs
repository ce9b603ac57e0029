//! Label and field selectors (AS-024).

mod fields;
mod labels;
mod parser;
mod requirement;

pub use fields::{FieldOp, FieldRequirement, FieldSelector};
pub use labels::{LabelSelector, validate_label_selector};
pub use requirement::{LabelOp, LabelRequirement};

/// Why a selector was refused. The text is that of the API server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub String);
