//! What users see of the nodes of a simulated cluster: Pods that end, Events, Endpoints, logs.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use serde_json::{Value, json};

use crate::workloads::{APPS, CORE, Cluster, condition, workload};

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

fn pod(name: &str, restart: &str, containers: &[&str]) -> Value {
    let containers: Vec<Value> =
        containers.iter().map(|name| json!({"name": name, "image": "registry.example/app:1"})).collect();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"restartPolicy": restart, "containers": containers}})
}

async fn log(s: &Cluster, name: &str, query: &str) -> Result<String, String> {
    let path = format!("{CORE}/pods/{name}/log?{query}");
    let answer = s.client.request_text(http::Request::get(path).body(Vec::new()).unwrap()).await;
    answer.map_err(|error| match error {
        kube::Error::Api(status) => format!("{} {}", status.code, status.message),
        other => panic!("{other}"),
    })
}

/// The reasons of the Events about an object, each with its count, sorted.
fn told(events: &Value, kind: &str, name: &str) -> Vec<String> {
    let all = events["items"].as_array().unwrap().iter();
    let ours = all.filter(|event| {
        let about = &event["involvedObject"];
        about["kind"] == kind && about["name"].as_str().unwrap().starts_with(name)
    });
    let text = |event: &Value| format!("{} {}", event["reason"].as_str().unwrap(), event["count"]);
    let mut told: Vec<String> = ours.map(text).collect();
    told.sort();
    told
}

/// A bare Pod that may end ends, as `kubectl run --restart=Never` and the test Pods of Helm expect.
#[tokio::test]
async fn bare_pods_that_may_end_succeed() {
    let s = Cluster::start().await;
    s.post(&format!("{CORE}/pods"), pod("once", "Never", &["main"])).await;
    let once = s.until(&format!("{CORE}/pods/once"), |it| it["status"]["phase"] == "Succeeded").await;
    assert_eq!(condition(&once, "Ready")["reason"], "PodCompleted");
    assert_eq!(condition(&once, "Initialized")["status"], "True");
    let state = &once["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&state["exitCode"], &state["reason"]), (&json!(0), &json!("Completed")));
    s.post(&format!("{CORE}/pods"), pod("always", "Always", &["main"])).await;
    s.until(&format!("{CORE}/pods/always"), |it| it["status"]["phase"] == "Running").await;
    s.stop().await;
}

/// Events say what scheduler, kubelet and controllers would, once, and count what is repeated.
#[tokio::test]
async fn events_tell_what_happens() {
    let s = Cluster::start().await;
    let events = format!("{CORE}/events");
    s.post(&format!("{APPS}/deployments"), workload("apps/v1", "Deployment", "web", json!({"replicas": 2})))
        .await;
    s.until_rolled_out(&format!("{APPS}/deployments/web")).await;
    let job = workload("batch/v1", "Job", "sum", json!({"completions": 1}));
    let mut job = job;
    job["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
    s.post("/apis/batch/v1/namespaces/default/jobs", job).await;
    s.until(&events, |all| told(all, "Job", "sum") == ["Completed 1", "SuccessfulCreate 1"]).await;
    let of_pod = ["Created 1", "Pulled 1", "Scheduled 1", "Started 1"];
    let all = s
        .until(&events, |all| {
            told(all, "Deployment", "web") == ["ScalingReplicaSet 1"]
                && told(all, "ReplicaSet", "web") == ["SuccessfulCreate 1", "SuccessfulCreate 1"]
                && told(all, "Pod", "web").len() == 8
                && told(all, "Pod", "sum") == of_pod
        })
        .await;
    let items = all["items"].as_array().unwrap();
    let started = items.iter().find(|event| event["reason"] == "Started").unwrap();
    assert_eq!(started["source"], json!({"component": "kubelet", "host": "wec-node"}));
    assert_eq!(started["involvedObject"]["fieldPath"], "spec.containers{main}");
    assert!(started["message"].as_str().unwrap().contains("simulated"));

    // Scaled to 1 and to 2 and to 1 again: the same sentence twice.
    let path = format!("{APPS}/deployments/web");
    for replicas in [1, 2, 1] {
        s.patch(&path, json!({"spec": {"replicas": replicas}})).await;
        s.until_rolled_out(&path).await;
    }
    let scaled = ["ScalingReplicaSet 1", "ScalingReplicaSet 1", "ScalingReplicaSet 2"];
    s.until(&events, |all| told(all, "Deployment", "web") == scaled).await;
    s.stop().await;
}

/// A Service has the Endpoints and EndpointSlices of the Pods that it selects, as long as they are there.
#[tokio::test]
async fn services_have_endpoints() {
    let s = Cluster::start().await;
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}});
    s.post(&format!("{CORE}/services"), service).await;
    let endpoints = format!("{CORE}/endpoints/web");
    s.until(&endpoints, |it| it["subsets"].is_null()).await;
    s.post(&format!("{APPS}/deployments"), workload("apps/v1", "Deployment", "web", json!({"replicas": 2})))
        .await;
    let addresses = |it: &Value| it["subsets"][0]["addresses"].as_array().map_or(0, Vec::len);
    let found = s.until(&endpoints, |it| addresses(it) == 2).await;
    assert_eq!(found["subsets"][0]["ports"], json!([{"port": 8080, "protocol": "TCP"}]));
    let pods = s.list(&format!("{CORE}/pods")).await;
    let of_pods = |all: &Value| {
        let slices = all["items"].as_array().unwrap();
        let endpoints = slices.iter().flat_map(|slice| slice["endpoints"].as_array().unwrap());
        let mut found: Vec<String> = endpoints.map(|it| it["addresses"][0].to_string()).collect();
        found.sort();
        found
    };
    let mut addresses_of_pods: Vec<String> =
        pods.iter().map(|pod| pod["status"]["podIP"].to_string()).collect();
    addresses_of_pods.sort();
    let slices = s.until(SLICES, |all| of_pods(all) == addresses_of_pods).await;
    assert_eq!(slices["items"][0]["metadata"]["labels"]["kubernetes.io/service-name"], "web");
    assert_eq!(slices["items"][0]["endpoints"][0]["conditions"]["ready"], true);

    s.patch(&format!("{APPS}/deployments/web"), json!({"spec": {"replicas": 1}})).await;
    s.until(&endpoints, |it| addresses(it) == 1).await;
    s.until(SLICES, |all| of_pods(all).len() == 1).await;
    // What others change is put right.
    s.patch(&endpoints, json!({"subsets": null})).await;
    s.until(&endpoints, |it| addresses(it) == 1).await;
    s.delete(&format!("{CORE}/services/web")).await;
    s.until_gone(&endpoints).await;
    s.until(SLICES, |all| all["items"] == json!([])).await;
    s.stop().await;
}

