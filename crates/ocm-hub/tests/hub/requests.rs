//! Signing requests of agents: renewed in time, repeated, and limited.

use std::sync::atomic::Ordering;

use runtime::rest::Removal;
use serde_json::{Value, json};

use crate::world::{AVAILABLE, BOOTSTRAP, World, create, gvr, trusting, until};

/// OCM-A-07, OCM-037, OCM-039, OCM-057: near its end the certificate is renewed by the agent itself, approved
/// by the hub, and used. OCM-A-15, OCM-034: after its end, the agent joins again within the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_07_rotation_and_expiry() {
    let w = World::start(trusting).await;
    let agent = w.agent(1, "c1", |config| config.certificate_seconds = Some(3600));
    w.until_condition("c1", AVAILABLE, "True").await;
    let first = w.secret(1).await.expect("a secret");
    agent.end().await;
    // Certificates from now on are valid for days, so that it renews once.
    let mut agent = w.agent(1, "c1", |config| config.certificate_seconds = Some(200_000));
    // 3900 s of lifetime including the backdating; less than a fifth of that is left.
    agent.ahead.store(3000, Ordering::SeqCst);
    until("another certificate", || async {
        w.secret(1).await.expect("a secret")["data"]["tls.crt"] != first["data"]["tls.crt"]
    })
    .await;
    let requests = w.requests("c1").await;
    let own = requests.iter().filter(|r| r["spec"]["username"].to_string().contains(":c1:")).count();
    assert_eq!(own, 1, "renewed under its own name: {requests:?}");
    w.until_condition("c1", "ClusterCertificateRotated", "True").await;
    let second = w.secret(1).await.expect("a secret");
    assert_eq!(second["data"]["agent-name"], first["data"]["agent-name"]);
    assert_ne!(second["data"]["tls.key"], first["data"]["tls.key"]);
    agent.rest().get::<Value>(&gvr("managedclusters"), "", "c1").await.expect("the new one is good");

    let by_bootstrap = |all: &[Value]| all.iter().filter(|r| r["spec"]["username"] == BOOTSTRAP).count();
    let before = by_bootstrap(&w.requests("c1").await);
    agent.ahead.store(300_000, Ordering::SeqCst);
    until("a request by the bootstrap identity", || async { by_bootstrap(&w.requests("c1").await) > before })
        .await;
    agent.ahead.store(0, Ordering::SeqCst);
    agent.joined.wait_for(|yes| *yes).await.expect("joined");
    until("it works again", || async {
        agent.rest().get::<Value>(&gvr("managedclusters"), "", "c1").await.is_ok()
    })
    .await;
    agent.end().await;
    w.end().await;
}

/// OCM-A-08, OCM-A-09, OCM-A-10, OCM-038: there are at most ten requests; the agent waits on a denied one; a
/// deleted one is requested again with another key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_09_requests_that_come_to_nothing() {
    let w = World::start(|_| ()).await;
    let mut agent = w.agent(1, "c1", |_| ());
    until("a request", || async { w.requests("c1").await.len() == 1 }).await;
    let first = w.requests("c1").await.remove(0);
    let name = first["metadata"]["name"].as_str().expect("a name");
    let request = serde_json::from_value(first.clone()).expect("a request");
    let verdict = json!({"type": "Denied", "status": "True", "reason": "Admin", "message": "no"});
    ocm_shared::bootstrap::approve(&w.hub(), &request, verdict).await.expect("denied");
    agent.looked().await;
    assert_eq!(w.requests("c1").await.len(), 1);
    w.hub().delete(&gvr("certificatesigningrequests"), "", name, &Removal::default()).await.expect("deleted");
    until("another request", || async { w.requests("c1").await.len() == 1 }).await;
    let second = w.requests("c1").await.remove(0);
    assert_ne!(second["spec"]["request"], first["spec"]["request"]);
    agent.end().await;

    for _ in 0..10 {
        let mut copy = second.clone();
        copy["metadata"] =
            json!({"generateName": "c2-", "labels": {"open-cluster-management.io/cluster-name": "c2"}});
        copy["status"] = json!({});
        create(&w.hub(), &gvr("certificatesigningrequests"), "", copy).await.expect("a request");
    }
    // Decided or not: the hub must first delete some.
    let one = w.requests("c2").await.remove(0);
    let request = serde_json::from_value(one).expect("a request");
    let verdict = json!({"type": "Denied", "status": "True", "reason": "Admin", "message": "no"});
    ocm_shared::bootstrap::approve(&w.hub(), &request, verdict).await.expect("denied");
    let mut agent = w.agent(2, "c2", |_| ());
    until("the ManagedCluster", || async { w.cluster("c2").await.is_some() }).await;
    agent.looked().await;
    assert_eq!(w.requests("c2").await.len(), 10);
    let one = w.requests("c2").await.remove(0);
    let name = one["metadata"]["name"].as_str().expect("a name");
    w.hub().delete(&gvr("certificatesigningrequests"), "", name, &Removal::default()).await.expect("deleted");
    until("a request of the agent", || async {
        w.requests("c2").await.iter().any(|r| r["spec"]["username"] == BOOTSTRAP)
    })
    .await;
    agent.end().await;
    w.end().await;
}

