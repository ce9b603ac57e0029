//! Which ControlPlane each space on the disk belongs to, by its UID (SP-045).
//!
//! The UID is in a file beside the keys of the space. The file is written before the space is made and goes with the keys, so
//! that no data of a ControlPlane is ever without it.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use crate::datadir::{DataDir, write_atomically};

/// Name of the file.
const FILE: &str = "control-plane";

/// The owners of all spaces. Only this process writes the files, so they are read once.
pub(super) struct Owners {
    spaces: PathBuf,
    known: BTreeMap<String, String>,
}

impl Owners {
    /// Reads the owners of all spaces of an installation. Cost: one file for each space.
    pub(super) fn read(data: &DataDir) -> io::Result<Self> {
        let spaces = data.spaces();
        let mut known = BTreeMap::new();
        let entries = match fs::read_dir(&spaces) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self { spaces, known }),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let Ok(space) = entry.file_name().into_string() else { continue };
            match fs::read_to_string(entry.path().join(FILE)) {
                Ok(uid) => drop(known.insert(space, uid.trim_end().to_owned())),
                Err(error) if is_absent(error.kind()) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { spaces, known })
    }

    /// The UID of the ControlPlane that a space belongs to; `None` if it belongs to none.
    pub(super) fn of(&self, space: &str) -> Option<&str> {
        self.known.get(space).map(String::as_str)
    }

    /// All spaces that belong to a ControlPlane, with its UID.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.known.iter().map(|(space, uid)| (space.as_str(), uid.as_str()))
    }

    /// Makes the ControlPlane with this UID the owner, durably.
    pub(super) fn bind(&mut self, space: &str, uid: &str) -> io::Result<()> {
        if self.of(space) == Some(uid) {
            return Ok(());
        }
        let dir = self.spaces.join(space);
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        write_atomically(&dir.join(FILE), format!("{uid}\n").as_bytes(), 0o600)?;
        self.known.insert(space.to_owned(), uid.to_owned());
        Ok(())
    }

    /// The keys of the space, and with them the file, are not there any more.
    pub(super) fn forget(&mut self, space: &str) {
        self.known.remove(space);
    }
}

/// The directory of a space has no such file, or an entry is no directory.
fn is_absent(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-045: the owner of a space is known after a restart, and forgotten with its keys.
    #[test]
    fn sp_045_owners_outlive_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::resolve(Some(dir.path())).unwrap();
        let mut owners = Owners::read(&data).unwrap();
        assert_eq!(owners.iter().count(), 0, "a fresh installation");
        owners.bind("team-a", "u1").unwrap();
        owners.bind("team-b", "u2").unwrap();
        fs::create_dir(data.spaces().join("cluster1")).unwrap();
        fs::write(data.spaces().join("a-file"), "").unwrap();
        fs::remove_dir_all(data.spaces().join("team-b")).unwrap();
        owners.forget("team-b");
        for owners in [owners, Owners::read(&data).unwrap()] {
            assert_eq!(owners.iter().collect::<Vec<_>>(), [("team-a", "u1")]);
            assert_eq!((owners.of("team-a"), owners.of("cluster1")), (Some("u1"), None));
        }
    }
}
