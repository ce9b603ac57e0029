//! Rights in a namespace end at the namespace, for every served resource and every form of its path.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{Answer, TestServer};
use kubestellar_apiserver::descriptor::Descriptor;
use serde_json::{Value, json};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Resources that every authenticated user may create: reviews about the user, which store nothing.
const OPEN_TO_ALL: [(&str, &str); 3] = [
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("authentication.k8s.io", "selfsubjectreviews"),
];

/// Users with rights in namespace `team` only: everything, and the three default roles.
const USERS: [&str; 4] = ["everything", "admin", "edit", "view"];

async fn server() -> TestServer {
    let s = TestServer::start_with_roles().await;
    for namespace in ["team", "other"] {
        s.post("/api/v1/namespaces", json!({"metadata": {"name": namespace}})).await.expect(201);
    }
    let everything = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    let role = json!({"metadata": {"name": "everything"}, "rules": everything});
    s.post(&format!("{RBAC}/namespaces/team/roles"), role).await.expect(201);
    for user in USERS {
        let kind = if user == "everything" { "Role" } else { "ClusterRole" };
        let binding = json!({
            "metadata": {"name": user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": user},
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}],
        });
        s.post(&format!("{RBAC}/namespaces/team/rolebindings"), binding).await.expect(201);
    }
    for namespace in ["team", "other"] {
        let secret = json!({"metadata": {"name": "victim"}, "stringData": {"key": namespace}});
        s.post(&format!("/api/v1/namespaces/{namespace}/secrets"), secret).await.expect(201);
    }
    s
}

/// Grants a user rights in the whole server.
async fn allow(s: &TestServer, user: &str, rules: Value) {
    let role = json!({"metadata": {"name": user}, "rules": rules});
    s.post(&format!("{RBAC}/clusterroles"), role).await.expect(201);
    let binding = json!({
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}],
    });
    s.post(&format!("{RBAC}/clusterrolebindings"), binding).await.expect(201);
}

/// A CustomResourceDefinition with `status` and `scale`.
fn definition(group: &str, plural: &str, scope: &str) -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group, "scope": scope,
            "names": {"plural": plural, "singular": format!("{plural}x"), "kind": format!("K{plural}"),
                "listKind": format!("K{plural}List")},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas"}}}],
        },
    })
}

async fn define(s: &TestServer, group: &str, plural: &str, scope: &str) {
    s.post(CRDS, definition(group, plural, scope)).await.expect(201);
    let established = format!("{CRDS}/{plural}.{group}");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while s.server.catalog().resource(group, "v1", plural).is_none() {
        let state = s.get(&established).await;
        assert!(std::time::Instant::now() < deadline, "{}", state.text);
        tokio::task::yield_now().await;
    }
}

async fn ask(s: &TestServer, user: &str, method: &str, path: &str) -> Answer {
    let body = match method {
        "POST" | "PUT" => json!({"metadata": {"name": "made", "labels": {"by": user}}}).to_string(),
        "PATCH" => json!({"metadata": {"labels": {"by": user}}}).to_string(),
        _ => String::new(),
    };
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    s.send(method, path, &[("content-type", kind), ("impersonate-user", user)], body).await
}

fn prefix(d: &Descriptor) -> String {
    if d.group.is_empty() {
        format!("/api/{}", d.version)
    } else {
        format!("/apis/{}/{}", d.group, d.version)
    }
}

/// Every path suffix that addresses the resource, one object, or a subresource.
fn tails(d: &Descriptor, name: &str) -> Vec<String> {
    let mut tails = vec![d.plural.clone(), format!("{}/{name}", d.plural)];
    tails.extend(d.subresources.keys().map(|sub| format!("{}/{name}/{sub}", d.plural)));
    tails.push(format!("{}/{name}/finalize", d.plural));
    tails
}

const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

/// The stored objects outside namespace `team`: uid, labels and deletion time by resource, namespace and name. Every
/// write request of these tests would change one of them.
async fn outside(s: &TestServer) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for d in s.server.catalog().all().filter(|d| d.has_verb("list")) {
        let list = s.get(&format!("{}/{}", prefix(d), d.plural)).await.expect(200);
        for item in list.body["items"].as_array().into_iter().flatten() {
            let text = |field: &str| item["metadata"][field].as_str().unwrap_or_default().to_owned();
            if text("namespace") != "team" {
                let key = format!("{} {}/{} {}", d.api_version(), text("namespace"), text("name"), d.plural);
                let metadata = &item["metadata"];
                found
                    .insert(key, json!([metadata["uid"], metadata["labels"], metadata["deletionTimestamp"]]));
            }
        }
    }
    found
}

fn resources(s: &TestServer) -> Vec<Arc<Descriptor>> {
    s.server.catalog().all().cloned().collect()
}

