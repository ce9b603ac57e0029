//! Spaces that stop: suspended, deleted, or set aside because their ControlPlane went without them.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use futures::StreamExt as _;
use space_manager::{Role, SpacesError};
use store::{Engine, SpaceStore};

use super::hosting::{Refused, error, role_name};
use super::{Installation, STARTING_ON_EACH_CORE};
use crate::datadir::DataDir;
use crate::exit::{Failure, OrFail};
use crate::kubeconfig::Gone;

/// What the file with the objects of a space that was set aside is called. It is a `List` that `kubectl` can read.
const OBJECTS: &str = "objects.json";
/// What the directory with its keys is called.
const KEYS: &str = "keys";

impl Installation {
    /// Stops a space and everything that works with it, and keeps its data.
    pub(super) async fn suspend_hosted(&mut self, name: &str) -> Result<(), Refused> {
        match self.refusal(name) {
            Some(refused) => Err(refused),
            None => {
                self.halt(&BTreeSet::from([name])).await;
                self.overview.suspend(name, role_name(Role::Plain));
                Ok(())
            }
        }
    }

    /// Deletes the spaces of ControlPlanes, given with the UIDs of these, and returns the outcome of each in the same order. Data
    /// and keys are gone from the disk then (SP-051). Spaces are removed together, because each waits for the disk.
    pub(super) async fn delete_hosted(
        &mut self,
        wanted: &[(String, String)],
    ) -> Vec<Result<(), SpacesError>> {
        let mut doomed = BTreeSet::new();
        let mut outcomes = Vec::new();
        for (name, owner) in wanted {
            outcomes.push(match self.owners.of(name) {
                // No ControlPlane has ever had a space of this name.
                _ if self.refusal(name).is_some() => Ok(()),
                Some(known) if known != owner => {
                    self.set_aside(name).await.map_err(|failure| error(&failure))
                }
                None if !self.is_own(name) => Ok(()),
                Some(_) | None => {
                    doomed.insert(name.as_str());
                    Ok(())
                }
            });
        }
        if doomed.is_empty() {
            return outcomes;
        }
        self.halt(&doomed).await;
        for name in &doomed {
            self.overview.remove(name);
        }
        let failures = remove_data(&self.engine, &self.data, &doomed).await;
        let failed = |name: &str| failures.iter().find(|(failed, _)| failed == name);
        doomed.retain(|name| failed(name).is_none());
        let unsaved = self.forget(&doomed);
        for ((name, _), outcome) in wanted.iter().zip(&mut outcomes) {
            if let Some((_, failure)) = failed(name) {
                *outcome = Err(error(failure));
            } else if doomed.contains(name.as_str())
                && let Err(failure) = &unsaved
            {
                *outcome = Err(error(failure));
            }
        }
        outcomes
    }

