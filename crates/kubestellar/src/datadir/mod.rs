//! The directory of an installation on disk (SP-086).

mod claim;
mod purge;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::exit::{Exit, Failure, OrFail};

pub(crate) use self::claim::{Contents, Owner};
pub(crate) use self::purge::Purged;

/// Environment variable with the directory for commands without `--data-dir`.
pub(crate) const VARIABLE: &str = "KUBESTELLAR_DATA_DIR";

/// The directory of one installation. Several can coexist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DataDir(PathBuf);

/// The lock of the one server that uses a data directory. It is released when this is dropped or the process dies.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl DataDir {
    /// Returns the given directory, or `$XDG_DATA_HOME/kubestellar`, or `~/.local/share/kubestellar`. An empty path counts as absent.
    pub(crate) fn resolve(asked: Option<&Path>) -> Result<Self, Failure> {
        let dir = match asked.filter(|dir| !dir.as_os_str().is_empty()) {
            Some(dir) => std::path::absolute(dir).or_fail(format!("resolving {}", dir.display()))?,
            None => xdg("XDG_DATA_HOME", ".local/share")?.join("kubestellar"),
        };
        Ok(Self(dir))
    }

    /// Returns the directory for commands that talk to a running server: the given one, or the default one, or, if
    /// no server uses that, the directory of a demo that was left running.
    pub(crate) fn resolve_running(asked: Option<&Path>) -> Result<Self, Failure> {
        let own = Self::resolve(asked)?;
        if asked.is_some() || own.is_locked().unwrap_or(true) {
            return Ok(own);
        }
        let demo = Self::kept_demo().filter(|demo| demo.is_locked().unwrap_or_default());
        Ok(demo.unwrap_or(own))
    }

    /// Returns the directory of the last demo that was left running, if it still exists.
    pub(crate) fn kept_demo() -> Option<Self> {
        let named = fs::read_to_string(Self::last_demo().ok()?).ok()?;
        let demo = Self(PathBuf::from(named.trim_end_matches('\n')));
        matches!(demo.contents(), Ok(Contents::Of(Owner::Demo))).then_some(demo)
    }

    /// Records this directory for [`DataDir::kept_demo`].
    pub(crate) fn remember_demo(&self) -> Result<(), Failure> {
        let file = Self::last_demo()?;
        write_atomically(&file, self.0.as_os_str().as_encoded_bytes(), 0o600)
            .or_fail(format!("writing {}", file.display()))
    }

    /// File that names the data directory of the last demo left running.
    fn last_demo() -> Result<PathBuf, Failure> {
        Ok(xdg("XDG_STATE_HOME", ".local/state")?.join("kubestellar").join("last-demo"))
    }

    /// Returns a command line that acts on this directory, wherever the user runs it: `kubestellar --data-dir DIR down`. The option is
    /// left out if commands find the directory without it.
    pub(crate) fn command(&self, rest: &str) -> String {
        let named = std::env::var_os(VARIABLE).map(PathBuf::from);
        match Self::resolve(named.as_deref()) {
            Ok(usual) if usual == *self => format!("kubestellar {rest}"),
            _ => format!("kubestellar --data-dir {} {rest}", quoted(&self.0)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.0.join("store")
    }

    /// Serving CA and certificate, made after the store.
    pub(crate) fn pki(&self) -> PathBuf {
        self.0.join("pki")
    }

    /// Keys of the spaces, a directory for each.
    pub(crate) fn spaces(&self) -> PathBuf {
        self.0.join("spaces")
    }

    /// Data and keys of spaces whose ControlPlane went without them, a directory for each.
    pub(crate) fn set_aside(&self) -> PathBuf {
        self.0.join("set-aside")
    }

    /// Kubeconfig with all contexts of this installation (SP-098).
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.0.join("kubeconfig")
    }

    /// The shape that `up` last asked for.
    pub(crate) fn shape(&self) -> PathBuf {
        self.0.join("installation.json")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.0.join("logs").join("server.log")
    }

    /// The newest time that the installation has seen.
    pub(crate) fn clock(&self) -> PathBuf {
        self.0.join("clock.json")
    }

    /// Control socket of the running server, in a directory only its owner can enter.
    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("run").join("control.sock")
    }

    fn lock_file(&self) -> PathBuf {
        self.0.join("lock")
    }

    /// Locks the directory for this process.
    pub(crate) async fn lock(&self) -> Result<Lock, Failure> {
        let what = || format!("locking the data directory {}", self.0.display());
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.lock_file())
            .or_fail(what())?;
        match try_lock(&file).await {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                let _ = file.read_to_string(&mut pid);
                let why = format!("another kubestellar server uses it (pid {})", pid.trim());
                return Err(Failure::new(Exit::Conflict, what(), why)
                    .hint(format!("stop it with `{}`, or choose another --data-dir", self.command("down"))));
            }
            Err(TryLockError::Error(error)) => return Err(Failure::new(Exit::Failed, what(), error)),
        }
        file.set_len(0).or_fail(what())?;
        file.rewind().or_fail(what())?;
        write!(file, "{}", std::process::id()).or_fail(what())?;
        Ok(Lock { _file: file })
    }

    /// Waits until no server holds the directory. Blocks the thread.
    pub(crate) fn wait_unlocked(&self) -> Result<(), Failure> {
        match File::open(self.lock_file()) {
            Ok(file) => file.lock_shared().or_fail("waiting for the server to end"),
            Err(_) => Ok(()),
        }
    }

    /// Returns whether a server holds the lock now.
    ///
    /// # Errors
    /// [`Exit::Forbidden`] if the directory belongs to another user.
    pub(crate) fn is_locked(&self) -> Result<bool, Failure> {
        match File::open(self.lock_file()) {
            Ok(file) => Ok(matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(self.not_permitted()),
            // NotADirectory: no installation exists there. The command that creates one reports the problem.
            Err(_) => Ok(false),
        }
    }

    /// The failure of a user who may not read the directory.
    pub(crate) fn not_permitted(&self) -> Failure {
        Failure::new(Exit::Forbidden, format!("opening {}", self.0.display()), "not permitted")
            .hint("the installation belongs to another user: run the command as that user, or give another --data-dir")
    }
}

