//! The components alone, against API servers that are nobody's embedded spaces.

use std::path::PathBuf;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::Condition;
use kube::{Api, Client};
use serde_json::json;

use crate::support::{
    Installation, Server, apply_status, client_of, config_map, create, deployment, dynamic, namespace,
    policy, until, until_one, when,
};

const TOKENS: &str = "secret,admin,1,\"system:masters\"\n";

/// A bare API server and the kubeconfig of its administrator.
pub struct Bare {
    pub server: Server,
    kubeconfig: PathBuf,
    pub client: Client,
}

impl Bare {
    pub async fn start(ks: &Installation, name: &str) -> Self {
        std::fs::write(ks.path("tokens.csv"), TOKENS).unwrap();
        let home = ks.path(name);
        std::fs::create_dir_all(&home).unwrap();
        let address = home.join("url");
        let (store, file) = (home.display().to_string(), address.display().to_string());
        let arguments = [
            "apiserver",
            "--listen",
            "127.0.0.1:0",
            "--store-dir",
            &store,
            "--token-auth-file",
            "tokens.csv",
        ];
        let server = ks.spawn(name, &[&arguments[..], &["--address-file", &file]].concat());
        when("the start of an API server", || address.exists()).await;
        let url = std::fs::read_to_string(&address).unwrap();
        let kubeconfig = home.join("kubeconfig");
        let document = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": name,
            "clusters": [{"name": name, "cluster": {"server": url, "certificate-authority": home.join("pki/ca.crt")}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "users": [{"name": name, "user": {"token": "secret"}}],
        });
        std::fs::write(&kubeconfig, document.to_string()).unwrap();
        let client = client_of(&kubeconfig, name).await;
        Self { server, kubeconfig, client }
    }

    pub async fn define(&self, kinds: Vec<CustomResourceDefinition>) {
        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        for kind in kinds {
            let name = kind.metadata.name.clone().unwrap();
            api.create(&PostParams::default(), &kind).await.unwrap();
            self.defined(&name).await;
        }
    }

    pub async fn defined(&self, name: &str) {
        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        until_one(&api, name, "the definition of a kind", |crd| {
            is_crd_established().matches_object(Some(crd))
        })
        .await;
    }

    pub fn file(&self) -> &str {
        self.kubeconfig.to_str().unwrap()
    }
}

/// SP-071, SP-126, KS-215, KS-216, KS-217, OCM-139, OCM-151: each component as a process of its own, knowing nothing but
/// kubeconfigs: an object travels from the WDS to the cluster and its status comes back.
#[tokio::test(flavor = "multi_thread")]
async fn sp_126_components_as_processes_of_their_own() {
    let ks = Installation::new();
    let (wds, its, wec) =
        tokio::join!(Bare::start(&ks, "wds9"), Bare::start(&ks, "its9"), Bare::start(&ks, "edge9"));
    its.define([apis::crds::ocm_hub(), apis::crds::work_status()].concat()).await;
    wec.define(apis::crds::ocm_spoke()).await;
    create(
        &its.client,
        json!({
            "apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
            "metadata": {"name": "edge9", "labels": {"where": "far"}},
            "spec": {"hubAcceptsClient": true},
        }),
    )
    .await;
    create(&its.client, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "edge9"}}))
        .await;

    let free = ["--metrics-bind-address=0", "--pprof-bind-address=0", "--health-probe-bind-address=0"];
    let agent_free = [&free[..], &["--listen=127.0.0.1:0"]].concat();
    let start = |name: &str, arguments: &[&str]| {
        ks.spawn(
            name,
            &[&[name][..], arguments, if name == "work-agent" { &agent_free[..] } else { &free[..] }]
                .concat(),
        )
    };
    let mut components = vec![
        start(
            "transport-controller",
            &[
                "--wds-name",
                "wds9",
                "--wds-kubeconfig",
                wds.file(),
                "--transport-kubeconfig",
                its.file(),
                "--object-generations",
            ],
        ),
        start(
            "controller-manager",
            &[
                "--wds-name",
                "wds9",
                "--wds-kubeconfig",
                wds.file(),
                "--its-name",
                "its9",
                "--its-kubeconfig",
                its.file(),
            ],
        ),
        start(
            "work-agent",
            &[
                "--spoke-cluster-name",
                "edge9",
                "--hub-kubeconfig",
                its.file(),
                "--spoke-kubeconfig",
                wec.file(),
            ],
        ),
        start(
            "status-agent",
            &[
                "--cluster-name",
                "edge9",
                "--hub-kubeconfig",
                its.file(),
                "--spoke-kubeconfig",
                wec.file(),
                "--status-details",
            ],
        ),
    ];
    let travels = travels(&wds, &its, &wec);
    let ended = async {
        let waits = components.iter_mut().map(|c| Box::pin(c.wait()));
        futures::future::select_all(waits).await.0
    };
    let early = tokio::select! {
        status = ended => Some(status),
        () = travels => None,
    };
    if let Some(status) = early {
        let logs: String = components.iter().map(Server::log).collect();
        panic!("a component ended by itself: {status}\n{logs}");
    }
    for component in components {
        component.stop().await;
    }
    for bare in [wds, its, wec] {
        bare.server.stop().await;
    }
}