/// AS-012: logs say that the cluster is simulated; who asks for what is not there gets the errors of a real server.
#[tokio::test]
async fn as_012_logs_say_that_they_are_simulated() {
    let s = Cluster::start().await;
    s.post(&format!("{CORE}/pods"), pod("one", "Never", &["main"])).await;
    s.post(&format!("{CORE}/pods"), pod("two", "Always", &["main", "side"])).await;
    s.until(&format!("{CORE}/pods/one"), |it| it["status"]["phase"] == "Succeeded").await;
    s.until(&format!("{CORE}/pods/two"), |it| it["status"]["phase"] == "Running").await;
    let line = "This cluster is simulated: container main of pod one does not run and writes no log.\n";
    assert_eq!(log(&s, "one", "").await.unwrap(), line);
    assert_eq!(log(&s, "one", "follow=true").await.unwrap(), line, "it has ended");
    assert_eq!(log(&s, "one", "tailLines=0").await.unwrap(), "");
    let choice = "400 a container name must be specified for pod two, choose one of: [main side]";
    for (name, query, why) in [
        ("two", "", choice),
        ("two", "container=other", "400 container other is not valid for pod two"),
        ("one", "previous=true", "400 previous terminated container \"main\" in pod \"one\" not found"),
        ("none", "", "404 pods \"none\" not found"),
    ] {
        assert_eq!(log(&s, name, query).await.unwrap_err(), why);
    }
    // A log that is followed ends with its Pod.
    let followed = log(&s, "two", "container=side&follow=true");
    let ended = async {
        s.until(&format!("{CORE}/pods/two"), |_| true).await;
        s.delete(&format!("{CORE}/pods/two")).await;
    };
    let (text, ()) = tokio::join!(followed, ended);
    assert!(text.unwrap().starts_with("This cluster is simulated: container side of pod two"));
    s.stop().await;
}
