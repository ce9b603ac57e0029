//! Simulated workloads in a whole space in memory, as clients see them.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{ops::Deref, time::Instant};

use kubestellar_space::{controllers, workloads};
use serde_json::{Value, json};
use store::Engine;
use testkit::side::Side;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) const APPS: &str = "/apis/apps/v1/namespaces/default";
pub(crate) const CORE: &str = "/api/v1/namespaces/default";

/// A space with its controllers and the simulation.
pub(crate) struct Cluster {
    side: Side,
    stop: CancellationToken,
    simulation: CancellationToken,
    tasks: JoinSet<()>,
    _data: tempfile::TempDir,
}

impl Deref for Cluster {
    type Target = Side;

    fn deref(&self) -> &Side {
        &self.side
    }
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let engine = Engine::in_memory();
        let side = Side::start(&engine, data.path(), "wec").await;
        let (client, store) = (side.client.clone(), engine.space("wec").unwrap());
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let config = controllers::Config { ca_bundle_pem: "PEM".into(), csr_signer: None };
        let generic = controllers::run(client.clone(), store, config, watch::channel(false).0, stop.clone());
        tasks.spawn(async move { generic.await.unwrap() });
        let mut cluster = Self { side, stop, simulation: CancellationToken::new(), tasks, _data: data };
        cluster.simulate().await;
        cluster.until(&format!("{CORE}/serviceaccounts/default"), |_| true).await;
        cluster
    }

    /// Starts or restarts the simulation.
    async fn simulate(&mut self) {
        self.simulation.cancel();
        self.simulation = self.stop.child_token();
        let (ready, mut is_ready) = watch::channel(false);
        let config = workloads::Config { node_name: "wec-node".into() };
        let store = self.space.server().store().clone();
        let simulation = workloads::run(self.client.clone(), store, config, ready, self.simulation.clone());
        self.tasks.spawn(async move { simulation.await.unwrap() });
        is_ready.wait_for(|ready| *ready).await.unwrap();
    }

    /// Deletes as `kubectl delete` does.
    pub(crate) async fn delete(&self, path: &str) {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
        self.delete_with(path, options).await;
    }

    /// Waits for the condition that `kubectl rollout status deployment` waits for.
    pub(crate) async fn until_rolled_out(&self, path: &str) -> Value {
        self.until(path, |one| {
            let status = |field: &str| one["status"][field].as_i64().unwrap_or_default();
            let wanted = one["spec"]["replicas"].as_i64().unwrap();
            Some(status("observedGeneration")) == one["metadata"]["generation"].as_i64()
                && [status("replicas"), status("updatedReplicas"), status("availableReplicas")] == [wanted; 3]
                && condition(one, "Progressing")["reason"] == "NewReplicaSetAvailable"
        })
        .await
    }

    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        self.side.space.stop().await;
    }
}

pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let mut all = object["status"]["conditions"].as_array().into_iter().flatten();
    all.find(|one| one["type"] == kind).unwrap_or(&Value::Null)
}

pub(crate) fn workload(api_version: &str, kind: &str, name: &str, mut spec: Value) -> Value {
    let labels = json!({"app": name});
    spec["template"] = json!({"metadata": {"labels": labels}, "spec": {
        "containers": [{"name": "main", "image": "registry.example/app:1"}]}});
    if kind != "Job" {
        spec["selector"] = json!({"matchLabels": labels});
    }
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn image(image: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}})
}

