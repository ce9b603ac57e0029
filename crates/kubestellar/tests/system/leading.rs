//! One of several processes works: Leases of components, and what a process shows of itself meanwhile.

use std::net::SocketAddr;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::components::Bare;
use super::dropin::Component;
use crate::support::{Installation, config_map, create, dynamic, namespace, policy, until_one, within};

const LEADS: &str = "leader_election_master_status{name=\"controller-manager-wds1\"}";

/// Who holds the Lease of the controller manager, once it is one that will do.
pub(crate) async fn leaders(of: &Api<Lease>, enough: impl Fn(&str) -> bool) -> String {
    let holder =
        |lease: &Lease| lease.spec.as_ref().and_then(|it| it.holder_identity.clone()).unwrap_or_default();
    let name = "controller-manager-wds1";
    holder(&until_one(of, name, "the Lease", |lease| enough(&holder(lease))).await)
}

/// KS-211: of two controller managers one works; when it is killed the other takes over and
/// delivers what was changed meanwhile, and what was delivered stays; told to stop, it gives the Lease back.
#[tokio::test(flavor = "multi_thread")]
async fn ks_211_the_other_takes_over() {
    let ks = Installation::new();
    let serve = ["--listen", "127.0.0.1:0", "--clusters", "1", "--without", "controller-manager"];
    let server = ks.serve(&serve).await;
    let (wds, wec) = (ks.client("wds1").await, ks.client("cluster1").await);
    let leases: Api<Lease> = Api::namespaced(wds.clone(), "kube-system");
    create(&wds, namespace("harbour")).await;
    create(&wds, config_map("harbour", "first", "1")).await;
    create(&wds, policy("harbour", ("location-group", "edge"), false)).await;

    let elect = ["--leader-elect", "--wds-qps=-1", "--its-qps=-1"];
    let one = Component::manager(&ks, "one", &elect);
    let first = leaders(&leases, |holder| !holder.is_empty()).await;
    one.metric(LEADS, |value| value > 0.5).await;
    let two = Component::manager(&ks, "two", &elect);
    two.metric(LEADS, |value| value < 0.5).await;
    // One that waits is well.
    assert_eq!(two.get("probes", "/readyz").await, (200, "ok\r\n".to_owned()));
    assert!(two.get("probes", "/readyz?verbose").await.1.contains("not working yet"));

    let there = dynamic(&wec, "v1", "ConfigMap", Some("harbour"));
    let delivered = until_one(&there, "first", "the first delivery", |_| true).await;
    assert_eq!(leaders(&leases, |_| true).await, first, "nobody else came between");
    one.server.kill().await;
    // What it held counts for its term from when it was last seen changed; nobody needs to wait that out.
    let short = Patch::Merge(json!({"spec": {"leaseDurationSeconds": 1}}));
    leases.patch("controller-manager-wds1", &PatchParams::default(), &short).await.unwrap();
    create(&wds, config_map("harbour", "second", "2")).await;
    until_one(&there, "second", "the delivery after the take-over", |_| true).await;
    two.metric(LEADS, |value| value > 0.5).await;
    let second = leaders(&leases, |holder| holder != first).await;
    assert_ne!(second, "");
    let still = until_one(&there, "first", "what was there", |_| true).await;
    assert_eq!(still.metadata.uid, delivered.metadata.uid, "what was delivered was left alone");

    two.server.stop().await;
    assert_eq!(leaders(&leases, str::is_empty).await, "", "given back");
    server.stop().await;
}

