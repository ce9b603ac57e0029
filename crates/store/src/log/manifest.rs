//! The manifest: which files the store consists of.
//!
//! A text file `MANIFEST`, one fact a line, the last line the CRC-32 (8 hexadecimal digits) of all before:
//!
//! ```text
//! kubestellar store 1
//! identity 6f1c…                                     32 hexadecimal digits
//! generation 7                                       counts manifests
//! next 6                                             id of the next file
//! taking-over                                        only until `spaces.redb` is set aside
//! snapshot 4 0 812 67108864 89abcdef                 id, part, sequence it stands for, bytes, CRC-32 of the file
//! sealed 3 813 901 16777216 01234567                 id, first and last sequence, bytes, CRC-32 of the file
//! active 5 902                                       id, first sequence
//! checksum 89abcdef
//! ```
//!
//! A new one is written beside as `MANIFEST.new`, flushed, renamed over the old one, and the directory is flushed.
//! A store that was closed in order has no active segment.

use std::fmt::Write as _;
use std::io;

use super::format::{FileHeader, FileKind, Identity};
use super::medium::Medium;

pub(crate) const MANIFEST: &str = "MANIFEST";
pub(crate) const MANIFEST_NEW: &str = "MANIFEST.new";
const TITLE: &str = "kubestellar store 1";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) identity: Identity,
    pub(crate) generation: u64,
    pub(crate) next: u64,
    pub(crate) taking_over: bool,
    pub(crate) snapshot: Vec<Part>,
    pub(crate) sealed: Vec<Sealed>,
    pub(crate) active: Option<Active>,
}

/// A part of the snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) id: u64,
    pub(crate) part: u32,
    pub(crate) through: u64,
    pub(crate) length: u64,
    pub(crate) crc: u32,
}

/// A log segment that is not written to any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sealed {
    pub(crate) id: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) length: u64,
    pub(crate) crc: u32,
}

/// The log segment that is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Active {
    pub(crate) id: u64,
    pub(crate) first: u64,
}

pub(crate) fn log_name(id: u64) -> String {
    format!("log-{id:08}")
}

pub(crate) fn snapshot_name(id: u64, part: u32) -> String {
    format!("snapshot-{id:08}.{part}")
}

/// The id in the name of a log segment.
pub(crate) fn log_id(name: &str) -> Option<u64> {
    name.strip_prefix("log-")?.parse().ok().filter(|id| log_name(*id) == name)
}

/// Id and part in the name of a snapshot part.
pub(crate) fn snapshot_id(name: &str) -> Option<(u64, u32)> {
    let (id, part) = name.strip_prefix("snapshot-")?.split_once('.')?;
    let (id, part) = (id.parse().ok()?, part.parse().ok()?);
    (snapshot_name(id, part) == name).then_some((id, part))
}

impl Manifest {
    pub(crate) fn new(identity: Identity) -> Self {
        Self {
            identity,
            generation: 0,
            next: 1,
            taking_over: false,
            snapshot: Vec::new(),
            sealed: Vec::new(),
            active: None,
        }
    }

    /// Names of all files.
    pub(crate) fn files(&self) -> impl Iterator<Item = String> {
        let snapshot = self.snapshot.iter().map(|part| snapshot_name(part.id, part.part));
        snapshot.chain(self.logs().map(log_name))
    }

    /// Ids of all log segments.
    pub(crate) fn logs(&self) -> impl Iterator<Item = u64> {
        self.sealed.iter().map(|log| log.id).chain(self.active.iter().map(|active| active.id))
    }

    /// Bytes of the files whose length is known.
    pub(crate) fn bytes(&self) -> u64 {
        let sealed = self.sealed.iter().map(|log| log.length);
        self.snapshot.iter().map(|part| part.length).chain(sealed).sum()
    }

    /// The sequence up to which the snapshot stands for all groups.
    pub(crate) fn through(&self) -> u64 {
        self.snapshot.first().map_or(0, |part| part.through)
    }

    pub(crate) fn log_header(&self, id: u64, first: u64) -> FileHeader {
        FileHeader { kind: FileKind::Log, identity: self.identity, id, sequence: first, part: 0 }
    }

    pub(crate) fn part_header(&self, part: &Part) -> FileHeader {
        FileHeader {
            kind: FileKind::Snapshot,
            identity: self.identity,
            id: part.id,
            sequence: part.through,
            part: part.part,
        }
    }

    /// Makes this the current manifest, as the next generation. After an error the old or the new one may be current.
    pub(crate) fn store(&mut self, medium: &dyn Medium) -> io::Result<()> {
        self.generation += 1;
        let file = medium.create(MANIFEST_NEW)?;
        file.write_at(0, self.encode().as_bytes())?;
        file.sync()?;
        medium.rename(MANIFEST_NEW, MANIFEST)?;
        medium.sync()
    }

    fn encode(&self) -> String {
        let mut out = format!("{TITLE}\nidentity ");
        // Writing to a string does not fail.
        for byte in self.identity {
            let _ = write!(out, "{byte:02x}");
        }
        let _ = write!(out, "\ngeneration {}\nnext {}\n", self.generation, self.next);
        if self.taking_over {
            out.push_str("taking-over\n");
        }
        for Part { id, part, through, length, crc } in &self.snapshot {
            let _ = writeln!(out, "snapshot {id} {part} {through} {length} {crc:08x}");
        }
        for Sealed { id, first, last, length, crc } in &self.sealed {
            let _ = writeln!(out, "sealed {id} {first} {last} {length} {crc:08x}");
        }
        if let Some(Active { id, first }) = &self.active {
            let _ = writeln!(out, "active {id} {first}");
        }
        let _ = writeln!(out, "checksum {:08x}", crc32fast::hash(out.as_bytes()));
        out
    }

    /// # Errors
    /// What is wrong with the bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is no text")?;
        let (content, checksum) = text.split_at(text.rfind("checksum ").ok_or("it has no checksum")?);
        if checksum != format!("checksum {:08x}\n", crc32fast::hash(content.as_bytes())) {
            return Err("it does not match its checksum".into());
        }
        let mut lines = content.lines();
        match lines.next() {
            Some(TITLE) => {}
            title => return Err(format!("{:?} is not known to this version", title.unwrap_or_default())),
        }
        let mut manifest = Self::new([0; 16]);
        for line in lines {
            manifest.read(line).ok_or_else(|| format!("{line:?} makes no sense"))?;
        }
        Ok(manifest)
    }

    fn read(&mut self, line: &str) -> Option<()> {
        let mut words = line.split(' ');
        let kind = words.next()?;
        let mut number = || words.next()?.parse::<u64>().ok();
        match kind {
            "identity" => {
                let digits = words.next()?;
                for (at, byte) in self.identity.iter_mut().enumerate() {
                    *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
                }
            }
            "generation" => self.generation = number()?,
            "next" => self.next = number()?,
            "taking-over" => self.taking_over = true,
            "snapshot" => {
                let (id, part) = (number()?, u32::try_from(number()?).ok()?);
                let (through, length) = (number()?, number()?);
                let crc = u32::from_str_radix(words.next()?, 16).ok()?;
                self.snapshot.push(Part { id, part, through, length, crc });
            }
            "sealed" => {
                let (id, first, last, length) = (number()?, number()?, number()?, number()?);
                let crc = u32::from_str_radix(words.next()?, 16).ok()?;
                self.sealed.push(Sealed { id, first, last, length, crc });
            }
            "active" => self.active = Some(Active { id: number()?, first: number()? }),
            _ => return None,
        }
        Some(())
    }
}
