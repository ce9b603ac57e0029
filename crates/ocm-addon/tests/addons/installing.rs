//! Installation and removal of add-ons.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::world::{AGENTS, Plain, STATUS, World, condition, create, delete, gvr, member, owner, until};

/// OCM-A-80, OCM-110, OCM-112, OCM-113, OCM-115, OCM-116, OCM-117, OCM-118, OCM-119, OCM-130: the status
/// add-on is installed in every cluster automatically, including one that joins later, in the steps of the
/// original and with its names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_80_install_everywhere() {
    let w = World::start(3).await;
    let manager = w.manager(|_| ());
    let mut agents = vec![w.agent(1, true, vec![]), w.agent(2, true, vec![])];
    for space in [1, 2, 3] {
        if space == 3 {
            agents.push(w.agent(3, true, vec![]));
        }
        let cluster = format!("c{space}");
        w.until_addon(&cluster, STATUS, "RegistrationApplied", "True", "SetPermissionApplied").await;
        let addon = w.addon(&cluster, STATUS).await.expect("it");
        let owner = &addon["metadata"]["ownerReferences"][0];
        assert_eq!(
            (&owner["kind"], &owner["name"], &owner["controller"]),
            (&json!("ClusterManagementAddOn"), &json!(STATUS), &json!(true))
        );
        let registration = &addon["status"]["registrations"][0];
        assert_eq!(registration["signerName"], "kubernetes.io/kube-apiserver-client");
        let group = format!("system:open-cluster-management:cluster:{cluster}:addon:addon-status");
        assert_eq!(registration["subject"]["user"], format!("{group}:agent:addon-status"), "OCM-131: stable");
        assert_eq!(
            registration["subject"]["groups"],
            json!([group, "system:open-cluster-management:addon:addon-status"])
        );
        assert_eq!(addon["status"]["namespace"], AGENTS);
        assert_eq!(addon["status"]["healthCheck"]["mode"], "Customized");
        assert_eq!(addon["status"]["supportedConfigs"][0]["resource"], "addondeploymentconfigs");

        let secret = w.until_secret(space, AGENTS, "addon-status-hub-kubeconfig").await;
        let keys: Vec<&String> = secret["data"].as_object().expect("data").keys().collect();
        assert_eq!(keys, ["cluster-name", "kubeconfig", "tls.crt", "tls.key"]);
        let requests = w.requests(&cluster).await;
        assert_eq!(requests.len(), 1);
        let name = requests[0]["metadata"]["name"].as_str().expect("a name");
        assert!(name.starts_with(&format!("addon-{cluster}-addon-status-")), "{name}");
        let approved = condition(&requests[0], "Approved");
        assert_eq!(approved["reason"], "AutoApprovedByHubCSRApprovingController");
        assert_eq!(approved["message"], "Auto approving addon agent certificate.");

        w.deployment_runs(space, 1).await;
        w.until_addon(&cluster, STATUS, "Available", "True", "ProbeAvailable").await;
        w.until_addon(&cluster, STATUS, "ManifestApplied", "True", "AddonManifestApplied").await;
        w.until_addon(&cluster, STATUS, "ClusterCertificateRotated", "True", "ClientCertificateUpdated")
            .await;
        until("the label", || async { w.label(&cluster, STATUS).await == "available" }).await;
        assert_eq!(w.addon(&cluster, STATUS).await.expect("it")["status"]["kubeClientDriver"], "csr");
        let work: Value = w
            .hub()
            .get(&gvr("manifestworks"), &cluster, "addon-addon-status-deploy-0")
            .await
            .expect("a work");
        assert_eq!(work["metadata"]["labels"]["open-cluster-management.io/addon-name"], STATUS);
        assert_eq!(work["metadata"]["ownerReferences"][0]["kind"], "ManagedClusterAddOn");
        let namespace: Value = w.admin(space).get(&gvr("namespaces"), "", AGENTS).await.expect("a namespace");
        assert_eq!(namespace["metadata"]["labels"]["addon.open-cluster-management.io/namespace"], "true");

        // The certificate grants the permissions of the add-on and no others.
        let pem = secret["data"]["tls.crt"].as_str().expect("a certificate");
        let pem = String::from_utf8(base64(pem)).expect("PEM");
        let hub = runtime::rest::Rest::new(w.spaces[0].client_ahead_by_certificate(&pem).expect("a client"));
        hub.list::<Value>(&gvr("manifestworks"), &cluster, "").await.expect("its works");
        let other = if space == 1 { "c2" } else { "c1" };
        hub.list::<Value>(&gvr("manifestworks"), other, "").await.expect_err("others' works");
    }
    // A replica that is not ready any more is reported.
    w.deployment_runs(1, 0).await;
    w.until_addon("c1", STATUS, "Available", "False", "ProbeUnavailable").await;
    // Changes of a role and of a work are reverted.
    let role = "open-cluster-management:addon-status:agent";
    let none = json!({"rules": []});
    w.hub().merge::<Value>(&gvr("roles"), "c1", role, &none).await.expect("changed");
    until("the rules again", || async {
        let role: Value = w.hub().get(&gvr("roles"), "c1", role).await.expect("it");
        role["rules"].as_array().is_some_and(|rules| rules.len() == 5)
    })
    .await;
    let empty = json!({"spec": {"workload": {"manifests": []}}});
    w.hub()
        .merge::<Value>(&gvr("manifestworks"), "c1", "addon-addon-status-deploy-0", &empty)
        .await
        .expect("changed");
    until("the manifests again", || async {
        let work: Value =
            w.hub().get(&gvr("manifestworks"), "c1", "addon-addon-status-deploy-0").await.expect("it");
        work["spec"]["workload"]["manifests"].as_array().is_some_and(|all| all.len() == 3)
    })
    .await;
    until("the definition to be complete", || async {
        let owner: Value = w.hub().get(&gvr("clustermanagementaddons"), "", STATUS).await.expect("it");
        owner["status"]["installProgressions"][0]["name"] == "global"
    })
    .await;
    for agent in agents {
        agent.end().await;
    }
    manager.end().await;
    w.end().await;
}

