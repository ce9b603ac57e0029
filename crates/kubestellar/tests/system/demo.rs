//! `kubestellar demo`: the main job, from nothing (SP-129).

use crate::support::Installation;

/// SP-129: exit 0 only after everything was read back; nothing is left behind.
#[tokio::test(flavor = "multi_thread")]
async fn sp_129_demo_verifies_and_leaves_nothing() {
    let ks = Installation::new();
    let demo = ks.must(&["demo", "--timeout", "80"]).await;
    for line in
        ["Deployment shop/web", "ConfigMap shop/settings", "Service shop/web", "Everything was verified"]
    {
        assert!(demo.stdout.contains(line), "no {line:?} in\n{}", demo.stdout);
    }
    assert!(demo.stdout.contains("simulated"), "says what the clusters are:\n{}", demo.stdout);
    let left: Vec<_> = std::fs::read_dir(ks.path("tmp")).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(left.is_empty() && !ks.kubeconfig().exists(), "left behind: {left:?}");
}

/// SP-129: the user's own manifests, a kind of their own included.
#[tokio::test(flavor = "multi_thread")]
async fn sp_129_demo_delivers_own_manifests() {
    let ks = Installation::new();
    std::fs::create_dir(ks.path("manifests")).unwrap();
    std::fs::write(ks.path("manifests/1-policy.yaml"), POLICY).unwrap();
    std::fs::write(ks.path("manifests/2-boats.yaml"), BOATS).unwrap();
    let demo = ks.must(&["demo", "--timeout", "80", "-f", "manifests"]).await;
    for cluster in ["cluster1", "cluster2"] {
        for object in
            ["Boat harbour/skiff", "CustomResourceDefinition boats.example.org", "Namespace harbour"]
        {
            let found = demo.stdout.lines().any(|l| l.starts_with(object) && l.contains(cluster));
            assert!(found, "{object} is not said to be in {cluster}:\n{}", demo.stdout);
        }
    }
}

/// SP-129, SP-088: what is not delivered is a failure that says what was missing, and leaves nothing either.
#[tokio::test(flavor = "multi_thread")]
async fn sp_129_demo_fails_when_the_policy_selects_nothing() {
    let ks = Installation::new();
    let nothing = POLICY.replace("location-group: edge", "location-group: moon");
    std::fs::write(ks.path("all.yaml"), format!("{nothing}---{BOATS}")).unwrap();
    let demo = ks.run(&["demo", "--timeout", "30", "-f", "all.yaml", "--clusters", "1"]).await;
    assert!([5, 9].contains(&demo.code), "exit {}\n{}", demo.code, demo.stderr);
    let error = demo.stderr.lines().find(|l| l.starts_with("error: ")).unwrap();
    assert!(error.contains("harbour"), "does not name the policy: {error}");
    assert!(!demo.stdout.contains("verified"), "{}", demo.stdout);
    assert_eq!(std::fs::read_dir(ks.path("tmp")).unwrap().count(), 0);
}

const POLICY: &str = "
apiVersion: control.kubestellar.io/v1alpha1
kind: BindingPolicy
metadata: {name: harbour}
spec:
  clusterSelectors:
  - matchLabels: {location-group: edge}
  downsync:
  - objectSelectors:
    - matchLabels: {fleet: north}
";

const BOATS: &str = "
apiVersion: example.org/v1
kind: Boat
metadata: {name: skiff, namespace: harbour, labels: {fleet: north}}
spec: {oars: 2}
---
apiVersion: v1
kind: Namespace
metadata: {name: harbour, labels: {fleet: north}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.example.org, labels: {fleet: north}}
spec:
  group: example.org
  scope: Namespaced
  names: {plural: boats, singular: boat, kind: Boat, listKind: BoatList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              oars: {type: integer, minimum: 1}
";
