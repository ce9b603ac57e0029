//! DELETE of one object and of collections (spec 3.5).

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::{SignedDuration, Timestamp};
use machinery::time;
use serde_json::{Value, json};
use store::{Entry, Expect};

use super::delete_options::DeleteOptions;
use super::list::{self, Selection};
use super::metadata;
use super::object::{finalizers, is_terminating, meta, meta_str, set_meta};
use super::read::to_storage;
use super::store_access::{CommitError, LiveLookup, WRITE_ATTEMPTS, put, remove};
use super::{Presenter, RequestContext, output};
use crate::codec::negotiate::Endpoint;
use crate::encode;
use crate::error::ApiError;
use crate::request::ListOptions;
use crate::response::Body;
use crate::strategy::WriteContext;

/// How many objects of a collection are deleted concurrently.
const CONCURRENT_DELETES: usize = 64;
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// The result of a delete.
pub(super) enum DeleteOutcome {
    Gone {
        last: Bytes,
        uid: String,
    },
    /// The object stays, marked as deleted, until its finalizers are removed and its grace period is over.
    Pending(Bytes),
}

/// DELETE of one object.
pub(crate) async fn delete(cx: &mut RequestContext<'_>, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let media = cx.media_of(false)?;
    let options = DeleteOptions::parse(cx, body)?;
    warn_unpropagated(cx, &options);
    let name = cx.info.path_name().to_owned();
    let d = cx.descriptor.clone();
    match delete_one(cx, &name, &options).await? {
        DeleteOutcome::Pending(text) => {
            let accepted = options.orphan_dependents == Some(false);
            let status = if accepted { StatusCode::ACCEPTED } else { StatusCode::OK };
            output::object(cx, status, media, text)
        }
        DeleteOutcome::Gone { last, .. } if d.strategy.facts().returns_deleted => {
            output::object(cx, StatusCode::OK, media, last)
        }
        DeleteOutcome::Gone { uid, .. } => {
            let mut details = json!({ "name": name, "kind": d.plural, "uid": uid });
            if let (false, Some(map)) = (d.group.is_empty(), details.as_object_mut()) {
                map.insert("group".into(), d.group.clone().into());
            }
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
            });
            let media = cx.media(Endpoint::Plain)?;
            output::finish(StatusCode::OK, media, encode::status_bytes(&status).into())
        }
    }
}

fn warn_unpropagated(cx: &mut RequestContext<'_>, options: &DeleteOptions) {
    if options.policy.is_none() && options.orphan_dependents.is_none() {
        cx.warnings.extend(cx.descriptor.strategy.facts().unpropagated_delete.map(str::to_owned));
    }
}

pub(super) async fn delete_one(
    cx: &RequestContext<'_>,
    name: &str,
    options: &DeleteOptions,
) -> Result<DeleteOutcome, ApiError> {
    let d = cx.descriptor;
    if let Some(why) = d.strategy.refuse_deletion(name) {
        return Err(cx.forbidden(name, why));
    }
    for _ in 0..WRITE_ATTEMPTS {
        let entry = cx.stored(name)?;
        match attempt(cx, &entry, options).await {
            Ok(outcome) => return Ok(outcome),
            Err(CommitError::Conflict(_)) => {}
            Err(CommitError::Other(error)) => return Err(error),
        }
    }
    Err(cx.modified(name))
}

async fn attempt(
    cx: &RequestContext<'_>,
    entry: &Arc<Entry>,
    options: &DeleteOptions,
) -> Result<DeleteOutcome, CommitError> {
    let presenter = Presenter::new(cx.descriptor);
    let live = presenter.value(entry).map_err(CommitError::Other)?;
    preconditions(cx, &live, options).map_err(CommitError::Other)?;
    let (marked, stays) = mark_deleted(cx, &live, options).map_err(CommitError::Other)?;
    if stays && marked == live {
        return Ok(DeleteOutcome::Pending(presenter.present(entry)));
    }
    let uid = meta_str(&live, "uid").to_owned();
    if options.dry_run {
        let text = encode::text(&marked, &cx.descriptor.api_version(), &cx.descriptor.kind);
        return Ok(if stays {
            DeleteOutcome::Pending(text)
        } else {
            DeleteOutcome::Gone { last: text, uid }
        });
    }
    let d = cx.descriptor;
    let store = cx.store;
    let unchanged = if marked == live { encode::split(&entry.value, entry.meta.clone()) } else { None };
    let encoded =
        unchanged.unwrap_or_else(|| encode::encode(&to_storage(d, &marked), &d.storage_api_version, &d.kind));
    let expect = Expect::At(entry.revision);
    if stays {
        let stored = put(store, entry.key.clone(), expect, encoded).await?;
        return Ok(DeleteOutcome::Pending(presenter.present(&stored)));
    }
    let last = remove(store, entry.key.clone(), expect, encoded).await?;
    Ok(DeleteOutcome::Gone { last: presenter.present(&last), uid })
}

fn preconditions(cx: &RequestContext<'_>, live: &Value, options: &DeleteOptions) -> Result<(), ApiError> {
    let d = cx.descriptor;
    let conflict = |what: &str, given: &str, actual: &str, then: &str| {
        // Kubernetes names the kind here, not the resource.
        let why = format!(
            "the {what} in the precondition ({given}) does not match the {what} in record ({actual}). The object might \
             have been {then}"
        );
        ApiError::conflict(&d.group, &d.kind, meta_str(live, "name"), &why)
    };
    let (uid, revision) = (meta_str(live, "uid"), meta_str(live, "resourceVersion"));
    if let Some(given) = options.uid.as_deref().filter(|given| *given != uid) {
        return Err(conflict("UID", given, uid, "deleted and then recreated"));
    }
    if let Some(given) = options.revision.as_deref().filter(|given| *given != revision) {
        return Err(conflict("ResourceVersion", given, revision, "modified"));
    }
    Ok(())
}

