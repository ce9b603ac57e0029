//! Handles CRDs that are deleted and recreated while a controller uses them (MC-141, MC-142).
//!
//! While a resource is not served, its cache stays as it was, except for objects whose deletion was observed:
//! an error response never leads to a decision. Cost: nothing until a watch fails; one discovery request when
//! it works again.

use std::{sync::Arc, time::Duration};

use futures::future::select_all;
use kube::Client;

use crate::{
    cache::Cache,
    resource::{Served, discover},
};

/// Pause before discovery is tried again after a failure.
const AGAIN: Duration = Duration::from_secs(5);

/// Calls `returned` whenever one of the resources can be followed again after it could not. Returns the new
/// description when one of them is served differently (another kind or scope, or with or without a status).
pub async fn another(client: Client, all: Vec<(Served, Arc<Cache>)>, returned: impl Fn() + Sync) -> Served {
    if all.is_empty() {
        return std::future::pending().await;
    }
    let each = all.into_iter().map(|(served, cache)| Box::pin(one(client.clone(), served, cache, &returned)));
    select_all(each).await.0
}

async fn one(client: Client, served: Served, cache: Arc<Cache>, returned: &(impl Fn() + Sync)) -> Served {
    let mut watch_error = cache.watch_error();
    drop(cache);
    loop {
        let gone = watch_error.wait_for(Option::is_some).await.is_ok();
        if !gone || watch_error.wait_for(Option::is_none).await.is_err() {
            return std::future::pending().await;
        }
        returned();
        loop {
            match discover(&client, &served.gvr).await {
                Ok(Some(now)) if now != served => return now,
                // The resource is gone once more; its watch will report that.
                Ok(_) => break,
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }
}
