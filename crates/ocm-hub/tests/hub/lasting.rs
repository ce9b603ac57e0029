//! Long-running behaviour: renewed leases, requests that outlive their agent, clusters that are deleted while
//! their agent is away, and a hub that is its own cluster.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use ocm_agent::work_agent;
use ocm_shared::rbac::Subject;
use parking_lot::Mutex;
use runtime::{
    Source,
    feed::{Change, follow},
    rest::Removal,
};
use serde_json::{Value, json};
use space::Identity;
use tokio_util::sync::CancellationToken;

use crate::world::*;

/// OCM-A-17, OCM-047, OCM-048: a lease of a second is renewed, never twice within it, for longer than the hub
/// takes to give up twice; the cluster is available all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_17_a_lease_keeps_alive() {
    let (w, agent) = World::joined().await;
    let before = condition(&w.cluster("c1").await.expect("c1"), AVAILABLE);
    let short = json!({"spec": {"leaseDurationSeconds": 1}});
    w.hub().merge::<Value>(&gvr("managedclusters"), "", "c1", &short).await.expect("shorter");
    let renewals: Arc<Mutex<Vec<jiff::Timestamp>>> = Arc::default();
    let (hub, stop, seen) = (w.hub(), CancellationToken::new(), renewals.clone());
    let token = stop.clone();
    let following = tokio::spawn(async move {
        let source = Source::all(gvr("leases")).namespaced("c1");
        follow(hub.client(), &source, &token, |change: Change<Lease>| {
            if let Change::Put(lease) = change
                && let Some(at) = lease.spec.and_then(|spec| spec.renew_time)
            {
                seen.lock().push(at.0);
            }
        })
        .await;
    });
    // Twice five durations, and the renewal that the changed duration causes.
    until("ten seconds of renewals", || async {
        let all = renewals.lock();
        let last = all.last().copied().unwrap_or_default();
        all.iter().rev().nth(8).is_some_and(|from| last.duration_since(*from).as_secs() >= 8)
            && all.first().is_some_and(|from| last.duration_since(*from).as_secs() >= 10)
    })
    .await;
    stop.cancel();
    following.await.expect("no panic");
    let all = renewals.lock().clone();
    // The first ones were made at the old interval, and when that changed.
    for pair in all.windows(2).skip(2) {
        let pause = pair[1].duration_since(pair[0]).as_secs_f64();
        assert!(pause >= 1.0, "renewed after {pause} s: {all:?}");
    }
    let after = condition(&w.cluster("c1").await.expect("c1"), AVAILABLE);
    assert_eq!(after["lastTransitionTime"], before["lastTransitionTime"]);
    agent.end().await;
    w.end().await;
}

/// OCM-A-36: an agent that is restarted while its request is undecided continues with that request; its
/// certificate is the one that was requested before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_36_a_request_outlives_its_agent() {
    let w = World::start(|_| ()).await;
    let agent = w.agent(1, "c1", |config| config.agent_name = Some("one".into()));
    until("a request", || async { w.requests("c1").await.len() == 1 }).await;
    let asked = w.requests("c1").await.remove(0);
    agent.end().await;
    let mut again = w.agent(1, "c1", |config| config.agent_name = Some("one".into()));
    again.looked().await;
    let now = w.requests("c1").await;
    assert_eq!(now.len(), 1, "no other request: {now:?}");
    assert_eq!(now[0]["metadata"]["uid"], asked["metadata"]["uid"]);
    w.accept("c1", true).await;
    w.approve("c1").await;
    again.joined.wait_for(|yes| *yes).await.expect("joined");
    w.until_condition("c1", AVAILABLE, "True").await;
    let issued = w.requests("c1").await.remove(0)["status"]["certificate"].clone();
    assert_eq!(w.secret(1).await.expect("a secret")["data"]["tls.crt"], issued);
    let (namespace, name) = ("open-cluster-management-agent", "hub-kubeconfig-secret-pending");
    until("the key has one place", || async {
        let kept: Value = w.admin(1).get(&gvr("secrets"), namespace, name).await.expect("it");
        kept.get("data").is_none_or(|data| data.as_object().is_none_or(serde_json::Map::is_empty))
    })
    .await;
    again.end().await;
    w.end().await;
}

