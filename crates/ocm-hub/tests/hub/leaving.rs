//! Denial and departure of clusters.

use base64::Engine as _;
use ocm_agent::{
    leave::{self, Leave, Left},
    work_agent::hub_hash,
};
use runtime::failure::code_of;
use runtime::rest::Removal;
use serde_json::{Value, json};

use crate::world::{ACCEPTED, HUB, JOINED, RIGHTS, World, condition, create, gvr, until, work};

/// OCM-A-04, OCM-A-25, OCM-043, OCM-058: a cluster joins automatically. When denied, it stays denied and can
/// read only that. Accepted again, everything works without a restart of the agent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_25_denied_and_accepted_again() {
    let (w, agent) = World::joined().await;
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

    // OCM-A-06: a renewal is neither requested nor approved.
    let asked = create(&mine, &gvr("certificatesigningrequests"), "", json!({})).await;
    assert_eq!(asked.as_ref().err().map(code_of), Some(403));

    w.accept("c1", true).await;
    w.until_condition("c1", ACCEPTED, "True").await;
    mine.get::<Value>(&gvr("leases"), "c1", "managed-cluster-lease").await.expect("its lease");
    agent.end().await;
    w.end().await;
}

/// Denies the cluster, which has works: its agent's permission for them is being removed.
async fn denied_for_now(w: &World) {
    w.accept("c1", false).await;
    until("the binding to be on its way", || async {
        let found: Option<Value> =
            w.hub().find(&gvr("rolebindings"), "c1", RIGHTS[5].2).await.expect("an answer");
        found.is_some_and(|b| b.pointer("/metadata/deletionTimestamp").is_some())
    })
    .await;
}

/// OCM-A-26, OCM-A-27, OCM-059: denial waits for works, deletion happens in order, and no permission of a
/// deleted cluster is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_27_departure_in_order() {
    let (w, agent) = World::joined().await;
    let hub = w.hub();
    let hold = "example.com/hold";
    create(&hub, &gvr("manifestworks"), "c1", work("w0", &[hold], "")).await.expect("a work");
    denied_for_now(&w).await;
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