    /// Sets the data of a space aside: its objects and keys leave the installation for a directory of their own, which only the
    /// operator reads. Can be repeated after a crash at any moment.
    pub(super) async fn set_aside(&mut self, name: &str) -> Result<(), Failure> {
        let what = format!("setting the data of an earlier space {name} aside");
        self.halt(&BTreeSet::from([name])).await;
        self.overview.remove(name);
        let owner = self.owners.of(name).unwrap_or("unowned").to_owned();
        let is_stored = self.engine.spaces().iter().any(|known| known == name);
        let store = is_stored.then(|| self.engine.space(name)).transpose().or_fail(&what)?;
        let (all, space) = (self.data.set_aside(), name.to_owned());
        let kept = tokio::task::spawn_blocking(move || keep(&all, &space, &owner, store.as_ref()));
        let place = kept.await.or_fail(&what)?.or_fail(&what)?;
        self.engine.remove_space(name).await.or_fail(&what)?;
        match fs::rename(self.data.spaces().join(name), place.join(KEYS)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).or_fail(what),
            _ => {}
        }
        self.forget(&BTreeSet::from([name]))?;
        tracing::warn!(
            space = name,
            kept = %place.display(),
            "a space was left without its ControlPlane; its data and keys are set aside"
        );
        Ok(())
    }

    /// Sets a space aside whose ControlPlane is gone, or has been replaced by another one of that name.
    pub(super) async fn set_aside_if_abandoned(&mut self, name: &str) -> Result<(), Failure> {
        let Some(owner) = self.owners.of(name).map(str::to_owned) else { return Ok(()) };
        if self.uid_of_plane(name).await?.as_deref() == Some(&owner) {
            return Ok(());
        }
        self.set_aside(name).await?;
        self.refresh_kubeconfig();
        self.follow_kubeconfigs(Gone::Only(HashSet::from([name.to_owned()]))).await;
        Ok(())
    }

    /// Stops spaces and everything that works with them. New requests are answered with 503 from now on, and watches end.
    async fn halt(&mut self, names: &BTreeSet<&str>) {
        self.components.end_of(names).await;
        let (ending, going_on) =
            std::mem::take(&mut self.spaces).into_iter().partition(|(space, _)| names.contains(space.name()));
        self.spaces = going_on;
        let ending: Vec<_> = ending;
        for name in names {
            self.router.pause(name);
        }
        futures::future::join_all(ending.iter().map(|(space, _)| space.stop())).await;
    }

    /// Nothing is left of these spaces. New requests are answered with 404.
    fn forget(&mut self, names: &BTreeSet<&str>) -> Result<(), Failure> {
        for name in names {
            self.router.remove(name);
            self.owners.forget(name);
        }
        if !names.iter().any(|name| self.is_own(name)) {
            return Ok(());
        }
        self.shape.its.retain(|its| !names.contains(its.as_str()));
        self.shape.wds.retain(|wds| !names.contains(wds.name.as_str()));
        self.shape.save(&self.data)
    }

    /// Returns whether a space is one that `up` asked for.
    pub(super) fn is_own(&self, name: &str) -> bool {
        self.shape.spaces().into_iter().any(|(known, _)| known.as_str() == name)
    }
}

/// Removes data and keys of spaces from the disk. Returns the failures, by name.
async fn remove_data(engine: &Engine, data: &DataDir, names: &BTreeSet<&str>) -> Vec<(String, Failure)> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let removing = names.iter().map(|name| async move {
        let removed = remove_data_of(engine, data, name).await;
        removed.map_err(|failure| ((*name).to_owned(), failure))
    });
    let outcomes = futures::stream::iter(removing).buffer_unordered(cores * STARTING_ON_EACH_CORE);
    outcomes.filter_map(async |outcome: Result<(), _>| outcome.err()).collect().await
}

async fn remove_data_of(engine: &Engine, data: &DataDir, name: &str) -> Result<(), Failure> {
    let what = format!("removing the data of {name}");
    engine.remove_space(name).await.or_fail(&what)?;
    match tokio::fs::remove_dir_all(data.spaces().join(name)).await {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).or_fail(what),
        _ => Ok(()),
    }
}

/// Writes the objects of a space into a directory below `all`, and returns that directory. Without a store, they have been written
/// before. Blocks the thread. Cost: the data of the space.
fn keep(all: &Path, space: &str, owner: &str, store: Option<&SpaceStore>) -> io::Result<PathBuf> {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let owner: String = owner.chars().map(plain).collect();
    let numbered = (1..).map(|n| if n == 1 { String::new() } else { format!("-{n}") });
    let places = numbered.map(|number| all.join(format!("{space}-{owner}{number}")));
    // One that has keys already is of an earlier time.
    let place = places.into_iter().find(|place| !place.join(KEYS).exists()).unwrap_or_else(|| all.to_owned());
    DirBuilder::new().recursive(true).mode(0o700).create(&place)?;
    if let Some(store) = store {
        let temporary = place.join(format!("{OBJECTS}.tmp"));
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        write_objects(file, store)?;
        fs::rename(&temporary, place.join(OBJECTS))?;
        File::open(&place)?.sync_all()?;
    }
    Ok(place)
}

/// Writes all objects of a space as a `List`, durably.
fn write_objects(file: File, store: &SpaceStore) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    let snapshot = store.snapshot();
    out.write_all(b"{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[")?;
    let mut separator: &[u8] = b"\n";
    for collection in snapshot.collections() {
        for entry in snapshot.view(collection).iter(None, None) {
            out.write_all(separator)?;
            out.write_all(&entry.value)?;
            separator = b",\n";
        }
    }
    out.write_all(b"\n]}\n")?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

#[cfg(test)]
mod tests {
    use kube::Client;
    use runtime::rest::{Gvr, Rest};
    use serde_json::{Value, json};
    use space::Identity;
    use space_manager::prepare::{SystemConfig, prepare_host};
    use space_manager::{Access, Role};

