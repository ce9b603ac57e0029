//! Which components run for which space: the tables below, from top to bottom. The only place where embedded spaces and
//! components meet: a component gets clients, a configuration and a token, and cannot tell an embedded space from a
//! distant cluster.
//!
//! The components between an object in a WDS and its copy in a cluster, and back, write to nothing but spaces of this
//! process: they get clients that do not wait for the disk (`client_ahead`). What leaves the process is durable.

mod cluster;
mod credentials;
mod description;
mod every_space;
mod host;
mod inventory;

use std::sync::Arc;

use apis::ocm::ManagedCluster;
use kube::Api;
use kube::api::{Patch, PatchParams};
use space::{Identity, Space};
use space_manager::{Component, ComponentState};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Failure, OrFail};
use crate::shape::{Cluster, Shape, SpaceName, Wds};

use super::components::{Components, Elsewhere, Run};
pub(super) use cluster::Departure;
use cluster::{Agents, Joining, Leaving};
use description::Description;
use every_space::EverySpace;
pub(super) use host::Host;

/// A component that is made from an `S`.
struct Row<S> {
    /// Its name in `status` and in the log.
    name: &'static str,
    /// What messages call it; the name of the space follows.
    title: &'static str,
    /// The value of `serve --without` that leaves it to another process.
    elsewhere: Option<Elsewhere>,
    /// Makes it.
    run: fn(&S) -> Run,
}

impl<S> Row<S> {
    const fn new(
        name: &'static str,
        title: &'static str,
        elsewhere: Option<Elsewhere>,
        run: fn(&S) -> Run,
    ) -> Self {
        Self { name, title, elsewhere, run }
    }
}

/// Every space, whatever it is for. These are parts of the space as its API server is, and deal with all that is in it:
/// collecting garbage alone takes the right to read and delete everything. They are not under its RBAC, so that no user
/// can break the space.
const EVERY_SPACE: &[Row<EverySpace>] =
    &[Row::new("space-controllers", "controllers of", None, |of| component(of, every_space::controllers))];

/// The space of a cluster with simulated workloads: what stands for its nodes. The same remark holds.
const SIMULATED_CLUSTER: &[Row<EverySpace>] =
    &[Row::new("simulator", "simulator of", None, |of| component(of, every_space::simulator))];

/// An ITS. These hand out rights, and so act as an administrator.
const INVENTORY_SPACE: &[Row<Arc<Space>>] = &[
    Row::new("addon-manager", "add-on manager of", None, |of| component(of, inventory::addon_manager)),
    Row::new("ocm-hub", "hub of", None, |of| component(of, inventory::hub)),
];

/// A WDS and its ITS.
const DESCRIPTION_SPACE: &[Row<Description>] = &[
    Row::new("controller-manager", "controllers of", Some(Elsewhere::ControllerManager), |of| {
        component(of, description::controllers)
    }),
    Row::new("transport-controller", "transport of", Some(Elsewhere::TransportController), |of| {
        component(of, description::transport)
    }),
];

/// A WDS, if Metacontroller is wanted.
const METACONTROLLER: &[Row<Arc<Space>>] =
    &[Row::new("metacontroller", "Metacontroller of", None, |of| component(of, description::metacontroller))];

/// A WDS, if Helm's releases are to be labelled. Part of the controllers of a WDS, but with rights of its own, and so that
/// it can be switched on while they run. A controller manager in another process has a flag of its own for this.
const HELM_RELEASES: &[Row<Arc<Space>>] =
    &[Row::new("helm-releases", "labels of Helm releases of", Some(Elsewhere::ControllerManager), |of| {
        component(of, description::helm_releases)
    })];

/// An embedded cluster that joins. Enrolment stands for the administrators of cluster and hub, and so acts as one.
const JOINING_CLUSTER: &[Row<Joining>] =
    &[Row::new("enrolment", "enrolment of", None, |of| component(of, cluster::enrolment))];

