//! Joining a hub, and what a cluster reports about itself.

use runtime::failure::code_of;
use runtime::rest::Removal;
use serde_json::{Value, json};

use crate::world::{
    ACCEPTED, AVAILABLE, BOOTSTRAP, CLOCK, JOINED, RIGHTS, UNREACHABLE, World, condition, create, gvr,
    taints, trusting, until,
};

/// OCM-A-01, OCM-030, OCM-035, OCM-036, OCM-044, OCM-045, OCM-046, OCM-047, OCM-053: a cluster joins with
/// manual approval, both by an administrator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_01_join_with_manual_approval() {
    let w = World::start(|_| ()).await;
    let agent = w.agent(1, "c1", |config| {
        let annotations = [("agent.open-cluster-management.io/foo", "bar"), ("other", "x")];
        config.annotations = annotations.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    });
    until("the taint and the finalizer", || async {
        w.cluster("c1").await.is_some_and(|c| {
            taints(&c) == [UNREACHABLE]
                && c["metadata"]["finalizers"]
                    == json!(["cluster.open-cluster-management.io/resource-cleanup"])
        })
    })
    .await;
    let cluster = w.cluster("c1").await.expect("c1");
    assert_eq!(cluster["spec"]["hubAcceptsClient"], false);
    assert_eq!(condition(&cluster, ACCEPTED), Value::Null);
    assert_eq!(
        cluster["metadata"]["annotations"],
        json!({"agent.open-cluster-management.io/foo": "bar"}),
        "OCM-A-31"
    );
    until("a request", || async { w.requests("c1").await.len() == 1 }).await;
    let request = w.requests("c1").await.remove(0);
    let name = request["metadata"]["name"].as_str().expect("a name");
    assert!(name.starts_with("c1-") && name.len() == 8, "{name}");
    assert_eq!(request["spec"]["signerName"], "kubernetes.io/kube-apiserver-client");
    assert_eq!(request["spec"]["usages"], json!(["digital signature", "key encipherment", "client auth"]));
    assert_eq!(request["spec"]["username"], BOOTSTRAP);
    assert!(request["status"].get("conditions").is_none());
    assert!(!w.exists("namespaces", "", "c1").await);

    w.accept("c1", true).await;
    w.until_condition("c1", ACCEPTED, "True").await;
    for (plural, namespace, name) in RIGHTS {
        assert!(w.exists(plural, namespace, name).await, "{plural} {name}");
    }
    let mailbox: Value = w.hub().get(&gvr("namespaces"), "", "c1").await.expect("a mailbox");
    assert_eq!(mailbox["metadata"]["labels"]["open-cluster-management.io/cluster-name"], "c1");
    until("a lease", || w.exists("leases", "c1", "managed-cluster-lease")).await;
    let lease: Value = w.hub().get(&gvr("leases"), "c1", "managed-cluster-lease").await.expect("a lease");
    assert_eq!(lease["metadata"]["labels"]["open-cluster-management.io/cluster-name"], "c1");
    assert_eq!(lease["spec"]["holderIdentity"], "managed-cluster-lease");
    assert!(w.secret(1).await.is_none());

    w.approve("c1").await;
    w.until_condition("c1", AVAILABLE, "True").await;
    w.until_condition("c1", JOINED, "True").await;
    w.until_condition("c1", CLOCK, "True").await;
    until("no taint", || async { taints(&w.cluster("c1").await.expect("c1")).is_empty() }).await;
    let secret = w.secret(1).await.expect("a secret");
    let keys: Vec<&String> = secret["data"].as_object().expect("data").keys().collect();
    assert_eq!(keys, ["agent-name", "cluster-name", "kubeconfig", "tls.crt", "tls.key"]);
    assert_eq!(w.requests("c1").await.len(), 1);
    let version = w.cluster("c1").await.expect("c1")["status"]["version"]["kubernetes"].clone();
    assert!(version.as_str().is_some_and(|v| v.starts_with('v')), "{version}");

    // OCM-A-11: after a restart it continues with the stored identity.
    let before = w.secret(1).await;
    agent.end().await;
    let mut again = w.agent(1, "c1", |_| ());
    again.joined.wait_for(|yes| *yes).await.expect("joined");
    again.rest().get::<Value>(&gvr("managedclusters"), "", "c1").await.expect("its credential is good");
    assert_eq!(w.secret(1).await, before);
    assert_eq!(w.requests("c1").await.len(), 1);
    again.end().await;
    w.end().await;
}

