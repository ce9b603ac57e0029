//! Drops what is damaged and keeps the rest.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::damage::{Damage, Located};
use super::format::{FileHeader, FileKind};
use super::manifest::{MANIFEST, MANIFEST_NEW, Manifest, Part, log_id, snapshot_id, snapshot_name};
use super::mark::Mark;
use super::medium::Medium;
use super::migrate::{self, image};
use super::open::{create, lock};
use super::recovery::{self, Recovered, is_ours, later_logs};
use super::snapshot::{self, Plan};
use super::unreadable::Readable;
use super::verify::access;
use crate::{Revision, StoreError};

/// What [`crate::Engine::repair`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// What is not in the store any more. Empty when nothing was damaged; then nothing was changed.
    pub dropped: Vec<Dropped>,
    /// The damaged files, renamed.
    pub kept_aside: Vec<PathBuf>,
}

/// Something that was damaged, and is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    pub file: PathBuf,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// Bytes; 0 when something is missing.
    pub length: u64,
    /// The space's name and the revision of the version that was there, where they are known.
    pub record: Option<(String, Revision)>,
    pub what: String,
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, length, record, what } = self;
        write!(f, "{}, bytes {offset} to {}", file.display(), offset + length)?;
        if let Some((space, revision)) = record {
            write!(f, " (revision {revision} of space {space})")?;
        }
        write!(f, ": {what}")
    }
}

/// See [`crate::Engine::repair`].
pub(crate) fn repair(dir: &Path) -> Result<Repaired, StoreError> {
    repair_on(&lock(dir)?)
}

/// As [`repair`], on any medium. Unreadable sectors are damage as any other.
pub(crate) fn repair_on(medium: &dyn Medium) -> Result<Repaired, StoreError> {
    let medium = &Readable::new(medium);
    let failed = |error| access(medium, "", error);
    let names = medium.list().map_err(failed)?;
    if !names.iter().any(|name| is_ours(name) && name != MANIFEST_NEW) {
        return start_anew(medium, &names);
    }
    let mut lost = Vec::new();
    let manifest = medium.open(MANIFEST).and_then(|blob| blob.read());
    let manifest = match manifest.map(|bytes| Manifest::decode(&bytes)) {
        Ok(Ok(manifest)) => manifest,
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(access(medium, MANIFEST, error)),
        Err(_) | Ok(Err(_)) if names.iter().any(|name| name == migrate::OLD) => {
            return taken_over(medium);
        }
        unusable => {
            let what = match unusable {
                Ok(Err(what)) => what,
                _ => "the file is missing".into(),
            };
            lost.push(missing(MANIFEST, what));
            rebuilt(medium, &names).map_err(failed)?
        }
    };
    let mark = Mark::read(medium, &manifest.identity);
    let later = later_logs(medium, &manifest).map_err(failed)?;
    let mut found = recovery::read(medium, &manifest, mark, &later).map_err(failed)?;
    lost.append(&mut found.damaged);
    lost.extend(medium.unreadable());
    if lost.is_empty() {
        return Ok(Repaired::default());
    }
    let dropped = lost.iter().map(|located| describe(medium, &found, located)).collect();
    forget(&mut found, &lost);
    rewrite(medium, &names, manifest, mark, found).map_err(failed)?;
    let kept_aside = set_aside(medium, &lost).map_err(failed)?;
    Ok(Repaired { dropped, kept_aside })
}

fn missing(file: &str, what: String) -> Located {
    Located { file: file.to_owned(), damage: Damage { offset: 0, length: 0, record: None, what } }
}

/// There is no store, or one of an older version.
fn start_anew(medium: &dyn Medium, names: &[String]) -> Result<Repaired, StoreError> {
    if names.iter().any(|name| name == migrate::OLD) {
        return taken_over(medium);
    }
    create(medium).map_err(|error| access(medium, MANIFEST, error))?;
    let file = medium.path("");
    let what = "there was no store; it starts empty".to_owned();
    let dropped = vec![Dropped { file, offset: 0, length: 0, record: None, what }];
    Ok(Repaired { dropped, kept_aside: Vec::new() })
}

fn taken_over(medium: &dyn Medium) -> Result<Repaired, StoreError> {
    // Undamaged, it is taken over as at any start.
    let Err(damage) = migrate::take_over(medium, false) else { return Ok(Repaired::default()) };
    if !matches!(damage, StoreError::Corrupt { .. }) {
        return Err(damage);
    }
    migrate::take_over(medium, true)?;
    let what = "its checksums did not match; it went back to its last whole state".to_owned();
    let dropped = vec![Dropped { file: medium.path(migrate::OLD), offset: 0, length: 0, record: None, what }];
    Ok(Repaired { dropped, kept_aside: Vec::new() })
}

