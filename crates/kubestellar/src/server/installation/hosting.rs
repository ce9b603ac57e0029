//! The spaces of ControlPlanes: started, suspended and deleted by order of the Space Manager.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use apis::tenancy::ControlPlane;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use space::{Identity, Space};
use space_manager::{Access, Role, SpacesError, is_embedded, prepare, suspended_space, wanted_space};

use super::super::hosted::Order;
use super::super::wiring::{self, Departure, Host, Ready};
use super::Installation;
use crate::control::ComponentStatus;
use crate::exit::{Exit, Failure, OrFail};
use crate::kubeconfig::{self, Gone};
use crate::shape::{Cluster, HOST, Shape, SpaceName};

/// Why an order for a space of this name is refused, if it is.
pub(super) enum Refused {
    /// The name cannot be a space's.
    Name(String),
    /// It is the host space, or the space of a cluster.
    Taken(String),
}

/// A space that is to be opened.
pub(super) struct Wanted {
    pub(super) name: String,
    /// UID of its ControlPlane.
    pub(super) owner: String,
    pub(super) role: Role,
}

impl Installation {
    /// Starts the host space's controllers and its Space Manager.
    pub(super) fn start_host(&mut self, ready: &mut Ready) -> Result<(), Failure> {
        let Some(space) = self.find(HOST).cloned() else { return Ok(()) };
        let host = Host {
            space,
            spaces: self.hosted.clone(),
            ca_pem: self.ca_pem.clone(),
            port: self.shape.listen.port(),
        };
        wiring::start_host(self.parts(), &host, ready)
    }

    /// Creates the ControlPlanes of the installation's own ITSes and WDSes, as far as they are missing. Such a space belongs to the
    /// installation as well: it keeps its data when the installation makes its ControlPlane once more.
    pub(super) async fn show_own_spaces(&mut self) -> Result<(), Failure> {
        const WHAT: &str = "showing the spaces in the host space";
        let Some(host) = self.find(HOST) else { return Ok(()) };
        let client = host.client(&Identity::admin());
        let its = self.shape.its.iter().map(|its| (its.to_string(), prepare::its(its.as_str())));
        let wds = self.shape.wds.iter();
        let wds = wds.map(|wds| (wds.name.to_string(), prepare::wds(wds.name.as_str(), wds.its.as_str())));
        let own: Vec<_> = its.chain(wds).collect();
        for (name, plane) in own {
            let created = prepare::ensure_control_plane(&client, &plane).await.or_fail(WHAT)?;
            if (created || self.owners.of(&name).is_none())
                && let Some(uid) = self.uid_of_plane(&name).await?
            {
                self.owners.bind(&name, &uid).or_fail(WHAT)?;
            }
        }
        Ok(())
    }

    /// The UID of the ControlPlane of this name, if there is one.
    pub(super) async fn uid_of_plane(&self, name: &str) -> Result<Option<String>, Failure> {
        let Some(host) = self.find(HOST) else { return Ok(None) };
        let planes: Api<ControlPlane> = Api::all(host.client(&Identity::admin()));
        let found = planes.get_metadata_opt(name).await;
        Ok(found.or_fail(format!("reading the ControlPlane {name}"))?.and_then(|found| found.uid()))
    }

