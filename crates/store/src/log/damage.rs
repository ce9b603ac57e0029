//! Places of a store that do not hold what was written there.

use std::fmt;

/// A place that does not hold what was written there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) offset: usize,
    /// Bytes.
    pub(crate) length: usize,
    /// Space and revision of the record that was there, where they are known.
    pub(crate) record: Option<(u32, u64)>,
    pub(crate) what: String,
}

/// A damaged place, or a missing file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    pub(crate) file: String,
    pub(crate) damage: Damage,
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { offset, length, record, what } = &self.damage;
        write!(f, "bytes {offset} to {}", offset + length)?;
        if let Some((space, revision)) = record {
            write!(f, " (revision {revision} of space {space})")?;
        }
        write!(f, ": {what}")
    }
}
