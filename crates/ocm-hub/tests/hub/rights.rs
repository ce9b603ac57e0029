//! The permissions of credentials.

use runtime::rest::{Gvr, Rest};
use serde_json::{Value, json};

use crate::world::{ACCEPTED, AVAILABLE, RIGHTS, World, condition, create, gvr, trusting, until};

/// OCM-003, OCM-018, OCM-020, OCM-A-35: what the credentials of an agent and of clients that want to join
/// must not allow: any verb in another namespace, and anything that would let them accept themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_044_a_credential_is_good_for_its_own_mailbox_only() {
    let w = World::start(trusting).await;
    let (one, two) = (w.agent(1, "c1", |_| ()), w.agent(2, "c10", |_| ()));
    w.until_condition("c1", AVAILABLE, "True").await;
    w.until_condition("c10", AVAILABLE, "True").await;
    let allowed = |who: Rest,
                   verb: &'static str,
                   gvr: Gvr,
                   sub: &'static str,
                   namespace: &'static str,
                   name: &'static str| async move {
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"verb": verb, "group": gvr.group, "resource": gvr.plural,
                "subresource": sub, "namespace": namespace, "name": name}}});
        let reviews = Gvr::new("authorization.k8s.io", "v1", "selfsubjectaccessreviews");
        let answer = create(&who, &reviews, "", review).await.expect("an answer");
        answer["status"]["allowed"] == true
    };
    let agent = one.rest();
    let verbs = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
    for namespace in ["c10", "default", "kube-system", "open-cluster-management"] {
        for plural in
            ["manifestworks", "managedclusteraddons", "leases", "secrets", "configmaps", "rolebindings"]
        {
            for verb in verbs {
                assert!(
                    !allowed(agent.clone(), verb, gvr(plural), "", namespace, "").await,
                    "{verb} {plural} in {namespace}"
                );
            }
        }
    }
    for verb in verbs {
        assert!(!allowed(agent.clone(), verb, gvr("managedclusters"), "", "", "c10").await, "{verb} c10");
        assert!(!allowed(agent.clone(), verb, gvr("secrets"), "", "c1", "").await, "{verb} secrets");
    }
    // OCM-020: what it must allow.
    for (verb, plural, sub, namespace, name) in [
        ("get list watch", "certificatesigningrequests", "", "", ""),
        ("get list update watch", "managedclusters", "", "", "c1"),
        ("patch update", "managedclusters", "status", "", "c1"),
        ("renew", "register managedclusters", "clientcertificates", "", ""),
        ("get update", "leases", "", "c1", "managed-cluster-lease"),
        ("create patch update", "events", "", "c1", ""),
        ("create patch update", "events.k8s.io events", "", "c1", ""),
        ("get list watch update", "manifestworks", "", "c1", ""),
        ("patch update", "manifestworks", "status", "c1", ""),
    ] {
        for verb in verb.split(' ') {
            assert!(allowed(agent.clone(), verb, gvr(plural), sub, namespace, name).await, "{verb} {plural}");
        }
    }
    assert!(!allowed(agent.clone(), "create", gvr("leases"), "", "c1", "").await, "the hub makes the lease");
    let boot = Rest::new(w.bootstrap());
    for (verb, plural) in [
        ("create", "managedclusters"),
        ("get", "managedclusters"),
        ("create", "certificatesigningrequests"),
        ("get", "certificatesigningrequests"),
        ("list", "certificatesigningrequests"),
        ("watch", "certificatesigningrequests"),
    ] {
        assert!(allowed(boot.clone(), verb, gvr(plural), "", "", "").await, "{verb} {plural}");
    }
    for (verb, plural, sub) in [
        ("update", "managedclusters", ""),
        ("patch", "managedclusters", ""),
        ("update", "managedclusters", "status"),
        ("update", "certificatesigningrequests", "approval"),
        ("delete", "managedclusters", ""),
        ("list", "secrets", ""),
    ] {
        assert!(!allowed(boot.clone(), verb, gvr(plural), sub, "", "").await, "{verb} {plural}/{sub}");
    }
    one.end().await;
    two.end().await;
    w.end().await;
}

/// OCM-042: if admission did not refuse a reserved name, the hub reports it and grants no permissions for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_042_a_reserved_name_gets_no_rights() {
    let w = World::start(|_| ()).await;
    let body = json!({"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
        "metadata": {"name": "work"}, "spec": {"hubAcceptsClient": true}});
    create(&w.hub(), &gvr("managedclusters"), "", body).await.expect("a cluster");
    w.until_condition("work", ACCEPTED, "False").await;
    let reported = condition(&w.cluster("work").await.expect("it"), ACCEPTED);
    assert_eq!(reported["reason"], "Error");
    assert_eq!(
        reported["message"],
        "no cluster may be called \"work\": its role would be one that all clusters share"
    );
    assert!(!w.exists("namespaces", "", "work").await);
    for (plural, name) in [
        ("clusterroles", "open-cluster-management:managedcluster:work"),
        ("clusterrolebindings", "open-cluster-management:managedcluster:work"),
    ] {
        assert!(!w.exists(plural, "", name).await, "{plural}");
    }
    w.end().await;
}

/// OCM-166: mailbox, roles and bindings have the labels of `--labels`, also those that an earlier hub made without,
/// and what a denied cluster keeps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_166_what_the_hub_makes_for_clusters_is_labelled() {
    let w = World::start(|config| {
        trusting(config);
        let labels = [("team", "reef"), ("open-cluster-management.io/cluster-name", "other")];
        config.labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    })
    .await;
    let hub = w.hub();
    // As a hub without labels left it.
    let mailbox = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "c1", "labels": {"open-cluster-management.io/cluster-name": "c1"}}});
    create(&hub, &gvr("namespaces"), "", mailbox).await.expect("a mailbox");
    let role = ocm_shared::rbac::on_hub("c1").remove(0);
    create(&hub, &gvr("clusterroles"), "", role).await.expect("a role");
    let agent = w.agent(1, "c1", |_| ());
    w.until_condition("c1", AVAILABLE, "True").await;
    let labels = async |(plural, namespace, name): (&str, &str, &str)| {
        let found: Value = hub.get(&gvr(plural), namespace, name).await.expect(name);
        found["metadata"]["labels"].clone()
    };
    for place in RIGHTS.into_iter().chain([("namespaces", "", "c1")]) {
        let found = labels(place).await;
        assert_eq!(found["team"], "reef", "{place:?}");
        let shared =
            place.2.ends_with("managedcluster:work") || place.2.ends_with("managedcluster:registration");
        assert_eq!(
            found["open-cluster-management.io/cluster-name"],
            if shared { "" } else { "c1" },
            "{place:?}"
        );
    }
    w.accept("c1", false).await;
    until("the reduced role", || async {
        let role: Value = hub.get(&gvr("clusterroles"), "", RIGHTS[0].2).await.expect("it stays");
        role["rules"].as_array().is_some_and(|rules| rules.len() == 1)
    })
    .await;
    assert_eq!(labels(RIGHTS[0]).await["team"], "reef");
    agent.end().await;
    w.end().await;
}
