//! Admission in an inventory space: the rules of the OCM hub (OCM-041, OCM-042, OCM-098). A real hub has webhooks for them.

use std::sync::Arc;

use apis::constants::{ADDON_GROUP, BUILT_IN_CONVERSION_ANNOTATION, CLUSTER_GROUP, WORK_GROUP};
use apiserver::admission::{Admission, AdmissionRequest};
use apiserver::error::ApiError;
use ocm_hub::admission::{Ask, Refusal, managed_cluster, set_binding};
use ocm_hub::works::{self, manifest_work};
use serde_json::Value;

/// Most bytes of the manifests of a ManifestWork in an embedded inventory space, and of what the embedded transport puts
/// into one. OCM allows 500 KiB because etcd takes requests of 1.5 MiB. Our API servers take 3 MiB: what is above 2 MiB is left
/// to the work's status and managed fields, and to those of the object in the cluster.
pub(super) const WORK_BYTES: usize = 2 * 1024 * 1024;

/// Returns the admission rules for a space of this role. The space of a ControlPlane may become an ITS later.
pub(super) fn of_role(role: &str) -> Option<Arc<dyn Admission>> {
    (role == "its" || role == "space").then(|| Arc::new(Inventory) as Arc<dyn Admission>)
}

/// Returns what a bare API server does for a hub beside it: it converts the add-on API between its versions where the
/// CustomResourceDefinition asks for that (OCM-001).
pub(crate) fn of_bare_server() -> Arc<dyn Admission> {
    Arc::new(Conversion)
}

struct Inventory;

struct Conversion;

struct Asked<'a>(&'a AdmissionRequest<'a>);

impl Ask for Asked<'_> {
    fn may(&self, verb: &str, group: &str, resource: &str, subresource: &str, name: &str) -> bool {
        self.0.may(verb, group, resource, subresource, name)
    }

    fn is_terminating(&self, namespace: &str) -> bool {
        let found = self.0.lookup.get("", "namespaces", "", namespace);
        found.is_some_and(|found| found.pointer("/metadata/deletionTimestamp").is_some())
    }
}

impl works::Ask for Asked<'_> {
    fn may_in(&self, verb: &str, group: &str, resource: &str, namespace: &str, name: &str) -> bool {
        self.0.may_in(verb, group, resource, namespace, name)
    }
}

impl Admission for Inventory {
    fn admit(
        &self,
        attempt: &AdmissionRequest<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), ApiError> {
        if attempt.subresource.is_some() {
            return Ok(());
        }
        let (user, ask) = (attempt.user.name.as_str(), Asked(attempt));
        let answer = match (attempt.group, attempt.plural) {
            (CLUSTER_GROUP, "managedclusters") => managed_cluster(object, old, user, attempt.now, &ask),
            (CLUSTER_GROUP, "managedclustersetbindings") => set_binding(object, old, user, &ask),
            (WORK_GROUP, "manifestworks") => manifest_work(object, old, user, WORK_BYTES, &ask),
            _ => return Ok(()),
        };
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        answer.map_err(|refusal| match refusal {
            Refusal::Bad(why) => ApiError::bad_request(why),
            Refusal::Forbidden(why) => ApiError::forbidden(attempt.group, attempt.plural, name, &why),
        })
    }

    /// OCM-016: the rules of the webhook of OCM's add-on manager.
    fn convert(&self, group: &str, object: &mut Value, from: &str, to: &str) {
        if group == ADDON_GROUP {
            apis::ocm::conversion::convert(object, from, to);
        }
    }
}

impl Admission for Conversion {
    fn admit(
        &self,
        _attempt: &AdmissionRequest<'_>,
        _object: &mut Value,
        _old: Option<&Value>,
    ) -> Result<(), ApiError> {
        Ok(())
    }

    fn convert(&self, group: &str, object: &mut Value, from: &str, to: &str) {
        Inventory.convert(group, object, from, to);
    }

    /// OCM's operator names a webhook, which serves the same conversion; our hub leaves a note.
    fn converts(&self, definition: &Value) -> bool {
        let strategy = definition.pointer("/spec/conversion/strategy").and_then(Value::as_str);
        let annotations = definition.pointer("/metadata/annotations");
        let note = annotations.and_then(|all| all.get(BUILT_IN_CONVERSION_ANNOTATION));
        strategy == Some("Webhook") || note.and_then(Value::as_str) == Some("true")
    }
}

#[cfg(test)]
mod tests {
    use runtime::rest::{Gvr, Rest};
    use serde_json::json;
    use space::{Identity, Space, SpaceConfig};

    use super::*;

