//! What an agent stores in its cluster: Secrets, and the files for programs beside it (OCM-030, OCM-031).

use std::path::Path;

use k8s_openapi::api::core::v1::Secret;
use runtime::rest::{Gvr, Rest};
use serde_json::Value;

use super::identity::Data;

/// A Secret, by namespace and name.
#[derive(Clone, Copy)]
pub(super) struct Kept<'a> {
    pub(super) cluster: &'a Rest,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

impl Kept<'_> {
    /// Reads its content; empty if there is none.
    pub(super) async fn read(&self) -> Result<Data, kube::Error> {
        let found: Option<Secret> = self.cluster.find(&secrets(), self.namespace, self.name).await?;
        Ok(found.and_then(|secret| secret.data).unwrap_or_default())
    }

    /// Replaces its content; labels and other fields of other writers stay.
    pub(super) async fn save(&self, data: &Data) -> Result<(), kube::Error> {
        let found: Option<Secret> = self.cluster.find(&secrets(), self.namespace, self.name).await?;
        let mut secret = found.unwrap_or_default();
        let exists = secret.metadata.uid.is_some();
        secret.metadata.name = Some(self.name.into());
        secret.metadata.namespace = Some(self.namespace.into());
        secret.data = Some(data.clone());
        let body = serde_json::to_vec(&secret).map_err(kube::Error::SerdeError)?;
        if exists {
            self.cluster.replace::<Value>(&secrets(), self.namespace, self.name, body).await.map(drop)
        } else {
            self.cluster.create::<Value>(&secrets(), self.namespace, body).await.map(drop)
        }
    }
}

fn secrets() -> Gvr {
    Gvr::of::<Secret>()
}

/// Writes the content of a Secret as files. A failure is logged, and retried at the next check.
pub(super) fn write_files(directory: &Path, data: &Data) {
    for (key, value) in data {
        if let Err(error) = write_file(directory, key, &value.0) {
            tracing::warn!(%error, directory = %directory.display(), key, "writing the credential's file");
        }
    }
}

/// Writes a file atomically if it differs, readable by the owner only.
fn write_file(directory: &Path, name: &str, content: &[u8]) -> std::io::Result<()> {
    use std::{
        fs,
        io::Write as _,
        os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    };
    let plain = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
    if !plain {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "no file name"));
    }
    let path = directory.join(name);
    let mine = || fs::Permissions::from_mode(0o600);
    if fs::read(&path).is_ok_and(|have| have == content) {
        // An unchanged file is not rewritten, but its permissions are corrected.
        let loose = fs::metadata(&path)?.permissions().mode() & 0o177 != 0;
        return if loose { fs::set_permissions(&path, mine()) } else { Ok(()) };
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let beside = directory.join(format!(".{name}.new"));
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    // Also for a file that a crash left behind.
    file.set_permissions(mine())?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&beside, &path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn ocm_031_files_are_the_owners_alone() {
        let base = tempfile::tempdir().unwrap();
        let directory = base.path().join("hub");
        write_file(&directory, "tls.key", b"one").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&directory), mode(&directory.join("tls.key"))), (0o700, 0o600));
        let before = std::fs::metadata(directory.join("tls.key")).unwrap().modified().unwrap();
        write_file(&directory, "tls.key", b"one").unwrap();
        assert_eq!(std::fs::metadata(directory.join("tls.key")).unwrap().modified().unwrap(), before);
        write_file(&directory, "tls.key", b"two").unwrap();
        assert_eq!(std::fs::read(directory.join("tls.key")).unwrap(), b"two");
        // OCM-031: whatever the permissions were before, nobody else can read the key afterwards.
        let loosen = |name: &str| {
            let path = directory.join(name);
            if !path.exists() {
                std::fs::write(&path, b"left behind").unwrap();
            }
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
        };
        for content in [b"two", b"new"] {
            loosen("tls.key");
            loosen(".tls.key.new");
            write_file(&directory, "tls.key", content).unwrap();
            assert_eq!(mode(&directory.join("tls.key")), 0o600);
            assert_eq!(std::fs::read(directory.join("tls.key")).unwrap(), content);
        }
        for odd in ["", "../x", ".hidden"] {
            assert!(write_file(&directory, odd, b"x").is_err());
        }
    }

    /// OCM-031: the keys of a Secret become names of files in one directory, never paths.
    ///
    /// CVE-2024-56514: an archive of CRDs made Karmada write files outside the directory for it.
    #[test]
    fn ocm_031_cve_2024_56514_a_key_of_a_secret_is_no_path() {
        let base = tempfile::tempdir().unwrap();
        let directory = base.path().join("hub");
        let absolute = base.path().join("absolute");
        let mut data = Data::new();
        for name in ["../up", "..", ".", "a/../../over", absolute.to_str().unwrap(), "sub/file", ".dot", ""] {
            data.insert(name.to_owned(), k8s_openapi::ByteString(b"x".to_vec()));
        }
        data.insert("tls.key".to_owned(), k8s_openapi::ByteString(b"good".to_vec()));
        write_files(&directory, &data);
        let names = |directory: &Path| -> Vec<_> {
            std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
        };
        assert_eq!(names(base.path()), ["hub"]);
        assert_eq!(names(&directory), ["tls.key"]);
    }
}
