//! Bytes of log segments and snapshot parts. All numbers are little endian.
//!
//! A file is a header and groups, one behind the other:
//!
//! ```text
//! file header                          group header                         record header
//!  0  8  "KSTSTORE"                     0  4  "GRP1"                         0  1  kind: 1 put, 2 deleted, 3 space,
//!  8  4  format, 1                      4  4  number of records                    4 space removed, 5 end
//! 12  4  1 log segment, 2 snapshot      8  8  sequence                       1  3  zero
//! 16 16  identity of the store         16  4  bytes of all records           4  4  bytes of the body
//! 32  8  id of the file                20  4  CRC-32 of file, offset,        8  4  space
//! 40  8  first sequence of a segment;         bytes 0 to 20                 12  8  revision (space: start of history;
//!        sequence that a snapshot                                                  end: number of records)
//!        stands for                                                         20  4  CRC-32 of the body
//! 48  4  part of the snapshot; 0                                            24  4  CRC-32 of file, offset, sequence
//! 52  4  CRC-32 of bytes 0 to 52                                                   of the group, bytes 0 to 24
//! ```
//!
//! *File* is the CRC-32 of bytes 12 to 52 of the file header, *offset* (8 bytes) the place of the header in the file. So a
//! group or record that is read from another place than the one it was written to does not match.
//!
//! A record's body follows its header. Put, deleted: see [`crate::record`]. Space: its name. Others: empty.
//!
//! Groups of log segments are numbered over all segments without a gap, those of each snapshot part from 1. Each snapshot
//! part ends with an end record (space: 1 in the last part, else 0; revision: number of the part's records before it). A log
//! segment that is written to may be longer than its groups: the rest is zeros.

use crc32fast::Hasher;

pub(crate) const FILE_HEADER: usize = 56;
pub(crate) const GROUP_HEADER: usize = 24;
pub(crate) const RECORD_HEADER: usize = 28;

const MAGIC: &[u8; 8] = b"KSTSTORE";
const FORMAT: u32 = 1;
const GROUP: &[u8; 4] = b"GRP1";

/// Random name of a store, in each of its files.
pub(crate) type Identity = [u8; 16];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Log,
    Snapshot,
}

/// What a file is, and what the checksums in it are bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) kind: FileKind,
    pub(crate) identity: Identity,
    pub(crate) id: u64,
    /// First sequence of a log segment; the sequence up to which a snapshot holds everything.
    pub(crate) sequence: u64,
    pub(crate) part: u32,
}

