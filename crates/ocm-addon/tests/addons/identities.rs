//! Identities of add-on agents on the hub.

use std::sync::Arc;

use runtime::rest::{Gvr, Removal, Rest};
use serde_json::{Value, json};
use space::Identity;

use crate::world::{AGENTS, Plain, STATUS, World, condition, create, gvr, member, owner, until};

const SECRET: &str = "addon-status-hub-kubeconfig";

/// OCM-A-83, OCM-119: the namespace of the agents comes after everything else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_83_the_namespace_appears_late() {
    let w = World::start(1).await;
    let manager = w.manager(|_| ());
    let agent = w.agent(1, false, vec![]);
    w.until_secret(1, AGENTS, SECRET).await;
    let elsewhere = json!({"spec": {"installNamespace": "late"}});
    w.hub().merge::<Value>(&gvr("managedclusteraddons"), "c1", STATUS, &elsewhere).await.expect("moved");
    until("the old Secret to go", || async { w.secret(1, AGENTS, SECRET).await.is_none() }).await;
    until("another request", || async { w.requests("c1").await.len() == 2 }).await;
    assert!(w.secret(1, "late", SECRET).await.is_none());
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "late"}});
    create(&w.admin(1), &gvr("namespaces"), "", namespace).await;
    w.until_secret(1, "late", SECRET).await;
    assert_eq!(w.requests("c1").await.len(), 2, "the certificate was kept meanwhile");
    agent.end().await;
    manager.end().await;
    w.end().await;
}

/// OCM-A-84, OCM-114, OCM-115: another user is another identity; it is used verbatim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_84_a_registration_changes() {
    let w = World::start(1).await;
    let manager = w.manager(|_| ());
    let agent = w.agent(1, false, vec![]);
    let first = w.until_secret(1, AGENTS, SECRET).await;
    // A restarted Go controller chooses another name; ours keeps it.
    let group = "system:open-cluster-management:cluster:c1:addon:addon-status";
    let user = format!("{group}:agent:x7k2p");
    let groups = json!([group, "system:open-cluster-management:addon:addon-status", "system:authenticated"]);
    let registrations = json!({"status": {"registrations": [{"signerName": "kubernetes.io/kube-apiserver-client",
        "subject": {"user": user, "groups": groups}}]}});
    w.hub()
        .merge_status::<Value>(&gvr("managedclusteraddons"), "c1", STATUS, &registrations)
        .await
        .expect("changed");
    until("another Secret", || async {
        w.secret(1, AGENTS, SECRET).await.is_some_and(|s| s["metadata"]["uid"] != first["metadata"]["uid"])
    })
    .await;
    let requests = w.requests("c1").await;
    assert_eq!(requests.len(), 2);
    let addon = w.addon("c1", STATUS).await.expect("it");
    assert_eq!(addon["status"]["registrations"][0]["subject"]["user"], user);
    agent.end().await;
    manager.end().await;
    w.end().await;
}

/// OCM-A-85, OCM-115: an identity from another signer than the hub's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_85_a_custom_signer() {
    let w = World::start(1).await;
    let manager = w.manager(|config| {
        config.addons = vec![Arc::new(Plain { hook: false, signer: Some("example.com/signer") })];
        config.definitions.clear();
    });
    let agent = w.agent(1, false, vec![]);
    let hub = w.hub();
    w.until_cluster("c1", "ManagedClusterConditionAvailable", "True").await;
    create(&hub, &gvr("clustermanagementaddons"), "", owner("plain", &json!({"type": "Manual"}))).await;
    create(&hub, &gvr("managedclusteraddons"), "c1", member("plain")).await;
    let custom = || async {
        w.requests("c1").await.into_iter().find(|r| r["spec"]["signerName"] == "example.com/signer")
    };
    until("the request", || async { custom().await.is_some() }).await;
    let request = custom().await.expect("it");
    assert_eq!(condition(&request, "Approved"), Value::Null, "not for us to approve");
    // The other signer: it issues any certificate for the key.
    let name = request["metadata"]["name"].as_str().expect("a name").to_owned();
    let signed = sign(&request);
    let now = jiff::Timestamp::now().to_string();
    let approved = json!([{"type": "Approved", "status": "True", "reason": "Signer", "message": "", "lastUpdateTime": now, "lastTransitionTime": now}]);
    let parsed = serde_json::from_value(request.clone()).expect("a request");
    ocm_shared::bootstrap::approve(&hub, &parsed, approved[0].clone()).await.expect("approved");
    let issued = json!({"status": {"certificate": signed}});
    hub.merge_status::<Value>(&gvr("certificatesigningrequests"), "", &name, &issued).await.expect("issued");
    let secret = w.until_secret(1, AGENTS, "plain-example.com-signer-client-cert").await;
    let keys: Vec<&String> = secret["data"].as_object().expect("data").keys().collect();
    assert_eq!(keys, ["cluster-name", "tls.crt", "tls.key"]);
    agent.end().await;
    manager.end().await;
    w.end().await;
}

