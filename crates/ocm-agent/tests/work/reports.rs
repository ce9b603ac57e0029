//! The status agent: WorkStatus objects in the mailbox.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::world::*;

const LABEL: &str = "transport.kubestellar.io/originWdsName";

/// Creates a work as KubeStellar's transport controller does.
async fn ours(w: &World, name: &str, manifests: &[Value]) -> Value {
    let mut object = work(name, holding(manifests));
    object["metadata"]["labels"] = json!({LABEL: "wds1", "managed-by.kubestellar.io/something": "1"});
    w.hub.create(WORKS, CLUSTER, object).await
}

fn about<'a>(all: &'a Objects, kind: &str, name: &str) -> Option<&'a Value> {
    all.values().find(|r| r["spec"]["sourceRef"]["kind"] == kind && r["spec"]["sourceRef"]["name"] == name)
}

async fn report(w: &World, kind: &str, name: &str) -> Value {
    let what = format!("a report on {kind} {name}");
    w.hub.until_all(REPORTS, CLUSTER, &what, |all| about(all, kind, name).cloned()).await
}

async fn reporting(
    w: &World,
    kind: &str,
    name: &str,
    what: &str,
    ask: impl Fn(&Value) -> bool + Send + Sync,
) -> Value {
    w.hub.until_all(REPORTS, CLUSTER, what, |all| about(all, kind, name).filter(|r| ask(r)).cloned()).await
}

/// OCM-A-91, OCM-A-92, OCM-A-93, OCM-A-97; OCM-017, OCM-135, OCM-136, OCM-137, OCM-138: the life cycle of one
/// WorkStatus.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_135_a_report_comes_follows_and_goes() {
    let w = World::start().await;
    let (agent, reporter) = (w.agent(World::config()).await, w.status_agent().await);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "reef"}});
    w.work("foreign", holding(&[namespace])).await;
    let mine = ours(&w, "mine", &[deployment("web", 1)]).await;
    let first = report(&w, "Deployment", "web").await;
    let applied = w.cluster.get(APPLIED, "", &applied_name("mine")).await.expect("an AppliedManifestWork");
    assert_eq!(first["metadata"]["name"], format!("{}-appsv1-deployment-sea-web", uid(&applied)));
    assert_eq!(first["metadata"]["labels"], mine["metadata"]["labels"]);
    let owner = json!([{"apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork", "name": "mine",
        "uid": uid(&mine), "controller": true, "blockOwnerDeletion": true}]);
    assert_eq!(first["metadata"]["ownerReferences"], owner);
    assert_eq!(
        first["spec"]["sourceRef"],
        json!({"group": "apps", "version": "v1", "resource": "deployments", "kind": "Deployment",
            "namespace": "sea", "name": "web"})
    );
    let fields = |r: &Value| -> BTreeMap<String, String> {
        let all = r["metadata"]["managedFields"].as_array().into_iter().flatten();
        all.filter(|f| !f["fieldsV1"]["f:status"].is_null())
            .map(|f| (f["manager"].to_string(), f["time"].to_string()))
            .collect()
    };
    for replicas in [1, 2] {
        let status = json!({"status": {"replicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas}});
        w.cluster.merge_status(DEPLOYMENTS, "sea", "web", status).await;
        let seen = |r: &Value| r["status"]["availableReplicas"] == replicas;
        let now = reporting(&w, "Deployment", "web", "the status", seen).await;
        assert!(!fields(&now).is_empty(), "whoever asks can tell when the status came: {now:#}");
    }
    let none = json!({"status": {"replicas": 0, "readyReplicas": null, "availableReplicas": null}});
    w.cluster.merge_status(DEPLOYMENTS, "sea", "web", none).await;
    reporting(&w, "Deployment", "web", "none left", |r| {
        r["status"].is_object() && r["status"]["availableReplicas"].is_null()
    })
    .await;
    let only = w.hub.until_all(REPORTS, CLUSTER, "a list", |all| Some(all.len())).await;
    assert_eq!(only, 1, "none for the Namespace of another's work");
    w.hub.delete(WORKS, CLUSTER, "mine").await;
    w.hub.until_all(REPORTS, CLUSTER, "it goes", |all| all.is_empty().then_some(())).await;
    w.cluster.until_gone(DEPLOYMENTS, "sea", "web").await;
    reporter.end().await;
    agent.end().await;
    w.end().await;
}

/// OCM-A-94; OCM-134: kinds without a status worth reporting get no WorkStatus; a kind is followed as long as
/// any work has an object of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_134_kinds_are_followed_while_needed() {
    let w = World::start().await;
    let (agent, reporter) = (w.agent(World::config()).await, w.status_agent().await);
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "sea"}});
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "r", "namespace": "sea"}, "rules": []});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "sea"},
        "spec": {"ports": [{"port": 80}]}});
    ours(&w, "one", &[map("m", "1"), secret, role, service, deployment("a", 1)]).await;
    ours(&w, "two", &[deployment("b", 1)]).await;
    w.settled("one").await;
    let expected = ["Deployment a", "Deployment b", "Service web"];
    let all = |all: &Objects| {
        let of = |r: &Value| {
            let source = &r["spec"]["sourceRef"];
            format!(
                "{} {}",
                source["kind"].as_str().unwrap_or_default(),
                source["name"].as_str().unwrap_or_default()
            )
        };
        let mut names: Vec<String> = all.values().map(of).collect();
        names.sort();
        (names == expected).then_some(())
    };
    w.hub.until_all(REPORTS, CLUSTER, "these and no others", all).await;
    w.hub.delete(WORKS, CLUSTER, "one").await;
    w.hub.until_gone(WORKS, CLUSTER, "one").await;
    w.cluster
        .merge_status(DEPLOYMENTS, "sea", "b", json!({"status": {"replicas": 1, "readyReplicas": 1}}))
        .await;
    reporting(&w, "Deployment", "b", "still followed", |r| r["status"]["readyReplicas"] == 1).await;
    reporter.end().await;
    agent.end().await;
    w.end().await;
}

