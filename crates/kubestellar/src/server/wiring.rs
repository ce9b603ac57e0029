//! Which components run for which space. The only place where embedded spaces and components meet: a component
//! gets clients, a configuration and a token, and can't tell an embedded space from a distant cluster.
//!
//! The components between an object in a WDS and its copy in a cluster, and back, write to nothing but spaces of this
//! process: they get clients that do not wait for the disk (`client_ahead`). What leaves the process is durable.

use std::sync::Arc;

use anyhow::Context as _;
use apis::constants::STATUS_ADDON;
use apis::ocm::ManagedCluster;
use kube::Api;
use kube::api::{Patch, PatchParams};
use ocm_addon::status::StatusAddon;
use ocm_agent::registration::{self, BuiltIn, Connection};
use ocm_shared::rbac::Subject;
use parking_lot::Mutex;
use space::controllers::CsrSigner;
use space::{Identity, Space, controllers, workloads};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Failure, OrFail};
use crate::shape::{Cluster, Shape, SpaceName, Wds};

use super::Run;
use super::installation::{Elsewhere, Installation};
use super::rbac;

pub(super) type Ready = Vec<(String, watch::Receiver<bool>)>;

/// Starts the components of everything in `wanted` that does not run yet, except the agents of clusters: [`join`].
pub(super) async fn start(
    running: &mut Installation,
    wanted: &Shape,
    ready: &mut Ready,
) -> Result<(), Failure> {
    let known = running.running().clone();
    for (name, role) in wanted.spaces() {
        if known.spaces().iter().all(|(have, _)| *have != name) {
            generic(running, name.as_str(), role, wanted.simulate_workloads, ready)?;
        }
    }
    for its in wanted.its.iter().filter(|n| !known.its.contains(n)) {
        hub(running, its, ready).await?;
    }
    for wds in wanted.wds.iter().filter(|w| !known.wds.contains(w)) {
        description_space(running, wds, ready).await?;
    }
    let had: &[Wds] = if known.metacontroller { &known.wds } else { &[] };
    for wds in wanted.wds.iter().filter(|w| wanted.metacontroller && !had.contains(w)) {
        metacontroller(running, &wds.name, ready).await?;
    }
    let had: &[Wds] = if known.label_helm_releases { &known.wds } else { &[] };
    // Whoever runs the controllers of a WDS in our place has a flag of its own for this.
    let wanted_here = wanted.label_helm_releases && running.runs(Elsewhere::ControllerManager);
    for wds in wanted.wds.iter().filter(|w| wanted_here && !had.contains(w)) {
        helm_releases(running, &wds.name, ready).await?;
    }
    Ok(())
}

/// Lets clusters join and starts their agents.
pub(super) fn join(
    running: &mut Installation,
    clusters: &[&Cluster],
    ready: &mut Ready,
) -> Result<(), Failure> {
    clusters.iter().try_for_each(|cluster| execution_cluster(running, cluster, ready))
}

/// Gives the ManagedCluster of a cluster that runs the labels that were asked for since (SP-102). One that somebody removed from the
/// inventory gets none.
pub(super) async fn relabel(running: &Installation, cluster: &Cluster) -> Result<(), Failure> {
    let labels = cluster.new_labels();
    if labels.is_empty() {
        return Ok(());
    }
    let its = find(running, cluster.its.as_str())?.client(&Identity::admin());
    let clusters: Api<ManagedCluster> = Api::all(its);
    let patch = Patch::Merge(serde_json::json!({"metadata": {"labels": labels}}));
    match clusters.patch_metadata(cluster.name.as_str(), &PatchParams::default(), &patch).await {
        Err(error) if runtime::failure::is_not_found(&error) => Ok(()),
        done => done.map(drop).or_fail(format!("labelling {}", cluster.name)),
    }
}

fn find(running: &Installation, name: &str) -> Result<Arc<Space>, Failure> {
    running.space(name).cloned().ok_or_else(|| {
        Failure::new(Exit::NotFound, format!("starting the components of {name}"), "no such space")
    })
}

