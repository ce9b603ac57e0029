//! POST of new objects (spec 5.1).

use bytes::Bytes;
use http::{Response, StatusCode};
use machinery::schema::Schema;
use machinery::{field, managed, rules};
use serde_json::Value;
use store::Expect;

use super::metadata;
use super::object::{meta_str, remove_meta};
use super::read::to_storage;
use super::store_access::{CommitError, LiveLookup, key, put};
use super::{Presenter, RequestContext, output};
use crate::admission::AdmissionRequest;
use crate::codec::decode::{Decoder, body_format};
use crate::descriptor::{Descriptor, Subresource};
use crate::encode;
use crate::error::{ApiError, Reason};
use crate::request::WriteOptions;
use crate::response::Body;
use crate::strategy::{Generation, Generic, Strategy, WriteContext};

/// How many generated names are tried.
const NAME_ATTEMPTS: usize = 8;

/// POST on a collection.
pub(crate) async fn create(cx: &mut RequestContext<'_>, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let media = cx.media_of(false)?;
    let options = WriteOptions::parse(cx.query, cx.user_agent, "CreateOptions", false)?;
    let format = body_format(cx.headers, cx.descriptor.is_custom())?;
    let decoder = Decoder { catalog: cx.catalog, descriptor: cx.descriptor, validation: options.validation };
    let object = decoder.object(body, format, &mut cx.warnings)?;
    let text = store_new(cx, object, &options, Tracking::Update).await?;
    output::object(cx, StatusCode::CREATED, media, text)
}

/// How field ownership of the written object is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tracking {
    /// By comparison with the stored object: the writer owns what it changed.
    Update,
    /// The object has its final managedFields already (apply).
    Applied,
}

/// Prepares, checks and stores a decoded new object. Returns its text as served.
pub(crate) async fn store_new(
    cx: &mut RequestContext<'_>,
    mut object: Value,
    options: &WriteOptions,
    tracking: Tracking,
) -> Result<Bytes, ApiError> {
    refuse_terminating(cx, &object)?;
    metadata::match_namespace(cx, &mut object)?;
    let revision = meta_str(&object, "resourceVersion").to_owned();
    // In Kubernetes the store makes this check, and a dry run does not reach the store.
    if tracking == Tracking::Update && !options.dry_run && revision.parse::<u64>().is_ok_and(|n| n != 0) {
        let message = "resourceVersion should not be set on objects to be created";
        return Err(ApiError::new(500, Reason::Unknown, message));
    }
    metadata::check_namespace(cx, meta_str(&object, "name"))?;
    metadata::dedup_owners(&mut object, &mut cx.warnings);
    metadata::fill_new(&mut object, &cx.now);
    if tracking == Tracking::Update {
        managed::track_update(&cx.descriptor.schema, None, &mut object, &writer(cx, options, None));
    }
    // Two writes must not allocate the same value (cluster IP, node port).
    let _turn =
        if cx.descriptor.strategy.facts().allocates { Some(cx.state.allocation.lock().await) } else { None };
    if meta_str(&object, "generateName").is_empty() || !meta_str(&object, "name").is_empty() {
        prepare_new(cx, &mut object, options).await?;
        return commit_new(cx, &object, options).await;
    }
    for _ in 0..NAME_ATTEMPTS {
        let mut candidate = object.clone();
        metadata::generate_name(&mut candidate);
        prepare_new(cx, &mut candidate, options).await?;
        match commit_new(cx, &candidate, options).await {
            Err(error) if error.reason == Reason::AlreadyExists => {}
            outcome => return outcome,
        }
    }
    let d = cx.descriptor;
    let mut error = ApiError::already_exists(&d.group, &d.plural, meta_str(&object, "generateName"));
    error.message.push_str(", the server was not able to generate a unique name for the object");
    if let Some(details) = error.details.as_mut() {
        details.retry_after_seconds = Some(1);
    }
    Err(error)
}

