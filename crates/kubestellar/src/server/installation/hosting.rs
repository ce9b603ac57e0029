//! The spaces of ControlPlanes: started, suspended and deleted by order of the Space Manager.

use std::collections::HashSet;
use std::sync::Arc;

use apis::tenancy::ControlPlane;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use space::{Identity, Space};
use space_manager::{Access, Role, SpacesError, prepare, suspended_space, wanted_space};

use super::super::hosted::Order;
use super::super::wiring::{self, Departure, Host, Ready};
use super::Installation;
use crate::control::ComponentStatus;
use crate::exit::{Exit, Failure, OrFail};
use crate::kubeconfig::{self, Gone};
use crate::shape::{Cluster, HOST, Shape, SpaceName};

/// Why an order for a space of this name is refused, if it is.
enum Refused {
    /// The name cannot be a space's.
    Name(String),
    /// It is the host space, or the space of a cluster.
    Taken(String),
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

    /// Creates the ControlPlanes of the installation's own ITSes and WDSes, as far as they are missing.
    pub(super) async fn show_own_spaces(&self) -> Result<(), Failure> {
        let Some(host) = self.find(HOST) else { return Ok(()) };
        let client = host.client(&Identity::admin());
        let its = self.shape.its.iter().map(|its| prepare::its(its.as_str()));
        let wds = self.shape.wds.iter().map(|wds| prepare::wds(wds.name.as_str(), wds.its.as_str()));
        for plane in its.chain(wds) {
            prepare::ensure_control_plane(&client, &plane)
                .await
                .or_fail("showing the spaces in the host space")?;
        }
        Ok(())
    }