/// OCM-010: a ManagedCluster as OCM's clients know it: defaults, what is refused, and the columns of kubectl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_010_the_kind_of_clusters() {
    let w = World::start(|_| ()).await;
    let cluster = |name: &str, spec: Value| {
        json!({"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
            "metadata": {"name": name}, "spec": spec})
    };
    let hub = w.hub();
    let made = create(&hub, &gvr("managedclusters"), "", cluster("c1", json!({}))).await.expect("a cluster");
    assert_eq!(made["spec"]["hubAcceptsClient"], false, "it is always said");
    assert_eq!(made["spec"]["leaseDurationSeconds"], 60);
    let taint = |taint: Value| json!({"taints": [taint]});
    let specs = [
        (json!({"leaseDurationSeconds": 0}), true),
        (json!({"managedClusterClientConfigs": [{"url": "https://x", "caBundle": "eA=="}]}), true),
        (json!({"managedClusterClientConfigs": [{"caBundle": "eA=="}]}), false),
        (taint(json!({"key": "a.io/b", "effect": "NoSelectIfNew", "value": "x"})), true),
        (taint(json!({"key": "a.io/b", "effect": "Never"})), false),
        (taint(json!({"key": "-", "effect": "NoSelect"})), false),
        (taint(json!({"effect": "NoSelect"})), false),
        (taint(json!({"key": "a"})), false),
    ];
    for (index, (spec, good)) in specs.into_iter().enumerate() {
        let one = cluster(&format!("other{index}"), spec);
        let answer = create(&hub, &gvr("managedclusters"), "", one).await;
        assert_eq!(answer.as_ref().err().map(code_of), (!good).then_some(422), "{index}: {answer:?}");
    }
    let request = http::Request::get("/apis/cluster.open-cluster-management.io/v1/managedclusters/c1")
        .header("accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
        .body(Vec::new())
        .expect("a request");
    let table: Value = hub.client().request(request).await.expect("a table");
    let columns: Vec<&str> = table["columnDefinitions"]
        .as_array()
        .expect("columns")
        .iter()
        .filter_map(|c| c["name"].as_str())
        .collect();
    assert_eq!(columns, ["Name", "Hub Accepted", "Managed Cluster URLs", "Joined", "Available", "Age"]);
    w.end().await;
}

/// OCM-A-02, OCM-A-03: the certificate may come first, and nothing is reported until the cluster is accepted.
/// A ManagedCluster that an administrator created beforehand is used as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_02_either_order() {
    let w = World::start(|_| ()).await;
    let mut agent = w.agent(1, "c1", |_| ());
    w.approve("c1").await;
    agent.joined.wait_for(|yes| *yes).await.expect("a certificate");
    assert_eq!(condition(&w.cluster("c1").await.expect("c1"), JOINED), Value::Null);
    w.accept("c1", true).await;
    w.until_condition("c1", AVAILABLE, "True").await;

    let made = json!({"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
        "metadata": {"name": "c2", "labels": {"mine": "yes"}}, "spec": {"hubAcceptsClient": true}});
    let made = create(&w.hub(), &gvr("managedclusters"), "", made).await.expect("c2");
    let second = w.agent(2, "c2", |_| ());
    w.approve("c2").await;
    w.until_condition("c2", AVAILABLE, "True").await;
    let joined = w.cluster("c2").await.expect("c2");
    assert_eq!(joined["metadata"]["uid"], made["metadata"]["uid"]);
    assert_eq!(joined["metadata"]["labels"]["mine"], "yes");
    agent.end().await;
    second.end().await;
    w.end().await;
}

/// OCM-A-12, OCM-A-16: a second agent with a cluster's name gets a certificate of its own and has no effect
/// on the first. An agent that is started with another cluster's name joins as that. A corrupted Secret is
/// repaired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_12_other_names() {
    let w = World::start(trusting).await;
    let (one, mut two) = (w.agent(1, "c1", |_| ()), w.agent(2, "c1", |_| ()));
    w.until_condition("c1", AVAILABLE, "True").await;
    two.joined.wait_for(|yes| *yes).await.expect("joined");
    let name = |secret: Option<Value>| secret.expect("a secret")["data"]["agent-name"].clone();
    assert_ne!(name(w.secret(1).await), name(w.secret(2).await));
    let broken = json!({"data": {"kubeconfig": "Pz8="}});
    let namespace = "open-cluster-management-agent";
    let before = w.secret(1).await.expect("a secret");
    w.admin(1)
        .merge::<Value>(&gvr("secrets"), namespace, "hub-kubeconfig-secret", &broken)
        .await
        .expect("broken");
    until("it is mended", || async {
        w.secret(1).await.expect("a secret")["data"]["kubeconfig"] == before["data"]["kubeconfig"]
    })
    .await;
    two.end().await;
    let two = w.agent(2, "c2", |_| ());
    w.until_condition("c2", AVAILABLE, "True").await;
    let requests = w.requests("c2").await;
    assert_eq!(requests.len(), 1);
    one.end().await;
    two.end().await;
    w.end().await;
}

/// OCM-A-23, OCM-A-24: claims reach the hub once the cluster has joined, and follow changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_23_claims() {
    let w = World::start(trusting).await;
    let claim = |name: &str, value: &str| {
        json!({"apiVersion": "cluster.open-cluster-management.io/v1alpha1", "kind": "ClusterClaim",
            "metadata": {"name": name}, "spec": {"value": value}})
    };
    let spoke = w.admin(1);
    create(&spoke, &gvr("clusterclaims"), "", claim("zone", "north")).await.expect("a claim");
    let agent = w.agent(1, "c1", |_| ());
    let claims = || async { w.cluster("c1").await.unwrap_or_default()["status"]["clusterClaims"].clone() };
    until("the claim", || async { claims().await == json!([{"name": "zone", "value": "north"}]) }).await;
    create(&spoke, &gvr("clusterclaims"), "", claim("id.k8s.io", "x")).await.expect("a claim");
    until("both", || async {
        claims().await == json!([{"name": "id.k8s.io", "value": "x"}, {"name": "zone", "value": "north"}])
    })
    .await;
    spoke.delete(&gvr("clusterclaims"), "", "zone", &Removal::default()).await.expect("deleted");
    until("one", || async { claims().await == json!([{"name": "id.k8s.io", "value": "x"}]) }).await;
    agent.end().await;
    w.end().await;
}
