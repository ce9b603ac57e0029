//! The permissions of an accepted cluster: on the hub those that OCM's hub controllers grant (OCM-044,
//! OCM-058, OCM-059, KS-207), in the cluster those with which the klusterlet and the status add-on are
//! installed (OCM-132). The names are OCM's, so that an agent that registers by certificate gets the same
//! permissions as one that runs in this process.

use std::collections::BTreeMap;

use apis::constants::{
    ABOUT_GROUP, ADDON_GROUP, CLUSTER_GROUP, CLUSTER_NAME_LABEL, CONTROL_GROUP, MANIFEST_WORK_FINALIZER,
    OCM_ADDON_NAMESPACE, OCM_AGENT_NAMESPACE, STATUS_ADDON, WORK_GROUP,
};
use futures::future::BoxFuture;
use k8s_openapi::api::rbac::v1::RoleBinding;
use runtime::failure::{is_clash, is_not_found};
use runtime::rest::{Gvr, Removal, Rest};
use serde_json::{Value, json};

const RBAC_GROUP: &str = "rbac.authorization.k8s.io";
/// Field manager of roles and bindings.
const MANAGER: &str = "kubestellar-enrolment";
const SHARED_REGISTRATION: &str = "open-cluster-management:managedcluster:registration";
const SHARED_WORK: &str = "open-cluster-management:managedcluster:work";
const ADDON_AGENT: &str = "open-cluster-management:addon-status:agent";
/// Permissions of the registration agent in its cluster.
pub const REGISTRATION_ROLE: &str = "open-cluster-management:klusterlet-registration:agent";
/// Permissions of the work agent itself in its cluster.
pub const WORK_AGENT_ROLE: &str = "open-cluster-management:klusterlet-work:agent";
/// Permissions of the work agent for the workload in its cluster. Everything, unless an administrator narrows
/// it.
pub const WORK_EXECUTION_ROLE: &str = "open-cluster-management:klusterlet-work:execution";
/// Read permissions of the status agent in its cluster.
pub const STATUS_AGENT_ROLE: &str = "status-agent";
/// The same for the status agent in a klusterlet. The name of its binding must differ from that of a deployed
/// agent.
pub const BUILT_IN_STATUS_ROLE: &str = "open-cluster-management:klusterlet:status-agent";
/// Service account of the work agent, in the agent namespace.
pub const WORK_AGENT_ACCOUNT: &str = "klusterlet-work-sa";
/// Service account of the status agent, in the add-on namespace.
pub const STATUS_AGENT_ACCOUNT: &str = "status-agent-sa";

/// Prefix of the names of agents and of their groups.
pub const SUBJECT_PREFIX: &str = "system:open-cluster-management:";
/// Group of the agents of all clusters.
pub const MANAGED_CLUSTERS_GROUP: &str = "system:open-cluster-management:managed-clusters";
/// Service account of the registration agent, in the agent namespace.
pub const REGISTRATION_ACCOUNT: &str = "klusterlet-registration-sa";

/// A user with groups, as a control plane identifies a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// User name.
    pub user: String,
    /// Groups besides `system:authenticated`.
    pub groups: Vec<String>,
}

impl Subject {
    /// The klusterlet `agent` of a cluster on the hub, as named in its client certificate (OCM-035).
    pub fn klusterlet(cluster: &str, agent: &str) -> Self {
        Self {
            user: format!("system:open-cluster-management:{cluster}:{agent}"),
            groups: vec![cluster_group(cluster), MANAGED_CLUSTERS_GROUP.into()],
        }
    }

    /// The status add-on of a cluster on the hub. The agent's name never changes (OCM-131).
    pub fn status_addon(cluster: &str) -> Self {
        let group = addon_group(cluster);
        Self {
            user: format!("{group}:agent:{STATUS_ADDON}"),
            groups: vec![group, format!("system:open-cluster-management:addon:{STATUS_ADDON}")],
        }
    }

