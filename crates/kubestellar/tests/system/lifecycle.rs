//! `up`, `status`, `down`: asked once, asked again, asked for more, and all gone.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use kube::api::DynamicObject;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::support::{
    Installation, config_map, create, dynamic, gone, names, namespace, policy, resource_version, uid, until,
    within,
};

fn managed_clusters(its: &Client) -> Api<DynamicObject> {
    dynamic(its, "cluster.open-cluster-management.io/v1", "ManagedCluster", None)
}

fn contexts(kubeconfig: &str) -> Vec<String> {
    let document: Value = serde_saphyr::from_str(kubeconfig).expect("YAML");
    let list = document["contexts"].as_array().cloned().unwrap_or_default();
    let mut names: Vec<String> = list.iter().map(|c| c["name"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// SP-A-01, SP-A-03: contexts and inventory after the first `up`; the second changes nothing; a third adds what
/// is asked for and touches nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn sp_a_03_up_again_and_up_for_more() {
    let ks = Installation::new();
    let first = ks.must(&["up", "--listen", "127.0.0.1:0"]).await;
    let log = std::fs::read_to_string(ks.data().join("logs/server.log")).unwrap();
    assert!(!log.contains(" WARN ") && !log.contains(" ERROR "), "a healthy first start:\n{log}");
    let known = ["cluster1", "cluster2", "its1", "kubestellar", "wds1"];
    for context in known {
        assert!(
            first.stdout.lines().any(|l| l.starts_with(context)),
            "{context} is not shown:\n{}",
            first.stdout
        );
    }
    let kubeconfig = ks.kubeconfig_text();
    assert_eq!(contexts(&kubeconfig), known);
    let document: Value = serde_saphyr::from_str(&kubeconfig).unwrap();
    assert_eq!(document["current-context"], "wds1");
    let its = ks.client("its1").await;
    let both = until(&managed_clusters(&its), "both clusters in the inventory", |all| {
        all.len() == 2 && all.values().all(is_available)
    })
    .await;
    for (name, cluster) in &both {
        let labels = cluster.metadata.labels.clone().unwrap();
        assert_eq!((labels["location-group"].as_str(), &labels["name"]), ("edge", name));
    }

    let (pid, written) = (ks.pid().await, ks.kubeconfig().metadata().unwrap().modified().unwrap());
    for again in [&["up"][..], &["up", "--listen", "127.0.0.1:0"], &["up", "--clusters", "2"]] {
        let again = ks.must(again).await;
        assert!(again.stderr.contains("already up"), "{}", again.stderr);
    }
    let fewer = ks.must(&["up", "--clusters", "1"]).await;
    assert!(fewer.stderr.contains("cluster2 stays"), "{}", fewer.stderr);
    assert_eq!(ks.pid().await, pid);
    assert_eq!(ks.kubeconfig_text(), kubeconfig);
    assert_eq!(
        ks.kubeconfig().metadata().unwrap().modified().unwrap(),
        written,
        "the file was written again"
    );

    let before = names(&both, resource_version);
    ks.must(&["up", "--clusters", "3"]).await;
    assert_eq!(ks.pid().await, pid, "growing needs no new server");
    assert_eq!(
        contexts(&ks.kubeconfig_text()),
        ["cluster1", "cluster2", "cluster3", "its1", "kubestellar", "wds1"]
    );
    let three = until(&managed_clusters(&its), "the third cluster", |all| {
        all.len() == 3 && all.values().all(is_available)
    })
    .await;
    let mut after = names(&three, resource_version);
    after.remove("cluster3");
    assert_eq!(after, before, "enrolled clusters were written to");
}

/// Joined, and all that its agent has to say about it at first is said.
fn is_available(cluster: &DynamicObject) -> bool {
    let conditions = cluster.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let has = |kind: &str| conditions.iter().any(|c| c["type"] == kind && c["status"] == "True");
    ["HubAcceptedManagedCluster", "ManagedClusterJoined", "ManagedClusterConditionAvailable"]
        .into_iter()
        .all(has)
        && cluster.data["status"]["capacity"].is_object()
        && cluster.data["status"]["allocatable"].is_object()
}

/// SP-107, SP-A-23: the same data in every format, nothing but the document on stdout, exit code on request.
#[tokio::test(flavor = "multi_thread")]
async fn sp_a_23_status_in_every_format() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "1"]).await;
    let json = ks.must(&["status", "-o", "json", "--exit-code"]).await;
    let yaml = ks.must(&["status", "-o", "yaml", "--exit-code"]).await;
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    let yaml: Value = serde_saphyr::from_str(&yaml.stdout).unwrap();
    let spaces = |status: &Value| -> BTreeMap<String, Value> {
        let spaces = status["server"]["spaces"].as_array().unwrap().iter();
        spaces
            .map(|s| (s["name"].as_str().unwrap().to_owned(), json!([s["role"], s["ready"], s["url"]])))
            .collect()
    };
    assert_eq!(spaces(&json), spaces(&yaml));
    let roles: Vec<(String, Value)> =
        spaces(&json).into_iter().map(|(name, s)| (name, s[0].clone())).collect();
    let expected = [("cluster1", "wec"), ("its1", "its"), ("kubestellar", "host"), ("wds1", "wds")];
    assert_eq!(roles, expected.map(|(name, role)| (name.to_owned(), json!(role))));
    assert_eq!(json["server"]["pid"], server.pid());
    for component in json["server"]["components"].as_array().unwrap() {
        assert_eq!((&component["ready"], &component["restarts"]), (&json!(true), &json!(0)), "{component}");
    }
    let name = ks.must(&["status", "-o", "name"]).await;
    assert_eq!(name.stdout, "space/its1\nspace/wds1\nspace/cluster1\nspace/kubestellar\n");
    let table = ks.must(&["status"]).await;
    assert!(table.stdout.contains("simulated") && table.stdout.contains("RESTARTS"), "{}", table.stdout);
    server.stop().await;
    ks.run(&["status", "--exit-code"]).await.fails(6, &[]);
}

