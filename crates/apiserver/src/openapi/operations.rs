//! The operations of resources, as `paths` of both versions.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::schemas::{self, Version, gvk, table};
use crate::descriptor::{Descriptor, Subresource};

const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";

/// A query parameter: name, type.
type Param = (&'static str, &'static str);

const PRETTY: Param = ("pretty", "string");
const WRITE: &[Param] = &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
const APPLY: &[Param] = &[("force", "boolean")];
const SELECT: &[Param] = &[
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
];
const WATCH: &[Param] = &[("allowWatchBookmarks", "boolean"), ("watch", "boolean")];
const DELETE: &[Param] = &[
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("ignoreStoreReadErrorWithClusterBreakingPotential", "boolean"),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
];

fn describe(param: &str) -> &'static str {
    match param {
        "allowWatchBookmarks" => "Ask for events of type BOOKMARK.",
        "continue" => "Token of the answer before, to get the next page.",
        "dryRun" => "All: process the request but do not store anything.",
        "fieldManager" => "Name of the actor that makes the change, for field ownership.",
        "fieldSelector" => "Restrict to objects whose fields have these values.",
        "fieldValidation" => "What to do about unknown and duplicate fields: Ignore, Warn or Strict.",
        "force" => "Take over fields that others own; only for apply.",
        "gracePeriodSeconds" => "Seconds before the object is deleted; 0 is at once.",
        "ignoreStoreReadErrorWithClusterBreakingPotential" => "Delete even an object that cannot be read.",
        "labelSelector" => "Restrict to objects with these labels.",
        "limit" => "Most objects in one answer.",
        "orphanDependents" => "Deprecated: use propagationPolicy.",
        "pretty" => "If true, the answer is indented.",
        "propagationPolicy" => "Orphan, Background or Foreground.",
        "resourceVersion" => "Which version of the data to answer from.",
        "resourceVersionMatch" => "How to understand resourceVersion.",
        "sendInitialEvents" => "Begin a watch with the objects there are.",
        "timeoutSeconds" => "End the call after this time.",
        "watch" => "Answer with a stream of changes.",
        _ => "",
    }
}

/// The body of an operation's requests.
#[derive(Clone, Copy)]
enum RequestBody<'a> {
    Nothing,
    Object(&'a str),
    /// Whether strategic merge patches are accepted.
    Patch(bool),
    DeleteOptions,
}

struct Operation<'a> {
    method: &'static str,
    action: &'static str,
    params: Vec<Param>,
    body: RequestBody<'a>,
    answers: &'a str,
    codes: &'static [u16],
}

/// The kind of an operation, and the schema of its answer.
struct OperationKind {
    group: String,
    version: String,
    kind: String,
    schema: String,
}

/// Adds the paths of one resource and its subresources. Returns the names of the schemas that they use.
pub(super) fn add(d: &Descriptor, to: Version, paths: &mut BTreeMap<String, Value>) -> Vec<String> {
    let base = match d.group.as_str() {
        "" => format!("/api/{}", d.version),
        group => format!("/apis/{group}/{}", d.version),
    };
    let own = OperationKind {
        group: d.group.clone(),
        version: d.version.clone(),
        kind: d.kind.clone(),
        schema: schemas::name(d),
    };
    let list = schemas::list_name(d);
    let collection = if d.namespaced {
        format!("{base}/namespaces/{{namespace}}/{}", d.plural)
    } else {
        format!("{base}/{}", d.plural)
    };
    let item = format!("{collection}/{{name}}");
    let strategic = !d.is_custom();
    add_path(paths, &collection, to, &own, &d.plural, collection_operations(d, &own, &list));
    add_path(paths, &item, to, &own, &d.plural, item_operations(&d.verbs, &own.schema, strategic));
    if d.namespaced && d.has_verb("list") {
        let everywhere = format!("{base}/{}", d.plural);
        let operations = collection_operations(d, &own, &list).into_iter().filter(|o| o.action == "list");
        add_path(paths, &everywhere, to, &own, &format!("{}/all", d.plural), operations.collect());
    }
    let mut used = vec![own.schema, list, DELETE_OPTIONS.into(), PATCH.into(), STATUS.into()];
    for (name, sub) in &d.subresources {
        let Some(subject) = subject(d, sub) else { continue };
        let operations = item_operations(&sub.verbs, &subject.schema, strategic);
        let label = format!("{}/{name}", d.plural);
        add_path(paths, &format!("{item}/{name}"), to, &subject, &label, operations);
        used.push(subject.schema);
    }
    used
}

