//! The rights table: what each credential that the system hands out may do, on every space.
//!
//! The expected answers are in `testdata/rights/`, a file for each kind of space. `BLESS=1 cargo test -p kubestellar
//! rights_table` writes them from what the spaces answer; whoever changes them reviews the difference. Nothing here lists
//! routes: they come from the catalogs of the running spaces and from their discovery, so a new route without an entry
//! fails. The people are listed in [`people`]; a subject of a stored binding that is none of them fails.
//!
//! What the table denies is really asked for, with objects that such a request would read or change. What is stored
//! is compared before and after.

mod bodies;
mod paths;
mod people;
mod routes;
mod scene;
mod table;
mod victims;

use std::fmt::Write as _;
use std::sync::Arc;

use tokio::task::JoinSet;

use people::Person;
use routes::{Place, VERBS};
use scene::{Scene, World};
use table::{Grants, Table};

/// SP-065, OCM-044, AS-063: every route of every space, with every verb, for everybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_065_rights_table_every_route_and_verb_for_everybody() {
    let bless = std::env::var_os("BLESS").is_some();
    on_every_space(move |scene| async move {
        let mut faults = scene.unlisted_subjects();
        let expected = if bless { Table::default() } else { Table::read(scene.kind) };
        let before = scene.stored();
        let found = probe(&scene, (!bless).then_some(&expected)).await;
        if bless {
            found.write(scene.kind);
        } else {
            faults += &expected.differences(&found, scene.kind);
        }
        for change in scene::changes(&before, &scene.stored()) {
            let _ = writeln!(faults, "{}: changed although nobody may change it here: {change}", scene.kind);
        }
        faults
    })
    .await;
}

/// Runs a part of a test on each space, all at a time. It returns what went wrong.
async fn on_every_space<F: Future<Output = String> + Send + 'static>(part: impl Fn(Arc<Scene>) -> F) {
    let world = World::start().await;
    let mut parts = JoinSet::new();
    for scene in &world.scenes {
        parts.spawn(part(scene.clone()));
    }
    let mut faults = String::new();
    while let Some(found) = parts.join_next().await {
        faults += &found.expect("no panic");
    }
    world.end().await;
    assert!(faults.is_empty(), "{faults}");
}

/// Asks everything for everybody.
async fn probe(scene: &Scene, expected: Option<&Table>) -> Table {
    let routes = scene.routes();
    let mut found = Table {
        routes: routes.iter().map(|route| (route.key(), route.served())).collect(),
        documents: table::documents(scene.documents(), &scene.documents()),
        people: Vec::new(),
    };
    for person in &scene.people {
        let mut grants = Grants::new();
        for route in &routes {
            let known = expected.map(|table| table.grant(&person.title, &route.key()));
            let mut grant = table::Grant::default();
            for verb in route.verbs() {
                for &place in route.places(verb) {
                    // What the table allows is tried without effect.
                    let dry = known.as_ref().is_none_or(|known| known.allows(verb, place));
                    if scene.allowed(person, route, verb, place, dry).await {
                        grant.add(verb, place);
                    }
                }
            }
            if !grant.is_empty() {
                grants.insert(route.key(), grant);
            }
        }
        let mut readable = Vec::new();
        for path in scene.documents() {
            if scene.reads(person, &path).await {
                readable.push(path);
            }
        }
        let mut reading = table::Grant::default();
        reading.add('g', Place::Elsewhere);
        let documents = table::documents(readable, &scene.documents());
        grants.extend(documents.into_iter().map(|path| (format!("paths {path}"), reading.clone())));
        found.people.push((person.title.clone(), grants));
    }
    found
}

/// AS-001, AS-063: no way of writing a path reaches what the plain path does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_063_rights_no_way_of_writing_a_path_reaches_more() {
    on_every_space(|scene| async move {
        let expected = Table::read(scene.kind);
        let before = scene.stored();
        let mut faults = String::new();
        for person in scene.people.iter().filter(|person| person.tries_paths) {
            for route in scene.routes() {
                let grant = expected.grant(&person.title, &route.key());
                faults += &paths::try_all(&scene, person, &route, &grant).await;
            }
        }
        for change in scene::changes(&before, &scene.stored()) {
            let _ = writeln!(faults, "{}: changed: {change}", scene.kind);
        }
        faults
    })
    .await;
}

/// AS-063: the namespace and the name of a body or a query do not move a request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_063_rights_a_body_does_not_choose_the_place() {
    on_every_space(|scene| async move {
        let own = format!(" {}/", people::TEAM);
        let outside = || {
            let mut stored = scene.stored();
            stored.retain(|key, _| !key.contains(&own));
            stored
        };
        let (before, mut faults) = (outside(), String::new());
        if let Some(person) = scene.people.iter().find(|person| person.title == people::EVERYTHING) {
            for route in scene.routes() {
                faults += &bodies::try_all(&scene, person, &route).await;
            }
        }
        for change in scene::changes(&before, &outside()) {
            let _ = writeln!(faults, "{}: changed: {change}", scene.kind);
        }
        faults
    })
    .await;
}

