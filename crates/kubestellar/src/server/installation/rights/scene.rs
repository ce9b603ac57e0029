//! A whole installation in memory whose components have ended: its spaces with all roles, and nobody who writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use kube::client::Body;
use ocm_shared::bootstrap;
use runtime::rest::{Gvr, Rest};
use serde_json::{Value, json};
use space::{Identity, Space, SpaceConfig};
use store::Engine;

use super::super::super::{admission, rbac};
use super::people::{self, Person, TEAM};
use super::routes::{self, Ask, FOREIGN, Place, Route};
use super::victims;
use crate::datadir::DataDir;
use crate::server::Reporter;
use crate::shape::{Shape, Wish};

/// The spaces of the table.
pub(super) struct World {
    pub(super) scenes: Vec<Arc<Scene>>,
    _data: tempfile::TempDir,
}

/// A space and its people.
pub(super) struct Scene {
    /// `its`, `wds`, `wec`; `host` is one space for all of it. The name of the file of the table.
    pub(super) kind: &'static str,
    pub(super) people: Vec<Person>,
    space: Arc<Space>,
}

/// An answer whose body has ended, or of which only the head is known: a watch.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) text: String,
}

impl Answer {
    /// Whether authentication and authorisation let the request pass.
    pub(super) fn passed(&self) -> bool {
        self.status != 401 && !(self.status == 403 && self.text.contains(" cannot "))
    }
}

impl World {
    pub(super) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::resolve(Some(dir.path())).unwrap();
        data.create().unwrap();
        let wish = Wish { metacontroller: Some(true), label_helm_releases: Some(true), ..Wish::default() };
        let wanted = Shape::fulfil(None, &wish, "id").unwrap();
        let mut installation = super::super::tests::in_memory(&data, &wanted);
        installation.grow(wanted, &Reporter::log()).await.unwrap();
        installation.components.stop().await;
        let space = |name: &str| {
            installation.spaces.iter().map(|(space, _)| space).find(|s| s.name() == name).unwrap().clone()
        };
        let (its, wds, wec) = (space("its1"), space("wds1"), space("cluster1"));
        let mut agents = Vec::new();
        for cluster in ["cluster1", "cluster2"] {
            agents.extend(people::agents_on_hub(cluster, Some(&certificate_of(&space(cluster)).await)));
        }
        let host = Arc::new(host(&data).await);
        let hub = [joining(&its).await, agents, people::controllers()].concat();
        let wds_people = [people::controllers(), people::options_of_wds()].concat();
        let mut of_host = [joining(&host).await, people::controllers(), people::options_of_wds()].concat();
        of_host.extend(people::agents_in_cluster());
        of_host.extend(people::agents_on_hub("cluster1", None));
        let scenes = vec![
            Scene::new("its", its, hub).await,
            Scene::new("wds", wds, wds_people).await,
            Scene::new("wec", wec, people::agents_in_cluster()).await,
            Scene::new("host", host, of_host).await,
        ];
        Self { scenes: scenes.into_iter().map(Arc::new).collect(), _data: dir }
    }

    pub(super) async fn end(self) {
        for scene in &self.scenes {
            scene.space.stop().await;
        }
    }
}

/// The client certificate that the handshake gave the agents of an embedded cluster.
async fn certificate_of(cluster: &Space) -> String {
    let rest = Rest::new(cluster.client(&Identity::admin()));
    let (namespace, name) = (apis::constants::OCM_AGENT_NAMESPACE, "hub-kubeconfig-secret");
    let secret: Value = rest.get(&Gvr::new("", "v1", "secrets"), namespace, name).await.unwrap();
    let bytes = base64_of(&secret["data"]["tls.crt"]);
    String::from_utf8(bytes).unwrap()
}

fn base64_of(value: &Value) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(value.as_str().unwrap()).unwrap()
}