    /// Opens the spaces of the ControlPlanes of earlier runs, so that they serve once the server is ready (SP-042). The Space
    /// Manager reports what cannot be opened. Spaces whose ControlPlane is gone are set aside.
    pub(super) async fn open_known_spaces(&mut self) -> Result<(), Failure> {
        let Some(host) = self.find(HOST) else { return Ok(()) };
        let planes: Api<ControlPlane> = Api::all(host.client(&Identity::admin()));
        let planes = planes.list(&ListParams::default()).await.or_fail("reading the ControlPlanes")?.items;
        let uids: BTreeMap<String, String> =
            planes.iter().map(|plane| (plane.name_any(), plane.uid().unwrap_or_default())).collect();
        // Spaces of earlier versions, and those whose keys the operator removed, belong to the ControlPlane that is there.
        for plane in planes.iter().filter(|plane| is_embedded(plane)) {
            let name = plane.name_any();
            if self.owners.of(&name).is_none() && self.refusal(&name).is_none() {
                let bound = self.owners.bind(&name, &plane.uid().unwrap_or_default());
                bound.or_fail(format!("opening the space {name}"))?;
            }
        }
        let abandoned =
            self.owners.iter().filter(|(name, uid)| uids.get(*name).is_none_or(|known| known != uid));
        let abandoned: Vec<String> = abandoned.map(|(name, _)| name.to_owned()).collect();
        for name in abandoned {
            self.set_aside(&name).await?;
        }
        for plane in &planes {
            if let Some(role) = suspended_space(plane) {
                self.overview.suspend(&plane.name_any(), role_name(role));
            }
        }
        let wanted = planes.iter().filter_map(|plane| {
            let role = wanted_space(plane)?;
            Some(Wanted { name: plane.name_any(), owner: plane.uid().unwrap_or_default(), role })
        });
        let wanted: Vec<Wanted> = wanted.filter(|one| self.find(&one.name).is_none()).collect();
        if !wanted.is_empty() {
            self.open_hosted(&wanted).await;
        }
        self.show_waiting();
        let planes = planes.iter().filter(|plane| plane.metadata.deletion_timestamp.is_none());
        let there = planes.map(|plane| plane.name_any());
        let own = self.shape.spaces().into_iter().map(|(name, _)| name.to_string());
        let there = there.chain(own).chain([HOST.to_owned()]).collect();
        self.follow_kubeconfigs(Gone::AllBut(there)).await;
        Ok(())
    }

    /// Shows which components of `up` do not run because their ITS does not, and why.
    pub(super) fn show_waiting(&self) {
        let wds = self.shape.wds.iter().map(|wds| ("controller-manager", &wds.name, &wds.its));
        let clusters = self
            .shape
            .clusters
            .iter()
            .filter(|one| !one.detached)
            .map(|one| ("enrolment", &one.name, &one.its));
        let waiting = wds.chain(clusters).filter(|(component, space, its)| {
            self.find(its.as_str()).is_none()
                && self.find(space.as_str()).is_some()
                && self.components.status_of(component, space.as_str()).is_none()
        });
        let waiting = waiting.map(|(component, space, its)| {
            let why = if self.overview.is_suspended(its.as_str()) {
                format!("its inventory space {its} is suspended")
            } else {
                format!("its inventory space {its} does not exist; `up --its {its}` makes it again")
            };
            ComponentStatus {
                name: component.to_owned(),
                space: space.to_string(),
                ready: false,
                restarts: 0,
                last_error: Some(why),
            }
        });
        self.overview.wait(waiting.collect());
    }

    /// Renews the contexts of this installation in the users' kubeconfig files, and removes those of spaces that are gone. What
    /// cannot be changed is logged: the next `up` tries again.
    pub(super) async fn follow_kubeconfigs(&self, gone: Gone) {
        if self.shape.kubeconfigs.is_empty() {
            return;
        }
        let (files, id, entries) =
            (self.shape.kubeconfigs.clone(), self.shape.installation.clone(), self.entries());
        let follow = move || kubeconfig::follow_in(&files, &id, &entries, &gone);
        match tokio::task::spawn_blocking(follow).await {
            Ok(failures) => {
                for failure in failures {
                    tracing::warn!(what = failure.what, why = failure.why, "a kubeconfig keeps old contexts");
                }
            }
            Err(error) => tracing::error!(%error, "changing the users' kubeconfigs"),
        }
    }

    /// Fails if a new cluster would take the name of the space of a ControlPlane.
    pub(super) fn check_names(&self, wanted: &Shape) -> Result<(), Failure> {
        let roles = &self.spaces;
        let taken = |cluster: &&Cluster| {
            roles.iter().any(|(space, role)| space.name() == cluster.name.as_str() && *role != "wec")
        };
        match wanted.clusters.iter().find(taken) {
            Some(cluster) => Err(Failure::new(
                Exit::Conflict,
                format!("adding the cluster {}", cluster.name),
                "a ControlPlane has this name",
            )),
            None => Ok(()),
        }
    }

    /// Returns whether the agents of a cluster run.
    pub(super) fn has_joined(&self, cluster: &Cluster) -> bool {
        self.components.status_of("enrolment", cluster.name.as_str()).is_some()
    }