async fn travels(wds: &Bare, its: &Bare, wec: &Bare) {
    wds.defined("bindingpolicies.control.kubestellar.io").await;
    create(&wds.client, policy("tide", ("where", "far"), true)).await;
    create(&wds.client, namespace("tide")).await;
    let web = deployment("tide", "web");
    create(&wds.client, web.clone()).await;
    let there = dynamic(&wec.client, "apps/v1", "Deployment", Some("tide"));
    let live = until_one(&there, "web", "the delivery", |_| true).await;
    assert_eq!(live.data["spec"]["template"]["spec"]["containers"][0]["image"], "registry.example/main:1.0");
    let status = json!({
        "observedGeneration": 1, "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2, "availableReplicas": 2,
    });
    apply_status(&wec.client, &web, status.clone()).await;
    let here = dynamic(&wds.client, "apps/v1", "Deployment", Some("tide"));
    let back = until_one(&here, "web", "the status", |d| d.data["status"]["readyReplicas"] == 2).await;
    assert_eq!(back.data["status"], status);
    let reports = dynamic(&its.client, "control.kubestellar.io/v1alpha1", "WorkStatus", Some("edge9"));
    until(&reports, "the generation in the report", |all| {
        all.values().any(|report| {
            let details = &report.data["statusDetails"];
            report.data["spec"]["sourceRef"]["kind"] == "Deployment"
                && details["lastGeneration"] == 1
                && details["lastGenerationIsApplied"] == true
        })
    })
    .await;
}

