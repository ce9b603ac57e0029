//! For whom field ownership is recorded.

use super::set::PathSet;

/// The kind of write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Apply,
    Update,
}

impl Operation {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// The author of a write, its kind and its time.
#[derive(Clone, Debug)]
pub struct Writer {
    pub manager: String,
    pub operation: Operation,
    /// `apps/v1`, `v1`.
    pub api_version: String,
    /// `status`, `scale` or empty.
    pub subresource: String,
    /// RFC 3339, seconds, UTC (`2026-01-01T00:00:00Z`). If empty, entries get no time (scale).
    pub now: String,
    /// Fields that this endpoint never owns, with everything below them: `status` for the main resource of a kind with
    /// a status subresource; `spec`, `metadata.labels`, … for `/status`. Top-level names or dotted paths.
    pub reset: Vec<String>,
}

impl Writer {
    pub(super) fn time(&self) -> Option<String> {
        (!self.now.is_empty()).then(|| self.now.clone())
    }

    pub(super) fn ignored(&self) -> PathSet {
        PathSet::of_fields(self.reset.iter().map(String::as_str))
    }
}
