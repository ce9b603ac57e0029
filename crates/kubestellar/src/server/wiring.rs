//! Which components run for which space. The only place where embedded spaces and components meet: a component
//! gets clients, a configuration and a token, and can't tell an embedded space from a distant cluster.

use std::sync::Arc;

use anyhow::Context as _;
use kube::Client;
use ocm::enroll::rbac::Subject;
use space::controllers::CsrSigner;
use space::{Identity, Space, controllers, workloads};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Failure, OrFail};
use crate::shape::{Cluster, Shape, SpaceName, Wds};

use super::Run;
use super::installation::Installation;
use super::rbac;

type Ready = Vec<(String, watch::Receiver<bool>)>;

/// Starts the components of everything in `wanted` that does not run yet.
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
        hub(running, its).await?;
    }
    for wds in wanted.wds.iter().filter(|w| !known.wds.contains(w)) {
        description_space(running, wds, ready).await?;
    }
    let had: &[Wds] = if known.metacontroller { &known.wds } else { &[] };
    for wds in wanted.wds.iter().filter(|w| wanted.metacontroller && !had.contains(w)) {
        metacontroller(running, &wds.name, ready).await?;
    }
    for cluster in wanted.clusters.iter().filter(|c| known.clusters.iter().all(|k| k.name != c.name)) {
        execution_cluster(running, cluster, ready)?;
    }
    Ok(())
}

fn find(running: &Installation, name: &str) -> Result<Arc<Space>, Failure> {
    running.space(name).cloned().ok_or_else(|| {
        Failure::new(Exit::NotFound, format!("starting the components of {name}"), "no such space")
    })
}

fn client(running: &Installation, name: &SpaceName, identity: &Identity) -> Result<Client, Failure> {
    Ok(find(running, name.as_str())?.client(identity))
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

/// Definitions of the inventory and of the transport.
async fn hub(running: &mut Installation, its: &SpaceName) -> Result<(), Failure> {
    let client = client(running, its, &Identity::admin())?;
    let mut crds = apis::crds::ocm_hub();
    crds.extend(apis::crds::work_status());
    runtime::install(&client, &crds, MANAGER).await.or_fail(format!("defining the API kinds of {its}"))
}

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
    let run: Run = Box::new(move |stop, ready| {
        let (wds, its) = (w.client(&rbac::controller_manager()), i.client(&rbac::controller_manager()));
        let config = controller_manager::Config { ready, ..controller_manager::Config::new(&of, &its_name) };
        Box::pin(async move {
            controller_manager::run(wds, its, config, stop).await.context("controller manager")
        })
    });
    ready.push((
        format!("controllers of {name}"),
        running.components().start("controller-manager", &name, run),
    ));
    let of = name.clone();
    let run: Run = Box::new(move |stop, ready| {
        let (wds, its) = (wds_space.client(&rbac::transport()), its_space.client(&rbac::transport()));
        let config = transport::Config { ready, ..transport::Config::new(&of) };
        Box::pin(async move { transport::run(wds, its, config, stop).await.context("transport controller") })
    });
    ready.push((
        format!("transport of {name}"),
        running.components().start("transport-controller", &name, run),
    ));
    Ok(())
}

/// Metacontroller in one space, with its definitions.
async fn metacontroller(
    running: &mut Installation,
    name: &SpaceName,
    ready: &mut Ready,
) -> Result<(), Failure> {
    let admin = client(running, name, &Identity::admin())?;
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

/// Enrolment and the two agents of one simulated cluster. The agents get what a distant cluster's agents have: a
/// client of the cluster and one of the inventory space, each with the rights that enrolment grants them. Enrolment
/// stands for the hub's controllers and for the installer in the cluster, which hand out those rights, and so acts as
/// an administrator of both.
fn execution_cluster(
    running: &mut Installation,
    cluster: &Cluster,
    ready: &mut Ready,
) -> Result<(), Failure> {
    let name = cluster.name.to_string();
    let (wec, its) = (find(running, &name)?, find(running, cluster.its.as_str())?);
    let (hub, spoke, of) = (its.clone(), wec.clone(), cluster.clone());
    let run: Run = Box::new(move |stop, ready| {
        let enrolment = Identity::component("kubestellar:enrolment", &["system:masters"]);
        let (hub_client, client) = (hub.client(&enrolment), spoke.client(&enrolment));
        let config = ocm::enroll::Config {
            labels: of.labels.clone(),
            url: spoke.url().to_owned(),
            ready,
            ..ocm::enroll::Config::new(of.name.as_str())
        };
        Box::pin(async move { ocm::enroll::run(hub_client, client, config, stop).await.context("enrolment") })
    });
    let accepted = running.components().start("enrolment", &name, run);
    ready.push((format!("enrolment of {name}"), accepted.clone()));

    let (hub, spoke, of, first) = (its.clone(), wec.clone(), name.clone(), accepted.clone());
    let run: Run = Box::new(move |stop, ready| {
        let hub_client = hub.client(&rbac::enrolled(&Subject::klusterlet(&of, "work-agent")));
        let client = spoke.client(&rbac::enrolled(&Subject::work_agent_account()));
        let config = ocm::work_agent::Config { ready, ..ocm::work_agent::Config::new(&of, hub.url()) };
        let first = first.clone();
        Box::pin(async move {
            if !after(first, &stop).await {
                return Ok(());
            }
            ocm::work_agent::run(hub_client, client, config, stop).await.context("work agent")
        })
    });
    ready.push((format!("work agent of {name}"), running.components().start("work-agent", &name, run)));

    let of = name.clone();
    let run: Run = Box::new(move |stop, ready| {
        let hub_client = its.client(&rbac::enrolled(&Subject::status_addon(&of)));
        let client = wec.client(&rbac::enrolled(&Subject::status_agent_account()));
        let config = status_addon::Config { ready, ..status_addon::Config::new(&of) };
        let first = accepted.clone();
        Box::pin(async move {
            if !after(first, &stop).await {
                return Ok(());
            }
            status_addon::run(client, hub_client, config, stop).await.context("status agent")
        })
    });
    ready.push((format!("status agent of {name}"), running.components().start("status-agent", &name, run)));
    Ok(())
}

/// Waits until the cluster is accepted: before, its agents may do nothing. False when told to stop.
async fn after(mut accepted: watch::Receiver<bool>, stop: &CancellationToken) -> bool {
    tokio::select! {
        waited = accepted.wait_for(|yes| *yes) => waited.is_ok(),
        () = stop.cancelled() => false,
    }
}
