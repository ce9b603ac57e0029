//! Waits for an object of a collection.

use kube::Client;
use kube::api::DynamicObject;
use runtime::{
    Source,
    feed::{Change, follow},
};
use tokio_util::sync::CancellationToken;

/// Follows a collection until `ask` has a result for one of its objects. Errors are retried, also that the kind is not
/// served yet; the caller sets the deadline.
pub(super) async fn find<T: Send>(
    client: &Client,
    source: &Source,
    mut ask: impl FnMut(DynamicObject) -> Option<T> + Send,
) -> Option<T> {
    let mut found = None;
    let mut look = |object| {
        found = ask(object);
        found.is_some()
    };
    follow_until(client, source, &mut look).await;
    found
}

/// Not generic, so that following is compiled once and not for each question.
async fn follow_until(
    client: &Client,
    source: &Source,
    look: &mut (dyn FnMut(DynamicObject) -> bool + Send),
) {
    let stop = CancellationToken::new();
    follow(client, source, &stop, |change: Change<DynamicObject>| {
        if let Change::Put(object) = change
            && !stop.is_cancelled()
            && look(object)
        {
            stop.cancel();
        }
    })
    .await;
}