/// What every control plane has; and in a simulated cluster, what stands for its nodes. These are parts of the space
/// as its API server is, and deal with all that is in it: collecting garbage alone takes the right to read and delete
/// everything. They are not under its RBAC, so that no user can break the space.
fn generic(
    running: &mut Installation,
    name: &str,
    role: &'static str,
    simulate: bool,
    ready: &mut Ready,
) -> Result<(), Failure> {
    let space = find(running, name)?;
    let keys = space.keys();
    let signer =
        CsrSigner::new(&keys.client_ca, &keys.client_ca_key).or_fail(format!("starting the space {name}"))?;
    let config = controllers::Config { ca_bundle_pem: running.ca_pem().to_owned(), csr_signer: Some(signer) };
    let of = space.clone();
    let run: Run = Box::new(move |stop, ready| {
        let client = of.client(&Identity::component("system:kube-controller-manager", &["system:masters"]));
        let (store, config) = (of.server().store().clone(), config.clone());
        Box::pin(async move { Ok(controllers::run(client, store, config, ready, stop).await?) })
    });
    ready
        .push((format!("controllers of {name}"), running.components().start("space-controllers", name, run)));
    if role == "wec" && simulate {
        let node_name = format!("{name}-node");
        let run: Run = Box::new(move |stop, ready| {
            let client = space.client(&Identity::component("kubestellar:simulator", &["system:masters"]));
            let (store, config) =
                (space.server().store().clone(), workloads::Config { node_name: node_name.clone() });
            Box::pin(async move { Ok(workloads::run(client, store, config, ready, stop).await?) })
        });
        ready.push((format!("simulator of {name}"), running.components().start("simulator", name, run)));
    }
    Ok(())
}

/// Definitions of the inventory and of the transport, and the controllers of the hub. These hand out rights, and so act
/// as an administrator.
async fn hub(running: &mut Installation, its: &SpaceName, ready: &mut Ready) -> Result<(), Failure> {
    let space = find(running, its.as_str())?;
    let client = space.client(&Identity::admin());
    let mut crds = apis::crds::ocm_hub_converting();
    crds.extend(apis::crds::work_status());
    runtime::install(&client, &crds, MANAGER).await.or_fail(format!("defining the API kinds of {its}"))?;
    let of = space.clone();
    let run: Run = Box::new(move |stop, ready| {
        let client = of.client(&Identity::component("kubestellar:addon-manager", &["system:masters"]));
        // Without an image the status agent is where a klusterlet brings its own, as ours do.
        let addon = StatusAddon { image: std::env::var(STATUS_IMAGE).ok(), ..StatusAddon::default() };
        let config = ocm_addon::Config {
            kinds: apis::crds::ocm_hub_converting,
            ready,
            ..ocm_addon::Config::with_status_addon(addon)
        };
        Box::pin(async move { ocm_addon::run(client, config, stop).await.context("add-on manager") })
    });
    let started = running.components().start("addon-manager", its.as_str(), run);
    ready.push((format!("add-on manager of {its}"), started));
    let run: Run = Box::new(move |stop, ready| {
        let client = space.client(&Identity::component("kubestellar:ocm-hub", &["system:masters"]));
        let mut config =
            ocm_hub::Config { kinds: apis::crds::ocm_hub_converting, ready, ..ocm_hub::Config::default() };
        config.approval.vouched_prefix = Some(VOUCHED.into());
        Box::pin(async move { ocm_hub::run(client, config, stop).await.context("hub") })
    });
    ready.push((format!("hub of {its}"), running.components().start("ocm-hub", its.as_str(), run)));
    Ok(())
}

/// What the names begin with under which the registration agents of embedded clusters ask to join, each for its own
/// cluster. No credential has such a name: only clients inside this process do.
const VOUCHED: &str = "kubestellar:bootstrap:";

/// Environment variable with the image of the status agent; the spelling is the original's.
const STATUS_IMAGE: &str = "STATUS_ADDDON_IMAGE_NAME";

/// Field manager of what the process itself writes.
const MANAGER: &str = "kubestellar";

