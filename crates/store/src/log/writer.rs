//! Writes the log: one sequential write and one flush per group.

use std::io;
use std::sync::Arc;

use super::format::{FILE_HEADER, GROUP_HEADER, Group, RecordKind, Seed};
use super::manifest::{Active, Manifest, Part, Sealed, log_id, log_name, snapshot_id};
use super::mark::{MARK, Mark};
use super::medium::{Blob, Medium};
use super::recovery::Recovered;
use super::snapshot::{Plan, SpaceImage};
use crate::record;
use crate::{Event, EventKind, Revision};

/// Bytes of a segment, after which the next is begun (the last group may go beyond).
pub(crate) const SEGMENT_BYTES: u64 = if cfg!(test) { 128 << 10 } else { 16 << 20 };
/// Bytes by which a segment is extended: a flush that need not make a new length durable costs about half.
const STEP_BYTES: u64 = if cfg!(test) { 32 << 10 } else { 1 << 20 };

/// What a group changes in one space.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    pub(crate) space: u32,
    /// The space's name and the start of its history, when they are new.
    pub(crate) describe: Option<(&'a str, Revision)>,
    pub(crate) events: &'a [Arc<Event>],
}

#[derive(Debug)]
pub(crate) struct Log {
    medium: Arc<dyn Medium>,
    /// As it is on the disk.
    manifest: Manifest,
    active: Option<Segment>,
    /// Of the last durable group.
    sequence: u64,
    mark: Option<Box<dyn Blob>>,
    /// The mark has been written and not been flushed.
    mark_unflushed: bool,
    buffer: Vec<u8>,
    /// Ids below are taken.
    next: u64,
    /// Generations up to here are taken.
    generation: u64,
    /// The last attempt to replace the manifest failed: it may be the current one all the same.
    uncertain: bool,
    /// Id of the snapshot that is being written.
    snapshot: Option<u64>,
}

/// The segment at the end.
#[derive(Debug)]
struct Segment {
    id: u64,
    first: u64,
    seed: Seed,
    file: Box<dyn Blob>,
    /// Bytes that are durable.
    length: u64,
    /// Of the durable bytes.
    crc: crc32fast::Hasher,
    /// Bytes the file has.
    allocated: u64,
    /// A write or flush failed, or the process that wrote it has ended: nothing is added to the file any more.
    ended: bool,
}

impl Log {
    /// Goes on behind what was read. Touches no file that matters.
    ///
    /// # Errors
    /// The last segment cannot be opened.
    pub(crate) fn new(medium: Arc<dyn Medium>, manifest: Manifest, found: &Recovered) -> io::Result<Self> {
        let active = match (manifest.active, found.active) {
            (Some(Active { id, first }), Some(tail)) => Some(Segment {
                id,
                first,
                seed: manifest.log_header(id, first).seed(),
                file: medium.open(&log_name(id))?,
                length: tail.length,
                crc: crc32fast::Hasher::new_with_initial(tail.crc),
                allocated: tail.length,
                ended: true,
            }),
            _ => None,
        };
        let log = Self {
            active,
            sequence: found.sequence,
            mark: None,
            mark_unflushed: false,
            buffer: Vec::new(),
            next: manifest.next,
            generation: manifest.generation,
            uncertain: false,
            snapshot: None,
            medium,
            manifest,
        };
        log.clean();
        Ok(log)
    }

    pub(crate) fn medium(&self) -> &Arc<dyn Medium> {
        &self.medium
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.manifest.bytes() + self.active.as_ref().map_or(0, |active| active.length)
    }

    /// Number of log segments.
    pub(crate) fn segments(&self) -> usize {
        self.manifest.logs().count()
    }

