//! PUT, and the optimistic update loop that PUT, PATCH and apply share: read, change, check, write, retry on conflict.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use machinery::{field, managed};
use serde_json::Value;
use store::{Entry, Expect};

use super::create::{self, Tracking, writer};
use super::metadata;
use super::object::{finalizers, is_terminating, meta, meta_str, set_meta};
use super::read::to_storage;
use super::store_access::{CommitError, LiveLookup, WRITE_ATTEMPTS, put as store_put, remove};
use super::{Presenter, RequestContext, output};
use crate::codec::decode::{Decoder, body_format};
use crate::encode;
use crate::error::ApiError;
use crate::request::WriteOptions;
use crate::response::Body;
use crate::strategy::{Generation, WriteContext};

/// The kind of update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Put,
    Patch,
    Apply,
}

/// Computes the new object from the stored one.
pub(crate) type Produce<'p> =
    dyn Fn(&mut RequestContext<'_>, Option<&Value>) -> Result<Value, ApiError> + Send + Sync + 'p;

/// One update.
pub(crate) struct Update<'u> {
    pub name: &'u str,
    pub subresource: Option<&'u str>,
    pub options: &'u WriteOptions,
    pub mode: Mode,
    pub tracking: Tracking,
    /// Called at each attempt, with the object that is stored now; `None` if there is none.
    pub produce: &'u Produce<'u>,
}

/// PUT of an object or through a subresource.
pub(crate) async fn put(
    cx: &mut RequestContext<'_>,
    body: &[u8],
    subresource: Option<&str>,
) -> Result<Response<Body>, ApiError> {
    let media = cx.media_of(false)?;
    let options = WriteOptions::parse(cx.query, cx.user_agent, "UpdateOptions", false)?;
    let format = body_format(cx.headers, cx.descriptor.is_custom())?;
    let decoder = Decoder { catalog: cx.catalog, descriptor: cx.descriptor, validation: options.validation };
    let mut object = decoder.object(body, format, &mut cx.warnings)?;
    let name = cx.info.path_name().to_owned();
    metadata::match_name(&mut object, &name, true)?;
    metadata::match_namespace(cx, &mut object)?;
    let produce = move |_: &mut RequestContext<'_>, _: Option<&Value>| Ok(object.clone());
    let update = Update {
        name: &name,
        subresource,
        options: &options,
        mode: Mode::Put,
        tracking: Tracking::Update,
        produce: &produce,
    };
    let (status, text) = run(cx, &update).await?;
    output::object(cx, status, media, text)
}

/// The result of one attempt.
enum AttemptResult {
    Done(Bytes),
    /// Another write came first.
    Lost,
}

/// Repeats read, change and write until the write succeeds or is refused.
pub(crate) async fn run(
    cx: &mut RequestContext<'_>,
    update: &Update<'_>,
) -> Result<(StatusCode, Bytes), ApiError> {
    let warned = cx.warnings.len();
    let allocates = cx.descriptor.strategy.facts().allocates;
    for _ in 0..WRITE_ATTEMPTS {
        cx.warnings.truncate(warned);
        let Ok(entry) = cx.stored(update.name) else {
            let text = create_absent(cx, update).await?;
            return Ok((StatusCode::CREATED, text));
        };
        let _turn = if allocates { Some(cx.state.allocation.lock().await) } else { None };
        match attempt(cx, update, &entry).await? {
            AttemptResult::Done(text) => return Ok((StatusCode::OK, text)),
            AttemptResult::Lost => {}
        }
    }
    Err(cx.modified(update.name))
}

/// Creates an absent object on PUT and apply, if the kind allows it.
async fn create_absent(cx: &mut RequestContext<'_>, update: &Update<'_>) -> Result<Bytes, ApiError> {
    let d = cx.descriptor.clone();
    let allowed = update.subresource.is_none()
        && match update.mode {
            Mode::Put => d.strategy.facts().create_on_update,
            Mode::Patch => false,
            Mode::Apply => true,
        };
    if !allowed {
        return Err(cx.not_found(update.name));
    }
    let object = (update.produce)(cx, None)?;
    cx.authorize("create")?;
    if update.mode == Mode::Put {
        if metadata::expected_revision(&object)?.is_some() {
            return Err(cx.modified(update.name));
        }
        let uid = meta_str(&object, "uid");
        if !uid.is_empty() {
            return Err(metadata::uid_conflict(cx, update.name, uid, ""));
        }
        return create::store_new(cx, without_revision(object), update.options, Tracking::Update).await;
    }
    create::store_new(cx, object, update.options, Tracking::Applied).await
}

fn without_revision(mut object: Value) -> Value {
    super::object::remove_meta(&mut object, "resourceVersion");
    object
}

async fn attempt(
    cx: &mut RequestContext<'_>,
    update: &Update<'_>,
    entry: &Arc<Entry>,
) -> Result<AttemptResult, ApiError> {
    let d = cx.descriptor.clone();
    let presenter = Presenter::new(&d);
    let live = presenter.value(entry)?;
    cx.cancellation_point().await;
    let mut new = (update.produce)(cx, Some(&live))?;
    cx.cancellation_point().await;
    metadata::match_name(&mut new, update.name, true)?;
    metadata::match_namespace(cx, &mut new)?;
    check_identity(cx, update, &new, &live)?;
    let pinned = check_version(cx, update, &new, entry)?;
    set_meta(&mut new, "resourceVersion", entry.revision.to_string().into());
    prepare(cx, update, &mut new, &live).await?;
    if new == live {
        return Ok(AttemptResult::Done(presenter.present(entry)));
    }
    let outcome = if is_finished(cx, &new, &live) {
        remove_finished(cx, update, &new, entry).await
    } else {
        store_changed(cx, update, &new, entry, &presenter).await
    };
    match outcome {
        Ok(text) => Ok(AttemptResult::Done(text)),
        Err(CommitError::Conflict(_)) if pinned => Err(cx.modified(update.name)),
        Err(CommitError::Conflict(_)) => Ok(AttemptResult::Lost),
        Err(CommitError::Other(error)) => Err(error),
    }
}

