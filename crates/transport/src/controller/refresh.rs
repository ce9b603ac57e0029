//! Generation annotations of envelopes whose contents did not change (KS-091).
//!
//! Every write of an envelope carries the Binding's generation (KS-144). An envelope that is not written
//! keeps the older generation; the Binding's `status.observedGeneration` tells how far the transport
//! controller has come. Some programs read the annotation for that, so it is refreshed, but with the lowest
//! priority: once the Binding has been unchanged for a while, one patch at a time over all Bindings, with a
//! pause after each. So the cost of one change does not depend on the number of envelopes, and a Binding that
//! keeps changing causes no refreshes.

use std::{convert::Infallible, sync::Arc};

use runtime::{Next, work};
use tokio_util::sync::CancellationToken;

use super::shared::Shared;
use crate::write::Writer;

/// Refreshes annotations until `stop` is cancelled.
pub(super) async fn refresh_annotations(shared: Arc<Shared>, writer: Writer, stop: CancellationToken) {
    let refresher = Arc::new(Refresher { shared: shared.clone(), writer, stop: stop.clone() });
    work("transport-refresh", &shared.refreshes, 1, &stop, move |name: String| {
        let refresher = refresher.clone();
        async move { Ok::<_, Infallible>(refresher.refresh(&name).await) }
    })
    .await;
}

struct Refresher {
    shared: Arc<Shared>,
    writer: Writer,
    stop: CancellationToken,
}

impl Refresher {
    async fn refresh(&self, name: &str) -> Next {
        let (shared, config) = (&self.shared, &self.shared.config);
        let Some(since) = shared.with(|state| state.outdated_since(name)) else { return Next::OnChange };
        let quiet = since.elapsed();
        if quiet < config.refresh_after {
            return Next::After(config.refresh_after.saturating_sub(quiet));
        }
        let Some(generation) = self.generation(name) else {
            shared.with(|state| state.refreshed(name, since));
            return Next::OnChange;
        };
        let mailboxes = shared.with(|state| state.envelopes().of(&state.origin(name)));
        for (mailbox, envelopes) in mailboxes {
            for (envelope, seen) in envelopes.iter() {
                if seen.deleting || seen.binding_generation == generation {
                    continue;
                }
                if self.generation(name).as_ref() != Some(&generation) || !shared.queue.is_empty() {
                    // Real changes come first.
                    return Next::After(config.refresh_after);
                }
                if let Err(error) = self.writer.refresh(&mailbox, envelope, &seen.uid, &generation).await {
                    tracing::debug!(%mailbox, %envelope, %error, "generation annotation not refreshed");
                }
                tokio::select! {
                    () = self.stop.cancelled() => return Next::OnChange,
                    () = tokio::time::sleep(config.refresh_pause) => {}
                }
            }
        }
        shared.with(|state| state.refreshed(name, since));
        Next::OnChange
    }

    /// Returns the present generation of a Binding that is being delivered.
    fn generation(&self, name: &str) -> Option<String> {
        let binding = self.shared.with(|state| state.binding(name))?;
        let alive = binding.metadata.deletion_timestamp.is_none();
        alive.then(|| binding.metadata.generation.unwrap_or_default().to_string())
    }
}