/// OCM-167: the agent of an add-on gets tokens of a service account in the mailbox; a new one when the account is another;
/// and a certificate again when the cluster's agent says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_167_an_identity_by_token() {
    let w = World::start(1).await;
    let manager = w.manager(|_| ());
    let agent = w.agent_with(1, false, |config| config.addon_tokens = Some(3600));
    let token = async || w.secret(1, AGENTS, SECRET).await?["data"].get("token").cloned();
    until("a token", || async { token().await.is_some() }).await;
    w.until_addon("c1", STATUS, "TokenRefreshed", "True", "AddonTokenRefreshed").await;
    w.until_addon("c1", STATUS, "TokenInfrastructureReady", "True", "TokenInfrastructureReady").await;
    let addon = w.addon("c1", STATUS).await.expect("it");
    assert_eq!(addon["status"]["kubeClientDriver"], "token");
    let user = &addon["status"]["registrations"][0]["subject"]["user"];
    assert_eq!(user, "system:serviceaccount:c1:addon-status-agent");
    let secret = w.secret(1, AGENTS, SECRET).await.expect("it");
    let keys: Vec<&String> = secret["data"].as_object().expect("data").keys().collect();
    assert_eq!(keys, ["cluster-name", "kubeconfig", "token"]);
    assert!(w.requests("c1").await.is_empty(), "no certificate is asked for");

    let (hub, first, accounts) = (w.hub(), token().await, gvr("serviceaccounts"));
    let may = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
        "user": "system:serviceaccount:c1:addon-status-agent",
        "resourceAttributes": {"verb": "create", "group": "control.kubestellar.io", "resource": "workstatuses", "namespace": "c1"}}});
    let reviews = Gvr::new("authorization.k8s.io", "v1", "subjectaccessreviews");
    until("its permissions", || async {
        create(&hub, &reviews, "", may.clone()).await["status"]["allowed"] == true
    })
    .await;
    hub.delete(&accounts, "c1", "addon-status-agent", &Removal::default()).await.expect("deleted");
    until("a token of the new account", || async { token().await.is_some_and(|new| Some(new) != first) })
        .await;
    let right = "addon-status-token-role";
    hub.delete(&gvr("rolebindings"), "c1", right, &Removal::default()).await.expect("deleted");
    until("the right again", || async {
        hub.find::<Value>(&gvr("rolebindings"), "c1", right).await.expect("an answer").is_some()
    })
    .await;

    agent.end().await;
    let agent = w.agent(1, false, vec![]);
    until("a certificate", || async {
        let secret = w.secret(1, AGENTS, SECRET).await.unwrap_or_default();
        secret["data"].get("tls.crt").is_some() && secret["data"].get("token").is_none()
    })
    .await;
    until("no account", || async {
        hub.find::<Value>(&accounts, "c1", "addon-status-agent").await.expect("an answer").is_none()
    })
    .await;
    until("nothing said about it", || async {
        let addon = w.addon("c1", STATUS).await.expect("it");
        condition(&addon, "TokenInfrastructureReady") == Value::Null
    })
    .await;
    agent.end().await;
    manager.end().await;
    w.end().await;
}

/// OCM-167: a service account that somebody else made is not handed out to the cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_167_a_foreign_service_account_is_left_alone() {
    let w = World::start(1).await;
    let hub = w.hub();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "c1"}});
    create(&hub, &gvr("namespaces"), "", namespace).await;
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "addon-status-agent"}});
    create(&hub, &gvr("serviceaccounts"), "c1", account).await;
    let manager = w.manager(|_| ());
    let agent = w.agent_with(1, false, |config| config.addon_tokens = Some(3600));
    w.until_addon("c1", STATUS, "TokenInfrastructureReady", "False", "TokenInfrastructureApplyFailed").await;
    let role: Option<Value> =
        hub.find(&gvr("roles"), "c1", "addon-status-token-role").await.expect("an answer");
    assert_eq!(role, None);
    assert!(w.secret(1, AGENTS, SECRET).await.is_none());
    agent.end().await;
    manager.end().await;
    w.end().await;
}

