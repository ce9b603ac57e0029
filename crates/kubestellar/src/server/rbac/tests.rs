//! Asked of whole spaces in memory, whose API servers decide.

use kube::Error;
use runtime::failure::code_of;
use runtime::rest::{Gvr, Removal};
use space::{Space, SpaceConfig};

use super::*;

async fn spaces(data: &std::path::Path) -> [Space; 2] {
    let engine = store::Engine::in_memory();
    let start = async |name: &str| {
        let url = format!("https://127.0.0.1:1/spaces/{name}");
        let config = SpaceConfig { name, data, url, advertise: "127.0.0.1:1".into() };
        Space::start(&engine, config).await.unwrap()
    };
    let (wds, its) = (start("wds1").await, start("its1").await);
    runtime::install(&wds.client(&Identity::admin()), &apis::crds::control(), "test").await.unwrap();
    let hub = [apis::crds::ocm_hub(), apis::crds::work_status()].concat();
    runtime::install(&its.client(&Identity::admin()), &hub, "test").await.unwrap();
    in_description_space(wds.client(&Identity::admin())).await.unwrap();
    in_inventory_space(its.client(&Identity::admin())).await.unwrap();
    [wds, its]
}

fn gvr(group: &str, version: &str, plural: &str) -> Gvr {
    Gvr::new(group, version, plural)
}

async fn create(rest: &Rest, gvr: &Gvr, namespace: &str, object: Value) -> Result<Value, Error> {
    rest.create(gvr, namespace, object.to_string().into_bytes()).await
}

async fn delete(rest: &Rest, gvr: &Gvr, namespace: &str, name: &str) -> Result<(), Error> {
    rest.delete(gvr, namespace, name, &Removal::default()).await
}

#[track_caller]
fn refused<T: std::fmt::Debug>(what: &str, answer: Result<T, Error>) {
    assert_eq!(answer.as_ref().err().map(code_of), Some(403), "{what}: {answer:?}");
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

fn binding_object() -> Value {
    json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "Binding", "metadata": {"name": "b"},
        "spec": {"destinations": [], "workload": {}}})
}

/// SP-065: the controllers label workload and write its status, whatever its kind, but don't make or delete it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_065_controller_manager_neither_makes_nor_deletes_workload() {
    let data = tempfile::tempdir().unwrap();
    let [wds, its] = spaces(data.path()).await;
    let (maps, roles) = (gvr("", "v1", "configmaps"), gvr("rbac.authorization.k8s.io", "v1", "clusterroles"));
    create(&Rest::new(wds.client(&Identity::admin())), &maps, "default", map("a")).await.unwrap();
    let me = Rest::new(wds.client(&controller_manager()));
    let label = json!({"metadata": {"labels": {"kubestellar.io/executing-count": "1"}}});
    me.merge::<Value>(&maps, "default", "a", &label).await.unwrap();
    me.merge::<Value>(&roles, "", "cluster-admin", &label).await.unwrap();
    let namespaces = gvr("", "v1", "namespaces");
    me.merge_status::<Value>(&namespaces, "", "default", &json!({"status": {"phase": "Active"}}))
        .await
        .unwrap();
    let bindings = gvr(CONTROL, "v1alpha1", "bindings");
    create(&me, &bindings, "", binding_object()).await.unwrap();
    delete(&me, &bindings, "", "b").await.unwrap();
    runtime::install(me.client(), &apis::crds::control(), "Binding").await.unwrap();
    refused("a map made", create(&me, &maps, "default", map("b")).await);
    refused("a map deleted", delete(&me, &maps, "default", "a").await);
    refused("a namespace deleted", delete(&me, &namespaces, "", "default").await);

    let me = Rest::new(its.client(&controller_manager()));
    me.list::<Value>(&gvr(CLUSTERS, "v1", "managedclusters"), "", "").await.unwrap();
    me.list::<Value>(&gvr(CONTROL, "v1alpha1", "workstatuses"), "", "").await.unwrap();
    refused("works", me.list::<Value>(&gvr(WORK, "v1", "manifestworks"), "", "").await);
    refused("secrets", me.list::<Value>(&gvr("", "v1", "secrets"), "", "").await);
    wds.stop().await;
    its.stop().await;
}

