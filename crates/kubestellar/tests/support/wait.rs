//! Waits over watches.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use testkit::wait::DEADLINE;

/// Longest time for something that moves on: thousands of objects take their time on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// Follows a collection until `enough` and returns it as it was then, by `namespace/name`. The deadline is for the
/// next change, not for all of them.
pub async fn until<K>(
    api: &Api<K>,
    what: &str,
    mut enough: impl FnMut(&BTreeMap<String, K>) -> bool,
) -> BTreeMap<String, K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut events = watcher(api.clone(), watcher::Config::default()).default_backoff().boxed();
    let mut seen = BTreeMap::new();
    let mut initial = BTreeMap::new();
    let mut complete = false;
    let mut problem = None;
    let search = async {
        while let Ok(Some(event)) = tokio::time::timeout(DEADLINE, events.next()).await {
            match event {
                Ok(Event::Init) => initial = BTreeMap::new(),
                Ok(Event::InitApply(object)) => drop(initial.insert(key(&object), object)),
                Ok(Event::InitDone) => {
                    seen = std::mem::take(&mut initial);
                    complete = true;
                }
                Ok(Event::Apply(object)) => drop(seen.insert(key(&object), object)),
                Ok(Event::Delete(object)) => drop(seen.remove(&key(&object))),
                Err(error) => problem = Some(error),
            }
            if complete && enough(&seen) {
                return true;
            }
        }
        false
    };
    if tokio::time::timeout(PATIENCE, search).await.unwrap_or_default() {
        return seen;
    }
    let some: Vec<_> = seen.values().take(3).collect();
    panic!(
        "{what}: nothing new for {DEADLINE:?}, or not within {PATIENCE:?}; {} there, among them {some:#?}; error: {problem:?}",
        seen.len()
    );
}

/// Follows one object until the condition holds and returns it as it was then.
pub async fn until_one<K>(api: &Api<K>, name: &str, what: &str, mut enough: impl FnMut(&K) -> bool) -> K
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let found = until(api, what, |all| all.values().any(|o| o.name_any() == name && enough(o))).await;
    found.into_values().find(|o| o.name_any() == name).expect("the condition held")
}

fn key<K: Resource>(object: &K) -> String {
    match object.meta().namespace.as_deref() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}
