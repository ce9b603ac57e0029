//! The files below the log, as a seam: a directory in service, a faulty disk in tests.

use std::fmt::Debug;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};

/// A flat directory of files.
pub(crate) trait Medium: Debug + Send + Sync {
    /// Names of all files, in no order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes the file, empty, in place of any other of the name.
    fn create(&self, name: &str) -> io::Result<Box<dyn Blob>>;
    fn open(&self, name: &str) -> io::Result<Box<dyn Blob>>;
    /// Replaces `to`, if there is one, as a whole.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes what [`Medium::create`], [`Medium::rename`] and [`Medium::remove`] did durable.
    fn sync(&self) -> io::Result<()>;
    /// For messages.
    fn path(&self, name: &str) -> PathBuf;
}

/// An open file.
pub(crate) trait Blob: Debug + Send {
    /// The whole content.
    fn read(&self) -> io::Result<Vec<u8>>;
    /// Bytes that the file has.
    fn length(&self) -> io::Result<u64>;
    /// Fills `into` with what is at `offset`.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Cuts the file, or extends it with zeros.
    fn set_len(&self, length: u64) -> io::Result<()>;
    /// Extends the file from `from` to `to` with zeros for which the disk has space.
    fn allocate(&self, from: u64, to: u64) -> io::Result<()>;
    /// Makes the content durable, and the length if it changed.
    fn sync(&self) -> io::Result<()>;
    /// Locks the file as long as it is open. `false` when another process has it locked.
    fn lock(&self) -> io::Result<bool>;
}

/// A directory of the file system, for its owner only, locked while it is open.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// Released when dropped.
    _lock: File,
}

/// The file that is locked. It is never removed, so that all lock the same one.
pub(crate) const LOCK: &str = "lock";

impl Directory {
    /// Opens the directory, made if absent. `None` when another process has it open.
    pub(crate) fn open(path: &Path) -> io::Result<Option<Self>> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let lock = options().create(true).truncate(false).open(path.join(LOCK))?;
        Ok(Blob::lock(&lock)?.then(|| Self { path: path.to_owned(), _lock: lock }))
    }
}

/// Secrets are in all files: nobody else may read them.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

impl Medium for Directory {
    fn list(&self) -> io::Result<Vec<String>> {
        let names = self.path.read_dir()?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        Ok(names.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Blob>> {
        let file = options().create(true).truncate(true).open(self.path.join(name))?;
        Ok(Box::new(file))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Blob>> {
        Ok(Box::new(options().open(self.path.join(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Blob for File {
    fn read(&self) -> io::Result<Vec<u8>> {
        let length = usize::try_from(self.length()?).map_err(io::Error::other)?;
        let mut content = vec![0; length];
        self.read_exact_at(&mut content, 0)?;
        Ok(content)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(into, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_all_at(data, offset)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        Self::set_len(self, length)
    }

    fn allocate(&self, from: u64, to: u64) -> io::Result<()> {
        match fallocate(self, FallocateFlags::empty(), from, to.saturating_sub(from)) {
            Ok(()) => Ok(()),
            // A file system that cannot reserve space: a full disk then shows at the write itself.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Self::set_len(self, to),
            Err(error) => Err(error.into()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn lock(&self) -> io::Result<bool> {
        match self.try_lock() {
            Ok(()) => Ok(true),
            Err(std::fs::TryLockError::WouldBlock) => Ok(false),
            Err(std::fs::TryLockError::Error(error)) => Err(error),
        }
    }
}
