//! Durable commits per second, bytes written and recovery:
//! `cargo run --release -p kubestellar-store --example commits [DIR]`.

use std::io::{Seek as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kubestellar_store::{Action, Collection, Encoded, Engine, Expect, Key, Meta, Write};

const SECONDS: u64 = 3;

fn write(space: usize, writer: usize, round: usize, expect: Expect) -> Write {
    let name = format!("writer-{space}-{writer}-{round}");
    let key =
        Key { collection: Collection::new("", "configmaps"), namespace: "default".into(), name: name.into() };
    let head = Bytes::from(format!("{{\"data\":\"{}\",\"rv\":\"", "x".repeat(1024)));
    Write {
        key,
        expect,
        action: Action::Put(Encoded { head, tail: Bytes::from_static(b"\"}"), meta: Meta::default() }),
    }
}

async fn measure(engine: &Engine, what: &str, writers: usize, spaces: usize, creates: bool) {
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..writers {
        let Ok(store) = engine.space(&format!("{what}-{writers}-{spaces}-{}", writer % spaces)) else {
            return;
        };
        tasks.spawn(async move {
            let mut waits = Vec::new();
            let mut last = None;
            for round in 0.. {
                if started.elapsed() > Duration::from_secs(SECONDS) {
                    break;
                }
                let (name, expect) = match (creates, last) {
                    (true, _) => (round, Expect::Absent),
                    (false, None) => (0, Expect::Absent),
                    (false, Some(revision)) => (0, Expect::At(revision)),
                };
                let begun = Instant::now();
                match store.commit(write(writers, writer, name, expect)).await {
                    Ok(entry) => last = Some(entry.revision),
                    Err(error) => {
                        eprintln!("{error}");
                        break;
                    }
                }
                waits.push(begun.elapsed());
            }
            waits
        });
    }
    let mut waits: Vec<Duration> = tasks.join_all().await.into_iter().flatten().collect();
    let elapsed = started.elapsed();
    waits.sort();
    let at = |share: usize| waits.get(waits.len() * share / 100).copied().unwrap_or_default();
    let rate = waits.len() as f64 / elapsed.as_secs_f64();
    println!("{what}: {writers} writers, {spaces} spaces: {rate:.0}/s, p50 {:?}, p99 {:?}", at(50), at(99));
}

/// The cost of a flush of 1 KiB at the end of a file on this disk, for comparison with the store's figures.
fn flush(dir: &Path) -> std::io::Result<()> {
    const SIZE: usize = 1 << 20;
    std::fs::create_dir_all(dir)?;
    let path = dir.join("flush");
    let mut file = std::fs::File::create(&path)?;
    file.write_all(&vec![0; SIZE])?;
    file.sync_all()?;
    file.rewind()?;
    let mut waits = Vec::new();
    for _ in 0..SIZE / 1024 {
        let begun = Instant::now();
        file.write_all(&[1; 1024])?;
        file.sync_data()?;
        waits.push(begun.elapsed());
    }
    waits.sort();
    let at = |share: usize| waits.get(waits.len() * share / 100).copied().unwrap_or_default();
    println!("the disk's own flush: p50 {:?}, p99 {:?}", at(50), at(99));
    std::fs::remove_file(path)
}

/// Bytes that this process has written to files.
fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// Processor time of this process, in steps of 10 ms.
fn processor_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10
}

fn size(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

/// Writes 100,000 objects of 1 KiB, changes each once, and opens the store again.
async fn recovery(dir: &Path) -> Result<(), kubestellar_store::StoreError> {
    const OBJECTS: usize = 100_000;
    let engine = Engine::open(dir)?;
    let (before, begun) = (written(), Instant::now());
    for round in 0..2 {
        let store = engine.space("recovery")?;
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..512 {
            let store = store.clone();
            tasks.spawn(async move {
                for object in (writer..OBJECTS).step_by(512) {
                    let wanted = write(0, 0, object, Expect::Absent);
                    let found = store.snapshot().get(&wanted.key).map(|entry| entry.revision);
                    let expect = found.map_or(Expect::Absent, Expect::At);
                    store.commit(Write { expect, ..wanted }).await.map(drop)?;
                }
                Ok(())
            });
        }
        tasks.join_all().await.into_iter().collect::<Result<Vec<()>, _>>()?;
        let text = (OBJECTS * (round + 1) * 1024) as f64;
        let factor = (written() - before) as f64 / text;
        println!("round {round}: {factor:.2} bytes written for each byte of objects, {:?}", begun.elapsed());
    }
    engine.close().await?;
    println!("{} MiB in the directory", size(dir) >> 20);
    let (begun, before) = (Instant::now(), processor_ms());
    let engine = Engine::open(dir)?;
    let processor = processor_ms() - before;
    println!("opened {OBJECTS} objects in {:?}, {processor} ms of them on a processor", begun.elapsed());
    engine.remove_space("recovery").await?;
    engine.close().await?;
    println!("{} MiB in the directory after they were removed", size(dir) >> 20);
    Ok(())
}

#[tokio::main]
async fn main() {
    let dir = std::env::args().nth(1).map_or_else(|| std::env::temp_dir().join("store-commits"), Into::into);
    if let Err(error) = flush(&dir) {
        return eprintln!("{error}");
    }
    let engine = match Engine::open(&dir) {
        Ok(engine) => engine,
        Err(error) => return eprintln!("{error}"),
    };
    for (writers, spaces) in [(1, 1), (32, 1), (32, 32), (256, 4)] {
        measure(&engine, "create", writers, spaces, true).await;
        measure(&engine, "update", writers, spaces, false).await;
    }
    let memory = Engine::in_memory();
    measure(&memory, "in memory create", 32, 1, true).await;
    for name in engine.spaces() {
        if let Err(error) = engine.remove_space(&name).await {
            eprintln!("{error}");
        }
    }
    if let Err(error) = engine.close().await {
        eprintln!("{error}");
    }
    if let Err(error) = recovery(&dir.join("recovery")).await {
        eprintln!("{error}");
    }
}