/// SP-A-04, SP-A-06, SP-042, SP-082: `down` twice is fine and leaves contexts; `up` brings everything back as it was:
/// credentials, objects, and what was delivered.
#[tokio::test(flavor = "multi_thread")]
async fn sp_a_04_down_and_up_keep_everything() {
    let ks = Installation::new();
    ks.must(&["up", "--listen", "127.0.0.1:0", "--clusters", "1"]).await;
    let wds = ks.client("wds1").await;
    create(&wds, policy("tide", ("name", "cluster1"), false)).await;
    create(&wds, namespace("tide")).await;
    create(&wds, config_map("tide", "settings", "one")).await;
    let maps = |client: &Client| dynamic(client, "v1", "ConfigMap", Some("tide"));
    let settings = |all: &BTreeMap<String, DynamicObject>| all.contains_key("tide/settings");
    let delivered = until(&maps(&ks.client("cluster1").await), "the delivery", settings).await;
    let described = until(&maps(&wds), "what was written", settings).await;
    let (kubeconfig, pid) = (ks.kubeconfig_text(), ks.pid().await);
    let url = ks.status().await["server"]["url"].as_str().unwrap().to_owned();
    let address = url.strip_prefix("https://").unwrap();
    let own = std::fs::read(ks.data().join("kubeconfig")).unwrap();

    ks.must(&["down"]).await;
    TcpListener::bind(address).expect("the port is free when `down` returns");
    gone(pid).await;
    let again = ks.must(&["down"]).await;
    assert!(again.stderr.contains("no server is running"), "{}", again.stderr);
    assert_eq!(ks.kubeconfig_text(), kubeconfig, "contexts stay");

    let quiet = ks.must(&["up", "--quiet"]).await;
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""), "--quiet says nothing (SP-082)");
    assert_eq!(ks.kubeconfig_text(), kubeconfig);
    assert_eq!(std::fs::read(ks.data().join("kubeconfig")).unwrap(), own);
    // The old client: same URL, same CA, same credentials.
    let now = until(&maps(&wds), "the objects of the WDS", settings).await;
    assert_eq!(
        names(&now, |o| (uid(o), resource_version(o))),
        names(&described, |o| (uid(o), resource_version(o)))
    );
    // Something new goes all the way, so by then the agent has looked at what was there.
    create(&wds, config_map("tide", "more", "two")).await;
    let there =
        until(&maps(&ks.client("cluster1").await), "the next delivery", |all| all.contains_key("tide/more"))
            .await;
    assert_eq!(uid(&there["tide/settings"]), uid(&delivered["tide/settings"]), "deleted and made again");
    ks.must(&["down"]).await;
}