/// OCM-039: an agent with the right to renew gets a certificate for itself and for nobody else.
///
/// CVE-2026-4740: OCM's hub approved renewals without checking all of the requested subject.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_039_cve_2026_4740_a_forged_renewal_is_not_approved() {
    let (w, agent) = World::joined().await;
    let rest = agent.rest();
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let reviews = runtime::rest::Gvr::new("authentication.k8s.io", "v1", "selfsubjectreviews");
    let me = create(&rest, &reviews, "", review).await.expect("a review")["status"]["userInfo"]["username"]
        .clone();
    let me = me.as_str().expect("a name");
    let (own, all) = ("system:open-cluster-management:c1", "system:open-cluster-management:managed-clusters");
    let other = "system:open-cluster-management:c2";
    let of_other = format!("{other}:agent");
    let nested = format!("{me}:x");
    let forged: [(&str, &str, &[&str]); 12] = [
        ("c2", &of_other, &[other, all]),
        ("c1", &of_other, &[other, all]),
        ("c1", &of_other, &[own, all]),
        ("c1", me, &[other, all]),
        ("c1", me, &[own, other, all]),
        ("c1", me, &[own, all, "system:masters"]),
        ("c1", me, &[own, "system:masters"]),
        ("c1", me, &["system:masters"]),
        ("c1", me, &[own, all, all]),
        ("c1", "system:admin", &[own, all]),
        ("c1", "system:kube-controller-manager", &[own, all]),
        ("c1", &nested, &[own, all]),
    ];
    let ask = async |name: &str, label: &str, user: &str, groups: &[&str]| {
        let key = ocm_shared::request::KeyPair::generate().expect("a key");
        let groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
        let pem = ocm_shared::request::request(&key, user, &groups, &[], &[]).expect("a request");
        let request = k8s_openapi::ByteString(pem.into_bytes());
        let body = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": name, "labels": {"open-cluster-management.io/cluster-name": label}},
            "spec": {"request": request, "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"],
                // What the server knows is not what a client says.
                "username": BOOTSTRAP, "groups": ["system:masters"]}});
        create(&rest, &gvr("certificatesigningrequests"), "", body).await
    };
    let mut made = Vec::new();
    for (index, (label, user, groups)) in forged.iter().enumerate() {
        let name = format!("forged-{index}");
        // The API server itself refuses requests for system:masters.
        if ask(&name, label, user, groups).await.is_ok() {
            made.push(name);
        }
    }
    assert!(made.len() >= 9, "{made:?}");
    ask("honest", "c1", me, &[own, all]).await.expect("a request");
    let found = async |name: &str| -> Value {
        w.hub().get(&gvr("certificatesigningrequests"), "", name).await.expect("a request")
    };
    until("an honest renewal is approved and signed", || async {
        found("honest").await["status"]["certificate"].is_string()
    })
    .await;
    for name in made {
        let request = found(&name).await;
        assert!(
            request["status"]["conditions"].is_null() && request["status"]["certificate"].is_null(),
            "{request:#}"
        );
        assert_eq!(request["spec"]["username"], me);
    }
    agent.end().await;
    w.end().await;
}