/// OCM-A-95, OCM-A-100; OCM-134, OCM-135: a kind whose CRD is created later is followed without a restart,
/// and without polling every second; the report of a cluster-scoped object has two dashes in its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_134_a_new_kind_of_cluster_scope() {
    let w = World::start().await;
    let (agent, reporter) = (w.agent(World::config()).await, w.status_agent().await);
    ours(&w, "sea", &[buoys("Cluster", true), buoy("b", None, 3)]).await;
    let found = report(&w, "Buoy", "b").await;
    let applied = w.cluster.get(APPLIED, "", &applied_name("sea")).await.expect("an AppliedManifestWork");
    assert_eq!(found["metadata"]["name"], format!("{}-sea.examplev1-buoy--b", uid(&applied)));
    assert_eq!(found["spec"]["sourceRef"]["namespace"], "");
    w.cluster.merge_status("sea.example/v1/buoys", "", "b", json!({"status": {"lit": true}})).await;
    reporting(&w, "Buoy", "b", "its status", |r| r["status"] == json!({"lit": true})).await;
    reporter.end().await;
    agent.end().await;
    w.end().await;
}

/// OCM-A-95; OCM-134: an AppliedManifestWork may list a resource that is not served; it is followed as soon
/// as it is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_134_a_kind_that_is_not_served_yet() {
    let w = World::start().await;
    let mine = ours(&w, "sea", &[map("m", "1")]).await;
    let applied = json!({"apiVersion": "work.open-cluster-management.io/v1", "kind": "AppliedManifestWork",
        "metadata": {"name": applied_name("sea")}, "spec": {"hubHash": "h", "manifestWorkName": "sea", "agentID": "x"}});
    let applied = w.cluster.create(APPLIED, "", applied).await;
    let list = json!([{"group": "sea.example", "version": "v1", "resource": "buoys", "namespace": "sea", "name": "b"},
        {"group": "apps", "version": "v1", "resource": "deployments", "namespace": "sea", "name": "web"}]);
    w.cluster
        .merge_status(APPLIED, "", &applied_name("sea"), json!({"status": {"appliedResources": list}}))
        .await;
    let owner = json!([{"apiVersion": "work.open-cluster-management.io/v1", "kind": "AppliedManifestWork",
        "name": applied_name("sea"), "uid": uid(&applied)}]);
    let owned = |mut object: Value| {
        object["metadata"]["ownerReferences"] = owner.clone();
        object
    };
    let reporter = w.status_agent().await;
    w.cluster.create(DEPLOYMENTS, "sea", owned(deployment("web", 1))).await;
    report(&w, "Deployment", "web").await;
    runtime::install(
        w.cluster.0.client(),
        &[serde_json::from_value(buoys("Namespaced", true)).expect("a CRD")],
        "test",
    )
    .await
    .expect("served");
    w.cluster.create("sea.example/v1/buoys", "sea", owned(buoy("b", Some("sea"), 3))).await;
    let found = report(&w, "Buoy", "b").await;
    assert_eq!(found["metadata"]["ownerReferences"][0]["uid"], uid(&mine));
    reporter.end().await;
    w.end().await;
}