/// The agents of an embedded cluster. They get what a distant cluster's agents have: a client of the cluster with the
/// rights of their service accounts, and on the hub the certificate that the registration agent got by the handshake.
const AGENTS: &[Row<Agents>] = &[
    Row::new("registration-agent", "registration agent of", None, |of| {
        component(of, cluster::registration_agent)
    }),
    Row::new("work-agent", "work agent of", Some(Elsewhere::WorkAgent), |of| {
        component(of, cluster::work_agent)
    }),
    Row::new("status-agent", "status agent of", Some(Elsewhere::StatusAgent), |of| {
        component(of, cluster::status_agent)
    }),
];

/// An embedded cluster that was taken out of the inventory.
const LEAVING_CLUSTER: &[Row<Leaving>] =
    &[Row::new(DEPARTURE, "departure of", None, |of| component(of, cluster::departure))];
/// Name of the component that removes from a cluster what its agents had there.
const DEPARTURE: &str = "departure";

/// The host space.
const HOST: &[Row<Host>] =
    &[Row::new("space-manager", "Space Manager of", None, |of| component(of, host::space_manager))];

/// A component whose every run is a call of `run` with a copy of what it is for.
fn component<S, F>(of: &S, run: fn(S, CancellationToken, watch::Sender<bool>) -> F) -> Run
where
    S: Clone + Send + 'static,
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let of = of.clone();
    Box::new(move |stop, ready| Box::pin(run(of.clone(), stop, ready)))
}

/// For each component, as messages call it: whether it is ready.
pub(super) type Ready = Vec<(String, watch::Receiver<bool>)>;

/// What the wiring uses of an installation.
pub(super) struct Parts<'a> {
    /// All components; new ones are added.
    pub(super) components: &'a mut Components,
    /// The spaces that serve, with their roles.
    pub(super) spaces: &'a [(Arc<Space>, &'static str)],
    /// What runs already.
    pub(super) running: &'a Shape,
    /// The components that other processes run.
    pub(super) without: &'a [Elsewhere],
    /// The CA of the listener, PEM.
    pub(super) ca_pem: &'a str,
    /// Takes the news about embedded clusters that somebody took out of the inventory.
    pub(super) departures: &'a mpsc::Sender<Departure>,
    /// Records of the store may have been dropped at the start.
    pub(super) repaired: bool,
}

/// Starts the components of everything in `wanted` that does not run yet, except the agents of clusters: [`join`].
pub(super) async fn start(mut parts: Parts<'_>, wanted: &Shape, ready: &mut Ready) -> Result<(), Failure> {
    let running = parts.running;
    for (name, role) in wanted.spaces() {
        if running.spaces().iter().all(|(known, _)| *known != name) {
            let of = parts.start_space(name.as_str(), ready)?;
            if role == "wec" && wanted.simulate_workloads {
                parts.start(SIMULATED_CLUSTER, name.as_str(), None, &of, ready);
            }
        }
    }
    for its in wanted.its.iter().filter(|its| !running.its.contains(its)) {
        let of = parts.space(its.as_str())?;
        inventory::prepare(&of).await?;
        parts.start(INVENTORY_SPACE, its.as_str(), None, &of, ready);
    }
    // The ITS of the others was deleted. They wait until there is one again.
    let has_its = |wds: &&Wds| wanted.its.contains(&wds.its);
    for wds in wanted.wds.iter().filter(|wds| !running.wds.contains(wds)).filter(has_its) {
        let of = Description {
            wds: parts.space(wds.name.as_str())?,
            its: parts.space(wds.its.as_str())?,
            collectors_read_secrets: wanted.collectors_read_secrets,
        };
        of.prepare(parts.runs(Some(Elsewhere::ControllerManager))).await?;
        parts.start(DESCRIPTION_SPACE, wds.name.as_str(), Some(wds.its.as_str()), &of, ready);
    }
    for wds in new_in(wanted, wanted.metacontroller, running, running.metacontroller) {
        let of = parts.space(wds.as_str())?;
        description::prepare_metacontroller(&of).await?;
        parts.start(METACONTROLLER, wds.as_str(), None, &of, ready);
    }
    for wds in new_in(wanted, wanted.label_helm_releases, running, running.label_helm_releases) {
        let of = parts.space(wds.as_str())?;
        if parts.runs(Some(Elsewhere::ControllerManager)) {
            description::prepare_helm_releases(&of).await?;
        }
        parts.start(HELM_RELEASES, wds.as_str(), None, &of, ready);
    }
    Ok(())
}

