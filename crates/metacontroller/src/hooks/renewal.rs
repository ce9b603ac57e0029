//! Renews the credentials of a hook when the objects that hold them change (MC-105).

use std::sync::Arc;

use futures::future::join_all;
use kube::api::ApiResource;
use runtime::{Event, PartialObject, Source, Store, informer, rest::Rest};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    client::HookClient,
    credentials::{Credentials, SECRETS},
};

/// Watches the objects that a hook refers to until `stop`, and renews the hook's credentials when they change
/// (MC-105). If they cannot be read, the credentials stay. Costs one watch of a single object for each
/// reference.
pub async fn follow(rest: Rest, hook: Arc<HookClient>, stop: CancellationToken) {
    let references = Credentials::references(&hook.settings().endpoint);
    if references.is_empty() {
        return;
    }
    let changed = Arc::new(Notify::new());
    let watches = references.into_iter().map(|reference| {
        let kind = if reference.plural == SECRETS { "Secret" } else { "ConfigMap" };
        let resource = ApiResource {
            group: String::new(),
            version: "v1".into(),
            api_version: "v1".into(),
            kind: kind.into(),
            plural: reference.plural.into(),
        };
        let source = Source::all(resource).namespaced(reference.namespace).named(&reference.name).metadata();
        let wake = changed.clone();
        let on_event = move |_: Event<PartialObject>| wake.notify_one();
        informer::run(rest.client().clone(), source, Store::default(), on_event, stop.clone())
    });
    let credentials = Credentials::new(rest.clone());
    let renewing = async {
        loop {
            tokio::select! {
                () = changed.notified() => {}
                () = stop.cancelled() => return,
            }
            let renewed = match credentials.resolve(&hook.settings().endpoint).await {
                Ok(material) => hook.renew(&material),
                Err(why) => Err(why),
            };
            if let Err(why) = renewed {
                tracing::warn!(
                    hook = hook.settings().kind.as_str(),
                    why,
                    "the credentials stay as they were"
                );
            }
        }
    };
    tokio::join!(join_all(watches), renewing);
}