/// Requests for cluster-scoped resources below a namespace find nothing, whatever the rights in the namespace are.
///
/// CVE-2019-11247: a Role of one namespace gave access to cluster-scoped custom resources.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_001_cve_2019_11247_cluster_scoped_resources_are_not_below_a_namespace() {
    let s = server().await;
    define(&s, "one.example.com", "namespaces", "Namespaced").await;
    define(&s, "two.example.com", "namespaces", "Cluster").await;
    define(&s, "two.example.com", "secrets", "Cluster").await;
    for name in ["team", "other", "victim"] {
        for plural in ["namespaces", "secrets"] {
            let object = json!({"metadata": {"name": name}});
            let path = format!("/apis/two.example.com/v1/{plural}");
            s.send("POST", &path, &[("content-type", "application/json")], object.to_string()).await;
        }
    }
    let before = outside(&s).await;
    for d in resources(&s).iter().filter(|d| !d.namespaced) {
        for name in ["other", "team", "victim"] {
            for tail in tails(d, name) {
                for base in ["", "watch/"] {
                    let path = format!("{}/{base}namespaces/team/{tail}", prefix(d));
                    for method in METHODS {
                        let answer = ask(&s, "everything", method, &path).await;
                        assert_eq!(answer.status, 404, "{method} {path}: {}", answer.text);
                    }
                }
            }
        }
    }
    // A cluster-scoped custom kind with the plural `namespaces` would be authorised in `team`, so it must not be found
    // there.
    for method in METHODS {
        let path = "/apis/two.example.com/v1/namespaces/team";
        let answer = ask(&s, "everything", method, path).await;
        assert!(matches!(answer.status, 403 | 404), "{method} {path}: {} {}", answer.status, answer.text);
    }
    assert_eq!(outside(&s).await, before);
}

/// A user with rights in one namespace is refused everywhere else, and changes nothing there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_063_rights_of_a_namespace_reach_nothing_outside_of_it() {
    let s = server().await;
    define(&s, "one.example.com", "namespaces", "Namespaced").await;
    let before = outside(&s).await;
    for user in USERS {
        for d in resources(&s) {
            let open = OPEN_TO_ALL.contains(&(d.group.as_str(), d.plural.as_str()));
            for tail in tails(&d, "victim") {
                let places: &[&str] = if d.namespaced { &["", "namespaces/other/"] } else { &[""] };
                for place in places {
                    let path = format!("{}/{place}{tail}", prefix(&d));
                    for method in METHODS {
                        let answer = ask(&s, user, method, &path).await;
                        let fine = answer.status == 403 || (open && method == "POST");
                        assert!(fine, "{user}: {method} {path}: {} {}", answer.status, answer.text);
                    }
                }
            }
        }
        for method in METHODS {
            for path in other_ways_to_other() {
                let answer = ask(&s, user, method, &path).await;
                let refused = matches!(answer.status, 301 | 400 | 403 | 404);
                assert!(refused, "{user}: {method} {path}: {} {}", answer.status, answer.text);
            }
        }
    }
    assert_eq!(outside(&s).await, before);
}

/// Unusual paths that address another namespace, or none.
fn other_ways_to_other() -> Vec<String> {
    let tails = ["secrets/victim", "secrets", "configmaps"];
    let ways = [
        "/api/v1/namespaces/team/../other/",
        "/api/v1/namespaces/team/%2e%2e/other/",
        "/api/v1/namespaces/team%2f..%2fother/",
        "/api/v1/namespaces/team/namespaces/other/",
        "/api/v1/namespaces/team%2fnamespaces%2fother/",
        "/api/v1/namespaces//",
        "/api/v1//namespaces/other/",
        "/api/v1/watch/namespaces/other/",
        "/api/v1/watch/",
        "/api/v1/namespaces/OTHER/",
        "/api/v1/namespaces/team%00other/",
        "/api/v1/namespaces/other%20/",
        "//api/v1/namespaces/other/",
    ];
    ways.iter().flat_map(|way| tails.map(|tail| format!("{way}{tail}"))).collect()
}