/// KS-211: a Lease that somebody else took ends the process, as the original's libraries end theirs.
#[tokio::test(flavor = "multi_thread")]
async fn ks_211_a_lost_lease_ends_the_process() {
    let ks = Installation::new();
    let serve = ["--listen", "127.0.0.1:0", "--clusters", "0", "--without=controller-manager"];
    let server = ks.serve(&serve).await;
    let leases: Api<Lease> = Api::namespaced(ks.client("wds1").await, "kube-system");
    let mut one = Component::manager(&ks, "one", &["-leader-elect=true"]);
    leaders(&leases, |holder| !holder.is_empty()).await;
    one.metric(LEADS, |value| value > 0.5).await;
    // As somebody with the right to do so may. Its term is long, so that it is not taken back at once.
    let theirs = json!({"spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 3600}});
    let patch = Patch::Merge(theirs);
    leases.patch("controller-manager-wds1", &PatchParams::default(), &patch).await.unwrap();
    let status = one.server.ended().await;
    assert_eq!(status.code(), Some(1), "{}", one.server.log());
    assert!(one.server.log().contains("leader election lost"), "{}", one.server.log());
    assert_eq!(leaders(&leases, |_| true).await, "somebody");
    server.stop().await;
}

/// What `https://ADDRESS/PATH` answers to whoever holds this token.
async fn over_tls(address: SocketAddr, token: Option<&str>, path: &str) -> Result<String, u16> {
    let url = format!("https://{address}").parse().unwrap();
    let mut config = kube::Config::new(url);
    config.accept_invalid_certs = true;
    config.auth_info = serde_json::from_value(json!({"token": token})).unwrap();
    let client = kube::Client::try_from(config).unwrap();
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    match within("an answer", client.request_text(request)).await {
        Ok(text) => Ok(text),
        Err(kube::Error::Api(status)) => Err(status.code),
        Err(error) => panic!("{path}: {error:?}"),
    }
}

/// OCM-150, OCM-151, OCM-164: the work agent as OCM's Deployment starts it: it holds `work-agent-lock` unless told not to, and its
/// TLS port has probes for everybody and metrics for whom the cluster lets see them.
#[tokio::test(flavor = "multi_thread")]
async fn ocm_150_work_agent_lock_probes_and_metrics() {
    let ks = Installation::new();
    let edge = Bare::start(&ks, "edge").await;
    let arguments = [
        "work-agent",
        "--spoke-cluster-name=edge",
        "--hub-kubeconfig",
        edge.file(),
        "--spoke-kubeconfig",
        edge.file(),
        "--listen=127.0.0.1:0",
        "--kube-api-qps=80",
        "--hub-kube-api-burst=200",
        "--leader-election-lease-duration=20s",
        "--disable-leader-election=false",
        "--workload-source-driver=kube",
    ];
    let agent = Component::start(&ks, "agent", &arguments);
    let leases: Api<Lease> = Api::namespaced(edge.client.clone(), "default");
    let held = until_one(&leases, "work-agent-lock", "the Lease", |lease| {
        lease.spec.as_ref().is_some_and(|it| it.holder_identity.as_ref().is_some_and(|it| !it.is_empty()))
    })
    .await;
    let spec = held.spec.unwrap();
    assert_eq!((spec.lease_duration_seconds, spec.lease_transitions), (Some(20), Some(0)));
    assert!(spec.acquire_time.is_some() && spec.renew_time.is_some());
    agent.metric("leader_election_master_status{name=\"work-agent-lock\"}", |value| value > 0.5).await;

    let secure = agent.address("secure").await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(over_tls(secure, None, path).await, Ok("ok".to_owned()));
    }
    assert_eq!(over_tls(secure, None, "/metrics").await, Err(401));
    assert_eq!(over_tls(secure, Some("guessed"), "/metrics").await, Err(401));
    let text = over_tls(secure, Some("secret"), "/metrics").await.unwrap();
    // OCM-164: what the agent counts is there before there is anything to count.
    for name in [
        "workqueue_depth{name=\"ManifestWorkAgent\"}",
        "ocm_manifests{state=\"failed\"} 0",
        "ocm_eviction_pending 0",
        "ocm_manifestwork_status_lag_seconds_count 0",
    ] {
        assert!(text.contains(name), "{name} in {text}");
    }
    agent.server.stop().await;
    let given_back = until_one(&leases, "work-agent-lock", "the Lease given back", |lease| {
        lease.spec.as_ref().is_some_and(|it| it.holder_identity.as_deref().unwrap_or_default().is_empty())
    })
    .await;
    assert_eq!(given_back.spec.and_then(|it| it.lease_transitions), Some(0));
    edge.server.stop().await;
}
