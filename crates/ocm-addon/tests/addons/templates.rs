//! Add-ons that are deployed from templates.

use serde_json::{Value, json};

use crate::world::{World, condition, create, delete, gvr, member, until};

const SHARED: &str = "shared";

fn template(name: &str, image: &str) -> Value {
    let namespace = "hello-agents";
    let labels = json!({"app": "hello-agent"});
    let role = json!({"type": "CurrentCluster", "currentCluster": {"clusterRoleName": "hello-here"}});
    let other = json!({"type": "SingleNamespace", "singleNamespace": {"namespace": SHARED,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "hello-there"}}});
    json!({"apiVersion": "addon.open-cluster-management.io/v1alpha1", "kind": "AddOnTemplate", "metadata": {"name": name},
        "spec": {"addonName": "hello", "agentSpec": {"workload": {"manifests": [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "hello", "namespace": namespace}},
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "hello-agent", "namespace": namespace, "labels": labels},
                "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
                    "spec": {"serviceAccountName": "hello", "containers": [{"name": "agent", "image": image,
                        "args": ["--cluster={{CLUSTER_NAME}}", "--level={{LEVEL}}"]}]}}}}]}},
        "registration": [{"type": "KubeClient", "kubeClient": {"hubPermissions": [role, other]}},
            {"type": "CustomSigner", "customSigner": {"signerName": "example.com/hello", "signingCA": {"name": "hello-ca", "namespace": SHARED}}}]}})
}

/// An owner whose add-on is deployed from a template.
fn owner(template: &str) -> Value {
    let group = "addon.open-cluster-management.io";
    json!({"apiVersion": format!("{group}/v1alpha1"), "kind": "ClusterManagementAddOn", "metadata": {"name": "hello"},
        "spec": {"installStrategy": {"type": "Manual"}, "supportedConfigs": [
            {"group": group, "resource": "addontemplates", "defaultConfig": {"name": template}},
            {"group": group, "resource": "addondeploymentconfigs"}]}})
}

/// Certificate and key of a signer, as a Secret of the hub.
fn authority() -> Value {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut ca = rcgen::CertificateParams::default();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = ca.self_signed(&key).expect("signed").pem();
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hello-ca"}, "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": certificate, "tls.key": key.serialize_pem()}})
}

async fn deployment(w: &World, space: usize) -> Option<Value> {
    w.admin(space).find(&gvr("deployments"), "hello-agents", "hello-agent").await.expect("an answer")
}

async fn until_deployed(w: &World, space: usize, what: &str, ask: impl Fn(&Value) -> bool) {
    until(what, || async { deployment(w, space).await.is_some_and(|found| ask(&found)) }).await;
}

fn container(deployment: &Value) -> &Value {
    &deployment["spec"]["template"]["spec"]["containers"][0]
}