/// Starts the host space and its Space Manager.
pub(super) fn start_host(mut parts: Parts<'_>, of: &Host, ready: &mut Ready) -> Result<(), Failure> {
    parts.start_space(of.name(), ready)?;
    parts.start(HOST, of.name(), None, of, ready);
    Ok(())
}

/// Starts what every space has in a space of a ControlPlane.
pub(super) fn start_hosted(mut parts: Parts<'_>, space: &str) -> Result<(), Failure> {
    parts.start_space(space, &mut Ready::new()).map(drop)
}

/// Starts a component for a space of a ControlPlane, unless it runs, and returns its state. A component that another process
/// runs is as ready as this one can know.
pub(super) async fn run_component(
    mut parts: Parts<'_>,
    space: &str,
    component: &Component,
) -> Result<ComponentState, Failure> {
    let (name, elsewhere) = match component {
        Component::OcmHub => ("ocm-hub", None),
        Component::StatusAddon => ("addon-manager", None),
        Component::ControllerManager { .. } => ("controller-manager", Some(Elsewhere::ControllerManager)),
        Component::TransportController { .. } => {
            ("transport-controller", Some(Elsewhere::TransportController))
        }
    };
    if !parts.runs(elsewhere) {
        return Ok(ComponentState { ready: true, last_error: None });
    }
    if parts.components.status_of(name, space).is_none() {
        let mut ready = Ready::new();
        let of = parts.space(space)?;
        match component {
            Component::OcmHub | Component::StatusAddon => {
                inventory::prepare(&of).await?;
                let rows = INVENTORY_SPACE.iter().filter(|row| row.name == name);
                for row in rows {
                    parts.start(std::slice::from_ref(row), space, None, &of, &mut ready);
                }
            }
            Component::ControllerManager { its } | Component::TransportController { its } => {
                let collectors_read_secrets = parts.running.collectors_read_secrets;
                let of = Description { wds: of, its: parts.space(its)?, collectors_read_secrets };
                of.prepare(parts.runs(Some(Elsewhere::ControllerManager))).await?;
                let rows = DESCRIPTION_SPACE.iter().filter(|row| row.name == name);
                for row in rows {
                    parts.start(std::slice::from_ref(row), space, Some(its), &of, &mut ready);
                }
            }
        }
    }
    let status = parts.components.status_of(name, space);
    Ok(status.map_or_else(ComponentState::default, |status| ComponentState {
        ready: status.ready,
        last_error: status.last_error.filter(|_| !status.ready),
    }))
}

/// The WDSs that get an optional component now: it is wanted, and did not run there before.
fn new_in<'a>(
    wanted: &'a Shape,
    is_wanted: bool,
    running: &Shape,
    was_wanted: bool,
) -> impl Iterator<Item = &'a SpaceName> {
    let had: &[Wds] = if was_wanted { &running.wds } else { &[] };
    wanted.wds.iter().filter(move |wds| is_wanted && !had.contains(wds)).map(|wds| &wds.name)
}

