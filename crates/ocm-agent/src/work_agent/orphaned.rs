//! AppliedManifestWorks whose work is gone, or which belong to another hub (OCM-096). OCM calls them
//! unmanaged.

use std::{sync::Arc, time::Duration};

use apis::ocm::AppliedManifestWork;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::Error;
use runtime::{Next, WithoutManagedFields, rest::Removal};
use serde_json::json;

use super::{
    eviction::{self, Verdict},
    leaving::{PENDING, pause},
    objects::applied_manifest_works,
    shared::Agent,
};

/// Pause before an eviction that looks unintended is considered again.
const RECONSIDER: Duration = Duration::from_secs(600);

impl Agent {
    /// Handles a work that does not exist. Its AppliedManifestWork, if any, is evicted after the grace
    /// period.
    pub(super) async fn work_gone(
        &self,
        name: &str,
        applied: Option<Arc<AppliedManifestWork>>,
    ) -> Result<Next, Error> {
        if let Some(applied) = applied {
            let next = self.clear_up(name, &applied).await?;
            if next != Next::OnChange {
                return Ok(next);
            }
        }
        self.forget(name);
        Ok(Next::OnChange)
    }

    /// Handles an AppliedManifestWork of another hub.
    pub(super) async fn foreign_applied(&self, applied_name: &str) -> Result<Next, Error> {
        let applied = self.state.lock().foreign(applied_name);
        match applied {
            // No work of this hub is concerned, so any of them may hold the listed objects.
            Some(applied) => self.clear_up("", &applied).await,
            None => Ok(Next::OnChange),
        }
    }

    /// Handles an AppliedManifestWork without a work of this hub: evicts it after the grace period, or
    /// completes its deletion.
    async fn clear_up(&self, work: &str, applied: &AppliedManifestWork) -> Result<Next, Error> {
        if !self.state.lock().is_own(&applied.spec) {
            return Ok(Next::OnChange);
        }
        if applied.metadata.deletion_timestamp.is_some() {
            let leftovers = self.empty_applied(work, applied).await?;
            return Ok(leftovers.map_or(Next::OnChange, |leftovers| Next::After(pause(&leftovers))));
        }
        let began = applied.status.as_ref().and_then(|s| s.eviction_start_time.as_ref()).map(|t| t.0);
        match eviction::verdict(began, self.config.eviction_grace, Timestamp::now()) {
            // A period that began under another setting must not count if evictions are permitted again.
            Verdict::Never => self.keep(Arc::new(applied.clone())).await.map(|_| Next::OnChange),
            Verdict::Wait(pause) => Ok(Next::After(pause)),
            Verdict::Begin => {
                self.write_eviction(applied, Some(Time(Timestamp::now()))).await?;
                Ok(Next::After(self.config.eviction_grace.max(Duration::from_millis(1))))
            }
            Verdict::Evict if self.looks_unintended(applied, began) => {
                tracing::warn!(
                    applied = applied.metadata.name,
                    "more than half of the works disappeared at once; nothing is evicted"
                );
                Ok(Next::After(RECONSIDER))
            }
            Verdict::Evict => {
                let name = applied.metadata.name.as_deref().unwrap_or_default();
                let removal = Removal { uid: applied.metadata.uid.clone(), propagation: None };
                self.cluster.delete(&applied_manifest_works(), "", name, &removal).await?;
                // The event of the deletion continues from here.
                Ok(Next::After(PENDING))
            }
        }
    }

    /// Cancels the eviction of an AppliedManifestWork whose work exists again.
    pub(super) async fn keep(
        &self,
        applied: Arc<AppliedManifestWork>,
    ) -> Result<Arc<AppliedManifestWork>, Error> {
        if applied.status.as_ref().is_none_or(|s| s.eviction_start_time.is_none()) {
            return Ok(applied);
        }
        self.write_eviction(&applied, None).await
    }

    async fn write_eviction(
        &self,
        applied: &AppliedManifestWork,
        began: Option<Time>,
    ) -> Result<Arc<AppliedManifestWork>, Error> {
        let name = applied.metadata.name.as_deref().unwrap_or_default();
        let patch =
            json!({"metadata": {"uid": applied.metadata.uid}, "status": {"evictionStartTime": began}});
        let gvr = applied_manifest_works();
        let WithoutManagedFields(written) = self.cluster.merge_status(&gvr, "", name, &patch).await?;
        Ok(self.state.lock().remember_applied(written))
    }

    fn looks_unintended(&self, applied: &AppliedManifestWork, began: Option<Timestamp>) -> bool {
        let began = began.filter(|_| !self.config.allow_mass_eviction);
        began.is_some_and(|began| self.state.lock().looks_unintended(applied, began))
    }
}
