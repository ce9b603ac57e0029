//! Volumes, debuggers and proxies of a simulated cluster, as clients see them.

use serde_json::{Value, json};

use crate::workloads::{CORE, Cluster};

/// A claim is bound, and goes with the volume that was made for it, also while a simulation that did not see it begins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_are_bound_and_go() {
    let s = Cluster::start().await;
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    s.post(&format!("{CORE}/persistentvolumeclaims"), claim).await;
    let at = format!("{CORE}/persistentvolumeclaims/data");
    let bound = s.until(&at, |claim| claim["status"]["phase"] == "Bound").await;
    assert_eq!(bound["status"]["capacity"]["storage"], "1Gi");
    let volume = format!("/api/v1/persistentvolumes/{}", bound["spec"]["volumeName"].as_str().unwrap());
    let made = s.get(&volume).await.unwrap();
    assert_eq!(
        (&made["status"]["phase"], &made["spec"]["claimRef"]["name"]),
        (&json!("Bound"), &json!("data"))
    );
    s.delete(&at).await;
    s.until_gone(&at).await;
    s.until_gone(&volume).await;
    s.stop().await;
}

/// What `kubectl debug` waits for comes, and proxies say that nothing runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn debuggers_end_and_proxies_say_why() {
    let s = Cluster::start().await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "registry.example/app:1"}]}});
    s.post(&format!("{CORE}/pods"), pod).await;
    let at = format!("{CORE}/pods/web");
    s.until(&at, |pod| pod["status"]["phase"] == "Running").await;
    let debugger = json!({"spec": {"ephemeralContainers": [{"name": "debugger", "image": "busybox"}]}});
    s.patch(&format!("{at}/ephemeralcontainers"), debugger).await;
    let ended =
        |pod: &Value| pod["status"]["ephemeralContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0;
    let pod = s.until(&at, ended).await;
    assert_eq!(pod["status"]["phase"], "Running");

    let service = |name: &str, app: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": {"app": app}, "ports": [{"port": 80}]}})
    };
    for (name, app) in [("web", "web"), ("none", "none")] {
        s.post(&format!("{CORE}/services"), service(name, app)).await;
    }
    s.until(&format!("{CORE}/endpoints/web"), |it| !it["subsets"].as_array().is_none_or(Vec::is_empty)).await;
    let node = "/api/v1/nodes/wec-node".to_owned();
    for (path, said) in [
        (format!("{CORE}/services/web"), "this cluster is simulated: nothing runs behind service web"),
        (node, "this cluster is simulated: nothing runs behind node wec-node"),
        (format!("{CORE}/services/none"), "no endpoints available"),
    ] {
        let request = http::Request::get(format!("{path}/proxy/")).body(Vec::new()).unwrap();
        let refused = s.client.request::<Value>(request).await.unwrap_err();
        assert!(refused.to_string().contains(said), "{path}: {refused}");
    }
    s.stop().await;
}