    /// OCM-001, OCM-016, OCM-A-90: an add-on in both versions, whichever it is written in.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn ocm_a_90_an_addon_is_served_in_both_versions() {
        for admission in [of_role("its"), Some(of_bare_server())] {
            served_in_both_versions(admission).await;
        }
    }

    /// OCM-001: a bare server converts what our hub marks, and what OCM's operator has a webhook for; nothing else.
    #[test]
    fn ocm_001_a_bare_server_converts_what_asks_for_it() {
        let marked =
            |value: &str| json!({"metadata": {"annotations": {BUILT_IN_CONVERSION_ANNOTATION: value}}});
        for (definition, converts) in [
            (json!({"spec": {"conversion": {"strategy": "Webhook"}}}), true),
            (json!({"spec": {"conversion": {"strategy": "None"}}}), false),
            (json!({}), false),
            (marked("true"), true),
            (marked("false"), false),
        ] {
            assert_eq!(Conversion.converts(&definition), converts, "{definition}");
        }
        assert!(
            apis::crds::ocm_hub_converting()
                .iter()
                .filter(|crd| crd.spec.group == ADDON_GROUP)
                .all(|crd| { Conversion.converts(&serde_json::to_value(crd).unwrap()) })
        );
        assert!(Inventory.converts(&json!({})));
    }

    async fn served_in_both_versions(admission: Option<Arc<dyn Admission>>) {
        let data = tempfile::tempdir().unwrap();
        let config = SpaceConfig {
            name: "its1",
            data: data.path(),
            url: "https://127.0.0.1:1/spaces/its1".into(),
            advertise: "127.0.0.1:1".into(),
        };
        let space = Space::start_with(&store::Engine::in_memory(), config, admission).await.unwrap();
        let client = space.client(&Identity::admin());
        runtime::install(&client, &apis::crds::ocm_hub_converting(), "test").await.unwrap();
        let rest = Rest::new(client);
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "c1"}});
        let spaces = Gvr::new("", "v1", "namespaces");
        rest.create::<Value>(&spaces, "", namespace.to_string().into_bytes()).await.unwrap();
        let at = |version: &str| Gvr::new(ADDON_GROUP, version, "managedclusteraddons");
        let (alpha, beta) = (at("v1alpha1"), at("v1beta1"));
        let note = apis::ocm::conversion::INSTALL_NAMESPACE;

        let made = json!({"apiVersion": alpha.api_version(), "kind": "ManagedClusterAddOn",
            "metadata": {"name": "a"}, "spec": {"installNamespace": "x"}});
        rest.create::<Value>(&alpha, "c1", made.to_string().into_bytes()).await.unwrap();
        let registrations = json!([
            {"signerName": "kubernetes.io/kube-apiserver-client", "subject": {"user": "u", "groups": ["g"]}},
            {"signerName": "example.com/signer", "subject": {"user": "v", "organizationUnit": ["o"]}}]);
        let status = json!({"status": {"registrations": registrations, "kubeClientDriver": "csr"}});
        rest.merge_status::<Value>(&alpha, "c1", "a", &status).await.unwrap();

        let seen: Value = rest.get(&beta, "c1", "a").await.unwrap();
        assert_eq!(seen["apiVersion"], beta.api_version());
        assert_eq!(seen["metadata"]["annotations"][note], "x");
        assert!(seen["spec"].get("installNamespace").is_none());
        assert_eq!(seen["status"]["registrations"][0]["kubeClient"]["driver"], "csr");
        assert_eq!(
            seen["status"]["registrations"][1]["customSigner"]["subject"]["organizationUnits"],
            json!(["o"])
        );
        let listed: Value = rest.list(&beta, "c1", "").await.unwrap();
        assert_eq!(listed["items"][0]["metadata"]["annotations"][note], "x");

        // Written in the newer version, by an agent of the newer sort.
        let more = json!({"status": {"namespace": "x", "conditions": []}});
        rest.merge_status::<Value>(&beta, "c1", "a", &more).await.unwrap();
        let seen: Value = rest.get(&alpha, "c1", "a").await.unwrap();
        assert_eq!(seen["spec"]["installNamespace"], "x");
        assert!(seen["metadata"]["annotations"].get(note).is_none(), "not in the older view");
        assert_eq!(seen["status"]["registrations"], registrations);
        assert_eq!(
            (&seen["status"]["kubeClientDriver"], &seen["status"]["namespace"]),
            (&json!("csr"), &json!("x"))
        );
        let made = json!({"apiVersion": beta.api_version(), "kind": "ManagedClusterAddOn",
            "metadata": {"name": "b", "annotations": {note: "y"}}, "spec": {}});
        rest.create::<Value>(&beta, "c1", made.to_string().into_bytes()).await.unwrap();
        let seen: Value = rest.get(&alpha, "c1", "b").await.unwrap();
        assert_eq!(seen["spec"]["installNamespace"], "y");

        let owners = |version: &str| Gvr::new(ADDON_GROUP, version, "clustermanagementaddons");
        let made = json!({"apiVersion": alpha.api_version(), "kind": "ClusterManagementAddOn",
            "metadata": {"name": "a"}, "spec": {"supportedConfigs": [{"group": "g", "resource": "r"}]}});
        rest.create::<Value>(&owners("v1alpha1"), "", made.to_string().into_bytes()).await.unwrap();
        let seen: Value = rest.get(&owners("v1beta1"), "", "a").await.unwrap();
        assert_eq!(
            seen["spec"]["defaultConfigs"],
            json!([{"group": "g", "resource": "r", "name": "__reserved_no_default__"}])
        );
        space.stop().await;
    }
}