    /// The registration agent in its cluster.
    pub fn registration_account() -> Self {
        Self::account(OCM_AGENT_NAMESPACE, REGISTRATION_ACCOUNT)
    }

    /// The work agent in its cluster.
    pub fn work_agent_account() -> Self {
        Self::account(OCM_AGENT_NAMESPACE, WORK_AGENT_ACCOUNT)
    }

    /// The status agent in its cluster.
    pub fn status_agent_account() -> Self {
        Self::account(OCM_ADDON_NAMESPACE, STATUS_AGENT_ACCOUNT)
    }

    fn account(namespace: &str, name: &str) -> Self {
        Self {
            user: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")],
        }
    }
}

fn cluster_group(cluster: &str) -> String {
    format!("system:open-cluster-management:{cluster}")
}

fn addon_group(cluster: &str) -> String {
    format!("system:open-cluster-management:cluster:{cluster}:addon:{STATUS_ADDON}")
}

/// One rule of a role.
pub fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

/// A role; cluster-wide if `namespace` is empty. `labels` as in metadata.
pub fn role(namespace: &str, name: &str, labels: Value, rules: Value) -> Value {
    let kind = if namespace.is_empty() { "ClusterRole" } else { "Role" };
    json!({"apiVersion": format!("{RBAC_GROUP}/v1"), "kind": kind,
        "metadata": metadata(namespace, name, labels), "rules": rules})
}

