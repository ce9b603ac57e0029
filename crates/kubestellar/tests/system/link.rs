//! Works written by users, and a cluster at the end of a bad line.

use std::sync::Arc;
use std::time::Duration;

use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::{Installation, dynamic, until, until_one};

fn works(its: &Client, mailbox: &str) -> Api<DynamicObject> {
    dynamic(its, "work.open-cluster-management.io/v1", "ManifestWork", Some(mailbox))
}

fn work(name: &str, manifests: &[Value]) -> DynamicObject {
    let object = json!({"apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork",
        "metadata": {"name": name}, "spec": {"workload": {"manifests": manifests}}});
    serde_json::from_value(object).unwrap()
}

fn map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"},
        "data": {"a": value}})
}

/// Whether all of the work, as it is now, is applied.
fn applied(work: &DynamicObject) -> bool {
    let conditions = work.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|c| {
        c["type"] == "Applied"
            && c["status"] == "True"
            && c["observedGeneration"].as_i64() == work.metadata.generation
    })
}

/// OCM-A-62, OCM-098, OCM-014: an inventory space refuses works that nobody can apply, and says why; the largest that it
/// takes is applied.
#[tokio::test(flavor = "multi_thread")]
async fn ocm_098_works_are_checked_where_they_are_written() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "1"]).await;
    let (its, wec) = (ks.client("its1").await, ks.client("cluster1").await);
    let works = works(&its, "cluster1");
    let nameless = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "default"}});
    let mut generated = map("a", "1");
    generated["metadata"]["generateName"] = json!("a-");
    // Embedded inventory spaces allow more than OCM's 512,000 bytes.
    let long: Vec<Value> = (0..3).map(|n| map(&format!("long{n}"), &"x".repeat(700_000))).collect();
    for (manifests, text) in [
        (vec![], "manifests should not be empty"),
        (vec![nameless], "name must be set in manifest"),
        (vec![generated], "generateName must not be set in manifest"),
        (
            vec![map("a", "1"), map("a", "2")],
            "duplicate manifest for resource default/a with resource type v1.ConfigMap",
        ),
        (long, "bytes which exceeds the 2097152 limit"),
    ] {
        match works.create(&PostParams::default(), &work("bad", &manifests)).await {
            Err(Error::Api(status)) => {
                assert_eq!(status.code, 400, "{status:?}");
                assert!(status.message.contains(text), "{}", status.message);
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    works
        .create(&PostParams::default(), &work("large", &[map("large", &"x".repeat(511 * 1000))]))
        .await
        .unwrap();
    works.create(&PostParams::default(), &work("good", &[map("good", "1")])).await.unwrap();
    for name in ["large", "good"] {
        until_one(&works, name, "its delivery", applied).await;
        dynamic(&wec, "v1", "ConfigMap", Some("default")).get(name).await.unwrap();
    }
    // What changes is checked like what is new.
    let patch = json!({"spec": {"workload": {"manifests": [map("good", "1"), map("good", "2")]}}});
    let answer = works.patch("good", &PatchParams::default(), &Patch::Merge(patch)).await;
    assert!(matches!(answer, Err(Error::Api(status)) if status.code == 400));
    works.delete("large", &DeleteParams::default()).await.unwrap();
    until(&works, "the end of the large work", |all| !all.keys().any(|key| key.ends_with("large"))).await;
    server.stop().await;
}

/// How a line behaves.
#[derive(Clone, Copy, PartialEq)]
enum Weather {
    Fair,
    /// Everything comes late, in small pieces.
    Slow,
    /// Nobody is let in.
    Closed,
    /// What is sent comes nowhere, and nobody is told.
    Silent,
}

/// A line that somebody else's weather rules.
struct Line {
    port: u16,
    weather: watch::Sender<Weather>,
    /// How often everything that was connected was cut.
    cuts: watch::Sender<u64>,
    _tasks: JoinSet<()>,
}

impl Line {
    async fn to(address: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let weather = watch::Sender::new(Weather::Fair);
        let cuts = watch::Sender::new(0);
        let (news, cut, mut tasks) = (weather.subscribe(), cuts.subscribe(), JoinSet::new());
        tasks.spawn(async move {
            let mut lines = JoinSet::new();
            let address = Arc::new(address);
            loop {
                let Ok((near, _)) = listener.accept().await else { return };
                if *news.borrow() == Weather::Closed {
                    continue;
                }
                let (address, news, mut cut) = (address.clone(), news.clone(), cut.clone());
                cut.mark_unchanged();
                lines.spawn(async move {
                    let Ok(far) = TcpStream::connect(address.as_str()).await else { return };
                    let ((nr, nw), (fr, fw)) = (near.into_split(), far.into_split());
                    tokio::select! {
                        () = carry(nr, fw, news.clone()) => {}
                        () = carry(fr, nw, news) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { port, weather, cuts, _tasks: tasks }
    }

    /// The weather changes, and whatever was connected is cut.
    fn cut(&self, weather: Weather) {
        self.weather.send_replace(weather);
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    news: watch::Receiver<Weather>,
) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let most = if *news.borrow() == Weather::Slow { 700 } else { buffer.len() };
        let Ok(count @ 1..) = from.read(&mut buffer[..most]).await else { return };
        let weather = *news.borrow();
        match weather {
            Weather::Silent => continue,
            Weather::Slow => tokio::time::sleep(Duration::from_millis(15)).await,
            _ => {}
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// SP-116, OCM-099, OCM-A-66: a cluster of another installation whose line to the hub is slow, cut again and again, or
/// swallows what is sent: what was delivered stays, and what changed meanwhile arrives, and is reported, once the line is
/// good. Either side may start anew. Detached over a good line, nothing of it is left.
#[tokio::test(flavor = "multi_thread")]
async fn sp_116_a_cluster_at_the_end_of_a_bad_line() {
    let ks = Installation::new();
    let mut server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "0"]).await;
    let other = Installation::new();
    let mut edge = other.serve(&["--listen", "127.0.0.1:0", "--clusters", "0"]).await;
    let file = other.data().join("kubeconfig").display().to_string();
    let printed = ks.must(&["cluster", "token", "--print-for", "kubestellar"]).await.stdout;
    let line = printed.lines().find(|l| l.starts_with("kubestellar ")).expect("our line");
    let address = line.split("https://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address");
    let link = Line::to(address.to_owned()).await;
    let joining = line.replace("CLUSTER_NAME", "far").replace(address, &format!("127.0.0.1:{}", link.port));
    let mut arguments: Vec<&str> = joining.split(' ').skip(1).collect();
    arguments.extend(["--kubeconfig", &file, "--context", "wds1"]);
    let mut agent = ks.spawn("join", &arguments);
    ks.must(&["cluster", "accept", "far", "--wait"]).await;

    let its = ks.client("its1").await;
    let mailbox = works(&its, "far");
    mailbox.create(&PostParams::default(), &work("reef", &[map("reef", "fair")])).await.unwrap();
    until_one(&mailbox, "reef", "the first delivery", applied).await;
    let wec = other.client("wds1").await;
    let there = dynamic(&wec, "v1", "ConfigMap", Some("default"));
    let first = there.get("reef").await.unwrap().metadata.uid;

    let say = |its: Client, value: String| async move {
        let patch = json!({"spec": {"workload": {"manifests": [map("reef", &value)]}}});
        works(&its, "far").patch("reef", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    };
    for (weather, value) in [
        (Weather::Slow, "slow"),
        (Weather::Closed, "cut"),
        (Weather::Slow, "slow again"),
        (Weather::Silent, "silent"),
    ] {
        match weather {
            // Those who are connected have to find out by themselves that nobody answers.
            Weather::Silent => drop(link.weather.send_replace(weather)),
            _ => link.cut(weather),
        }
        say(its.clone(), value.to_owned()).await;
        if weather != Weather::Slow {
            // A second word while nobody hears; then those who still hold a dead line are told so.
            say(its.clone(), format!("{value}, twice")).await;
            link.cut(Weather::Fair);
        }
        until_one(&mailbox, "reef", "a report over a bad line", applied).await;
        let wanted = if weather == Weather::Slow { value.to_owned() } else { format!("{value}, twice") };
        let now = until_one(&there, "reef", "its delivery", |it| it.data["data"]["a"] == wanted).await;
        assert_eq!(now.metadata.uid, first, "changed, not made anew");
    }
    link.cut(Weather::Fair);

    // The cluster starts anew, then the agent, then the hub; each while something changes.
    edge.stop().await;
    say(its.clone(), "without the cluster".into()).await;
    edge = other.serve(&[]).await;
    let wec = other.client("wds1").await;
    let there = dynamic(&wec, "v1", "ConfigMap", Some("default"));
    until_one(&there, "reef", "a delivery to the new cluster", |it| {
        it.data["data"]["a"] == "without the cluster"
    })
    .await;
    agent.kill().await;
    say(its.clone(), "without the agent".into()).await;
    agent = ks.spawn("join", &arguments);
    until_one(&there, "reef", "a delivery by the new agent", |it| {
        it.data["data"]["a"] == "without the agent"
    })
    .await;
    server.stop().await;
    server = ks.serve(&[]).await;
    let its = ks.client("its1").await;
    say(its.clone(), "by the new hub".into()).await;
    let last =
        until_one(&there, "reef", "a delivery by the new hub", |it| it.data["data"]["a"] == "by the new hub")
            .await;
    assert_eq!(last.metadata.uid, first, "nothing was made anew");
    until_one(&works(&its, "far"), "reef", "its report", applied).await;

    ks.must(&["cluster", "detach", "far"]).await;
    until(&there, "the end of the workload", |all| !all.keys().any(|key| key.ends_with("/reef"))).await;
    let left = dynamic(&wec, "work.open-cluster-management.io/v1", "AppliedManifestWork", None);
    until(&left, "the end of what was applied", |all| all.is_empty()).await;
    until(&dynamic(&its, "v1", "Namespace", None), "the end of the mailbox", |all| !all.contains_key("far"))
        .await;
    agent.stop().await;
    edge.stop().await;
    server.stop().await;
}
