//! Creation, change and deletion of ControlPlanes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::world::{World, condition, gvr};

fn decoded(secret: &Value, key: &str) -> String {
    let text = secret["data"][key].as_str().unwrap_or_else(|| panic!("no {key}: {secret:#}"));
    String::from_utf8(STANDARD.decode(text).unwrap()).unwrap()
}

/// SP-011, SP-013, SP-029, SP-030, SP-033, SP-049: every embedded type gets namespace, Secret, reference and address, and all of it
/// goes with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_034_embedded_types_from_creation_to_deletion() {
    let world = World::start().await;
    for (type_, secret, key, inside) in [
        ("k8s", "admin-kubeconfig", "kubeconfig", "kubeconfig-incluster"),
        ("vcluster", "vc-vcluster", "config", "config-incluster"),
        ("k3s", "k3s-config", "config", "config-incluster"),
        ("ocm", "multicluster-controlplane-kubeconfig", "kubeconfig", "kubeconfig-incluster"),
    ] {
        let name = format!("cp-{type_}");
        world.plane(&name, json!({"type": type_})).await;
        let plane = world.until_condition(&name, "Ready", "True", "Available").await;
        assert_eq!(condition(&plane, "Synced").unwrap()["reason"], "ReconcileSuccess");
        assert_eq!(plane["metadata"]["finalizers"], json!(["kflex.kubestellar.org/finalizer"]));
        let url = format!("https://127.0.0.1:9443/spaces/{name}");
        assert_eq!(plane["metadata"]["annotations"]["space.kubestellar.io/url"], url);
        let namespace = format!("{name}-system");
        let reference = json!({"namespace": namespace, "name": secret, "key": key, "inClusterKey": inside});
        assert_eq!(plane["status"]["secretRef"], reference);
        assert_eq!(plane["status"]["observedGeneration"], plane["metadata"]["generation"]);
        let found = world.find("Secret", &namespace, secret).await.unwrap();
        for key in [key, inside] {
            let text = decoded(&found, key);
            assert!(text.contains(&url) && text.contains(&format!("{name}-admin")), "{text}");
        }
        let owner = &found["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["uid"], &owner["controller"]), (&plane["metadata"]["uid"], &json!(true)));
        world.until_event(&name, "Ready").await;

        world.delete("ControlPlane", "", &name).await;
        world.until_gone("ControlPlane", "", &name).await;
        assert!(world.spaces.deleted.lock().contains(&name), "its data");
        world.until_gone("Namespace", "", &namespace).await;
    }
    assert_eq!(world.spaces.components.lock().keys().collect::<Vec<_>>(), ["cp-ocm/ocm-hub"]);
    world.end().await;
}

/// SP-008: once everything is in place, nothing is written any more. Owned: a Secret that somebody deletes or spoils is
/// made again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_008_a_settled_control_plane_is_not_written() {
    let world = World::start().await;
    world.plane("a", json!({"type": "k8s"})).await;
    let first = world.until_condition("a", "Ready", "True", "Available").await;
    world.delete("Secret", "a-system", "admin-kubeconfig").await;
    world.until("Secret", "a-system", "admin-kubeconfig", &|found| found.is_some()).await;
    let spoilt = json!({"data": {"kubeconfig": STANDARD.encode("nonsense")}});
    world.patch("Secret", "a-system", "admin-kubeconfig", spoilt).await;
    let is_well = |found: Option<&Value>| {
        found.is_some_and(|secret| secret["data"]["kubeconfig"] == secret["data"]["kubeconfig-incluster"])
    };
    world.until("Secret", "a-system", "admin-kubeconfig", &is_well).await;
    // Passes that were caused by all this have happened: a later ControlPlane is through.
    world.plane("b", json!({"type": "k8s"})).await;
    world.until_condition("b", "Ready", "True", "Available").await;
    let last = world.find("ControlPlane", "", "a").await.unwrap();
    assert_eq!(first["metadata"]["resourceVersion"], last["metadata"]["resourceVersion"]);
    world.end().await;
}

