//! Finds out what a directory contains, and turns an empty one into a data directory.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use super::{DataDir, write_atomically};
use crate::exit::{Exit, Failure, OrFail};

/// Marker file of a data directory; it contains [`Owner::text`]. It is written first and removed last, so that a directory is
/// recognised after a crash.
pub(super) const MARKER: &str = ".kubestellar";

/// Entries of a data directory, besides the marker.
pub(super) const DIRECTORIES: [&str; 6] = ["store", "pki", "spaces", "set-aside", "logs", "run"];
pub(super) const FILES: [&str; 4] = ["kubeconfig", "installation.json", "clock.json", "lock"];

/// Who a data directory was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The user, by `up` or `serve`.
    Installation,
    /// `demo`, which may remove it without asking.
    Demo,
}

impl Owner {
    fn text(self) -> &'static str {
        match self {
            Self::Installation => "installation\n",
            Self::Demo => "demo\n",
        }
    }
}

/// The contents of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// There is nothing at the path.
    Missing,
    /// A directory without entries; `lost+found` of a fresh file system does not count.
    Empty,
    /// A data directory of ours.
    Of(Owner),
    /// Files of other programs; this is the name of one of them.
    Foreign(String),
}

impl DataDir {
    /// Reads what the directory contains.
    ///
    /// # Errors
    /// If it is no directory, or this user may not read it.
    pub(crate) fn contents(&self) -> Result<Contents, Failure> {
        let what = || format!("looking into {}", self.path().display());
        let entries = match fs::read_dir(self.path()) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return match fs::symlink_metadata(self.path()) {
                    Ok(_) => Err(Failure::new(Exit::Failed, what(), "it is a symbolic link to nothing")),
                    Err(_) => Ok(Contents::Missing),
                };
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Err(self.not_permitted()),
            Err(error) => {
                return Err(
                    Failure::new(Exit::Failed, what(), error).hint("choose another one with --data-dir")
                );
            }
        };
        let mut names = Vec::new();
        for entry in entries {
            names.push(entry.or_fail(what())?.file_name().to_string_lossy().into_owned());
        }
        names.retain(|name| name != "lost+found");
        names.sort();
        if let Ok(marker) = fs::read_to_string(self.path().join(MARKER)) {
            let demo = marker == Owner::Demo.text();
            return Ok(Contents::Of(if demo { Owner::Demo } else { Owner::Installation }));
        }
        Ok(if names.is_empty() {
            Contents::Empty
        } else if self.is_of_an_earlier_version(&names) {
            Contents::Of(Owner::Installation)
        } else {
            Contents::Foreign(names.swap_remove(0))
        })
    }

    /// Recognises the directories of earlier versions, which have no marker: an installation has a shape. If its first start was
    /// interrupted, it has a lock and no foreign files.
    fn is_of_an_earlier_version(&self, names: &[String]) -> bool {
        let shape = fs::read(self.shape())
            .ok()
            .and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
        let has_shape = shape.is_some_and(|shape| shape["installation"].is_string());
        let ours = |name: &String| DIRECTORIES.contains(&name.as_str()) || FILES.contains(&name.as_str());
        has_shape || (names.iter().any(|name| name == "lock") && names.iter().all(ours))
    }

    /// Creates the directory of an installation and its parts, with mode 0700. An existing directory must be that of an installation,
    /// or empty.
    pub(crate) fn create(&self) -> Result<(), Failure> {
        match self.contents()? {
            Contents::Of(_) => self.make_parts(),
            Contents::Missing | Contents::Empty => self.make(Owner::Installation),
            Contents::Foreign(name) => Err(self.occupied(&name)),
        }
    }

    /// Creates the directory of a demo. The path must not exist, or be an empty directory.
    pub(crate) fn create_for_demo(&self) -> Result<(), Failure> {
        match self.contents()? {
            Contents::Missing | Contents::Empty => self.make(Owner::Demo),
            Contents::Foreign(name) => Err(self.occupied(&name)),
            Contents::Of(_) => Err(Failure::new(
                Exit::Conflict,
                format!("using {}", self.path().display()),
                "it is the data directory of an installation, and a demo removes its directory at its end",
            )
            .hint("leave out --data-dir: a demo then makes a directory of its own")),
        }
    }

    fn occupied(&self, name: &str) -> Failure {
        Failure::new(
            Exit::Conflict,
            format!("using {} as data directory", self.path().display()),
            format!("it holds files that are not of an installation, such as {name}"),
        )
        .hint("name a directory that is empty or does not exist yet with --data-dir")
    }

    fn make(&self, owner: Owner) -> Result<(), Failure> {
        let what = || format!("creating the data directory {}", self.path().display());
        DirBuilder::new().recursive(true).mode(0o700).create(self.path()).map_err(|error| {
            Failure::new(Exit::Failed, what(), error).hint("choose another one with --data-dir")
        })?;
        self.keep_private()?;
        write_atomically(&self.path().join(MARKER), owner.text().as_bytes(), 0o600).or_fail(what())?;
        self.make_parts()
    }

    fn make_parts(&self) -> Result<(), Failure> {
        self.keep_private()?;
        for name in ["store", "logs", "run"] {
            let dir = self.path().join(name);
            DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(|error| {
                Failure::new(Exit::Failed, format!("creating the data directory {}", dir.display()), error)
                    .hint("choose another one with --data-dir")
            })?;
            tighten(&dir, 0o077).or_fail(format!("protecting {}", dir.display()))?;
        }
        Ok(())
    }

    /// Makes sure that no other user can replace files in the directory: it must belong to this user or to root, and others must not
    /// be able to write to it. Corrects the mode of this user's directories, with a warning (SP-066).
    fn keep_private(&self) -> Result<(), Failure> {
        let what = || format!("using the data directory {}", self.path().display());
        let meta = fs::metadata(self.path()).or_fail(what())?;
        let (me, owner) = (rustix::process::geteuid().as_raw(), meta.uid());
        if owner == me {
            return tighten(self.path(), 0o022).or_fail(what());
        }
        let why = if owner != 0 {
            format!("it belongs to another user (uid {owner}, and this is {me})")
        } else if meta.mode() & 0o002 != 0 {
            format!("everybody may write to it (mode {:o})", meta.mode() & 0o777)
        } else {
            return Ok(());
        };
        Err(Failure::new(Exit::Conflict, what(), why)
            .hint("choose a directory of your own with --data-dir, or change its owner and mode"))
    }
}

