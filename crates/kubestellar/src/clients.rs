//! Kubernetes clients from kubeconfig files.

use std::path::Path;

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::exit::{Exit, Failure, chain};

/// Returns a client for `context` of `file`, or for the current context of the file. Without a file uses the files that
/// kubectl would use, and inside a cluster the service account.
pub(crate) async fn client(file: Option<&Path>, context: Option<&str>) -> Result<Client, Failure> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let config = config(file, &options).await?;
    Client::try_from(config).map_err(|error| broken(file, context, &error))
}

/// Returns the configuration that kubectl would use with these flags; inside a cluster and without flags that of the
/// service account.
pub(crate) async fn config(
    file: Option<&Path>,
    options: &KubeConfigOptions,
) -> Result<kube::Config, Failure> {
    let config = read(file, options).await?;
    if config.accept_invalid_certs {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            tracing::warn!(
                server = %config.cluster_url,
                "the kubeconfig says insecure-skip-tls-verify: whoever answers at this address is trusted"
            );
        });
    }
    Ok(config)
}

async fn read(file: Option<&Path>, options: &KubeConfigOptions) -> Result<kube::Config, Failure> {
    let named = options.context.is_some() || options.cluster.is_some() || options.user.is_some();
    let failed = |error: &dyn std::error::Error| broken(file, options.context.as_deref(), error);
    match file {
        Some(path) => {
            let kubeconfig = Kubeconfig::read_from(path).map_err(|e| failed(&e))?;
            kube::Config::from_custom_kubeconfig(kubeconfig, options).await.map_err(|e| failed(&e))
        }
        None if named => kube::Config::from_kubeconfig(options).await.map_err(|e| failed(&e)),
        None => kube::Config::infer().await.map_err(|e| failed(&e)),
    }
}

pub(crate) fn broken(file: Option<&Path>, context: Option<&str>, error: &dyn std::error::Error) -> Failure {
    let what = match (file, context) {
        (Some(file), Some(context)) => format!("using context {context} of {}", file.display()),
        (Some(file), None) => format!("using the kubeconfig {}", file.display()),
        (None, Some(context)) => format!("using context {context}"),
        (None, None) => "connecting to a cluster".to_owned(),
    };
    Failure::new(Exit::Failed, what, chain(error))
        .hint("check the file with `kubectl config view`, or name another with the kubeconfig flags")
}