/// OCM-A-28, OCM-059: a cluster that is deleted while its agent is away stays until a user removes the
/// finalizers of its works, and its condition names what is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_28_a_silent_cluster_is_deleted() {
    let (w, agent) = World::joined().await;
    let finalizer = "cluster.open-cluster-management.io/manifest-work-cleanup";
    create(&w.hub(), &gvr("manifestworks"), "c1", work("reef", &[finalizer], "")).await.expect("a work");
    agent.end().await;
    let short = json!({"spec": {"leaseDurationSeconds": 1}});
    w.hub().merge::<Value>(&gvr("managedclusters"), "", "c1", &short).await.expect("shorter");
    w.hub().delete(&gvr("managedclusters"), "", "c1", &Removal::default()).await.expect("deleted");
    until("what is left is said", || async {
        let said = condition(&w.cluster("c1").await.expect("not yet gone"), "Deleting");
        said["reason"] == "ResourceRemaining" && said["message"].to_string().contains("manifestworks")
    })
    .await;
    w.until_condition("c1", AVAILABLE, "Unknown").await;
    let free = json!({"metadata": {"finalizers": null}});
    w.hub().merge::<Value>(&gvr("manifestworks"), "c1", "reef", &free).await.expect("by hand");
    until("the end of the cluster", || async { w.cluster("c1").await.is_none() }).await;
    assert!(!w.exists("manifestworks", "c1", "reef").await);
    w.end().await;
}

/// OCM-A-37: a hub that is its own cluster: it joins, its works are applied, and the mailbox and the agents'
/// objects exist side by side.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_37_a_hub_that_joins_itself() {
    let w = World::start(|_| ()).await;
    kubestellar_ocm_hub::enroll::prepare(&w.spaces[0].client(&Identity::admin()), "c1")
        .await
        .expect("prepared");
    let agent = w.agent(0, "c1", |_| ());
    w.approve("c1").await;
    w.accept("c1", true).await;
    w.until_condition("c1", JOINED, "True").await;
    w.until_condition("c1", AVAILABLE, "True").await;
    for (plural, namespace, name) in RIGHTS {
        assert!(w.exists(plural, namespace, name).await, "{plural} {name}");
    }
    for name in ["c1", "open-cluster-management-agent", "open-cluster-management-agent-addon"] {
        assert!(w.exists("namespaces", "", name).await, "{name}");
    }
    let config = work_agent::Config::new("c1", HUB);
    let (mut ready, stop) = (config.ready.subscribe(), CancellationToken::new());
    let who = Subject::work_agent_account();
    let groups: Vec<&str> = who.groups.iter().map(String::as_str).collect();
    let cluster = w.spaces[0].client(&Identity::component(&who.user, &groups));
    let (hub, token) = (agent.rest().client().clone(), stop.clone());
    let delivering =
        tokio::spawn(async move { work_agent::run(hub, cluster, config, token).await.expect("work agent") });
    ready.wait_for(|yes| *yes).await.expect("it works");
    let works = gvr("manifestworks");
    create(&w.hub(), &works, "c1", holding("reef", &[map("reef", "1")])).await.expect("a work");
    until("the delivery", || async {
        let work: Value = w.hub().get(&works, "c1", "reef").await.expect("a work");
        condition(&work, "Available")["status"] == "True"
    })
    .await;
    assert!(w.exists("configmaps", "default", "reef").await);
    w.hub().delete(&works, "c1", "reef", &Removal::default()).await.expect("deleted");
    until("its end", || async { !w.exists("manifestworks", "c1", "reef").await }).await;
    assert!(!w.exists("configmaps", "default", "reef").await);
    stop.cancel();
    delivering.await.expect("no panic");
    agent.end().await;
    w.end().await;
}