/// The kind of a subresource; `None` for connections.
fn subject(d: &Descriptor, sub: &Subresource) -> Option<OperationKind> {
    let own = (&sub.group, &sub.version, &sub.kind) == (&d.group, &d.version, &d.kind);
    let schema =
        if own { schemas::name(d) } else { table().name(&sub.group, &sub.version, &sub.kind)?.to_owned() };
    Some(OperationKind {
        group: sub.group.clone(),
        version: sub.version.clone(),
        kind: sub.kind.clone(),
        schema,
    })
}

fn params(lists: &[&[Param]]) -> Vec<Param> {
    lists.iter().flat_map(|list| list.iter().copied()).collect()
}

fn collection_operations<'a>(d: &Descriptor, own: &'a OperationKind, list: &'a str) -> Vec<Operation<'a>> {
    let mut out = Vec::new();
    if d.has_verb("list") {
        out.push(Operation {
            method: "get",
            action: "list",
            params: params(&[SELECT, WATCH]),
            body: RequestBody::Nothing,
            answers: list,
            codes: &[200],
        });
    }
    if d.has_verb("create") {
        out.push(Operation {
            method: "post",
            action: "post",
            params: params(&[WRITE]),
            body: RequestBody::Object(&own.schema),
            answers: &own.schema,
            codes: &[200, 201, 202],
        });
    }
    if d.has_verb("deletecollection") {
        out.push(Operation {
            method: "delete",
            action: "deletecollection",
            params: params(&[SELECT, DELETE]),
            body: RequestBody::DeleteOptions,
            answers: STATUS,
            codes: &[200],
        });
    }
    out
}

fn item_operations<'a>(verbs: &[String], schema: &'a str, strategic: bool) -> Vec<Operation<'a>> {
    let has = |verb: &str| verbs.iter().any(|v| v == verb);
    let mut out = Vec::new();
    let mut add = |method, action, params, body, answers, codes| {
        out.push(Operation { method, action, params, body, answers, codes });
    };
    if has("get") {
        add("get", "get", Vec::new(), RequestBody::Nothing, schema, &[200][..]);
    }
    // Create on an item exists for subresources only.
    if has("create") && !has("list") && !has("delete") {
        add("post", "post", params(&[WRITE]), RequestBody::Object(schema), schema, &[200, 201, 202]);
    }
    if has("update") {
        add("put", "put", params(&[WRITE]), RequestBody::Object(schema), schema, &[200, 201]);
    }
    if has("patch") {
        add("patch", "patch", params(&[WRITE, APPLY]), RequestBody::Patch(strategic), schema, &[200, 201]);
    }
    if has("delete") {
        add("delete", "delete", params(&[DELETE]), RequestBody::DeleteOptions, STATUS, &[200, 202]);
    }
    out
}

fn add_path(
    paths: &mut BTreeMap<String, Value>,
    path: &str,
    to: Version,
    subject: &OperationKind,
    label: &str,
    operations: Vec<Operation<'_>>,
) {
    // Review kinds have no items; their one operation is on the collection.
    let creates_only = operations.iter().all(|o| o.method == "post");
    if operations.is_empty() || (creates_only && path.ends_with("/{name}")) {
        return;
    }
    let mut item = Map::new();
    let mut common: Vec<Value> = ["name", "namespace"]
        .into_iter()
        .filter(|name| path.contains(&format!("{{{name}}}")))
        .map(|name| path_param(name, to))
        .collect();
    common.push(query_param(PRETTY, to));
    item.insert("parameters".into(), common.into());
    for operation in operations {
        item.insert(operation.method.into(), print(&operation, to, subject, label));
    }
    paths.insert(path.to_owned(), Value::Object(item));
}