/// A namespaced custom kind with the plural `namespaces` is served below a namespace, like any other.
#[tokio::test]
async fn as_034_a_custom_kind_may_be_called_namespaces() {
    let s = server().await;
    define(&s, "one.example.com", "namespaces", "Namespaced").await;
    let base = "/apis/one.example.com/v1/namespaces/team/namespaces";
    let object =
        json!({"apiVersion": "one.example.com/v1", "kind": "Knamespaces", "metadata": {"name": "mine"}});
    let user = [("content-type", "application/json"), ("impersonate-user", "everything")];
    s.send("POST", base, &user, object.to_string()).await.expect(201);
    s.send("GET", &format!("{base}/mine"), &user, "").await.expect(200);
    assert_eq!(s.send("GET", base, &user, "").await.expect(200).names(), ["mine"]);
    assert_eq!(s.get("/apis/one.example.com/v1/namespaces").await.expect(200).names(), ["mine"]);
    let elsewhere = "/apis/one.example.com/v1/namespaces/other/namespaces";
    s.send("GET", elsewhere, &user, "").await.expect(403);
    s.send("DELETE", &format!("{base}/mine"), &user, "").await.expect(200);
    s.get(&format!("{base}/mine")).await.expect(404);
    // The Namespace object is unchanged.
    s.get("/api/v1/namespaces/team").await.expect(200);
}

/// AS-063: the right to all objects of one kind is no right to another kind of the same group, however the path is written.
///
/// CVE-2022-3162: names with `..` reached other custom resources of the same group.
#[tokio::test]
async fn as_063_cve_2022_3162_one_kind_does_not_lead_to_another_of_its_group() {
    let s = server().await;
    define(&s, "sea.example.com", "boats", "Namespaced").await;
    define(&s, "sea.example.com", "chests", "Namespaced").await;
    for plural in ["boats", "chests"] {
        let path = format!("/apis/sea.example.com/v1/namespaces/other/{plural}");
        let body = json!({"apiVersion": "sea.example.com/v1", "kind": format!("K{plural}"),
            "metadata": {"name": "victim"}, "treasure": format!("of-{plural}")});
        s.post(&path, body).await.expect(201);
    }
    let rules = json!([{"apiGroups": ["sea.example.com"], "resources": ["boats"], "verbs": ["get", "list", "watch"]}]);
    allow(&s, "sailor", rules).await;
    let base = "/apis/sea.example.com/v1";
    let own = ask(&s, "sailor", "GET", &format!("{base}/boats")).await.expect(200);
    assert!(own.text.contains("of-boats"));
    for path in [
        "chests",
        "namespaces/other/chests/victim",
        "boats/../chests",
        "boats/..%2fchests",
        "boats%2f..%2fchests",
        "namespaces/other/boats/..%2fchests%2fother%2fvictim",
        "namespaces/other/boats/..%2f..%2fchests%2fother%2fvictim",
        "namespaces/..%2f..%2fchests%2fother/boats/victim",
        "namespaces/../chests/boats",
        "namespaces/other/boats/../chests/victim",
        "namespaces/other/boats/%2e%2e/chests/victim",
        "watch/boats/../chests",
        "watch/namespaces/../chests/boats",
        "namespaces/..%2fchests%2fother/boats",
        "boats/chests",
        "boats?fieldSelector=metadata.name%3D..%2fchests%2fother%2fvictim",
        "boats?fieldSelector=metadata.namespace%3D..%2fchests",
        "boats?continue=../chests",
    ] {
        let answer = ask(&s, "sailor", "GET", &format!("{base}/{path}")).await;
        assert!(!answer.text.contains("of-chests"), "{path}: {} {}", answer.status, answer.text);
        let refused = matches!(answer.status, 301 | 400 | 403 | 404 | 405);
        assert!(
            refused || (path.starts_with("boats?") && answer.names().is_empty()),
            "{path}: {}",
            answer.status
        );
    }
}

/// AS-064: who may change ClusterRoles, but has not their rights, does not get them by a label that lets an aggregated role gather
/// them.
#[tokio::test]
async fn as_064_a_label_does_not_grant_what_its_writer_does_not_have() {
    let s = server().await;
    let rules = json!([
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["get", "create", "update", "patch"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
    ]);
    allow(&s, "clerk", rules).await;
    let before = s.get(&format!("{RBAC}/clusterroles/view")).await.expect(200).body["rules"].clone();
    let label = json!({"metadata": {"labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}}});
    for (role, status) in [("cluster-admin", 403), ("admin", 403), ("view", 403), ("clerk", 200)] {
        let kind = [("content-type", "application/merge-patch+json"), ("impersonate-user", "clerk")];
        let path = format!("{RBAC}/clusterroles/{role}?dryRun=All");
        s.send("PATCH", &path, &kind, label.to_string()).await.expect(status);
    }
    let kind = [("content-type", "application/merge-patch+json"), ("impersonate-user", "clerk")];
    s.send("PATCH", &format!("{RBAC}/clusterroles/cluster-admin"), &kind, label.to_string())
        .await
        .expect(403);
    let after = s.get(&format!("{RBAC}/clusterroles/view")).await.expect(200).body["rules"].clone();
    assert_eq!(after, before);
    s.send("GET", "/api/v1/namespaces/other/secrets/victim", &[("impersonate-user", "clerk")], "")
        .await
        .expect(403);
}
