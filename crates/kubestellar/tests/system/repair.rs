//! A store that is damaged or gone: what a user is told, and what `--repair` does about it.

use std::path::{Path, PathBuf};

use kube::api::{Api, DynamicObject};

use crate::support::{Installation, config_map, create, dynamic};

/// The files of the store that hold the text.
fn files_with(store: &Path, text: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(store).unwrap().map(|entry| entry.unwrap().path());
    let holds = |path: &PathBuf| {
        let content = std::fs::read(path).unwrap_or_default();
        content.windows(text.len()).any(|window| window == text.as_bytes())
    };
    files.filter(holds).collect()
}

/// SP-042, AS-071: a damaged object is refused at start by the name of its file; `--repair` drops exactly that, says so, keeps the
/// file aside, and the installation goes on.
#[tokio::test(flavor = "multi_thread")]
async fn sp_042_a_damaged_store_is_repaired_when_asked() {
    let ks = Installation::new();
    ks.must(&["up", "--clusters", "0", "--listen", "127.0.0.1:0"]).await;
    let wds = ks.client("wds1").await;
    for name in ["kept-1", "lost", "kept-2"] {
        create(&wds, config_map("default", name, &format!("text of {name}"))).await;
    }
    drop(wds);
    ks.must(&["down"]).await;
    let store = ks.data().join("store");
    let damaged = files_with(&store, "text of lost");
    for file in &damaged {
        let mut content = std::fs::read(file).unwrap();
        let text = b"text of lost";
        while let Some(at) = content.windows(text.len()).position(|window| window == text) {
            content[at] ^= 0x20;
        }
        std::fs::write(file, content).unwrap();
    }
    let file = damaged.first().expect("the object is in a file").display().to_string();
    ks.run(&["up"]).await.fails(1, &[&file, "--repair"]);
    let repaired = ks.must(&["up", "--repair"]).await;
    let said = repaired.stdout + &repaired.stderr;
    assert!(said.contains("dropped from the store") && said.contains(&file), "{said}");
    assert!(said.contains("of space wds1"), "{said}");
    let maps: Api<DynamicObject> = dynamic(&ks.client("wds1").await, "v1", "ConfigMap", Some("default"));
    for (name, there) in [("kept-1", true), ("lost", false), ("kept-2", true)] {
        assert_eq!(maps.get_opt(name).await.unwrap().is_some(), there, "{name}");
    }
    assert!(std::fs::exists(format!("{file}.damaged")).unwrap());
    // The running server is left alone.
    ks.run(&["up", "--repair"]).await.fails(4, &["the server is running"]);
    ks.must(&["down"]).await;
    ks.must(&["up"]).await;
}

/// SP-042, AS-071: an installation whose store is gone does not start afresh without a word.
#[tokio::test(flavor = "multi_thread")]
async fn sp_042_a_missing_store_is_told() {
    let ks = Installation::new();
    ks.must(&["up", "--clusters", "0", "--listen", "127.0.0.1:0"]).await;
    ks.must(&["down"]).await;
    let store = ks.data().join("store");
    std::fs::remove_dir_all(&store).unwrap();
    ks.run(&["up"]).await.fails(1, &["holds no store", "--repair", &store.display().to_string()]);
    let repaired = ks.must(&["up", "--repair"]).await;
    let said = repaired.stdout + &repaired.stderr;
    assert!(said.contains("there was no store; it starts empty"), "{said}");
}
