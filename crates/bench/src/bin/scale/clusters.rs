//! Many clusters that report on one object.

use std::time::{Duration, Instant};

use anyhow::Result;
use runtime::{
    Source,
    rest::{Gvr, Removal},
};
use serde_json::{Value, json};

use crate::{
    Args,
    report::{Processes, Times},
    spaces::{NAMESPACE, Spaces, View, control, create, create_all, managed_clusters, namespaces},
};

const POLICY: &str = "scale-combined";

pub(crate) async fn run(spaces: &Spaces, args: &Args, processes: &Processes) -> Result<()> {
    let (reporters, rounds) = (args.reporters, args.rounds);
    let begun = Instant::now();
    // There is nothing behind these clusters: what they report is written here.
    create_all(&spaces.its, &managed_clusters(), (0..reporters).map(|n| cluster(&wec(n)))).await?;
    let mailbox = |n| json!({"metadata": {"name": wec(n)}});
    create_all(&spaces.its, &namespaces(), (0..reporters).map(mailbox)).await?;
    let namespace = json!({"metadata": {"name": NAMESPACE, "labels": {"scale": "fleet"}}});
    create(&spaces.wds, &namespaces(), namespace).await?;
    let deployments = Gvr::new("apps", "v1", "deployments");
    create(&spaces.wds, &deployments, deployment()).await?;
    create(&spaces.wds, &control("statuscollectors"), collector()).await?;
    create(&spaces.wds, &control("bindingpolicies"), policy()).await?;
    create_all(&spaces.its, &control("workstatuses"), (0..reporters).map(|n| work_status(&wec(n)))).await?;
    println!("{reporters} clusters, mailboxes and reports made: {:.2} s", begun.elapsed().as_secs_f64());

    let source = Source::all(control("combinedstatuses")).namespaced(NAMESPACE);
    let view = View::of(&spaces.wds, source, |object| {
        let results = object.rest.get("results").cloned().unwrap_or_default();
        let column =
            |n: usize| results[0]["rows"][0]["columns"][n]["float"].as_str().unwrap_or_default().to_owned();
        format!("{} {}", column(0), column(1))
    });
    shows(spaces, &view, reporters, 0).await?;
    println!(
        "to a CombinedStatus over all {reporters}: {:.2} s since the start",
        begun.elapsed().as_secs_f64()
    );
    let (mut times, before) = (Vec::new(), processes.cpu());
    for round in 0..rounds {
        let begun = Instant::now();
        // Each round adds one to what one cluster says.
        report(spaces, &wec(round % reporters), round / reporters + 1).await?;
        shows(spaces, &view, reporters, round + 1).await?;
        times.push(begun.elapsed());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("one of {reporters} clusters reports, to its CombinedStatus: {}", Times::new(times));
    println!("processor time for one report: {}", processes.cpu_for_each(&before, rounds));
    spaces.wds.delete(&control("bindingpolicies"), "", POLICY, &Removal::default()).await?;
    Ok(())
}

/// Waits until the one row says how many clusters there are, and what their numbers add up to.
async fn shows(spaces: &Spaces, view: &View, clusters: usize, sum: usize) -> Result<()> {
    let row = format!("{clusters} {sum}");
    spaces.within("a CombinedStatus", view.until(|all| all.values().any(|it| *it == row))).await
}

async fn report(spaces: &Spaces, wec: &str, number: usize) -> Result<()> {
    let status = json!({"status": {"n": number}});
    spaces.its.merge_status::<Value>(&control("workstatuses"), wec, "web", &status).await?;
    Ok(())
}

fn wec(number: usize) -> String {
    format!("reporter{number:05}")
}

fn cluster(name: &str) -> Value {
    json!({"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
        "metadata": {"name": name, "labels": {"scale": "combined"}}, "spec": {"hubAcceptsClient": true}})
}

fn work_status(wec: &str) -> Value {
    json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "WorkStatus",
        "metadata": {"name": "web", "namespace": wec, "labels": {"transport.kubestellar.io/originWdsName": "wds1"}},
        "spec": {"sourceRef": {"group": "apps", "version": "v1", "resource": "deployments", "kind": "Deployment",
            "namespace": NAMESPACE, "name": "web"}}})
}

fn deployment() -> Value {
    let template = json!({"metadata": {"labels": {"run": "web"}},
        "spec": {"containers": [{"name": "main", "image": "registry.example/web:1"}]}});
    json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": NAMESPACE, "labels": {"scale": "combined"}},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"run": "web"}}, "template": template}})
}

fn collector() -> Value {
    let said = "has(returned.status.n) ? returned.status.n : 0";
    json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "StatusCollector", "metadata": {"name": "scale"},
        "spec": {"limit": 10, "combinedFields": [{"name": "clusters", "type": "COUNT"},
            {"name": "sum", "type": "SUM", "subject": said}]}})
}

fn policy() -> Value {
    json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "BindingPolicy", "metadata": {"name": POLICY},
        "spec": {"clusterSelectors": [{"matchLabels": {"scale": "combined"}}],
            "downsync": [{"objectSelectors": [{"matchLabels": {"scale": "combined"}}], "statusCollectors": ["scale"]}]}})
}
