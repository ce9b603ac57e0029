//! The high-water mark: which group was acknowledged last.
//!
//! A file `mark` of 20 bytes: sequence of the last acknowledged group (8), generation of the manifest (8), CRC-32 of the
//! store's identity and these (4). It is rewritten after each group and flushed only when nothing has been written for a
//! second, because a flush after each group would double the cost of a write: after a crash of the process it is exact, after
//! a power cut it may be older, never newer. So it is a lower
//! bound: a log that ends before it has lost acknowledged groups. A mark that does not match its checksum says nothing.

use std::io;

use super::format::{Fields, Identity};
use super::medium::{Blob, Medium};

pub(crate) const MARK: &str = "mark";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) sequence: u64,
    pub(crate) generation: u64,
}

fn checksum(identity: &Identity, fields: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(identity);
    crc.update(fields);
    crc.finalize()
}

impl Mark {
    pub(crate) fn read(medium: &dyn Medium, identity: &Identity) -> Option<Self> {
        let bytes = medium.open(MARK).and_then(|blob| blob.read()).ok()?;
        let fields = bytes.get(..16)?;
        if bytes.get(16..20)? != checksum(identity, fields).to_le_bytes() {
            return None;
        }
        let mut fields = Fields(fields);
        Some(Self { sequence: fields.u64()?, generation: fields.u64()? })
    }

    pub(crate) fn write(self, blob: &dyn Blob, identity: &Identity) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(20);
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&checksum(identity, &bytes).to_le_bytes());
        blob.write_at(0, &bytes)
    }
}