/// SP-042: a credential of one space is nothing in another.
///
/// CVE-2025-29922: an endpoint of kcp acted in workspaces that had not bound its API.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sp_042_cve_2025_29922_rights_a_credential_of_one_space_is_nothing_in_another() {
    let world = World::start().await;
    for home in &world.scenes {
        for person in home.people.iter().filter(|person| person.is_real()) {
            assert_eq!(home.status(person, "/api").await, 200, "{} in {}", person.title, home.kind);
            for other in world.scenes.iter().filter(|other| other.kind != home.kind) {
                for path in ["/api", "/api/v1/namespaces", "/apis", "/version", "/metrics"] {
                    let status = other.status(person, path).await;
                    let anonymous = other.status(&Person::anonymous(), path).await;
                    let fine = status == 401 || (status == anonymous && path == "/version");
                    assert!(fine, "{} of {} in {}: {path}: {status}", person.title, home.kind, other.kind);
                }
            }
        }
    }
    world.end().await;
}

/// OCM-044: agents and clients that join reach nothing outside their own place but signing requests, and what every user has.
///
/// CVE-2024-56513: the agents of Karmada's pull mode could read and change the whole control plane.
#[test]
fn ocm_044_cve_2024_56513_rights_of_agents_end_at_their_cluster() {
    // Their readers see names of clusters and public keys. OCM grants the same.
    const SHARED: [&str; 2] = [
        "certificates.k8s.io/v1 certificatesigningrequests",
        "cluster.open-cluster-management.io/v1 managedclusters",
    ];
    let table = Table::read("its");
    let user = table.people.iter().find(|(title, _)| title == people::SOMEBODY).expect("a user").1.clone();
    let mut seen = 0;
    for (title, grants) in table.people.iter().filter(|(title, _)| people::is_outside_the_hub(title)) {
        seen += 1;
        for (route, grant) in grants.iter().filter(|(route, _)| !user.contains_key(*route)) {
            let document = route.starts_with("paths ") && title.contains("service account");
            let most = if SHARED.contains(&route.as_str()) { "glwc" } else { "" };
            let fine = document || grant.elsewhere().all(|verb| most.contains(verb));
            assert!(fine, "{title} may reach {route} of others");
            assert!(!route.ends_with("/v1 secrets") && route != "v1 secrets", "{title} may reach {route}");
        }
    }
    assert!(seen >= 8, "{seen} agents");
}

/// SP-065: no agent and no controller reaches what would make it an administrator of the hub: tokens, pods, Secrets, roles.
///
/// CVE-2024-9779: OCM's cluster-manager could create pods on the hub, and so take the token of any service account.
/// CVE-2023-30622: Clusternet's hub had all rights on everything.
#[test]
fn sp_065_cve_2024_9779_cve_2023_30622_rights_nobody_on_a_hub_can_become_its_administrator() {
    const KEYS: [&str; 9] = [
        "v1 secrets",
        "v1 pods",
        "v1 serviceaccounts",
        "v1 nodes",
        "apps/v1 ",
        "batch/v1 ",
        "rbac.authorization.k8s.io/v1 ",
        "certificates.k8s.io/v1 certificatesigningrequests/",
        "admissionregistration.k8s.io/v1 ",
    ];
    let table = Table::read("its");
    let of_system = table.people.iter().filter(|(title, _)| !people::is_user(title));
    let mut seen = 0;
    for (title, grants) in of_system {
        seen += 1;
        for route in grants.keys() {
            assert!(!KEYS.iter().any(|key| route.starts_with(key)), "{title} may reach {route}");
        }
    }
    assert!(seen >= 10, "{seen} components");
}

/// Every test that SECURITY.md names exists.
#[test]
fn sp_065_rights_what_is_claimed_is_tested() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let claims = std::fs::read_to_string(root.join("SECURITY.md")).expect("SECURITY.md");
    let mut sources = String::new();
    let mut folders = vec![root.join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path())
        {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|kind| kind == "rs") {
                sources += &std::fs::read_to_string(entry).expect("a source");
            }
        }
    }
    let is_test =
        |name: &&str| ["as_", "sp_", "ks_", "ocm_", "mc_", "cve_"].iter().any(|id| name.starts_with(id));
    let named: Vec<&str> = claims.split('`').skip(1).step_by(2).filter(is_test).collect();
    assert!(named.len() > 20, "{named:?}");
    for name in named {
        assert!(sources.contains(&format!("fn {name}(")), "SECURITY.md names {name}, which does not exist");
    }
}

/// The verbs of the table have one letter each.
#[test]
fn sp_065_rights_letters_are_unique() {
    let mut letters: Vec<char> = VERBS.iter().map(|(letter, _)| *letter).collect();
    letters.sort_unstable();
    letters.dedup();
    assert_eq!(letters.len(), VERBS.len());
}
