//! The shape of an installation: its spaces and clusters, as `up` asked for them. It is kept across restarts (SP-100, SP-102).

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::datadir::{DataDir, write_atomically};
use crate::exit::{Exit, Failure, OrFail};

/// The default address; the port is that of the original's ingress (SP-055).
pub(crate) const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9443);

/// The host space, which holds the ControlPlanes. No other space has its name.
pub(crate) const HOST: &str = "kubestellar";

/// Name of a space: a DNS-1123 label, at most 56 bytes so that `<name>-system` is one too (SP-003).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct SpaceName(String);

impl SpaceName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for SpaceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for SpaceName {
    type Err = String;

    fn from_str(raw: &str) -> Result<Self, String> {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let edge = |c: Option<char>| c.is_some_and(|c| c != '-');
        let valid =
            raw.len() <= 56 && raw.chars().all(inner) && edge(raw.chars().next()) && edge(raw.chars().last());
        if !valid {
            return Err(format!("{raw:?} is not a DNS-1123 label of at most 56 characters"));
        }
        if raw == "kubeflex" || raw == HOST {
            return Err(format!("{raw:?} is a reserved name"));
        }
        Ok(Self(raw.to_owned()))
    }
}

impl TryFrom<String> for SpaceName {
    type Error = String;

    fn try_from(raw: String) -> Result<Self, String> {
        raw.parse()
    }
}

impl From<SpaceName> for String {
    fn from(name: SpaceName) -> Self {
        name.0
    }
}

/// A workload description space and the ITS it delivers through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wds {
    pub(crate) name: SpaceName,
    pub(crate) its: SpaceName,
}

/// A simulated workload execution cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cluster {
    pub(crate) name: SpaceName,
    pub(crate) its: SpaceName,
    /// Labels that the user asked for. The ManagedCluster gets each label once: at the enrolment, or when it is asked for. Later
    /// edits of the object stay.
    pub(crate) labels: BTreeMap<String, String>,
    /// The labels that the ManagedCluster has been given; `None` before its enrolment.
    #[serde(default)]
    pub(crate) given: Option<BTreeMap<String, String>>,
    /// Somebody took the cluster out of the inventory. Its space stays; it joins again when it is asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) detached: bool,
    /// What its agents had in it is still to be removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) leaving: bool,
}

impl Cluster {
    /// Returns the labels that the ManagedCluster has not been given yet.
    pub(crate) fn new_labels(&self) -> BTreeMap<String, String> {
        let given =
            |key: &String, value: &String| self.given.as_ref().and_then(|all| all.get(key)) == Some(value);
        let new = self.labels.iter().filter(|(key, value)| !given(key, value));
        new.map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    /// Identity of the installation. It marks the kubeconfig entries of the installation.
    pub(crate) installation: String,
    pub(crate) its: Vec<SpaceName>,
    pub(crate) wds: Vec<Wds>,
    pub(crate) clusters: Vec<Cluster>,
    pub(crate) listen: SocketAddr,
    /// The address at which the installation listened first. Agents of embedded clusters name the objects that record
    /// ownership after this address of their hub (OCM-015), also when the address changes. Under another name they would
    /// own everything a second time, and the first ownership would never be released.
    #[serde(default)]
    pub(crate) first_listen: Option<SocketAddr>,
    pub(crate) simulate_workloads: bool,
    /// Metacontroller runs in every WDS.
    #[serde(default)]
    pub(crate) metacontroller: bool,
    /// Helm's releases are labelled in every WDS.
    #[serde(default)]
    pub(crate) label_helm_releases: bool,
    /// StatusCollectors may read the contents of Secrets.
    #[serde(default)]
    pub(crate) collectors_read_secrets: bool,
    /// The users' kubeconfig files that `up` has put contexts into. The server renews these contexts, and removes those of
    /// deleted spaces.
    #[serde(default)]
    pub(crate) kubeconfigs: Vec<PathBuf>,
}

/// Most kubeconfig files that an installation remembers.
const KUBECONFIGS: usize = 16;

/// The options of one `up`. An absent option keeps the present state, or the default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wish {
    pub(crate) its: Vec<SpaceName>,
    pub(crate) wds: Vec<(SpaceName, Option<SpaceName>)>,
    pub(crate) clusters: Option<usize>,
    pub(crate) labels: Vec<(SpaceName, BTreeMap<String, String>)>,
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) simulate_workloads: Option<bool>,
    pub(crate) metacontroller: Option<bool>,
    pub(crate) label_helm_releases: Option<bool>,
    pub(crate) collectors_read_secrets: Option<bool>,
    /// Kubeconfig files that get the contexts.
    pub(crate) kubeconfigs: Vec<PathBuf>,
}

