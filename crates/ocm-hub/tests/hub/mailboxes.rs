//! What the agents of a cluster can access with their real credentials: their own mailbox, and nothing else.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use kube::{Client, client::Body};
use ocm_addon::{self as addon, Addon, framework::Target, status::StatusAddon};
use ocm_agent::registration::BuiltIn;
use ocm_shared::rbac;
use runtime::rest::{Gvr, Removal};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::world::*;

const AGENTS: &str = "open-cluster-management-agent";
const ADDONS: &str = "open-cluster-management-agent-addon";
const OWN: &str = "c1";
const OTHER: &str = "c10";

/// An add-on whose agent has all permissions in the mailbox of its cluster.
struct AdminAddon;

impl Addon for AdminAddon {
    fn name(&self) -> &'static str {
        "mighty"
    }

    fn rights(&self, cluster: &str) -> Vec<Value> {
        let group = format!("system:open-cluster-management:cluster:{cluster}:addon:mighty");
        let everything = json!([rbac::rule("*", &["*"], &["*"])]);
        vec![
            rbac::role(cluster, "mighty", json!({}), everything),
            rbac::binding(
                cluster,
                "mighty",
                json!({}),
                ("Role", "mighty"),
                json!([rbac::subject("Group", &group)]),
            ),
        ]
    }

    fn manifests(&self, _: &Target<'_>) -> Result<Vec<Value>, String> {
        Ok(Vec::new())
    }
}

fn manager(w: &World) -> (CancellationToken, JoinHandle<()>) {
    let mut config = addon::Config::with_status_addon(StatusAddon::default());
    config.addons.push(Arc::new(AdminAddon));
    let (client, stop) = (w.hub().client().clone(), CancellationToken::new());
    let token = stop.clone();
    (stop, tokio::spawn(async move { addon::run(client, config, token).await.expect("the manager") }))
}

/// A client of the hub with the certificate in a Secret of the cluster in this space.
async fn credential(w: &World, space: usize, namespace: &str, name: &str) -> Client {
    use base64::Engine as _;
    let gvr = gvr("secrets");
    until(&format!("the Secret {name}"), || async {
        w.admin(space).find::<Value>(&gvr, namespace, name).await.expect("an answer").is_some()
    })
    .await;
    let secret: Value = w.admin(space).get(&gvr, namespace, name).await.expect("a secret");
    let text = secret["data"]["tls.crt"].as_str().expect("a certificate");
    let pem = base64::engine::general_purpose::STANDARD.decode(text).expect("base64");
    let pem = String::from_utf8(pem).expect("PEM");
    w.spaces[0].client_ahead_by_certificate(&pem).expect("a client")
}

/// A resource as discovery describes it.
#[derive(Clone, Debug)]
struct Resource {
    /// `/api/v1`, or `/apis/GROUP/VERSION`.
    root: String,
    /// With its subresource, if any.
    plural: String,
    kind: String,
    namespaced: bool,
}

async fn ask<T: serde::de::DeserializeOwned>(client: &Client, path: &str) -> T {
    client.request(http::Request::get(path).body(Vec::new()).expect("a request")).await.expect("an answer")
}

/// Returns every resource that the hub serves, in every version.
async fn served(admin: &Client) -> Vec<Resource> {
    let groups: Value = ask(admin, "/apis").await;
    let mut roots = vec!["/api/v1".to_owned()];
    for group in groups["groups"].as_array().into_iter().flatten() {
        for version in group["versions"].as_array().into_iter().flatten() {
            roots.push(format!("/apis/{}", version["groupVersion"].as_str().expect("a version")));
        }
    }
    let mut all = Vec::new();
    for root in roots {
        let list: Value = ask(admin, &root).await;
        for one in list["resources"].as_array().into_iter().flatten() {
            let text = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
            let namespaced = one["namespaced"] == true;
            all.push(Resource { root: root.clone(), plural: text("name"), kind: text("kind"), namespaced });
        }
    }
    all
}

