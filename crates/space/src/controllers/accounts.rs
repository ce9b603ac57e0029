//! The standard objects of a namespace: ServiceAccount `default` and ConfigMap `kube-root-ca.crt` (AS-052).

use serde_json::{Value, json};

pub(crate) const ACCOUNT: &str = "default";
pub(crate) const ROOT_CA: &str = "kube-root-ca.crt";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";

/// A write that a namespace needs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NamespaceWrite {
    CreateAccount(Value),
    CreateRootCa(Value),
    /// A merge patch for the ConfigMap.
    PatchRootCa(Value),
}

/// The writes that an active namespace needs.
pub(crate) fn needs(
    namespace: &str,
    has_account: bool,
    root_ca: Option<&Value>,
    bundle: &str,
) -> Vec<NamespaceWrite> {
    let mut needs = Vec::new();
    if !has_account {
        needs.push(NamespaceWrite::CreateAccount(json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": namespace},
        })));
    }
    let annotations = json!({"kubernetes.io/description": DESCRIPTION});
    match root_ca {
        None => needs.push(NamespaceWrite::CreateRootCa(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": ROOT_CA, "namespace": namespace, "annotations": annotations},
            "data": {"ca.crt": bundle},
        }))),
        Some(found) => {
            let data = found.get("data").and_then(Value::as_object);
            let intact =
                data.is_some_and(|data| data.len() == 1 && data.get("ca.crt").is_some_and(|ca| ca == bundle));
            if !intact {
                let mut data: serde_json::Map<String, Value> =
                    data.into_iter().flatten().map(|(key, _)| (key.clone(), Value::Null)).collect();
                data.insert("ca.crt".into(), bundle.into());
                needs.push(NamespaceWrite::PatchRootCa(
                    json!({"metadata": {"annotations": annotations}, "data": data}),
                ));
            }
        }
    }
    needs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_052_a_namespace_gets_an_account_and_the_ca() {
        let needs_of = |account, ca: Option<Value>| needs("n", account, ca.as_ref(), "PEM");
        assert_eq!(needs_of(true, Some(json!({"data": {"ca.crt": "PEM"}}))), []);
        let new = needs_of(false, None);
        assert!(
            matches!(&new[..], [NamespaceWrite::CreateAccount(_), NamespaceWrite::CreateRootCa(ca)] if ca["data"]["ca.crt"] == "PEM")
        );
        let changed = needs_of(true, Some(json!({"data": {"ca.crt": "old", "more": "x"}})));
        let NamespaceWrite::PatchRootCa(patch) = &changed[0] else { panic!("{changed:?}") };
        assert_eq!(patch["data"], json!({"ca.crt": "PEM", "more": null}));
    }
}