/// OCM-A-96; OCM-136: the report has the singleton label of the object.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_136_the_singleton_label() {
    const SINGLETON: &str = "managed-by.kubestellar.io/singletonstatus";
    let w = World::start().await;
    let (agent, reporter) = (w.agent(World::config()).await, w.status_agent().await);
    let labelled = |value: &str| {
        let mut web = deployment("web", 1);
        web["metadata"]["labels"] = json!({SINGLETON: value});
        web
    };
    ours(&w, "mine", &[labelled("true")]).await;
    reporting(&w, "Deployment", "web", "the label", |r| r["metadata"]["labels"][SINGLETON] == "true").await;
    w.edit("mine", holding(&[labelled("false")])).await;
    reporting(&w, "Deployment", "web", "its new value", |r| r["metadata"]["labels"][SINGLETON] == "false")
        .await;
    reporter.end().await;
    agent.end().await;
    w.end().await;
}

/// OCM-A-98; OCM-137, OCM-162: many works at once, a restart, no write without a change, no lost update.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_137_many_reports_and_a_restart() {
    let w = World::start().await;
    let (agent, reporter) = (w.agent(World::config()).await, w.status_agent().await);
    let names: Vec<String> = (0..20).map(|i| format!("web{i}")).collect();
    for name in &names {
        ours(&w, name, &[deployment(name, 1)]).await;
    }
    let all = |all: &Objects| (all.len() == 20).then_some(());
    w.hub.until_all(REPORTS, CLUSTER, "one each", all).await;
    let status = |ready: u32| json!({"status": {"replicas": 9, "readyReplicas": ready}});
    for name in &names {
        w.cluster.merge_status(DEPLOYMENTS, "sea", name, status(1)).await;
    }
    let ready = |ready: u32| {
        move |all: &Objects| all.values().all(|r| r["status"]["readyReplicas"] == ready).then(|| all.clone())
    };
    w.hub.until_all(REPORTS, CLUSTER, "all statuses", ready(1)).await;
    reporter.end().await;
    // Changes during the restart are reported; unchanged statuses are not written.
    w.cluster.merge_status(DEPLOYMENTS, "sea", "web7", status(2)).await;
    let before = w.hub.until_all(REPORTS, CLUSTER, "a list", |all| Some(all.clone())).await;
    let reporter = w.status_agent().await;
    reporting(&w, "Deployment", "web7", "what was missed", |r| r["status"]["readyReplicas"] == 2).await;
    for name in &names {
        w.cluster.merge_status(DEPLOYMENTS, "sea", name, status(3)).await;
        let one = reporting(&w, "Deployment", name, "the next", |r| r["status"]["readyReplicas"] == 3).await;
        let key = runtime::ObjectKey::new(CLUSTER, one["metadata"]["name"].as_str().expect("a name"));
        assert_eq!(uid(&one), uid(&before[&key]));
    }
    let writes = w.at_hub.count(|line| line.starts_with("agent PATCH") && line.contains("/workstatuses/"));
    assert!(writes <= 20 + 20 + 1 + 20, "{writes} writes: first statuses, 1, web7, 3");
    reporter.end().await;
    agent.end().await;
    w.end().await;
}

