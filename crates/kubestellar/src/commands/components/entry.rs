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
    /// The contents of the file.
    text: String,
    pub(super) endpoint: Endpoint,
    pub(super) bootstrap: kube::Client,
}

impl Entry {
    pub(super) async fn read(file: &Path) -> Result<Self, Failure> {
        let what = || format!("using the bootstrap kubeconfig {}", file.display());
        let text = tokio::fs::read_to_string(file).await.or_fail(what())?;
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
            let Ok(text) = tokio::fs::read_to_string(file).await else { continue };
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