/// SP-065: the transport reads workload and writes works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_065_transport_only_reads_workload() {
    let data = tempfile::tempdir().unwrap();
    let [wds, its] = spaces(data.path()).await;
    let (maps, bindings) = (gvr("", "v1", "configmaps"), gvr(CONTROL, "v1alpha1", "bindings"));
    let admin = Rest::new(wds.client(&Identity::admin()));
    create(&admin, &maps, "default", map("a")).await.unwrap();
    create(&admin, &bindings, "", binding_object()).await.unwrap();
    let me = Rest::new(wds.client(&transport()));
    me.get::<Value>(&maps, "default", "a").await.unwrap();
    let finalizers = json!({"metadata": {"finalizers": [apis::constants::BINDING_FINALIZER]}});
    me.merge::<Value>(&bindings, "", "b", &finalizers).await.unwrap();
    let status = json!({"status": {"observedGeneration": 1}});
    me.merge_status::<Value>(&bindings, "", "b", &status).await.unwrap();
    refused("a map deleted", delete(&me, &maps, "default", "a").await);
    refused("a map changed", me.merge::<Value>(&maps, "default", "a", &json!({"data": {"a": "b"}})).await);
    refused("a binding deleted", delete(&me, &bindings, "", "b").await);
    let policies = gvr(CONTROL, "v1alpha1", "bindingpolicies");
    refused("a policy", me.merge::<Value>(&policies, "", "b", &finalizers).await);

    let me = Rest::new(its.client(&transport()));
    let mailbox = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let (namespaces, works) = (gvr("", "v1", "namespaces"), gvr(WORK, "v1", "manifestworks"));
    create(&me, &namespaces, "", mailbox("cluster1")).await.unwrap();
    let work = json!({"apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork",
        "metadata": {"name": "b-wds1-0"}, "spec": {"workload": {"manifests": []}}});
    create(&me, &works, "cluster1", work).await.unwrap();
    delete(&me, &works, "cluster1", "b-wds1-0").await.unwrap();
    me.list::<Value>(&maps, "customization-properties", "").await.unwrap();
    refused("a map", create(&me, &maps, "cluster1", map("a")).await);
    refused("secrets", me.list::<Value>(&gvr("", "v1", "secrets"), "", "").await);
    refused("a namespace deleted", delete(&me, &namespaces, "", "cluster1").await);
    let clusters = gvr(CLUSTERS, "v1", "managedclusters");
    refused("a cluster deleted", delete(&me, &clusters, "", "cluster1").await);
    wds.stop().await;
    its.stop().await;
}

/// SP-065, KS-A-12: who labels releases reads lists of Secrets and changes them, and does nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_065_labelling_releases_is_all_it_may() {
    let data = tempfile::tempdir().unwrap();
    let [wds, its] = spaces(data.path()).await;
    let (secrets, maps) = (gvr("", "v1", "secrets"), gvr("", "v1", "configmaps"));
    let admin = Rest::new(wds.client(&Identity::admin()));
    let secret = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
    create(&admin, &secrets, "default", secret("a")).await.unwrap();
    create(&admin, &maps, "default", map("a")).await.unwrap();
    let me = Rest::new(wds.client(&helm_releases()));
    let label = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}});
    refused("before it is switched on", me.merge::<Value>(&secrets, "default", "a", &label).await);
    helm_releases_in(wds.client(&Identity::admin())).await.unwrap();
    me.merge::<Value>(&secrets, "default", "a", &label).await.unwrap();
    me.list_metadata(&secrets, "", "owner=helm").await.unwrap();
    refused("one Secret", me.get::<Value>(&secrets, "default", "a").await);
    refused("a Secret made", create(&me, &secrets, "default", secret("b")).await);
    refused("a Secret deleted", delete(&me, &secrets, "default", "a").await);
    refused("a map", me.merge::<Value>(&maps, "default", "a", &label).await);
    refused("maps", me.list::<Value>(&maps, "", "").await);
    wds.stop().await;
    its.stop().await;
}

/// SP-065: made once, kept as they ought to be, and marked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_065_roles_are_marked_and_drift_is_put_right() {
    let data = tempfile::tempdir().unwrap();
    let [wds, its] = spaces(data.path()).await;
    let (roles, admin) =
        (gvr("rbac.authorization.k8s.io", "v1", "clusterroles"), wds.client(&Identity::admin()));
    let rest = Rest::new(admin.clone());
    let first: Value = rest.get(&roles, "", TRANSPORT).await.unwrap();
    assert_eq!(first["metadata"]["labels"][SYSTEM_LABEL], "true");
    in_description_space(admin.clone()).await.unwrap();
    let again: Value = rest.get(&roles, "", TRANSPORT).await.unwrap();
    assert_eq!(
        again["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"],
        "nothing is written"
    );
    let wide = json!({"rules": [rule("*", &["*"], &["*"])]});
    rest.merge::<Value>(&roles, "", TRANSPORT, &wide).await.unwrap();
    in_description_space(admin).await.unwrap();
    let again: Value = rest.get(&roles, "", TRANSPORT).await.unwrap();
    assert_eq!(again["rules"], first["rules"]);
    wds.stop().await;
    its.stop().await;
}
