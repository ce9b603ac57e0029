//! Authorization by stored roles and bindings.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use kubestellar_apiserver::authn::impersonate;
use kubestellar_apiserver::authz::{Attributes, Authorizer, Decision, bootstrap, check_escalation};
use kubestellar_apiserver::error::ApiError;
use kubestellar_apiserver::identity::UserInfo;
use serde_json::{Value, json};
use store::{Action, Collection, Encoded, Engine, Expect, Key, Meta, SpaceStore, Write};

const RBAC: &str = "rbac.authorization.k8s.io";

struct Space {
    store: SpaceStore,
    authorizer: Authorizer,
    // Keeps the engine open during the test.
    _engine: Engine,
}

async fn space() -> Space {
    let engine = Engine::in_memory();
    let store = engine.space("s").unwrap();
    let space = Space { authorizer: Authorizer::rbac(store.clone()), store, _engine: engine };
    for object in bootstrap::objects() {
        space.put(&object).await;
    }
    space
}

impl Space {
    async fn put(&self, object: &Value) {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let plural = format!("{}s", text("/kind").to_lowercase());
        let key = Key {
            collection: Collection::new(RBAC, &plural),
            namespace: text("/metadata/namespace").into(),
            name: text("/metadata/name").into(),
        };
        let expect = self.store.snapshot().get(&key).map_or(Expect::Absent, |e| Expect::At(e.revision));
        // The store writes the revision of the commit between `head` and `tail`. Here that is the value of the field
        // `revision`, which no reader uses.
        let mut head = object.to_string();
        head.pop();
        head.push_str(",\"revision\":");
        let value =
            Encoded { head: Bytes::from(head), tail: Bytes::from_static(b"}"), meta: Meta::default() };
        self.store.commit(Write { key, expect, action: Action::Put(value) }).await.unwrap();
    }

    async fn role(&self, namespace: &str, name: &str, rules: Value) {
        let kind = if namespace.is_empty() { "ClusterRole" } else { "Role" };
        self.put(&json!({"kind": kind, "metadata": {"name": name, "namespace": namespace}, "rules": rules}))
            .await;
    }

    async fn bind(&self, namespace: &str, name: &str, role: (&str, &str), subject: Value) {
        let kind = if namespace.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" };
        self.put(&binding(kind, namespace, name, role, subject)).await;
    }

    fn may(&self, user: &UserInfo, attributes: Attributes<'_>) -> bool {
        self.authorizer.authorize(user, &attributes).is_ok()
    }

    fn escalation(&self, user: &UserInfo, resource: &str, object: &Value) -> Result<(), ApiError> {
        check_escalation(&self.authorizer, user, resource, object, None)
    }
}

fn binding(
    kind: &str,
    namespace: &str,
    name: &str,
    (role_kind, role): (&str, &str),
    subject: Value,
) -> Value {
    json!({
        "kind": kind, "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role}, "subjects": [subject],
    })
}

fn user() -> UserInfo {
    UserInfo::internal("golden-user", &["golden-team"])
}

fn named(name: &str) -> Value {
    json!({"kind": "User", "apiGroup": RBAC, "name": name})
}

fn list<'a>(namespace: &'a str, resource: &'a str) -> Attributes<'a> {
    Attributes {
        verb: "list",
        version: "v1",
        resource,
        namespace,
        resource_request: true,
        ..Attributes::default()
    }
}

fn rule(verbs: &[&str], resources: &[&str], groups: &[&str]) -> Value {
    json!({"verbs": verbs, "resources": resources, "apiGroups": groups})
}

#[tokio::test]
async fn as_063_bindings_count_from_the_next_request_on() {
    let s = space().await;
    let user = user();
    assert!(!s.may(&user, list("ns", "configmaps")));
    s.role("ns", "r", json!([rule(&["list"], &["configmaps"], &[""])])).await;
    s.bind("ns", "b", ("Role", "r"), json!({"kind": "Group", "name": "golden-team"})).await;
    assert!(s.may(&user, list("ns", "configmaps")));
    assert!(!s.may(&user, list("other", "configmaps")));
    assert!(!s.may(&user, list("", "configmaps")));
    s.role("ns", "r", json!([])).await;
    assert!(!s.may(&user, list("ns", "configmaps")));
}

#[tokio::test]
async fn as_063_cluster_roles_reach_as_far_as_their_binding() {
    let s = space().await;
    let robot = UserInfo::internal("system:serviceaccount:ns:robot", &[]);
    s.role("", "cr", json!([rule(&["list"], &["configmaps", "nodes"], &[""])])).await;
    s.bind(
        "ns",
        "b",
        ("ClusterRole", "cr"),
        json!({"kind": "ServiceAccount", "name": "robot", "namespace": "ns"}),
    )
    .await;
    assert!(s.may(&robot, list("ns", "configmaps")));
    assert!(!s.may(&robot, list("", "nodes")));
    s.bind("", "c", ("ClusterRole", "cr"), named("golden-user")).await;
    assert!(s.may(&user(), list("", "nodes")));
    assert!(s.may(&user(), list("any", "configmaps")));
}

