//! A simulated disk that forgets what was not flushed, refuses writes, or is full.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::log::medium::{Blob, Medium};

/// The disk writes a sector completely or not at all.
const SECTOR: usize = 512;

#[derive(Debug, Default)]
pub(crate) struct Disk {
    names: BTreeMap<String, u64>,
    /// The names after a power failure that loses all of `renamed`.
    durable_names: BTreeMap<String, u64>,
    /// States of `names` since the directory was flushed. A power failure may leave any of them.
    renamed: Vec<BTreeMap<String, u64>>,
    files: BTreeMap<u64, Content>,
    next: u64,
    pub(crate) syncs: u64,
    /// Bytes that all files may have.
    capacity: Option<u64>,
    /// Bytes written.
    pub(crate) written: u64,
}

#[derive(Clone, Debug, Default)]
struct Content {
    /// The content that the program sees.
    written: Vec<u8>,
    /// The content after a power failure that loses all of `pending`.
    synced: Vec<u8>,
    /// Sectors written and lengths set since the last flush. Each may or may not reach the disk.
    pending: Vec<Pending>,
}

#[derive(Clone, Debug)]
enum Pending {
    Sector(usize, Vec<u8>),
    Length(usize),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Device {
    pub(crate) medium: Arc<Mutex<Disk>>,
    /// Operations until the power fails; `u64::MAX` for never.
    pub(crate) left: Arc<AtomicU64>,
    /// So many flushes are refused.
    pub(crate) refused_flushes: Arc<AtomicU64>,
    /// Sectors that cannot be read, by file and offset.
    unreadable: Arc<Mutex<Vec<(u64, usize)>>>,
}

/// A seeded random generator.
#[derive(Clone, Copy)]
pub(crate) struct Luck(pub(crate) u64);

impl Luck {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound.max(1) as u64) as usize
    }
}

impl Device {
    pub(crate) fn new(left: u64) -> Self {
        let device = Self::default();
        device.left.store(left, Ordering::Relaxed);
        device
    }

    pub(crate) fn fill(&self, free: u64) {
        let mut disk = self.medium.lock();
        disk.capacity = Some(disk.used() + free);
    }

    /// Makes the disk full: no file can grow until it is freed.
    pub(crate) fn fill_up(&self) {
        self.medium.lock().capacity = Some(0);
    }

    pub(crate) fn free(&self) {
        self.medium.lock().capacity = None;
    }

    /// From now on, the sector of the file cannot be read.
    pub(crate) fn lose(&self, name: &str, offset: usize) {
        let id = self.medium.lock().find(name).unwrap();
        self.unreadable.lock().push((id, offset));
    }

    /// Bytes of all files.
    pub(crate) fn used(&self) -> u64 {
        self.medium.lock().used()
    }

    pub(crate) fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let disk = self.medium.lock();
        disk.names.iter().map(|(name, id)| (name.clone(), disk.files[id].written.clone())).collect()
    }

    pub(crate) fn of(files: BTreeMap<String, Vec<u8>>) -> Self {
        let device = Self::new(u64::MAX);
        {
            let mut disk = device.medium.lock();
            for (id, (name, content)) in files.into_iter().enumerate() {
                let file = Content { written: content.clone(), synced: content, pending: Vec::new() };
                disk.files.insert(id as u64, file);
                disk.names.insert(name, id as u64);
                disk.next = id as u64 + 1;
            }
            disk.durable_names = disk.names.clone();
        }
        device
    }

    /// The disk after a power failure. The number selects which unflushed writes survive.
    pub(crate) fn after_crash(&self, luck: u64) -> Self {
        let mut luck = Luck(luck);
        let disk = self.medium.lock();
        let states: Vec<_> = [&disk.durable_names].into_iter().chain(&disk.renamed).collect();
        let names = states[luck.below(states.len())];
        let mut files = BTreeMap::new();
        for (name, id) in names {
            let Content { synced, pending, .. } = &disk.files[id];
            let mut content = synced.clone();
            for pending in pending {
                match pending {
                    _ if luck.below(2) == 0 => {}
                    Pending::Sector(at, data) => {
                        content.resize(content.len().max(at + data.len()), 0);
                        content[*at..at + data.len()].copy_from_slice(data);
                    }
                    Pending::Length(length) => content.resize(*length, 0),
                }
            }
            files.insert(name.clone(), content);
        }
        Self::of(files)
    }

    /// The disk after the process was killed: all its writes survive.
    pub(crate) fn after_kill(&self) -> Self {
        Self::of(self.files())
    }

    fn spend(&self) -> io::Result<()> {
        let spent = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| match left {
            0 => None,
            u64::MAX => Some(u64::MAX),
            left => Some(left - 1),
        });
        spent.map(drop).map_err(|_| io::Error::other("power is gone"))
    }
}

