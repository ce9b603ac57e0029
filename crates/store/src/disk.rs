//! The database file.
//!
//! One table holds a record per write, keyed (space, revision): it is at once the recent history and the
//! state, since the newest record of a key is its state. A record is deleted when it is superseded *and* the
//! event that superseded it has left the history. So every value is written once, and a restart restores
//! both, exactly.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{
    Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, StorageError, TableDefinition,
};

use crate::hub::Ring;
use crate::record::{self, Record};
use crate::state::State;
use crate::{Event, EventKind, Revision, StoreError};

const FILE: &str = "spaces.redb";
/// Everything is held in memory by us; this only has to hold the pages a commit touches.
const CACHE_BYTES: usize = 8 << 20;
const FORMAT: u64 = 1;

/// `format` → version of what the other tables hold.
const ABOUT: TableDefinition<&str, u64> = TableDefinition::new("about");
/// space → (history starts after this revision, name)
const SPACES: TableDefinition<u32, (u64, &str)> = TableDefinition::new("spaces");
/// (space, revision) → record
const RECORDS: TableDefinition<(u32, u64), &[u8]> = TableDefinition::new("records");

/// What a batch changes in one space.
pub(crate) struct Change<'a> {
    pub(crate) space: u32,
    pub(crate) events: &'a [Arc<Event>],
    /// Records that neither state nor history need any more.
    pub(crate) obsolete: Vec<Revision>,
    /// Name and start of history, when they are not what is stored.
    pub(crate) describe: Option<(&'a str, Revision)>,
}

/// A space as it was read.
pub(crate) struct Loaded {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) ring: Ring,
}

pub(crate) struct Disk {
    database: Database,
    path: PathBuf,
}

impl Disk {
    pub(crate) fn open(dir: &Path) -> Result<(Self, Vec<Loaded>), StoreError> {
        let access =
            |path: &Path, source| StoreError::Access { path: path.to_owned(), source: Arc::new(source) };
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(dir).map_err(|source| access(dir, source))?;
        let path = dir.join(FILE);
        // Secrets are in it: nobody else may read it.
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(|source| access(&path, source))?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(|source| access(dir, source))?;
        let opened = Database::builder().set_cache_size(CACHE_BYTES).create_file(file);
        Self::load(opened.map_err(|error| explain(error, &path))?, path)
    }