fn check_identity(
    cx: &RequestContext<'_>,
    update: &Update<'_>,
    new: &Value,
    live: &Value,
) -> Result<(), ApiError> {
    let (given, actual) = (meta_str(new, "uid"), meta_str(live, "uid"));
    if update.mode == Mode::Put && !given.is_empty() && given != actual {
        return Err(metadata::uid_conflict(cx, update.name, given, actual));
    }
    Ok(())
}

/// Checks the resourceVersion that the write requires. Returns whether the write must fail instead of being retried on
/// another version.
fn check_version(
    cx: &RequestContext<'_>,
    update: &Update<'_>,
    new: &Value,
    entry: &Entry,
) -> Result<bool, ApiError> {
    let d = cx.descriptor;
    match metadata::expected_revision(new)? {
        Some(expected) if expected != entry.revision.0 => Err(cx.modified(update.name)),
        Some(_) => Ok(update.mode == Mode::Put),
        None if update.mode == Mode::Put && (d.is_custom() || !d.strategy.facts().unconditional_update) => {
            let error = field::Error {
                field: "metadata.resourceVersion".into(),
                body: "Invalid value: 0: must be specified for an update".into(),
                reason: "FieldValueInvalid",
            };
            Err(ApiError::invalid(&d.group, &d.plural, update.name, &[error]))
        }
        None => Ok(false),
    }
}

/// Tracks field ownership, sets the fields that the server sets, and validates.
async fn prepare(
    cx: &mut RequestContext<'_>,
    update: &Update<'_>,
    new: &mut Value,
    live: &Value,
) -> Result<(), ApiError> {
    let d = cx.descriptor.clone();
    metadata::dedup_owners(new, &mut cx.warnings);
    metadata::keep_old(new, live);
    if update.tracking == Tracking::Update {
        let who = writer(cx, update.options, update.subresource);
        managed::track_update(&d.schema, Some(live), new, &who);
    }
    let owned = meta(new, "managedFields").cloned();
    let store = cx.store;
    let lookup = LiveLookup(store);
    let context = WriteContext {
        user: cx.user,
        now: &cx.now,
        namespace: cx.namespace(),
        dry_run: update.options.dry_run,
        lookup: &lookup,
        settings: &cx.state.config.kinds,
    };
    match update.subresource {
        None => d.strategy.prepare_update(&context, new, live)?,
        Some(subresource) => d.strategy.prepare_subresource_update(&context, subresource, new, live)?,
    }
    create::admit(cx, &lookup, update.subresource, new, Some(live))?;
    match owned {
        Some(owned) => set_meta(new, "managedFields", owned),
        None => super::object::remove_meta(new, "managedFields"),
    }
    if d.strategy.generation() == Generation::Managed {
        let moved = i64::from(d.strategy.spec_changed(new, live));
        metadata::set_generation(new, metadata::generation(live) + moved);
    }
    if !d.is_custom() {
        d.schema.normalise(new);
        d.schema.store_form(new);
    }
    let mut errors = metadata::validate_update(cx, new, live);
    cx.cancellation_point().await;
    errors.extend(create::validate_content(cx, new, Some(live), update.subresource).await?);
    cx.cancellation_point().await;
    errors.extend(d.strategy.validate_update(&context, update.subresource, new, live));
    let warnings = match update.subresource {
        None => create::warnings(&context, &*d.strategy, new, Some(live)),
        Some(_) => Vec::new(),
    };
    let authorizer = &cx.state.config.authorizer;
    d.strategy.check_escalation(authorizer, cx.user, new, Some(live))?;
    create::refuse_invalid(&d, new, &errors)?;
    cx.warnings.extend(warnings);
    d.strategy.authorize_update(authorizer, cx.user, update.subresource, new, live)
}

/// Whether nothing keeps the deleted object after this update.
fn is_finished(cx: &RequestContext<'_>, new: &Value, live: &Value) -> bool {
    let no_grace = meta(live, "deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0) == 0;
    is_terminating(live)
        && no_grace
        && finalizers(new).is_empty()
        && !cx.descriptor.strategy.awaits_finalize(new)
}

async fn remove_finished(
    cx: &RequestContext<'_>,
    update: &Update<'_>,
    new: &Value,
    entry: &Entry,
) -> Result<Bytes, CommitError> {
    let d = cx.descriptor;
    if !update.options.dry_run {
        let last = encode::encode(&to_storage(d, new), &d.storage_api_version, &d.kind);
        remove(cx.store, entry.key.clone(), Expect::At(entry.revision), last).await?;
    }
    Ok(encode::text(new, &d.api_version(), &d.kind))
}

async fn store_changed(
    cx: &RequestContext<'_>,
    update: &Update<'_>,
    new: &Value,
    entry: &Entry,
    presenter: &Presenter,
) -> Result<Bytes, CommitError> {
    let d = cx.descriptor;
    if update.options.dry_run {
        return Ok(encode::text(new, &d.api_version(), &d.kind));
    }
    let encoded = encode::encode(&to_storage(d, new), &d.storage_api_version, &d.kind);
    let stored = store_put(cx.store, entry.key.clone(), Expect::At(entry.revision), encoded).await?;
    Ok(presenter.present(&stored))
}