fn refuse_terminating(cx: &RequestContext<'_>, object: &Value) -> Result<(), ApiError> {
    match &cx.descriptor.custom {
        Some(custom) if custom.terminating => Err(cx.forbidden(
            meta_str(object, "name"),
            "create not allowed while custom resource definition is terminating",
        )),
        _ => Ok(()),
    }
}

/// Sets the fields that the server sets, and validates.
async fn prepare_new(
    cx: &mut RequestContext<'_>,
    object: &mut Value,
    options: &WriteOptions,
) -> Result<(), ApiError> {
    let d = cx.descriptor.clone();
    let store = cx.store;
    let lookup = LiveLookup(store);
    let context = WriteContext {
        user: cx.user,
        now: &cx.now,
        namespace: cx.namespace(),
        dry_run: options.dry_run,
        lookup: &lookup,
        settings: &cx.state.config.kinds,
    };
    d.strategy.prepare_create(&context, object)?;
    admit(cx, &lookup, None, object, None)?;
    if d.strategy.generation() == Generation::Managed {
        metadata::set_generation(object, 1);
    }
    if !d.is_custom() {
        d.schema.normalise(object);
        d.schema.store_form(object);
    }
    let mut errors = metadata::validate_create(cx, object);
    cx.cancellation_point().await;
    errors.extend(validate_content(cx, object, None, None).await?);
    cx.cancellation_point().await;
    errors.extend(d.strategy.validate_create(&context, object));
    let warnings = warnings(&context, &*d.strategy, object, None);
    d.strategy.check_escalation(&cx.state.config.authorizer, cx.user, object, None)?;
    refuse_invalid(&d, object, &errors)?;
    cx.warnings.extend(warnings);
    Ok(())
}

/// The texts for the warnings of a write.
pub(crate) fn warnings(
    context: &WriteContext<'_>,
    strategy: &dyn Strategy,
    object: &Value,
    old: Option<&Value>,
) -> Vec<String> {
    let mut warnings = strategy.warnings(object, old);
    if context.settings.unenforced_warnings {
        warnings.extend(strategy.unenforced(object, old));
    }
    warnings
}

/// Calls the admission of the control plane, if there is one.
pub(crate) fn admit(
    cx: &RequestContext<'_>,
    lookup: &LiveLookup<'_>,
    subresource: Option<&str>,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    let Some(admission) = &cx.state.config.admission else { return Ok(()) };
    let request = AdmissionRequest {
        user: cx.user,
        group: &cx.descriptor.group,
        plural: &cx.descriptor.plural,
        subresource,
        namespace: cx.namespace(),
        now: &cx.now,
        lookup,
        authorizer: &cx.state.config.authorizer,
    };
    admission.admit(&request, object, old)
}

/// Validates a custom resource by schema and rules; with `status` only its status. The cost of rules does not depend
/// on the size of the object: they are heavy work if any rule applies to the object, or if they are not compiled yet.
pub(crate) async fn validate_content(
    cx: &RequestContext<'_>,
    object: &Value,
    old: Option<&Value>,
    subresource: Option<&str>,
) -> Result<Vec<field::Error>, ApiError> {
    let d = cx.descriptor;
    if !d.is_custom() {
        return Ok(Vec::new());
    }
    if subresource == Some("status")
        && let (Some(schema), Some(status)) = (d.schema.field("status"), object.get("status"))
    {
        let old = old.and_then(|old| old.get("status"));
        return validate(cx, &schema, status, old, Some("status")).await;
    }
    validate(cx, &d.schema, object, old, None).await
}

async fn validate(
    cx: &RequestContext<'_>,
    schema: &Schema,
    new: &Value,
    old: Option<&Value>,
    part: Option<&'static str>,
) -> Result<Vec<field::Error>, ApiError> {
    let quick = || schema.is_prepared() && !rules::any_applies(schema, new, old);
    if cx.on_worker_thread || quick() {
        return Ok(rules::validate_object(schema, new, old, part));
    }
    let (schema, new, old) = (schema.clone(), new.clone(), old.cloned());
    let run = move || {
        schema.prepare();
        rules::validate_object(&schema, &new, old.as_ref(), part)
    };
    // The queue is bounded by the limit of requests in flight.
    Ok(cx.state.work.run(cx.client, usize::MAX, run).await?)
}

