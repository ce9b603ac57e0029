//! A Deployment, a policy, and a stand-in for the clusters that report on it.

use serde_json::{Value, json};

use crate::scene::{NAMESPACES, POLICIES, Scene};

pub(crate) const WEB: &str = "/apis/apps/v1/namespaces/n/deployments/web";
pub(crate) const TIDE: &str = "/apis/control.kubestellar.io/v1alpha1/bindingpolicies/tide";
pub(crate) const COLLECTORS: &str = "/apis/control.kubestellar.io/v1alpha1/statuscollectors";

/// All clusters, one, none.
pub(crate) fn fleet() -> Value {
    json!([{"matchLabels": {"fleet": "yes"}}])
}

pub(crate) fn only(name: &str) -> Value {
    json!([{"matchLabels": {"name": name}}])
}

/// One clause for objects labelled `app: tide`, with more fields.
pub(crate) fn downsync(more: Value) -> Value {
    let mut clause = json!({"objectSelectors": [{"matchLabels": {"app": "tide"}}]});
    clause.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!([clause])
}

pub(crate) fn label<'a>(object: &'a Value, key: &str) -> &'a Value {
    &object["metadata"]["labels"][key]
}

impl Scene {
    pub(crate) async fn deployment(&self, name: &str) -> Value {
        let template = json!({
            "metadata": {"labels": {"run": name}},
            "spec": {"containers": [{"name": "c", "image": "example.invalid/app:1"}]},
        });
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name, "namespace": "n", "labels": {"app": "tide"}},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"run": name}}, "template": template},
        });
        self.wds.post("/apis/apps/v1/namespaces/n/deployments", deployment).await
    }

    /// Policy `tide`.
    pub(crate) async fn tide(&self, clusters: Value, more: Value) -> Value {
        self.policy("tide", json!({"clusterSelectors": clusters, "downsync": downsync(more)})).await
    }

    pub(crate) async fn point(&self, policy: &str, clusters: Value) {
        self.wds
            .patch(&format!("{POLICIES}/{policy}"), json!({"spec": {"clusterSelectors": clusters}}))
            .await;
    }

    /// Mailbox namespaces, which an inventory object alone does not create.
    pub(crate) async fn mailboxes(&self) {
        for name in ["cluster1", "cluster2"] {
            self.its.post(NAMESPACES, json!({"metadata": {"name": name}})).await;
        }
    }

    /// A WorkStatus about a source, without a status yet.
    pub(crate) async fn work(&self, cluster: &str, name: &str, source: Value) {
        let work = json!({
            "apiVersion": "control.kubestellar.io/v1alpha1", "kind": "WorkStatus",
            "metadata": {"name": name, "labels": {"transport.kubestellar.io/originWdsName": "wds1"}},
            "spec": {"sourceRef": source},
        });
        self.its.post(&works(cluster), work).await;
    }

    /// Sets what a cluster reports about Deployment `web`.
    pub(crate) async fn report(&self, cluster: &str, status: Value) {
        if self.its.get(&format!("{}/web", works(cluster))).await.is_none() {
            self.work(cluster, "web", web()).await;
        }
        self.report_as(cluster, "web", status).await;
    }

    pub(crate) async fn report_as(&self, cluster: &str, name: &str, status: Value) {
        let path = format!("{}/{name}/status", works(cluster));
        let patch = json!([{"op": "add", "path": "/status", "value": status}]);
        self.its.send("PATCH", &path, "application/json-patch+json", &patch).await.unwrap();
    }

    pub(crate) async fn collector(&self, name: &str, spec: Value) -> Value {
        self.wds.post(COLLECTORS, collector(name, spec)).await
    }
}

pub(crate) fn collector(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "control.kubestellar.io/v1alpha1", "kind": "StatusCollector",
        "metadata": {"name": name}, "spec": spec,
    })
}

pub(crate) fn works(cluster: &str) -> String {
    format!("/apis/control.kubestellar.io/v1alpha1/namespaces/{cluster}/workstatuses")
}

pub(crate) fn web() -> Value {
    json!({
        "group": "apps", "version": "v1", "resource": "deployments", "kind": "Deployment",
        "namespace": "n", "name": "web",
    })
}