    #[cfg(test)]
    pub(crate) fn on(backend: impl redb::StorageBackend) -> Result<(Self, Vec<Loaded>), StoreError> {
        let path = PathBuf::from("test");
        let opened = Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(backend);
        Self::load(opened.map_err(|error| explain(error, &path))?, path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn load(database: Database, path: PathBuf) -> Result<(Self, Vec<Loaded>), StoreError> {
        let disk = Self { database, path };
        let found = disk.prepare().map_err(|error| disk.damaged(error))?;
        if found != FORMAT {
            return Err(disk.damaged(format!("format {found} is not known to this version")));
        }
        let loaded = disk.read()?;
        Ok((disk, loaded))
    }

    fn damaged(&self, detail: impl ToString) -> StoreError {
        StoreError::Corrupt { path: self.path.clone(), detail: detail.to_string() }
    }

    /// Makes the tables of a new database; returns the format of an old one.
    fn prepare(&self) -> Result<u64, redb::Error> {
        let reading = self.database.begin_read()?;
        match reading.open_table(ABOUT) {
            Ok(about) => return Ok(about.get("format")?.map_or(0, |found| found.value())),
            Err(redb::TableError::TableDoesNotExist(_)) => {}
            Err(error) => return Err(error.into()),
        }
        drop(reading);
        let writing = self.database.begin_write()?;
        writing.open_table(ABOUT)?.insert("format", FORMAT)?;
        writing.open_table(SPACES)?;
        writing.open_table(RECORDS)?;
        writing.commit()?;
        Ok(FORMAT)
    }

    /// Replays all records. Values are copied once, into the memory they stay in.
    fn read(&self) -> Result<Vec<Loaded>, StoreError> {
        let mut spaces = BTreeMap::new();
        let bad = |error: redb::Error| self.damaged(error);
        let reading = self.database.begin_read().map_err(|error| bad(error.into()))?;
        let table = reading.open_table(SPACES).map_err(|error| bad(error.into()))?;
        for row in table.iter().map_err(|error| bad(error.into()))? {
            let (id, row) = row.map_err(|error| bad(error.into()))?;
            let (floor, name) = row.value();
            let mut state = State::default();
            state.revision = Revision(floor);
            let ring = Ring { floor: Revision(floor), ..Ring::default() };
            spaces.insert(id.value(), Loaded { id: id.value(), name: name.to_owned(), state, ring });
        }
        let table = reading.open_table(RECORDS).map_err(|error| bad(error.into()))?;
        for row in table.iter().map_err(|error| bad(error.into()))? {
            let (key, bytes) = row.map_err(|error| bad(error.into()))?;
            let (id, revision) = key.value();
            let place = || format!("record {revision} of space {id}");
            let record = record::decode(Revision(revision), bytes.value());
            let record = record.ok_or_else(|| self.damaged(format!("{} makes no sense", place())))?;
            let space = spaces.get_mut(&id);
            let space = space.ok_or_else(|| self.damaged(format!("{} has no space", place())))?;
            space.replay(record);
        }
        Ok(spaces.into_values().collect())
    }

    /// Writes one batch. Durable on return: data pages and header reach the disk in one `fsync`; after a
    /// crash checksums tell whether they all did, otherwise the state before counts.
    pub(crate) fn write<'a>(&self, changes: impl Iterator<Item = Change<'a>>) -> Result<(), redb::Error> {
        let mut writing = self.database.begin_write()?;
        writing.set_durability(Durability::Immediate)?;
        {
            let mut records = writing.open_table(RECORDS)?;
            let mut spaces = None;
            let mut buffer = Vec::new();
            for change in changes {
                for event in change.events {
                    record::encode(event, &mut buffer);
                    records.insert((change.space, event.entry.revision.0), &*buffer)?;
                }
                for revision in change.obsolete {
                    records.remove((change.space, revision.0))?;
                }
                if let Some((name, floor)) = change.describe {
                    let table = match &mut spaces {
                        Some(table) => table,
                        None => spaces.insert(writing.open_table(SPACES)?),
                    };
                    table.insert(change.space, (floor.0, name))?;
                }
            }
        }
        writing.commit()?;
        Ok(())
    }

    pub(crate) fn remove(&self, space: u32) -> Result<(), redb::Error> {
        let writing = self.database.begin_write()?;
        writing.open_table(SPACES)?.remove(space)?;
        writing.open_table(RECORDS)?.retain_in((space, 0)..=(space, u64::MAX), |_, _| false)?;
        writing.commit()?;
        Ok(())
    }
}

impl Loaded {
    fn replay(&mut self, record: Record) {
        let Record { deleted, entry } = record;
        let revision = entry.revision;
        let Some(content) = self.state.content_mut(&entry.key.collection) else { return };
        let entry = content.share(entry);
        let previous = if deleted {
            content.tree.remove(&entry.key.namespace, &entry.key.name)
        } else {
            content.tree.insert(entry.clone())
        };
        self.state.revision = self.state.revision.max(revision);
        if revision > self.ring.floor {
            let kind = match (deleted, &previous) {
                (true, _) => EventKind::Deleted,
                (false, Some(_)) => EventKind::Updated,
                (false, None) => EventKind::Created,
            };
            self.ring.push(Arc::new(Event { kind, entry, previous }));
        }
    }
}

fn explain(error: DatabaseError, path: &Path) -> StoreError {
    let path = path.to_owned();
    match error {
        DatabaseError::DatabaseAlreadyOpen => StoreError::Locked { path },
        DatabaseError::Storage(StorageError::Io(source))
            if !matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            StoreError::Access { path, source: Arc::new(source) }
        }
        other => StoreError::Corrupt { path, detail: other.to_string() },
    }
}
