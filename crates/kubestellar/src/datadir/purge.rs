//! Removes the files of an installation, and nothing else.

use std::fs;
use std::io::{self, ErrorKind};

use super::claim::{DIRECTORIES, FILES, MARKER};
use super::{Contents, DataDir, Owner};
use crate::exit::{Exit, Failure, OrFail};

/// The state of the directory after a purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purged {
    /// There was nothing.
    Nothing,
    /// The directory is gone.
    All,
    /// The directory still exists: it contains other files, or it is a link or a mount point.
    Contents,
}

impl DataDir {
    /// Returns whether a purge would remove anything.
    ///
    /// # Errors
    /// [`Exit::Conflict`] for a directory that is no installation of ours.
    pub(crate) fn may_be_purged(&self) -> Result<bool, Failure> {
        match self.contents()? {
            Contents::Missing | Contents::Empty => Ok(false),
            Contents::Of(Owner::Installation | Owner::Demo) => Ok(true),
            Contents::Foreign(name) => Err(Failure::new(
                Exit::Conflict,
                format!("removing {}", self.path().display()),
                format!("it is not the data directory of an installation: it holds {name}"),
            )
            .hint("name the directory of the installation with --data-dir")),
        }
    }

    /// Removes the files of an installation, and then the directory if it is empty. An interrupted purge can be repeated: the marker
    /// is removed last.
    pub(crate) fn purge(&self) -> Result<Purged, Failure> {
        if !self.may_be_purged()? {
            return Ok(Purged::Nothing);
        }
        let what = || format!("removing {}", self.path().display());
        for name in DIRECTORIES {
            gone(fs::remove_dir_all(self.path().join(name))).or_fail(what())?;
        }
        for entry in fs::read_dir(self.path()).or_fail(what())?.flatten() {
            if entry.file_name().to_str().is_some_and(is_left_behind) {
                gone(fs::remove_file(entry.path())).or_fail(what())?;
            }
        }
        for name in FILES.into_iter().chain([MARKER]) {
            gone(fs::remove_file(self.path().join(name))).or_fail(what())?;
        }
        self.forget_demo();
        if fs::symlink_metadata(self.path()).is_ok_and(|meta| meta.is_symlink()) {
            return Ok(Purged::Contents);
        }
        match fs::remove_dir(self.path()) {
            Ok(()) => Ok(Purged::All),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Purged::All),
            // Other files; or a mount point; or the parent directory cannot be changed by this user.
            Err(error) if stays(error.kind()) => Ok(Purged::Contents),
            Err(error) => Err(Failure::new(Exit::Failed, what(), error)),
        }
    }

    /// Forgets this directory as that of the last demo.
    fn forget_demo(&self) {
        if let Ok(file) = Self::last_demo()
            && fs::read(&file).is_ok_and(|named| named == self.path().as_os_str().as_encoded_bytes())
        {
            let _ = fs::remove_file(file);
        }
    }
}

fn stays(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::DirectoryNotEmpty
            | ErrorKind::ResourceBusy
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
    )
}

/// The temporary file of [`super::write_atomically`] for one of our files, after a crash: `.lock.4711.tmp`.
fn is_left_behind(name: &str) -> bool {
    let parts = name
        .strip_prefix('.')
        .and_then(|rest| rest.strip_suffix(".tmp"))
        .and_then(|rest| rest.rsplit_once('.'));
    parts.is_some_and(|(file, pid)| {
        (FILES.contains(&file) || file == MARKER) && pid.bytes().all(|b| b.is_ascii_digit())
    })
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn at(dir: &Path) -> DataDir {
        DataDir::resolve(Some(dir)).unwrap()
    }

    /// SP-105: only what is ours goes; a directory that is no installation is not touched.
    #[test]
    fn sp_105_a_purge_removes_only_what_is_ours() {
        let root = tempfile::tempdir().unwrap();
        let data = at(&root.path().join("data"));
        assert_eq!(data.purge().unwrap(), Purged::Nothing);
        data.create().unwrap();
        fs::write(data.store().join("journal"), "x").unwrap();
        for name in ["lock", "kubeconfig", ".kubeconfig.17.tmp", "..kubestellar.17.tmp"] {
            fs::write(data.path().join(name), "x").unwrap();
        }
        fs::write(data.path().join("notes.txt"), "mine").unwrap();
        fs::write(data.path().join(".notes.17.tmp"), "mine").unwrap();
        assert_eq!(data.purge().unwrap(), Purged::Contents);
        let left = |dir: &Path| -> Vec<String> {
            let mut names: Vec<_> =
                fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        assert_eq!(left(data.path()), [".notes.17.tmp", "notes.txt"]);
        let refused = data.purge().unwrap_err();
        assert_eq!(refused.exit, Exit::Conflict);
        fs::create_dir(data.path().join("logs")).unwrap();
        assert!(data.purge().is_err() && data.path().join("logs").exists());

        let other = at(&root.path().join("other"));
        other.create().unwrap();
        assert_eq!(other.purge().unwrap(), Purged::All);
        assert!(!other.path().exists());
    }

    /// SP-105: what a link names is emptied; link and directory stay, for both are the user's. A part that is a link takes nothing
    /// else with it.
    #[test]
    fn sp_105_a_purge_does_not_follow_links_out_of_the_directory() {
        let root = tempfile::tempdir().unwrap();
        let (target, link) = (root.path().join("target"), root.path().join("link"));
        fs::create_dir(&target).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        at(&link).create().unwrap();
        let elsewhere = root.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("precious"), "x").unwrap();
        fs::remove_dir(target.join("logs")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, target.join("logs")).unwrap();
        assert_eq!(at(&link).purge().unwrap(), Purged::Contents);
        assert!(link.exists() && fs::read_dir(&target).unwrap().next().is_none());
        assert!(elsewhere.join("precious").exists());
    }

    /// SP-105: a purge that was interrupted is finished by the next one, wherever it stopped.
    #[test]
    fn sp_105_an_interrupted_purge_can_be_repeated() {
        let root = tempfile::tempdir().unwrap();
        let parts = DIRECTORIES.len() + FILES.len();
        for done in 0..=parts {
            let data = at(&root.path().join(done.to_string()));
            data.create().unwrap();
            fs::write(data.path().join("lock"), "1").unwrap();
            for name in DIRECTORIES.iter().take(done) {
                let _ = fs::remove_dir_all(data.path().join(name));
            }
            for name in FILES.iter().take(done.saturating_sub(DIRECTORIES.len())) {
                let _ = fs::remove_file(data.path().join(name));
            }
            assert_eq!(data.purge().unwrap(), Purged::All);
        }
    }
}
