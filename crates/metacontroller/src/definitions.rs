//! Definitions that go and come back under a running controller (MC-141, MC-142).
//!
//! While a resource is not served, its cache stays as it was, but for what was seen to be deleted: nothing is decided from
//! an answer that is none. Cost: nothing until a watch breaks; one request to discovery when it goes on.

use std::{sync::Arc, time::Duration};

use futures::future::select_all;
use kube::Client;

use crate::{
    cache::Cache,
    resource::{Served, discover},
};

/// Pause before discovery is asked again after it failed.
const AGAIN: Duration = Duration::from_secs(5);

/// Calls `returned` whenever one of the resources can be followed again after it could not. Ends when one of them is
/// served otherwise than before (another kind, scope, or with or without a status), and says which.
pub async fn another(client: Client, all: Vec<(Served, Arc<Cache>)>, returned: impl Fn() + Sync) -> Served {
    if all.is_empty() {
        return std::future::pending().await;
    }
    let each = all.into_iter().map(|(served, cache)| Box::pin(one(client.clone(), served, cache, &returned)));
    select_all(each).await.0
}

async fn one(client: Client, served: Served, cache: Arc<Cache>, returned: &(impl Fn() + Sync)) -> Served {
    let mut trouble = cache.trouble();
    drop(cache);
    loop {
        let gone = trouble.wait_for(Option::is_some).await.is_ok();
        if !gone || trouble.wait_for(Option::is_none).await.is_err() {
            return std::future::pending().await;
        }
        returned();
        loop {
            match discover(&client, &served.gvr).await {
                Ok(Some(now)) if now != served => return now,
                // Gone once more: its watch will tell.
                Ok(_) => break,
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }
}
