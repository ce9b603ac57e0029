//! What an embedded cluster has: its enrolment and its agents.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use apis::constants::STATUS_ADDON;
use ocm_agent::leave::{Leave, leave};
use ocm_agent::registration::{self, BuiltIn, Connection};
use ocm_shared::rbac::Subject;
use parking_lot::Mutex;
use space::{Identity, Space};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::super::rbac;
use super::credentials;
use crate::shape::{Cluster, SpaceName};

/// An embedded cluster, its hub, and what its enrolment and its agents tell each other.
#[derive(Clone)]
pub(super) struct Joining {
    cluster: Cluster,
    wec: Arc<Space>,
    its: Arc<Space>,
    /// Address of the hub, the same after every restart.
    hub_url: String,
    /// CA of the hub's address, PEM.
    ca_pem: String,
    gate: Gate,
    /// Labels that were asked for since the enrolment. Enrolment takes them.
    more_labels: Arc<Mutex<BTreeMap<String, String>>>,
    /// The registration agent's connection to the hub, which the work agent uses, too.
    connection: Connection,
    /// True once that connection exists.
    joined: watch::Sender<bool>,
    status_addon: BuiltIn,
    /// The add-ons whose agents run here.
    built_in: Vec<BuiltIn>,
    /// Is told once somebody has taken the cluster out of the inventory.
    departures: mpsc::Sender<Departure>,
    /// Whether an earlier enrolment has succeeded.
    was_enrolled: bool,
}

impl Joining {
    /// A cluster that begins to join. `its` is its hub, which has the address `hub_url` after every restart, with a
    /// certificate of the CA `ca_pem`. `departures` is told when somebody takes it out of the inventory.
    pub(super) fn new(
        cluster: &Cluster,
        (wec, its): (Arc<Space>, Arc<Space>),
        (hub_url, ca_pem): (String, &str),
        status_agent_runs_here: bool,
        (departures, was_enrolled): (mpsc::Sender<Departure>, bool),
    ) -> Self {
        let status_addon = BuiltIn::new(STATUS_ADDON);
        Self {
            cluster: cluster.clone(),
            wec,
            its,
            hub_url,
            ca_pem: ca_pem.to_owned(),
            gate: Gate { prepared: watch::Sender::new(false), accepted: watch::Sender::new(false) },
            more_labels: Arc::new(Mutex::new(cluster.new_labels())),
            connection: Connection::default(),
            joined: watch::Sender::new(false),
            built_in: status_agent_runs_here.then(|| status_addon.clone()).into_iter().collect(),
            status_addon,
            departures,
            was_enrolled,
        }
    }

    fn name(&self) -> &str {
        self.cluster.name.as_str()
    }
}

/// News about an embedded cluster that somebody took out of the inventory.
#[derive(Clone, Debug)]
pub(in crate::server) enum Departure {
    /// It is out.
    Out(SpaceName),
    /// Its agents have nothing in it any more.
    Over(SpaceName),
}

/// A cluster that was taken out of the inventory.
#[derive(Clone)]
pub(super) struct Leaving {
    pub(super) cluster: SpaceName,
    pub(super) wec: Arc<Space>,
    pub(super) departures: mpsc::Sender<Departure>,
}

/// The agents of a cluster whose enrolment runs.
#[derive(Clone)]
pub(super) struct Agents {
    pub(super) joining: Joining,
    /// True once the enrolment is settled: the cluster is accepted or denied.
    pub(super) enrolled: watch::Receiver<bool>,
}

