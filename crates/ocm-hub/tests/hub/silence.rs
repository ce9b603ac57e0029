//! Leases and clocks.

use std::sync::atomic::Ordering;

use runtime::rest::Removal;
use serde_json::{Value, json};

use crate::world::{AVAILABLE, CLOCK, UNREACHABLE, World, condition, create, gvr, taints, trusting, until};

/// OCM-A-18, OCM-A-19, OCM-049, OCM-050: a cluster whose lease expires is Unknown and tainted, and so are its
/// add-ons; after a renewal it is available. A deleted lease is created again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_18_silence_and_return() {
    let (w, agent) = World::joined().await;
    let hub = w.hub();
    let lease = gvr("leases");
    let old: Value = hub.get(&lease, "c1", "managed-cluster-lease").await.expect("a lease");
    hub.delete(&lease, "c1", "managed-cluster-lease", &Removal::default()).await.expect("deleted");
    until("another lease", || async {
        let found: Option<Value> = hub.find(&lease, "c1", "managed-cluster-lease").await.expect("an answer");
        found.is_some_and(|l| l["metadata"]["uid"] != old["metadata"]["uid"])
    })
    .await;
    let addon = json!({"apiVersion": "addon.open-cluster-management.io/v1alpha1", "kind": "ManagedClusterAddOn",
        "metadata": {"name": "addon1"}, "spec": {}});
    create(&hub, &gvr("managedclusteraddons"), "c1", addon).await.expect("an add-on");
    let short = json!({"spec": {"leaseDurationSeconds": 1}});
    hub.merge::<Value>(&gvr("managedclusters"), "", "c1", &short).await.expect("shorter");
    agent.end().await;
    w.until_condition("c1", AVAILABLE, "Unknown").await;
    let silent = w.cluster("c1").await.expect("c1");
    assert_eq!(condition(&silent, AVAILABLE)["reason"], "ManagedClusterLeaseUpdateStopped");
    until("the taint", || async { taints(&w.cluster("c1").await.expect("c1")) == [UNREACHABLE] }).await;
    until("the add-on", || async {
        let addon: Value = hub.get(&gvr("managedclusteraddons"), "c1", "addon1").await.expect("it");
        condition(&addon, "Available")["reason"] == "ManagedClusterLeaseUpdateStopped"
    })
    .await;
    let label = "feature.open-cluster-management.io/addon-addon1";
    until("the label", || async {
        w.cluster("c1").await.expect("c1")["metadata"]["labels"][label] == "unreachable"
    })
    .await;
    let again = w.agent(1, "c1", |_| ());
    w.until_condition("c1", AVAILABLE, "True").await;
    until("no taint", || async { taints(&w.cluster("c1").await.expect("c1")).is_empty() }).await;
    again.end().await;
    w.end().await;
}

/// OCM-A-21, OCM-052: an agent whose clock is an hour off is reported; an annotation switches the check off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_21_a_clock_an_hour_off() {
    let w = World::start(trusting).await;
    let agent = w.agent(1, "c1", |config| config.certificate_seconds = Some(86_400));
    let short = json!({"spec": {"leaseDurationSeconds": 1}});
    w.until_condition("c1", CLOCK, "True").await;
    agent.ahead.store(3600, Ordering::SeqCst);
    w.hub().merge::<Value>(&gvr("managedclusters"), "", "c1", &short).await.expect("shorter");
    w.until_condition("c1", CLOCK, "False").await;
    let skip = json!({"metadata": {"annotations": {"registration.open-cluster-management.io/skip-clock-sync-check": "true"}}});
    w.hub().merge::<Value>(&gvr("managedclusters"), "", "c1", &skip).await.expect("annotated");
    w.until_condition("c1", CLOCK, "True").await;
    agent.end().await;
    w.end().await;
}
