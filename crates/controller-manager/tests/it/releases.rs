//! Labels of Helm's releases, with a whole space in memory.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use kube::{Client, Error};
use kubestellar_controller_manager::{Config, releases};
use runtime::{
    Ready,
    metrics::Metrics,
    rest::{Gvr, Removal, Rest},
};
use serde_json::{Value, json};
use store::Engine;
use testkit::side::Side;
use tokio_util::sync::CancellationToken;

const RELEASE: &str = "helm.sh/release.v1";

struct Scene {
    side: Side,
    rest: Rest,
    secrets: Gvr,
    _data: tempfile::TempDir,
}

impl Scene {
    async fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        let side = Side::start(&Engine::in_memory(), data.path(), "wds1").await;
        let rest = Rest::new(side.client.clone());
        Self { side, rest, secrets: Gvr::new("", "v1", "secrets"), _data: data }
    }

    fn client(&self) -> Client {
        self.rest.client().clone()
    }

    async fn create(&self, secret: Value) -> Value {
        let body = secret.to_string().into_bytes();
        self.rest.create(&self.secrets, "default", body).await.unwrap()
    }

    async fn get(&self, name: &str) -> Option<Value> {
        self.rest.find(&self.secrets, "default", name).await.unwrap()
    }

    /// Waits until a Secret has the labels; checks again at every change of the space.
    async fn labelled(&self, name: &str) -> Value {
        let path = format!("/api/v1/namespaces/default/secrets/{name}");
        self.side.until(&path, is_labelled).await
    }

    fn revision(&self) -> u64 {
        self.side.space.server().store().revision().to_string().parse().unwrap()
    }
}

fn is_labelled(secret: &Value) -> bool {
    let labels = &secret["metadata"]["labels"];
    labels["app.kubernetes.io/managed-by"] == "Helm" && labels["app.kubernetes.io/instance"] == "ledger"
}

fn name(version: u32) -> String {
    format!("sh.helm.release.v1.ledger.v{version}")
}

/// A release as Helm writes it.
fn release(version: u32, status: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": RELEASE,
        "metadata": {"name": name(version), "namespace": "default", "labels": {
            "owner": "helm", "name": "ledger", "status": status, "version": version.to_string()}},
        "data": {"release": "SDRzSUFBQUFBQUFD"},
    })
}

/// KS-A-12: one write labels each revision of a release, existing and new ones, and again when Helm writes it
/// without the labels. Nothing else is changed, whatever it looks like.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ks_a_12_each_revision_is_labelled_once() {
    let scene = Scene::new().await;
    let mut has = release(1, "superseded");
    has["metadata"]["labels"]["app.kubernetes.io/managed-by"] = json!("Helm");
    has["metadata"]["labels"]["app.kubernetes.io/instance"] = json!("ledger");
    scene.create(has).await;
    scene.create(release(2, "superseded")).await;
    let mut opaque = release(3, "deployed");
    opaque["type"] = json!("Opaque");
    let opaque = scene.create(opaque).await;
    let mut other = release(4, "deployed");
    other["metadata"]["labels"]["owner"] = json!("me");
    let other = scene.create(other).await;
    let mut going = release(5, "uninstalling");
    going["metadata"]["finalizers"] = json!(["example.com/hold"]);
    scene.create(going).await;
    scene.rest.delete(&scene.secrets, "default", &name(5), &Removal::default()).await.unwrap();
    let going = scene.get(&name(5)).await.unwrap();

    let before = scene.revision();
    let (stop, ready) = (CancellationToken::new(), Ready::new(false));
    let mut works = ready.subscribe();
    let running =
        tokio::spawn(releases::run(scene.client(), "wds1", Metrics::default(), ready, stop.clone()));
    works.wait_for(|ready| *ready).await.unwrap();
    scene.labelled(&name(2)).await;

    // An upgrade as Helm does it: the new revision, and a write of the old one.
    scene.create(release(6, "deployed")).await;
    scene.labelled(&name(6)).await;
    let body = release(2, "superseded-again").to_string().into_bytes();
    scene.rest.replace::<Value>(&scene.secrets, "default", &name(2), body).await.unwrap();
    let again = scene.labelled(&name(2)).await;
    assert_eq!(again["metadata"]["labels"]["status"], "superseded-again");
    assert_eq!(again["data"], release(2, "")["data"], "nothing but labels");

    // A Secret that is certainly processed last, so that everything before it is done.
    scene.create(release(7, "deployed")).await;
    scene.labelled(&name(7)).await;
    stop.cancel();
    running.await.unwrap().unwrap();
    for left in [opaque, other, going] {
        let name = left["metadata"]["name"].as_str().unwrap();
        assert_eq!(scene.get(name).await.unwrap(), left, "stays as it is");
    }
    assert_eq!(scene.revision() - before, 3 + 4, "three writes of ours, and four that were needed");
    scene.side.space.stop().await;
}

/// KS-A-12: the controller manager labels releases if that is switched on, whatever its other controllers do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ks_a_12_the_controller_manager_labels_if_told() {
    let scene = Scene::new().await;
    scene.create(release(1, "deployed")).await;
    let stop = CancellationToken::new();
    let config = Config { label_helm_releases: true, ..Config::new("wds1", "its1") };
    // There are no clusters here; the binding controller waits for them.
    let running = tokio::spawn(kubestellar_controller_manager::run(
        scene.client(),
        scene.client(),
        config,
        stop.clone(),
    ));
    scene.labelled(&name(1)).await;
    stop.cancel();
    running.await.unwrap().unwrap();
    scene.side.space.stop().await;
}

/// A patch that is answered with metadata only does not return the rest of the object.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_patch_may_be_answered_with_metadata() {
    let scene = Scene::new().await;
    scene.create(release(1, "deployed")).await;
    let patch = json!({"metadata": {"labels": {"a": "b"}}});
    let answer: Value = scene.rest.merge_metadata(&scene.secrets, "default", &name(1), &patch).await.unwrap();
    assert_eq!(answer["kind"], "PartialObjectMetadata");
    assert_eq!(answer["metadata"]["labels"]["a"], "b");
    assert!(answer.get("data").is_none(), "{answer}");
    let wrong = json!({"metadata": {"uid": "another", "labels": {"a": "c"}}});
    let refused = scene.rest.merge_metadata::<Value>(&scene.secrets, "default", &name(1), &wrong).await;
    assert!(
        matches!(&refused, Err(Error::Api(status)) if status.code == 422),
        "another incarnation: {refused:?}"
    );
    scene.side.space.stop().await;
}