    /// Ends the agents of a cluster that somebody took out of the inventory, and remembers how far it is out.
    pub(super) async fn let_go(&mut self, news: Departure) {
        let (cluster, out) = match &news {
            Departure::Out(cluster) => (cluster, true),
            Departure::Over(cluster) => (cluster, false),
        };
        let awaited =
            |one: &&mut Cluster| one.name == *cluster && if out { !one.detached } else { one.leaving };
        let Some(known) = self.shape.clusters.iter_mut().find(awaited) else { return };
        (known.detached, known.leaving) = (true, out);
        let known = known.clone();
        tracing::info!(%cluster, out, "it was taken out of the inventory");
        let done = match self.shape.save(&self.data) {
            Ok(()) if out => wiring::leave(self.parts(), &known).await,
            Ok(()) => {
                wiring::stay(self.parts(), cluster.as_str()).await;
                Ok(())
            }
            Err(failure) => Err(failure),
        };
        if let Err(failure) = done {
            tracing::error!(what = failure.what, why = failure.why, %cluster, "taking the cluster out");
        }
    }

    /// Carries out orders. Spaces are started together and deleted together, everything else is done one after the other.
    pub(super) async fn obey(&mut self, orders: Vec<Order>) {
        let (mut opening, mut wanted) = (Vec::new(), Vec::new());
        let (mut deleting, mut doomed) = (Vec::new(), Vec::new());
        let mut others = Vec::new();
        for order in orders {
            match order {
                Order::Open { space: name, owner, role, answer } => {
                    opening.push(answer);
                    wanted.push(Wanted { name, owner, role });
                }
                Order::Delete { space, owner, answer } => {
                    deleting.push(answer);
                    doomed.push((space, owner));
                }
                other => others.push(other),
            }
        }
        // Whoever asked may have been stopped meanwhile: then nobody reads the answer.
        for (answer, outcome) in opening.into_iter().zip(self.open_hosted(&wanted).await) {
            let _ = answer.send(outcome);
        }
        for order in others {
            self.obey_one(order).await;
        }
        self.show_waiting();
        if !doomed.is_empty() {
            let outcomes = self.delete_hosted(&doomed).await;
            self.show_waiting();
            self.refresh_kubeconfig();
            // A name that was refused is that of a space that stays.
            let gone = doomed.into_iter().map(|(name, _)| name).filter(|name| self.find(name).is_none());
            self.follow_kubeconfigs(Gone::Only(gone.collect())).await;
            for (answer, outcome) in deleting.into_iter().zip(outcomes) {
                let _ = answer.send(outcome);
            }
        }
    }

    async fn obey_one(&mut self, order: Order) {
        match order {
            Order::Open { .. } | Order::Delete { .. } => {}
            Order::Suspend { space, answer } => {
                let outcome = self.suspend_hosted(&space).await;
                let _ = answer.send(outcome.map_err(|refused| refused.into()));
            }
            Order::Abandoned { space, answer } => {
                let outcome = self.set_aside_if_abandoned(&space).await;
                let _ = answer.send(outcome.map_err(|failure| error(&failure)));
            }
            Order::Run { space, component, answer } => {
                let ran = wiring::run_component(self.parts(), &space, &component).await;
                let _ = answer.send(ran.map_err(|failure| error(&failure)));
            }
            Order::Client { space, answer } => {
                let found = self.find(&space).map(|space| space.client(&Identity::admin()));
                let missing = || SpacesError(format!("the space {space} does not run"));
                let _ = answer.send(found.ok_or_else(missing));
            }
        }
    }

    /// Writes the kubeconfig of the data directory. Its cost grows with the number of spaces, so it is written once for many
    /// orders. A failure is logged: the next order tries again.
    pub(super) fn refresh_kubeconfig(&self) {
        if let Err(failure) = self.write_kubeconfig(&self.shape) {
            tracing::error!(what = failure.what, why = failure.why, "the kubeconfig could not be written");
        }
    }