impl FileHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FILE_HEADER);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        let kind: u32 = match self.kind {
            FileKind::Log => 1,
            FileKind::Snapshot => 2,
        };
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(&self.identity);
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.part.to_le_bytes());
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// `None` when the bytes do not begin with a header of this format.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes.get(..FILE_HEADER)?);
        let (content, crc) = bytes.get(..FILE_HEADER)?.split_at_checked(FILE_HEADER - 4)?;
        if crc != crc32fast::hash(content).to_le_bytes() {
            return None;
        }
        if fields.array::<8>()? != *MAGIC || fields.u32()? != FORMAT {
            return None;
        }
        let kind = match fields.u32()? {
            1 => FileKind::Log,
            2 => FileKind::Snapshot,
            _ => return None,
        };
        let identity = fields.array()?;
        Some(Self { kind, identity, id: fields.u64()?, sequence: fields.u64()?, part: fields.u32()? })
    }

    /// What the checksums of the file's groups and records begin with.
    pub(crate) fn seed(&self) -> Seed {
        let encoded = self.encode();
        Seed(crc32fast::hash(encoded.get(12..FILE_HEADER - 4).unwrap_or_default()))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed(u32);

impl Seed {
    fn group(self, offset: usize, header: &[u8]) -> u32 {
        let mut crc = Hasher::new();
        crc.update(&self.0.to_le_bytes());
        crc.update(&(offset as u64).to_le_bytes());
        crc.update(header);
        crc.finalize()
    }

    fn record(self, offset: usize, sequence: u64, header: &[u8]) -> u32 {
        let mut crc = Hasher::new();
        crc.update(&self.0.to_le_bytes());
        crc.update(&(offset as u64).to_le_bytes());
        crc.update(&sequence.to_le_bytes());
        crc.update(header);
        crc.finalize()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    Put,
    Deleted,
    Space,
    SpaceRemoved,
    End,
}

impl RecordKind {
    const fn byte(self) -> u8 {
        match self {
            Self::Put => 1,
            Self::Deleted => 2,
            Self::Space => 3,
            Self::SpaceRemoved => 4,
            Self::End => 5,
        }
    }

    const fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Put,
            2 => Self::Deleted,
            3 => Self::Space,
            4 => Self::SpaceRemoved,
            5 => Self::End,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: RecordKind,
    pub(crate) space: u32,
    pub(crate) revision: u64,
    /// Bytes of the body.
    pub(crate) length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupHeader {
    pub(crate) records: u32,
    pub(crate) sequence: u64,
    /// Bytes of the records.
    pub(crate) length: usize,
}

/// A group that is being put together.
#[derive(Debug)]
pub(crate) struct Group {
    seed: Seed,
    offset: usize,
    sequence: u64,
    records: u32,
    bytes: Vec<u8>,
}

impl Group {
    /// Begins a group that will be written to `offset` of the file. `buffer` is used again.
    pub(crate) fn begin(seed: Seed, offset: usize, sequence: u64, mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        buffer.resize(GROUP_HEADER, 0);
        Self { seed, offset, sequence, records: 0, bytes: buffer }
    }

    /// Adds a record; `body` writes its content to the end of what it is given.
    ///
    /// # Errors
    /// The body is larger than 4 GiB.
    pub(crate) fn add(
        &mut self,
        kind: RecordKind,
        space: u32,
        revision: u64,
        body: impl FnOnce(&mut Vec<u8>),
    ) -> std::io::Result<()> {
        let at = self.bytes.len();
        self.bytes.resize(at + RECORD_HEADER, 0);
        body(&mut self.bytes);
        let content = self.bytes.get(at + RECORD_HEADER..).unwrap_or_default();
        let length = u32::try_from(content.len()).map_err(std::io::Error::other)?;
        let mut header = Vec::with_capacity(RECORD_HEADER);
        header.extend_from_slice(&[kind.byte(), 0, 0, 0]);
        header.extend_from_slice(&length.to_le_bytes());
        header.extend_from_slice(&space.to_le_bytes());
        header.extend_from_slice(&revision.to_le_bytes());
        header.extend_from_slice(&crc32fast::hash(content).to_le_bytes());
        let crc = self.seed.record(self.offset + at, self.sequence, &header);
        header.extend_from_slice(&crc.to_le_bytes());
        if let Some(place) = self.bytes.get_mut(at..at + RECORD_HEADER) {
            place.copy_from_slice(&header);
        }
        self.records += 1;
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes to be written.
    ///
    /// # Errors
    /// The group is larger than 4 GiB.
    pub(crate) fn finish(mut self) -> std::io::Result<Vec<u8>> {
        let length = u32::try_from(self.bytes.len() - GROUP_HEADER).map_err(std::io::Error::other)?;
        let mut header = Vec::with_capacity(GROUP_HEADER);
        header.extend_from_slice(GROUP);
        header.extend_from_slice(&self.records.to_le_bytes());
        header.extend_from_slice(&self.sequence.to_le_bytes());
        header.extend_from_slice(&length.to_le_bytes());
        let crc = self.seed.group(self.offset, &header);
        header.extend_from_slice(&crc.to_le_bytes());
        if let Some(place) = self.bytes.get_mut(..GROUP_HEADER) {
            place.copy_from_slice(&header);
        }
        Ok(self.bytes)
    }
}

/// The group header at `offset`; `None` when there is none that was written there.
pub(crate) fn group_at(seed: Seed, file: &[u8], offset: usize) -> Option<GroupHeader> {
    let bytes = file.get(offset..offset.checked_add(GROUP_HEADER)?)?;
    if !bytes.starts_with(GROUP) {
        return None;
    }
    let (header, crc) = bytes.split_at_checked(GROUP_HEADER - 4)?;
    if crc != seed.group(offset, header).to_le_bytes() {
        return None;
    }
    let mut fields = Fields(header.get(4..)?);
    Some(GroupHeader { records: fields.u32()?, sequence: fields.u64()?, length: fields.u32()? as usize })
}

/// Where the next group header after `from` is that was written there.
pub(crate) fn next_group(seed: Seed, file: &[u8], from: usize) -> Option<(usize, GroupHeader)> {
    let mut at = from;
    loop {
        at += memchr::memmem::find(file.get(at..)?, GROUP)?;
        if let Some(found) = group_at(seed, file, at) {
            return Some((at, found));
        }
        at += 1;
    }
}

/// What stands at a place where a record should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordAt<'a> {
    Whole(RecordHeader, &'a [u8]),
    /// The header is as it was written, the body is not (or not there).
    Body(RecordHeader),
    Nothing,
}

/// The record at `offset` in a group of this sequence; it ends before `end`.
pub(crate) fn record_at(seed: Seed, file: &[u8], offset: usize, end: usize, sequence: u64) -> RecordAt<'_> {
    let Some(header) = header_at(seed, file, offset, sequence) else { return RecordAt::Nothing };
    let start = offset + RECORD_HEADER;
    let body = start.checked_add(header.0.length).filter(|stop| *stop <= end);
    match body.and_then(|stop| file.get(start..stop)) {
        Some(body) if crc32fast::hash(body) == header.1 => RecordAt::Whole(header.0, body),
        _ => RecordAt::Body(header.0),
    }
}

fn header_at(seed: Seed, file: &[u8], offset: usize, sequence: u64) -> Option<(RecordHeader, u32)> {
    let bytes = file.get(offset..offset.checked_add(RECORD_HEADER)?)?;
    let (header, crc) = bytes.split_at_checked(RECORD_HEADER - 4)?;
    if crc != seed.record(offset, sequence, header).to_le_bytes() {
        return None;
    }
    let mut fields = Fields(header);
    let kind = RecordKind::of(fields.array::<4>()?.into_iter().next()?)?;
    let length = fields.u32()? as usize;
    let header = RecordHeader { kind, space: fields.u32()?, revision: fields.u64()?, length };
    Some((header, fields.u32()?))
}

/// Reads numbers one after the other.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