    use super::super::hosting::Wanted;
    use super::super::tests::in_memory;
    use super::*;
    use crate::shape::{HOST, Shape, Wish};

    struct Scene {
        installation: Installation,
        data: DataDir,
        _dir: tempfile::TempDir,
    }

    impl Scene {
        /// An installation in memory with a host space and no other.
        async fn start() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let data = DataDir::resolve(Some(dir.path())).unwrap();
            data.create().unwrap();
            let shape = Shape::fulfil(None, &Wish { clusters: Some(0), ..Wish::default() }, "id").unwrap();
            let mut installation = in_memory(&data, &shape);
            installation.start_spaces(&[(HOST.to_owned(), "host")]).await.unwrap();
            let config = SystemConfig { domain: "localtest.me".into(), external_port: 1 };
            let scene = Self { installation, data, _dir: dir };
            prepare_host(&scene.client(HOST), &config).await.unwrap();
            scene
        }

        fn client(&self, space: &str) -> Client {
            self.installation.find(space).unwrap().client(&Identity::admin())
        }

        async fn open(&mut self, name: &str, owner: &str) -> Access {
            let wanted = Wanted { name: name.into(), owner: owner.into(), role: Role::Plain };
            self.installation.open_hosted(&[wanted]).await.remove(0).unwrap()
        }

        async fn delete(&mut self, name: &str, owner: &str) {
            self.installation.delete_hosted(&[(name.into(), owner.into())]).await.remove(0).unwrap();
        }

        /// Writes a ConfigMap of this name into a space.
        async fn write(&self, space: &str, name: &str) {
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
            let rest = Rest::new(self.client(space));
            assert!(rest.ensure(&Gvr::new("", "v1", "configmaps"), "default", name, &map).await.unwrap());
        }

        async fn has(&self, space: &str, name: &str) -> bool {
            let rest = Rest::new(self.client(space));
            let maps = Gvr::new("", "v1", "configmaps");
            rest.find::<Value>(&maps, "default", name).await.unwrap().is_some()
        }

        /// Creates a ControlPlane and returns its UID.
        async fn plane(&self, name: &str) -> String {
            let plane = json!({"apiVersion": "tenancy.kflex.kubestellar.org/v1alpha1", "kind": "ControlPlane",
                "metadata": {"name": name}, "spec": {"type": "k8s"}});
            let rest = Rest::new(self.client(HOST));
            let planes = Gvr::new("tenancy.kflex.kubestellar.org", "v1alpha1", "controlplanes");
            let made: Value = rest.create(&planes, "", plane.to_string().into_bytes()).await.unwrap();
            made["metadata"]["uid"].as_str().unwrap().to_owned()
        }

        /// Names of the ConfigMaps that were set aside with a space.
        fn kept(&self, place: &str) -> Vec<String> {
            let place = self.data.set_aside().join(place);
            assert!(place.join(KEYS).join("client-ca.key").exists(), "the keys in {}", place.display());
            let list: Value = serde_json::from_slice(&fs::read(place.join(OBJECTS)).unwrap()).unwrap();
            assert_eq!(list["kind"], "List");
            let items = list["items"].as_array().unwrap().iter();
            let maps =
                items.filter(|one| one["kind"] == "ConfigMap" && one["metadata"]["namespace"] == "default");
            let names = maps.map(|one| one["metadata"]["name"].as_str().unwrap().to_owned());
            names.filter(|name| name != "kube-root-ca.crt").collect()
        }

