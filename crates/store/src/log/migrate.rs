//! Takes over a store of the versions that kept everything in one redb file, `spaces.redb`.
//!
//! The file is read from a copy in memory and never changed. The new store is written beside it and read back; then the
//! manifest is written, with a note; then the file is renamed to `spaces.redb.migrated`, and the note goes. A crash before
//! the manifest leaves the old store, one after it the new.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};

use super::manifest::Manifest;
use super::medium::Medium;
use super::replay::Loaded;
use super::snapshot::{self, Plan, SpaceImage};
use super::verify::{access, corrupt, verified};
use crate::record;
use crate::{Revision, StoreError};

pub(super) const OLD: &str = "spaces.redb";
const ASIDE: &str = "spaces.redb.migrated";
const FORMAT: u64 = 1;

/// `format` → version of what the other tables hold.
pub(crate) const ABOUT: TableDefinition<&str, u64> = TableDefinition::new("about");
/// space → (history starts after this revision, name)
pub(crate) const SPACES: TableDefinition<u32, (u64, &str)> = TableDefinition::new("spaces");
/// (space, revision) → 0 put or 1 deleted, then the bytes of [`crate::record`]
pub(crate) const RECORDS: TableDefinition<(u32, u64), &[u8]> = TableDefinition::new("records");

/// Makes the new store from the old file. `damaged`: take what redb's own repair leaves.
pub(super) fn take_over(medium: &dyn Medium, damaged: bool) -> Result<Manifest, StoreError> {
    let spaces = read(medium, damaged)?;
    tracing::info!(spaces = spaces.len(), file = %medium.path(OLD).display(), "taking over the store of an older version");
    let mut manifest = Manifest::new(uuid::Uuid::new_v4().into_bytes());
    let spaces = spaces.into_iter().map(image).collect();
    let plan = Plan { identity: manifest.identity, id: manifest.next, through: 0, spaces };
    let failed = |error| access(medium, "", error);
    manifest.next += 1;
    manifest.snapshot = snapshot::write(&plan, medium, &AtomicBool::new(false)).map_err(failed)?;
    verified(medium, &manifest)?;
    manifest.taking_over = true;
    manifest.store(medium).map_err(failed)?;
    finish(medium, &mut manifest)?;
    Ok(manifest)
}

/// Sets the old file aside, once the new store stands.
pub(super) fn finish(medium: &dyn Medium, manifest: &mut Manifest) -> Result<(), StoreError> {
    let rename = || {
        match medium.rename(OLD, ASIDE) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => medium.sync()?,
        }
        manifest.taking_over = false;
        manifest.store(medium)
    };
    let done: io::Result<()> = { rename }();
    done.map_err(|error| access(medium, OLD, error))
}

pub(crate) fn image(loaded: Loaded) -> SpaceImage {
    let Loaded { id, name, state, ring, .. } = loaded;
    SpaceImage {
        id,
        name: name.into(),
        floor: ring.floor,
        state: state.into(),
        events: ring.events.into_iter().collect(),
    }
}

fn read(medium: &dyn Medium, damaged: bool) -> Result<Vec<Loaded>, StoreError> {
    let blob = medium.open(OLD).map_err(|error| access(medium, OLD, error))?;
    if !blob.lock().map_err(|error| access(medium, OLD, error))? {
        return Err(StoreError::Locked { path: medium.path(OLD) });
    }
    let content = blob.read().map_err(|error| access(medium, OLD, error))?;
    if content.is_empty() {
        return Err(corrupt(medium, OLD, "the file is empty"));
    }
    let bad = |what: String| corrupt(medium, OLD, what);
    let opened = Database::builder().create_with_backend(Copy(Mutex::new(content)));
    let mut database = opened.map_err(|error| bad(error.to_string()))?;
    match database.check_integrity() {
        Ok(true) => {}
        Ok(false) if damaged => {}
        Ok(false) => return Err(bad("its checksums do not match".into())),
        Err(error) => return Err(bad(error.to_string())),
    }
    records(&database).map_err(bad)
}

/// All spaces of the old store.
fn records(database: &Database) -> Result<Vec<Loaded>, String> {
    fn text(error: impl Into<redb::Error>) -> String {
        error.into().to_string()
    }
    let reading = database.begin_read().map_err(text)?;
    let about = reading.open_table(ABOUT).map_err(text)?;
    let format = about.get("format").map_err(text)?.map_or(0, |found| found.value());
    if format != FORMAT {
        return Err(format!("format {format} is not known to this version"));
    }
    let mut spaces = BTreeMap::new();
    for row in reading.open_table(SPACES).map_err(text)?.iter().map_err(text)? {
        let (id, row) = row.map_err(text)?;
        let (floor, name) = row.value();
        let mut loaded = Loaded::new(id.value(), name);
        loaded.forget_through(Revision(floor));
        spaces.insert(id.value(), loaded);
    }
    for row in reading.open_table(RECORDS).map_err(text)?.iter().map_err(text)? {
        let (key, bytes) = row.map_err(text)?;
        let (id, revision) = key.value();
        let space =
            spaces.get_mut(&id).ok_or_else(|| format!("record {revision} of space {id} has no space"))?;
        let record = match bytes.value().split_first() {
            Some((deleted @ (0 | 1), rest)) => {
                record::decode(Revision(revision), rest).map(|entry| (*deleted == 1, entry))
            }
            _ => None,
        };
        // A version holds its own revision in its text.
        let digits = revision.to_string();
        let record = record.filter(|(_, entry)| {
            std::str::from_utf8(&entry.value).is_ok_and(|text| text.contains(digits.as_str()))
        });
        let Some((deleted, entry)) = record else {
            return Err(format!("record {revision} of space {:?} makes no sense", space.name));
        };
        space.replay(deleted, entry);
    }
    Ok(spaces.into_values().collect())
}

/// The old file in memory.
#[derive(Debug)]
struct Copy(Mutex<Vec<u8>>);

fn range(offset: u64, length: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    Some(start..start.checked_add(length)?)
}

impl StorageBackend for Copy {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let content = self.0.lock();
        let found = range(offset, out.len()).and_then(|range| content.get(range));
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let length = usize::try_from(length).map_err(io::Error::other)?;
        self.0.lock().resize(length, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut content = self.0.lock();
        let place = range(offset, data.len()).and_then(|range| content.get_mut(range));
        place.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(data);
        Ok(())
    }
}
