//! Damaged directories: each is refused by name, or serves exactly what was written.

use std::collections::BTreeMap;
use std::path::Path;

use testkit::wait::when;

use super::device::{Device, Luck};
use super::*;
use crate::log::{open_on, repair_on};

/// Everything a store serves: per space, revision, start of history, objects, events.
pub(super) type Content = BTreeMap<String, (u64, u64, Vec<String>, Vec<String>)>;

fn line(entry: &Entry) -> String {
    let Key { collection, namespace, name } = &entry.key;
    let text = String::from_utf8_lossy(&entry.value);
    format!("{} {namespace}/{name} {} {text} {:?}", collection.as_str(), entry.revision, entry.meta)
}

pub(super) fn content(engine: &Engine) -> Content {
    let mut all = Content::new();
    for name in engine.spaces() {
        let space = engine.space(&name).unwrap();
        let hub = space.shared.durable.hub.lock();
        let contents = hub.state.contents().flat_map(|content| content.tree.iter(None, None));
        let objects = contents.map(|entry| line(entry)).collect();
        let events = hub.ring.events.iter().map(|event| format!("{} {}", show(event), line(&event.entry)));
        all.insert(name, (hub.state.revision.0, hub.ring.floor.0, objects, events.collect()));
    }
    all
}

pub(super) fn reopened(device: &Device) -> Result<Engine, StoreError> {
    let (log, loaded) = open_on(Arc::new(device.clone()), true)?;
    Engine::start(Some(log), loaded, limits())
}

pub(super) fn limits() -> Limits {
    Limits { events: 40, ..Limits::default() }
}

/// Creates, updates and deletes in two spaces, in groups of several writes.
pub(super) async fn work(engine: &Engine, from: usize, rounds: usize) {
    for round in from..from + rounds {
        let writes = (0..6).map(|index| {
            let space = engine.space(["a", "b"][index % 2]).unwrap();
            let k = key("x", "n", &((round + index) % 23).to_string());
            let text = format!("{round}-{}", "x".repeat((round * 37 + index * 11) % 900));
            let write = match space.snapshot().get(&k) {
                Some(stored) if round % 4 == 3 => delete(k, stored.revision, &text),
                Some(stored) => put(k, Expect::At(stored.revision), &text),
                None => put(k, Expect::Absent, &text),
            };
            async move { space.commit(write).await.map(drop) }
        });
        for done in futures::future::join_all(writes).await {
            assert!(matches!(done, Ok(()) | Err(StoreError::Conflict { .. })), "{done:?}");
        }
    }
}

/// A store with a snapshot, sealed segments and one that was interrupted, and what it holds.
fn sample() -> (Device, Content) {
    let device = Device::new(u64::MAX);
    run(async {
        let engine = start(&device);
        work(&engine, 0, 30).await;
        engine.close().await.unwrap();
        // The snapshot replaces everything so far.
        compact(&device);
        for from in [30, 45] {
            let engine = start(&device);
            work(&engine, from, 15).await;
            engine.close().await.unwrap();
        }
        let engine = start(&device);
        work(&engine, 60, 15).await;
        let content = content(&engine);
        // Killed, not closed.
        let killed = device.after_kill();
        engine.close().await.unwrap();
        (killed, content)
    })
}

fn start(device: &Device) -> Engine {
    let (log, loaded) = open_on(Arc::new(device.clone()), false).unwrap();
    Engine::start(Some(log), loaded, limits()).unwrap()
}

/// Rewrites the store as a snapshot.
fn compact(device: &Device) {
    let (mut log, loaded) = open_on(Arc::new(device.clone()), true).unwrap();
    let spaces = loaded.into_iter().map(crate::log::image).collect();
    let plan = log.begin_snapshot(spaces).unwrap();
    let parts = crate::log::snapshot::write(&plan, device, &false.into()).unwrap();
    log.install(parts).unwrap();
}

type Files = BTreeMap<String, Vec<u8>>;

