//! The examples of README.md do what it says.

use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::{Installation, dynamic, until, until_one};

/// The objects that the README applies to a context between two headings, in order.
fn examples(from: &str, to: &str) -> Vec<(String, Value)> {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let text = std::fs::read_to_string(readme).expect("README.md");
    let (_, part) = text.split_once(from).expect("the first heading");
    let (part, _) = part.split_once(to).expect("the second heading");
    let mut all = Vec::new();
    for block in part.split("$ kubectl --context ").skip(1) {
        let Some((context, rest)) = block.split_once(" apply -f - <<EOF\n") else { continue };
        let (manifests, _) = rest.split_once("\nEOF\n").expect("the end of a block");
        let objects: Vec<Value> = serde_saphyr::from_multiple(manifests).expect("YAML");
        all.extend(objects.into_iter().map(|object| (context.to_owned(), object)));
    }
    assert!(!all.is_empty(), "no example between {from:?} and {to:?}");
    all
}

/// Applies objects as `kubectl apply` does.
async fn apply(ks: &Installation, objects: Vec<(String, Value)>) {
    for (context, object) in objects {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let (version, kind) = (text("/apiVersion").unwrap(), text("/kind").unwrap());
        let (name, namespace) = (text("/metadata/name").unwrap(), text("/metadata/namespace"));
        let api = dynamic(&ks.client(&context).await, &version, &kind, namespace.as_deref());
        let params = PatchParams::apply("readme").force();
        let done = api.patch(&name, &params, &Patch::Apply(&object)).await;
        done.unwrap_or_else(|error| panic!("{kind} {name} in {context}: {error}"));
    }
}

/// KS-111, KS-121, KS-170: StatusCollectors, CustomTransforms and the values of clusters, as the README shows them.
#[tokio::test(flavor = "multi_thread")]
async fn ks_121_examples_of_the_readme() {
    let ks = Installation::new();
    ks.must(&["up", "--listen", "127.0.0.1:0"]).await;
    apply(&ks, examples("## Five minutes", "## What a policy can do")).await;
    apply(&ks, examples("### Questions, changes and values", "### A Helm chart")).await;

    for (cluster, region) in [("cluster1", "north"), ("cluster2", "south")] {
        let maps = dynamic(&ks.client(cluster).await, "v1", "ConfigMap", Some("shop"));
        let wanted = json!({"title": format!("shop in {region}, on {cluster}")});
        until_one(&maps, "site", "the ConfigMap of the README", |map| map.data["data"] == wanted).await;
    }
    let answers =
        dynamic(&ks.client("wds1").await, "control.kubestellar.io/v1alpha1", "CombinedStatus", Some("shop"));
    let row = |status: &DynamicObject, collector: &str| -> Vec<Value> {
        let results = status.data["results"].as_array().cloned().unwrap_or_default();
        let found = results.into_iter().find(|result| result["name"] == collector);
        let rows = found.and_then(|result| result["rows"].as_array().cloned()).unwrap_or_default();
        rows.into_iter().map(|row| row["columns"].clone()).collect()
    };
    until(&answers, "the answers that the README promises", |all| {
        all.values().any(|status| {
            row(status, "replicas-in-all")
                == [json!([{"type": "Number", "float": "2"}, {"type": "Number", "float": "4"}])]
                && row(status, "replicas-per-cluster").len() == 2
        })
    })
    .await;
}
