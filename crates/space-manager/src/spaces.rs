//! What the space manager needs of the program that runs embedded spaces.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use kube::Client;
use tokio::sync::broadcast;

/// What a space is for. It decides which admission rules the space has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// An inventory and transport space.
    Its,
    /// A workload description space.
    Wds,
    /// Neither yet; hooks may make it an ITS.
    Plain,
}

/// Address and administrator's credential of a space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// URL of the API server.
    pub url: String,
    /// The TLS server name that leads to the space also where a program loses the path of the URL (SP-056).
    pub server_name: Option<String>,
    /// CA of the address, PEM.
    pub ca_pem: String,
    /// The administrator's certificate, PEM.
    pub certificate_pem: String,
    /// Its key, PEM.
    pub key_pem: String,
}

/// A component that can run for a space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Component {
    /// The controllers of an OCM hub.
    OcmHub,
    /// The controller of the status add-on.
    StatusAddon,
    /// Binding and status controllers; they read clusters from the ITS of this name.
    ControllerManager { its: String },
    /// The transport controller; it delivers through the ITS of this name.
    TransportController { its: String },
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OcmHub => "ocm-hub",
            Self::StatusAddon => "status-addon",
            Self::ControllerManager { .. } => "controller-manager",
            Self::TransportController { .. } => "transport-controller",
        })
    }
}

/// The state of a component.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ComponentState {
    /// It works.
    pub ready: bool,
    /// Why it failed last, if it does not work now.
    pub last_error: Option<String>,
}

/// Why a space or a component is not as it should be; a sentence for users.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SpacesError(pub String);

/// The embedded spaces of a process. Every method may be called again after a crash or for something that is done
/// already.
pub trait Spaces: Send + Sync + 'static {
    /// Starts the space of the ControlPlane with the UID `owner`, which is created if there is none, and returns once it serves.
    /// Data of another ControlPlane of that name is set aside first, and never served again (SP-045).
    fn open<'a>(
        &'a self,
        space: &'a str,
        owner: &'a str,
        role: Role,
    ) -> BoxFuture<'a, Result<Access, SpacesError>>;
    /// Stops a space and its components, and keeps its data.
    fn suspend<'a>(&'a self, space: &'a str) -> BoxFuture<'a, Result<(), SpacesError>>;
    /// Stops the space of the ControlPlane with the UID `owner` and its components, and removes its data and keys. Returns once
    /// they are gone from the disk. Data of another ControlPlane of that name is set aside.
    fn delete<'a>(&'a self, space: &'a str, owner: &'a str) -> BoxFuture<'a, Result<(), SpacesError>>;
    /// No ControlPlane has this name any more. If its space is still there, because somebody removed the finalizer by force, it is
    /// stopped, and its data and keys are set aside.
    fn abandoned<'a>(&'a self, space: &'a str) -> BoxFuture<'a, Result<(), SpacesError>>;
    /// Starts a component for a space that serves. Does not wait until the component is ready.
    fn run<'a>(
        &'a self,
        space: &'a str,
        component: &'a Component,
    ) -> BoxFuture<'a, Result<ComponentState, SpacesError>>;
    /// An administrator's client of a space that serves.
    fn client<'a>(&'a self, space: &'a str) -> BoxFuture<'a, Result<Client, SpacesError>>;
    /// Names of spaces of which a component became ready or failed, or whose credentials were renewed.
    fn changes(&self) -> broadcast::Receiver<Arc<str>>;
}
