//! The `scale` subresource of built-in workloads and custom resources: a view of an object as autoscaling/v1 Scale.

use std::collections::HashMap;

use http::{Response, StatusCode};
use machinery::selector::LabelSelector;
use machinery::{field, managed, yaml};
use serde_json::{Map, Value, json};

use super::create::{Tracking, subresource_descriptor, writer};
use super::object::{copy_meta, meta, meta_str, remove_meta, set_meta};
use super::patch::{self, PatchFormat};
use super::update::{Mode, Update, run};
use super::{Presenter, RequestContext, metadata, output};
use crate::codec::decode::{Decoder, body_format};
use crate::codec::negotiate::Endpoint;
use crate::descriptor::Descriptor;
use crate::encode;
use crate::error::ApiError;
use crate::request::{FieldValidation, WriteOptions};
use crate::response::Body;

const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";
const API_VERSION: &str = "autoscaling/v1";

/// The fields of an object that its Scale shows.
struct Paths {
    replicas: Vec<String>,
    status: Vec<String>,
    /// Path of the selector: a string in custom resources, a selector object at `spec.selector` in built-in kinds.
    selector: Option<Vec<String>>,
    custom: bool,
}

fn steps(path: &str) -> Vec<String> {
    path.split('.').filter(|s| !s.is_empty()).map(str::to_owned).collect()
}

fn at<'a>(object: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(object, |value, step| value.get(step)).filter(|v| !v.is_null())
}

impl Paths {
    fn of(d: &Descriptor) -> Option<Self> {
        match &d.custom {
            Some(custom) => custom.scale.as_ref().map(|scale| Self {
                replicas: steps(&scale.spec_replicas),
                status: steps(&scale.status_replicas),
                selector: scale.label_selector.as_deref().map(steps),
                custom: true,
            }),
            None => Some(Self {
                replicas: steps(".spec.replicas"),
                status: steps(".status.replicas"),
                selector: Some(steps(".spec.selector")),
                custom: false,
            }),
        }
    }

    fn selector_text(&self, object: &Value) -> String {
        let Some(selector) = self.selector.as_ref().and_then(|path| at(object, path)) else {
            return String::new();
        };
        match selector {
            Value::String(text) => text.clone(),
            Value::Object(map) if map.contains_key("matchLabels") || map.contains_key("matchExpressions") => {
                LabelSelector::from_object(selector).map(|s| s.to_string()).unwrap_or_default()
            }
            Value::Object(map) => {
                let terms: Vec<String> =
                    map.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
                terms.join(",")
            }
            _ => String::new(),
        }
    }

    /// The Scale of an object. Its managedFields are the entries that own the replica count.
    fn scale(&self, object: &Value) -> Result<Value, ApiError> {
        let replicas = at(object, &self.replicas);
        if self.custom && replicas.is_none() {
            let shown = format!(".{}", self.replicas.join("."));
            return Err(ApiError::internal(format!("the spec replicas field {shown:?} does not exist")));
        }
        let mut spec = Map::new();
        if let Some(replicas) = replicas.filter(|r| r.as_i64() != Some(0)) {
            spec.insert("replicas".into(), replicas.clone());
        }
        let mut status = Map::new();
        status.insert("replicas".into(), at(object, &self.status).cloned().unwrap_or_else(|| json!(0)));
        let selector = self.selector_text(object);
        if !selector.is_empty() {
            status.insert("selector".into(), selector.into());
        }
        let mut scale = json!({
            "kind": "Scale", "apiVersion": API_VERSION, "metadata": {}, "spec": spec, "status": status,
        });
        for key in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
            copy_meta(&mut scale, object, key);
        }
        let entries: Vec<Value> = entries(object)
            .filter(|entry| owns(entry, &self.replicas))
            .map(|entry| {
                let mut entry = entry.clone();
                if let Some(map) = entry.as_object_mut() {
                    map.insert("apiVersion".into(), API_VERSION.into());
                    map.insert("fieldsV1".into(), nested(&steps(".spec.replicas")));
                }
                entry
            })
            .collect();
        if !entries.is_empty() {
            set_meta(&mut scale, "managedFields", entries.into());
        }
        Ok(scale)
    }

    /// The object with the replica count of a written Scale.
    fn write_back(&self, object: &Value, scale: &Value, api_version: &str) -> Value {
        let mut object = object.clone();
        let replicas = scale.pointer("/spec/replicas").cloned().unwrap_or_else(|| json!(0));
        set(&mut object, &self.replicas, replicas);
        let entries = self.owners(&object, scale, api_version);
        if entries.is_empty() {
            remove_meta(&mut object, "managedFields");
        } else {
            set_meta(&mut object, "managedFields", entries.into());
        }
        // The update checks these preconditions of the writer against the object.
        for key in ["resourceVersion", "uid"] {
            if meta(scale, key).is_some() {
                copy_meta(&mut object, scale, key);
            }
        }
        object
    }

    /// The managedFields of the object after a write of its Scale: ownership of the replica count moves to the writer.
    fn owners(&self, object: &Value, scale: &Value, api_version: &str) -> Vec<Value> {
        let mut scale_entries: Vec<Option<&Value>> = entries(scale).map(Some).collect();
        // Positions of entries by owner, the first one last.
        let mut places: HashMap<_, Vec<usize>> = HashMap::new();
        for (place, entry) in entries(scale).enumerate() {
            places.entry(owner(entry)).or_default().push(place);
        }
        for places in places.values_mut() {
            places.reverse();
        }
        let mut kept = Vec::new();
        for entry in entries(object) {
            if !owns(entry, &self.replicas) {
                kept.push(entry.clone());
                continue;
            }
            if let Some(place) = places.get_mut(&owner(entry)).and_then(Vec::pop) {
                if let Some(slot) = scale_entries.get_mut(place) {
                    *slot = None;
                }
                kept.push(entry.clone());
                continue;
            }
            let mut entry = entry.clone();
            if let Some(fields) = entry.get_mut("fieldsV1") {
                remove_field(fields, &self.replicas);
                if fields.as_object().is_some_and(Map::is_empty) {
                    continue;
                }
            }
            kept.push(entry);
        }
        for entry in scale_entries.into_iter().flatten().filter(|e| owns(e, &steps(".spec.replicas"))) {
            let mut entry = entry.clone();
            if let Some(map) = entry.as_object_mut() {
                map.insert("apiVersion".into(), api_version.into());
                map.insert("fieldsV1".into(), nested(&self.replicas));
                map.remove("time");
            }
            kept.push(entry);
        }
        kept
    }
}

