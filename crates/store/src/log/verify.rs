//! Whether everything that a manifest names is there and undamaged.

use std::io;
use std::sync::Arc;

use super::damage::Located;
use super::manifest::Manifest;
use super::mark::Mark;
use super::medium::Medium;
use super::recovery::{self, Recovered};
use crate::StoreError;

/// How to get on after damage was found.
const REMEDY: &str =
    "restore a backup, or start once with --repair, which drops exactly what is damaged and lists it";
/// Damaged places that a message names.
const NAMED: usize = 3;

pub(super) fn access(medium: &dyn Medium, name: &str, source: io::Error) -> StoreError {
    StoreError::Access { path: medium.path(name), source: Arc::new(source) }
}

pub(super) fn corrupt(medium: &dyn Medium, name: &str, detail: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt { path: medium.path(name), detail: format!("{detail}; {REMEDY}") }
}

/// Everything the manifest names, if nothing of it is damaged.
pub(super) fn verified(medium: &dyn Medium, manifest: &Manifest) -> Result<Recovered, StoreError> {
    let mark = Mark::read(medium, &manifest.identity);
    let found = recovery::read(medium, manifest, mark, &[]).map_err(|error| access(medium, "", error))?;
    let Some(Located { file, .. }) = found.damaged.first() else { return Ok(found) };
    let named: Vec<String> = found.damaged.iter().take(NAMED).map(ToString::to_string).collect();
    let mut detail = named.join("; ");
    if let Some(more) = found.damaged.len().checked_sub(NAMED).filter(|more| *more > 0) {
        detail = format!("{detail}; and {more} more places");
    }
    Err(corrupt(medium, file, detail))
}