/// Tries for half a second: a process that only asks whether a server runs ([`DataDir::is_locked`]) holds the lock for a moment.
async fn try_lock(file: &File) -> Result<(), TryLockError> {
    for _ in 0..50 {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            done => return done,
        }
    }
    file.try_lock()
}

/// Replaces a file atomically: writes a temporary file beside it, syncs it, and renames it. An existing file keeps its mode as far
/// as `mode` allows, because the contents may be a key.
pub(crate) fn write_atomically(path: &Path, text: &[u8], mode: u32) -> std::io::Result<()> {
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let dir = target.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let mode = fs::metadata(&target).map_or(mode, |m| m.permissions().mode() & mode);
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let temporary = dir.join(format!(".{name}.{}.tmp", std::process::id()));
    let written = (|| {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&temporary)?;
        // Also if a crash left the temporary file behind.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(&temporary, &target)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Quotes a path for a shell.
pub(crate) fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./@%+=:,-".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// `$VARIABLE`, or `~/fallback`. The XDG specification says to ignore a relative path.
pub(crate) fn xdg(variable: &str, fallback: &str) -> Result<PathBuf, Failure> {
    if let Some(dir) = std::env::var_os(variable).map(PathBuf::from).filter(|dir| dir.is_absolute()) {
        return Ok(dir);
    }
    let home = std::env::home_dir().filter(|h| !h.as_os_str().is_empty());
    home.map(|h| h.join(fallback)).ok_or_else(|| {
        Failure::new(Exit::Usage, "finding the data directory", "neither HOME nor XDG variables are set")
            .hint("give --data-dir")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-086: a lock stops two servers on one directory, exit 4, naming the pid.
    #[tokio::test]
    async fn sp_086_second_lock_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::resolve(Some(dir.path())).unwrap();
        data.create().unwrap();
        let held = data.lock().await.unwrap();
        let refused = data.lock().await.unwrap_err();
        assert_eq!(refused.exit, Exit::Conflict);
        assert!(refused.why.contains(&std::process::id().to_string()), "{}", refused.why);
        assert!(data.is_locked().unwrap());
        drop(held);
        assert!(!data.is_locked().unwrap());
    }

    /// SP-086: asking whether a server runs keeps none from starting.
    #[tokio::test]
    async fn sp_086_a_look_does_not_keep_a_server_from_starting() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::resolve(Some(dir.path())).unwrap();
        data.create().unwrap();
        drop(data.lock().await.unwrap());
        let look = File::open(data.lock_file()).unwrap();
        look.try_lock_shared().unwrap();
        let mut start = Box::pin(data.lock());
        let mut idle = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(start.as_mut().poll(&mut idle).is_pending());
        drop(look);
        assert!(start.await.is_ok());
    }

    /// SP-083: a printed command can be pasted into a shell, whatever the directory is called.
    #[test]
    fn sp_083_printed_paths_are_shell_words() {
        assert_eq!(quoted(Path::new("/tmp/ks-1")), "/tmp/ks-1");
        assert_eq!(quoted(Path::new("/tmp/my dir/it's")), r"'/tmp/my dir/it'\''s'");
        let data = DataDir::resolve(Some(Path::new("/nowhere/else"))).unwrap();
        assert_eq!(data.command("status"), "kubestellar --data-dir /nowhere/else status");
    }

    /// SP-093: a file is replaced as a whole and keeps its mode, as far as nobody else may read it.
    #[test]
    fn sp_093_write_keeps_a_mode_that_is_tight() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        write_atomically(&file, b"one", 0o600).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let temporary = dir.path().join(format!(".config.{}.tmp", std::process::id()));
        fs::write(&temporary, b"left behind").unwrap();
        fs::set_permissions(&temporary, fs::Permissions::from_mode(0o644)).unwrap();
        for (before, after) in [(0o640, 0o600), (0o666, 0o600), (0o400, 0o400)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(before)).unwrap();
            write_atomically(&file, b"two", 0o600).unwrap();
            assert_eq!(fs::read(&file).unwrap(), b"two");
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, after, "{before:o}");
        }
    }
}