/// Names of the top-level fields.
fn fields(object: &Value) -> Vec<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::test]
async fn a_deployment_becomes_available_scales_rolls_and_goes_with_its_pods() {
    let s = Cluster::start().await;
    let path = format!("{APPS}/deployments/web");
    let began = Instant::now();
    s.post(&format!("{APPS}/deployments"), workload("apps/v1", "Deployment", "web", json!({"replicas": 3})))
        .await;
    let web = s.until_rolled_out(&path).await;
    println!("available after {:?}", began.elapsed());
    assert_eq!(web["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
    assert_eq!(
        fields(&web["status"]),
        [
            "availableReplicas",
            "conditions",
            "observedGeneration",
            "readyReplicas",
            "replicas",
            "terminatingReplicas",
            "updatedReplicas"
        ]
    );
    assert_eq!(condition(&web, "Available")["message"], "Deployment has minimum availability.");
    let sets = s.list(&format!("{APPS}/replicasets")).await;
    let [set] = &sets[..] else { panic!("{sets:#?}") };
    let told = format!("ReplicaSet {} has successfully progressed.", json!(set["metadata"]["name"]));
    assert_eq!(condition(&web, "Progressing")["message"], told);
    let pods = s.list(&format!("{CORE}/pods")).await;
    assert_eq!(pods.len(), 3);
    for pod in &pods {
        assert_eq!(pod["metadata"]["annotations"]["kubestellar.io/simulated"], "true");
        assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], set["metadata"]["uid"]);
        assert_eq!(
            (&pod["status"]["phase"], &pod["spec"]["nodeName"]),
            (&json!("Running"), &json!("wec-node"))
        );
        assert_eq!(condition(pod, "Ready")["status"], "True");
        assert_eq!(pod["status"]["containerStatuses"][0]["ready"], true);
    }

    s.patch(&path, json!({"spec": {"replicas": 5}})).await;
    let web = s.until_rolled_out(&path).await;
    assert_eq!(web["status"]["availableReplicas"], 5);

    s.patch(&path, image("registry.example/app:2")).await;
    let web = s.until_rolled_out(&path).await;
    assert_eq!(web["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "2");
    s.until(&format!("{CORE}/pods"), |list| {
        let images =
            list["items"].as_array().unwrap().iter().map(|pod| &pod["spec"]["containers"][0]["image"]);
        images.eq([json!("registry.example/app:2"); 1].iter().cycle().take(5))
    })
    .await;

    s.patch(&path, json!({"spec": {"replicas": 0}})).await;
    s.until(&format!("{CORE}/pods"), |list| list["items"] == json!([])).await;
    s.patch(&path, json!({"spec": {"replicas": 1}})).await;
    s.until_rolled_out(&path).await;
    s.delete(&path).await;
    s.until(&format!("{APPS}/replicasets"), |list| list["items"] == json!([])).await;
    s.until(&format!("{CORE}/pods"), |list| list["items"] == json!([])).await;
    s.stop().await;
}

#[tokio::test]
async fn a_deployment_in_a_new_namespace_waits_for_its_account_only() {
    let s = Cluster::start().await;
    s.post(
        "/api/v1/namespaces",
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "new"}}),
    )
    .await;
    let apps = "/apis/apps/v1/namespaces/new/deployments";
    s.post(apps, workload("apps/v1", "Deployment", "web", json!({"replicas": 2}))).await;
    s.until_rolled_out(&format!("{apps}/web")).await;
    s.delete("/api/v1/namespaces/new").await;
    s.until_gone("/api/v1/namespaces/new").await;
    s.stop().await;
}

#[tokio::test]
async fn a_stateful_set_has_numbered_pods_and_revisions() {
    let s = Cluster::start().await;
    let path = format!("{APPS}/statefulsets/db");
    let db = workload("apps/v1", "StatefulSet", "db", json!({"replicas": 3, "serviceName": "db"}));
    s.post(&format!("{APPS}/statefulsets"), db).await;
    let is_done = |one: &Value| {
        let status = &one["status"];
        status["observedGeneration"] == one["metadata"]["generation"]
            && status["updatedReplicas"] == 3
            && status["readyReplicas"] == 3
            && status["currentRevision"] == status["updateRevision"]
    };
    let db = s.until(&path, is_done).await;
    let first = db["status"]["updateRevision"].clone();
    assert_eq!(
        db["status"],
        json!({"availableReplicas": 3, "collisionCount": 0, "currentReplicas": 3, "currentRevision": first,
            "observedGeneration": 1, "readyReplicas": 3, "replicas": 3, "updateRevision": first, "updatedReplicas": 3})
    );
    let pods = s.list(&format!("{CORE}/pods")).await;
    let names: Vec<&Value> = pods.iter().map(|pod| &pod["metadata"]["name"]).collect();
    assert_eq!(names, ["db-0", "db-1", "db-2"]);
    s.patch(&path, image("registry.example/app:2")).await;
    let db = s.until(&path, is_done).await;
    assert_ne!(db["status"]["currentRevision"], first);
    let revisions = s.list(&format!("{APPS}/controllerrevisions")).await;
    let mut numbers: Vec<i64> = revisions.iter().filter_map(|one| one["revision"].as_i64()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2]);
    s.stop().await;
}