/// SP-043, SP-051: a space that does not start is told and tried again; one that cannot be removed keeps its ControlPlane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_043_a_space_that_fails() {
    let world = World::start().await;
    *world.spaces.broken.lock() = Some("the disk is full".into());
    world.plane("a", json!({"type": "k8s"})).await;
    let plane = world.until_condition("a", "Ready", "False", "Unavailable").await;
    assert_eq!(condition(&plane, "Ready").unwrap()["message"], "the disk is full");
    assert_eq!(condition(&plane, "Synced").unwrap()["reason"], "ReconcileError");
    assert_eq!(world.until_event("a", "SyncFail").await, "the disk is full");
    *world.spaces.broken.lock() = None;
    world.until_condition("a", "Ready", "True", "Available").await;
    *world.spaces.broken.lock() = Some("the disk is full".into());
    world.delete("ControlPlane", "", "a").await;
    world.until_message("a", "Synced", "could not be removed: the disk is full").await;
    *world.spaces.broken.lock() = None;
    world.until_gone("ControlPlane", "", "a").await;
    world.end().await;
}

/// SP-045: the same name again is a new space, also if the old namespace is not gone yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_045_the_same_name_again_is_a_new_space() {
    let world = World::start().await;
    world.plane("keeper", json!({"type": "k8s"})).await;
    world.plane("a", json!({"type": "k8s"})).await;
    world.until_condition("a", "Ready", "True", "Available").await;
    let secret = world.find("Secret", "a-system", "admin-kubeconfig").await.unwrap();
    let first = decoded(&secret, "kubeconfig");
    world.delete("ControlPlane", "", "a").await;
    world.until_gone("ControlPlane", "", "a").await;
    world.plane("b", json!({"type": "k8s"})).await;
    world.until_condition("b", "Ready", "True", "Available").await;
    world.plane("a", json!({"type": "k8s"})).await;
    world.until_condition("a", "Ready", "True", "Available").await;
    let secret = world.find("Secret", "a-system", "admin-kubeconfig").await.unwrap();
    assert_ne!(decoded(&secret, "kubeconfig"), first);
    world.end().await;
}

/// SP-045: who removes the finalizer by force leaves a space without a ControlPlane. It is reported at once, and a space is opened
/// and deleted for the UID of its own ControlPlane only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_045_a_finalizer_removed_by_force() {
    let world = World::start().await;
    world.plane("a", json!({"type": "k8s"})).await;
    let first = world.until_condition("a", "Ready", "True", "Available").await;
    assert_eq!(first["metadata"]["uid"], world.spaces.owners.lock()["a"]);
    *world.spaces.broken.lock() = Some("busy".into());
    world.delete("ControlPlane", "", "a").await;
    world.until_message("a", "Synced", "busy").await;
    world.patch("ControlPlane", "", "a", json!({"metadata": {"finalizers": null}})).await;
    world.until_gone("ControlPlane", "", "a").await;
    *world.spaces.broken.lock() = None;
    testkit::wait::when("the report", || world.spaces.abandoned.lock().contains(&"a".to_owned())).await;
    world.plane("a", json!({"type": "k8s"})).await;
    let second = world.until_condition("a", "Ready", "True", "Available").await;
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    assert_eq!(second["metadata"]["uid"], world.spaces.owners.lock()["a"]);
    world.end().await;
}

/// SP-030: a namespace that was there before is not taken; the condition says what to do, and doing it is enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_030_a_namespace_that_was_there_before() {
    let world = World::start().await;
    for name in ["istio-system", "vault-system"] {
        world.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
    }
    for (name, type_) in [("istio", "k8s"), ("vault", "host")] {
        world.plane(name, json!({"type": type_})).await;
        let part = "was there before and belongs to something else";
        let plane = world.until_message(name, "Synced", part).await;
        assert_eq!(condition(&plane, "Synced").unwrap()["reason"], "ReconcileError");
        assert!(!world.spaces.open.lock().contains_key(name));
        let namespace = format!("{name}-system");
        assert!(world.find("Secret", &namespace, "admin-kubeconfig").await.is_none());
        let given = json!({"metadata": {"labels": {"kubestellar.io/control-plane": name}}});
        world.patch("Namespace", "", &namespace, given).await;
        world.until_condition(name, "Ready", "True", "Available").await;
        world.delete("ControlPlane", "", name).await;
        world.until_gone("ControlPlane", "", name).await;
        let kept = world.find("Namespace", "", &namespace).await.unwrap();
        assert!(kept["metadata"]["deletionTimestamp"].is_null(), "{kept}");
    }
    world.end().await;
}