fn base64(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).expect("base64")
}

/// OCM-A-81, OCM-110, OCM-163: a cluster that is no longer selected loses the add-on with all its objects,
/// whoever created it; deleting the definition removes the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_81_add_and_remove_by_placement() {
    let w = World::start(2).await;
    let manager = w.manager(|config| config.addons.push(Arc::new(Plain::default())));
    let agents = [w.agent(1, true, vec![]), w.agent(2, true, vec![])];
    let (hub, place) = (w.hub(), "open-cluster-management");
    w.until_cluster("c1", "ManagedClusterConditionAvailable", "True").await;
    w.until_cluster("c2", "ManagedClusterConditionAvailable", "True").await;
    // Created by a user before there is a definition.
    create(&hub, &gvr("managedclusteraddons"), "c2", member("plain")).await;
    let strategy = json!({"type": "Placements", "placements": [{"namespace": place, "name": "some"}]});
    create(&hub, &gvr("clustermanagementaddons"), "", owner("plain", &json!({"type": "Manual"}))).await;
    w.until_addon("c2", "plain", "ManifestApplied", "True", "AddonManifestApplied").await;
    assert!(w.addon("c1", "plain").await.is_none(), "Manual: hands off");

    let select = |name: &str| json!({"predicates": [{"requiredClusterSelector": {"labelSelector": {"matchLabels": {"name": name}}}}]});
    for cluster in ["c1", "c2"] {
        let labels = json!({"metadata": {"labels": {"name": cluster}}});
        hub.merge::<Value>(&gvr("managedclusters"), "", cluster, &labels).await.expect("labelled");
    }
    let placement = json!({"apiVersion": "cluster.open-cluster-management.io/v1beta1", "kind": "Placement",
        "metadata": {"name": "some"}, "spec": select("c1")});
    create(&hub, &gvr("placements"), place, placement).await;
    hub.merge::<Value>(
        &gvr("clustermanagementaddons"),
        "",
        "plain",
        &json!({"spec": {"installStrategy": strategy}}),
    )
    .await
    .expect("installed by placement");
    w.until_addon("c1", "plain", "ManifestApplied", "True", "AddonManifestApplied").await;
    let configmap = |space: usize| {
        let spoke = w.admin(space);
        async move { spoke.find::<Value>(&gvr("configmaps"), AGENTS, "plain").await.expect("an answer").is_some() }
    };
    until("the hand-made one to go", || async { w.addon("c2", "plain").await.is_none() }).await;
    until("its objects to go", || async { !configmap(2).await }).await;
    assert!(configmap(1).await);
    let decision: Value =
        hub.get(&gvr("placementdecisions"), place, "some-decision-1").await.expect("a page");
    assert_eq!(decision["status"]["decisions"], json!([{"clusterName": "c1", "reason": ""}]));
    assert_eq!(decision["metadata"]["labels"]["cluster.open-cluster-management.io/placement"], "some");

    delete(&hub, &gvr("clustermanagementaddons"), "", "plain").await;
    until("the add-on to go", || async { w.addon("c1", "plain").await.is_none() }).await;
    until("its objects to go", || async { !configmap(1).await }).await;
    for agent in agents {
        agent.end().await;
    }
    manager.end().await;
    w.end().await;
}