/// OCM-058: while works delay a denial, the permissions of the cluster are removed once, and again when
/// another client changed them, not at every check; the deletion of the last work completes the denial.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_058_rights_are_taken_away_once() {
    let (w, agent) = World::joined().await;
    agent.end().await;
    let hub = w.hub();
    for name in ["w0", "w1"] {
        create(&hub, &gvr("manifestworks"), "c1", work(name, &[], "")).await.expect("a work");
    }
    let mark = w.requests.mark();
    denied_for_now(&w).await;
    // Each change makes the hub process the cluster.
    for round in 0..200 {
        let label = json!({"metadata": {"labels": {"round": round.to_string()}}});
        hub.merge::<Value>(&gvr("manifestworks"), "c1", "w0", &label).await.expect("labelled");
    }
    // Another client grants a permission again: it is removed.
    let again = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": RIGHTS[4].2, "labels": {"open-cluster-management.io/cluster-name": "c1"}},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": RIGHTS[2].2}});
    create(&hub, &gvr("rolebindings"), "c1", again).await.expect("a binding");
    let more = json!({"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]});
    hub.merge::<Value>(&gvr("clusterroles"), "", RIGHTS[0].2, &more).await.expect("more rights");
    until("the reduced role", || async {
        let role: Value = hub.get(&gvr("clusterroles"), "", RIGHTS[0].2).await.expect("the role");
        role["rules"][0]["verbs"] == json!(["get", "list", "watch"])
    })
    .await;
    until("the binding to go", || async { !w.exists("rolebindings", "c1", RIGHTS[4].2).await }).await;
    for name in ["w0", "w1"] {
        assert_eq!(condition(&w.cluster("c1").await.expect("c1"), ACCEPTED)["status"], "True");
        hub.delete(&gvr("manifestworks"), "c1", name, &Removal::default()).await.expect("deleted");
    }
    w.until_condition("c1", ACCEPTED, "False").await;
    let all = w.requests.since(mark);
    let about_rights: Vec<&String> = all
        .iter()
        .filter(|l| l.starts_with("hub ") && l.contains("rbac.authorization") && !l.contains("watch=true"))
        .collect();
    // About six for each removal: one removal for each of its own changes, and for those of others.
    assert!(about_rights.len() <= 80, "{} requests: {about_rights:#?}", about_rights.len());
    w.end().await;
}

/// OCM-060: a cluster leaves by itself. The workload of its hub is removed, or stays without an owner.
/// Objects with other owners stay. Another hub's agent keeps what it needs. In the end nothing of the agents
/// is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_060_a_cluster_leaves_by_itself() {
    let (w, agent) = World::joined().await;
    agent.end().await;
    let spoke = w.admin(1);
    let kept = w.secret(1).await.expect("a secret");
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "app"}});
    create(&spoke, &gvr("namespaces"), "", namespace).await.expect("a namespace");
    let object = async |name: &str, owners: &[&Value]| {
        let owners: Vec<Value> = owners
            .iter()
            .map(|owner| {
                json!({"apiVersion": owner["apiVersion"], "kind": owner["kind"],
                    "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]})
            })
            .collect();
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "ownerReferences": owners}});
        create(&spoke, &gvr("configmaps"), "app", body).await.expect("an object")
    };
    let applied_by = async |name: &str, (hash, agent): (&str, &str), listed: &[&str]| {
        let body = json!({"apiVersion": "work.open-cluster-management.io/v1", "kind": "AppliedManifestWork",
            "metadata": {"name": name,
                "finalizers": ["cluster.open-cluster-management.io/applied-manifest-work-cleanup"]},
            "spec": {"hubHash": hash, "manifestWorkName": name, "agentID": agent}});
        let made = create(&spoke, &gvr("appliedmanifestworks"), "", body).await.expect("a work");
        let listed: Vec<Value> = listed
            .iter()
            .map(|name| json!({"group": "", "version": "v1", "resource": "configmaps", "namespace": "app", "name": name}))
            .collect();
        let status = json!({"status": {"appliedResources": listed}});
        spoke.merge_status::<Value>(&gvr("appliedmanifestworks"), "", name, &status).await.expect("a status");
        made
    };
    let applied =
        async |name: &str, hash: &str, listed: &[&str]| applied_by(name, (hash, hash), listed).await;
    let there =
        async |name: &str| spoke.find::<Value>(&gvr("configmaps"), "app", name).await.expect("an answer");
    let owner_names = |object: &Value| -> Vec<String> {
        let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        owners.into_iter().flatten().filter_map(|o| o["name"].as_str().map(str::to_owned)).collect()
    };
    let leave = async |keep_workload: bool| {
        let how = Leave { keep_workload, patience: std::time::Duration::from_secs(60) };
        leave::leave(spoke.client().clone(), &how).await.expect("it leaves")
    };

    let hash = hub_hash(HUB);
    let keeper = object("keeper", &[]).await;
    let ours = applied("w1", &hash, &["one", "shared", "orphan", "never"]).await;
    let theirs = applied("w2", "another", &["other"]).await;
    for (name, owners) in
        [("one", vec![&ours]), ("shared", vec![&ours, &keeper]), ("orphan", vec![]), ("other", vec![&theirs])]
    {
        object(name, &owners).await;
    }
    // Of a hub that has moved since (OCM-071).
    let named = kept["data"]["agent-name"].as_str().expect("a name");
    let agent = base64::engine::general_purpose::STANDARD.decode(named).expect("base64");
    let agent = String::from_utf8(agent).expect("a name");
    let moved = applied_by("w4", ("elsewhere", &agent), &["before"]).await;
    object("before", &[&moved]).await;
    assert_eq!(leave(false).await, Left { works: 2, others: 1 });
    assert!(there("before").await.is_none());
    assert!(there("one").await.is_none());
    for name in ["shared", "orphan", "other", "keeper"] {
        assert!(there(name).await.is_some(), "{name}");
    }
    assert!(w.secret(1).await.is_none(), "its credential is gone");
    let works: Value = spoke.list(&gvr("appliedmanifestworks"), "", "").await.expect("the kind is kept");
    assert_eq!(works["items"].as_array().map(Vec::len), Some(1));

    // It joins again, and leaves when it is the last one.
    let namespace = "open-cluster-management-agent";
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub-kubeconfig-secret"},
        "data": kept["data"]});
    create(&spoke, &gvr("secrets"), namespace, secret).await.expect("a secret");
    let free = json!({"metadata": {"finalizers": null}});
    spoke.merge::<Value>(&gvr("appliedmanifestworks"), "", "w2", &free).await.expect("free");
    spoke.delete(&gvr("appliedmanifestworks"), "", "w2", &Removal::default()).await.expect("deleted");
    let ours = applied("w3", &hash, &["two", "both"]).await;
    object("two", &[&ours]).await;
    object("both", &[&ours, &keeper]).await;
    assert_eq!(leave(true).await, Left { works: 1, others: 0 });
    assert_eq!(owner_names(&there("two").await.expect("it stays")), Vec::<String>::new());
    assert_eq!(owner_names(&there("both").await.expect("it stays")), ["keeper"]);
    for name in [
        "appliedmanifestworks.work.open-cluster-management.io",
        "clusterclaims.cluster.open-cluster-management.io",
    ] {
        until(name, || async {
            spoke
                .find::<Value>(&gvr("customresourcedefinitions"), "", name)
                .await
                .expect("an answer")
                .is_none()
        })
        .await;
    }
    for name in [namespace, "open-cluster-management-agent-addon"] {
        until(name, || async {
            spoke.find::<Value>(&gvr("namespaces"), "", name).await.expect("an answer").is_none()
        })
        .await;
    }
    let role = "open-cluster-management:klusterlet-work:execution";
    let found: Option<Value> = spoke.find(&gvr("clusterroles"), "", role).await.expect("an answer");
    assert!(found.is_none());
    assert_eq!(leave(false).await, Left::default(), "once more does no harm");
    assert!(there("two").await.is_some());
    w.end().await;
}
