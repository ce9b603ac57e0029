//! Stores of versions that kept everything in one redb file.

use std::path::Path;

use redb::Database;

use super::damage::content;
use super::*;
use crate::log::migrate::{ABOUT, RECORDS, SPACES};

fn record(deleted: bool, name: &str, text: &str, revision: u64) -> Vec<u8> {
    let Encoded { head, tail, meta } = encoded(text);
    let value = [&*head, revision.to_string().as_bytes(), &*tail].concat();
    let entry = Entry { key: key("x", "n", name), revision: Revision(revision), value: value.into(), meta };
    let mut out = vec![u8::from(deleted)];
    crate::record::encode(&entry, &mut out);
    out
}

/// A store of the older version: a space whose history begins after revision 2.
fn old_store(dir: &Path) {
    let database = Database::create(dir.join("spaces.redb")).unwrap();
    let writing = database.begin_write().unwrap();
    {
        writing.open_table(ABOUT).unwrap().insert("format", 1).unwrap();
        let mut spaces = writing.open_table(SPACES).unwrap();
        spaces.insert(0, (2, "a")).unwrap();
        spaces.insert(4, (0, "b")).unwrap();
        let mut records = writing.open_table(RECORDS).unwrap();
        for (revision, deleted, name, text) in
            [(1, false, "1", "one"), (3, false, "2", "two"), (4, false, "1", "three"), (5, true, "2", "four")]
        {
            records.insert((0, revision), &*record(deleted, name, text, revision)).unwrap();
        }
        records.insert((4, 1), &*record(false, "1", "five", 1)).unwrap();
    }
    writing.commit().unwrap();
}

fn check(engine: &Engine) {
    let space = engine.space("a").unwrap();
    assert_eq!(space.revision(), Revision(5));
    let entry = space.snapshot().get(&key("x", "n", "1")).unwrap();
    assert_eq!(
        (&*entry.value, &entry.meta),
        (value("three", Revision(4)).as_bytes(), &encoded("three").meta)
    );
    let mut watch = space.watch(scope("x", None), Revision(2)).unwrap();
    assert_eq!(drain(&mut watch), ["Created n/2 3 was 0", "Updated n/1 4 was 1", "Deleted n/2 5 was 3"]);
    assert!(matches!(space.watch(scope("x", None), Revision(1)), Err(StoreError::Compacted { .. })));
    assert_eq!(engine.space("b").unwrap().revision(), Revision(1));
}

/// SP-042: the first start migrates the old file: state, history, revisions. The old file stays, under another name.
#[test]
fn a_store_of_an_older_version_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    old_store(dir.path());
    let old = std::fs::read(dir.path().join("spaces.redb")).unwrap();
    let engine = Engine::open_existing(dir.path()).unwrap();
    check(&engine);
    let first = content(&engine);
    drop(engine);
    assert!(!dir.path().join("spaces.redb").exists());
    assert_eq!(std::fs::read(dir.path().join("spaces.redb.migrated")).unwrap(), old);
    assert_eq!(content(&Engine::open_existing(dir.path()).unwrap()), first);
    // An older version that was started since has created a new file.
    std::fs::copy(dir.path().join("spaces.redb.migrated"), dir.path().join("spaces.redb")).unwrap();
    let both = Engine::open(dir.path()).unwrap_err();
    assert!(matches!(&both, StoreError::Corrupt { path, .. } if path.ends_with("spaces.redb")), "{both:?}");
}

/// A power failure at any time during the migration is harmless: the next start completes it.
#[test]
fn a_crash_during_the_take_over_is_harmless() {
    use std::sync::atomic::Ordering;
    let dir = tempfile::tempdir().unwrap();
    old_store(dir.path());
    let old = std::fs::read(dir.path().join("spaces.redb")).unwrap();
    let open = |device: &super::device::Device| super::damage::reopened(device);
    for left in 0.. {
        let device = super::device::Device::of([("spaces.redb".to_owned(), old.clone())].into());
        device.left.store(left, Ordering::Relaxed);
        let outcome = open(&device).map(drop);
        for luck in 0..8 {
            check(&open(&device.after_crash(luck)).unwrap());
        }
        check(&open(&device.after_kill()).unwrap());
        if outcome.is_ok() {
            assert!(left > 5, "nothing was written");
            return;
        }
    }
}

/// A damaged old file is refused, unchanged, and named.
#[test]
fn a_damaged_store_of_an_older_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    old_store(dir.path());
    let path = dir.path().join("spaces.redb");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(5).position(|text| text == b"three").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    for _ in 0..2 {
        let refused = Engine::open(dir.path()).unwrap_err();
        assert!(matches!(&refused, StoreError::Corrupt { path: named, .. } if *named == path), "{refused:?}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
}