/// Damages a copy, and describes how. `old`: an older state of the same store.
fn damage(files: &mut Files, old: &Files, luck: &mut Luck) -> String {
    let names: Vec<String> =
        files.keys().filter(|name| !matches!(name.as_str(), "lock" | "mark")).cloned().collect();
    let name = names[luck.below(names.len())].clone();
    let other = names[luck.below(names.len())].clone();
    let file = files.get_mut(&name).unwrap();
    // Allocated but unwritten bytes hold nothing.
    let used = file.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 1);
    let at = luck.below(used);
    match luck.below(7) {
        0 => {
            file[at] ^= 1 << luck.below(8);
            format!("bit flipped in {name} at {at}")
        }
        1 => {
            let start = at / 512 * 512;
            let end = (start + 512).min(file.len());
            file[start..end].fill(0);
            format!("sector of {name} zeroed at {start}")
        }
        2 => {
            file.truncate(at);
            format!("{name} cut at {at}")
        }
        3 => {
            files.remove(&name);
            format!("{name} removed")
        }
        4 => {
            let (one, two) = (files[&name].clone(), files[&other].clone());
            files.insert(name.clone(), two);
            files.insert(other.clone(), one);
            format!("{name} and {other} swapped")
        }
        5 => match old.get(&name) {
            Some(older) => {
                files.insert(name.clone(), older.clone());
                format!("{name} replaced by an older one")
            }
            None => {
                let end = (at + 4096).min(file.len());
                for byte in &mut file[at..end] {
                    *byte = luck.below(256) as u8;
                }
                format!("noise in {name} at {at}")
            }
        },
        _ => {
            // Copies a piece of the file to another place of it.
            let length = luck.below(2048).min(used);
            let from = luck.below(used - length + 1);
            let to = luck.below(used - length + 1);
            let piece = file[from..from + length].to_vec();
            file[to..to + length].copy_from_slice(&piece);
            format!("{length} bytes of {name} moved from {from} to {to}")
        }
    }
}

/// AS-071: no damaged store serves wrong data silently, and each can be repaired.
#[test]
fn damaged_stores_are_refused_or_serve_the_truth() {
    let (device, truth) = sample();
    let files = device.files();
    // The same store a little earlier.
    let old = {
        let device = Device::of(files.clone());
        let mut older = device.files();
        for (name, content) in &mut older {
            if name.starts_with("log-") {
                let used = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                content.truncate(used * 2 / 3);
            }
        }
        older
    };
    assert_eq!(content(&reopened(&Device::of(files.clone())).unwrap()), truth);
    let mut refused = 0;
    let cases = u64::from(cases(250));
    for case in 0..cases {
        let mut luck = Luck(case);
        let mut damaged = files.clone();
        let how = damage(&mut damaged, &old, &mut luck);
        let changed = damaged != files;
        match reopened(&Device::of(damaged.clone())) {
            Ok(engine) => assert_eq!(content(&engine), truth, "case {case}: {how}"),
            Err(StoreError::Corrupt { path, detail }) => {
                refused += 1;
                assert!(changed, "case {case}: {how}: {detail}");
                assert!(path.starts_with("test") && detail.contains("--repair"), "{path:?} {detail}");
                repaired_store_serves(&Device::of(damaged), &truth, &format!("case {case}: {how}: {detail}"));
            }
            Err(other) => panic!("case {case}: {how}: {other:?}"),
        }
    }
    assert!(refused * 10 > cases * 7, "only {refused} of {cases} were noticed");
}

/// After a repair the store opens, and every version in it was written there.
fn repaired_store_serves(device: &Device, truth: &Content, how: &str) -> Repaired {
    let repaired = repair_on(device).unwrap_or_else(|error| panic!("{how}: {error}"));
    assert!(!repaired.dropped.is_empty(), "{how}");
    let engine = reopened(device).unwrap_or_else(|error| panic!("{how}: {error}"));
    for (name, (revision, floor, ..)) in content(&engine) {
        let before = truth.get(&name).map_or(0, |(revision, ..)| *revision);
        // Clients that have seen anything of it must list again.
        assert!(
            floor == revision || (floor, revision) == (truth[&name].1, before),
            "{how}: {name} {floor} {revision}"
        );
    }
    run(async {
        let space = engine.space("a").unwrap();
        space.commit(put(key("x", "n", "after"), Expect::Absent, "v")).await.unwrap();
        engine.close().await.unwrap();
    });
    assert!(repair_on(device).unwrap().dropped.is_empty(), "{how}");
    repaired
}

