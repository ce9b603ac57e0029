//! Charts that Helm installs in a WDS (KS-A-12).

use kube::Client;
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams, PostParams};
use serde_json::{Value, json};

use super::scenarios::{DEPLOYMENT, EDGE, Spaces, WECS, delete, labelled, of, patch, policy};
use crate::support::{Installation, config_map, create, deployment, dynamic, namespace, until_one};

const SECRET: (&str, &str) = ("v1", "Secret");
const HELM: &str = "app.kubernetes.io/instance=ledger";

/// What Helm puts on every object of a release, and on its Secrets.
fn released(mut object: Value) -> Value {
    object["metadata"]["labels"] = json!({
        "app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/instance": "ledger",
        "app.kubernetes.io/name": "ledger", "helm.sh/chart": "ledger-1.2.3",
    });
    object["metadata"]["annotations"] =
        json!({"meta.helm.sh/release-name": "ledger", "meta.helm.sh/release-namespace": "ledger"});
    object
}

/// As Helm keeps a release: compressed and encoded, under its own labels only.
fn release(version: u32, status: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1",
        "metadata": {"name": format!("sh.helm.release.v1.ledger.v{version}"), "namespace": "ledger", "labels": {
            "owner": "helm", "name": "ledger", "status": status, "version": version.to_string(),
            "modifiedAt": "1767225600",
        }},
        "data": {"release": "SDRzSUFBQUFBQUFDLzZ0V3lrM056VXhSc2xKSzFDMktVZEpSS2s0dEtrdk5TMDVWcWdVQQ=="},
    })
}

/// The labels of what belongs to the release.
fn of_release() -> Value {
    json!({"app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/instance": "ledger"})
}

/// A policy that delivers the release by its labels, and the namespace that it goes into.
async fn delivered(all: &Spaces) {
    let clause = json!({"objectSelectors": [{"matchLabels": of_release()}]});
    create(&all.wds, policy("ledger", &of(EDGE.0, EDGE.1), clause)).await;
    let mut place = namespace("ledger");
    place["metadata"]["labels"] = of_release();
    create(&all.wds, place).await;
}

/// KS-A-12: a Helm release by the labels of its objects. What a chart makes arrives with the labels and annotations by which
/// Helm knows it again; the release's Secret stays behind until it is labelled, and then `helm list` finds it in each
/// cluster; an upgrade follows, and uninstalling takes everything away.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_12_a_helm_release() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0"]).await;
    let all = Spaces::of(&ks).await;
    delivered(&all).await;

    // helm install: the release first, then the objects in Helm's order.
    create(&all.wds, release(1, "deployed")).await;
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "ledger", "namespace": "ledger"},
        "spec": {"selector": {"app": "ledger"}, "ports": [{"port": 80}]}});
    for object in [config_map("ledger", "settings", "1"), service, deployment("ledger", "ledger")] {
        create(&all.wds, released(object)).await;
    }
    all.arrive(&WECS, DEPLOYMENT, HELM, &["ledger/ledger"]).await;
    all.arrive(&WECS, ("v1", "Service"), HELM, &["ledger/ledger"]).await;
    all.arrive(&WECS, ("v1", "ConfigMap"), HELM, &["ledger/settings"]).await;
    for wec in all.wecs.values() {
        let there = dynamic(wec, DEPLOYMENT.0, DEPLOYMENT.1, Some("ledger")).get("ledger").await.unwrap();
        assert_eq!(there.annotations()["meta.helm.sh/release-name"], "ledger");
        assert_eq!(there.annotations()["meta.helm.sh/release-namespace"], "ledger");
        // The objects came after it, and it was not among them: helm list shows nothing.
        let kept = dynamic(wec, SECRET.0, SECRET.1, Some("ledger"));
        assert!(
            !kept.list(&ListParams::default()).await.unwrap().iter().any(|it| labelled(it, "owner=helm"))
        );
    }

    let taken = json!({"metadata": {"labels": of_release()}});
    patch(&all.wds, SECRET, Some("ledger"), "sh.helm.release.v1.ledger.v1", taken.clone()).await;
    let releases = |names: &'static [&'static str]| all.arrive(&WECS, SECRET, "owner=helm", names);
    releases(&["ledger/sh.helm.release.v1.ledger.v1"]).await;
    for wec in all.wecs.values() {
        let secrets = dynamic(wec, SECRET.0, SECRET.1, Some("ledger"));
        let there = secrets.get("sh.helm.release.v1.ledger.v1").await.unwrap();
        assert_eq!(there.data["type"], "helm.sh/release.v1");
        assert_eq!(there.data["data"], release(1, "deployed")["data"], "byte for byte");
        assert!(labelled(&there, "name=ledger") && labelled(&there, "status=deployed"));
    }

    // helm upgrade: another revision, the old one superseded, and the objects patched.
    create(&all.wds, release(2, "deployed")).await;
    let old = "sh.helm.release.v1.ledger.v1";
    patch(&all.wds, SECRET, Some("ledger"), old, json!({"metadata": {"labels": {"status": "superseded"}}}))
        .await;
    patch(&all.wds, SECRET, Some("ledger"), "sh.helm.release.v1.ledger.v2", taken).await;
    patch(&all.wds, ("v1", "ConfigMap"), Some("ledger"), "settings", json!({"data": {"value": "2"}})).await;
    releases(&["ledger/sh.helm.release.v1.ledger.v1", "ledger/sh.helm.release.v1.ledger.v2"]).await;
    for (name, wec) in &all.wecs {
        let maps = dynamic(wec, "v1", "ConfigMap", Some("ledger"));
        until_one(&maps, "settings", name, |it| it.data["data"]["value"] == "2").await;
        let secrets = dynamic(wec, SECRET.0, SECRET.1, Some("ledger"));
        until_one(&secrets, old, name, |it| labelled(it, "status=superseded")).await;
    }

    // helm uninstall.
    for version in [1, 2] {
        delete(&all.wds, SECRET, Some("ledger"), &format!("sh.helm.release.v1.ledger.v{version}")).await;
    }
    for (kind, name) in
        [(DEPLOYMENT, "ledger"), (("v1", "Service"), "ledger"), (("v1", "ConfigMap"), "settings")]
    {
        delete(&all.wds, kind, Some("ledger"), name).await;
    }
    releases(&[]).await;
    for kind in [DEPLOYMENT, ("v1", "Service"), ("v1", "ConfigMap")] {
        all.arrive(&WECS, kind, HELM, &[]).await;
    }
    server.stop().await;
}