/// SP-050: a suspended space is stopped and says so; it comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_050_suspend_and_resume() {
    let world = World::start().await;
    world.plane("a", json!({"type": "k8s"})).await;
    world.until_condition("a", "Ready", "True", "Available").await;
    let annotate =
        |value: Value| json!({"metadata": {"annotations": {"space.kubestellar.io/suspended": value}}});
    world.patch("ControlPlane", "", "a", annotate(json!("true"))).await;
    let plane = world.until_condition("a", "Synced", "True", "ReconcilePaused").await;
    assert_eq!(condition(&plane, "Ready").unwrap()["message"], "suspended");
    assert!(world.spaces.suspended.lock().contains("a"));
    world.patch("ControlPlane", "", "a", annotate(Value::Null)).await;
    world.until_condition("a", "Ready", "True", "Available").await;
    assert!(world.spaces.suspended.lock().is_empty());
    world.end().await;
}

/// SP-005, SP-032: what scripts read in the host space is there; a storage that is not there is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_032_what_a_host_space_has() {
    let world = World::start().await;
    let config = world.find("ConfigMap", "kubeflex-system", "kubeflex-config").await.unwrap();
    let expected = json!({"domain": "localtest.me", "externalPort": "9443", "isOpenShift": "false",
        "hostContainer": ""});
    assert_eq!(config["data"], expected);
    world.plane("a", json!({"type": "k8s", "backend": "dedicated"})).await;
    let plane = world.until_condition("a", "Ready", "True", "Available").await;
    let message = condition(&plane, "Synced").unwrap()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("keeps all spaces in one store"), "{message}");
    world.end().await;
}

/// SP-037, SP-054: the host as a space; several of them; deletion removes only what was made for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_037_host_control_planes() {
    let world = World::start().await;
    for name in ["wds2", "wds3"] {
        world.plane(name, json!({"type": "host"})).await;
        let plane = world.until_condition(name, "Ready", "True", "Available").await;
        assert_eq!(plane["status"]["secretRef"]["key"], "kubeconfig");
        let secret = world.find("Secret", &format!("{name}-system"), "admin-kubeconfig").await.unwrap();
        let (outside, inside) = (decoded(&secret, "kubeconfig"), decoded(&secret, "kubeconfig-incluster"));
        assert!(outside.contains("https://outside") && inside.contains("https://inside"), "{outside}");
        let binding = world.find("ClusterRoleBinding", "", &format!("{name}-binding")).await.unwrap();
        assert_eq!(binding["roleRef"]["name"], "cluster-admin");
        let namespace = format!("{name}-system");
        assert_eq!(
            binding["subjects"],
            json!([{"kind": "ServiceAccount", "name": name, "namespace": namespace}])
        );
    }
    world.delete("ControlPlane", "", "wds2").await;
    world.until_gone("ControlPlane", "", "wds2").await;
    world.until_gone("ClusterRoleBinding", "", "wds2-binding").await;
    assert!(world.find("ClusterRoleBinding", "", "wds3-binding").await.is_some());
    assert!(world.spaces.deleted.lock().is_empty());
    world.end().await;
}

