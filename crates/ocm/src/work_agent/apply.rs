//! Applies one manifest to the cluster, by its strategy (OCM-078 … OCM-083).

use std::time::Duration;

use apis::ocm::work::{STRATEGY_CREATE_ONLY, STRATEGY_READ_ONLY, STRATEGY_SERVER_SIDE_APPLY};
use kube::Error;
use runtime::rest::{Gvr, Removal, Rest, is_conflict, message_of};
use serde_json::{Value, json};

use super::{
    merge::{self, Verdict},
    rules::Treatment,
};

/// One manifest, resolved.
pub(crate) struct Wanted<'a> {
    pub(crate) gvr: &'a Gvr,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) manifest: &'a Value,
    pub(crate) treatment: &'a Treatment,
    /// The AppliedManifestWork as owner.
    pub(crate) owner: &'a Value,
    pub(crate) owned: bool,
    /// The object is known to exist: look before creating.
    pub(crate) exists: bool,
}

/// Why a manifest was not applied.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Worth another try soon.
    Again(String),
    /// Only a change of the work or the periodic pass helps (a server-side apply conflict).
    Settled(String),
    /// The fields to ignore could not be computed.
    IgnoreFields(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Again(message_of(&error))
    }
}

const ATTEMPTS: u32 = 4;

