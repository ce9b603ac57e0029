//! POST `pods/{name}/eviction`: a delete that disruption budgets can refuse (AS-012).

use http::{Response, StatusCode};
use store::Expect;

use super::delete::delete_one;
use super::delete_options::DeleteOptions;
use super::object::meta_str;
use super::read::to_storage;
use super::store_access::{CommitError, WRITE_ATTEMPTS, put};
use super::{Presenter, RequestContext, output};
use crate::codec::decode::parse_as;
use crate::codec::negotiate::Endpoint;
use crate::encode;
use crate::error::ApiError;
use crate::kinds;
use crate::request::{dry_run, invalid_options};
use crate::response::Body;

/// Deletes the pod if the disruption budget that covers it allows one more disruption.
pub(crate) async fn evict(cx: &mut RequestContext<'_>, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let media = cx.media(Endpoint::Plain)?;
    let eviction = parse_as(cx.headers, body, "Eviction")?;
    let name = cx.info.path_name().to_owned();
    let mut options = match eviction.get("deleteOptions") {
        Some(value) => DeleteOptions::from_value(value)?,
        None => DeleteOptions::default(),
    };
    let mut errors = Vec::new();
    options.dry_run |= dry_run(cx.query.all("dryRun").map(str::to_owned).collect(), &mut errors);
    invalid_options("CreateOptions", &errors)?;
    kinds::check_eviction(&name, &eviction)?;
    spend_budget(cx, &name, options.dry_run).await?;
    delete_one(cx, &name, &options).await?;
    output::value(StatusCode::CREATED, media, &output::success(201))
}

/// Decrements the budget that covers the pod, so that the next eviction sees the disruption.
async fn spend_budget(cx: &RequestContext<'_>, name: &str, dry_run: bool) -> Result<(), ApiError> {
    let budgets = cx.descriptor.strategy.disruption_budgets();
    let budgets = budgets.and_then(|(group, version, plural)| cx.catalog.resource(group, version, plural));
    let Some(kind) = budgets else { return Ok(()) };
    let presenter = Presenter::new(kind);
    for _ in 0..WRITE_ATTEMPTS {
        let stored = cx.stored(name)?;
        let pod = Presenter::new(cx.descriptor).value(&stored)?;
        let snapshot = cx.store.snapshot();
        let view = snapshot.view(&kind.collection);
        let entries: Vec<_> = view.iter(Some(cx.namespace()), None).cloned().collect();
        let found = entries.iter().map(|entry| presenter.value(entry)).collect::<Result<Vec<_>, _>>()?;
        let Some(budget) = kinds::covering_budget(&pod, &found)? else { return Ok(()) };
        let entry = entries.iter().find(|entry| *entry.key.name == *meta_str(budget, "name"));
        let (Some(entry), false) = (entry, dry_run) else { return Ok(()) };
        let spent = kinds::budget_after_eviction(budget, name, &cx.now);
        let encoded = encode::encode(&to_storage(kind, &spent), &kind.storage_api_version, &kind.kind);
        let expect = Expect::At(entry.revision);
        match put(cx.store, entry.key.clone(), expect, encoded).await {
            Ok(_) => return Ok(()),
            Err(CommitError::Conflict(_)) => {}
            Err(CommitError::Other(error)) => return Err(error),
        }
    }
    Err(cx.modified(name))
}