/// Takes the bits of `forbidden` from the mode of a directory, with a warning.
fn tighten(path: &Path, forbidden: u32) -> std::io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode() & 0o7777;
    if mode & forbidden == 0 {
        return Ok(());
    }
    tracing::warn!(path = %path.display(), mode = format!("{mode:o}"), "others had access to the directory; corrected");
    // A directory that others could write to was open by mistake: close it for reading, too.
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(dir: &Path) -> DataDir {
        DataDir::resolve(Some(dir)).unwrap()
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// SP-086: what a directory holds decides whether it becomes a data directory.
    #[test]
    fn sp_086_only_empty_directories_and_installations_are_used() {
        let root = tempfile::tempdir().unwrap();
        let data = at(&root.path().join("a/b"));
        assert_eq!(data.contents().unwrap(), Contents::Missing);
        data.create().unwrap();
        assert_eq!(data.contents().unwrap(), Contents::Of(Owner::Installation));
        data.create().unwrap();
        assert_eq!(data.create_for_demo().unwrap_err().exit, Exit::Conflict);

        let home = at(&root.path().join("home"));
        fs::create_dir_all(home.path().join("logs")).unwrap();
        fs::write(home.path().join("logs/mine.log"), "mine").unwrap();
        for refused in [home.create(), home.create_for_demo(), at(Path::new("/")).create()] {
            assert_eq!(refused.unwrap_err().exit, Exit::Conflict);
        }
        assert!(!home.path().join("store").exists(), "something was made there");

        let volume = at(&root.path().join("volume"));
        fs::create_dir_all(volume.path().join("lost+found")).unwrap();
        volume.create().unwrap();
        let demo = at(&root.path().join("demo"));
        demo.create_for_demo().unwrap();
        assert_eq!(demo.contents().unwrap(), Contents::Of(Owner::Demo));
    }

    /// SP-086: directories that earlier versions made are installations, also when their first start was interrupted.
    #[test]
    fn sp_086_directories_of_earlier_versions_are_recognised() {
        let root = tempfile::tempdir().unwrap();
        let data = at(root.path());
        fs::write(data.shape(), r#"{"name": "some other program"}"#).unwrap();
        assert_eq!(data.contents().unwrap(), Contents::Foreign("installation.json".into()));
        fs::write(data.shape(), r#"{"installation": "id"}"#).unwrap();
        fs::write(root.path().join("notes.txt"), "mine").unwrap();
        assert_eq!(data.contents().unwrap(), Contents::Of(Owner::Installation));
        fs::remove_file(data.shape()).unwrap();
        fs::write(root.path().join("lock"), "1").unwrap();
        assert_eq!(data.contents().unwrap(), Contents::Foreign("lock".into()));
        fs::remove_file(root.path().join("notes.txt")).unwrap();
        assert_eq!(data.contents().unwrap(), Contents::Of(Owner::Installation));
    }

    /// SP-066: others can't write to a data directory; one of ours is mended.
    #[test]
    fn sp_066_a_data_directory_is_not_writable_by_others() {
        let root = tempfile::tempdir().unwrap();
        let data = at(&root.path().join("data"));
        fs::create_dir(data.path()).unwrap();
        fs::set_permissions(data.path(), fs::Permissions::from_mode(0o777)).unwrap();
        data.create().unwrap();
        assert_eq!(mode(data.path()), 0o700);
        fs::set_permissions(data.path(), fs::Permissions::from_mode(0o770)).unwrap();
        fs::set_permissions(data.store(), fs::Permissions::from_mode(0o755)).unwrap();
        data.create().unwrap();
        assert_eq!((mode(data.path()), mode(&data.store())), (0o700, 0o700));
    }

    /// SP-086: a symbolic link is as good as the directory it names, and one to nothing is said to be one.
    #[test]
    fn sp_086_symbolic_links() {
        let root = tempfile::tempdir().unwrap();
        let (target, link) = (root.path().join("target"), root.path().join("link"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(at(&link).create().unwrap_err().why.contains("a symbolic link to nothing"));
        fs::create_dir(&target).unwrap();
        at(&link).create().unwrap();
        assert_eq!(at(&target).contents().unwrap(), Contents::Of(Owner::Installation));
    }
}