/// A repair drops the damaged version and nothing else, and says which.
#[test]
fn a_repair_drops_exactly_what_is_damaged() {
    let device = Device::new(u64::MAX);
    run(async {
        let engine = start(&device);
        let space = engine.space("a").unwrap();
        for name in ["1", "2", "3"] {
            space.commit(put(key("x", "n", name), Expect::Absent, &format!("text-{name}"))).await.unwrap();
        }
        engine.close().await.unwrap();
    });
    let mut files = device.files();
    let log = files.keys().find(|name| name.starts_with("log-")).unwrap().clone();
    let file = files.get_mut(&log).unwrap();
    let at = file.windows(14).position(|bytes| bytes == b"\"data\":\"text-2").unwrap();
    file[at] ^= 4;
    let device = Device::of(files);
    let refused = reopened(&device).unwrap_err();
    let StoreError::Corrupt { path, detail } = &refused else { panic!("{refused:?}") };
    assert!(path.ends_with(&log) && detail.contains("revision 2 of space 0"), "{refused}");
    let repaired = repair_on(&device).unwrap();
    let [dropped] = &*repaired.dropped else { panic!("{repaired:?}") };
    assert_eq!(dropped.record, Some(("a".to_owned(), Revision(2))));
    assert_eq!(repaired.kept_aside, [Path::new("test").join(format!("{log}.damaged"))]);
    let engine = reopened(&device).unwrap();
    let space = engine.space("a").unwrap();
    let found: Vec<_> =
        space.snapshot().view(&collection("x")).iter(None, None).map(|e| e.revision.0).collect();
    assert_eq!(found, [1, 3]);
    assert!(matches!(space.watch(scope("x", None), Revision(3)), Err(StoreError::Compacted { .. })));
}

/// The last acknowledged group: after a kill its damage is detected; without the mark it looks like an interrupted
/// write.
#[test]
fn the_mark_tells_damage_from_an_interrupted_write() {
    let (device, _) = sample();
    let mut files = device.files();
    let log = files.keys().rfind(|name| name.starts_with("log-")).unwrap().clone();
    let file = files.get_mut(&log).unwrap();
    let last = file.iter().rposition(|byte| *byte != 0).unwrap();
    file[last] ^= 1;
    let refused = reopened(&Device::of(files.clone())).unwrap_err();
    assert!(matches!(refused, StoreError::Corrupt { .. }), "{refused:?}");
    files.remove("mark");
    reopened(&Device::of(files)).unwrap();
}

/// An absent store is created only if it may be absent.
#[test]
fn an_empty_directory_is_no_store_of_an_installation_in_use() {
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path().to_owned(), dir.path().join("absent")] {
        let refused = Engine::open_existing(&path).unwrap_err();
        assert!(matches!(refused, StoreError::Missing { .. }), "{refused:?}");
        assert!(refused.to_string().contains(path.to_str().unwrap()), "{refused}");
    }
    drop(Engine::open(dir.path()).unwrap());
    drop(Engine::open_existing(dir.path()).unwrap());
    std::fs::remove_file(dir.path().join("MANIFEST")).unwrap();
    let absent = dir.path().join("absent");
    assert_eq!(Engine::repair(&absent).unwrap().dropped.len(), 1);
    drop(Engine::open_existing(&absent).unwrap());
}

/// Starts after crashes leave no files behind.
#[test]
fn crashes_do_not_make_the_directory_grow() {
    let mut device = Device::new(u64::MAX);
    run(async {
        for round in 0..150 {
            let engine = start(&device);
            work(&engine, round, 1).await;
            let killed = device.after_kill();
            engine.close().await.unwrap();
            device = killed;
            assert!(
                device.files().len() < 75 && device.used() < 4 << 20,
                "{round}: {:?}",
                device.files().keys()
            );
        }
    });
}