/// Returns every possible request for a resource in one namespace (or none), for the object of this name.
fn requests(resource: &Resource, namespace: &str, name: &str) -> Vec<(&'static str, String)> {
    let within = if namespace.is_empty() { String::new() } else { format!("/namespaces/{namespace}") };
    let root = format!("{}{within}", resource.root);
    if let Some((plural, sub)) = resource.plural.split_once('/') {
        let path = format!("{root}/{plural}/{name}/{sub}");
        return ["GET", "POST", "PUT", "PATCH", "DELETE"].map(|verb| (verb, path.clone())).into();
    }
    let all = format!("{root}/{}", resource.plural);
    let one = format!("{all}/{name}");
    vec![
        ("GET", all.clone()),
        ("GET", format!("{all}?watch=true&timeoutSeconds=1")),
        ("GET", format!("{all}?fieldSelector=metadata.name%3D{name}")),
        ("POST", all.clone()),
        ("DELETE", all),
        ("GET", one.clone()),
        ("PUT", one.clone()),
        ("PATCH", one.clone()),
        ("DELETE", one),
    ]
}

async fn code(client: &Client, verb: &str, path: &str, body: &Value, impersonate: Option<&str>) -> u16 {
    let kind = if verb == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let mut request = http::Request::builder().method(verb).uri(path).header("content-type", kind);
    if let Some(user) = impersonate {
        request = request.header("impersonate-user", user);
    }
    let body = if verb == "GET" { Vec::new() } else { body.to_string().into_bytes() };
    let request = request.body(Body::from(body)).expect("a request");
    client.send(request).await.expect("an answer").status().as_u16()
}

/// Returns the requests in a namespace that are not refused.
async fn reached(who: &str, client: &Client, all: &[Resource], namespace: &str, names: &Names) -> String {
    let mut reached = String::new();
    for resource in all.iter().filter(|r| r.namespaced != namespace.is_empty()) {
        let plural = resource.plural.split('/').next().unwrap_or_default();
        let name = names.get(plural).map_or("any", String::as_str);
        let api = resource.root.trim_start_matches("/apis/").trim_start_matches("/api/");
        let body = json!({"apiVersion": api, "kind": resource.kind, "metadata": {"name": name}});
        for (verb, path) in requests(resource, namespace, name) {
            let code = code(client, verb, &path, &body, None).await;
            if code != 403 {
                writeln!(reached, "{who}: {verb} {path}: {code}").expect("a String");
            }
        }
    }
    reached
}

/// Name of an object of each plural that exists in the namespace.
type Names = BTreeMap<String, String>;

async fn set_up(w: &World) -> Names {
    let hub = w.hub();
    let meta = |api: &str, kind: &str| json!({"apiVersion": api, "kind": kind, "metadata": {"name": "secret-of-the-other"}});
    let mut decision = meta("cluster.open-cluster-management.io/v1beta1", "PlacementDecision");
    decision["metadata"]["labels"] = json!({});
    let mut placement = meta("cluster.open-cluster-management.io/v1beta1", "Placement");
    placement["spec"] = json!({});
    let mut report = meta("control.kubestellar.io/v1alpha1", "WorkStatus");
    report["spec"] = json!({"sourceRef": {"group": "", "version": "v1", "resource": "configmaps", "kind": "ConfigMap",
        "name": "x", "namespace": "y"}});
    let mut names = Names::from([
        ("leases".to_owned(), "managed-cluster-lease".to_owned()),
        ("managedclusteraddons".into(), "mighty".into()),
        ("rolebindings".into(), "open-cluster-management:managedcluster:c10:work".into()),
        ("roles".into(), "mighty".into()),
        ("serviceaccounts".into(), "default".into()),
    ]);
    for (plural, body) in [
        ("secrets", meta("v1", "Secret")),
        ("configmaps", meta("v1", "ConfigMap")),
        ("manifestworks", holding("secret-of-the-other", &[])),
        ("placements", placement),
        ("placementdecisions", decision),
        ("workstatuses", report),
    ] {
        create(&hub, &gvr(plural), OTHER, body).await.unwrap_or_else(|error| panic!("{plural}: {error}"));
        names.insert(plural.into(), "secret-of-the-other".into());
    }
    names
}