pub(crate) fn refuse_invalid(
    d: &Descriptor,
    object: &Value,
    errors: &[field::Error],
) -> Result<(), ApiError> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(&d.group, &d.kind, meta_str(object, "name"), errors))
}

async fn commit_new(
    cx: &RequestContext<'_>,
    object: &Value,
    options: &WriteOptions,
) -> Result<Bytes, ApiError> {
    let d = cx.descriptor;
    let store = cx.store;
    let key = key(d, cx.namespace(), meta_str(object, "name"));
    if options.dry_run {
        if let Some(entry) = store.snapshot().get(&key) {
            return Err(exists(cx, object, &entry.value));
        }
        let mut shown = object.clone();
        remove_meta(&mut shown, "resourceVersion");
        return Ok(encode::text(&shown, &d.api_version(), &d.kind));
    }
    let encoded = encode::encode(&to_storage(d, object), &d.storage_api_version, &d.kind);
    match put(store, key, Expect::Absent, encoded).await {
        Ok(entry) => Ok(Presenter::new(d).present(&entry)),
        Err(CommitError::Conflict(actual)) => {
            let text = actual.map(|entry| entry.value.clone()).unwrap_or_default();
            Err(exists(cx, object, &text))
        }
        Err(CommitError::Other(error)) => Err(error),
    }
}

fn exists(cx: &RequestContext<'_>, object: &Value, live: &[u8]) -> ApiError {
    let d = cx.descriptor;
    let mut error = ApiError::already_exists(&d.group, &d.plural, meta_str(object, "name"));
    let terminating =
        serde_json::from_slice::<Value>(live).is_ok_and(|live| super::object::is_terminating(&live));
    if terminating {
        error.message.insert_str(0, "object is being deleted: ");
    }
    error
}

/// The field manager that becomes the owner of the fields that this request writes.
pub(crate) fn writer(
    cx: &RequestContext<'_>,
    options: &WriteOptions,
    subresource: Option<&str>,
) -> managed::Writer {
    managed::Writer {
        manager: options.manager.clone(),
        operation: managed::Operation::Update,
        api_version: cx.descriptor.api_version(),
        subresource: subresource.unwrap_or_default().to_owned(),
        now: cx.now.clone(),
        reset: cx.descriptor.strategy.reset_fields(subresource),
    }
}

/// A descriptor with the kind of a subresource, for decoding its bodies.
pub(crate) fn subresource_descriptor(
    d: &Descriptor,
    sub: &Subresource,
    definition: &str,
) -> Option<Descriptor> {
    let schema = crate::builtin::definitions()?.schema(definition)?;
    Some(Descriptor {
        group: sub.group.clone(),
        version: sub.version.clone(),
        kind: sub.kind.clone(),
        schema,
        strategy: std::sync::Arc::new(Generic),
        custom: None,
        ..d.clone()
    })
}

/// Decodes the body of a request whose answer is not stored.
pub(crate) fn decode_unstored(
    cx: &mut RequestContext<'_>,
    d: &Descriptor,
    body: &[u8],
    subresource: Option<&str>,
) -> Result<Value, ApiError> {
    let options = WriteOptions::parse(cx.query, cx.user_agent, "CreateOptions", false)?;
    let format = body_format(cx.headers, false)?;
    let decoder = Decoder { catalog: cx.catalog, descriptor: d, validation: options.validation };
    let mut object = decoder.object(body, format, &mut cx.warnings)?;
    let mut who = writer(cx, &options, subresource);
    who.api_version = d.api_version();
    managed::track_update(&d.schema, None, &mut object, &who);
    Ok(object)
}

/// Decodes the body of a review for [`crate::reviews::answer`].
pub(crate) fn decode_review(cx: &mut RequestContext<'_>, body: &[u8]) -> Result<Value, ApiError> {
    let d = cx.descriptor.clone();
    let mut object = decode_unstored(cx, &d, body, None)?;
    metadata::match_namespace(cx, &mut object)?;
    Ok(object)
}