fn path_param(name: &str, to: Version) -> Value {
    let mut out = json!({"name": name, "in": "path", "required": true, "uniqueItems": true});
    typed(&mut out, "string", to);
    out
}

fn query_param((name, r#type): Param, to: Version) -> Value {
    let mut out = json!({"name": name, "in": "query", "description": describe(name), "uniqueItems": true});
    typed(&mut out, r#type, to);
    out
}

fn typed(param: &mut Value, r#type: &str, to: Version) {
    match to {
        Version::V2 => param["type"] = r#type.into(),
        Version::V3 => {
            param["schema"] = json!({"type": r#type, "uniqueItems": true});
            if let Some(param) = param.as_object_mut() {
                param.remove("uniqueItems");
            }
        }
    }
}

fn print(o: &Operation<'_>, to: Version, subject: &OperationKind, label: &str) -> Value {
    let tag = format!("{}_{}", subject.group.split('.').next().unwrap_or_default(), subject.version);
    let id: String = format!("{}_{tag}_{label}", o.action)
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' })
        .collect();
    let mut parameters: Vec<Value> = o.params.iter().map(|p| query_param(*p, to)).collect();
    let mut out = Map::from_iter([
        ("operationId".to_owned(), Value::from(id)),
        ("x-kubernetes-action".to_owned(), o.action.into()),
        ("x-kubernetes-group-version-kind".to_owned(), gvk(&subject.group, &subject.version, &subject.kind)),
    ]);
    let mut patches = vec!["application/json-patch+json", "application/merge-patch+json"];
    if matches!(o.body, RequestBody::Patch(true)) {
        patches.push("application/strategic-merge-patch+json");
    }
    patches.push("application/apply-patch+yaml");
    let (body, medias) = match o.body {
        RequestBody::Nothing => (None, vec![]),
        RequestBody::Object(schema) => (Some(schema), vec!["*/*"]),
        RequestBody::Patch(_) => (Some(PATCH), patches),
        RequestBody::DeleteOptions => (Some(DELETE_OPTIONS), vec!["*/*"]),
    };
    let required = !matches!(o.body, RequestBody::DeleteOptions);
    let answer = match to {
        Version::V2 => {
            if let Some(schema) = body {
                let schema = to.reference(schema);
                parameters
                    .push(json!({"name": "body", "in": "body", "required": required, "schema": schema}));
            }
            out.insert("consumes".into(), if medias.is_empty() { vec!["*/*"] } else { medias }.into());
            out.insert("produces".into(), json!(["application/json", "application/yaml"]));
            out.insert("schemes".into(), json!(["https"]));
            json!({"description": "OK", "schema": to.reference(o.answers)})
        }
        Version::V3 => {
            if let Some(schema) = body {
                let content: Map<String, Value> = medias
                    .iter()
                    .map(|m| ((*m).to_owned(), json!({"schema": to.reference(schema)})))
                    .collect();
                out.insert("requestBody".into(), json!({"content": content, "required": required}));
            }
            let schema = json!({"schema": to.reference(o.answers)});
            json!({"description": "OK", "content": {"application/json": schema, "application/yaml": schema}})
        }
    };
    let mut responses: Map<String, Value> = o.codes.iter().map(|c| (c.to_string(), answer.clone())).collect();
    responses.insert("401".into(), json!({"description": "Unauthorized"}));
    out.insert("responses".into(), responses.into());
    if !parameters.is_empty() {
        out.insert("parameters".into(), parameters.into());
    }
    Value::Object(out)
}