fn describe(medium: &dyn Medium, found: &Recovered, located: &Located) -> Dropped {
    let Damage { offset, length, record, what } = &located.damage;
    let record = record.map(|(space, revision)| {
        let name = found.spaces.0.get(&space).map(|space| space.name.clone());
        (name.unwrap_or_else(|| format!("number {space}")), Revision(revision))
    });
    Dropped {
        file: medium.path(&located.file),
        offset: *offset as u64,
        length: *length as u64,
        record,
        what: what.clone(),
    }
}

/// History with a hole is no history: clients of the spaces concerned list again.
fn forget(found: &mut Recovered, lost: &[Located]) {
    let known: Option<BTreeSet<u32>> =
        lost.iter().map(|located| located.damage.record.map(|(space, _)| space)).collect();
    let revisions = lost.iter().filter_map(|located| located.damage.record);
    let newest = revisions.map(|(_, revision)| revision).max().unwrap_or(0);
    for space in found.spaces.0.values_mut() {
        if known.as_ref().is_none_or(|known| known.contains(&space.id)) {
            // No client may take the state for one that it has seen.
            let revision = space.state.revision.0.max(newest) + 1;
            space.forget_through(Revision(revision));
        }
    }
}

/// Writes what is left as a snapshot and makes it current.
fn rewrite(
    medium: &dyn Medium,
    names: &[String],
    old: Manifest,
    mark: Option<Mark>,
    found: Recovered,
) -> io::Result<()> {
    let ids = names.iter().filter_map(|name| log_id(name).or_else(|| snapshot_id(name).map(|(id, _)| id)));
    let id = ids.chain([old.next]).max().unwrap_or(0) + 1;
    let through = mark.map_or(0, |mark| mark.sequence).max(found.sequence) + 1;
    let spaces = found.spaces.0.into_values().map(image).collect();
    let plan = Plan { identity: old.identity, id, through, spaces };
    let mut manifest = Manifest::new(old.identity);
    manifest.snapshot = snapshot::write(&plan, medium, &AtomicBool::new(false))?;
    manifest.next = id + 1;
    manifest.generation = mark.map_or(0, |mark| mark.generation).max(old.generation);
    manifest.store(medium)
}

fn set_aside(medium: &dyn Medium, lost: &[Located]) -> io::Result<Vec<PathBuf>> {
    let files: BTreeSet<&str> =
        lost.iter().map(|located| &*located.file).filter(|file| *file != MANIFEST).collect();
    let mut aside = Vec::new();
    for file in files {
        let name = format!("{file}.damaged");
        match medium.rename(file, &name) {
            Ok(()) => aside.push(medium.path(&name)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    medium.sync()?;
    Ok(aside)
}

/// What the manifest must have said, from the files themselves. Log segments are left to [`later_logs`].
fn rebuilt(medium: &dyn Medium, names: &[String]) -> io::Result<Manifest> {
    let mut headers = Vec::new();
    for name in names.iter().filter(|name| log_id(name).is_some() || snapshot_id(name).is_some()) {
        let content = medium.open(name)?.read()?;
        if let Some(header) = FileHeader::decode(&content) {
            headers.push((header, content.len() as u64, crc32fast::hash(&content)));
        }
    }
    headers.sort_by_key(|(header, ..)| (header.id, header.part));
    let Some((newest, ..)) = headers.last() else {
        return Ok(Manifest::new(uuid::Uuid::new_v4().into_bytes()));
    };
    let mut manifest = Manifest::new(newest.identity);
    let parts = headers
        .iter()
        .filter(|(header, ..)| header.identity == manifest.identity && header.kind == FileKind::Snapshot);
    // The newest snapshot that is complete.
    let mut complete: Vec<Part> = Vec::new();
    let mut current: Vec<Part> = Vec::new();
    for (header, length, crc) in parts {
        if current.first().is_some_and(|part| part.id != header.id) {
            current.clear();
        }
        let FileHeader { id, part, sequence: through, .. } = *header;
        current.push(Part { id, number: part, through, length: *length, crc: *crc });
        if current.len() as u32 == part + 1 && is_last(medium, header)? {
            complete.clone_from(&current);
        }
    }
    manifest.snapshot = complete;
    Ok(manifest)
}

/// Whether the part ends its snapshot.
fn is_last(medium: &dyn Medium, header: &FileHeader) -> io::Result<bool> {
    let content = medium.open(&snapshot_name(header.id, header.part))?.read()?;
    Ok(recovery::ends_snapshot(&content, header))
}