/// OCM-134: objects that are read before the hub answers do not wait for it, and the agent continues with
/// them afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_134_the_cluster_is_read_before_the_hub() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    ours(&w, "mine", &[deployment("web", 1)]).await;
    w.settled("mine").await;
    agent.end().await;
    w.hub_goes().await;
    let config = status_addon::Config::new(CLUSTER);
    let mut ready = config.ready.subscribe();
    // The list of the kind, and then its watch: by then the whole list has been processed.
    let listed = w.at_cluster.more(1, |line| line.contains("/deployments?") && line.contains("watch"));
    // Counted from before the agent starts.
    let ((), reporter) = tokio::join!(listed, async { w.status_agent_unready(config) });
    assert!(!*ready.borrow(), "the hub does not answer");
    let hub = w.hub_returns().await;
    let wait = tokio::time::timeout(std::time::Duration::from_secs(60), ready.wait_for(|yes| *yes));
    wait.await.expect("ready").expect("a sender");
    let found = |all: &Objects| about(all, "Deployment", "web").map(|_| ());
    hub.until_all(REPORTS, CLUSTER, "the report", found).await;
    reporter.end().await;
    w.end().await;
}

/// OCM-139: with the option on both sides, a WorkStatus says which generation was delivered last and whether
/// it is applied, while the status is unchanged; without the option, its details stay empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_139_how_current_a_report_is() {
    let w = World::start().await;
    let reported = |generation: i64| {
        let all = json!({"apps/Deployment/sea/web": generation}).to_string();
        json!({"transport.kubestellar.io/originObjectGenerations": all})
    };
    let agent = w.agent(World::config()).await;
    let plain = w.status_agent().await;
    let mut object = work("mine", holding(&[deployment("web", 1)]));
    object["metadata"]["labels"] = json!({LABEL: "wds1"});
    object["metadata"]["annotations"] = reported(3);
    w.hub.create(WORKS, CLUSTER, object).await;
    w.settled("mine").await;
    let first = report(&w, "Deployment", "web").await;
    assert_eq!(first["statusDetails"]["lastGeneration"], 0, "off by default");
    plain.end().await;
    let config = status_addon::Config { status_details: true, ..status_addon::Config::new(CLUSTER) };
    let detailed = w.status_agent_as(config).await;
    let at = |generation: i64| {
        move |r: &Value| {
            let details = &r["statusDetails"];
            details["lastGeneration"] == generation && details["lastGenerationIsApplied"] == true
        }
    };
    let now = reporting(&w, "Deployment", "web", "the generation", at(3)).await;
    assert_ne!(
        now["statusDetails"]["lastCurrencyUpdateTime"],
        first["statusDetails"]["lastCurrencyUpdateTime"]
    );
    let status = json!({"status": {"replicas": 1, "readyReplicas": 1, "availableReplicas": 1}});
    w.cluster.merge_status(DEPLOYMENTS, "sea", "web", status).await;
    let there = |r: &Value| r["status"]["readyReplicas"] == 1;
    let before = reporting(&w, "Deployment", "web", "the status", there).await;
    assert!(at(3)(&before));
    let newer = json!({"metadata": {"annotations": reported(4)},
        "spec": {"workload": {"manifests": [deployment("web", 2)]}}});
    w.hub.merge(WORKS, CLUSTER, "mine", newer).await;
    let after = reporting(&w, "Deployment", "web", "the new generation", at(4)).await;
    assert_eq!(after["status"], before["status"]);
    detailed.end().await;
    agent.end().await;
    w.end().await;
}