/// Lets clusters join and starts their agents.
pub(super) fn join(mut parts: Parts<'_>, clusters: &[&Cluster], ready: &mut Ready) -> Result<(), Failure> {
    for cluster in clusters {
        // Without its ITS, which was deleted, the cluster waits until there is one again.
        let Ok(its) = parts.space(cluster.its.as_str()) else { continue };
        let spaces = (parts.space(cluster.name.as_str())?, its);
        let hub = (parts.running.lasting_url(&cluster.its), parts.ca_pem);
        // A ManagedCluster that a repair dropped was not taken out by anybody.
        let past = (parts.departures.clone(), cluster.given.is_some() && !parts.repaired);
        let joining = Joining::new(cluster, spaces, hub, parts.runs(Some(Elsewhere::StatusAgent)), past);
        parts.start(JOINING_CLUSTER, cluster.name.as_str(), Some(cluster.its.as_str()), &joining, ready);
        let Some((_, enrolled)) = ready.last() else { continue };
        let agents = Agents { joining, enrolled: enrolled.clone() };
        parts.start(AGENTS, cluster.name.as_str(), Some(cluster.its.as_str()), &agents, ready);
    }
    Ok(())
}

/// Ends the agents of a cluster that was taken out of the inventory, and removes what they had in it.
pub(super) async fn leave(mut parts: Parts<'_>, cluster: &Cluster) -> Result<(), Failure> {
    let name = cluster.name.as_str();
    parts.components.end_between(name, cluster.its.as_str()).await;
    let of = Leaving {
        cluster: cluster.name.clone(),
        wec: parts.space(name)?,
        departures: parts.departures.clone(),
    };
    parts.start(LEAVING_CLUSTER, name, None, &of, &mut Ready::new());
    Ok(())
}

/// Ends the departure of a cluster: it is over, or the cluster is asked for again.
pub(super) async fn stay(parts: Parts<'_>, cluster: &str) {
    parts.components.end_one(DEPARTURE, cluster).await;
}

/// Adds labels that were asked for after the enrolment to the ManagedCluster of a running cluster (SP-102). Does nothing if somebody
/// removed the cluster from the inventory.
pub(super) async fn relabel(parts: &Parts<'_>, cluster: &Cluster) -> Result<(), Failure> {
    let labels = cluster.new_labels();
    if labels.is_empty() {
        return Ok(());
    }
    let Ok(its) = parts.space(cluster.its.as_str()) else { return Ok(()) };
    let its = its.client(&Identity::admin());
    let clusters: Api<ManagedCluster> = Api::all(its);
    let patch = Patch::Merge(serde_json::json!({"metadata": {"labels": labels}}));
    match clusters.patch_metadata(cluster.name.as_str(), &PatchParams::default(), &patch).await {
        Err(error) if runtime::failure::is_not_found(&error) => Ok(()),
        done => done.map(drop).or_fail(format!("labelling {}", cluster.name)),
    }
}

impl Parts<'_> {
    /// Starts the components of a table that are not left to other processes.
    fn start<S>(&mut self, table: &[Row<S>], space: &str, uses: Option<&str>, of: &S, ready: &mut Ready) {
        for row in table {
            if !self.runs(row.elsewhere) {
                continue;
            }
            let receiver = self.components.start(row.name, space, uses, (row.run)(of));
            ready.push((format!("{} {space}", row.title), receiver));
        }
    }

    /// Starts what every space has.
    fn start_space(&mut self, name: &str, ready: &mut Ready) -> Result<EverySpace, Failure> {
        let of = EverySpace::new(self.space(name)?, self.ca_pem)?;
        self.start(EVERY_SPACE, name, None, &of, ready);
        Ok(of)
    }

    /// Returns whether this process runs a component itself.
    fn runs(&self, elsewhere: Option<Elsewhere>) -> bool {
        elsewhere.is_none_or(|elsewhere| !self.without.contains(&elsewhere))
    }

    fn space(&self, name: &str) -> Result<Arc<Space>, Failure> {
        let found = self.spaces.iter().map(|(space, _)| space).find(|space| space.name() == name);
        found.cloned().ok_or_else(|| {
            Failure::new(Exit::NotFound, format!("starting the components of {name}"), "no such space")
        })
    }
}