/// The clients that want to join a hub, with real tokens.
async fn joining(hub: &Space) -> Vec<Person> {
    let rest = Rest::new(hub.client(&Identity::admin()));
    let secret_text = uuid::Uuid::new_v4().simple().to_string()[..16].to_owned();
    let now = k8s_openapi::jiff::Timestamp::now();
    let secret = bootstrap::token_secret(&secret_text, Duration::from_secs(3600), now);
    create(&rest, &Gvr::new("", "v1", "secrets"), "kube-system", &secret).await;
    let path =
        format!("/api/v1/namespaces/open-cluster-management/serviceaccounts/{}/token", bootstrap::ACCOUNT);
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}});
    let request = Request::post(path).header("content-type", "application/json");
    let answer: Value =
        rest.client().request(request.body(body.to_string().into_bytes()).unwrap()).await.unwrap();
    people::joining(
        answer["status"]["token"].as_str().unwrap(),
        &format!("{}.{secret_text}", bootstrap::TOKEN_ID),
    )
}

async fn create(rest: &Rest, gvr: &Gvr, namespace: &str, object: &Value) {
    rest.create::<Value>(gvr, namespace, object.to_string().into_bytes()).await.unwrap();
}

/// One space that is hub, WDS and cluster at once, as a single API server can be.
async fn host(data: &DataDir) -> Space {
    let url = "https://127.0.0.1:1/spaces/host".to_owned();
    let config = SpaceConfig { name: "host", data: data.path(), url, advertise: "127.0.0.1:1".into() };
    let space = Space::start_with(&Engine::in_memory(), config, admission::of_role("its")).await.unwrap();
    let admin = || space.client(&Identity::admin());
    runtime::install(&admin(), &apis::crds::all(), "test").await.unwrap();
    rbac::in_description_space(admin()).await.unwrap();
    rbac::in_inventory_space(admin()).await.unwrap();
    rbac::metacontroller_in(admin()).await.unwrap();
    rbac::helm_releases_in(admin()).await.unwrap();
    let rest = Rest::new(admin());
    bootstrap::prepare(&rest).await.unwrap();
    for name in ["cluster1", apis::constants::OCM_AGENT_NAMESPACE, apis::constants::OCM_ADDON_NAMESPACE] {
        create(&rest, &Gvr::new("", "v1", "namespaces"), "", &json!({"metadata": {"name": name}})).await;
    }
    let roles = [
        ocm_shared::rbac::on_hub("cluster1"),
        ocm_shared::rbac::status_addon_on_hub("cluster1"),
        ocm_shared::rbac::in_cluster(),
    ];
    ocm_shared::rbac::reconcile(&rest, &roles.concat()).await.unwrap();
    space
}

impl Scene {
    async fn new(kind: &'static str, space: Arc<Space>, more: Vec<Person>) -> Self {
        let mut people = [people::of_every_space(&space.keys().admin_cert), more].concat();
        // Paths are parsed alike in all spaces; the roles differ. Each person tries in one space.
        for person in &mut people {
            person.tries_paths &= kind != "host";
        }
        if kind != "wds" {
            people
                .iter_mut()
                .filter(|person| person.own == TEAM)
                .for_each(|person| person.tries_paths = false);
        }
        let scene = Self { kind, people, space };
        scene.grant().await;
        let own: BTreeSet<&str> = scene.people.iter().map(|person| person.own.as_str()).collect();
        victims::make(&scene.space, &own).await;
        scene
    }

    /// Binds the roles of the users.
    async fn grant(&self) {
        let rest = Rest::new(self.space.client(&Identity::admin()));
        let rbac = |plural: &str| Gvr::new("rbac.authorization.k8s.io", "v1", plural);
        for name in [TEAM, FOREIGN] {
            create(&rest, &Gvr::new("", "v1", "namespaces"), "", &json!({"metadata": {"name": name}})).await;
        }
        let all = json!([ocm_shared::rbac::rule("*", &["*"], &["*"])]);
        create(&rest, &rbac("roles"), TEAM, &json!({"metadata": {"name": "everything"}, "rules": all})).await;
        let binding = |kind: &str, role: &str, user: &str| {
            json!({"metadata": {"name": format!("test-{user}")},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
                "subjects": [ocm_shared::rbac::subject("User", user)]})
        };
        create(&rest, &rbac("rolebindings"), TEAM, &binding("Role", "everything", "everything")).await;
        for role in people::DEFAULT_ROLES {
            create(&rest, &rbac("rolebindings"), TEAM, &binding("ClusterRole", role, role)).await;
            let everywhere = binding("ClusterRole", role, &format!("{role}-everywhere"));
            create(&rest, &rbac("clusterrolebindings"), "", &everywhere).await;
        }
    }