/// SP-004, SP-006, SP-038: what cannot be adopted says why, crashes nothing, and can be deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_038_bootstrap_secrets_that_cannot_be_used() {
    let world = World::start().await;
    world.plane("none", json!({"type": "external"})).await;
    world.until_message("none", "Synced", "bootstrapSecretRef must be present in the control plane").await;
    let of = |secret: &str| {
        json!({"type": "external", "bootstrapSecretRef":
            {"name": secret, "namespace": "default", "inClusterKey": "kubeconfig-incluster"}})
    };
    world.plane("missing", of("missing")).await;
    world.until_message("missing", "Synced", "secrets \"missing\" not found").await;
    let exec = json!({"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"exec": {"command": "/bin/false"}}}]});
    let mut unreachable = exec.clone();
    unreachable["users"][0]["user"] = json!({"token": "t"});
    for (name, key, text, part) in [
        (
            "wrongkey",
            "other",
            "x".to_owned(),
            "kubeconfig not found in bootstrap secret for key kubeconfig-incluster",
        ),
        ("broken", "kubeconfig-incluster", "{ not: [yaml".to_owned(), "it is no kubeconfig"),
        ("exec", "kubeconfig-incluster", exec.to_string(), "it needs exec"),
        ("away", "kubeconfig-incluster", unreachable.to_string(), "on the adopted cluster"),
    ] {
        world
            .create(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"},
                "stringData": {key: text}}))
            .await;
        world.plane(name, of(name)).await;
        world.until_message(name, "Synced", part).await;
        assert!(world.find("Secret", "default", name).await.is_some(), "it is kept until it has been used");
        world.delete("ControlPlane", "", name).await;
        world.until_gone("ControlPlane", "", name).await;
    }
    world.end().await;
}

/// In a real hosting cluster the types that need a space of this process are refused with what to do; `host` waits for its
/// token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_031_a_hosting_cluster_refuses_embedded_types() {
    let world = World::in_cluster().await;
    for type_ in ["k8s", "ocm", "vcluster", "k3s"] {
        world.plane(type_, json!({"type": type_})).await;
        let plane = world.until_condition(type_, "Ready", "False", "Unavailable").await;
        let message = condition(&plane, "Synced").unwrap()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("use type external") && message.contains("kubestellar up"), "{message}");
        assert!(world.find("Namespace", "", &format!("{type_}-system")).await.is_none());
        world.delete("ControlPlane", "", type_).await;
        world.until_gone("ControlPlane", "", type_).await;
    }
    world.plane("wds2", json!({"type": "host"})).await;
    world.until_message("wds2", "Synced", "token not ready yet for service account secret wds2").await;
    let token = json!({"data": {"token": STANDARD.encode("t0ken"), "ca.crt": STANDARD.encode("CA")}});
    world.patch("Secret", "wds2-system", "wds2", token).await;
    world.until_condition("wds2", "Ready", "True", "Available").await;
    let secret = world.find("Secret", "wds2-system", "admin-kubeconfig").await.unwrap();
    assert!(decoded(&secret, "kubeconfig-incluster").contains("t0ken"));
    world.end().await;
}

/// SP-001, SP-002, SP-003: what the kinds accept and refuse.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_003_names_and_types() {
    let world = World::start().await;
    let refused = |name: String, spec: Value| {
        let rest = world.rest.clone();
        async move {
            let plane = json!({"apiVersion": "tenancy.kflex.kubestellar.org/v1alpha1", "kind": "ControlPlane",
                "metadata": {"name": name}, "spec": spec});
            let created =
                rest.create::<Value>(&gvr("ControlPlane"), "", plane.to_string().into_bytes()).await;
            runtime::failure::message_of(&created.unwrap_err())
        }
    };
    assert!(
        refused("kubeflex".into(), json!({"type": "k8s"})).await.contains("the name kubeflex is reserved")
    );
    let long = refused("a".repeat(57), json!({"type": "k8s"})).await;
    assert!(long.contains("must not be longer than 56"), "{long}");
    assert!(refused("a".into(), json!({})).await.contains("spec.type"));
    assert!(refused("a".into(), json!({"type": "kcp"})).await.contains("Unsupported value"));
    world.plane("a", json!({"type": "k8s"})).await;
    let found = world.find("ControlPlane", "", "a").await.unwrap();
    assert_eq!(found["spec"]["tokenExpirationSeconds"], 31_536_000);
    let patch = json!({"spec": {"type": "k3s"}});
    let changed = world.rest.merge::<Value>(&gvr("ControlPlane"), "", "a", &patch).await.unwrap_err();
    let message = runtime::failure::message_of(&changed);
    assert!(message.contains("type is immutable; delete and recreate the ControlPlane"), "{message}");
    world.end().await;
}