/// Gives the live object as it is afterwards; `None` only for a ReadOnly object that does not exist.
pub(crate) async fn apply(cluster: &Rest, wanted: &Wanted<'_>) -> Result<Option<Value>, Failure> {
    let mut pause = Duration::from_millis(10);
    for attempt in 1.. {
        let outcome = match wanted.treatment.strategy.type_.as_str() {
            STRATEGY_READ_ONLY => {
                return Ok(cluster.find(wanted.gvr, wanted.namespace, wanted.name).await?);
            }
            STRATEGY_CREATE_ONLY => create_only(cluster, wanted).await,
            STRATEGY_SERVER_SIDE_APPLY => return server_side(cluster, wanted).await.map(Some),
            _ => update(cluster, wanted).await,
        };
        match outcome {
            Ok(live) => return Ok(Some(live)),
            Err(error) if is_conflict(&error) && attempt < ATTEMPTS => {
                tokio::time::sleep(pause).await;
                pause *= 5;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// The manifest with the owner it is to have, or to lose.
fn required(wanted: &Wanted<'_>) -> Value {
    let mut object = wanted.manifest.clone();
    let mut owner = wanted.owner.clone();
    if !wanted.owned {
        let uid = format!("{}-", merge::text(&owner, "uid"));
        owner["uid"] = uid.into();
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        if wanted.namespace.is_empty() {
            metadata.remove("namespace");
        }
        let owners = metadata.entry("ownerReferences").or_insert_with(|| json!([]));
        match owners.as_array_mut() {
            Some(owners) => owners.push(owner),
            None => *owners = json!([owner]),
        }
    }
    object
}

async fn create(cluster: &Rest, wanted: &Wanted<'_>, required: &Value) -> Result<Value, Error> {
    let body = merge::to_create(required).to_string().into_bytes();
    cluster.create(wanted.gvr, wanted.namespace, body).await
}

/// The live object, or the one just created.
async fn find_or_create(
    cluster: &Rest,
    wanted: &Wanted<'_>,
    required: &Value,
) -> Result<(Value, bool), Error> {
    if !wanted.exists {
        match create(cluster, wanted, required).await {
            Ok(created) => return Ok((created, true)),
            Err(error) if is_conflict(&error) => {}
            Err(error) => return Err(error),
        }
    }
    match cluster.find(wanted.gvr, wanted.namespace, wanted.name).await? {
        Some(live) => Ok((live, false)),
        None => Ok((create(cluster, wanted, required).await?, true)),
    }
}

async fn update(cluster: &Rest, wanted: &Wanted<'_>) -> Result<Value, Error> {
    let required = required(wanted);
    let (live, created) = find_or_create(cluster, wanted, &required).await?;
    if created {
        return Ok(live);
    }
    match merge::update(&required, &live) {
        Verdict::Equal => Ok(live),
        Verdict::Replace(object) => {
            let body = object.to_string().into_bytes();
            cluster.replace(wanted.gvr, wanted.namespace, wanted.name, body).await
        }
        Verdict::Recreate => {
            let uid = live.pointer("/metadata/uid").and_then(Value::as_str).map(str::to_owned);
            let removal = Removal { uid, propagation: None };
            cluster.delete(wanted.gvr, wanted.namespace, wanted.name, &removal).await?;
            create(cluster, wanted, &required).await
        }
    }
}

async fn create_only(cluster: &Rest, wanted: &Wanted<'_>) -> Result<Value, Error> {
    let required = required(wanted);
    let (live, created) = find_or_create(cluster, wanted, &required).await?;
    if created { Ok(live) } else { ensure_owner(cluster, wanted, live).await }
}

/// Only the owner reference, and only if it differs.
async fn ensure_owner(cluster: &Rest, wanted: &Wanted<'_>, live: Value) -> Result<Value, Error> {
    let mut metadata = live.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut owner = wanted.owner.clone();
    if !wanted.owned {
        owner["uid"] = format!("{}-", merge::text(&owner, "uid")).into();
    }
    if !merge::merge_owner(&mut metadata, &owner) {
        return Ok(live);
    }
    let patch = json!({"metadata": {"uid": metadata.get("uid"), "resourceVersion": metadata.get("resourceVersion"),
        "ownerReferences": metadata.get("ownerReferences").cloned().unwrap_or_else(|| json!([]))}});
    cluster.merge(wanted.gvr, wanted.namespace, wanted.name, &patch).await
}

async fn server_side(cluster: &Rest, wanted: &Wanted<'_>) -> Result<Value, Failure> {
    let config = wanted.treatment.strategy.server_side_apply.clone().unwrap_or_default();
    let manager = if config.field_manager.is_empty() { "work-agent" } else { &config.field_manager };
    let mut object = wanted.manifest.clone();
    strip_null_times(&mut object);
    for ignore in &config.ignore_fields {
        if !ignore.json_paths.is_empty() || !ignore.jq_path_expressions.is_empty() {
            return Err(Failure::IgnoreFields("only jsonPointers are supported".into()));
        }
        let present = ignore.condition != "OnSpokeChange"
            && cluster.find::<Value>(wanted.gvr, wanted.namespace, wanted.name).await?.is_some();
        if present {
            for pointer in &ignore.json_pointers {
                remove_pointer(&mut object, pointer);
            }
        }
    }
    let applied: Result<Value, Error> =
        cluster.apply(wanted.gvr, wanted.namespace, wanted.name, &object, manager, config.force).await;
    let live = match applied {
        Ok(live) => live,
        Err(error) if is_conflict(&error) => return Err(Failure::Settled(message_of(&error))),
        Err(error) => return Err(error.into()),
    };
    Ok(ensure_owner(cluster, wanted, live).await?)
}

/// A null creationTimestamp would raise the generation with every apply (OCM-082).
fn strip_null_times(value: &mut Value) {
    match value {
        Value::Object(members) => {
            if members.get("creationTimestamp").is_some_and(Value::is_null) {
                members.remove("creationTimestamp");
            }
            members.values_mut().for_each(strip_null_times);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_null_times),
        _ => {}
    }
}

fn remove_pointer(object: &mut Value, pointer: &str) {
    let Some((parent, key)) = pointer.rsplit_once('/') else { return };
    let key = key.replace("~1", "/").replace("~0", "~");
    match object.pointer_mut(parent) {
        Some(Value::Object(members)) => {
            members.remove(&key);
        }
        Some(Value::Array(items)) => {
            if let Ok(index) = key.parse::<usize>()
                && index < items.len()
            {
                items.remove(index);
            }
        }
        _ => {}
    }
}