/// OCM-130, OCM-131: the permissions of an add-on's agent on the hub are removed with the add-on, from a
/// cluster that stays, and granted again with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_130_rights_go_with_the_addon() {
    let w = World::start(1).await;
    let manager = w.manager(|_| ());
    let agent = w.agent(1, false, vec![]);
    let (hub, name) = (w.hub(), "open-cluster-management:addon-status:agent");
    let right = async |plural: &str| {
        let found: Option<Value> = hub.find(&gvr(plural), "c1", name).await.expect("an answer");
        found.map(|right| right["metadata"]["ownerReferences"][0]["uid"].clone())
    };
    w.until_addon("c1", STATUS, "RegistrationApplied", "True", "SetPermissionApplied").await;
    let addon = w.addon("c1", STATUS).await.expect("it");
    for plural in ["roles", "rolebindings"] {
        assert_eq!(right(plural).await.as_ref(), Some(&addon["metadata"]["uid"]), "{plural}");
    }
    // Automatic installation is switched off, or it would come back.
    let manual = json!({"spec": {"installStrategy": {"type": "Manual", "placements": null}}});
    hub.merge::<Value>(&gvr("clustermanagementaddons"), "", STATUS, &manual).await.expect("by hand");
    delete(&hub, &gvr("managedclusteraddons"), "c1", STATUS).await;
    for plural in ["roles", "rolebindings"] {
        until(&format!("the end of its {plural}"), || async { right(plural).await.is_none() }).await;
    }
    w.until_cluster("c1", "ManagedClusterConditionAvailable", "True").await;
    create(&hub, &gvr("managedclusteraddons"), "c1", member(STATUS)).await;
    w.until_addon("c1", STATUS, "RegistrationApplied", "True", "SetPermissionApplied").await;
    let again = w.addon("c1", STATUS).await.expect("it");
    for plural in ["roles", "rolebindings"] {
        until(&format!("its {plural} again"), || async {
            right(plural).await.as_ref() == Some(&again["metadata"]["uid"])
        })
        .await;
    }
    agent.end().await;
    manager.end().await;
    w.end().await;
}

/// OCM-110, OCM-163: before add-ons are removed from clusters that a Placement no longer selects, the server
/// is asked once for each Placement, for any number of clusters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_163_one_look_for_all_dropped_clusters() {
    const CLUSTERS: usize = 20;
    let w = World::start(0).await;
    let (hub, place) = (w.hub(), "open-cluster-management");
    let manager = w.manager(|config| config.addons.push(Arc::new(Plain::default())));
    let names: Vec<String> = (0..CLUSTERS).map(|n| format!("c{n}")).collect();
    for name in &names {
        let cluster = json!({"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
            "metadata": {"name": name}, "spec": {"hubAcceptsClient": true}});
        create(&hub, &gvr("managedclusters"), "", cluster).await;
        until("its mailbox", || async {
            hub.find::<Value>(&gvr("namespaces"), "", name).await.expect("an answer").is_some()
        })
        .await;
        create(&hub, &gvr("managedclusteraddons"), name, member("plain")).await;
    }
    let nobody = json!({"apiVersion": "cluster.open-cluster-management.io/v1beta1", "kind": "Placement",
        "metadata": {"name": "nobody"}, "spec": {"predicates": [
            {"requiredClusterSelector": {"labelSelector": {"matchLabels": {"none": "such"}}}}]}});
    create(&hub, &gvr("placements"), place, nobody).await;
    let mark = w.requests.mark();
    let strategy = json!({"type": "Placements", "placements": [{"namespace": place, "name": "nobody"}]});
    create(&hub, &gvr("clustermanagementaddons"), "", owner("plain", &strategy)).await;
    for name in &names {
        until("the add-on to go", || async { w.addon(name, "plain").await.is_none() }).await;
    }
    let all = w.requests.since(mark);
    let looks = all.iter().filter(|l| {
        l.contains("placementdecisions") && l.contains("labelSelector") && !l.contains("watch=true")
    });
    // One, and perhaps another for clusters that were noticed a moment later.
    assert!((1..=4).contains(&looks.count()), "{all:#?}");
    manager.end().await;
    w.end().await;
}