/// SP-A-06, SP-A-07: foreign entries survive, names they hold are respected, and `down --purge` takes out ours only.
#[tokio::test(flavor = "multi_thread")]
async fn sp_a_07_purge_leaves_foreign_entries() {
    let ks = Installation::new();
    ks.put_kubeconfig(FOREIGN);
    let up = ks.must(&["up", "--listen", "127.0.0.1:0", "--clusters", "0"]).await;
    assert!(up.stderr.contains("its1-kubestellar"), "the other name is not mentioned:\n{}", up.stderr);
    let before: Value = serde_saphyr::from_str(FOREIGN).unwrap();
    let merged: Value = serde_saphyr::from_str(&ks.kubeconfig_text()).unwrap();
    assert_eq!(
        contexts(&ks.kubeconfig_text()),
        ["its1", "its1-kubestellar", "kubestellar", "other", "wds1", "work"]
    );
    for list in ["contexts", "clusters", "users"] {
        let (old, new) = (before[list].as_array().unwrap(), merged[list].as_array().unwrap());
        assert_eq!(&new[..old.len()], &old[..], "{list}");
    }
    assert_eq!(merged["current-context"], "work");
    assert_eq!(merged["extensions"], before["extensions"]);
    let refused = ks.run(&["down", "--purge"]).await;
    refused.fails(2, &[]);
    assert!(refused.stderr.contains("--yes"), "{}", refused.stderr);
    let pid = ks.pid().await;
    ks.must(&["down", "--purge", "--yes"]).await;
    assert!(!ks.data().exists());
    gone(pid).await;
    let left: Value = serde_saphyr::from_str(&ks.kubeconfig_text()).unwrap();
    assert_eq!(left, before);
    ks.must(&["down", "--purge", "--yes"]).await;
}

const FOREIGN: &str = "\
apiVersion: v1
kind: Config
preferences: {colors: true}
current-context: work
extensions:
- name: some.tool
  extension: {last: work}
clusters:
- name: c
  cluster:
    server: https://c.example:6443
    extensions: [{name: other.tool, extension: {a: [1, 2]}}]
contexts:
- {name: work, context: {cluster: c, user: u, namespace: n}}
- {name: its1, context: {cluster: c, user: u, extensions: [{name: other.tool, extension: {b: true}}]}}
- {name: other, context: {cluster: c, user: u}}
users:
- {name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: get-token, interactiveMode: Never}}}
";

/// SP-A-04: `up` right after a server was killed, while the system still clears up after it, takes it for no running one.
#[tokio::test(flavor = "multi_thread")]
async fn sp_a_04_up_right_after_a_kill() {
    let ks = Installation::new();
    ks.must(&["up", "--clusters", "1", "--listen", "127.0.0.1:0"]).await;
    for listen in [&["up"][..], &["up", "--listen", "127.0.0.1:0"]] {
        let pid = ks.pid().await;
        let killed = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        assert!(killed.expect("kill runs").success());
        ks.must(listen).await;
        assert_ne!(ks.pid().await, pid);
    }
}

/// SP-089: names of clusters and policies are completed as they are in the running installation, and without one there are none.
#[tokio::test(flavor = "multi_thread")]
async fn sp_089_names_are_completed_live() {
    let ks = Installation::new();
    let completed = async |words: &[&str]| {
        let script = format!(
            "source <(kubestellar completion bash); COMP_WORDS=(kubestellar {} ''); COMP_CWORD={}; _kubestellar_live kubestellar; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.join(" "),
            words.len() + 1
        );
        let binary = Path::new(env!("CARGO_BIN_EXE_kubestellar")).parent().unwrap().display().to_string();
        let plain = ks.command(&[]);
        let mut bash = tokio::process::Command::new("bash");
        bash.args(["-c", &script]).env_clear();
        bash.envs(plain.as_std().get_envs().filter_map(|(name, value)| Some((name, value?))));
        bash.env("PATH", format!("{binary}:/usr/bin:/bin"));
        let output = within("a completion", bash.output()).await.unwrap();
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(!completed(&["cluster", "detach"]).await.contains(&"cluster1".to_owned()));
    ks.must(&["up", "--listen", "127.0.0.1:0", "--clusters", "1"]).await;
    create(&ks.client("wds1").await, policy("tide", ("name", "cluster1"), false)).await;
    assert!(completed(&["cluster", "detach"]).await.contains(&"cluster1".to_owned()));
    assert!(completed(&["get", "status"]).await.contains(&"tide".to_owned()));
    assert!(!completed(&["cluster", "list"]).await.contains(&"cluster1".to_owned()));
}