impl Disk {
    fn used(&self) -> u64 {
        self.names.values().map(|id| self.files[id].written.len() as u64).sum()
    }

    /// Makes the file longer, if there is space.
    fn extend(&mut self, id: u64, length: usize) -> io::Result<()> {
        let used = self.used();
        let capacity = self.capacity;
        let file = self.files.get_mut(&id).unwrap();
        let more = length.saturating_sub(file.written.len()) as u64;
        if more > 0 && capacity.is_some_and(|capacity| used + more > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if more > 0 {
            file.written.resize(length, 0);
            file.pending.push(Pending::Length(length));
        }
        Ok(())
    }

    fn renamed(&mut self) {
        let now = self.names.clone();
        self.renamed.push(now);
    }

    fn find(&self, name: &str) -> io::Result<u64> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

#[derive(Debug)]
struct Open {
    device: Device,
    id: u64,
}

impl Open {
    /// Fails as the system does if one of the bytes is in an unreadable sector.
    fn readable(&self, offset: usize, length: usize) -> io::Result<()> {
        let hit = |(id, at): &(u64, usize)| *id == self.id && offset < at + SECTOR && *at < offset + length;
        let failed = self.device.unreadable.lock().iter().any(hit);
        if failed { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }
}

impl Medium for Device {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.medium.lock().names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Blob>> {
        self.spend()?;
        let mut disk = self.medium.lock();
        let id = disk.next;
        disk.next += 1;
        disk.files.insert(id, Content::default());
        disk.names.insert(name.to_owned(), id);
        disk.renamed();
        Ok(Box::new(Open { device: self.clone(), id }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Blob>> {
        let id = self.medium.lock().find(name)?;
        Ok(Box::new(Open { device: self.clone(), id }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.spend()?;
        let mut disk = self.medium.lock();
        let id = disk.find(from)?;
        disk.names.remove(from);
        disk.names.insert(to.to_owned(), id);
        disk.renamed();
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.spend()?;
        let mut disk = self.medium.lock();
        disk.find(name)?;
        disk.names.remove(name);
        disk.renamed();
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.spend()?;
        let mut disk = self.medium.lock();
        disk.durable_names = disk.names.clone();
        disk.renamed.clear();
        disk.syncs += 1;
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("test").join(name)
    }
}

impl Blob for Open {
    fn read(&self) -> io::Result<Vec<u8>> {
        let content = self.device.medium.lock().files[&self.id].written.clone();
        self.readable(0, content.len()).map(|()| content)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.device.medium.lock().files[&self.id].written.len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let offset = offset as usize;
        self.readable(offset, into.len())?;
        let content = &self.device.medium.lock().files[&self.id].written;
        into.copy_from_slice(&content[offset..offset + into.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let spent = self.device.spend();
        let mut disk = self.device.medium.lock();
        let offset = offset as usize;
        let extended = disk.extend(self.id, offset + data.len());
        let refused = spent.and(extended);
        // A refused write may have been done in part.
        let file = disk.files.get_mut(&self.id).unwrap();
        let done = if refused.is_ok() { data.len() } else { data.len() / 2 };
        let end = (offset + done).min(file.written.len());
        for start in (offset / SECTOR * SECTOR..end).step_by(SECTOR) {
            let from = start.max(offset);
            let to = (start + SECTOR).min(end);
            let piece = data[from - offset..to - offset].to_vec();
            file.written[from..to].copy_from_slice(&piece);
            file.pending.push(Pending::Sector(from, piece));
        }
        disk.written += done as u64;
        refused
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.device.spend()?;
        let mut disk = self.device.medium.lock();
        disk.extend(self.id, length as usize)?;
        let file = disk.files.get_mut(&self.id).unwrap();
        file.written.resize(length as usize, 0);
        file.pending.push(Pending::Length(length as usize));
        Ok(())
    }

    fn allocate(&self, _: u64, to: u64) -> io::Result<()> {
        self.device.spend()?;
        self.device.medium.lock().extend(self.id, to as usize)
    }

    fn sync(&self) -> io::Result<()> {
        self.device.spend()?;
        let refuse = |left: u64| left.checked_sub(1);
        if self.device.refused_flushes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, refuse).is_ok() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut disk = self.device.medium.lock();
        let file = disk.files.get_mut(&self.id).unwrap();
        file.synced = file.written.clone();
        file.pending.clear();
        disk.syncs += 1;
        Ok(())
    }

    fn lock(&self) -> io::Result<bool> {
        Ok(true)
    }
}