/// Binding, status and transport controllers of one WDS.
async fn description_space(running: &mut Installation, wds: &Wds, ready: &mut Ready) -> Result<(), Failure> {
    let name = wds.name.to_string();
    let (wds_space, its_space) = (find(running, &name)?, find(running, wds.its.as_str())?);
    let (w, i, of) = (wds_space.clone(), its_space.clone(), name.clone());
    let its_name = wds.its.to_string();
    rbac::in_description_space(wds_space.client(&Identity::admin()))
        .await
        .or_fail(format!("granting the controllers of {name} their rights"))?;
    rbac::in_inventory_space(its_space.client(&Identity::admin()))
        .await
        .or_fail(format!("granting the controllers of {name} their rights in {its_name}"))?;
    if !running.runs(Elsewhere::ControllerManager) {
        // Whoever does it in our place defines these, too, but the other components should not have to wait.
        runtime::install(&wds_space.client(&Identity::admin()), &apis::crds::control(), MANAGER)
            .await
            .or_fail(format!("defining the API kinds of {name}"))?;
    }
    let run: Run = Box::new(move |stop, ready| {
        let me = rbac::controller_manager();
        let (wds, its) = (w.client_ahead(&me), i.client_ahead(&me));
        let config = controller_manager::Config { ready, ..controller_manager::Config::new(&of, &its_name) };
        Box::pin(async move {
            controller_manager::run(wds, its, config, stop).await.context("controller manager")
        })
    });
    if running.runs(Elsewhere::ControllerManager) {
        ready.push((
            format!("controllers of {name}"),
            running.components().start("controller-manager", &name, run),
        ));
    }
    let of = name.clone();
    let run: Run = Box::new(move |stop, ready| {
        let me = rbac::transport();
        let (wds, its) = (wds_space.client_ahead(&me), its_space.client_ahead(&me));
        let config = transport::Config { ready, ..transport::Config::new(&of) };
        Box::pin(async move { transport::run(wds, its, config, stop).await.context("transport controller") })
    });
    if running.runs(Elsewhere::TransportController) {
        ready.push((
            format!("transport of {name}"),
            running.components().start("transport-controller", &name, run),
        ));
    }
    Ok(())
}

/// Metacontroller in one space, with its definitions.
async fn metacontroller(
    running: &mut Installation,
    name: &SpaceName,
    ready: &mut Ready,
) -> Result<(), Failure> {
    let admin = find(running, name.as_str())?.client(&Identity::admin());
    runtime::install(&admin, &apis::crds::metacontroller(), MANAGER)
        .await
        .or_fail(format!("defining the kinds of Metacontroller in {name}"))?;
    rbac::metacontroller_in(admin).await.or_fail(format!("granting Metacontroller its rights in {name}"))?;
    let space = find(running, name.as_str())?;
    let run: Run = Box::new(move |stop, ready| {
        let client = space.client(&rbac::metacontroller());
        let config = metacontroller::Config { ready, ..metacontroller::Config::default() };
        Box::pin(async move { metacontroller::run(client, config, stop).await.context("Metacontroller") })
    });
    let started = running.components().start("metacontroller", name.as_str(), run);
    ready.push((format!("Metacontroller of {name}"), started));
    Ok(())
}

/// What labels Helm's releases in one WDS. Part of the controllers of a WDS, but with rights of its own, and so that it can
/// be switched on while they run.
async fn helm_releases(
    running: &mut Installation,
    name: &SpaceName,
    ready: &mut Ready,
) -> Result<(), Failure> {
    let space = find(running, name.as_str())?;
    rbac::helm_releases_in(space.client(&Identity::admin()))
        .await
        .or_fail(format!("granting the right to label releases in {name}"))?;
    let of = name.to_string();
    let run: Run = Box::new(move |stop, ready| {
        let (client, name) = (space.client_ahead(&rbac::helm_releases()), of.clone());
        Box::pin(async move {
            let metrics = runtime::metrics::Metrics::default();
            controller_manager::releases::run(client, name, metrics, ready, stop)
                .await
                .context("Helm releases")
        })
    });
    let started = running.components().start("helm-releases", name.as_str(), run);
    ready.push((format!("labels of Helm releases of {name}"), started));
    Ok(())
}