/// The object after this delete, and whether it stays.
fn mark_deleted(
    cx: &RequestContext<'_>,
    live: &Value,
    options: &DeleteOptions,
) -> Result<(Value, bool), ApiError> {
    let strategy = &cx.descriptor.strategy;
    let mut marked = live.clone();
    let first = !is_terminating(live);
    let asked = options.grace.map(|grace| if grace < 0 { 1 } else { grace });
    let grace = strategy.graceful_deletion(live, asked);
    if let (Some(grace), false) = (grace, first)
        && !shorten_grace_period(&mut marked, grace, asked.is_some())
    {
        return Ok((marked, true));
    }
    if first {
        let store = cx.store.clone();
        let lookup = LiveLookup(&store);
        let context = WriteContext {
            user: cx.user,
            now: &cx.now,
            namespace: cx.namespace(),
            dry_run: options.dry_run,
            lookup: &lookup,
            settings: &cx.state.config.kinds,
        };
        strategy.prepare_delete(&context, &mut marked)?;
    }
    set_propagation(&mut marked, options, strategy.facts().orphans);
    let kept = !finalizers(&marked).is_empty();
    let finalized = strategy.awaits_finalize(&marked);
    if first && (kept || finalized || grace.is_some()) {
        let seconds = grace.unwrap_or(0);
        let at =
            Timestamp::now().saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
        set_meta(&mut marked, "deletionTimestamp", time::format(at).into());
        if !finalized {
            set_meta(&mut marked, "deletionGracePeriodSeconds", seconds.into());
        }
        let generation = metadata::generation(live);
        if generation > 0 {
            metadata::set_generation(&mut marked, generation + 1);
        }
    }
    Ok((marked, kept || finalized || grace.is_some_and(|grace| grace > 0)))
}

/// Shortens the grace period on a second delete. Returns `false` if the delete changes nothing.
fn shorten_grace_period(marked: &mut Value, grace: i64, asked: bool) -> bool {
    let Some(current) = meta(marked, "deletionGracePeriodSeconds").and_then(Value::as_i64) else {
        return true;
    };
    if current == 0 {
        return true;
    }
    if !asked || grace >= current {
        return false;
    }
    if let Ok(at) = meta_str(marked, "deletionTimestamp").parse::<Timestamp>() {
        let at = at.saturating_add(SignedDuration::from_secs(grace - current)).unwrap_or(at);
        set_meta(marked, "deletionTimestamp", time::format(at).into());
    }
    set_meta(marked, "deletionGracePeriodSeconds", grace.into());
    true
}

/// Sets the two finalizers that the garbage collector acts on.
fn set_propagation(marked: &mut Value, options: &DeleteOptions, default_orphans: bool) {
    let current: Vec<String> = finalizers(marked).into_iter().map(str::to_owned).collect();
    let has = |name: &str| current.iter().any(|f| f == name);
    let orphan = match (options.orphan_dependents, options.policy.as_deref()) {
        (Some(orphan), _) => orphan,
        (None, Some(policy)) => policy == "Orphan",
        (None, None) if has(ORPHAN) => true,
        (None, None) if has(FOREGROUND) => false,
        (None, None) => default_orphans,
    };
    let foreground = match (options.orphan_dependents, options.policy.as_deref()) {
        (Some(_), _) => false,
        (None, Some(policy)) => policy == "Foreground",
        (None, None) => has(FOREGROUND) && !has(ORPHAN),
    };
    let mut wanted: Vec<String> =
        current.iter().filter(|f| *f != ORPHAN && *f != FOREGROUND).cloned().collect();
    if orphan {
        wanted.push(ORPHAN.into());
    }
    if foreground {
        wanted.push(FOREGROUND.into());
    }
    let same = wanted.len() == current.len() && wanted.iter().all(|f| current.contains(f));
    if !same {
        if wanted.is_empty() {
            super::object::remove_meta(marked, "finalizers");
        } else {
            set_meta(marked, "finalizers", json!(wanted));
        }
    }
}

/// DELETE of a collection, answered with the list of deleted objects. Some objects are deleted concurrently, so that
/// their writes share commits of the store.
pub(crate) async fn delete_collection(
    cx: &mut RequestContext<'_>,
    body: &[u8],
) -> Result<Response<Body>, ApiError> {
    let media = cx.media_of(true)?;
    let options = DeleteOptions::parse(cx, body)?;
    warn_unpropagated(cx, &options);
    let list_options = ListOptions::parse(cx.query, false)?;
    let selection = Selection::parse(cx.query, cx.descriptor)?;
    let presenter = Presenter::new(cx.descriptor);
    let mut page = list::page(cx, &list_options, &selection, &presenter).await?;
    let mut deleted = Vec::with_capacity(page.entries.len());
    for some in page.entries.chunks(CONCURRENT_DELETES) {
        let deletions = some.iter().map(|entry| delete_one(cx, &entry.key.name, &options));
        for (entry, outcome) in some.iter().zip(futures::future::join_all(deletions).await) {
            match outcome {
                Ok(_) => deleted.push(entry.clone()),
                Err(error) if error.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
    }
    page.entries = deleted;
    page.print_continue = cx.descriptor.is_custom();
    list::respond(cx, media, &page, &presenter)
}
