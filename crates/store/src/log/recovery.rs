//! Reads a store: every file that the manifest names, every byte of it, before anything is served.

use std::io;

use super::damage::{Damage, Located};
use super::format::{FileHeader, RecordKind};
use super::manifest::{
    Active, MANIFEST, MANIFEST_NEW, Manifest, Part, Sealed, log_id, log_name, snapshot_id, snapshot_name,
};
use super::mark::{MARK, Mark};
use super::medium::Medium;
use super::replay::Spaces;
use super::scan::{End, Found, Scanner};
use super::unreadable::is_unreadable;

/// What was found in a store.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    pub(crate) spaces: Spaces,
    /// Sequence of the last group.
    pub(crate) sequence: u64,
    /// The segment that was being written to.
    pub(crate) active: Option<Tail>,
    pub(crate) damaged: Vec<Located>,
}

/// The end of the segment that was being written to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    /// Behind the last group.
    pub(crate) length: u64,
    /// CRC-32 of all before.
    pub(crate) crc: u32,
    /// A group that was never acknowledged is there in part.
    pub(crate) torn: bool,
}

struct Reader<'a> {
    medium: &'a dyn Medium,
    found: Recovered,
}

/// Reads what the manifest names. Damage is listed; what can be read in spite of it is there.
///
/// `later`: segments to be read behind those, for a repair.
///
/// # Errors
/// A file cannot be read, although it is there.
pub(crate) fn read(
    medium: &dyn Medium,
    manifest: &Manifest,
    mark: Option<Mark>,
    later: &[Active],
) -> io::Result<Recovered> {
    let mut reader = Reader { medium, found: Recovered::default() };
    reader.snapshot(manifest)?;
    reader.found.sequence = manifest.through();
    for log in &manifest.sealed {
        reader.sealed(manifest, log)?;
    }
    for active in manifest.active.iter().chain(later) {
        reader.active(manifest, *active, mark)?;
    }
    reader.unlisted(manifest)?;
    if let Some(mark) = mark.filter(|mark| mark.sequence > reader.found.sequence) {
        let (last, acknowledged) = (reader.found.sequence, mark.sequence);
        let newest = manifest.logs().last().map_or_else(|| MANIFEST.to_owned(), log_name);
        let what = format!("the last group is {last}, but {acknowledged} was acknowledged");
        reader.damaged(&newest, Damage { offset: 0, length: 0, record: None, what });
        reader.found.sequence = acknowledged;
    }
    if let Some(mark) = mark.filter(|mark| mark.generation > manifest.generation) {
        let what =
            format!("it is older ({}) than the last in use ({})", manifest.generation, mark.generation);
        reader.damaged(MANIFEST, Damage { offset: 0, length: 0, record: None, what });
    }
    Ok(reader.found)
}