/// OCM-003, OCM-044, OCM-058, OCM-059, OCM-A-35: registration and work agent, status agent and an add-on with
/// all permissions in its mailbox try every request in the mailbox of another cluster, whose name begins with
/// theirs, and everywhere else on the hub: all are refused. When denied or deleted, they have no access to
/// their own mailbox either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_044_no_credential_reaches_another_mailbox() {
    let w = World::start(trusting).await;
    runtime::install(w.hub().client(), &apis::crds::work_status(), "test").await.expect("a kind");
    let (stop, managing) = manager(&w);
    let built_in = || vec![BuiltIn::new("addon-status")];
    let (one, two) =
        (w.agent(1, OWN, |c| c.built_in = built_in()), w.agent(2, OTHER, |c| c.built_in = built_in()));
    w.until_condition(OWN, AVAILABLE, "True").await;
    w.until_condition(OTHER, AVAILABLE, "True").await;
    let owner = json!({"apiVersion": "addon.open-cluster-management.io/v1alpha1", "kind": "ClusterManagementAddOn",
        "metadata": {"name": "mighty"}, "spec": {"installStrategy": {"type": "Manual"}}});
    create(&w.hub(), &gvr("clustermanagementaddons"), "", owner).await.expect("an add-on");
    for cluster in [OWN, OTHER] {
        let member = json!({"apiVersion": "addon.open-cluster-management.io/v1alpha1", "kind": "ManagedClusterAddOn",
            "metadata": {"name": "mighty"}, "spec": {}});
        create(&w.hub(), &gvr("managedclusteraddons"), cluster, member).await.expect("an add-on");
    }
    // The work agent uses the credential of the registration agent.
    let agents = [
        ("klusterlet", credential(&w, 1, AGENTS, "hub-kubeconfig-secret").await),
        ("status agent", credential(&w, 1, ADDONS, "addon-status-hub-kubeconfig").await),
        ("mighty", credential(&w, 1, ADDONS, "mighty-hub-kubeconfig").await),
    ];
    until("the rights of the other's add-ons", || w.exists("roles", OTHER, "mighty")).await;
    until("the other's lease", || w.exists("leases", OTHER, "managed-cluster-lease")).await;
    let names = set_up(&w).await;
    let all = served(w.hub().client()).await;
    assert!(all.iter().filter(|r| r.namespaced).count() > 60, "{}", all.len());
    for plural in names.keys() {
        assert!(all.iter().any(|r| r.plural == *plural), "{plural} is served");
    }

    // In their own mailbox they have what they need: only the namespace makes the difference.
    let home = |api: &str, plural: &str| format!("/apis/{api}/namespaces/{OWN}/{plural}");
    let at_home = [
        home("work.open-cluster-management.io/v1", "manifestworks"),
        home("control.kubestellar.io/v1alpha1", "workstatuses"),
        format!("/api/v1/namespaces/{OWN}/secrets"),
    ];
    for ((who, client), path) in agents.iter().zip(&at_home) {
        until(&format!("{who} at home"), || async {
            code(client, "GET", path, &Value::Null, None).await == 200
        })
        .await;
    }

    let mut reach = String::new();
    for (who, client) in &agents {
        for namespace in [OTHER, "default", "kube-system", "open-cluster-management"] {
            reach += &reached(who, client, &all, namespace, &names).await;
        }
        // All namespaces at once.
        for resource in all.iter().filter(|r| r.namespaced && !r.plural.contains('/')) {
            for query in ["", "?watch=true&timeoutSeconds=1", "?fieldSelector=metadata.namespace%3Dc10"] {
                let path = format!("{}/{}{query}", resource.root, resource.plural);
                let code = code(client, "GET", &path, &Value::Null, None).await;
                if code != 403 {
                    writeln!(reach, "{who}: GET {path}: {code}").expect("a String");
                }
            }
        }
        let path = format!("/api/v1/namespaces/{OTHER}/secrets");
        for user in ["kubernetes-admin", "system:open-cluster-management:c10:x"] {
            assert_eq!(code(client, "GET", &path, &Value::Null, Some(user)).await, 403, "{who} as {user}");
        }
    }
    assert_eq!(reach, "");

    // Outside of namespaces: signing requests may be created and read, as in OCM, but not decided; and every
    // user may ask for its own permissions.
    let csr = w.requests(OTHER).await.remove(0)["metadata"]["name"].as_str().expect("a name").to_owned();
    let cluster_wide = Names::from([
        ("managedclusters".to_owned(), OTHER.to_owned()),
        ("namespaces".into(), OTHER.into()),
        ("certificatesigningrequests".into(), csr),
        ("clusterroles".into(), "cluster-admin".into()),
    ]);
    for (who, client) in &agents {
        let reach = reached(who, client, &all, "", &cluster_wide).await;
        for line in reach.lines() {
            let seen = *who == "klusterlet"
                && line.contains("/certificatesigningrequests")
                && (line.contains(": GET ") || line.contains(": POST "))
                && !line.contains("/status")
                && !line.contains("/approval");
            let asked = line.contains(": POST ") && line.contains("/self") && line.contains("review");
            assert!(seen || asked, "{line}");
        }
    }

    // Denied: everything in the own mailbox is refused, too.
    w.accept(OWN, false).await;
    w.until_condition(OWN, ACCEPTED, "False").await;
    until("the end of the add-ons' rights", || async {
        !w.exists("rolebindings", OWN, "mighty").await
            && !w.exists("rolebindings", OWN, "open-cluster-management:addon-status:agent").await
    })
    .await;
    let own = Names::from([("managedclusters".to_owned(), OWN.to_owned())]);
    for (who, client) in &agents {
        for namespace in [OWN, OTHER] {
            assert_eq!(reached(who, client, &all, namespace, &names).await, "");
        }
        for line in reached(who, client, &all, "", &own).await.lines() {
            let sight = *who == "klusterlet"
                && line.contains(": GET ")
                && (line.contains("/managedclusters/c1:")
                    || line.contains("fieldSelector=metadata.name%3Dc1:"));
            let asked = line.contains(": POST ") && line.contains("/self") && line.contains("review");
            assert!(sight || asked, "denied: {line}");
        }
    }

    // Accepted again, everything is as before; deleted, nothing is left.
    w.accept(OWN, true).await;
    for ((who, client), path) in agents.iter().zip(&at_home) {
        until(&format!("{who} again"), || async {
            code(client, "GET", path, &Value::Null, None).await == 200
        })
        .await;
    }
    w.hub().delete(&gvr("managedclusters"), "", OWN, &Removal::default()).await.expect("deleted");
    until("the end of the cluster", || async { w.cluster(OWN).await.is_none() }).await;
    let left = Gvr::new("rbac.authorization.k8s.io", "v1", "rolebindings");
    until("the end of all its rights", || async {
        let label = format!("open-cluster-management.io/cluster-name={OWN}");
        let left: Value = w.hub().list(&left, OWN, &label).await.expect("a list");
        left["items"] == json!([]) && !w.exists("rolebindings", OWN, "mighty").await
    })
    .await;
    for (who, client) in &agents {
        for namespace in [OWN, OTHER] {
            assert_eq!(reached(who, client, &all, namespace, &names).await, "");
        }
        for line in reached(who, client, &all, "", &own).await.lines() {
            let asked = line.contains(": POST ") && line.contains("/self") && line.contains("review");
            assert!(asked, "deleted: {line}");
        }
    }
    let other = Gvr::new("work.open-cluster-management.io", "v1", "manifestworks");
    two.rest().list::<Value>(&other, OTHER, "").await.expect("the other has its works");
    one.end().await;
    two.end().await;
    stop.cancel();
    managing.await.expect("no panic");
    w.end().await;
}