/// Returns a certificate for the key and subject of a request, base64 of PEM.
fn sign(request: &Value) -> String {
    use base64::Engine as _;
    let standard = base64::engine::general_purpose::STANDARD;
    let pem = standard.decode(request["spec"]["request"].as_str().expect("a request")).expect("base64");
    let pem = String::from_utf8(pem).expect("PEM");
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut ca = rcgen::CertificateParams::default();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let issuer = rcgen::Issuer::new(ca, key);
    let params = rcgen::CertificateSigningRequestParams::from_pem(&pem).expect("readable");
    standard.encode(params.signed_by(&issuer).expect("signed").pem())
}

/// OCM-A-86, OCM-117: no agent gets the identity of another cluster's add-on, not even if the names share a
/// prefix.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_86_a_foreign_request() {
    let w = World::start(1).await;
    let manager = w.manager(|_| ());
    let agent = w.agent(1, false, vec![]);
    w.until_secret(1, AGENTS, SECRET).await;
    let own = w.requests("c1").await.remove(0);
    let request = |name: &str| {
        json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": name, "labels": own["metadata"]["labels"]},
            "spec": {"signerName": own["spec"]["signerName"], "usages": own["spec"]["usages"], "request": own["spec"]["request"]}})
    };
    let may_ask = json!([{"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"], "verbs": ["create"]}]);
    let admin = w.hub();
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "asking"}, "rules": may_ask});
    create(&admin, &gvr("clusterroles"), "", role).await;
    let all =
        json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}]);
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "asking"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "asking"}, "subjects": all});
    create(&admin, &gvr("clusterrolebindings"), "", binding).await;
    for (name, user) in [
        ("addon-c1-addon-status-twin", "system:open-cluster-management:c10:k"),
        ("addon-c1-addon-status-other", "system:open-cluster-management:c2:k"),
        ("addon-c1-addon-status-human", "someone"),
    ] {
        let client = w.spaces[0].client(&Identity::component(user, &[]));
        create(&Rest::new(client), &gvr("certificatesigningrequests"), "", request(name)).await;
    }
    // A correct request, created last, is approved; by then the others have been processed.
    let client = w.spaces[0].client(&Identity::component("system:open-cluster-management:c1:k", &[]));
    create(&Rest::new(client), &gvr("certificatesigningrequests"), "", request("addon-c1-addon-status-z"))
        .await;
    until("the good one", || async {
        w.requests("c1").await.iter().any(|r| {
            r["metadata"]["name"] == "addon-c1-addon-status-z" && condition(r, "Approved")["status"] == "True"
        })
    })
    .await;
    for found in w.requests("c1").await {
        let user = found["spec"]["username"].as_str().expect("a user");
        let good = user.starts_with("system:open-cluster-management:c1:");
        assert_eq!(condition(&found, "Approved")["status"] == "True", good, "{user}");
    }
    agent.end().await;
    manager.end().await;
    w.end().await;
}

/// OCM-A-99, OCM-131: a manager that is restarted again and again has no effect on existing identities.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_99_the_manager_is_restarted() {
    let w = World::start(1).await;
    let mut manager = w.manager(|_| ());
    let agent = w.agent(1, true, vec![]);
    w.deployment_runs(1, 1).await;
    w.until_addon("c1", STATUS, "Available", "True", "ProbeAvailable").await;
    let secret = w.until_secret(1, AGENTS, SECRET).await;
    w.until_addon("c1", STATUS, "ClusterCertificateRotated", "True", "ClientCertificateUpdated").await;
    let deployment: Value = w.admin(1).get(&gvr("deployments"), AGENTS, "status-agent").await.expect("it");
    for round in 0..12 {
        manager.end().await;
        manager = w.manager(|_| ());
        // It works once it has processed a new annotation of the cluster.
        let said = round.to_string();
        let note = json!({"metadata": {"annotations": {"addon.open-cluster-management.io/round": said}}});
        w.hub().merge::<Value>(&gvr("managedclusters"), "", "c1", &note).await.expect("noted");
        until("the note", || async {
            let addon = w.addon("c1", STATUS).await.expect("it");
            addon["metadata"]["annotations"]["addon.open-cluster-management.io/round"] == said.as_str()
        })
        .await;
    }
    assert_eq!(w.requests("c1").await.len(), 1);
    let after = w.secret(1, AGENTS, SECRET).await.expect("it");
    assert_eq!(after["metadata"]["resourceVersion"], secret["metadata"]["resourceVersion"]);
    let still: Value = w.admin(1).get(&gvr("deployments"), AGENTS, "status-agent").await.expect("it");
    assert_eq!(still["metadata"]["generation"], deployment["metadata"]["generation"]);
    assert_eq!(still["metadata"]["uid"], deployment["metadata"]["uid"]);
    agent.end().await;
    manager.end().await;
    w.end().await;
}
