//! Objects that are larger than OCM delivers.

use serde_json::{Map, Value, json};

use super::scenarios::{CRD, EDGE, Spaces, WECS, of, policy};
use crate::support::{Installation, create, namespace};

/// A definition whose schema has this many properties, each with some 200 bytes of description.
fn definition(properties: usize) -> Value {
    let text = "Kyverno and others describe every field of every rule at length. ".repeat(3);
    let of_spec: Map<String, Value> = (0..properties)
        .map(|n| (format!("field{n}"), json!({"type": "string", "description": text})))
        .collect();
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": of_spec}}});
    json!({
        "apiVersion": CRD.0, "kind": CRD.1, "metadata": {"name": "rules.large.example", "labels": {"app": "large"}},
        "spec": {"group": "large.example", "scope": "Namespaced",
            "names": {"plural": "rules", "singular": "rule", "kind": "Rule", "listKind": "RuleList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]},
    })
}

/// A custom resource of the definition with a value for each property.
fn rule(properties: usize, bytes: usize) -> Value {
    let spec: Map<String, Value> =
        (0..properties).map(|n| (format!("field{n}"), json!("x".repeat(bytes / properties)))).collect();
    json!({"apiVersion": "large.example/v1", "kind": "Rule",
        "metadata": {"name": "all", "namespace": "large", "labels": {"app": "large"}}, "spec": spec})
}

/// KS-141: between embedded spaces, objects arrive that are larger than the 512,000 bytes of the original: a definition of
/// 700 KB (kyverno's have 652 KB), and an object of 1.9 MB.
#[tokio::test(flavor = "multi_thread")]
async fn ks_141_a_definition_of_700_kb_arrives() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0"]).await;
    let all = Spaces::of(&ks).await;
    let large = definition(3000);
    let bytes = large.to_string().len();
    assert!((700_000..800_000).contains(&bytes), "{bytes}");
    let clause = json!({"objectSelectors": of("app", "large")});
    create(&all.wds, policy("large", &of(EDGE.0, EDGE.1), clause)).await;
    let mut place = namespace("large");
    place["metadata"]["labels"] = json!({"app": "large"});
    create(&all.wds, place).await;
    create(&all.wds, large).await;
    all.arrive(&WECS, CRD, "app=large", &["rules.large.example"]).await;
    create(&all.wds, rule(3000, 1_850_000)).await;
    all.arrive(&WECS, ("large.example/v1", "Rule"), "app=large", &["large/all"]).await;
    server.stop().await;
}
