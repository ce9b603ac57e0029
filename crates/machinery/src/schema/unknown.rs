//! Fields that a type does not have.

use super::graph::StackPath;
use crate::field;

/// A field that the type does not have, by its full path (AS-037). Prints `unknown field "spec.foo"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownField {
    pub path: String,
}

impl std::fmt::Display for UnknownField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unknown field \"{}\"", self.path)
    }
}

/// Unknown fields in the order of discovery, up to [`TEXT_MAX`](field::TEXT_MAX) bytes of paths.
#[derive(Debug, Default)]
pub(super) struct Unknown {
    pub(super) found: Vec<UnknownField>,
    bytes: usize,
}

impl Unknown {
    pub(super) fn push(&mut self, at: &StackPath) {
        if self.bytes < field::TEXT_MAX {
            let path = at.render(false);
            self.bytes += path.len();
            self.found.push(UnknownField { path });
        }
    }
}
