//! The ways of writing a path.

use std::fmt::Write as _;

use super::people::Person;
use super::routes::{self, FOREIGN, Place, Route};
use super::scene::Scene;
use super::table::Grant;
use super::victims::MARK;

/// Asks by every way for what the person may not have. Returns what went wrong.
pub(super) async fn try_all(scene: &Scene, person: &Person, route: &Route, grant: &Grant) -> String {
    let mut faults = String::new();
    for verb in route.verbs_of_paths() {
        if grant.allows(verb, Place::Elsewhere) || grant.allows(verb, Place::Everywhere) {
            continue;
        }
        let plain = routes::ask(person, route, verb, Place::Elsewhere, false);
        let (path, query) = plain.uri.split_once('?').unwrap_or((&plain.uri, ""));
        for way in ways(path, route, &person.own) {
            let uri = match (way.contains('?'), query) {
                (_, "") => way,
                (true, query) => format!("{way}&{query}"),
                (false, query) => format!("{way}?{query}"),
            };
            let answer = scene.send(person, plain.method, &uri, &[], plain.body.clone()).await;
            if answer.status < 300 || answer.text.contains(MARK) {
                let _ = writeln!(
                    faults,
                    "{}: {}: {} {uri}: {}",
                    scene.kind, person.title, plain.method, answer.status
                );
            }
        }
    }
    if route.subresource.is_none() {
        faults += &try_methods(scene, person, route, grant).await;
    }
    faults
}

/// Methods that are no verbs, and headers that other servers take for the method or the path.
async fn try_methods(scene: &Scene, person: &Person, route: &Route, grant: &Grant) -> String {
    if grant.allows('g', Place::Elsewhere) {
        return String::new();
    }
    let path = route.path(&person.own, Place::Elsewhere, true);
    let own = route.path(&person.own, Place::Own, true);
    let mut faults = String::new();
    let asks = [
        ("HEAD", path.as_str(), ("accept", "*/*")),
        ("OPTIONS", &path, ("accept", "*/*")),
        ("TRACE", &path, ("accept", "*/*")),
        ("PROPFIND", &path, ("accept", "*/*")),
        ("get", &path, ("accept", "*/*")),
        ("POST", &path, ("x-http-method-override", "GET")),
        ("GET", &path, ("impersonate-user", "kubernetes-admin")),
        ("GET", &path, ("impersonate-group", "system:masters")),
        ("GET", &path, ("x-remote-user", "kubernetes-admin")),
        ("GET", &own, ("x-original-url", &path)),
        ("GET", &own, ("x-rewrite-url", &path)),
    ];
    for (method, uri, header) in asks {
        let answer = scene.send(person, method, uri, &[header], String::new()).await;
        let reached = answer.text.contains(MARK) || (answer.status < 300 && uri == path);
        if reached {
            let _ = writeln!(
                faults,
                "{}: {}: {method} {uri} {header:?}: {}",
                scene.kind, person.title, answer.status
            );
        }
    }
    faults
}

/// Other spellings of `path`, which names the place [`FOREIGN`]. Some of them mean the same, others nothing at all.
fn ways(path: &str, route: &Route, own: &str) -> Vec<String> {
    let plural = &route.d.plural;
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    let prefix_end = path.find("/namespaces/").filter(|_| route.d.namespaced);
    let (prefix, rest) = path.split_at(prefix_end.or_else(|| path.find(&format!("/{plural}"))).unwrap_or(0));
    let place = format!("/{FOREIGN}");
    let swap = |with: &str| path.replacen(&place, with, 1);
    let mut ways = vec![
        path.to_owned(),
        format!("{path}/"),
        format!("/{path}"),
        format!("{prefix}/{rest}"),
        path.replace('/', "//"),
        format!("{prefix}/.{rest}"),
        format!("{prefix}/watch{rest}"),
        format!("{prefix}/proxy{rest}"),
        format!("{prefix}/namespaces/{own}{rest}"),
        format!("{prefix}/watch/namespaces/{own}{rest}"),
        format!("{prefix}/namespaces/{own}/..{}", rest.trim_start_matches("/namespaces")),
        format!("{prefix}/namespaces/{own}/%2e%2e{}", rest.trim_start_matches("/namespaces")),
        format!("{prefix}/namespaces/{own}%2f..%2f{}", rest.trim_start_matches("/namespaces/")),
        format!("{prefix}/namespaces/{own}/pods/victim/proxy{path}"),
        format!("{prefix}/namespaces/{own}/services/victim/proxy/../../../..{path}"),
        format!("/spaces/host{path}"),
        swap("/%66oreign"),
        swap("/%2566oreign"),
        swap("/FOREIGN"),
        swap("/foreign%00"),
        swap("/foreign%20"),
        swap("/foreign%0a"),
        swap("/foreign;x=1"),
        swap("/foreign%2f"),
        swap("/%2fforeign"),
        swap("//foreign"),
        swap("/./foreign"),
        swap("/foreign/."),
        swap(&format!("/{own}%5c..%5cforeign")),
        swap(&format!("/{own},foreign")),
        swap("/%EF%BD%86oreign"),
        swap("/f%C0%AFreign"),
        swap("/*"),
        path.replacen(plural.as_str(), &plural.to_uppercase(), 1),
        path.replacen(plural.as_str(), &format!("%{:02x}{}", plural.as_bytes()[0], &plural[1..]), 1),
        path.replacen(first, &first.to_uppercase(), 1),
        path.replacen(first, &format!("%61{}", &first[1..]), 1),
        format!("{path}?namespace={own}"),
        format!("{path}?fieldSelector=metadata.namespace%3D{own}"),
        format!("{path}?watch=1&timeoutSeconds=1"),
        format!("{path}?pretty=1&limit=1"),
    ];
    if !route.d.namespaced {
        // A collection is authorised with a name if the selector has one; the person may have its own object so.
        ways.push(format!("{path}?fieldSelector=metadata.name%3D{FOREIGN}"));
    }
    ways
}