fn entries(object: &Value) -> impl Iterator<Item = &Value> {
    meta(object, "managedFields").and_then(Value::as_array).into_iter().flatten()
}

fn owns(entry: &Value, path: &[String]) -> bool {
    let Some(fields) = entry.get("fieldsV1") else {
        return false;
    };
    path.iter().try_fold(fields, |fields, step| fields.get(format!("f:{step}"))).is_some()
}

/// Entries with equal owners belong to the same manager.
fn owner(entry: &Value) -> [Option<&Value>; 3] {
    ["manager", "operation", "subresource"].map(|key| entry.get(key))
}

fn nested(path: &[String]) -> Value {
    path.iter()
        .rev()
        .fold(json!({}), |inner, step| Value::Object(Map::from_iter([(format!("f:{step}"), inner)])))
}

/// Removes a path from a field set, and parents that become empty.
fn remove_field(fields: &mut Value, path: &[String]) {
    let (Some((step, rest)), Some(map)) = (path.split_first(), fields.as_object_mut()) else {
        return;
    };
    let key = format!("f:{step}");
    if let (Some(inner), false) = (map.get_mut(&key), rest.is_empty()) {
        remove_field(inner, rest);
        if inner.as_object().is_some_and(|m| !m.is_empty()) {
            return;
        }
    }
    map.remove(&key);
}