/// Space of deleted data is released while the store runs, and the rest is intact.
#[test]
fn space_of_deleted_data_is_given_back() {
    let device = Device::new(u64::MAX);
    run(async {
        let engine = start(&device);
        let space = engine.space("a").unwrap();
        let text = "x".repeat(40 << 10);
        let mut stored = Vec::new();
        for index in 0..60 {
            let entry =
                space.commit(put(key("x", "n", &index.to_string()), Expect::Absent, &text)).await.unwrap();
            stored.push(entry);
        }
        assert!(device.used() > 2 << 20);
        for entry in stored {
            space.commit(delete(entry.key.clone(), entry.revision, "gone")).await.unwrap();
        }
        for index in 0..50 {
            space.commit(put(key("y", "n", &index.to_string()), Expect::Absent, "v")).await.unwrap();
        }
        when("at most 512 KiB", || device.used() <= 512 << 10).await;
        let truth = content(&engine);
        assert_eq!(content(&reopened(&device.after_crash(3)).unwrap()), truth);
        engine.close().await.unwrap();
        assert_eq!(content(&reopened(&device).unwrap()), truth);
    });
}

/// AS-071: at most twice the bytes of the objects are written, including snapshots.
#[test]
fn few_bytes_are_written_for_each_byte_of_objects() {
    let device = Device::new(u64::MAX);
    run(async {
        let engine = start(&device);
        let space = engine.space("a").unwrap().ahead();
        let text = "x".repeat(2000);
        let mut bytes = 0;
        for round in 0..4000_usize {
            let k = key("x", "n", &(round % 500).to_string());
            let expect =
                space.snapshot().get(&k).map_or(Expect::Absent, |stored| Expect::At(stored.revision));
            let encoded = Encoded { meta: Meta::default(), ..encoded(&text) };
            let write = Write { key: k, expect, action: Action::Put(encoded) };
            // Some writes wait for the disk, so that groups stay small.
            let by = if round % 50 == 49 { space.deciding() } else { space.clone() };
            bytes += by.commit(write).await.unwrap().value.len() as u64;
        }
        let manifest = || String::from_utf8_lossy(&device.files()["MANIFEST"]).into_owned();
        when("a snapshot", || manifest().contains("\nsnapshot ")).await;
        engine.close().await.unwrap();
        let written = device.medium.lock().written;
        assert!(written < 2 * bytes, "{written} for {bytes}");
    });
}

/// AS-071: unreadable sectors are named at start; a repair drops what is in them, keeps the rest, and says which.
#[test]
fn unreadable_sectors_are_named_and_can_be_repaired() {
    let (device, truth) = sample();
    let files = device.files();
    for (name, content) in &files {
        if matches!(name.as_str(), "lock" | "mark") {
            continue;
        }
        let used = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        for at in [0, used / 2 / 512 * 512] {
            let copy = Device::of(files.clone());
            copy.lose(name, at);
            let how = format!("{name} is unreadable at {at}");
            match reopened(&copy) {
                Err(StoreError::Corrupt { path, detail }) => {
                    assert!(path.ends_with(name) && detail.contains("--repair"), "{how}: {path:?} {detail}");
                }
                other => panic!("{how}: {other:?}"),
            }
            let repaired = repaired_store_serves(&copy, &truth, &how);
            let named = repaired.dropped.iter().any(|it| it.file.ends_with(name));
            assert!(named, "{how}: {repaired:?}");
        }
    }
}

/// AS-071: after a second without a write, even a power cut does not let damage of the last group pass for an interrupted
/// write.
#[test]
fn the_mark_is_durable_in_idle_time() {
    let device = Device::new(u64::MAX);
    run(async {
        let engine = start(&device);
        work(&engine, 0, 5).await;
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let mut files = device.after_crash(1).files();
            let log = files.keys().rfind(|name| name.starts_with("log-")).unwrap().clone();
            let file = files.get_mut(&log).unwrap();
            let last = file.iter().rposition(|byte| *byte != 0).unwrap();
            file[last] ^= 1;
            if matches!(reopened(&Device::of(files)), Err(StoreError::Corrupt { .. })) {
                break;
            }
            assert!(std::time::Instant::now() < deadline, "the mark is never flushed");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        engine.close().await.unwrap();
    });
}