impl Shape {
    /// Reads the shape from the data directory, if there is one.
    pub(crate) fn load(data: &DataDir) -> Result<Option<Self>, Failure> {
        let what = || format!("reading {}", data.shape().display());
        match fs::read(data.shape()) {
            Ok(text) => Self::read(&text).map(Some).or_fail(what()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(data.not_permitted()),
            Err(error) => Err(Failure::new(Exit::Failed, what(), error)),
        }
    }

    fn read(text: &[u8]) -> Result<Self, serde_json::Error> {
        let mut shape: Self = serde_json::from_slice(text)?;
        // A shape of an earlier version: its agents use the last address, and its clusters are enrolled.
        if shape.first_listen.is_none() {
            shape.first_listen = Some(shape.listen);
            for cluster in &mut shape.clusters {
                cluster.given = Some(cluster.labels.clone());
            }
        }
        Ok(shape)
    }

    pub(crate) fn save(&self, data: &DataDir) -> Result<(), Failure> {
        let text = serde_json::to_vec_pretty(self).or_fail("writing the installation's shape")?;
        write_atomically(&data.shape(), &text, 0o600).or_fail(format!("writing {}", data.shape().display()))
    }

    /// Returns the shape that has everything in `known` and in `wish` (SP-102).
    pub(crate) fn fulfil(known: Option<&Self>, wish: &Wish, new_id: &str) -> Result<Self, Failure> {
        let mut shape = known.cloned().unwrap_or_else(|| Self::bare(new_id));
        add_all(&mut shape.its, &wish.its);
        // Only a new installation gets what nobody asked for: somebody may have deleted the ControlPlanes of an older one.
        if known.is_none() && shape.its.is_empty() {
            shape.its.push(reserved_free("its1")?);
        }
        for (name, its) in &wish.wds {
            shape.add_wds(name, its.as_ref())?;
        }
        if known.is_none() && shape.wds.is_empty() {
            shape.add_wds(&reserved_free("wds1")?, None)?;
        }
        let count = wish.clusters.unwrap_or(if known.is_some() { 0 } else { 2 });
        for n in 1..=count {
            shape.add_cluster(&reserved_free(&format!("cluster{n}"))?)?;
        }
        for (cluster, labels) in &wish.labels {
            let found = shape.clusters.iter_mut().find(|c| c.name == *cluster).ok_or_else(|| {
                Failure::new(Exit::NotFound, format!("labelling {cluster}"), "no such cluster")
            })?;
            found.labels.extend(labels.clone());
            if let Some(given) = &mut found.given {
                // Also if the user changed them since.
                given.retain(|key, _| !labels.contains_key(key));
            }
        }
        shape.listen = wish.listen.unwrap_or(shape.listen);
        shape.simulate_workloads = wish.simulate_workloads.unwrap_or(shape.simulate_workloads);
        shape.metacontroller |= wish.metacontroller.unwrap_or_default();
        shape.label_helm_releases |= wish.label_helm_releases.unwrap_or_default();
        shape.collectors_read_secrets = wish.collectors_read_secrets.unwrap_or(shape.collectors_read_secrets);
        for file in &wish.kubeconfigs {
            shape.remember_kubeconfig(file);
        }
        shape.check_names()?;
        Ok(shape)
    }

    /// Returns all spaces with their roles, in the order of reports.
    pub(crate) fn spaces(&self) -> Vec<(&SpaceName, &'static str)> {
        let its = self.its.iter().map(|n| (n, "its"));
        let wds = self.wds.iter().map(|w| (&w.name, "wds"));
        its.chain(wds).chain(self.clusters.iter().map(|c| (&c.name, "wec"))).collect()
    }

    /// Sets the address at which the installation listens now.
    pub(crate) fn listens(&mut self, address: SocketAddr) {
        self.listen = address;
        self.first_listen.get_or_insert(address);
    }

    /// Returns the URL by which agents of embedded clusters know an ITS. It does not change with the address.
    pub(crate) fn lasting_url(&self, its: &SpaceName) -> String {
        space_url(self.first_listen.unwrap_or(self.listen), its.as_str())
    }

    fn bare(id: &str) -> Self {
        Self {
            installation: id.to_owned(),
            its: vec![],
            wds: vec![],
            clusters: vec![],
            listen: DEFAULT_LISTEN,
            first_listen: None,
            simulate_workloads: true,
            metacontroller: false,
            label_helm_releases: false,
            collectors_read_secrets: false,
            kubeconfigs: vec![],
        }
    }

    /// Remembers a kubeconfig file, and forgets the oldest one if there are too many. A path that JSON cannot hold is left out.
    fn remember_kubeconfig(&mut self, file: &Path) {
        let Ok(file) = std::path::absolute(file) else { return };
        if file.to_str().is_none() || self.kubeconfigs.contains(&file) {
            return;
        }
        self.kubeconfigs.push(file);
        let surplus = self.kubeconfigs.len().saturating_sub(KUBECONFIGS);
        self.kubeconfigs.drain(..surplus);
    }

    fn add_wds(&mut self, name: &SpaceName, its: Option<&SpaceName>) -> Result<(), Failure> {
        let its = self.its_for(&format!("adding the WDS {name}"), its)?;
        match self.wds.iter().find(|w| w.name == *name) {
            Some(known) if known.its != its => Err(Failure::new(
                Exit::Conflict,
                format!("adding the WDS {name}"),
                format!("it exists and delivers through {}", known.its),
            )),
            Some(_) => Ok(()),
            None => {
                self.wds.push(Wds { name: name.clone(), its });
                Ok(())
            }
        }
    }

    fn add_cluster(&mut self, name: &SpaceName) -> Result<(), Failure> {
        if let Some(known) = self.clusters.iter_mut().find(|c| c.name == *name) {
            if std::mem::take(&mut known.detached) {
                known.leaving = false;
                known.given = None;
            }
            return Ok(());
        }
        let its = self.its_for(&format!("adding the cluster {name}"), None)?;
        let labels =
            BTreeMap::from([("location-group".into(), "edge".into()), ("name".into(), name.to_string())]);
        self.clusters.push(Cluster {
            name: name.clone(),
            its,
            labels,
            given: None,
            detached: false,
            leaving: false,
        });
        Ok(())
    }

    fn its_for(&self, what: &str, asked: Option<&SpaceName>) -> Result<SpaceName, Failure> {
        match asked {
            Some(name) if self.its.contains(name) => Ok(name.clone()),
            Some(name) => Err(Failure::new(Exit::NotFound, what, format!("there is no ITS {name}"))),
            None => self.its.first().cloned().ok_or_else(|| {
                Failure::new(Exit::Usage, what, "there is no ITS").hint("add one with --its NAME")
            }),
        }
    }

    fn check_names(&self) -> Result<(), Failure> {
        let mut seen = std::collections::BTreeSet::new();
        match self.spaces().into_iter().find(|(name, _)| !seen.insert(*name)) {
            Some((name, _)) => Err(Failure::new(
                Exit::Conflict,
                "planning the installation",
                format!("two spaces would be called {name}"),
            )),
            None => Ok(()),
        }
    }
}

/// Returns the URL of a space of an installation that listens at `address`.
pub(crate) fn space_url(address: SocketAddr, space: &str) -> String {
    format!("https://{address}/spaces/{space}")
}

fn add_all(names: &mut Vec<SpaceName>, more: &[SpaceName]) {
    for name in more {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
}

fn reserved_free(name: &str) -> Result<SpaceName, Failure> {
    name.parse().map_err(|why: String| Failure::new(Exit::Failed, "planning the installation", why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(shape: &Shape) -> Vec<String> {
        shape.spaces().iter().map(|(n, role)| format!("{role}/{n}")).collect()
    }

    /// SP-100: the default is one ITS, one WDS and two clusters labelled as the demo's.
    #[test]
    fn sp_100_default_shape() {
        let shape = Shape::fulfil(None, &Wish::default(), "id").unwrap();
        assert_eq!(names(&shape), ["its/its1", "wds/wds1", "wec/cluster1", "wec/cluster2"]);
        assert_eq!(shape.clusters[1].labels["location-group"], "edge");
        assert_eq!(shape.clusters[1].labels["name"], "cluster2");
    }

    /// SP-102: the same wish changes nothing; a bigger one only adds; nothing is removed.
    #[test]
    fn sp_102_up_is_additive() {
        let first = Shape::fulfil(None, &Wish::default(), "id").unwrap();
        assert_eq!(Shape::fulfil(Some(&first), &Wish::default(), "other").unwrap(), first);
        let more = Wish { clusters: Some(3), ..Wish::default() };
        let second = Shape::fulfil(Some(&first), &more, "x").unwrap();
        assert_eq!(names(&second)[..4], names(&first)[..]);
        assert_eq!(second.clusters.len(), 3);
        let fewer = Wish { clusters: Some(1), ..Wish::default() };
        assert_eq!(Shape::fulfil(Some(&second), &fewer, "x").unwrap(), second);
    }

    /// SP-102: what was switched on stays on, and a shape of an earlier version has it off.
    #[test]
    fn sp_102_options_are_remembered() {
        let wish = Wish {
            metacontroller: Some(true),
            label_helm_releases: Some(true),
            collectors_read_secrets: Some(true),
            ..Wish::default()
        };
        let first = Shape::fulfil(None, &wish, "id").unwrap();
        let text = serde_json::to_string(&first).unwrap();
        let again =
            Shape::fulfil(Some(&serde_json::from_str(&text).unwrap()), &Wish::default(), "x").unwrap();
        assert_eq!(again, first);
        assert!(again.metacontroller && again.label_helm_releases && again.collectors_read_secrets);
        let off = Wish { collectors_read_secrets: Some(false), ..Wish::default() };
        assert!(!Shape::fulfil(Some(&again), &off, "x").unwrap().collectors_read_secrets);
        let mut old = serde_json::to_value(&first).unwrap();
        let fields = old.as_object_mut().unwrap();
        let options = ["metacontroller", "label_helm_releases", "collectors_read_secrets"];
        fields.retain(|key, _| !options.contains(&key.as_str()));
        let old: Shape = serde_json::from_value(old).unwrap();
        assert!(!old.metacontroller && !old.label_helm_releases && !old.collectors_read_secrets);
    }

    /// SP-102: a cluster is given labels once, and those that are asked for later whenever they are; what users make of them stays.
    #[test]
    fn sp_102_labels_are_given_once() {
        let mut shape = Shape::fulfil(None, &Wish::default(), "id").unwrap();
        assert_eq!(shape.clusters[0].new_labels(), shape.clusters[0].labels, "not enrolled yet");
        shape.clusters[0].given = Some(shape.clusters[0].labels.clone());
        let again = Shape::fulfil(Some(&shape), &Wish::default(), "id").unwrap();
        assert_eq!(again.clusters[0].new_labels(), BTreeMap::new());
        let label = |value: &str| BTreeMap::from([("env".to_owned(), value.to_owned())]);
        let wish = Wish { labels: vec![("cluster1".parse().unwrap(), label("prod"))], ..Wish::default() };
        for _ in 0..2 {
            shape = Shape::fulfil(Some(&shape), &wish, "id").unwrap();
            assert_eq!(shape.clusters[0].new_labels(), label("prod"), "also when they are asked for again");
            shape.clusters[0].given = Some(shape.clusters[0].labels.clone());
        }
    }

    /// OCM-015: agents know their hub by the address it had first, whatever it is asked to listen at later; a shape of an
    /// earlier version tells where it listened last.
    #[test]
    fn ocm_015_the_lasting_url_outlives_a_change_of_address() {
        let its: SpaceName = "its1".parse().unwrap();
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let mut shape = Shape::fulfil(None, &Wish::default(), "id").unwrap();
        shape.listens(at(4001));
        assert_eq!(shape.lasting_url(&its), "https://127.0.0.1:4001/spaces/its1");
        let elsewhere = Wish { listen: Some(at(4002)), ..Wish::default() };
        let mut moved = Shape::fulfil(Some(&shape), &elsewhere, "id").unwrap();
        moved.listens(at(4002));
        assert_eq!(moved.lasting_url(&its), "https://127.0.0.1:4001/spaces/its1");
        let mut old = serde_json::to_value(&moved).unwrap();
        old.as_object_mut().unwrap().remove("first_listen");
        for cluster in old["clusters"].as_array_mut().unwrap() {
            cluster.as_object_mut().unwrap().remove("given");
        }
        let old = Shape::read(old.to_string().as_bytes()).unwrap();
        let upgraded =
            Shape::fulfil(Some(&old), &Wish { listen: Some(at(4003)), ..Wish::default() }, "id").unwrap();
        assert_eq!(upgraded.lasting_url(&its), "https://127.0.0.1:4002/spaces/its1");
        assert!(
            upgraded.clusters.iter().all(|cluster| cluster.new_labels().is_empty()),
            "they were given then"
        );
    }

    #[test]
    fn impossible_wishes_are_refused() {
        let twice = Wish { wds: vec![("its1".parse().unwrap(), None)], ..Wish::default() };
        assert_eq!(Shape::fulfil(None, &twice, "id").unwrap_err().exit, Exit::Conflict);
        let nowhere =
            Wish { wds: vec![("w".parse().unwrap(), Some("none".parse().unwrap()))], ..Wish::default() };
        assert_eq!(Shape::fulfil(None, &nowhere, "id").unwrap_err().exit, Exit::NotFound);
        for bad in ["", "A", "-a", "a-", "a.b", "kubeflex", &"x".repeat(57)] {
            assert!(bad.parse::<SpaceName>().is_err(), "{bad}");
        }
    }
}
