//! Many policies, each with an object of its own.

use std::time::{Duration, Instant};

use anyhow::Result;
use runtime::{Source, rest::Removal};
use serde_json::{Value, json};

use crate::{
    Args,
    fleet::map,
    report::{Processes, Times},
    spaces::{
        NAMESPACE, Spaces, View, config_maps, control, create, create_all, managed_clusters, maps, namespaces,
    },
};

/// Events of objects that no policy selects.
const IDLE_EVENTS: usize = 1_000;

pub(crate) async fn run(spaces: &Spaces, args: &Args, processes: &Processes) -> Result<()> {
    let (policies, rounds) = (args.policies, args.rounds);
    let labels = json!({"metadata": {"labels": {"scale": "policies"}}});
    spaces.its.merge::<Value>(&managed_clusters(), "", "cluster1", &labels).await?;
    let namespace = json!({"metadata": {"name": NAMESPACE, "labels": {"scale": "fleet"}}});
    create(&spaces.wds, &namespaces(), namespace).await?;
    let bindings = View::of(&spaces.wds, Source::all(control("bindings")).metadata(), |_| String::new());
    let begun = Instant::now();
    create_all(&spaces.wds, &control("bindingpolicies"), (0..policies).map(policy)).await?;
    let made = async {
        bindings.until(|all| all.keys().filter(|name| name.starts_with("scale-p")).count() == policies).await
    };
    spaces.within("the Bindings", made).await?;
    println!("{policies} policies created, to as many Bindings: {:.2} s", begun.elapsed().as_secs_f64());
    println!("{}", processes.memory());

    let view = config_maps(&spaces.cluster(1).await?);
    let mut times = Vec::new();
    for round in 0..rounds {
        let name = format!("single{round:06}");
        let mut object = map(&name, "1");
        object["metadata"]["labels"] = json!({"scale": "single", "policy": format!("p{}", round % policies)});
        let begun = Instant::now();
        create(&spaces.wds, &maps(), object).await?;
        spaces.within("one object", async { view.until(|all| all.contains_key(&name)).await }).await?;
        times.push(begun.elapsed());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("one object created that one of {policies} policies selects, to visible: {}", Times::new(times));

    let mut idle = map("idle", "0");
    idle["metadata"]["labels"] = json!({"scale": "idle"});
    create(&spaces.wds, &maps(), idle).await?;
    let (before, begun) = (processes.cpu(), Instant::now());
    for event in 0..IDLE_EVENTS {
        let patch = json!({"data": {"value": event.to_string()}});
        spaces.wds.merge::<Value>(&maps(), NAMESPACE, "idle", &patch).await?;
    }
    let each = begun.elapsed().as_secs_f64() * 1000.0 / IDLE_EVENTS as f64;
    println!(
        "{IDLE_EVENTS} events of an object that none of {policies} policies selects: {each:.2} ms each; processor time for \
         each: {}",
        processes.cpu_for_each(&before, IDLE_EVENTS)
    );
    for number in 0..policies {
        let name = policy_name(number);
        spaces.wds.delete(&control("bindingpolicies"), "", &name, &Removal::default()).await?;
    }
    let gone = async { bindings.until(|all| all.keys().all(|name| !name.starts_with("scale-p"))).await };
    spaces.within("the end of the Bindings", gone).await
}

fn policy_name(number: usize) -> String {
    format!("scale-p{number:05}")
}

fn policy(number: usize) -> Value {
    json!({
        "apiVersion": "control.kubestellar.io/v1alpha1", "kind": "BindingPolicy",
        "metadata": {"name": policy_name(number)},
        "spec": {"clusterSelectors": [{"matchLabels": {"scale": "policies"}}],
            "downsync": [
                {"objectSelectors": [{"matchLabels": {"policy": format!("p{number}")}}]},
                {"resources": ["namespaces"], "objectNames": [NAMESPACE]},
            ]},
    })
}
