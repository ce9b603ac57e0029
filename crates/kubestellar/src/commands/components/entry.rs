//! The bootstrap kubeconfig of a cluster's agent. It may be corrected while the agent runs (OCM-A-14).

use std::path::Path;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use ocm_agent::registration::Endpoint;

use crate::exit::{Exit, Failure, OrFail};

/// How often the file is read. No event reports that a kubelet replaces a file.
const LOOK: Duration = Duration::from_secs(2);

/// A usable bootstrap kubeconfig.
pub(super) struct Entry {
    /// The contents of the file, and of the files that it names.
    text: String,
    pub(super) endpoint: Endpoint,
    pub(super) bootstrap: kube::Client,
}

impl Entry {
    pub(super) async fn read(file: &Path) -> Result<Self, Failure> {
        let what = || format!("using the bootstrap kubeconfig {}", file.display());
        let text = contents(file).await.or_fail(what())?;
        let kubeconfig = Kubeconfig::read_from(file).or_fail(what())?;
        let endpoint = Endpoint::of(&kubeconfig)
            .ok_or_else(|| Failure::new(Exit::Failed, what(), "its current context names no cluster"))?;
        let connect = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        let bootstrap = connect.or_fail(what()).and_then(|c| runtime::connect::client(c).or_fail(what()))?;
        Ok(Self { text, endpoint, bootstrap })
    }

    /// Waits until the file has other contents that can be used.
    pub(super) async fn changed(&self, file: &Path) -> Self {
        let mut known = self.text.clone();
        loop {
            tokio::time::sleep(LOOK).await;
            let Ok(text) = contents(file).await else { continue };
            if text == known {
                continue;
            }
            match Self::read(file).await {
                Ok(entry) if entry.text != self.text => return entry,
                // The contents are the same.
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(why = error.why, "the changed bootstrap kubeconfig cannot be used");
                }
            }
            known = text;
        }
    }
}

/// Returns the contents of a kubeconfig and of the certificates and keys beside it, which change together with it or alone.
/// A token file is left out: the client reads it again by itself.
async fn contents(file: &Path) -> std::io::Result<String> {
    let mut all = tokio::fs::read_to_string(file).await?;
    let Ok(kubeconfig) = Kubeconfig::read_from(file) else { return Ok(all) };
    let clusters = kubeconfig.clusters.into_iter().filter_map(|named| named.cluster?.certificate_authority);
    let users = kubeconfig.auth_infos.into_iter().filter_map(|named| named.auth_info);
    let users = users.flat_map(|user| [user.client_certificate, user.client_key]).flatten();
    for beside in clusters.chain(users) {
        // A file that is missing is reported where it is used.
        all.push('\0');
        all.push_str(&tokio::fs::read_to_string(&beside).await.unwrap_or_default());
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OCM-A-14: certificates and keys beside the kubeconfig count as parts of it.
    #[tokio::test]
    async fn ocm_a_14_files_beside_the_kubeconfig_belong_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubeconfig");
        let text = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": "https://hub:1", "certificate-authority": "ca.crt"}}],
            "users": [{"name": "u", "user": {"client-certificate": "tls.crt", "client-key": "tls.key", "tokenFile": "token"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}"#;
        std::fs::write(&file, text).unwrap();
        let mut seen = vec![contents(&file).await.unwrap()];
        for name in ["ca.crt", "tls.crt", "tls.key"] {
            std::fs::write(dir.path().join(name), format!("new {name}")).unwrap();
            let now = contents(&file).await.unwrap();
            assert!(!seen.contains(&now), "{name}");
            seen.push(now);
        }
        std::fs::write(dir.path().join("token"), "new").unwrap();
        assert_eq!(contents(&file).await.unwrap(), seen[3]);
    }
}