    /// Opens the spaces of the ControlPlanes of earlier runs, so that they serve once the server is ready (SP-042). The Space
    /// Manager reports what cannot be opened.
    pub(super) async fn open_known_spaces(&mut self) -> Result<(), Failure> {
        let Some(host) = self.find(HOST) else { return Ok(()) };
        let planes: Api<ControlPlane> = Api::all(host.client(&Identity::admin()));
        let planes = planes.list(&ListParams::default()).await.or_fail("reading the ControlPlanes")?;
        for plane in &planes.items {
            if let Some(role) = suspended_space(plane) {
                self.overview.suspend(&plane.name_any(), role_name(role));
            }
        }
        let wanted = planes.items.iter().filter_map(|plane| Some((plane.name_any(), wanted_space(plane)?)));
        let wanted: Vec<(String, Role)> = wanted.filter(|(name, _)| self.find(name).is_none()).collect();
        if !wanted.is_empty() {
            self.open_hosted(&wanted).await;
        }
        self.show_waiting();
        let planes = planes.items.iter().filter(|plane| plane.metadata.deletion_timestamp.is_none());
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

    /// Carries out orders. Spaces are started together, everything else one after the other.
    pub(super) async fn obey(&mut self, orders: Vec<Order>) {
        let (mut opening, mut others) = (Vec::new(), Vec::new());
        for order in orders {
            match order {
                Order::Open { space, role, answer } => opening.push((space, role, answer)),
                other => others.push(other),
            }
        }
        let wanted: Vec<(String, Role)> =
            opening.iter().map(|(space, role, _)| (space.clone(), *role)).collect();
        let mut outcomes = self.open_hosted(&wanted).await.into_iter();
        for (_, _, answer) in opening {
            let outcome = outcomes.next().unwrap_or_else(|| Err(SpacesError("it was not started".into())));
            let _ = answer.send(outcome);
        }
        let (mut deleted, mut gone) = (Vec::new(), HashSet::new());
        // Whoever asked may have been stopped meanwhile: then nobody reads the answer.
        for order in others {
            match order {
                Order::Open { .. } => {}
                Order::Suspend { space, answer } => {
                    let outcome = self.stop_hosted(&space).await;
                    if outcome.is_ok() {
                        self.overview.suspend(&space, role_name(Role::Plain));
                    }
                    let _ = answer.send(outcome.map_err(|refused| refused.into()));
                }
                Order::Delete { space, answer } => {
                    deleted.push((answer, self.delete_hosted(&space).await));
                    gone.insert(space);
                }
                Order::Run { space, component, answer } => {
                    let ran = wiring::run_component(self.parts(), &space, &component).await;
                    let _ = answer.send(ran.map_err(|failure| error(&failure)));
                }
                Order::Client { space, answer } => {
                    let found = self.find(&space).map(|space| space.client(&Identity::admin()));
                    let _ = answer
                        .send(found.ok_or_else(|| SpacesError(format!("the space {space} does not run"))));
                }
            }
        }
        self.show_waiting();
        if !deleted.is_empty() {
            self.refresh_kubeconfig();
            // A name that was refused is that of a space that stays.
            gone.retain(|space| self.find(space).is_none());
            self.follow_kubeconfigs(Gone::Only(gone)).await;
        }
        for (answer, outcome) in deleted {
            let _ = answer.send(outcome);
        }
    }

    /// Writes the kubeconfig of the data directory. Its cost grows with the number of spaces, so it is written once for many
    /// orders. A failure is logged: the next order tries again.
    fn refresh_kubeconfig(&self) {
        if let Err(failure) = self.write_kubeconfig(&self.shape) {
            tracing::error!(what = failure.what, why = failure.why, "the kubeconfig could not be written");
        }
    }

    /// Opens spaces, and returns the outcome of each in the same order. Cost: one write of the kubeconfig for all.
    async fn open_hosted(&mut self, wanted: &[(String, Role)]) -> Vec<Result<Access, SpacesError>> {
        let new = wanted.iter().filter(|(name, _)| self.find(name).is_none() && self.refusal(name).is_none());
        let new: Vec<(String, &str)> = new.map(|(name, role)| (name.clone(), role_name(*role))).collect();
        let mut failures = Vec::new();
        if !new.is_empty() {
            failures = self.try_start_spaces(&new).await;
            for (name, _) in &new {
                if let Err(failure) = self.start_components_of(name) {
                    failures.push((name.clone(), failure));
                }
            }
            self.refresh_kubeconfig();
            self.follow_kubeconfigs(Gone::Only(HashSet::new())).await;
        }
        let outcome = |(name, _): &(String, Role)| {
            if let Some(refused) = self.refusal(name) {
                return Err(refused.into());
            }
            if let Some((_, failure)) = failures.iter().find(|(failed, _)| failed == name) {
                return Err(error(failure));
            }
            let space =
                self.find(name).ok_or_else(|| SpacesError(format!("the space {name} does not run")))?;
            Ok(self.access(space))
        };
        wanted.iter().map(outcome).collect()
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

    /// Stops a space and everything that works with it. New requests are answered with 503 from now on, and watches end.
    async fn stop_hosted(&mut self, name: &str) -> Result<(), Refused> {
        if let Some(refused) = self.refusal(name) {
            return Err(refused);
        }
        self.components.stop_of(name).await;
        self.router.pause(name);
        if let Some(at) = self.spaces.iter().position(|(space, _)| space.name() == name) {
            let (space, _) = self.spaces.remove(at);
            space.stop().await;
        }
        Ok(())
    }

    async fn delete_hosted(&mut self, name: &str) -> Result<(), SpacesError> {
        match self.stop_hosted(name).await {
            Ok(()) => {}
            // No ControlPlane has ever had a space of this name.
            Err(Refused::Name(_) | Refused::Taken(_)) => return Ok(()),
        }
        self.overview.remove(name);
        self.remove_data(name).await.map_err(|failure| error(&failure))?;
        self.router.remove(name);
        let of_up = self.shape.spaces().into_iter().any(|(known, _)| known.as_str() == name);
        if !of_up {
            return Ok(());
        }
        self.shape.its.retain(|its| its.as_str() != name);
        self.shape.wds.retain(|wds| wds.name.as_str() != name);
        self.shape.save(&self.data).map_err(|failure| error(&failure))
    }

    /// Removes data and keys from the disk (SP-051).
    async fn remove_data(&self, name: &str) -> Result<(), Failure> {
        let what = format!("removing the data of {name}");
        self.engine.remove_space(name).await.or_fail(&what)?;
        match tokio::fs::remove_dir_all(self.data.path().join("spaces").join(name)).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).or_fail(what),
            _ => Ok(()),
        }
    }

    fn refusal(&self, name: &str) -> Option<Refused> {
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

fn error(failure: &Failure) -> SpacesError {
    SpacesError(format!("{}: {}", failure.what, failure.why))
}

/// What `status` calls the role of a space.
fn role_name(role: Role) -> &'static str {
    match role {
        Role::Its => "its",
        Role::Wds => "wds",
        Role::Plain => "space",
    }
}
