//! What the host gives to each controller that it starts, and why a controller cannot be started.

use std::{sync::Arc, time::Duration};

use runtime::{events::Events, failure::message_of, mapper::Mapper};
use tokio_util::sync::CancellationToken;

use crate::{
    cache::Caches,
    hooks::{Credentials, HookClient, Settings},
    metrics::Metrics,
    object,
    resource::{Served, discover, gvr},
    status_board::StatusBoard,
    writes::Writer,
};

/// What all hosted controllers share.
pub struct Shared {
    /// One watch for each resource.
    pub caches: Caches,
    /// Writes objects.
    pub writer: Arc<Writer>,
    /// Maps kinds to resources, for children that no rule declares.
    pub mapper: Mapper,
    /// Whether children that no rule declares are created (MC-149).
    pub undeclared_children: bool,
    /// Emits Events.
    pub events: Events,
    /// Writes the status of parents of MapControllers.
    pub board: Arc<StatusBoard>,
    /// The metrics.
    pub metrics: Metrics,
    /// The proxies for hooks.
    pub proxies: runtime::proxies::Proxies,
    /// Number of workers of each controller that does not set it.
    pub workers: usize,
    /// `--cache-flush-interval`.
    pub flush: Option<Duration>,
    /// `--discovery-interval`: longest pause before a resource that is not served is asked for again.
    pub again: Duration,
    /// Stops everything.
    pub stop: CancellationToken,
}

/// Why a controller was not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct StartError {
    /// Reason of the condition.
    pub reason: &'static str,
    /// Text for users.
    pub text: String,
    /// Whether the problem may disappear without a change of the object.
    pub passing: bool,
    /// How the failure is reported.
    pub failure_report: FailureReport,
}

/// How the failed start of a controller is reported to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReport {
    /// As an Event for every try; equal Events are counted.
    CreateError,
    /// As one Event for each state of the spec (MC-141).
    SyncError,
    /// In the log only, because the problem is expected to disappear (MC-141).
    Log,
}

impl StartError {
    fn new(reason: &'static str, text: String, passing: bool) -> Self {
        Self { reason, text, passing, failure_report: FailureReport::CreateError }
    }

    /// Reports a problem that may disappear by itself in the log only; any other problem as before.
    pub fn awaited(self) -> Self {
        Self { failure_report: if self.passing { FailureReport::Log } else { self.failure_report }, ..self }
    }

    /// The spec is invalid.
    pub fn spec(text: String) -> Self {
        Self::new("InvalidSpec", text, false)
    }

    /// A resource is not served.
    pub fn missing(text: String) -> Self {
        Self::new("ResourceNotFound", text, true)
    }

    /// A hook's configuration is invalid.
    pub fn hook(text: String) -> Self {
        Self::new("HookConfigError", text, false)
    }

    /// An object that a hook's configuration refers to cannot be read.
    pub fn credentials(text: String) -> Self {
        Self::new("HookConfigError", text, true)
    }

    /// The parent resource has no status subresource.
    pub fn status(served: &Served) -> Self {
        let text = format!("{} does not have subresource 'Status' enabled", served.group_resource());
        Self::new("NoStatusSubresource", text, true)
    }
}

impl Shared {
    /// Creates a client for a hook. The client is counted, and follows changes of its credentials (MC-105).
    pub async fn hook_client(
        self: &Arc<Self>,
        controller: (&'static str, &str),
        settings: Settings,
        fields: &'static [&'static str],
    ) -> Result<Arc<HookClient>, StartError> {
        let credentials = Credentials::new(self.writer.rest().clone());
        let material = credentials.resolve(&settings.endpoint).await.map_err(StartError::credentials)?;
        let (kind, url) = (settings.kind, settings.url.to_string());
        let client =
            HookClient::new(settings, fields, &material, &self.proxies).map_err(StartError::credentials)?;
        self.metrics.hook(controller, kind, &url, client.metrics().clone());
        Ok(Arc::new(client))
    }

    /// Looks up a resource as it is served now.
    pub(crate) async fn served(&self, api_version: &str, resource: &str) -> Result<Served, StartError> {
        let wanted = gvr(api_version, resource);
        if !object::is_api_version(api_version) || !object::is_segment(resource) {
            return Err(StartError::spec(format!("{resource:?} of {api_version:?} can't be a resource")));
        }
        match discover(self.writer.rest().client(), &wanted).await {
            Ok(Some(served)) => Ok(served),
            Ok(None) => Err(StartError::missing(format!("{resource} of {api_version} is not served"))),
            Err(error) => {
                let why = message_of(&error);
                Err(StartError::missing(format!("asking for {resource} of {api_version}: {why}")))
            }
        }
    }
}
