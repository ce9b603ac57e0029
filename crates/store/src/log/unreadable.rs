//! Reads what can be read of a disk with unreadable sectors, for a repair.

use std::io;
use std::path::PathBuf;

use parking_lot::Mutex;

use super::damage::{Damage, Located};
use super::medium::{Blob, Medium};

/// What a disk cannot read is lost in pieces of this many bytes.
const BLOCK: usize = 4096;
/// What stands for bytes that cannot be read: no record looks like it, and it is not taken for space that was never written.
const FILL: u8 = 0xee;

/// Whether the disk could not read what it holds, as opposed to a file that is absent or not permitted.
pub(super) fn is_unreadable(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// A medium of which every file that can be opened can be read. What is unreadable is filled and noted.
#[derive(Debug)]
pub(super) struct Readable<'a> {
    medium: &'a dyn Medium,
    unreadable: std::sync::Arc<Mutex<Vec<Located>>>,
}

impl<'a> Readable<'a> {
    pub(super) fn new(medium: &'a dyn Medium) -> Self {
        Self { medium, unreadable: std::sync::Arc::default() }
    }

    /// What could not be read so far.
    pub(super) fn unreadable(&self) -> Vec<Located> {
        self.unreadable.lock().clone()
    }
}

impl Medium for Readable<'_> {
    fn list(&self) -> io::Result<Vec<String>> {
        self.medium.list()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Blob>> {
        self.medium.create(name)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Blob>> {
        let (blob, unreadable) = (self.medium.open(name)?, self.unreadable.clone());
        Ok(Box::new(ReadableBlob { blob, name: name.to_owned(), unreadable }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.medium.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.medium.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.medium.sync()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.medium.path(name)
    }
}

#[derive(Debug)]
struct ReadableBlob {
    blob: Box<dyn Blob>,
    name: String,
    unreadable: std::sync::Arc<Mutex<Vec<Located>>>,
}

impl ReadableBlob {
    /// Notes an unreadable block. A file is read more than once, and neighbours are one place.
    fn note(&self, offset: usize, length: usize) {
        let mut all = self.unreadable.lock();
        let covers = |it: &&mut Located| {
            let end = it.damage.offset + it.damage.length;
            it.file == self.name && (it.damage.offset..=end).contains(&offset)
        };
        if let Some(before) = all.iter_mut().find(covers) {
            let end = (offset + length).max(before.damage.offset + before.damage.length);
            before.damage.length = end - before.damage.offset;
            return;
        }
        let what = "the disk cannot read it".to_owned();
        let damage = Damage { offset, length, record: None, what };
        all.push(Located { file: self.name.clone(), damage });
    }
}

impl Blob for ReadableBlob {
    fn read(&self) -> io::Result<Vec<u8>> {
        match self.blob.read() {
            Err(error) if is_unreadable(&error) => {}
            read => return read,
        }
        let length = usize::try_from(self.blob.length()?).map_err(io::Error::other)?;
        let mut content = vec![FILL; length];
        for (index, block) in content.chunks_mut(BLOCK).enumerate() {
            let offset = index * BLOCK;
            match self.blob.read_at(offset as u64, block) {
                Ok(()) => {}
                Err(error) if is_unreadable(&error) => {
                    block.fill(FILL);
                    self.note(offset, block.len());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(content)
    }

    fn length(&self) -> io::Result<u64> {
        self.blob.length()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.blob.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.blob.write_at(offset, data)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.blob.set_len(length)
    }

    fn allocate(&self, from: u64, to: u64) -> io::Result<()> {
        self.blob.allocate(from, to)
    }

    fn sync(&self) -> io::Result<()> {
        self.blob.sync()
    }

    fn lock(&self) -> io::Result<bool> {
        self.blob.lock()
    }
}