/// Stands for the administrators of cluster and hub.
pub(super) async fn enrolment(
    of: Joining,
    stop: CancellationToken,
    ready: watch::Sender<bool>,
) -> anyhow::Result<()> {
    let me = Identity::component("kubestellar:enrolment", &["system:masters"]);
    let known =
        credentials::forget_refused(&of.wec, &of.its, &me).await.context("credentials of the agents")?;
    let left = watch::Sender::new(false);
    let config = ocm_hub::enroll::Config {
        labels: of.cluster.labels.clone(),
        more_labels: of.more_labels.clone(),
        url: of.wec.url().to_owned(),
        ready,
        prepared: of.gate.prepared.clone(),
        accepted: of.gate.accepted.clone(),
        // In an inventory space that was made again the cluster has never been.
        returning: of.was_enrolled && known,
        left: left.clone(),
        built_in: of.built_in.iter().map(|addon| addon.name().to_owned()).collect(),
        ..ocm_hub::enroll::Config::new(of.name())
    };
    let enrolled = ocm_hub::enroll::run(of.its.client(&me), of.wec.client(&me), config, stop);
    let tell = async {
        if left.subscribe().wait_for(|left| *left).await.is_ok() {
            // Nobody receives it while the server stops: then the next start finds out again.
            let _ = of.departures.send(Departure::Out(of.cluster.name.clone())).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        outcome = enrolled => outcome.context("enrolment"),
        () = tell => Ok(()),
    }
}

/// Longest wait for the end of what agents that are no more delivered to a cluster.
const PATIENCE: Duration = Duration::from_secs(60);

/// Removes what the agents had in a cluster that was taken out of the inventory.
pub(super) async fn departure(
    of: Leaving,
    stop: CancellationToken,
    ready: watch::Sender<bool>,
) -> anyhow::Result<()> {
    let me = Identity::component("kubestellar:enrolment", &["system:masters"]);
    let how = Leave { keep_workload: false, patience: PATIENCE };
    tokio::select! {
        left = leave(of.wec.client(&me), &how) => drop(left.context("taking the agents' objects out of the cluster")?),
        () = stop.cancelled() => return Ok(()),
    }
    ready.send_replace(true);
    // Nobody receives it while the server stops: then the next start does it again.
    let _ = of.departures.send(Departure::Over(of.cluster)).await;
    stop.cancelled().await;
    Ok(())
}

/// Joins the hub by the handshake of OCM and keeps the lease.
pub(super) async fn registration_agent(
    Agents { joining: of, .. }: Agents,
    stop: CancellationToken,
    ready: watch::Sender<bool>,
) -> anyhow::Result<()> {
    if !of.gate.prepared(&stop).await {
        return Ok(());
    }
    let asking =
        Identity::component(&format!("{}{}", rbac::VOUCHED, of.name()), &[ocm_shared::bootstrap::GROUP]);
    let bootstrap = of.its.client(&asking);
    let client = of.wec.client(&rbac::enrolled(&Subject::registration_account()));
    let endpoint = registration::Endpoint::new(of.its.url(), &of.ca_pem);
    let hub = of.its.clone();
    let config = registration::Config {
        cluster_name: Some(of.name().to_owned()),
        agent_name: Some("embedded".into()),
        external_urls: vec![of.wec.url().to_owned()],
        connect: Arc::new(move |credential| {
            let client = hub.client_ahead_by_certificate(&credential.certificate);
            let client = client.map_err(|error| error.to_string());
            Box::pin(async move { client })
        }),
        connection: of.connection.clone(),
        joined: of.joined.clone(),
        built_in: of.built_in.clone(),
        ready,
        hub_url: of.hub_url.clone(),
        ..registration::Config::new(endpoint)
    };
    registration::run(bootstrap, client, config, stop).await.context("registration agent")
}

/// Applies ManifestWorks. Begins once the cluster is accepted and the registration agent has a connection.
pub(super) async fn work_agent(
    Agents { joining: of, enrolled }: Agents,
    stop: CancellationToken,
    ready: watch::Sender<bool>,
) -> anyhow::Result<()> {
    let mut joined = of.joined.subscribe();
    let may_begin = async {
        of.gate.accepted(enrolled, &ready, &stop).await && joined.wait_for(|joined| *joined).await.is_ok()
    };
    tokio::select! {
        begin = may_begin => if !begin { return Ok(()) },
        () = stop.cancelled() => return Ok(()),
    }
    let client = of.wec.client_ahead(&rbac::enrolled(&Subject::work_agent_account()));
    let config = ocm_agent::work_agent::Config {
        ready: ready.clone(),
        ..ocm_agent::work_agent::Config::new(of.name(), &of.hub_url)
    };
    ocm_agent::work_agent::run(of.connection.client(), client, config, stop).await.context("work agent")
}

/// Writes WorkStatus objects. Begins once the cluster is accepted, and runs while the add-on is installed.
pub(super) async fn status_agent(
    Agents { joining: of, enrolled }: Agents,
    stop: CancellationToken,
    ready: watch::Sender<bool>,
) -> anyhow::Result<()> {
    if !of.gate.accepted(enrolled, &ready, &stop).await {
        return Ok(());
    }
    let client = of.wec.client_ahead(&rbac::enrolled(&Subject::status_agent_account()));
    let agent = |turn| {
        let config = status_addon::Config { ready: ready.clone(), ..status_addon::Config::new(of.name()) };
        status_addon::run(client.clone(), of.status_addon.hub(), config, turn)
    };
    of.status_addon.run(client.clone(), ready.subscribe(), stop, agent).await.context("status agent")
}

/// What the agents of a cluster wait for.
#[derive(Clone)]
struct Gate {
    /// The cluster has what its registration agent needs.
    prepared: watch::Sender<bool>,
    /// The cluster is accepted: before, its other agents may do nothing.
    accepted: watch::Sender<bool>,
}

impl Gate {
    /// False when told to stop.
    async fn prepared(&self, stop: &CancellationToken) -> bool {
        let mut prepared = self.prepared.subscribe();
        tokio::select! {
            waited = prepared.wait_for(|yes| *yes) => waited.is_ok(),
            () = stop.cancelled() => false,
        }
    }

    /// Waits until the cluster is accepted. The agent of a denied one is as ready as it can be (OCM-058): its
    /// enrolment is settled without it. False when told to stop.
    async fn accepted(
        &self,
        mut enrolled: watch::Receiver<bool>,
        ready: &watch::Sender<bool>,
        stop: &CancellationToken,
    ) -> bool {
        let mut accepted = self.accepted.subscribe();
        let idle = async {
            if enrolled.wait_for(|yes| *yes).await.is_ok() && !*self.accepted.borrow() {
                ready.send_replace(true);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            waited = accepted.wait_for(|yes| *yes) => waited.is_ok(),
            () = idle => false,
            () = stop.cancelled() => false,
        }
    }
}
