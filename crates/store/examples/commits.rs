//! Durable commits per second: `cargo run --release -p kubestellar-store --example commits [DIR]`.

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

#[tokio::main]
async fn main() {
    let dir = std::env::args().nth(1).map_or_else(|| std::env::temp_dir().join("store-commits"), Into::into);
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
}
