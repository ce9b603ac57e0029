//! What stands in the way of a start: each gets its exit code and one clear line.

use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::support::Installation;

/// SP-A-21: a taken port is exit 4 with the port and the way out, and no half-started server stays.
#[tokio::test(flavor = "multi_thread")]
async fn sp_a_21_port_in_use() {
    let ks = Installation::new();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let up = ks.run(&["up", "--clusters", "0", "--listen", &address]).await;
    up.fails(4, &[&address, "in use"]);
    assert!(up.stderr.contains("hint: ") && up.stderr.contains("--listen"), "{}", up.stderr);
    assert!(!ks.kubeconfig().exists(), "nothing was started, so there is nothing to connect to");
    assert!(!ks.data().join("installation.json").exists(), "the taken address is not remembered");
    ks.run(&["status"]).await.fails(6, &[]);
    ks.must(&["up", "--clusters", "0", "--listen", "127.0.0.1:0"]).await;
    // Nor is it by an installation that has one.
    let own = ks.status().await["server"]["url"].as_str().unwrap().to_owned();
    ks.must(&["down"]).await;
    ks.run(&["up", "--listen", &address]).await.fails(4, &[&address, "in use"]);
    ks.must(&["up"]).await;
    assert_eq!(ks.status().await["server"]["url"], own);
}

/// SP-086: a second server on the same data directory is exit 4 and names the first.
#[tokio::test(flavor = "multi_thread")]
async fn sp_086_locked_data_directory() {
    let ks = Installation::new();
    let first = ks.serve(&["--clusters", "0", "--listen", "127.0.0.1:0"]).await;
    let second = ks.run(&["serve", "--listen", "127.0.0.1:0"]).await;
    second.fails(4, &["another kubestellar server", &first.pid().to_string()]);
    assert_eq!(ks.status().await["server"]["pid"], first.pid(), "the first goes on");
    first.stop().await;
}

/// SP-083: a data directory that can't be made (here: below a file, which stops root too) is exit 1.
#[tokio::test(flavor = "multi_thread")]
async fn sp_083_data_directory_cannot_be_made() {
    let ks = Installation::new();
    std::fs::write(ks.path("file"), "").unwrap();
    let up = ks.run(&["up", "--data-dir", "file/data", "--listen", "127.0.0.1:0"]).await;
    up.fails(1, &["file/data"]);
    ks.run(&["serve", "--data-dir", "file/data", "--listen", "127.0.0.1:0"]).await.fails(1, &["file/data"]);
}

/// SP-083, SP-084: to another user an installation is not permitted, which is not the same as not running.
#[tokio::test(flavor = "multi_thread")]
async fn sp_084_another_users_installation_is_not_permitted() {
    if user() != 0 {
        println!("skipped: only root can be another user");
        return;
    }
    let ks = Installation::new();
    ks.must(&["up", "--clusters", "0", "--listen", "127.0.0.1:0"]).await;
    // The way there is open, also for the program; the directory itself is not.
    let binary = ks.path("kubestellar");
    std::fs::copy(env!("CARGO_BIN_EXE_kubestellar"), &binary).unwrap();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(ks.path(""), open).unwrap();
    for arguments in [&["status"][..], &["down"], &["down", "--purge", "--yes"], &["up"]] {
        let mut command = Command::new(&binary);
        command.args(arguments).env_clear().current_dir("/").uid(65_534).gid(65_534);
        command.env("HOME", ks.path("nowhere")).env("KUBESTELLAR_DATA_DIR", ks.data());
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(7), "{arguments:?}: {said}");
        assert!(said.contains("not permitted") && said.contains("another user"), "{said}");
    }
    assert!(ks.pid().await > 0, "it still runs");
}

/// The user that runs the test.
fn user() -> u32 {
    std::fs::metadata("/proc/self").map_or(u32::MAX, |it| it.uid())
}

/// SP-A-08: a kubeconfig that does not parse stops `up` before anything starts and stays as it is; told to leave
/// it alone, `up` works.
#[tokio::test(flavor = "multi_thread")]
async fn sp_a_08_broken_kubeconfig() {
    let ks = Installation::new();
    let broken = "apiVersion: v1\nclusters: [\nusers: }\n";
    ks.put_kubeconfig(broken);
    let up = ks.run(&["up", "--clusters", "0", "--listen", "127.0.0.1:0"]).await;
    up.fails(1, &[".kube/config", "line"]);
    assert!(!ks.data().exists(), "started before the kubeconfig was read");
    let alone = ks.must(&["up", "--clusters", "0", "--listen", "127.0.0.1:0", "--no-kubeconfig-merge"]).await;
    assert!(alone.stderr.contains("export KUBECONFIG="), "{}", alone.stderr);
    assert_eq!(ks.kubeconfig_text(), broken);
}

/// SP-084: wrong usage is 2, nothing running is 6 for those that need a server and 0 for `down`.
#[tokio::test(flavor = "multi_thread")]
async fn sp_084_exit_codes_without_a_server() {
    let ks = Installation::new();
    let table: [(&[&str], i32); 12] = [
        (&["up", "--no-such-flag"], 2),
        (&["no-such-command"], 2),
        (&["up", "--clusters", "many"], 2),
        (&["up", "--clusters", "-1"], 2),
        (&["up", "--listen", "0.0.0.0:0"], 2),
        (&["up", "--its", "Not_A_Name"], 2),
        (&["up", "--label", "cluster9=a=b", "--listen", "127.0.0.1:0"], 3),
        (&["down", "--purge"], 2),
        (&["down"], 0),
        (&["status"], 6),
        (&["status", "-o", "json", "--exit-code"], 6),
        (&["version"], 0),
    ];
    for (arguments, code) in table {
        let outcome = ks.run(arguments).await;
        assert_eq!(outcome.code, code, "{arguments:?}\n{}", outcome.stderr);
        if code != 0 {
            assert_eq!(outcome.stdout, "", "{arguments:?}: a failure has no result");
            assert_eq!(outcome.stderr.matches("error: ").count(), 1, "{arguments:?}: {}", outcome.stderr);
        }
    }
    assert!(!ks.data().exists() && !ks.kubeconfig().exists(), "none of these makes anything");
}

/// SP-083, design "nothing silent": a damaged store is said to be one, and is not taken for an empty one.
#[tokio::test(flavor = "multi_thread")]
async fn sp_042_damaged_store_is_refused() {
    let ks = Installation::new();
    ks.serve(&["--clusters", "0", "--listen", "127.0.0.1:0"]).await.stop().await;
    let store = ks.data().join("store");
    let files = std::fs::read_dir(&store).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_file());
    let largest = files.max_by_key(|p| p.metadata().unwrap().len()).expect("the store has a file");
    let whole = std::fs::read(&largest).unwrap();
    let mut damaged = whole.clone();
    let end = damaged.len().min(4096);
    damaged[..end].fill(0xa5);
    std::fs::write(&largest, &damaged).unwrap();
    let serve = ks.run(&["serve"]).await;
    serve.fails(1, &["store", &largest.display().to_string()]);
    assert_eq!(std::fs::read(&largest).unwrap(), damaged, "a file that is not understood is not written");
    std::fs::write(&largest, &whole).unwrap();
    ks.serve(&[]).await.stop().await;
}