        async fn end(self) {
            for (space, _) in &self.installation.spaces {
                space.stop().await;
            }
        }
    }

    /// SP-045: a ControlPlane gets neither data nor keys of an earlier one of its name, by opening nor by deleting; these are kept
    /// where only the operator finds them.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sp_045_no_other_control_plane_inherits_a_space() {
        let mut scene = Scene::start().await;
        let first = scene.open("team", "u1").await;
        scene.write("team", "secret-of-1").await;
        assert_eq!(scene.open("team", "u1").await, first, "again for the same one");
        let second = scene.open("team", "u2").await;
        assert_ne!((first.certificate_pem, first.key_pem), (second.certificate_pem, second.key_pem));
        assert!(!scene.has("team", "secret-of-1").await);
        assert_eq!(scene.kept("team-u1"), ["secret-of-1"]);
        scene.write("team", "secret-of-2").await;
        scene.delete("team", "u3").await;
        assert!(
            scene.installation.find("team").is_none(),
            "it is not u3's, but it has no ControlPlane any more"
        );
        assert_eq!(scene.kept("team-u2"), ["secret-of-2"]);
        scene.open("team", "u3").await;
        scene.delete("team", "u3").await;
        assert_eq!(
            fs::read_dir(scene.data.set_aside()).unwrap().count(),
            2,
            "a regular deletion keeps nothing"
        );
        assert!(!scene.data.spaces().join("team").exists());
        scene.end().await;
    }

    /// SP-045: what a cluster left under a name is not a ControlPlane's, however it is opened or deleted.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sp_045_data_without_an_owner_is_set_aside() {
        let mut scene = Scene::start().await;
        scene.installation.start_spaces(&[("cluster9".into(), "wec")]).await.unwrap();
        scene.write("cluster9", "of-the-cluster").await;
        scene.delete("cluster9", "u1").await;
        assert!(scene.has("cluster9", "of-the-cluster").await, "the ControlPlane never had a space");
        scene.open("cluster9", "u1").await;
        assert!(!scene.has("cluster9", "of-the-cluster").await);
        assert_eq!(scene.kept("cluster9-unowned"), ["of-the-cluster"]);
        scene.end().await;
    }

    /// SP-042, SP-045: at the start, spaces whose ControlPlane is gone are set aside, and those of earlier versions are taken over by the
    /// ControlPlane that is there. While the server runs, a space is set aside at once when its ControlPlane is gone.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sp_045_abandoned_spaces_are_found() {
        let mut scene = Scene::start().await;
        scene.open("gone", "u1").await;
        let replaced = scene.plane("replaced").await;
        scene.open("replaced", "u2").await;
        let old = scene.plane("old").await;
        scene.installation.start_spaces(&[("old".into(), "space")]).await.unwrap();
        for space in ["gone", "replaced", "old"] {
            scene.write(space, "data").await;
        }
        scene.installation.open_known_spaces().await.unwrap();
        assert!(scene.installation.find("gone").is_none());
        assert!(!scene.has("replaced", "data").await && scene.has("old", "data").await);
        for place in ["gone-u1", "replaced-u2"] {
            assert_eq!(scene.kept(place), ["data"], "{place}");
        }
        let owners = &scene.installation.owners;
        assert_eq!((owners.of("old"), owners.of("replaced")), (Some(old.as_str()), Some(replaced.as_str())));

        for space in ["old", "replaced", "nothing"] {
            scene.installation.set_aside_if_abandoned(space).await.unwrap();
        }
        assert!(scene.has("old", "data").await, "its ControlPlane is there");
        scene.open("forced", "u5").await;
        scene.installation.set_aside_if_abandoned("forced").await.unwrap();
        assert!(scene.installation.find("forced").is_none());
        assert!(scene.kept("forced-u5").is_empty());
        scene.end().await;
    }

    /// SP-045: a space of `up` belongs to the installation, too: it survives the loss of its ControlPlane's object, and goes out of the
    /// shape when it is set aside.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sp_045_spaces_of_up_belong_to_the_installation() {
        let mut scene = Scene::start().await;
        let wanted = Shape::fulfil(None, &Wish { clusters: Some(0), ..Wish::default() }, "id").unwrap();
        let names: Vec<_> =
            wanted.spaces().into_iter().map(|(name, role)| (name.to_string(), role)).collect();
        scene.installation.start_spaces(&names).await.unwrap();
        scene.installation.shape = wanted;
        scene.write("wds1", "data").await;
        scene.installation.owners.bind("wds1", "u-of-an-object-that-is-lost").unwrap();
        scene.installation.show_own_spaces().await.unwrap();
        scene.installation.open_known_spaces().await.unwrap();
        assert!(scene.has("wds1", "data").await);
        let uid = scene.installation.uid_of_plane("wds1").await.unwrap().unwrap();
        assert_eq!(scene.installation.owners.of("wds1"), Some(uid.as_str()));
        scene.open("wds1", "another").await;
        assert!(!scene.has("wds1", "data").await && !scene.installation.is_own("wds1"));
        scene.end().await;
    }
}