async fn bindings(w: &World, namespace: &str) -> Vec<String> {
    let label = "open-cluster-management.io/addon-template-name,open-cluster-management.io/addon-name=hello";
    let list: Value = w.hub().list(&gvr("rolebindings"), namespace, label).await.expect("a list");
    let name = |b: &Value| b["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    list["items"].as_array().into_iter().flatten().map(name).collect()
}

/// OCM-113, OCM-116, OCM-117, OCM-118: a template alone installs an agent in a cluster, with objects,
/// identities, permissions, configuration and health. Changes take effect, and everything is removed with the
/// add-on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_116_an_addon_from_a_template() {
    let w = World::start(1).await;
    let manager = w.manager(|config| {
        config.addons.clear();
        config.definitions.clear();
    });
    let agent = w.agent(1, true, vec![]);
    let hub = w.hub();
    w.until_cluster("c1", "ManagedClusterConditionAvailable", "True").await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SHARED}});
    create(&hub, &gvr("namespaces"), "", namespace).await;
    create(&hub, &gvr("secrets"), SHARED, authority()).await;
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]);
    for (kind, plural, place, name) in
        [("ClusterRole", "clusterroles", "", "hello-here"), ("Role", "roles", SHARED, "hello-there")]
    {
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "rules": rules});
        create(&hub, &gvr(plural), place, role).await;
    }
    create(&hub, &gvr("clustermanagementaddons"), "", owner("hello-1")).await;
    create(&hub, &gvr("managedclusteraddons"), "c1", member("hello")).await;
    // The template does not exist yet: that is reported until it is created.
    w.until_addon("c1", "hello", "ManifestApplied", "False", "ManifestWorkApplyFailed").await;
    w.until_addon("c1", "hello", "RegistrationApplied", "False", "SetPermissionFailed").await;
    create(&hub, &gvr("addontemplates"), "", template("hello-1", "quay.io/ocm/hello:1")).await;
    w.until_addon("c1", "hello", "Configured", "True", "ConfigurationsConfigured").await;
    w.until_addon("c1", "hello", "RegistrationApplied", "True", "SetPermissionApplied").await;
    w.until_addon("c1", "hello", "ManifestApplied", "True", "AddonManifestApplied").await;
    let status = w.addon("c1", "hello").await.expect("it")["status"].clone();
    assert_eq!(
        (&status["namespace"], &status["healthCheck"]["mode"]),
        (&json!("hello-agents"), &json!("Customized"))
    );
    let user = "system:open-cluster-management:cluster:c1:addon:hello:agent:hello-agent";
    assert_eq!(status["registrations"][0]["subject"]["user"], user);
    until_deployed(&w, 1, "the Deployment", |d| {
        container(d)["args"] == json!(["--cluster=c1", "--level="])
            && container(d)["volumeMounts"][0]["mountPath"] == "/managed/hub-kubeconfig"
    })
    .await;

    // Its identities, and their permissions.
    let secret = w.until_secret(1, "hello-agents", "hello-hub-kubeconfig").await;
    let certificate = {
        use base64::Engine as _;
        let text = secret["data"]["tls.crt"].as_str().expect("a certificate");
        base64::engine::general_purpose::STANDARD.decode(text).expect("base64")
    };
    let pem = String::from_utf8(certificate).expect("PEM");
    let mine = runtime::rest::Rest::new(w.spaces[0].client_ahead_by_certificate(&pem).expect("a client"));
    for allowed in ["c1", SHARED] {
        mine.list::<Value>(&gvr("configmaps"), allowed, "").await.expect("its ConfigMaps");
    }
    mine.list::<Value>(&gvr("secrets"), SHARED, "").await.expect_err("the signer's key");
    w.until_secret(1, "hello-agents", "hello-example.com-hello-client-cert").await;

    // Its health is that of its Deployment, which is unknown before the first report.
    w.until_addon("c1", "hello", "Available", "Unknown", "NoProbeResult").await;
    for (ready, available, reason) in [(0, "False", "ProbeUnavailable"), (1, "True", "ProbeAvailable")] {
        let status = json!({"status": {"replicas": 1, "readyReplicas": ready, "availableReplicas": ready}});
        w.admin(1)
            .merge_status::<Value>(&gvr("deployments"), "hello-agents", "hello-agent", &status)
            .await
            .expect("a status");
        w.until_addon("c1", "hello", "Available", available, reason).await;
    }
    w.until_addon("c1", "hello", "Progressing", "False", "Completed").await;
    let reference = |status: &Value| status["configReferences"][0].clone();
    let first = reference(&w.addon("c1", "hello").await.expect("it")["status"]);
    assert_eq!(first["resource"], "addontemplates");
    assert_eq!(first["desiredConfig"], first["lastAppliedConfig"]);

    // Another template, and configuration for this cluster.
    create(&hub, &gvr("addontemplates"), "", template("hello-2", "quay.io/ocm/hello:2")).await;
    let config = json!({"apiVersion": "addon.open-cluster-management.io/v1alpha1", "kind": "AddOnDeploymentConfig",
        "metadata": {"name": "mine"}, "spec": {"agentInstallNamespace": "hello-agents",
            "customizedVariables": [{"name": "LEVEL", "value": "4"}], "registries": [{"source": "quay.io", "mirror": "mirror.example"}]}});
    create(&hub, &gvr("addondeploymentconfigs"), "c1", config).await;
    let group = "addon.open-cluster-management.io";
    let configs = json!([{"group": group, "resource": "addontemplates", "name": "hello-2"},
        {"group": group, "resource": "addondeploymentconfigs", "namespace": "c1", "name": "mine"}]);
    let spec = json!({"spec": {"configs": configs}});
    hub.merge::<Value>(&gvr("managedclusteraddons"), "c1", "hello", &spec).await.expect("configured");
    until_deployed(&w, 1, "the new template", |d| {
        container(d)["image"] == "mirror.example/ocm/hello:2"
            && container(d)["args"] == json!(["--cluster=c1", "--level=4"])
    })
    .await;
    until("the new configuration to have arrived", || async {
        let addon = w.addon("c1", "hello").await.expect("it");
        let all = addon["status"]["configReferences"].as_array().cloned().unwrap_or_default();
        all.len() == 2
            && all.iter().all(|r| r["desiredConfig"] == r["lastAppliedConfig"] && r["name"] != "hello-1")
    })
    .await;
    let work: Value = hub.get(&gvr("manifestworks"), "c1", "addon-hello-deploy-0").await.expect("a work");
    let hashes = work["metadata"]["annotations"]["open-cluster-management.io/config-spec-hash"]
        .as_str()
        .expect("hashes");
    assert!(hashes.contains("addontemplates.addon.open-cluster-management.io//hello-2"), "{hashes}");

    let elsewhere = "open-cluster-management:hello:role:agent:c1";
    assert_eq!(bindings(&w, SHARED).await, [elsewhere]);
    assert_eq!(bindings(&w, "c1").await, ["open-cluster-management:hello:clusterrole:agent"]);
    delete(&hub, &gvr("managedclusteraddons"), "c1", "hello").await;
    until("the add-on to go", || async { w.addon("c1", "hello").await.is_none() }).await;
    until("its Deployment to go", || async { deployment(&w, 1).await.is_none() }).await;
    for place in [SHARED, "c1"] {
        until("its rights to go", || async { bindings(&w, place).await.is_empty() }).await;
    }
    agent.end().await;
    manager.end().await;
    w.end().await;
}

