//! Bodies and queries that name another place than the path.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::people::Person;
use super::routes::{FOREIGN, Place, Route, VICTIM};
use super::scene::Scene;
use super::victims::MARK;

/// Sends requests in the own namespace whose body or query names [`FOREIGN`]. Returns what went wrong.
pub(super) async fn try_all(scene: &Scene, person: &Person, route: &Route) -> String {
    if !route.d.namespaced || !route.d.has_verb("get") || route.subresource.is_some() {
        return String::new();
    }
    let (collection, object) =
        (route.path(&person.own, Place::Own, false), route.path(&person.own, Place::Own, true));
    let body = |name: &str, namespace: &str| -> Value {
        json!({"apiVersion": route.d.api_version(), "kind": route.d.kind,
            "metadata": {"name": name, "namespace": namespace, "labels": {"by": "intruder"}}})
    };
    let pointer = json!([{"op": "add", "path": "/metadata/namespace", "value": FOREIGN}]);
    let (merge, json_patch, apply) =
        ("application/merge-patch+json", "application/json-patch+json", "application/apply-patch+yaml");
    let elsewhere = format!("{FOREIGN}%2f{}%2f{VICTIM}", route.d.plural);
    let namespace = format!("?namespace={FOREIGN}");
    let asks: Vec<(&str, String, &str, Value)> = vec![
        ("POST", collection.clone(), "application/json", body("made", FOREIGN)),
        ("POST", collection.clone(), "application/json", body(&format!("../{FOREIGN}/made"), "")),
        (
            "POST",
            format!("{collection}?dryRun=All&namespace={FOREIGN}"),
            "application/json",
            body("made", ""),
        ),
        ("PUT", object.clone(), "application/json", body(VICTIM, FOREIGN)),
        ("PUT", object.clone(), "application/json", body("other-name", "")),
        ("PATCH", object.clone(), merge, json!({"metadata": {"namespace": FOREIGN}})),
        ("PATCH", object.clone(), merge, json!({"metadata": {"name": "other-name"}})),
        ("PATCH", object.clone(), json_patch, pointer),
        ("PATCH", format!("{object}?fieldManager=m&force=true"), apply, body(VICTIM, FOREIGN)),
        ("GET", format!("{object}{namespace}"), "application/json", Value::Null),
        ("GET", format!("{collection}{namespace}"), "application/json", Value::Null),
        (
            "GET",
            format!("{collection}?fieldSelector=metadata.namespace%3D{FOREIGN}"),
            "application/json",
            Value::Null,
        ),
        ("GET", format!("{collection}/..%2f..%2f{elsewhere}"), "application/json", Value::Null),
        (
            "DELETE",
            format!("{collection}?fieldSelector=metadata.namespace%3D{FOREIGN}"),
            "application/json",
            Value::Null,
        ),
    ];
    let mut faults = String::new();
    for (method, uri, media, body) in asks {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let answer = scene.send(person, method, &uri, &[("content-type", media)], text).await;
        let moved = answer.status < 300 && answer.text.contains(&format!("\"namespace\":\"{FOREIGN}\""));
        if moved || answer.text.contains(MARK) {
            let _ =
                writeln!(faults, "{}: {method} {uri} {body}: {} {}", scene.kind, answer.status, answer.text);
        }
    }
    faults
}
