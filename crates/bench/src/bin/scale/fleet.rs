//! One policy with many objects for some clusters.

use std::time::Instant;

use anyhow::Result;
use futures::future::try_join_all;
use runtime::rest::Removal;
use serde_json::{Value, json};

use crate::{
    Args,
    report::{Processes, Times},
    spaces::{
        NAMESPACE, Spaces, View, config_maps, control, create, create_all, managed_clusters, maps, namespaces,
    },
};

const POLICY: &str = "scale-fleet";

pub(crate) async fn run(spaces: &Spaces, args: &Args, processes: &Processes) -> Result<()> {
    let Args { objects, clusters, rounds, .. } = *args;
    let mut views = Vec::new();
    for number in 1..=clusters {
        views.push(config_maps(&spaces.cluster(number).await?));
        let labels = json!({"metadata": {"labels": {"scale": "fleet"}}});
        spaces.its.merge::<Value>(&managed_clusters(), "", &format!("cluster{number}"), &labels).await?;
    }
    let namespace = json!({"metadata": {"name": NAMESPACE, "labels": {"scale": "fleet"}}});
    create(&spaces.wds, &namespaces(), namespace).await?;
    let begun = Instant::now();
    create_all(&spaces.wds, &maps(), (0..objects).map(|n| map(&name(n), "0"))).await?;
    println!("{objects} objects of 1 KiB written to the WDS: {:.2} s", begun.elapsed().as_secs_f64());

    let policy = json!({
        "apiVersion": "control.kubestellar.io/v1alpha1", "kind": "BindingPolicy", "metadata": {"name": POLICY},
        "spec": {"clusterSelectors": [{"matchLabels": {"scale": "fleet"}}],
            "downsync": [{"objectSelectors": [{"matchLabels": {"scale": "fleet"}}]}]},
    });
    let begun = Instant::now();
    create(&spaces.wds, &control("bindingpolicies"), policy).await?;
    everywhere(spaces, &views, "the delivery of all", |all| all.len() == objects).await?;
    println!(
        "policy created, to all {objects} in all {clusters} clusters: {:.2} s",
        begun.elapsed().as_secs_f64()
    );
    println!("{}", processes.memory());

    println!("one object changed, to visible in all clusters: {}", changes(spaces, args, &views).await?);
    let before = processes.cpu();
    changes(spaces, args, &views).await?;
    println!("processor time for one such change: {}", processes.cpu_for_each(&before, rounds));

    let last = &views[clusters - 1..];
    for (what, label, expected) in [
        ("one cluster unlabelled, to all gone from it", Value::Null, 0),
        ("the same cluster labelled, to all there again", json!("fleet"), objects),
    ] {
        let labels = json!({"metadata": {"labels": {"scale": label}}});
        let begun = Instant::now();
        spaces.its.merge::<Value>(&managed_clusters(), "", &format!("cluster{clusters}"), &labels).await?;
        everywhere(spaces, last, what, |all| all.len() == expected).await?;
        println!("{what}: {:.2} s", begun.elapsed().as_secs_f64());
    }
    let begun = Instant::now();
    spaces.wds.delete(&control("bindingpolicies"), "", POLICY, &Removal::default()).await?;
    everywhere(spaces, &views, "the end of all", |all| all.is_empty()).await?;
    println!("policy deleted, to all gone: {:.2} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Changes one object after the other, spread over all of them.
async fn changes(spaces: &Spaces, args: &Args, views: &[View]) -> Result<Times> {
    let mut times = Vec::new();
    for round in 0..args.rounds {
        let name = name((round * 7919) % args.objects);
        let value = format!("{round} of {:?}", Instant::now());
        let begun = Instant::now();
        let patch = json!({"data": {"value": value}});
        spaces.wds.merge::<Value>(&maps(), NAMESPACE, &name, &patch).await?;
        everywhere(spaces, views, "one change", |all| all.get(&name) == Some(&value)).await?;
        times.push(begun.elapsed());
        // Each for itself: a change that follows at once would be written together with the one before.
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    Ok(Times::new(times))
}

async fn everywhere(
    spaces: &Spaces,
    views: &[View],
    what: &str,
    enough: impl Fn(&std::collections::HashMap<String, String>) -> bool + Copy,
) -> Result<()> {
    let all = async { try_join_all(views.iter().map(|view| view.until(enough))).await.map(drop) };
    spaces.within(what, all).await
}

fn name(number: usize) -> String {
    format!("m{number:06}")
}

/// A ConfigMap of about 1 KiB.
pub(crate) fn map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"scale": "fleet"}},
        "data": {"value": value, "padding": "x".repeat(768)}})
}