    /// Opens spaces, and returns the outcome of each in the same order. Cost: one write of the kubeconfig for all.
    pub(super) async fn open_hosted(&mut self, wanted: &[Wanted]) -> Vec<Result<Access, SpacesError>> {
        let mut failures = BTreeMap::new();
        for one in wanted {
            if self.refusal(&one.name).is_none()
                && let Err(failure) = self.claim(one).await
            {
                failures.insert(one.name.clone(), failure);
            }
        }
        let may_start = |name: &String| {
            self.find(name).is_none() && self.refusal(name).is_none() && !failures.contains_key(name)
        };
        let new = wanted.iter().filter(|one| may_start(&one.name));
        let new: Vec<(String, &str)> = new.map(|one| (one.name.clone(), role_name(one.role))).collect();
        if !new.is_empty() {
            failures.extend(self.try_start_spaces(&new).await);
            for (name, _) in &new {
                if let Err(failure) = self.start_components_of(name) {
                    failures.insert(name.clone(), failure);
                }
            }
            self.refresh_kubeconfig();
            self.follow_kubeconfigs(Gone::Only(HashSet::new())).await;
        }
        let outcome = |Wanted { name, .. }: &Wanted| {
            if let Some(refused) = self.refusal(name) {
                return Err(refused.into());
            }
            if let Some(failure) = failures.get(name) {
                return Err(error(failure));
            }
            let space =
                self.find(name).ok_or_else(|| SpacesError(format!("the space {name} does not run")))?;
            Ok(self.access(space))
        };
        wanted.iter().map(outcome).collect()
    }

    /// Makes a ControlPlane the owner of the space of its name. What others left under the name is set aside before (SP-045).
    async fn claim(&mut self, wanted: &Wanted) -> Result<(), Failure> {
        let Wanted { name, owner, .. } = wanted;
        match self.owners.of(name) {
            Some(known) if known == owner => return Ok(()),
            None if self.is_own(name) || !self.has_data(name) => {}
            Some(_) | None => self.set_aside(name).await?,
        }
        self.owners.bind(name, owner).or_fail(format!("opening the space {name}"))
    }

    /// Returns whether anything is kept under this name.
    fn has_data(&self, name: &str) -> bool {
        self.data.spaces().join(name).exists() || self.engine.spaces().iter().any(|known| known == name)
    }

    /// Starts the controllers of a space, and the agents of the clusters that have it as their ITS: they end when it is suspended.
    fn start_components_of(&mut self, name: &str) -> Result<(), Failure> {
        if self.find(name).is_none() {
            return Ok(());
        }
        wiring::start_hosted(self.parts(), name)?;
        let waiting = self
            .shape
            .clusters
            .iter()
            .filter(|one| one.its.as_str() == name && !one.detached && !self.has_joined(one));
        let waiting: Vec<Cluster> = waiting.cloned().collect();
        let waiting: Vec<&Cluster> = waiting.iter().collect();
        wiring::join(self.parts(), &waiting, &mut Ready::new())
    }

    fn access(&self, space: &Arc<Space>) -> Access {
        let keys = space.keys();
        Access {
            url: space.url().to_owned(),
            server_name: self.server_name(space.name()),
            ca_pem: self.ca_pem.clone(),
            certificate_pem: keys.admin_cert.clone(),
            key_pem: keys.admin_key.clone(),
        }
    }

    pub(super) fn refusal(&self, name: &str) -> Option<Refused> {
        if name == HOST {
            return Some(Refused::Taken(format!("{name} is the host space of this installation")));
        }
        if let Err(why) = name.parse::<SpaceName>() {
            return Some(Refused::Name(why));
        }
        let is_cluster = self.shape.clusters.iter().any(|cluster| cluster.name.as_str() == name);
        is_cluster.then(|| Refused::Taken(format!("{name} is a cluster of this installation")))
    }
}

impl From<Refused> for SpacesError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Name(why) => Self(why),
            Refused::Taken(why) => Self(format!("{why}; choose another name")),
        }
    }
}

pub(super) fn error(failure: &Failure) -> SpacesError {
    SpacesError(format!("{}: {}", failure.what, failure.why))
}

/// What `status` calls the role of a space.
pub(super) fn role_name(role: Role) -> &'static str {
    match role {
        Role::Its => "its",
        Role::Wds => "wds",
        Role::Plain => "space",
    }
}