/// A binding of a role to subjects; cluster-wide if `namespace` is empty.
pub fn binding(namespace: &str, name: &str, labels: Value, role: (&str, &str), subjects: Value) -> Value {
    let kind = if namespace.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" };
    json!({"apiVersion": format!("{RBAC_GROUP}/v1"), "kind": kind,
        "metadata": metadata(namespace, name, labels),
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": role.0, "name": role.1}, "subjects": subjects})
}

fn metadata(namespace: &str, name: &str, labels: Value) -> Value {
    let mut metadata = json!({"name": name, "labels": labels});
    if !namespace.is_empty() {
        metadata["namespace"] = namespace.into();
    }
    metadata
}

/// A subject of a binding: a user or a group.
pub fn subject(kind: &str, name: &str) -> Value {
    json!({"apiGroup": RBAC_GROUP, "kind": kind, "name": name})
}

/// Adds labels to objects. Labels that an object has already stay.
pub fn labelled(mut objects: Vec<Value>, labels: &BTreeMap<String, String>) -> Vec<Value> {
    for have in
        objects.iter_mut().filter_map(|object| object.pointer_mut("/metadata/labels")?.as_object_mut())
    {
        for (key, value) in labels {
            have.entry(key).or_insert_with(|| value.as_str().into());
        }
    }
    objects
}

/// Roles and bindings on the hub for the agents of an accepted cluster.
pub fn on_hub(cluster: &str) -> Vec<Value> {
    let labels = json!({CLUSTER_NAME_LABEL: cluster});
    let shared = json!({CLUSTER_NAME_LABEL: ""});
    let own = own_name(cluster);
    let members = members(cluster);
    let mut work = binding(
        cluster,
        &format!("{own}:work"),
        labels.clone(),
        ("ClusterRole", SHARED_WORK),
        members.clone(),
    );
    work["metadata"]["finalizers"] = json!([MANIFEST_WORK_FINALIZER]);
    vec![
        role("", SHARED_REGISTRATION, shared.clone(), registration_rules()),
        role("", SHARED_WORK, shared, work_rules()),
        role("", &own, labels.clone(), cluster_rules(cluster)),
        binding("", &own, labels.clone(), ("ClusterRole", &own), members.clone()),
        binding(
            cluster,
            &format!("{own}:registration"),
            labels.clone(),
            ("ClusterRole", SHARED_REGISTRATION),
            members,
        ),
        work,
    ]
}

/// Roles and bindings on the hub for the status agent of a cluster (OCM-131).
pub fn status_addon_on_hub(cluster: &str) -> Vec<Value> {
    let labels = json!({CLUSTER_NAME_LABEL: cluster});
    vec![
        role(cluster, ADDON_AGENT, labels.clone(), addon_rules()),
        binding(
            cluster,
            ADDON_AGENT,
            labels,
            ("Role", ADDON_AGENT),
            json!([subject("Group", &addon_group(cluster))]),
        ),
    ]
}

fn own_name(cluster: &str) -> String {
    format!("open-cluster-management:managedcluster:{cluster}")
}

/// The agents of a cluster, as subjects of a binding. The second name is for authenticators that cannot assign `system:` groups.
pub fn members(cluster: &str) -> Value {
    json!([
        subject("Group", &cluster_group(cluster)),
        subject("Group", &format!("open-cluster-management:{cluster}"))
    ])
}

fn cluster_rules(cluster: &str) -> Value {
    json!([
        rule("certificates.k8s.io", &["certificatesigningrequests"], &["create", "get", "list", "watch"]),
        rule("register.open-cluster-management.io", &["managedclusters/clientcertificates"], &["renew"]),
        named(cluster, "managedclusters", &["get", "list", "update", "watch"]),
        named(cluster, "managedclusters/status", &["patch", "update"]),
    ])
}

/// A denied cluster may read its own ManagedCluster and nothing else (OCM-058).
fn denied_rules(cluster: &str) -> Value {
    json!([named(cluster, "managedclusters", &["get", "list", "watch"])])
}

fn named(cluster: &str, resource: &str, verbs: &[&str]) -> Value {
    let mut rule = rule(CLUSTER_GROUP, &[resource], verbs);
    rule["resourceNames"] = json!([cluster]);
    rule
}

fn registration_rules() -> Value {
    json!([
        rule("coordination.k8s.io", &["leases"], &["get", "list", "watch", "update"]),
        rule(ADDON_GROUP, &["managedclusteraddons"], &["get", "list", "watch"]),
        rule(ADDON_GROUP, &["managedclusteraddons/status"], &["patch", "update"]),
        rule("events.k8s.io", &["events"], &["create"]),
    ])
}

fn work_rules() -> Value {
    json!([
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
        rule(WORK_GROUP, &["manifestworks"], &["get", "list", "watch", "update", "patch"]),
        rule(WORK_GROUP, &["manifestworks/status"], &["patch", "update"]),
    ])
}

fn addon_rules() -> Value {
    json!([
        rule(
            CONTROL_GROUP,
            &["workstatuses"],
            &["get", "list", "watch", "create", "delete", "update", "patch"]
        ),
        rule(CONTROL_GROUP, &["workstatuses/status"], &["patch", "update"]),
        rule(ADDON_GROUP, &["managedclusteraddons"], &["get", "list", "watch"]),
        rule(WORK_GROUP, &["manifestworks"], &["get", "list", "watch"]),
        // In addition to the original's agent: it reports on the ManifestWork what it cannot write.
        rule("", &["events"], &["create", "patch"]),
    ])
}

/// Permissions of the klusterlet for add-ons, whose namespaces may have any name (OCM-119).
pub const ADDON_MANAGEMENT_ROLE: &str = "open-cluster-management:klusterlet-registration:addon-management";

/// Roles and bindings of the agents in their cluster. They are created once, and administrators of the
/// cluster may narrow them afterwards.
pub fn in_cluster() -> Vec<Value> {
    let account = |namespace: &str, name: &str| json!([{"kind": "ServiceAccount", "namespace": namespace, "name": name}]);
    let work = account(OCM_AGENT_NAMESPACE, WORK_AGENT_ACCOUNT);
    let status = account(OCM_ADDON_NAMESPACE, STATUS_AGENT_ACCOUNT);
    let applied = ["appliedmanifestworks", "appliedmanifestworks/status", "appliedmanifestworks/finalizers"];
    let anything = json!([rule("*", &["*"], &["*"]), {"nonResourceURLs": ["*"], "verbs": ["*"]}]);
    let reading = json!([rule("*", &["*"], &["get", "list", "watch"])]);
    let registration = account(OCM_AGENT_NAMESPACE, REGISTRATION_ACCOUNT);
    let registration_agent = registration.clone();
    vec![
        role("", REGISTRATION_ROLE, json!({}), registration_in_cluster_rules()),
        binding("", REGISTRATION_ROLE, json!({}), ("ClusterRole", REGISTRATION_ROLE), registration.clone()),
        role(OCM_AGENT_NAMESPACE, REGISTRATION_ROLE, json!({}), json!([rule("", &["secrets"], &SECRETS)])),
        binding(OCM_AGENT_NAMESPACE, REGISTRATION_ROLE, json!({}), ("Role", REGISTRATION_ROLE), registration),
        role("", ADDON_MANAGEMENT_ROLE, json!({}), addon_management_rules()),
        binding(
            "",
            ADDON_MANAGEMENT_ROLE,
            json!({}),
            ("ClusterRole", ADDON_MANAGEMENT_ROLE),
            registration_agent,
        ),
        role(
            OCM_ADDON_NAMESPACE,
            BUILT_IN_STATUS_ROLE,
            json!({}),
            json!([rule("coordination.k8s.io", &["leases"], &LEASES)]),
        ),
        binding(
            OCM_ADDON_NAMESPACE,
            BUILT_IN_STATUS_ROLE,
            json!({}),
            ("Role", BUILT_IN_STATUS_ROLE),
            status.clone(),
        ),
        role("", WORK_AGENT_ROLE, json!({}), json!([rule(WORK_GROUP, &applied, &["*"])])),
        binding("", WORK_AGENT_ROLE, json!({}), ("ClusterRole", WORK_AGENT_ROLE), work.clone()),
        role("", WORK_EXECUTION_ROLE, json!({}), anything),
        binding("", WORK_EXECUTION_ROLE, json!({}), ("ClusterRole", WORK_EXECUTION_ROLE), work),
        role("", BUILT_IN_STATUS_ROLE, json!({}), reading),
        binding("", BUILT_IN_STATUS_ROLE, json!({}), ("ClusterRole", BUILT_IN_STATUS_ROLE), status),
    ]
}

const LEASES: [&str; 5] = ["get", "list", "watch", "create", "update"];

fn addon_management_rules() -> Value {
    json!([
        rule("", &["secrets"], &["get", "list", "watch", "create", "update", "patch", "delete"]),
        rule("coordination.k8s.io", &["leases"], &["get", "list", "watch"]),
    ])
}

const SECRETS: [&str; 5] = ["get", "list", "watch", "create", "update"];

/// Rules for reading facts about the cluster for its ManagedCluster.
fn registration_in_cluster_rules() -> Value {
    json!([
        rule("", &["nodes"], &["get", "list", "watch"]),
        // The namespaces that the cluster's sets request (OCM-056).
        rule("", &["namespaces"], &["get", "list", "watch", "create", "patch"]),
        rule(CLUSTER_GROUP, &["clusterclaims"], &["get", "list", "watch"]),
        rule(ABOUT_GROUP, &["clusterproperties"], &["get", "list", "watch"]),
    ])
}

/// Creates missing objects and leaves existing ones alone.
pub fn create_missing<'a>(rest: &'a Rest, objects: &'a [Value]) -> BoxFuture<'a, Result<(), kube::Error>> {
    Box::pin(create_each(rest, objects))
}

async fn create_each(rest: &Rest, objects: &[Value]) -> Result<(), kube::Error> {
    for object in objects {
        let at = ObjectRef::of(object);
        rest.create_missing(&at.gvr, at.namespace, object).await?;
    }
    Ok(())
}

/// Creates missing objects and corrects differing ones. Costs one read per object if nothing differs.
///
/// Clusters share roles, and several clusters that join at the same time create them at the same time: after
/// a conflict the object is read again.
pub fn reconcile<'a>(rest: &'a Rest, objects: &'a [Value]) -> BoxFuture<'a, Result<(), kube::Error>> {
    Box::pin(reconcile_each(rest, objects))
}

async fn reconcile_each(rest: &Rest, objects: &[Value]) -> Result<(), kube::Error> {
    for object in objects {
        let mut tries = 0;
        while let Err(error) = reconcile_one(rest, object).await {
            tries += 1;
            if !is_clash(&error) || tries == TRIES {
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Tries of a write of an object that conflicts with other writers.
const TRIES: usize = 5;

async fn reconcile_one(rest: &Rest, object: &Value) -> Result<(), kube::Error> {
    let at = ObjectRef::of(object);
    let live: Option<Value> = rest.find(&at.gvr, at.namespace, at.name).await?;
    if let Some(live) = &live {
        let going = live.pointer("/metadata/deletionTimestamp").is_some();
        if covers(live, object) && !going {
            return Ok(());
        }
        // These cannot be changed: the role that a binding refers to, and a deletion.
        if going || live.get("roleRef") != object.get("roleRef") {
            remove(rest, &at).await?;
        }
    }
    rest.apply::<Value>(&at.gvr, at.namespace, at.name, object, MANAGER, true).await.map(drop)
}

/// Returns whether `live` contains everything in `wanted`. Lists must be equal.
fn covers(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| match live.get(key) {
                Some(live) => covers(live, value),
                None => value.as_object().is_some_and(serde_json::Map::is_empty),
            })
        }
        _ => live == wanted,
    }
}

/// Deletes an object, whatever its finalizers are.
async fn remove(rest: &Rest, at: &ObjectRef<'_>) -> Result<(), kube::Error> {
    let patch = json!({"metadata": {"finalizers": null}});
    match rest.remove(&at.gvr, at.namespace, at.name, &Removal::default()).await {
        Ok(false) => {}
        Err(error) if !is_not_found(&error) => return Err(error),
        Ok(true) | Err(_) => return Ok(()),
    }
    match rest.merge::<Value>(&at.gvr, at.namespace, at.name, &patch).await {
        Err(error) if !is_not_found(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Deletes roles and bindings.
pub fn withdraw<'a>(rest: &'a Rest, objects: &'a [Value]) -> BoxFuture<'a, Result<(), kube::Error>> {
    Box::pin(withdraw_each(rest, objects))
}

async fn withdraw_each(rest: &Rest, objects: &[Value]) -> Result<(), kube::Error> {
    for object in objects.iter().rev() {
        remove(rest, &ObjectRef::of(object)).await?;
    }
    Ok(())
}

/// The permissions that the hub's controllers remove step by step (OCM-058, OCM-059).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// All except reading the denied ManagedCluster; those for works are removed later.
    Denied,
    /// All of a cluster that leaves; those for works are removed later.
    Left,
}

/// Removes permissions. The binding for works is marked for deletion and stays in effect until
/// [`release_works`]. What stays has these `labels` in addition to its own.
pub fn take<'a>(
    hub: &'a Rest,
    cluster: &'a str,
    what: Take,
    labels: &'a BTreeMap<String, String>,
) -> BoxFuture<'a, Result<(), kube::Error>> {
    Box::pin(take_rights(hub, cluster, what, labels))
}

async fn take_rights(
    hub: &Rest,
    cluster: &str,
    what: Take,
    more: &BTreeMap<String, String>,
) -> Result<(), kube::Error> {
    for object in on_hub(cluster).iter().rev() {
        let at = ObjectRef::of(object);
        if at.is_shared() || (matches!(what, Take::Denied) && at.namespace.is_empty()) {
            continue;
        }
        if at.is_about_works() {
            match hub.remove(&at.gvr, at.namespace, at.name, &Removal::default()).await {
                Err(error) if !is_not_found(&error) => return Err(error),
                _ => {}
            }
        } else {
            remove(hub, &at).await?;
        }
    }
    if matches!(what, Take::Left) {
        return Ok(());
    }
    let (own, labels) = (own_name(cluster), json!({CLUSTER_NAME_LABEL: cluster}));
    let reduced = role("", &own, labels.clone(), denied_rules(cluster));
    let kept = binding("", &own, labels, ("ClusterRole", &own), members(cluster));
    reconcile(hub, &labelled(vec![reduced, kept], more)).await
}

/// Removes the binding for works. Call this when there are no works.
pub fn release_works<'a>(hub: &'a Rest, cluster: &'a str) -> BoxFuture<'a, Result<(), kube::Error>> {
    Box::pin(release_works_of(hub, cluster))
}

async fn release_works_of(hub: &Rest, cluster: &str) -> Result<(), kube::Error> {
    for object in on_hub(cluster) {
        let at = ObjectRef::of(&object);
        if at.is_about_works() {
            remove(hub, &at).await?;
        }
    }
    Ok(())
}

/// Removes everything that may be left of a cluster that is gone. Includes every permission in its mailbox
/// for the agents of its add-ons, whoever granted it, because their certificates are still valid.
pub fn release_all<'a>(hub: &'a Rest, cluster: &'a str) -> BoxFuture<'a, Result<(), kube::Error>> {
    Box::pin(release_all_of(hub, cluster))
}

async fn release_all_of(hub: &Rest, cluster: &str) -> Result<(), kube::Error> {
    withdraw(hub, &status_addon_on_hub(cluster)).await?;
    let gvr = Gvr::of::<RoleBinding>();
    let found: Value = hub.list(&gvr, cluster, "").await?;
    for binding in found.get("items").and_then(Value::as_array).into_iter().flatten() {
        if let Some(name) = binding.pointer("/metadata/name").and_then(Value::as_str)
            && is_for_addon(binding, cluster)
        {
            remove(hub, &ObjectRef { gvr: gvr.clone(), namespace: cluster, name }).await?;
        }
    }
    release_works(hub, cluster).await
}

/// Returns whether a binding is for the agent of an add-on of this cluster, by user or group.
fn is_for_addon(binding: &Value, cluster: &str) -> bool {
    let prefix = format!("{SUBJECT_PREFIX}cluster:{cluster}:addon:");
    let subjects = binding.get("subjects").and_then(Value::as_array);
    let names = subjects.into_iter().flatten().filter_map(|one| one.get("name")?.as_str());
    names.into_iter().any(|name| name.starts_with(&prefix))
}

/// Deletes the roles that clusters share, when there are no clusters.
pub fn remove_shared(hub: &Rest) -> BoxFuture<'_, Result<(), kube::Error>> {
    Box::pin(remove_roles(hub))
}

async fn remove_roles(hub: &Rest) -> Result<(), kube::Error> {
    for object in on_hub("none") {
        let at = ObjectRef::of(&object);
        if at.is_shared() {
            remove(hub, &at).await?;
        }
    }
    Ok(())
}

struct ObjectRef<'a> {
    gvr: Gvr,
    namespace: &'a str,
    name: &'a str,
}

impl<'a> ObjectRef<'a> {
    fn of(object: &'a Value) -> Self {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let plural = format!("{}s", text("/kind").to_lowercase());
        Self {
            gvr: Gvr::new(RBAC_GROUP, "v1", &plural),
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name"),
        }
    }

    fn is_shared(&self) -> bool {
        self.name == SHARED_REGISTRATION || self.name == SHARED_WORK
    }

    fn is_about_works(&self) -> bool {
        !self.namespace.is_empty() && self.name.ends_with(":work")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ocm_044_what_is_more_or_less_than_wanted_is_drift() {
        let wanted = &on_hub("a")[0];
        let mut live = wanted.clone();
        live["metadata"]["resourceVersion"] = "7".into();
        live["metadata"]["labels"]["mine"] = "x".into();
        assert!(covers(&live, wanted), "what others add to the metadata is theirs");
        live["rules"][0]["verbs"] = json!(["*"]);
        assert!(!covers(&live, wanted));
        live["rules"] = json!([]);
        assert!(!covers(&live, wanted));
    }

    /// A request's method, and the code and body of its response.
    type Exchange = (&'static str, u16, Value);

    /// Answers each request from a script. Returns the remaining script.
    fn scripted(script: Vec<Exchange>) -> (Rest, std::sync::Arc<parking_lot::Mutex<Vec<Exchange>>>) {
        let left = std::sync::Arc::new(parking_lot::Mutex::new(script));
        let todo = left.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (method, code, body) = todo.lock().remove(0);
            assert_eq!(request.method().as_str(), method, "{}", request.uri());
            let body = kube::client::Body::from(body.to_string().into_bytes());
            let answer = http::Response::builder().status(code).body(body).unwrap();
            async move { Ok::<_, std::convert::Infallible>(answer) }
        });
        (Rest::new(kube::Client::new(service, "default")), left)
    }

    fn refusal(code: u16, reason: &str) -> Value {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
            "message": reason, "details": {"name": SHARED_REGISTRATION}})
    }

    /// OCM-044: a role that another cluster's controller created between our read and our write counts as
    /// ours; a differing one is corrected.
    #[tokio::test]
    async fn ocm_044_a_shared_role_is_made_by_whoever_is_first() {
        let wanted = on_hub("c1").remove(0);
        let mut other = wanted.clone();
        other["rules"] = json!([]);
        let exists = || ("PATCH", 409, refusal(409, "AlreadyExists"));
        let missing = || ("GET", 404, refusal(404, "NotFound"));
        for script in [
            vec![missing(), exists(), ("GET", 200, wanted.clone())],
            vec![missing(), exists(), ("GET", 200, other), ("PATCH", 200, wanted.clone())],
            vec![missing(), exists(), missing(), exists(), ("GET", 200, wanted.clone())],
        ] {
            let (rest, left) = scripted(script);
            reconcile(&rest, std::slice::from_ref(&wanted)).await.unwrap();
            assert!(left.lock().is_empty());
        }
        let endless = (0..TRIES).flat_map(|_| [missing(), exists()]).collect();
        let (rest, left) = scripted(endless);
        let error = reconcile(&rest, std::slice::from_ref(&wanted)).await.unwrap_err();
        assert!(is_clash(&error) && left.lock().is_empty());
        let (rest, _) = scripted(vec![missing(), ("PATCH", 403, refusal(403, "Forbidden"))]);
        assert!(!is_clash(&reconcile(&rest, &[wanted]).await.unwrap_err()));
    }

    /// OCM-059: the permissions of a deleted cluster's add-ons are found by their subjects.
    #[test]
    fn ocm_059_whose_rights_go_with_a_cluster() {
        let granted = |kind: &str, name: &str| {
            binding("c1", "x", json!({}), ("Role", "x"), json!([subject(kind, name)]))
        };
        for (kind, name, goes) in [
            ("Group", "system:open-cluster-management:cluster:c1:addon:mine", true),
            ("User", "system:open-cluster-management:cluster:c1:addon:mine:agent:a", true),
            ("Group", "system:open-cluster-management:cluster:c10:addon:mine", false),
            ("Group", "system:open-cluster-management:addon:mine", false),
            ("User", "admin", false),
        ] {
            assert_eq!(is_for_addon(&granted(kind, name), "c1"), goes, "{kind} {name}");
        }
        assert!(!is_for_addon(&json!({"metadata": {"name": "nobody's"}}), "c1"));
        assert!(status_addon_on_hub("c1").iter().any(|one| is_for_addon(one, "c1")));
    }

    #[test]
    fn ocm_044_one_cluster_is_not_another_with_the_same_prefix() {
        for object in on_hub("c1") {
            assert!(!object.to_string().contains("c10"));
            for subject in object["subjects"].as_array().into_iter().flatten() {
                assert_eq!(subject["kind"], "Group");
                assert!(!Subject::klusterlet("c10", "x").groups.iter().any(|g| subject["name"] == **g));
            }
        }
    }
}