#[tokio::test]
async fn as_056_the_default_roles_open_what_they_should() {
    let s = space().await;
    let get = |path| Attributes { verb: "get", path, ..Attributes::default() };
    let anonymous = UserInfo::anonymous();
    for (path, for_all) in
        [("/healthz", true), ("/version", true), ("/api", false), ("/openapi/v3/api/v1", false)]
    {
        assert!(s.may(&user(), get(path)), "{path}");
        assert_eq!(s.may(&anonymous, get(path)), for_all, "{path}");
    }
    assert!(!s.may(&user(), get("/metrics")));
    let review = Attributes {
        verb: "create",
        group: "authorization.k8s.io",
        resource: "selfsubjectaccessreviews",
        resource_request: true,
        ..Attributes::default()
    };
    assert!(s.may(&user(), review));
    assert_eq!(
        s.authorizer.authorize(&anonymous, &review).unwrap_err().message,
        "selfsubjectaccessreviews.authorization.k8s.io is forbidden: User \"system:anonymous\" cannot create resource \"selfsubjectaccessreviews\" in API group \"authorization.k8s.io\" at the cluster scope"
    );
    assert!(s.may(&UserInfo::internal("a", &["system:masters"]), list("", "nodes")));
}

#[tokio::test]
async fn as_065_reasons_name_binding_role_and_subject() {
    let s = space().await;
    s.role("", "bobr", json!([rule(&["list"], &["nodes"], &[""])])).await;
    s.bind("", "bobb", ("ClusterRole", "bobr"), named("golden-user")).await;
    s.bind("ns", "b", ("ClusterRole", "bobr"), named("alice")).await;
    let decide = |user: &UserInfo, a: Attributes<'_>| s.authorizer.decide(user, &a);
    assert_eq!(
        decide(&user(), list("", "nodes")),
        Decision::Allow {
            reason:
                "RBAC: allowed by ClusterRoleBinding \"bobb\" of ClusterRole \"bobr\" to User \"golden-user\""
                    .into()
        }
    );
    assert_eq!(
        decide(&UserInfo::internal("alice", &[]), list("ns", "nodes")),
        Decision::Allow {
            reason: "RBAC: allowed by RoleBinding \"b/ns\" of ClusterRole \"bobr\" to User \"alice\"".into()
        }
    );
    assert_eq!(decide(&user(), list("", "pods")), Decision::NoOpinion { reason: String::new() });
    s.bind("", "dangling", ("ClusterRole", "none"), named("golden-user")).await;
    let error = s.authorizer.authorize(&user(), &list("", "pods")).unwrap_err();
    assert_eq!(
        error.message,
        "pods is forbidden: User \"golden-user\" cannot list resource \"pods\" in API group \"\" at the cluster scope: RBAC: clusterrole.rbac.authorization.k8s.io \"none\" not found"
    );
}

