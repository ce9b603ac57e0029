//! Applies one manifest to the cluster, by its strategy (OCM-078 … OCM-083).

use std::time::Duration;

use apis::{
    constants::CONFIG_SPEC_HASH_ANNOTATION,
    ocm::work::{STRATEGY_CREATE_ONLY, STRATEGY_READ_ONLY, STRATEGY_SERVER_SIDE_APPLY},
};
use kube::Error;
use runtime::{
    backoff::jittered,
    failure::{code_of, is_clash, is_not_found, message_of, status_of},
    rest::{Gvr, Removal, Rest},
};
use serde_json::{Value, json};

use super::{
    ignore, leftover,
    merge::{self, Verdict},
    rules::Treatment,
};

/// One manifest, resolved.
pub(crate) struct DesiredObject<'a> {
    pub(crate) gvr: &'a Gvr,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) manifest: &'a Value,
    pub(crate) treatment: &'a Treatment,
    /// The owner reference to the AppliedManifestWork.
    pub(crate) owner: &'a Value,
    pub(crate) owned: bool,
    /// The object is known to exist: read before creating.
    pub(crate) exists: bool,
    /// Another work may hold the object, too.
    pub(crate) shared: bool,
}

/// The object after a manifest was applied.
pub(crate) struct Live {
    pub(crate) object: Value,
    /// What this agent wrote in that version.
    pub(crate) wrote: Wrote,
}

/// What a request of this agent changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wrote {
    /// Nothing.
    Nothing,
    /// The content of the manifest.
    Content,
    /// Only the owners, starting from this version.
    Owners(String),
}

/// Why a manifest was not applied.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Temporary; retry soon.
    Again(String),
    /// As above; the agent has no permission.
    Forbidden(String),
    /// The resource is not served, or the object's namespace does not exist.
    Missing(String),
    /// It is not known whether the request was executed.
    Unanswered(String),
    /// Only a change of the work or the periodic pass helps (a server-side apply conflict).
    Settled(String),
    /// The executor has no permission.
    Denied(String),
    /// The fields to ignore could not be computed.
    IgnoreFields(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match code_of(&error) {
            403 => Self::Forbidden(message_of(&error)),
            404 => Self::Missing(message_of(&error)),
            0 => Self::Unanswered(message_of(&error)),
            _ => Self::Again(message_of(&error)),
        }
    }
}

const ATTEMPTS: u32 = 4;