/// OCM-117: a template's signer signs only for the cluster's own agent, and only what is registered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_117_a_templates_signer_is_for_its_own_agents() {
    let w = World::start(1).await;
    let manager = w.manager(|config| {
        config.addons.clear();
        config.definitions.clear();
    });
    let agent = w.agent(1, false, vec![]);
    let hub = w.hub();
    w.until_cluster("c1", "ManagedClusterConditionAvailable", "True").await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SHARED}});
    create(&hub, &gvr("namespaces"), "", namespace).await;
    create(&hub, &gvr("secrets"), SHARED, authority()).await;
    create(&hub, &gvr("addontemplates"), "", template("hello-1", "i")).await;
    create(&hub, &gvr("clustermanagementaddons"), "", owner("hello-1")).await;
    create(&hub, &gvr("managedclusteraddons"), "c1", member("hello")).await;
    let custom = || async {
        let all = w.requests("c1").await;
        all.into_iter().find(|r| {
            r["spec"]["signerName"] == "example.com/hello" && r["status"]["certificate"].is_string()
        })
    };
    until("the agent's certificate", || async { custom().await.is_some() }).await;
    let own = custom().await.expect("it");
    // The same request from another client that may create requests.
    let copy = |name: &str| {
        json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": name, "labels": own["metadata"]["labels"]},
            "spec": {"signerName": own["spec"]["signerName"], "usages": own["spec"]["usages"], "request": own["spec"]["request"]}})
    };
    create(&hub, &gvr("certificatesigningrequests"), "", copy("addon-c1-hello-a")).await;
    let klusterlet = space::Identity::component("system:open-cluster-management:c1:k", &["system:masters"]);
    let theirs = runtime::rest::Rest::new(w.spaces[0].client(&klusterlet));
    create(&theirs, &gvr("certificatesigningrequests"), "", copy("addon-c1-hello-b")).await;
    until("the good one", || async {
        request(&w, "addon-c1-hello-b").await["status"]["certificate"].is_string()
    })
    .await;
    let foreign = request(&w, "addon-c1-hello-a").await;
    assert_eq!(condition(&foreign, "Approved"), Value::Null);
    agent.end().await;
    manager.end().await;
    w.end().await;
}

async fn request(w: &World, name: &str) -> Value {
    w.hub().get(&gvr("certificatesigningrequests"), "", name).await.expect("a request")
}