/// KS-A-12, the option to do it automatically: without it a release's Secret stays at home; `up --label-helm-releases`, also on a
/// server that runs, labels it, so that it arrives with its chart in all clusters; a revision that Helm writes anew under its own
/// labels only is labelled again; and so it goes on after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_12_releases_are_labelled_where_that_is_asked_for() {
    const V: [&str; 3] =
        ["sh.helm.release.v1.ledger.v1", "sh.helm.release.v1.ledger.v2", "sh.helm.release.v1.ledger.v3"];
    const THERE: [&str; 3] = [
        "ledger/sh.helm.release.v1.ledger.v1",
        "ledger/sh.helm.release.v1.ledger.v2",
        "ledger/sh.helm.release.v1.ledger.v3",
    ];
    let ks = Installation::new();
    ks.must(&["up", "--listen", "127.0.0.1:0"]).await;
    let all = Spaces::of(&ks).await;
    delivered(&all).await;
    create(&all.wds, release(1, "deployed")).await;
    create(&all.wds, released(config_map("ledger", "settings", "1"))).await;
    all.arrive(&WECS, ("v1", "ConfigMap"), HELM, &["ledger/settings"]).await;
    let at_home = dynamic(&all.wds, SECRET.0, SECRET.1, Some("ledger"));
    assert!(!labelled(&at_home.get(V[0]).await.unwrap(), HELM), "nobody asked for it");
    for wec in all.wecs.values() {
        let there = dynamic(wec, SECRET.0, SECRET.1, Some("ledger")).get_opt(V[0]).await.unwrap();
        assert!(there.is_none(), "{there:?}");
    }

    ks.must(&["up", "--label-helm-releases"]).await;
    all.arrive(&WECS, SECRET, HELM, &THERE[..1]).await;
    for wec in all.wecs.values() {
        let there = dynamic(wec, SECRET.0, SECRET.1, Some("ledger")).get(V[0]).await.unwrap();
        assert_eq!(there.data["type"], "helm.sh/release.v1");
        assert_eq!(there.data["data"], release(1, "deployed")["data"], "byte for byte");
        assert!(labelled(&there, "owner=helm") && labelled(&there, "name=ledger"));
    }

    // helm upgrade: a revision to come, then the old one superseded, then the new one deployed.
    create(&all.wds, release(2, "pending-upgrade")).await;
    rewritten(&all.wds, 1, "superseded").await;
    rewritten(&all.wds, 2, "deployed").await;
    settled(&all, &[(V[0], "status=superseded"), (V[1], "status=deployed")]).await;
    all.arrive(&WECS, SECRET, HELM, &THERE[..2]).await;

    ks.must(&["down"]).await;
    ks.must(&["up"]).await;
    let all = Spaces::of(&ks).await;
    create(&all.wds, release(3, "pending-upgrade")).await;
    rewritten(&all.wds, 2, "superseded").await;
    rewritten(&all.wds, 3, "deployed").await;
    let history = [(V[0], "status=superseded"), (V[1], "status=superseded"), (V[2], "status=deployed")];
    settled(&all, &history).await;
    all.arrive(&WECS, SECRET, HELM, &THERE).await;

    for name in V {
        delete(&all.wds, SECRET, Some("ledger"), name).await;
    }
    all.arrive(&WECS, SECRET, "owner=helm", &[]).await;
    ks.must(&["down"]).await;
}

/// As Helm writes a revision anew: whole, with its own labels, whatever there is.
async fn rewritten(wds: &Client, version: u32, status: &str) {
    let object: DynamicObject = serde_json::from_value(release(version, status)).unwrap();
    let secrets = dynamic(wds, SECRET.0, SECRET.1, Some("ledger"));
    secrets.replace(&object.name_any(), &PostParams::default(), &object).await.unwrap();
}

/// Waits until these revisions are in each cluster, in that state and labelled.
async fn settled(all: &Spaces, revisions: &[(&str, &str)]) {
    for (cluster, wec) in &all.wecs {
        let secrets = dynamic(wec, SECRET.0, SECRET.1, Some("ledger"));
        for (name, status) in revisions {
            let what = format!("{name} with {status} in {cluster}");
            until_one(&secrets, name, &what, |it| labelled(it, status) && labelled(it, HELM)).await;
        }
    }
}
