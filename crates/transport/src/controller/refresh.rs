//! Generation annotations of envelopes whose contents did not change (KS-091).
//!
//! Every write of an envelope carries the Binding's generation (KS-144). An envelope that is not written
//! keeps the older generation; the Binding's `status.observedGeneration` tells how far the transport
//! controller has come. Some programs read the annotation for that, so it is refreshed, but with the lowest
//! priority: once the Binding has been unchanged for a while, one patch at a time over all Bindings, with a
//! pause after each. So the cost of one change does not depend on the number of envelopes, and a Binding that
//! keeps changing causes no refreshes.

use runtime::{Next, work};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Controller;

impl Controller {
    /// Some annotations of this Binding may be outdated.
    pub(super) fn schedule_refresh(&self, binding: &str) {
        self.outdated.lock().insert(binding.to_owned(), Instant::now());
        self.refreshes.add_after(binding.to_owned(), self.config.refresh_after);
    }

    pub(super) async fn refresh_annotations(self: &std::sync::Arc<Self>, stop: &CancellationToken) {
        let (me, token) = (self.clone(), stop.clone());
        work("transport-refresh", &self.refreshes, 1, stop, move |name: String| {
            let (me, token) = (me.clone(), token.clone());
            async move { Ok::<_, std::convert::Infallible>(me.refresh(&name, &token).await) }
        })
        .await;
    }

    async fn refresh(&self, name: &str, stop: &CancellationToken) -> Next {
        let Some(since) = self.outdated.lock().get(name).copied() else { return Next::OnChange };
        let quiet = since.elapsed();
        if quiet < self.config.refresh_after {
            return Next::After(self.config.refresh_after.saturating_sub(quiet));
        }
        let Some(generation) = self.generation(name) else {
            self.outdated.lock().remove(name);
            return Next::OnChange;
        };
        let mailboxes = self.index.lock().of(&self.origin(name));
        for (mailbox, envelopes) in mailboxes {
            for (envelope, seen) in envelopes.iter() {
                if seen.deleting || seen.binding_generation == generation {
                    continue;
                }
                if self.generation(name).as_ref() != Some(&generation) || !self.queue.is_empty() {
                    // Real changes come first.
                    return Next::After(self.config.refresh_after);
                }
                if let Err(error) = self.writer.refresh(&mailbox, envelope, &seen.uid, &generation).await {
                    tracing::debug!(%mailbox, %envelope, %error, "generation annotation not refreshed");
                }
                tokio::select! {
                    () = stop.cancelled() => return Next::OnChange,
                    () = tokio::time::sleep(self.config.refresh_pause) => {}
                }
            }
        }
        let mut outdated = self.outdated.lock();
        if outdated.get(name) == Some(&since) {
            outdated.remove(name);
        }
        Next::OnChange
    }

    /// Returns the present generation of a Binding that is being delivered.
    fn generation(&self, name: &str) -> Option<String> {
        let binding = self.bindings.lock().get(name).cloned()?;
        let alive = binding.metadata.deletion_timestamp.is_none();
        alive.then(|| binding.metadata.generation.unwrap_or_default().to_string())
    }
}