    /// All routes that the space serves.
    pub(super) fn routes(&self) -> Vec<Route> {
        self.space.server().catalog().all().flat_map(Route::of).collect()
    }

    /// The paths outside the resources, as the space itself lists them, and paths that other systems serve.
    pub(super) fn documents(&self) -> Vec<String> {
        const OF_OTHERS: [&str; 14] = [
            "/configz",
            "/debug/api_priority_and_fairness/dump_queues",
            "/debug/flags/v",
            "/debug/pprof/",
            "/flagz",
            "/logs",
            "/logs/kube-apiserver.log",
            "/metrics/slis",
            "/services/cache/",
            "/spaces/wds1/api",
            "/statusz",
            "/swagger.json",
            "/swaggerapi",
            "/validate",
        ];
        let listed = self.space.server().catalog();
        let mut paths: Vec<String> = apiserver::discovery::paths(&listed);
        paths.extend(OF_OTHERS.iter().map(ToString::to_string));
        paths.sort();
        paths.dedup();
        paths
    }

    /// Returns whether the person reads a path outside the resources: it exists, and the answer is not a refusal.
    pub(super) async fn reads(&self, person: &Person, path: &str) -> bool {
        let answer = self.send(person, "GET", path, &[], String::new()).await;
        answer.passed() && answer.status != 404
    }

    pub(super) async fn status(&self, person: &Person, path: &str) -> u16 {
        self.send(person, "GET", path, &[], String::new()).await.status
    }

    /// Sends the request for a verb. Returns whether it is authorised.
    pub(super) async fn allowed(
        &self,
        person: &Person,
        route: &Route,
        verb: char,
        place: Place,
        dry: bool,
    ) -> bool {
        let Ask { method, uri, body } = routes::ask(person, route, verb, place, dry);
        self.send(person, method, &uri, &[], body).await.passed()
    }

    /// Sends a request.
    pub(super) async fn send(
        &self,
        person: &Person,
        method: &str,
        uri: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Answer {
        let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let mut request = person.sign(Request::builder().method(method).uri(uri));
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", media);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.into_bytes())).expect("a request");
        let (parts, body) = self.space.server().call(request).await.into_parts();
        let bytes = body.into_bytes().unwrap_or_default();
        Answer { status: parts.status.as_u16(), text: String::from_utf8_lossy(&bytes).into_owned() }
    }

    /// Everything that is stored, by resource, namespace and name.
    pub(super) fn stored(&self) -> BTreeMap<String, Vec<u8>> {
        let snapshot = self.space.server().store().snapshot();
        let mut all = BTreeMap::new();
        for d in self.space.server().catalog().all() {
            for entry in snapshot.view(&d.collection).iter(None, None) {
                let key = format!("{}.{} {}/{}", d.plural, d.group, entry.key.namespace, entry.key.name);
                all.insert(key, entry.value.to_vec());
            }
        }
        all
    }

    /// Subjects of bindings that are neither Kubernetes' defaults nor people of the table.
    pub(super) fn unlisted_subjects(&self) -> String {
        let mut out = String::new();
        for (key, value) in self.stored().iter().filter(|(key, _)| key.contains("bindings.rbac.")) {
            let object: Value = serde_json::from_slice(value).unwrap_or_default();
            if object["metadata"]["labels"]["kubernetes.io/bootstrapping"] == "rbac-defaults" {
                continue;
            }
            for subject in object["subjects"].as_array().into_iter().flatten() {
                let text = |field: &str| subject[field].as_str().unwrap_or_default();
                let name = match text("kind") {
                    "ServiceAccount" => {
                        format!("system:serviceaccount:{}:{}", text("namespace"), text("name"))
                    }
                    _ => text("name").to_owned(),
                };
                if !self.people.iter().any(|person| person.is(&name)) {
                    let _ = writeln!(out, "{}: {key}: nobody in the table stands for {name}", self.kind);
                }
            }
        }
        out
    }
}

/// What differs between two states, a text each.
pub(super) fn changes(before: &BTreeMap<String, Vec<u8>>, after: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let differ = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
    let text =
        |value: Option<&Vec<u8>>| value.map_or("nothing".into(), |v| String::from_utf8_lossy(v).into_owned());
    differ.map(|key| format!("{key}: from {} to {}", text(before.get(key)), text(after.get(key)))).collect()
}