fn set(object: &mut Value, path: &[String], value: Value) {
    let Some((step, rest)) = path.split_first() else {
        *object = value;
        return;
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    if let Some(map) = object.as_object_mut() {
        set(map.entry(step.clone()).or_insert(Value::Null), rest, value);
    }
}

/// GET `.../scale`.
pub(crate) fn get(cx: &mut RequestContext<'_>) -> Result<Response<Body>, ApiError> {
    let media = cx.media(Endpoint::Plain)?;
    let paths = Paths::of(cx.descriptor).ok_or_else(ApiError::no_such_resource)?;
    let name = cx.info.path_name();
    let entry = cx.stored(name)?;
    let object = Presenter::new(cx.descriptor).value(&entry)?;
    let mut scale = paths.scale(&object)?;
    remove_meta(&mut scale, "managedFields");
    output::value(StatusCode::OK, media, &scale)
}

/// How a request changes a Scale.
enum Change {
    Put(Value),
    Patch(patch::ParsedPatch, PatchFormat),
    Apply(Value),
}

/// PUT `.../scale`.
pub(crate) async fn put(cx: &mut RequestContext<'_>, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let options = WriteOptions::parse(cx.query, cx.user_agent, "UpdateOptions", false)?;
    let d = scale_descriptor(cx)?;
    let format = body_format(cx.headers, false)?;
    let decoder = Decoder { catalog: cx.catalog, descriptor: &d, validation: options.validation };
    let mut scale = decoder.object(body, format, &mut cx.warnings)?;
    metadata::match_name(&mut scale, cx.info.path_name(), true)?;
    metadata::match_namespace(cx, &mut scale)?;
    write(cx, &d, &options, Change::Put(scale)).await
}

/// PATCH `.../scale`, in any patch format.
pub(crate) async fn patch(cx: &mut RequestContext<'_>, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let language = PatchFormat::of(cx)?;
    let apply = language == PatchFormat::Apply;
    let options = WriteOptions::parse(cx.query, cx.user_agent, "PatchOptions", apply)?;
    let d = scale_descriptor(cx)?;
    let change = if apply {
        let value = yaml::parse_one(&String::from_utf8_lossy(body))
            .map_err(|error| ApiError::bad_request(format!("error decoding YAML: {error}")))?;
        Change::Apply(value)
    } else {
        Change::Patch(patch::parse(body, language)?, language)
    };
    write(cx, &d, &options, change).await
}

fn scale_descriptor(cx: &RequestContext<'_>) -> Result<Descriptor, ApiError> {
    let sub = cx.descriptor.subresources.get("scale").ok_or_else(ApiError::no_such_resource)?;
    subresource_descriptor(cx.descriptor, sub, SCALE)
        .ok_or_else(|| ApiError::internal("the type of Scale is missing"))
}

async fn write(
    cx: &mut RequestContext<'_>,
    d: &Descriptor,
    options: &WriteOptions,
    change: Change,
) -> Result<Response<Body>, ApiError> {
    let media = cx.media(Endpoint::Plain)?;
    let paths = Paths::of(cx.descriptor).ok_or_else(ApiError::no_such_resource)?;
    let name = cx.info.path_name().to_owned();
    let produce = |cx: &mut RequestContext<'_>, live: Option<&Value>| {
        let live = live.ok_or_else(|| cx.not_found(cx.info.path_name()))?;
        let scale = changed(cx, d, &paths, live, options, &change)?;
        Ok(paths.write_back(live, &scale, &cx.descriptor.api_version()))
    };
    let update = Update {
        name: &name,
        subresource: None,
        options,
        mode: Mode::Patch,
        tracking: Tracking::Applied,
        produce: &produce,
    };
    let (status, text) = run(cx, &update).await?;
    let object: Value = serde_json::from_slice(&text).map_err(ApiError::internal)?;
    let mut scale = paths.scale(&object)?;
    remove_meta(&mut scale, "managedFields");
    output::value(status, media, &scale)
}

/// The Scale after the change, checked, with its field owners.
fn changed(
    cx: &mut RequestContext<'_>,
    d: &Descriptor,
    paths: &Paths,
    live: &Value,
    options: &WriteOptions,
    change: &Change,
) -> Result<Value, ApiError> {
    let current = paths.scale(live)?;
    let mut who = writer(cx, options, Some("scale"));
    who.api_version = API_VERSION.into();
    who.reset = vec!["status".into()];
    let mut scale = match change {
        Change::Put(scale) => {
            let mut scale = scale.clone();
            if meta(&scale, "managedFields").is_none() {
                copy_meta(&mut scale, &current, "managedFields");
            }
            scale
        }
        Change::Patch(parsed, language) => {
            let mut scale = patch::apply_patch(&d.schema, &current, parsed, *language)?;
            let decoder = Decoder { catalog: cx.catalog, descriptor: d, validation: FieldValidation::Ignore };
            let shown = String::from_utf8_lossy(&encode::value_bytes(&scale)).into_owned();
            decoder.fit(&mut scale).map_err(|error| patch::invalid_patch(&shown, &error))?;
            scale
        }
        Change::Apply(applied) => {
            who.operation = managed::Operation::Apply;
            managed::apply(&d.schema, Some(&current), applied, &who, options.force.unwrap_or(false))
                .map_err(patch::apply_error)?
        }
    };
    metadata::match_name(&mut scale, cx.info.path_name(), false)?;
    if !matches!(change, Change::Apply(_)) {
        managed::track_update(&d.schema, Some(&current), &mut scale, &who);
    }
    let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
    if replicas < 0 {
        let path = field::Path::field("spec").child("replicas");
        let error = field::Error::invalid(&path, &json!(replicas), "must be greater than or equal to 0");
        return Err(ApiError::invalid("autoscaling", "Scale", meta_str(&scale, "name"), &[error]));
    }
    Ok(scale)
}
