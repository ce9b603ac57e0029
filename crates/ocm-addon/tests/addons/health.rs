//! Health of add-ons, also while their cluster is unreachable.

use std::sync::Arc;

use ocm_agent::registration::BuiltIn;
use runtime::rest::Rest;
use serde_json::{Value, json};
use space::Identity;
use tokio::sync::watch;

use crate::world::{AGENTS, Plain, STATUS, World, condition, create, delete, gvr, member, owner, until};

/// OCM-A-87, OCM-118: by its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_87_health_by_lease() {
    let w = World::start(1).await;
    let manager = w.manager(|config| {
        config.addons = vec![Arc::new(Plain::default())];
        config.definitions.clear();
    });
    let agent = w.agent(1, false, vec![]);
    let (hub, spoke) = (w.hub(), w.admin(1));
    w.until_cluster("c1", "ManagedClusterConditionAvailable", "True").await;
    create(&hub, &gvr("clustermanagementaddons"), "", owner("plain", &json!({"type": "Manual"}))).await;
    create(&hub, &gvr("managedclusteraddons"), "c1", member("plain")).await;
    w.until_addon("c1", "plain", "Available", "Unknown", "ManagedClusterAddOnLeaseNotFound").await;
    until("the label", || async { w.label("c1", "plain").await == "unreachable" }).await;
    let at = |ago: i64| format!("{:.6}", jiff::Timestamp::now() - jiff::SignedDuration::from_secs(ago));
    let lease = |time: String| json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "plain"}, "spec": {"renewTime": time}});
    create(&spoke, &gvr("leases"), AGENTS, lease(at(0))).await;
    w.until_addon("c1", "plain", "Available", "True", "ManagedClusterAddOnLeaseUpdated").await;
    until("the label", || async { w.label("c1", "plain").await == "available" }).await;
    // The lease expires soon, without an event.
    let soon = json!({"spec": {"renewTime": at(297)}});
    spoke.merge::<Value>(&gvr("leases"), AGENTS, "plain", &soon).await.expect("older");
    w.until_addon("c1", "plain", "Available", "False", "ManagedClusterAddOnLeaseUpdateStopped").await;
    until("the label", || async { w.label("c1", "plain").await == "unhealthy" }).await;
    let fresh = json!({"spec": {"renewTime": at(0)}});
    spoke.merge::<Value>(&gvr("leases"), AGENTS, "plain", &fresh).await.expect("renewed");
    w.until_addon("c1", "plain", "Available", "True", "ManagedClusterAddOnLeaseUpdated").await;
    delete(&spoke, &gvr("leases"), AGENTS, "plain").await;
    w.until_addon("c1", "plain", "Available", "Unknown", "ManagedClusterAddOnLeaseNotFound").await;
    agent.end().await;
    manager.end().await;
    w.end().await;
}

/// An agent in the klusterlet's process runs once it has an identity, with that identity, and nothing is
/// deployed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_118_a_built_in_agent_is_not_deployed() {
    let w = World::start(1).await;
    let manager = w.manager(|_| ());
    let addon = BuiltIn::new(STATUS);
    let agent = w.agent(1, true, vec![addon.clone()]);
    // How often it was started and stopped.
    let (runs, mut running) = watch::channel((0, 0));
    let who = ocm_shared::rbac::Subject::status_agent_account();
    let groups: Vec<&str> = who.groups.iter().map(String::as_str).collect();
    let spoke = w.spaces[1].client(&Identity::component(&who.user, &groups));
    let (own, stop) = (addon.clone(), w.stop.child_token());
    let task = tokio::spawn(async move {
        let ready = watch::Sender::new(true);
        own.run(spoke, ready.subscribe(), stop, |turn| {
            runs.send_modify(|(begun, _)| *begun += 1);
            let runs = &runs;
            async move {
                turn.cancelled().await;
                runs.send_modify(|(_, ended)| *ended += 1);
                Ok::<(), std::convert::Infallible>(())
            }
        })
        .await
        .expect("it cannot fail");
    });
    running.wait_for(|n| *n == (1, 0)).await.expect("it runs");
    w.until_addon("c1", STATUS, "Available", "True", "ManagedClusterAddOnLeaseUpdated").await;
    until("the label", || async { w.label("c1", STATUS).await == "available" }).await;
    let hub = Rest::new(addon.hub());
    hub.list::<Value>(&gvr("manifestworks"), "c1", "").await.expect("its works");
    let addon = w.addon("c1", STATUS).await.expect("it");
    assert_eq!(addon["status"]["healthCheck"]["mode"], "Lease");
    assert_eq!(condition(&addon, "ManifestApplied")["message"], "no manifest need to apply");
    until("no work", || async {
        let works: Value = w.hub().list(&gvr("manifestworks"), "c1", "").await.expect("a list");
        works["items"].as_array().is_some_and(Vec::is_empty)
    })
    .await;
    // If the add-on's manager deploys an agent, the one in this process stops.
    manager.end().await;
    let mode = json!({"status": {"healthCheck": {"mode": "Customized"}}});
    w.hub().merge_status::<Value>(&gvr("managedclusteraddons"), "c1", STATUS, &mode).await.expect("changed");
    running.wait_for(|n| *n == (1, 1)).await.expect("it steps aside");
    let again = json!({"status": {"healthCheck": {"mode": "Lease"}}});
    w.hub().merge_status::<Value>(&gvr("managedclusteraddons"), "c1", STATUS, &again).await.expect("changed");
    running.wait_for(|n| *n == (2, 1)).await.expect("it is wanted again");
    agent.end().await;
    w.stop.cancel();
    task.await.expect("no panic");
    w.end().await;
}

