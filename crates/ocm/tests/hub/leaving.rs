//! How a cluster is sent away, and how it goes.

use runtime::rest::{Removal, code_of};
use serde_json::{Value, json};

use crate::world::{
    ACCEPTED, AVAILABLE, JOINED, RIGHTS, World, condition, create, gvr, trusting, until, work,
};

/// OCM-A-04, OCM-A-25, OCM-043, OCM-058: joined without a human; denied, it stays denied and sees only that; accepted
/// again, everything comes back without a restart of the agent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_25_denied_and_accepted_again() {
    let w = World::start(trusting).await;
    let agent = w.agent(1, "c1", |_| ());
    w.until_condition("c1", AVAILABLE, "True").await;
    let request = w.requests("c1").await.remove(0);
    assert_eq!(request["status"]["conditions"][0]["reason"], "AutoApprovedByHubCSRApprovingController");
    let cluster = w.cluster("c1").await.expect("c1");
    let stamp = &cluster["metadata"]["annotations"]["open-cluster-management.io/automatically-accepted-on"];
    stamp.as_str().expect("a time").parse::<jiff::Timestamp>().expect("a time");

    w.accept("c1", false).await;
    w.until_condition("c1", ACCEPTED, "False").await;
    let role: Value = w.hub().get(&gvr("clusterroles"), "", RIGHTS[0].2).await.expect("the role");
    assert_eq!(
        role["rules"],
        json!([{"apiGroups": ["cluster.open-cluster-management.io"], "resources": ["managedclusters"],
            "resourceNames": ["c1"], "verbs": ["get", "list", "watch"]}])
    );
    assert!(w.exists("clusterrolebindings", "", RIGHTS[1].2).await);
    assert!(
        !w.exists("rolebindings", "c1", RIGHTS[4].2).await
            && !w.exists("rolebindings", "c1", RIGHTS[5].2).await
    );
    let denied = w.cluster("c1").await.expect("c1");
    assert_eq!(condition(&denied, ACCEPTED)["reason"], "HubClusterAdminDenied");
    assert_eq!(condition(&denied, JOINED)["status"], "True");
    assert_eq!(denied["spec"]["hubAcceptsClient"], false, "not accepted again by itself");
    let mine = agent.rest();
    mine.get::<Value>(&gvr("managedclusters"), "", "c1").await.expect("it sees that it is denied");
    let lease = mine.get::<Value>(&gvr("leases"), "c1", "managed-cluster-lease").await;
    assert_eq!(lease.as_ref().err().map(code_of), Some(403));

    // OCM-A-06: a renewal is not asked for, and not approved.
    let asked = create(&mine, &gvr("certificatesigningrequests"), "", json!({})).await;
    assert_eq!(asked.as_ref().err().map(code_of), Some(403));

    w.accept("c1", true).await;
    w.until_condition("c1", ACCEPTED, "True").await;
    mine.get::<Value>(&gvr("leases"), "c1", "managed-cluster-lease").await.expect("its lease");
    agent.end().await;
    w.end().await;
}

/// OCM-A-26, OCM-A-27, OCM-059: denial waits for works, deletion goes in order, and nothing of a deleted cluster's rights is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_27_departure_in_order() {
    let w = World::start(trusting).await;
    let agent = w.agent(1, "c1", |_| ());
    w.until_condition("c1", AVAILABLE, "True").await;
    let hub = w.hub();
    let hold = "example.com/hold";
    create(&hub, &gvr("manifestworks"), "c1", work("w0", &[hold], "")).await.expect("a work");
    w.accept("c1", false).await;
    until("the binding to be on its way", || async {
        let found: Option<Value> =
            hub.find(&gvr("rolebindings"), "c1", RIGHTS[5].2).await.expect("an answer");
        found.is_some_and(|b| b.pointer("/metadata/deletionTimestamp").is_some())
    })
    .await;
    assert_eq!(condition(&w.cluster("c1").await.expect("c1"), ACCEPTED)["status"], "True");
    agent
        .rest()
        .list::<Value>(&gvr("manifestworks"), "c1", "")
        .await
        .expect("its works, while there are any");
    let free = json!({"metadata": {"finalizers": null}});
    hub.merge::<Value>(&gvr("manifestworks"), "c1", "w0", &free).await.expect("free");
    hub.delete(&gvr("manifestworks"), "c1", "w0", &Removal::default()).await.expect("deleted");
    w.until_condition("c1", ACCEPTED, "False").await;
    assert!(!w.exists("rolebindings", "c1", RIGHTS[5].2).await);
    w.accept("c1", true).await;
    w.until_condition("c1", ACCEPTED, "True").await;

    let addon = json!({"apiVersion": "addon.open-cluster-management.io/v1alpha1", "kind": "ManagedClusterAddOn",
        "metadata": {"name": "addon1", "finalizers": [hold]}, "spec": {}});
    create(&hub, &gvr("managedclusteraddons"), "c1", addon).await.expect("an add-on");
    for (name, priority) in [("w1", ""), ("w3", "20"), ("w2", "100")] {
        create(&hub, &gvr("manifestworks"), "c1", work(name, &[hold], priority)).await.expect("a work");
    }
    hub.delete(&gvr("managedclusters"), "", "c1", &Removal::default()).await.expect("deleted");
    let order = [
        ("managedclusteraddons", "addon1"),
        ("manifestworks", "w1"),
        ("manifestworks", "w3"),
        ("manifestworks", "w2"),
    ];
    for (index, (plural, name)) in order.iter().enumerate() {
        until(name, || async {
            let one: Value = hub.get(&gvr(plural), "c1", name).await.expect("held");
            one.pointer("/metadata/deletionTimestamp").is_some()
        })
        .await;
        for (plural, later) in order.iter().skip(index + 1) {
            let one: Value = hub.get(&gvr(plural), "c1", later).await.expect("there");
            assert!(one.pointer("/metadata/deletionTimestamp").is_none(), "{later} before {name} is gone");
        }
        until("the condition", || async {
            let deleting = condition(&w.cluster("c1").await.expect("c1"), "Deleting");
            deleting["reason"] == "ResourceRemaining" && deleting["message"].to_string().contains(plural)
        })
        .await;
        hub.merge::<Value>(&gvr(plural), "c1", name, &free).await.expect("free");
    }
    until("the cluster's end", || async { w.cluster("c1").await.is_none() }).await;
    for plural in ["clusterroles", "clusterrolebindings", "rolebindings"] {
        until(plural, || async {
            let label = "open-cluster-management.io/cluster-name";
            let left: Value = hub.list(&gvr(plural), "", label).await.expect("a list");
            left["items"] == json!([])
        })
        .await;
    }
    let mailbox: Value = hub.get(&gvr("namespaces"), "", "c1").await.expect("the mailbox stays");
    assert_eq!(mailbox["status"]["phase"], "Active");
    agent.end().await;
    w.end().await;
}