/// OCM-A-82, OCM-112: an add-on without a definition gets no identity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_82_an_owner_is_required() {
    let w = World::start(1).await;
    let manager = w.manager(|config| config.addons.push(Arc::new(Plain::default())));
    let agent = w.agent(1, false, vec![]);
    w.until_cluster("c1", "ManagedClusterConditionAvailable", "True").await;
    create(&w.hub(), &gvr("managedclusteraddons"), "c1", member("plain")).await;
    // The manager has processed it once the status add-on, which was created later, is there.
    w.until_addon("c1", STATUS, "RegistrationApplied", "True", "SetPermissionApplied").await;
    let addon = w.addon("c1", "plain").await.expect("it");
    assert_eq!(condition(&addon, "RegistrationApplied"), Value::Null);
    assert!(addon["metadata"].get("ownerReferences").is_none());
    create(&w.hub(), &gvr("clustermanagementaddons"), "", owner("plain", &json!({"type": "Manual"}))).await;
    w.until_addon("c1", "plain", "RegistrationApplied", "True", "SetPermissionApplied").await;
    let addon = w.addon("c1", "plain").await.expect("it");
    assert_eq!(addon["metadata"]["ownerReferences"][0]["name"], "plain");
    agent.end().await;
    manager.end().await;
    w.end().await;
}

/// OCM-A-88, OCM-005, OCM-116: an add-on is deleted when its hook has run, together with its objects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_88_a_hook_runs_before_the_addon_goes() {
    let w = World::start(1).await;
    let manager = w.manager(|config| config.addons = vec![Arc::new(Plain { hook: true, signer: None })]);
    let agent = w.agent(1, true, vec![]);
    let hub = w.hub();
    w.until_cluster("c1", "ManagedClusterConditionAvailable", "True").await;
    create(&hub, &gvr("clustermanagementaddons"), "", owner("plain", &json!({"type": "Manual"}))).await;
    create(&hub, &gvr("managedclusteraddons"), "c1", member("plain")).await;
    w.until_addon("c1", "plain", "ManifestApplied", "True", "AddonManifestApplied").await;
    let hold = "addon.open-cluster-management.io/addon-pre-delete";
    let addon = w.addon("c1", "plain").await.expect("it");
    assert_eq!(addon["metadata"]["finalizers"], json!([hold]));
    let spoke = w.admin(1);
    assert!(spoke.find::<Value>(&gvr("jobs"), AGENTS, "bye").await.expect("an answer").is_none(), "not yet");

    delete(&hub, &gvr("managedclusteraddons"), "c1", "plain").await;
    until("the hook", || async {
        spoke.find::<Value>(&gvr("jobs"), AGENTS, "bye").await.expect("an answer").is_some()
    })
    .await;
    w.until_addon("c1", "plain", "HookManifestCompleted", "False", "HookManifestIsNotCompleted").await;
    assert!(spoke.find::<Value>(&gvr("configmaps"), AGENTS, "plain").await.expect("an answer").is_some());
    assert!(
        hub.find::<Value>(&gvr("manifestworks"), "c1", "addon-plain-pre-delete")
            .await
            .expect("an answer")
            .is_some()
    );
    let now = jiff::Timestamp::now().to_string();
    let done = json!({"status": {"startTime": now, "completionTime": now, "succeeded": 1, "conditions": [
        {"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": now, "lastProbeTime": now},
        {"type": "Complete", "status": "True", "lastTransitionTime": now, "lastProbeTime": now}]}});
    spoke.merge_status::<Value>(&gvr("jobs"), AGENTS, "bye", &done).await.expect("completed");
    until("the add-on to go", || async { w.addon("c1", "plain").await.is_none() }).await;
    until("its objects to go", || async {
        spoke.find::<Value>(&gvr("configmaps"), AGENTS, "plain").await.expect("an answer").is_none()
    })
    .await;
    agent.end().await;
    manager.end().await;
    w.end().await;
}