/// OCM-019, OCM-A-33, SP-115, SP-116, SP-117, SP-118: a cluster of another process joins with a printed line, is accepted, gets its
/// workload, returns its status, goes on when either side starts again, and leaves without residue.
#[tokio::test(flavor = "multi_thread")]
async fn sp_116_a_cluster_from_outside_joins_and_leaves() {
    let ks = Installation::new();
    let mut server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "1"]).await;
    // Any space of another installation will do as the cluster; this one is in no inventory yet.
    let other = Installation::new();
    let edge = other.serve(&["--listen", "127.0.0.1:0", "--clusters", "0"]).await;
    let wec = other.client("wds1").await;
    let file = other.data().join("kubeconfig").display().to_string();
    let printed = ks.must(&["cluster", "token", "--ttl", "1h"]).await.stdout;
    let line = printed.lines().find(|l| l.starts_with("clusteradm join ")).expect("clusteradm's line");
    assert!(line.contains(" --hub-token ") && line.ends_with(" --cluster-name <cluster_name>"), "{line}");
    let line = printed.lines().find(|l| l.starts_with("kubestellar ")).expect("our line");
    let line = line.replace("CLUSTER_NAME", "edge9");
    let mut arguments: Vec<&str> = line.split(' ').skip(1).collect();
    arguments.extend(["--kubeconfig", &file, "--context", "wds1"]);

    ks.run(&["cluster", "accept", "edge9"]).await.fails(3, &["accepting edge9", "it does not ask to join"]);
    let mut agent = ks.spawn("join", &arguments);
    let accepted = ks.must(&["cluster", "accept", "edge9", "--wait"]).await.stdout;
    assert!(accepted.contains("set hubAcceptsClient to true for managed cluster edge9"), "{accepted}");
    ks.must(&["cluster", "label", "edge9", "where=far"]).await;
    let clusters =
        |its: Client| dynamic(&its, "cluster.open-cluster-management.io/v1", "ManagedCluster", None);
    let available = |o: &kube::api::DynamicObject| {
        let conditions = o.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "ManagedClusterConditionAvailable" && c["status"] == "True")
    };
    until_one(&clusters(ks.client("its1").await), "edge9", "its availability", available).await;
    let listed = ks.must(&["cluster", "list"]).await.stdout;
    assert!(listed.lines().any(|l| l.starts_with("edge9") && l.contains("where=far")), "{listed}");

    let wds = ks.client("wds1").await;
    create(&wds, policy("tide", ("where", "far"), true)).await;
    create(&wds, namespace("tide")).await;
    let there = dynamic(&wec, "v1", "ConfigMap", Some("tide"));
    create(&wds, config_map("tide", "first", "one")).await;
    until_one(&there, "first", "the delivery", |_| true).await;
    // The status add-on came with it.
    let web = deployment("tide", "web");
    create(&wds, web.clone()).await;
    let far = dynamic(&wec, "apps/v1", "Deployment", Some("tide"));
    until_one(&far, "web", "the Deployment", |_| true).await;
    let returned = async |count: i64| {
        let status = json!({"observedGeneration": 1, "replicas": count, "readyReplicas": count,
            "updatedReplicas": count, "availableReplicas": count});
        apply_status(&wec, &web, status).await;
        let here = dynamic(&ks.client("wds1").await, "apps/v1", "Deployment", Some("tide"));
        until_one(&here, "web", "the status", |d| d.data["status"]["readyReplicas"] == count).await;
    };
    returned(2).await;
    let addons = dynamic(
        &ks.client("its1").await,
        "addon.open-cluster-management.io/v1alpha1",
        "ManagedClusterAddOn",
        Some("edge9"),
    );
    until_one(&addons, "addon-status", "the health of the add-on", |o| {
        let conditions = o.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "Available" && c["status"] == "True")
    })
    .await;

    let secret = dynamic(&wec, "v1", "Secret", Some("open-cluster-management-agent"));
    let kept = secret.get("hub-kubeconfig-secret").await.unwrap();
    agent.stop().await;
    agent = ks.spawn("join", &arguments);
    create(&wds, config_map("tide", "second", "one")).await;
    until_one(&there, "second", "a delivery by the new agent", |_| true).await;
    server.stop().await;
    server = ks.serve(&[]).await;
    let wds = ks.client("wds1").await;
    create(&wds, config_map("tide", "third", "one")).await;
    until_one(&there, "third", "a delivery by the new hub", |_| true).await;
    returned(1).await;
    let now = secret.get("hub-kubeconfig-secret").await.unwrap();
    assert_eq!(now.data, kept.data, "nobody joined anew");

    ks.must(&["cluster", "detach", "edge9"]).await;
    assert!(clusters(ks.client("its1").await).get_opt("edge9").await.unwrap().is_none());
    until(&there, "the end of the workload", |all| !all.keys().any(|k| k.starts_with("tide/"))).await;
    let works = dynamic(&wec, "work.open-cluster-management.io/v1", "AppliedManifestWork", None);
    until(&works, "the end of what was applied", |all| all.is_empty()).await;
    let mailbox = dynamic(&ks.client("its1").await, "v1", "Namespace", None);
    until(&mailbox, "the end of the mailbox", |all| !all.contains_key("edge9")).await;
    agent.stop().await;
    edge.stop().await;
    server.stop().await;
}