/// OCM-135, KS-200: the WorkStatuses of two objects would have the same name. The first object has it, and
/// its report stays right. The conflict is reported once on the ManifestWork of the second, without endless
/// retries. When the first object is gone, the second is reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_135_two_objects_and_one_name() {
    let w = World::start().await;
    let places = [("a-b", "c"), ("a", "b-c")];
    let objects = places.map(|(namespace, name)| {
        let mut object = deployment(name, 1);
        object["metadata"]["namespace"] = namespace.into();
        object
    });
    for (namespace, _) in places {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        w.cluster.create("v1/namespaces", "", namespace).await;
    }
    let agent = w.agent(World::config()).await;
    let reporter = w.status_agent().await;
    ours(&w, "mine", &objects).await;
    w.settled("mine").await;
    let event = w
        .hub
        .until_all("v1/events", CLUSTER, "the event", |all| {
            all.values().find(|e| e["reason"] == "WorkStatusNameClash").cloned()
        })
        .await;
    assert_eq!(event["involvedObject"]["kind"], "ManifestWork");
    assert_eq!((&event["involvedObject"]["name"], &event["type"]), (&json!("mine"), &json!("Warning")));
    let mine = |all: &Objects| {
        let of = |r: &&Value| r["spec"]["sourceRef"]["kind"] == "Deployment";
        let all: Vec<Value> = all.values().filter(of).cloned().collect();
        (all.len() == 1).then(|| all[0].clone())
    };
    let first = w.hub.until_all(REPORTS, CLUSTER, "one report", mine).await;
    let holder = usize::from(first["spec"]["sourceRef"]["namespace"] != places[0].0);
    let (has, lacks) = (places[holder], places[1 - holder]);
    let message = event["message"].as_str().expect("text");
    assert!(message.contains(&format!("deployments {}/{} is returned", lacks.0, lacks.1)), "{message}");
    assert!(message.contains(&format!("that of deployments {}/{}", has.0, has.1)), "{message}");

    let status = |count: i64| json!({"status": {"replicas": count, "readyReplicas": count, "availableReplicas": count}});
    for count in 1..=9 {
        w.cluster.merge_status(DEPLOYMENTS, lacks.0, lacks.1, status(count)).await;
        w.cluster.merge_status(DEPLOYMENTS, has.0, has.1, status(10 * count)).await;
        let followed = |all: &Objects| mine(all).filter(|r| r["status"]["readyReplicas"] == 10 * count);
        let report = w.hub.until_all(REPORTS, CLUSTER, "its status", followed).await;
        assert_eq!(report["spec"], first["spec"]);
    }
    // Both objects may be processed for the first time at once.
    let tries = w.at_hub.count(|line| line.starts_with("agent POST") && line.contains("/workstatuses"));
    assert!(tries <= 2, "{tries}");
    let events = |line: &str| line.contains("/events");
    assert_eq!(w.at_hub.count(|line| line.starts_with("agent POST") && events(line)), 1, "told once");
    assert_eq!(w.at_hub.count(|line| line.starts_with("agent PATCH") && events(line)), 0, "told once");

    w.edit("mine", holding(&[objects[1 - holder].clone()])).await;
    let other = |all: &Objects| {
        mine(all)
            .filter(|r| r["spec"]["sourceRef"]["namespace"] == lacks.0 && r["status"]["readyReplicas"] == 9)
    };
    let report = w.hub.until_all(REPORTS, CLUSTER, "the other's report", other).await;
    assert_eq!(report["metadata"]["name"], first["metadata"]["name"]);
    reporter.end().await;
    agent.end().await;
    w.end().await;
}