/// Applies a manifest and returns the live object; `None` only for a ReadOnly object that does not exist.
pub(crate) async fn apply(cluster: &Rest, wanted: &DesiredObject<'_>) -> Result<Option<Live>, Failure> {
    if let Some(conflict) = merge::secret_conflict(wanted.manifest) {
        return Err(Failure::Settled(conflict));
    }
    let mut pause = Duration::from_millis(10);
    for attempt in 1.. {
        let outcome = match wanted.treatment.strategy.type_.as_str() {
            STRATEGY_READ_ONLY => {
                let found = cluster.find(wanted.gvr, wanted.namespace, wanted.name).await?;
                return Ok(found.map(|object| Live { object, wrote: Wrote::Nothing }));
            }
            STRATEGY_CREATE_ONLY => create_only(cluster, wanted).await,
            STRATEGY_SERVER_SIDE_APPLY => return server_side(cluster, wanted).await.map(Some),
            _ => update(cluster, wanted).await,
        };
        match outcome {
            Ok(live) => return Ok(Some(live)),
            // Another client wrote between our read and our write.
            Err(error) if is_clash(&error) && attempt < ATTEMPTS => {
                tokio::time::sleep(jittered(pause)).await;
                pause *= 5;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Returns the manifest with the owner reference to add or to remove.
fn required(wanted: &DesiredObject<'_>) -> Value {
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

async fn create(cluster: &Rest, wanted: &DesiredObject<'_>, required: &Value) -> Result<Live, Error> {
    let body = serde_json::to_vec(&merge::to_create(required)).map_err(Error::SerdeError)?;
    let object = cluster.create(wanted.gvr, wanted.namespace, body).await?;
    Ok(Live { object, wrote: Wrote::Content })
}

/// An object that was created or that existed already.
enum FoundOrCreated {
    /// The object did not exist and was created.
    Created(Live),
    /// The object as it existed.
    Existing(Value),
}

/// Creates the object unless it exists.
async fn find_or_create(
    cluster: &Rest,
    wanted: &DesiredObject<'_>,
    required: &Value,
) -> Result<FoundOrCreated, Error> {
    if !wanted.exists {
        match create(cluster, wanted, required).await {
            Ok(created) => return Ok(FoundOrCreated::Created(created)),
            Err(error) if is_clash(&error) => {}
            Err(error) => return Err(error),
        }
    }
    match cluster.find(wanted.gvr, wanted.namespace, wanted.name).await? {
        Some(live) => Ok(FoundOrCreated::Existing(live)),
        None => create(cluster, wanted, required).await.map(FoundOrCreated::Created),
    }
}

async fn update(cluster: &Rest, wanted: &DesiredObject<'_>) -> Result<Live, Error> {
    let required = required(wanted);
    let live = match find_or_create(cluster, wanted, &required).await? {
        FoundOrCreated::Created(created) => return Ok(created),
        FoundOrCreated::Existing(live) => live,
    };
    let mut required = required;
    if !wanted.shared {
        leftover::request_removal(&mut required, &live, wanted.owner);
    }
    match merge::update(&required, &live) {
        Verdict::Equal => Ok(Live { object: live, wrote: Wrote::Nothing }),
        Verdict::Replace(object) => {
            let body = object.to_string().into_bytes();
            let object = cluster.replace(wanted.gvr, wanted.namespace, wanted.name, body).await?;
            Ok(Live { object, wrote: Wrote::Content })
        }
        Verdict::Recreate => {
            let uid = live.pointer("/metadata/uid").and_then(Value::as_str).map(str::to_owned);
            let removal = Removal { uid, propagation: None };
            match cluster.delete(wanted.gvr, wanted.namespace, wanted.name, &removal).await {
                Err(error) if !is_not_found(&error) => return Err(error),
                _ => {}
            }
            create(cluster, wanted, &required).await
        }
    }
}

async fn create_only(cluster: &Rest, wanted: &DesiredObject<'_>) -> Result<Live, Error> {
    let required = required(wanted);
    match find_or_create(cluster, wanted, &required).await? {
        FoundOrCreated::Created(created) => Ok(created),
        FoundOrCreated::Existing(live) => ensure_owner(cluster, wanted, live).await,
    }
}

/// Writes the owner reference, if it differs, and nothing else.
async fn ensure_owner(cluster: &Rest, wanted: &DesiredObject<'_>, live: Value) -> Result<Live, Error> {
    let mut metadata = live.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut owner = wanted.owner.clone();
    if !wanted.owned {
        owner["uid"] = format!("{}-", merge::text(&owner, "uid")).into();
    }
    if !merge::merge_owner(&mut metadata, &owner) {
        return Ok(Live { object: live, wrote: Wrote::Nothing });
    }
    let patch = json!({"metadata": {"uid": metadata.get("uid"), "resourceVersion": metadata.get("resourceVersion"),
        "ownerReferences": metadata.get("ownerReferences").cloned().unwrap_or_else(|| json!([]))}});
    let base = metadata.get("resourceVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
    let object = cluster.merge(wanted.gvr, wanted.namespace, wanted.name, &patch).await?;
    Ok(Live { object, wrote: Wrote::Owners(base) })
}

async fn server_side(cluster: &Rest, wanted: &DesiredObject<'_>) -> Result<Live, Failure> {
    let config = wanted.treatment.strategy.server_side_apply.clone().unwrap_or_default();
    let manager = if config.field_manager.is_empty() { "work-agent" } else { &config.field_manager };
    let mut object = applicable(wanted);
    if !config.ignore_fields.is_empty() {
        let mut reduced = object.clone();
        ignore::reduce(&mut reduced, &config.ignore_fields).map_err(Failure::IgnoreFields)?;
        let print = ignore::fingerprint(&reduced);
        let live: Option<Value> = cluster.find(wanted.gvr, wanted.namespace, wanted.name).await?;
        if let Some(live) = live {
            let known =
                live.pointer("/metadata/annotations").and_then(|a| a.get(CONFIG_SPEC_HASH_ANNOTATION));
            if known.and_then(Value::as_str) == Some(&print) {
                // The applied manifest is unchanged: differences in the ignored fields are left to the
                // cluster.
                return Ok(ensure_owner(cluster, wanted, live).await?);
            }
            object = reduced;
        }
        annotate(&mut object, &print);
    }
    let applied: Result<Value, Error> =
        cluster.apply(wanted.gvr, wanted.namespace, wanted.name, &object, manager, config.force).await;
    let live = match applied {
        Ok(live) => live,
        Err(error) if is_field_conflict(&error) => return Err(Failure::Settled(message_of(&error))),
        Err(error) => return Err(error.into()),
    };
    // Other clients may write the owners, too: a conflict is retried.
    let mut live = live;
    for attempt in 1.. {
        match ensure_owner(cluster, wanted, live).await {
            Ok(done) => return Ok(Live { object: done.object, wrote: Wrote::Content }),
            Err(error) if is_clash(&error) && attempt < ATTEMPTS => {
                live = cluster.get(wanted.gvr, wanted.namespace, wanted.name).await?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(Failure::Again("the owner could not be written".into()))
}

/// Returns whether another manager owns the fields; any other conflict is a lost race.
fn is_field_conflict(error: &Error) -> bool {
    let details = status_of(error).and_then(|status| status.details.as_ref());
    is_clash(error)
        && details.is_some_and(|d| d.causes.iter().any(|cause| cause.reason == "FieldManagerConflict"))
}

/// Returns the part of the manifest that can be applied.
fn applicable(wanted: &DesiredObject<'_>) -> Value {
    let mut object = wanted.manifest.clone();
    strip_null_times(&mut object);
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for servers in ["uid", "resourceVersion", "managedFields", "selfLink", "generation"] {
            metadata.remove(servers);
        }
        if wanted.namespace.is_empty() {
            metadata.remove("namespace");
        }
    }
    object
}

fn annotate(object: &mut Value, print: &str) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    if annotations.is_null() {
        *annotations = json!({});
    }
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(CONFIG_SPEC_HASH_ANNOTATION.into(), print.into());
    }
}

/// A null creationTimestamp would increase the generation with every apply (OCM-082).
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