#[tokio::test]
async fn a_daemon_set_runs_on_the_one_node() {
    let s = Cluster::start().await;
    let node = s.until("/api/v1/nodes/wec-node", |node| condition(node, "Ready")["status"] == "True").await;
    assert_eq!(node["metadata"]["annotations"]["kubestellar.io/simulated"], "true");
    s.post(&format!("{APPS}/daemonsets"), workload("apps/v1", "DaemonSet", "agent", json!({}))).await;
    let path = format!("{APPS}/daemonsets/agent");
    let agent = s.until(&path, |one| one["status"]["numberAvailable"] == 1).await;
    assert_eq!(
        agent["status"],
        json!({"currentNumberScheduled": 1, "desiredNumberScheduled": 1, "numberAvailable": 1, "numberMisscheduled": 0,
            "numberReady": 1, "observedGeneration": 1, "updatedNumberScheduled": 1})
    );
    // The template requires a label that the node gets later.
    s.patch(&path, json!({"spec": {"template": {"spec": {"nodeSelector": {"gpu": "yes"}}}}})).await;
    s.until(&path, |one| one["status"]["desiredNumberScheduled"] == 0).await;
    s.patch("/api/v1/nodes/wec-node", json!({"metadata": {"labels": {"gpu": "yes"}}})).await;
    s.until(&path, |one| one["status"]["numberAvailable"] == 1).await;
    // The node is restored if it is deleted.
    s.delete("/api/v1/nodes/wec-node").await;
    s.until("/api/v1/nodes/wec-node", |node| node["metadata"]["uid"] != Value::Null).await;
    s.stop().await;
}