/// Enrolment and the agents of one embedded cluster. The agents get what a distant cluster's agents have: a client of
/// the cluster with the rights of their service accounts, and on the hub the certificate that the registration agent
/// got by the handshake. Enrolment stands for the administrators on both sides, and so acts as one.
fn execution_cluster(
    running: &mut Installation,
    cluster: &Cluster,
    ready: &mut Ready,
) -> Result<(), Failure> {
    let name = cluster.name.to_string();
    let (wec, its) = (find(running, &name)?, find(running, cluster.its.as_str())?);
    let (hub, spoke, of) = (its.clone(), wec.clone(), cluster.clone());
    let gate = Gate { prepared: watch::Sender::new(false), accepted: watch::Sender::new(false) };
    let mine = gate.clone();
    let more_labels = Arc::new(Mutex::new(cluster.new_labels()));
    let reports = running.runs(Elsewhere::StatusAgent).then(|| BuiltIn::new(STATUS_ADDON));
    let built_in: Vec<BuiltIn> = reports.iter().cloned().collect();
    let names: Vec<String> = built_in.iter().map(|addon| addon.name().to_owned()).collect();
    let run: Run = Box::new(move |stop, ready| {
        let enrolment = Identity::component("kubestellar:enrolment", &["system:masters"]);
        let (hub_client, client) = (hub.client(&enrolment), spoke.client(&enrolment));
        let config = ocm_hub::enroll::Config {
            labels: of.labels.clone(),
            more_labels: more_labels.clone(),
            url: spoke.url().to_owned(),
            ready,
            prepared: mine.prepared.clone(),
            accepted: mine.accepted.clone(),
            built_in: names.clone(),
            ..ocm_hub::enroll::Config::new(of.name.as_str())
        };
        Box::pin(
            async move { ocm_hub::enroll::run(hub_client, client, config, stop).await.context("enrolment") },
        )
    });
    let enrolled = running.components().start("enrolment", &name, run);

    let known_as = running.running().lasting_url(&cluster.its);
    let connection = Connection::default();
    let joined = watch::Sender::new(false);
    let (hub, spoke, of, first) = (its.clone(), wec.clone(), name.clone(), gate.clone());
    let (to_hub, has_joined, ca) = (connection.clone(), joined.clone(), running.ca_pem().to_owned());
    let hub_url = known_as.clone();
    let run: Run = Box::new(move |stop, ready| {
        let asking = Identity::component(&format!("{VOUCHED}{of}"), &[ocm_shared::bootstrap::GROUP]);
        let bootstrap = hub.client(&asking);
        let client = spoke.client(&rbac::enrolled(&Subject::registration_account()));
        let showing = hub.clone();
        let config = registration::Config {
            cluster_name: Some(of.clone()),
            agent_name: Some("embedded".into()),
            external_urls: vec![spoke.url().to_owned()],
            connect: Arc::new(move |credential| {
                let client =
                    showing.client_ahead_by_certificate(&credential.certificate).map_err(|e| e.to_string());
                Box::pin(async move { client })
            }),
            connection: to_hub.clone(),
            joined: has_joined.clone(),
            built_in: built_in.clone(),
            ready,
            hub_url: hub_url.clone(),
            ..registration::Config::new(registration::Endpoint::new(hub.url(), &ca))
        };
        let first = first.clone();
        Box::pin(async move {
            if !first.prepared(&stop).await {
                return Ok(());
            }
            registration::run(bootstrap, client, config, stop).await.context("registration agent")
        })
    });
    let registered = running.components().start("registration-agent", &name, run);
    ready.push((format!("registration agent of {name}"), registered));
    ready.push((format!("enrolment of {name}"), enrolled.clone()));

    let (spoke, of, first) = (wec.clone(), name.clone(), gate.clone());
    let known = enrolled.clone();
    let run: Run = Box::new(move |stop, ready| {
        let (hub_client, mut joined) = (connection.client(), joined.subscribe());
        let client = spoke.client_ahead(&rbac::enrolled(&Subject::work_agent_account()));
        let config = ocm_agent::work_agent::Config {
            ready: ready.clone(),
            ..ocm_agent::work_agent::Config::new(&of, &known_as)
        };
        let (first, known) = (first.clone(), known.clone());
        Box::pin(async move {
            let ready_to_go = async {
                first.accepted(known, &ready, &stop).await && joined.wait_for(|yes| *yes).await.is_ok()
            };
            tokio::select! {
                go = ready_to_go => if !go { return Ok(()) },
                () = stop.cancelled() => return Ok(()),
            }
            ocm_agent::work_agent::run(hub_client, client, config, stop).await.context("work agent")
        })
    });
    if running.runs(Elsewhere::WorkAgent) {
        ready.push((format!("work agent of {name}"), running.components().start("work-agent", &name, run)));
    }

    if let Some(addon) = reports {
        let of = name.clone();
        let run: Run = Box::new(move |stop, ready| {
            let client = wec.client_ahead(&rbac::enrolled(&Subject::status_agent_account()));
            let (first, known, addon, of) = (gate.clone(), enrolled.clone(), addon.clone(), of.clone());
            Box::pin(async move {
                if !first.accepted(known, &ready, &stop).await {
                    return Ok(());
                }
                let agent = |turn| {
                    let config =
                        status_addon::Config { ready: ready.clone(), ..status_addon::Config::new(&of) };
                    status_addon::run(client.clone(), addon.hub(), config, turn)
                };
                addon.run(client.clone(), ready.subscribe(), stop, agent).await.context("status agent")
            })
        });
        let started = running.components().start("status-agent", &name, run);
        ready.push((format!("status agent of {name}"), started));
    }
    Ok(())
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