impl Reader<'_> {
    fn damaged(&mut self, file: &str, damage: Damage) {
        self.found.damaged.push(Located { file: file.to_owned(), damage });
    }

    /// The content of a file that must be there.
    fn content(&mut self, file: &str) -> io::Result<Option<Vec<u8>>> {
        match self.medium.open(file).and_then(|blob| blob.read()) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let what = "the file is missing".to_owned();
                self.damaged(file, Damage { offset: 0, length: 0, record: None, what });
                Ok(None)
            }
            Err(error) if is_unreadable(&error) => {
                let what = format!("the disk cannot read it: {error}");
                self.damaged(file, Damage { offset: 0, length: 0, record: None, what });
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn scan(&mut self, file: &str, content: &[u8], header: &FileHeader, next: u64) -> (End, u64) {
        let mut records = 0;
        let end = self.scanner(file, content, header, &mut records).groups(next);
        (end, records)
    }

    fn scanner<'b>(
        &'b mut self,
        file: &'b str,
        content: &'b [u8],
        header: &FileHeader,
        records: &'b mut u64,
    ) -> Scanner<'b, impl FnMut(Found<'_>)> {
        let Recovered { spaces, damaged, .. } = &mut self.found;
        let base = content.as_ptr() as usize;
        let each = move |found: Found<'_>| {
            let damage = match found {
                Found::Record(header, body) => {
                    let ended = header.kind == RecordKind::End && header.revision != *records;
                    *records += 1;
                    let Err(what) =
                        (if ended { Err("records are missing") } else { spaces.apply(header, body) })
                    else {
                        return;
                    };
                    let offset = (body.as_ptr() as usize).saturating_sub(base);
                    let record = Some((header.space, header.revision));
                    Damage { offset, length: body.len(), record, what: what.to_owned() }
                }
                Found::Damage(damage) => damage,
            };
            damaged.push(Located { file: file.to_owned(), damage });
        };
        Scanner { seed: header.seed(), file: content, each }
    }

    /// Reads a file whose length and checksum are known.
    fn whole(
        &mut self,
        file: &str,
        header: &FileHeader,
        (first, last): (u64, Option<u64>),
        (length, crc): (u64, u32),
    ) -> io::Result<u64> {
        let Some(content) = self.content(file)? else { return Ok(first) };
        let before = self.found.damaged.len();
        if FileHeader::decode(&content) != Some(*header) {
            let damage = Damage { offset: 0, length: 0, record: None, what: "it is another file".into() };
            self.damaged(file, damage);
        }
        let (end, mut records) = self.scan(file, &content, header, first);
        if end.offset < content.len() {
            let last = last.unwrap_or(end.next).max(end.next);
            self.scanner(file, &content, header, &mut records).salvage(
                end.offset,
                content.len(),
                end.next,
                last,
            );
        }
        let found = content.len() as u64;
        if found != length {
            // What was behind the end is not known to be damaged in any other way.
            let what = format!("it has {found} bytes instead of {length}");
            self.damaged(file, Damage { offset: content.len(), length: 0, record: None, what });
        } else if self.found.damaged.len() == before && crc32fast::hash(&content) != crc {
            let what = "it does not match its checksum".into();
            self.damaged(file, Damage { offset: 0, length: content.len(), record: None, what });
        }
        Ok(end.next)
    }

    fn snapshot(&mut self, manifest: &Manifest) -> io::Result<()> {
        for part in &manifest.snapshot {
            let Part { id, number, length, crc, .. } = *part;
            let header = manifest.part_header(part);
            self.whole(&snapshot_name(id, number), &header, (1, None), (length, crc))?;
        }
        Ok(())
    }

    /// Looks for groups between the last one and the first of a segment.
    fn connect(&mut self, file: &str, first: u64) {
        let next = self.found.sequence + 1;
        if first > next {
            let what = format!("groups {next} to {} before it are missing", first - 1);
            self.damaged(file, Damage { offset: 0, length: 0, record: None, what });
        }
    }

    fn sealed(&mut self, manifest: &Manifest, log: &Sealed) -> io::Result<()> {
        let file = log_name(log.id);
        self.connect(&file, log.first);
        let header = manifest.log_header(log.id, log.first);
        let before = self.found.damaged.len();
        let next = self.whole(&file, &header, (log.first, Some(log.last)), (log.length, log.crc))?;
        if next != log.last + 1 && self.found.damaged.len() == before {
            let what = format!("groups {next} to {} are missing", log.last);
            self.damaged(&file, Damage { offset: 0, length: 0, record: None, what });
        }
        self.found.sequence = log.last;
        Ok(())
    }

    fn active(&mut self, manifest: &Manifest, active: Active, mark: Option<Mark>) -> io::Result<()> {
        let file = log_name(active.id);
        self.connect(&file, active.first);
        self.found.sequence = active.first.saturating_sub(1);
        let Some(content) = self.content(&file)? else { return Ok(()) };
        let header = manifest.log_header(active.id, active.first);
        if FileHeader::decode(&content) != Some(header) {
            let damage = Damage { offset: 0, length: 0, record: None, what: "it is another file".into() };
            self.damaged(&file, damage);
        }
        let (end, mut records) = self.scan(&file, &content, &header, active.first);
        self.found.sequence = end.next - 1;
        if let Some(mark) = mark.filter(|mark| mark.sequence >= end.next && end.torn) {
            // Acknowledged, and no more as it was: not an interrupted write.
            let last = content.iter().rposition(|byte| *byte != 0).map_or(end.offset, |last| last + 1);
            self.scanner(&file, &content, &header, &mut records).salvage(
                end.offset,
                last.max(end.offset),
                end.next,
                mark.sequence,
            );
            let what = format!("groups {} to {} are damaged or missing", end.next, mark.sequence);
            self.damaged(&file, Damage { offset: end.offset, length: 0, record: None, what });
            self.found.sequence = mark.sequence;
        }
        let crc = crc32fast::hash(content.get(..end.offset).unwrap_or_default());
        self.found.active = Some(Tail { length: end.offset as u64, crc, torn: end.torn });
        Ok(())
    }

    /// Log segments behind those of the manifest that hold groups: the manifest is an old one.
    fn unlisted(&mut self, manifest: &Manifest) -> io::Result<()> {
        for Active { id, first } in later_logs(self.medium, manifest)? {
            let what = format!("it does not name {}, which holds groups from {first} on", log_name(id));
            self.damaged(MANIFEST, Damage { offset: 0, length: 0, record: None, what });
        }
        Ok(())
    }
}

/// Segments with groups that the manifest ought to name, by id, with their first sequence.
pub(crate) fn later_logs(medium: &dyn Medium, manifest: &Manifest) -> io::Result<Vec<Active>> {
    let newest = manifest.logs().last().unwrap_or(0);
    let mut later = Vec::new();
    for id in medium.list()?.iter().filter_map(|name| log_id(name)) {
        if id <= newest {
            continue;
        }
        let content = medium.open(&log_name(id)).and_then(|blob| blob.read())?;
        let Some(header) = FileHeader::decode(&content).filter(|header| header.identity == manifest.identity)
        else {
            continue;
        };
        let holds = super::format::next_group(header.seed(), &content, 0).is_some();
        if holds && header.sequence > manifest.through() {
            later.push(Active { id, first: header.sequence });
        }
    }
    later.sort_unstable_by_key(|log| log.id);
    Ok(later)
}

/// Whether the file is one of the log's.
pub(crate) fn is_ours(name: &str) -> bool {
    name == MANIFEST
        || name == MANIFEST_NEW
        || name == MARK
        || log_id(name).is_some()
        || snapshot_id(name).is_some()
}

/// Whether the file is whole and the last part of its snapshot.
pub(crate) fn ends_snapshot(content: &[u8], header: &FileHeader) -> bool {
    let mut last = None;
    let mut whole = true;
    let each = |found: Found<'_>| match found {
        Found::Record(header, _) => last = Some(header),
        Found::Damage(_) => whole = false,
    };
    let end = Scanner { seed: header.seed(), file: content, each }.groups(1);
    let ended = last.is_some_and(|record| record.kind == RecordKind::End && record.space == 1);
    whole && end.offset == content.len() && ended
}
