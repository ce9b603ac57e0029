//! What a user is told when the world fails the server: a disk that takes no writes, a clock that was wrong.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use http::Request;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use serde_json::Value;

use crate::support::{DEADLINE, Installation, config_map, dynamic, within};

/// Limits the files that a process may write, as `prlimit` does; false without that program.
fn limit(pid: u64, bytes: &str) -> bool {
    let done = Command::new("prlimit").args([format!("--pid={pid}"), format!("--fsize={bytes}")]).status();
    done.is_ok_and(|status| status.success())
}

async fn readyz(client: &Client) -> (u16, String) {
    let request = Request::get("/readyz").body(kube::client::Body::empty()).expect("a request");
    let answer = client.send(request).await.expect("an answer");
    let status = answer.status().as_u16();
    let body = answer.into_body().collect_bytes().await.expect("a body");
    (status, String::from_utf8_lossy(&body).into_owned())
}

/// SP-107, SP-139: while the store refuses writes, `status` and `/readyz` say why, no component is said to be ready, and `up` fails. (A
/// limit on the size of files stands for the full disk.)
#[tokio::test(flavor = "multi_thread")]
async fn sp_107_a_store_that_refuses_writes_is_told() {
    let ks = Installation::new();
    let mut up = ks.in_shell("trap '' XFSZ", &["up", "--clusters", "0", "--listen", "127.0.0.1:0"]);
    let up = within("up", up.output()).await.unwrap();
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    let (pid, wds) = (ks.pid().await, ks.client("wds1").await);
    assert_eq!(readyz(&wds).await, (200, "ok".into()));
    if !limit(pid, "512") {
        println!("skipped: there is no prlimit");
        return;
    }
    let maps: Api<DynamicObject> = dynamic(&wds, "v1", "ConfigMap", Some("default"));
    let refused = async {
        for n in 0.. {
            let object = serde_json::from_value(config_map("default", &format!("m{n}"), "x")).unwrap();
            if maps.create(&Default::default(), &object).await.is_err() {
                return;
            }
        }
    };
    within("a refused write", refused).await;
    let status = ks.status().await;
    let cause = status["server"]["storeFailure"].as_str().expect("a cause").to_owned();
    assert!(cause.contains("File too large"), "{cause}");
    for component in status["server"]["components"].as_array().unwrap() {
        assert_eq!(component["ready"], false, "{component}");
        assert!(component["lastError"].is_string(), "{component}");
    }
    let (code, text) = readyz(&wds).await;
    assert_eq!(code, 500, "{text}");
    assert!(text.contains("[-]etcd failed: ") && text.contains("File too large"), "{text}");
    assert_eq!(ks.run(&["status", "--exit-code"]).await.code, 9);
    let table = ks.must(&["status"]).await.stdout;
    assert!(table.contains("refuses writes: ") && table.contains("File too large"), "{table}");
    ks.run(&["up"]).await.fails(1, &["refuses writes", "File too large"]);
    assert!(limit(pid, "unlimited"));
}

/// SP-083: `up` on a disk that takes next to nothing fails with the cause on stderr, whatever became of the log.
#[tokio::test(flavor = "multi_thread")]
async fn sp_083_up_on_a_full_disk_says_why() {
    let ks = Installation::new();
    for blocks in ["0", "1"] {
        let script = format!("trap '' XFSZ; ulimit -f {blocks}");
        let mut up = ks.in_shell(&script, &["up", "--clusters", "0", "--listen", "127.0.0.1:0"]);
        let up = within("up", up.output()).await.unwrap();
        let said = String::from_utf8_lossy(&up.stderr).into_owned();
        assert_eq!(up.status.code(), Some(1), "{said}");
        assert!(said.starts_with("error: ") && said.contains("File too large"), "{blocks}: {said}");
    }
    ks.must(&["up", "--clusters", "0", "--listen", "127.0.0.1:0"]).await;
}

/// SP-062: certificates that an earlier start made while the clock was ahead are replaced, so that the installation works; and that the
/// clock has gone back is said, until it is said to be right.
#[tokio::test(flavor = "multi_thread")]
async fn sp_062_a_start_with_a_wrong_clock_does_no_lasting_harm() {
    const SPACES: [&str; 3] = ["its1", "wds1", "cluster1"];
    let ks = Installation::new();
    ks.must(&["up", "--clusters", "1", "--listen", "127.0.0.1:0"]).await;
    ks.must(&["down"]).await;
    let ahead = SystemTime::now() + Duration::from_secs(12 * 365 * 24 * 3600);
    space::pki::serving(&ks.data(), &[], ahead).unwrap();
    for name in SPACES {
        space::pki::space(&ks.data(), name, ahead).unwrap();
    }
    std::fs::write(ks.data().join("clock.json"), r#"{"newest":"2199-01-01T00:00:00Z"}"#).unwrap();

    ks.must(&["up"]).await;
    let status = ks.status().await;
    let complaint = status["server"]["clock"].as_str().expect("a complaint");
    assert!(complaint.contains("2199-01-01") && complaint.contains("--trust-clock"), "{complaint}");
    for name in SPACES {
        for file in [ks.data().join("kubeconfig"), ks.kubeconfig()] {
            listed(&file, name).await;
        }
    }
    ks.must(&["down"]).await;
    ks.must(&["up", "--trust-clock"]).await;
    assert_eq!(ks.status().await["server"].get("clock"), None::<&Value>);
    ks.must(&["down"]).await;
    ks.must(&["up"]).await;
    assert_eq!(ks.status().await["server"].get("clock"), None::<&Value>, "it is remembered to be right");
}

/// A request with the credentials of a context, whose TLS certificates all have to be valid now.
async fn listed(kubeconfig: &Path, context: &str) {
    let client = crate::support::client_of(kubeconfig, context).await;
    let namespaces = dynamic(&client, "v1", "Namespace", None);
    let list = tokio::time::timeout(DEADLINE, namespaces.list(&ListParams::default())).await;
    assert!(
        !list.expect("in time").expect("a list").items.is_empty(),
        "{context} of {}",
        kubeconfig.display()
    );
}