    /// Makes a group durable.
    ///
    /// # Errors
    /// The disk refused. The group is not there, and [`Log::reopen`] must succeed before the next one.
    pub(crate) fn append<'a>(&mut self, changes: impl Iterator<Item = Change<'a>>) -> io::Result<()> {
        self.group(|group| {
            for Change { space, describe, events } in changes {
                if let Some((name, floor)) = describe {
                    let name = |out: &mut Vec<u8>| out.extend_from_slice(name.as_bytes());
                    group.add(RecordKind::Space, space, floor.0, name)?;
                }
                for event in events {
                    let deleted = event.kind == EventKind::Deleted;
                    let kind = if deleted { RecordKind::Deleted } else { RecordKind::Put };
                    let body = |out: &mut Vec<u8>| record::encode(&event.entry, out);
                    group.add(kind, space, event.entry.revision.0, body)?;
                }
            }
            Ok(())
        })
    }

    /// Removes a space, durably.
    ///
    /// # Errors
    /// As for [`Log::append`].
    pub(crate) fn remove(&mut self, space: u32) -> io::Result<()> {
        self.group(|group| group.add(RecordKind::SpaceRemoved, space, 0, |_| {}))
    }

    fn group(&mut self, fill: impl FnOnce(&mut Group) -> io::Result<()>) -> io::Result<()> {
        let usable =
            self.active.as_ref().is_some_and(|active| !active.ended && active.length < SEGMENT_BYTES);
        if !usable {
            self.rotate()?;
        }
        let sequence = self.sequence + 1;
        let Some(active) = &mut self.active else { return Err(io::ErrorKind::NotFound.into()) };
        let mut group =
            Group::begin(active.seed, active.length as usize, sequence, std::mem::take(&mut self.buffer));
        fill(&mut group)?;
        let bytes = group.finish()?;
        active.ended = true;
        active.write(&bytes).inspect_err(|_| active.withdraw())?;
        active.ended = false;
        self.sequence = sequence;
        self.buffer = bytes;
        self.set_mark();
        Ok(())
    }

    /// Not flushed, and an error is no harm: see [`super::mark`].
    fn set_mark(&mut self) {
        if self.mark.is_none() {
            let opened = self.medium.open(MARK).or_else(|_| self.medium.create(MARK));
            self.mark = opened.ok();
        }
        let mark = Mark { sequence: self.sequence, generation: self.manifest.generation };
        self.mark_unflushed = self.mark.is_some();
        if let Some(file) = &self.mark
            && let Err(error) = mark.write(&**file, &self.manifest.identity)
        {
            tracing::debug!(%error, "writing the mark of the last acknowledged group");
        }
    }

    /// Whether [`Log::flush_mark`] has something to do.
    pub(crate) fn mark_is_unflushed(&self) -> bool {
        self.mark_unflushed
    }

    /// Makes the mark durable: from now on the last group is known to be acknowledged after a power cut, too. For idle time.
    pub(crate) fn flush_mark(&mut self) {
        self.mark_unflushed = false;
        let Some(mark) = &self.mark else { return };
        if let Err(error) = mark.sync().and_then(|()| self.medium.sync()) {
            tracing::debug!(%error, "flushing the mark of the last acknowledged group");
        }
    }

    /// After an error: ends the segment behind the last durable group and begins another with space for more. A file
    /// of which a flush failed is not trusted with anything new, since the next flush may hide what was lost.
    ///
    /// # Errors
    /// The disk still refuses. Try again later.
    pub(crate) fn reopen(&mut self) -> io::Result<()> {
        let usable = self.active.as_ref().is_some_and(|active| !active.ended);
        if usable { Ok(()) } else { self.rotate() }
    }

    /// Seals the segment and begins the next.
    fn rotate(&mut self) -> io::Result<()> {
        // A full disk may refuse for hours: no attempt leaves a file behind.
        self.try_rotate().inspect_err(|_| self.clean())
    }

    fn try_rotate(&mut self) -> io::Result<()> {
        let mut manifest = self.seal()?;
        let id = self.next;
        self.next += 1;
        let first = self.sequence + 1;
        let header = manifest.log_header(id, first);
        let file = self.medium.create(&log_name(id))?;
        let bytes = header.encode();
        file.write_at(0, &bytes)?;
        file.allocate(FILE_HEADER as u64, STEP_BYTES)?;
        file.sync()?;
        manifest.active = Some(Active { id, first });
        self.replace(manifest)?;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&bytes);
        let length = FILE_HEADER as u64;
        let seed = header.seed();
        self.active =
            Some(Segment { id, first, seed, file, length, crc, allocated: STEP_BYTES, ended: false });
        self.clean();
        Ok(())
    }

    /// Ends the active segment and cuts it behind its last durable group. Returns the manifest that says so.
    fn seal(&mut self) -> io::Result<Manifest> {
        let mut manifest = self.manifest.clone();
        manifest.active = None;
        let Some(active) = &mut self.active else { return Ok(manifest) };
        // Even if what follows fails: the manifest may then be the new one, in which the segment has its final length.
        let suspect = std::mem::replace(&mut active.ended, true);
        if active.length > FILE_HEADER as u64 {
            active.file.set_len(active.length)?;
            active.file.sync()?;
            let crc = active.crc.clone().finalize();
            if suspect && crc32fast::hash(&active.file.read()?) != crc {
                let path = self.medium.path(&log_name(active.id));
                let what = format!("{} does not hold any more what was written", path.display());
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            let Segment { id, first, length, .. } = *active;
            manifest.sealed.push(Sealed { id, first, last: self.sequence, length, crc });
        }
        Ok(manifest)
    }

    fn replace(&mut self, mut manifest: Manifest) -> io::Result<()> {
        // No generation and no id is used twice, since a failed attempt may have become current.
        manifest.generation = self.generation;
        manifest.next = self.next;
        self.generation += 1;
        manifest.write_beside(&*self.medium)?;
        self.uncertain = true;
        Manifest::make_current(&*self.medium)?;
        self.uncertain = false;
        self.manifest = manifest;
        Ok(())
    }

    /// Removes files of the log that are not part of it (any more). What cannot be removed now is removed later.
    fn clean(&self) {
        if self.uncertain {
            return;
        }
        let live: Vec<String> = self.manifest.files().collect();
        let writing = |name: &str| snapshot_id(name).is_some_and(|(id, _)| Some(id) == self.snapshot);
        let stale =
            |name: &String| (log_id(name).is_some() || snapshot_id(name).is_some()) && !live.contains(name);
        let names = self.medium.list().unwrap_or_default();
        for name in names.into_iter().filter(stale).filter(|name| !writing(name)) {
            if let Err(error) = self.medium.remove(&name) {
                tracing::debug!(%name, %error, "removing a file that is not needed any more");
            }
        }
    }

    /// Begins a snapshot: what is written from now on goes into a new segment. The plan is for [`super::snapshot::write`].
    ///
    /// # Errors
    /// The disk refused; as for [`Log::append`].
    pub(crate) fn begin_snapshot(&mut self, spaces: Vec<SpaceImage>) -> io::Result<Plan> {
        if self.active.as_ref().is_some_and(|active| active.ended || active.length > FILE_HEADER as u64) {
            self.rotate()?;
        }
        let id = self.next;
        self.next += 1;
        self.snapshot = Some(id);
        Ok(Plan { identity: self.manifest.identity, id, through: self.sequence, spaces })
    }

    /// Makes a written snapshot current and drops what it stands for.
    ///
    /// # Errors
    /// The disk refused. The log goes on as before, without the snapshot.
    pub(crate) fn install(&mut self, parts: Vec<Part>) -> io::Result<()> {
        self.snapshot = None;
        let mut manifest = self.manifest.clone();
        let through = parts.first().map_or(0, |part| part.through);
        manifest.snapshot = parts;
        manifest.sealed.retain(|log| log.last > through);
        self.replace(manifest)?;
        self.clean();
        Ok(())
    }

    /// Removes the files of a snapshot that was not finished.
    pub(crate) fn discard_snapshot(&mut self) {
        self.snapshot = None;
        self.clean();
    }

    /// Seals everything: from now on every damage is found.
    ///
    /// # Errors
    /// The disk refused. The log is whole, but the next start takes it for one that was interrupted.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        if self.active.is_none() {
            return Ok(());
        }
        let manifest = self.seal()?;
        self.replace(manifest)?;
        self.active = None;
        self.clean();
        self.set_mark();
        Ok(())
    }
}

impl Segment {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let end = self.length + bytes.len() as u64;
        if end > self.allocated {
            let wanted = end.next_multiple_of(STEP_BYTES);
            self.file.allocate(self.allocated, wanted)?;
            self.allocated = wanted;
        }
        self.file.write_at(self.length, bytes)?;
        self.file.sync()?;
        self.length = end;
        self.crc.update(bytes);
        Ok(())
    }

    /// Overwrites the header of a group that the disk refused: all of it may be in the file. Where that is refused as well,
    /// the group may come back if the process dies before the segment is sealed.
    fn withdraw(&mut self) {
        let erased = self.file.write_at(self.length, &[0; GROUP_HEADER]).and_then(|()| self.file.sync());
        if let Err(error) = erased {
            tracing::warn!(%error, "a refused write could not be erased; it may come back if the process dies now");
        }
    }
}
