//! Opens a store: finds it, takes over one of an older version, or makes it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::manifest::{MANIFEST, MANIFEST_NEW, Manifest};
use super::medium::{Directory, Medium};
use super::migrate;
use super::recovery::is_ours;
use super::replay::Loaded;
use super::unreadable::is_unreadable;
use super::verify::{access, corrupt, verified};
use super::writer::Log;
use crate::StoreError;

/// The directory, locked.
pub(super) fn lock(dir: &Path) -> Result<Directory, StoreError> {
    let opened = Directory::open(dir);
    let opened =
        opened.map_err(|source| StoreError::Access { path: dir.to_owned(), source: Arc::new(source) })?;
    opened.ok_or_else(|| StoreError::Locked { path: dir.to_owned() })
}

/// Opens the store in `dir`, or makes one there unless it must exist.
///
/// # Errors
/// See [`crate::Engine::open`].
pub(crate) fn open(dir: &Path, must_exist: bool) -> Result<(Log, Vec<Loaded>), StoreError> {
    open_on(Arc::new(lock(dir)?), must_exist)
}

/// As [`open`], on any medium.
///
/// # Errors
/// See [`crate::Engine::open`].
pub(crate) fn open_on(medium: Arc<dyn Medium>, must_exist: bool) -> Result<(Log, Vec<Loaded>), StoreError> {
    let names = medium.list().map_err(|error| access(&*medium, "", error))?;
    let has = |name: &str| names.iter().any(|found| found == name);
    let manifest = if has(MANIFEST) {
        let mut manifest = read_manifest(&*medium)?;
        if manifest.taking_over {
            migrate::finish(&*medium, &mut manifest)?;
        } else if has(migrate::OLD) {
            let detail = "a store of an older version lies beside the present one; move away the one that is not wanted";
            return Err(StoreError::Corrupt { path: medium.path(migrate::OLD), detail: detail.into() });
        }
        manifest
    } else if has(migrate::OLD) {
        migrate::take_over(&*medium, false)?
    } else if let Some(stray) = names.iter().find(|name| is_ours(name) && *name != MANIFEST_NEW) {
        return Err(corrupt(&*medium, MANIFEST, format!("the file is missing, although {stray} is there")));
    } else if must_exist {
        return Err(StoreError::Missing { path: medium.path("") });
    } else {
        create(&*medium).map_err(|error| access(&*medium, MANIFEST, error))?
    };
    let found = verified(&*medium, &manifest)?;
    if let Some(tail) = found.active.filter(|tail| tail.torn) {
        tracing::warn!(
            offset = tail.length,
            "the last write was interrupted; it was not acknowledged and is cut"
        );
    }
    let log = Log::new(medium.clone(), manifest, &found).map_err(|error| access(&*medium, "", error))?;
    Ok((log, found.spaces.0.into_values().collect()))
}

/// A new, empty store.
pub(super) fn create(medium: &dyn Medium) -> io::Result<Manifest> {
    let mut manifest = Manifest::new(uuid::Uuid::new_v4().into_bytes());
    manifest.store(medium)?;
    Ok(manifest)
}

fn read_manifest(medium: &dyn Medium) -> Result<Manifest, StoreError> {
    let bytes = medium.open(MANIFEST).and_then(|blob| blob.read());
    let bytes = bytes.map_err(|error| {
        if is_unreadable(&error) { corrupt(medium, MANIFEST, error) } else { access(medium, MANIFEST, error) }
    })?;
    Manifest::decode(&bytes).map_err(|what| corrupt(medium, MANIFEST, what))
}
