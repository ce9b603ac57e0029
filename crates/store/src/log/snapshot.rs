//! Snapshots: everything that state and history need, written beside the log.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::format::{FILE_HEADER, FileHeader, FileKind, Group, Identity, RecordKind, Seed};
use super::manifest::{Part, snapshot_name};
use super::medium::{Blob, Medium};
use crate::record;
use crate::state::State;
use crate::{Entry, Event, EventKind, Revision};

/// Bytes of a group.
const GROUP_BYTES: usize = 256 << 10;
/// Bytes after which what was written is flushed, so that the flushes of writers find little to do besides their own.
const FLUSH_BYTES: usize = 4 << 20;
/// Bytes of a part. A part is read as a whole at start.
const PART_BYTES: usize = 64 << 20;

/// A space at one moment. Cheap to take: pointers only.
#[derive(Debug)]
pub(crate) struct SpaceImage {
    pub(crate) id: u32,
    pub(crate) name: Arc<str>,
    /// History starts after this revision.
    pub(crate) floor: Revision,
    pub(crate) state: Arc<State>,
    pub(crate) events: Vec<Arc<Event>>,
}

impl SpaceImage {
    /// All versions that state and history consist of, by revision, and whether they are deletions.
    fn versions(&self) -> Vec<(&Entry, bool)> {
        let mut versions: Vec<(&Entry, bool)> = Vec::new();
        for content in self.state.contents() {
            versions.extend(content.tree.iter(None, None).map(|entry| (&**entry, false)));
        }
        for event in &self.events {
            versions.push((&event.entry, event.kind == EventKind::Deleted));
            versions.extend(event.previous.iter().map(|previous| (&**previous, false)));
        }
        versions.sort_unstable_by_key(|(entry, _)| entry.revision);
        versions.dedup_by_key(|(entry, _)| entry.revision);
        versions
    }
}

/// What a snapshot is, before it is written.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) identity: Identity,
    pub(crate) id: u64,
    /// It stands for all groups up to this sequence.
    pub(crate) through: u64,
    pub(crate) spaces: Vec<SpaceImage>,
}

/// Writes all parts; durable on return. After an error, or when it was cancelled, the files are of no use.
pub(crate) fn write(plan: &Plan, medium: &dyn Medium, cancel: &AtomicBool) -> io::Result<Vec<Part>> {
    let mut writer = Writer { plan, medium, cancel, parts: Vec::new(), open: None };
    for space in &plan.spaces {
        writer.add(RecordKind::Space, space.id, space.floor.0, |out| {
            out.extend_from_slice(space.name.as_bytes());
        })?;
        for (entry, deleted) in space.versions() {
            let kind = if deleted { RecordKind::Deleted } else { RecordKind::Put };
            writer.add(kind, space.id, entry.revision.0, |out| record::encode(entry, out))?;
        }
    }
    writer.finish()?;
    medium.sync()?;
    Ok(writer.parts)
}

struct Writer<'a> {
    plan: &'a Plan,
    medium: &'a dyn Medium,
    cancel: &'a AtomicBool,
    /// Finished ones.
    parts: Vec<Part>,
    open: Option<OpenPart>,
}

struct OpenPart {
    file: Box<dyn Blob>,
    seed: Seed,
    crc: crc32fast::Hasher,
    length: usize,
    flushed: usize,
    sequence: u64,
    records: u64,
    group: Group,
}

impl Writer<'_> {
    fn add(
        &mut self,
        kind: RecordKind,
        space: u32,
        revision: u64,
        body: impl FnOnce(&mut Vec<u8>),
    ) -> io::Result<()> {
        if self.open.as_ref().is_some_and(|open| open.length >= PART_BYTES) {
            self.end_part(false)?;
        }
        let open = self.part()?;
        open.group.add(kind, space, revision, body)?;
        open.records += 1;
        if open.group.len() >= GROUP_BYTES {
            open.end_group()?;
            if self.cancel.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.part()?;
        self.end_part(true)
    }

    fn part(&mut self) -> io::Result<&mut OpenPart> {
        match &mut self.open {
            Some(open) => Ok(open),
            closed => Ok(closed.insert(OpenPart::new(self.plan, self.medium, self.parts.len() as u32)?)),
        }
    }

    fn end_part(&mut self, last: bool) -> io::Result<()> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        open.group.add(RecordKind::End, u32::from(last), open.records, |_| {})?;
        open.end_group()?;
        open.file.sync()?;
        self.parts.push(Part {
            id: self.plan.id,
            part: self.parts.len() as u32,
            through: self.plan.through,
            length: open.length as u64,
            crc: open.crc.finalize(),
        });
        Ok(())
    }
}

impl OpenPart {
    fn new(plan: &Plan, medium: &dyn Medium, part: u32) -> io::Result<Self> {
        let Plan { identity, id, through, .. } = *plan;
        let header = FileHeader { kind: FileKind::Snapshot, identity, id, sequence: through, part };
        let (seed, bytes) = (header.seed(), header.encode());
        let file = medium.create(&snapshot_name(id, part))?;
        file.write_at(0, &bytes)?;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&bytes);
        let group = Group::begin(seed, FILE_HEADER, 1, Vec::new());
        Ok(Self { file, seed, crc, length: FILE_HEADER, flushed: 0, sequence: 1, records: 0, group })
    }

    fn end_group(&mut self) -> io::Result<()> {
        let empty = Group::begin(self.seed, 0, 0, Vec::new());
        let bytes = std::mem::replace(&mut self.group, empty).finish()?;
        self.file.write_at(self.length as u64, &bytes)?;
        self.crc.update(&bytes);
        self.length += bytes.len();
        if self.length - self.flushed >= FLUSH_BYTES {
            self.file.sync()?;
            self.flushed = self.length;
        }
        self.sequence += 1;
        self.group = Group::begin(self.seed, self.length, self.sequence, bytes);
        Ok(())
    }
}