#[tokio::test]
async fn a_job_completes_and_keeps_its_pods() {
    let s = Cluster::start().await;
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    let mut job = workload("batch/v1", "Job", "once", json!({"completions": 3, "parallelism": 2}));
    job["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
    s.post(jobs, job.clone()).await;
    let done = s.until(&format!("{jobs}/once"), |job| condition(job, "Complete")["status"] == "True").await;
    let status = &done["status"];
    assert_eq!(
        fields(status),
        [
            "completionTime",
            "conditions",
            "ready",
            "startTime",
            "succeeded",
            "terminating",
            "uncountedTerminatedPods"
        ]
    );
    assert_eq!(
        (&status["succeeded"], &status["ready"], &status["terminating"]),
        (&json!(3), &json!(0), &json!(0))
    );
    assert_eq!(condition(&done, "SuccessCriteriaMet")["reason"], "CompletionsReached");
    let pods = s.list(&format!("{CORE}/pods")).await;
    assert_eq!(pods.len(), 3);
    assert!(pods.iter().all(|pod| pod["status"]["phase"] == "Succeeded"));

    // A suspended Job waits, a resumed one completes, and a finished one is deleted after its TTL.
    job["metadata"]["name"] = json!("later");
    job["spec"]["suspend"] = json!(true);
    job["spec"]["ttlSecondsAfterFinished"] = json!(0);
    s.post(jobs, job).await;
    let path = format!("{jobs}/later");
    s.until(&path, |job| condition(job, "Suspended")["status"] == "True").await;
    s.patch(&path, json!({"spec": {"suspend": false}})).await;
    s.until_gone(&path).await;
    s.stop().await;
}

#[tokio::test]
async fn bare_pods_run_are_adopted_released_and_end_at_once() {
    let s = Cluster::start().await;
    let pods = format!("{CORE}/pods");
    let pod = |name: &str, labels: Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": {
            "initContainers": [{"name": "init", "image": "registry.example/init:1"}],
            "containers": [{"name": "main", "image": "registry.example/app:1",
                "resources": {"requests": {"cpu": "1"}}}]}})
    };
    s.post(&pods, pod("alone", json!({"app": "web"}))).await;
    let path = format!("{pods}/alone");
    let alone = s.until(&path, |pod| pod["status"]["phase"] == "Running").await;
    assert_eq!(alone["metadata"]["annotations"]["kubestellar.io/simulated"], "true");
    assert_eq!(alone["spec"]["nodeName"], "wec-node");
    assert_eq!(alone["status"]["qosClass"], "Burstable");
    assert_eq!(alone["status"]["initContainerStatuses"][0]["state"]["terminated"]["reason"], "Completed");
    assert_eq!(alone["status"]["podIPs"][0]["ip"], alone["status"]["podIP"]);
    let kinds: Vec<&Value> =
        alone["status"]["conditions"].as_array().unwrap().iter().map(|one| &one["type"]).collect();
    assert_eq!(
        kinds,
        ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"]
    );

    s.post(&format!("{APPS}/replicasets"), workload("apps/v1", "ReplicaSet", "web", json!({"replicas": 2})))
        .await;
    let set =
        s.until(&format!("{APPS}/replicasets/web"), |set| set["status"]["availableReplicas"] == 2).await;
    s.until(&path, |pod| pod["metadata"]["ownerReferences"][0]["uid"] == set["metadata"]["uid"]).await;

    // A pod with other labels is released and replaced.
    s.patch(&path, json!({"metadata": {"labels": {"app": "debug"}}})).await;
    s.until(&path, |pod| pod["metadata"].get("ownerReferences").is_none()).await;
    s.until(&pods, |list| list["items"].as_array().is_some_and(|all| all.len() == 3)).await;

    // Deletion needs no grace period, but waits for finalizers.
    s.patch(&path, json!({"metadata": {"finalizers": ["example.com/wait"]}})).await;
    s.delete(&path).await;
    s.until(&path, |pod| pod["metadata"].get("deletionTimestamp").is_some()).await;
    s.patch(&path, json!({"metadata": {"finalizers": null}})).await;
    s.until_gone(&path).await;
    s.stop().await;
}

#[tokio::test]
async fn a_restart_finds_nothing_to_write() {
    let mut s = Cluster::start().await;
    s.post(&format!("{APPS}/deployments"), workload("apps/v1", "Deployment", "web", json!({"replicas": 2})))
        .await;
    s.post(&format!("{APPS}/daemonsets"), workload("apps/v1", "DaemonSet", "agent", json!({}))).await;
    let db = workload("apps/v1", "StatefulSet", "db", json!({"replicas": 2, "serviceName": "db"}));
    s.post(&format!("{APPS}/statefulsets"), db).await;
    s.until_rolled_out(&format!("{APPS}/deployments/web")).await;
    s.until(&format!("{APPS}/daemonsets/agent"), |one| one["status"]["numberAvailable"] == 1).await;
    s.until(&format!("{APPS}/statefulsets/db"), |one| one["status"]["availableReplicas"] == 2).await;
    let mut rest = writes(&s);
    for n in 0.. {
        mark(&s, &format!("before-{n}")).await;
        // Created, annotated, bound, running: all writes were about the last pod.
        if std::mem::replace(&mut rest, writes(&s)) + 4 == rest {
            break;
        }
    }
    s.simulate().await;
    mark(&s, "after").await;
    assert_eq!(writes(&s), rest + 4);
    s.stop().await;
}

/// The number of writes until now without those of Events, which come a little later. No Event is repeated here.
fn writes(s: &Cluster) -> u64 {
    let all = s.space.server().store().snapshot();
    let events = all.view(&store::Collection::new("", "events")).iter(None, None).count();
    all.revision().0 - events as u64
}

/// Creates a pod and waits until it runs, so that everything queued before has been done.
async fn mark(s: &Cluster, name: &str) {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "registry.example/app:1"}]}});
    s.post(&format!("{CORE}/pods"), pod).await;
    s.until(&format!("{CORE}/pods/{name}"), |pod| pod["status"]["phase"] == "Running").await;
}