#[tokio::test]
async fn as_064_nobody_gives_away_what_they_have_not() {
    let s = space().await;
    let own = json!([
        rule(&["create", "update", "get", "patch"], &["roles", "rolebindings"], &[RBAC]),
        rule(&["get"], &["configmaps"], &[""]),
    ]);
    s.role("ns", "r", own).await;
    s.bind("ns", "b", ("Role", "r"), named("golden-user")).await;
    s.role("ns", "strong", json!([rule(&["delete"], &["secrets"], &[""])])).await;
    let role =
        |rules: Value| json!({"kind": "Role", "metadata": {"name": "y", "namespace": "ns"}, "rules": rules});
    assert!(s.escalation(&user(), "roles", &role(json!([rule(&["get"], &["configmaps"], &[""])]))).is_ok());
    let strong = role(json!([rule(&["get", "list"], &["configmaps", "secrets"], &[""])]));
    let error = s.escalation(&user(), "roles", &strong).unwrap_err();
    assert_eq!(
        error.message,
        "roles.rbac.authorization.k8s.io \"y\" is forbidden: user \"golden-user\" (groups=[\"golden-team\" \"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"configmaps\"], Verbs:[\"list\"]}\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\"]}"
    );
    assert_eq!(error.status()["details"], json!({"group": RBAC, "kind": "roles", "name": "y"}));
    assert!(s.escalation(&UserInfo::internal("a", &["system:masters"]), "roles", &strong).is_ok());
    // A label can grant rules to the holders of other roles. What only serves deletion grants nothing.
    let mut labelled = strong.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert!(check_escalation(&s.authorizer, &user(), "roles", &labelled, Some(&strong)).is_err());
    let mut going = strong.clone();
    going["metadata"]["finalizers"] = json!(["a/b"]);
    assert!(check_escalation(&s.authorizer, &user(), "roles", &going, Some(&strong)).is_ok());
    let bound = |role| binding("RoleBinding", "ns", "x", role, named("golden-user"));
    assert!(s.escalation(&user(), "rolebindings", &bound(("Role", "r"))).is_ok());
    let error = s.escalation(&user(), "rolebindings", &bound(("ClusterRole", "cluster-admin"))).unwrap_err();
    assert!(error.message.ends_with("held:\n{APIGroups:[\"*\"], Resources:[\"*\"], Verbs:[\"*\"]}\n{NonResourceURLs:[\"*\"], Verbs:[\"*\"]}"));
    let error = s.escalation(&user(), "rolebindings", &bound(("Role", "absent"))).unwrap_err();
    assert_eq!(error.message, "rolebindings.rbac.authorization.k8s.io \"absent\" not found");
    assert_eq!(error.code, 404);
    // A user with `bind` on the role may bind it without having its rights.
    s.role("ns", "binder", json!([{"verbs": ["bind"], "resources": ["roles"], "apiGroups": [RBAC], "resourceNames": ["strong"]}])).await;
    assert!(s.escalation(&user(), "rolebindings", &bound(("Role", "strong"))).is_err());
    s.bind("ns", "binder", ("Role", "binder"), named("golden-user")).await;
    assert!(s.escalation(&user(), "rolebindings", &bound(("Role", "strong"))).is_ok());
    let gathers = json!({"kind": "ClusterRole", "metadata": {"name": "g"}, "aggregationRule": {"clusterRoleSelectors": []}});
    let error = s.escalation(&user(), "clusterroles", &gathers).unwrap_err();
    assert_eq!(
        error.message,
        "clusterroles.rbac.authorization.k8s.io \"g\" is forbidden: must have cluster-admin privileges to use the aggregationRule"
    );
}

#[tokio::test]
async fn as_062_impersonation_needs_the_right_for_every_part() {
    let s = space().await;
    let ask = |headers: &[(&'static str, &'static str)]| {
        let headers: HeaderMap =
            headers.iter().map(|(k, v)| (HeaderName::from_static(k), HeaderValue::from_static(v))).collect();
        impersonate(&headers, &user(), &list("ns", "configmaps"), &s.authorizer)
    };
    let alice = [("impersonate-user", "alice")];
    let with_group = [("impersonate-user", "alice"), ("impersonate-group", "g")];
    assert_eq!(
        ask(&alice).unwrap_err().message,
        "configmaps is forbidden: User \"golden-user\" cannot impersonate-on:user-info:list resource \"configmaps\" in API group \"\" in the namespace \"ns\""
    );
    s.role("", "i", json!([{"verbs": ["impersonate"], "resources": ["users"], "apiGroups": [""], "resourceNames": ["alice"]}])).await;
    s.bind("", "i", ("ClusterRole", "i"), named("golden-user")).await;
    assert_eq!(ask(&alice).unwrap().unwrap().name, "alice");
    assert!(ask(&[("impersonate-user", "root")]).is_err());
    assert!(ask(&with_group).is_err());
    s.role("", "g", json!([rule(&["impersonate"], &["groups"], &[""])])).await;
    s.bind("", "g", ("ClusterRole", "g"), named("golden-user")).await;
    assert_eq!(ask(&with_group).unwrap().unwrap().groups, ["g", "system:authenticated"]);
}

#[tokio::test]
async fn as_062_the_two_part_right_of_newer_servers_also_does() {
    let s = space().await;
    let on = rule(&["impersonate-on:user-info:list"], &["configmaps"], &[""]);
    let who = rule(&["impersonate:user-info"], &["users"], &["authentication.k8s.io"]);
    let ask = |verb| {
        let headers = [(HeaderName::from_static("impersonate-user"), HeaderValue::from_static("alice"))];
        let attributes = Attributes { verb, ..list("ns", "configmaps") };
        impersonate(&headers.into_iter().collect(), &user(), &attributes, &s.authorizer)
    };
    s.role("", "i", json!([on])).await;
    s.bind("", "i", ("ClusterRole", "i"), named("golden-user")).await;
    assert!(ask("list").is_err());
    s.role("", "i", json!([on, who])).await;
    assert!(ask("list").is_ok());
    assert!(ask("watch").is_err());
}