/// OCM-A-89, OCM-111: the add-on of an unreachable cluster stays, with our Placement; its health is unknown
/// until the cluster is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_89_no_churn_when_a_cluster_is_away() {
    let w = World::start(1).await;
    let manager = w.manager(|config| config.addons.push(Arc::new(Plain::default())));
    let agent = w.agent(1, true, vec![]);
    let hub = w.hub();
    w.until_cluster("c1", "ManagedClusterConditionAvailable", "True").await;
    // Another one, whose Placement does not tolerate unreachable clusters.
    let place = "open-cluster-management";
    let placement = json!({"apiVersion": "cluster.open-cluster-management.io/v1beta1", "kind": "Placement",
        "metadata": {"name": "strict"}, "spec": {}});
    create(&hub, &gvr("placements"), place, placement).await;
    let strategy = json!({"type": "Placements", "placements": [{"namespace": place, "name": "strict"}]});
    create(&hub, &gvr("clustermanagementaddons"), "", owner("plain", &strategy)).await;
    w.until_addon("c1", "plain", "ManifestApplied", "True", "AddonManifestApplied").await;
    w.deployment_runs(1, 1).await;
    w.until_addon("c1", STATUS, "Available", "True", "ProbeAvailable").await;
    let before = w.addon("c1", STATUS).await.expect("it");
    let plain = w.addon("c1", "plain").await.expect("it");

    let short = json!({"spec": {"leaseDurationSeconds": 1}});
    hub.merge::<Value>(&gvr("managedclusters"), "", "c1", &short).await.expect("shorter");
    agent.end().await;
    w.until_cluster("c1", "ManagedClusterConditionAvailable", "Unknown").await;
    w.until_addon("c1", STATUS, "Available", "Unknown", "ManagedClusterLeaseUpdateStopped").await;
    until("the strict one to go", || async {
        w.addon("c1", "plain").await.is_none_or(|a| a.pointer("/metadata/deletionTimestamp").is_some())
    })
    .await;
    let addon = w.addon("c1", STATUS).await.expect("it stays");
    assert!(addon.pointer("/metadata/deletionTimestamp").is_none());

    let usual = json!({"spec": {"leaseDurationSeconds": 60}});
    hub.merge::<Value>(&gvr("managedclusters"), "", "c1", &usual).await.expect("longer");
    let agent = w.agent(1, true, vec![]);
    w.until_cluster("c1", "ManagedClusterConditionAvailable", "True").await;
    w.until_addon("c1", STATUS, "Available", "True", "ProbeAvailable").await;
    assert_eq!(w.addon("c1", STATUS).await.expect("it")["metadata"]["uid"], before["metadata"]["uid"]);
    until("the strict one to come back", || async {
        w.addon("c1", "plain").await.is_some_and(|a| a["metadata"]["uid"] != plain["metadata"]["uid"])
    })
    .await;
    agent.end().await;
    manager.end().await;
    w.end().await;
}
