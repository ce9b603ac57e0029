//! Kubernetes clients from kubeconfig files.

use std::path::Path;

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use runtime::proxies::Proxies;

use crate::contexts::must_exist;
use crate::exit::{Exit, Failure, chain};

/// Returns the proxies of the environment, from the variables that Go programs read (MC-101, OCM-071).
pub(crate) fn proxies() -> Proxies {
    let first =
        |names: [&str; 2]| names.into_iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default();
    Proxies::new(
        &first(["HTTP_PROXY", "http_proxy"]),
        &first(["HTTPS_PROXY", "https_proxy"]),
        &first(["NO_PROXY", "no_proxy"]),
    )
}

/// Returns a client for `context` of `file`, or for the current context of the file. Without a file uses the files that
/// kubectl would use, and inside a cluster the service account.
pub(crate) async fn client(file: Option<&Path>, context: Option<&str>) -> Result<Client, Failure> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let config = config(file, &options).await?;
    runtime::connect::client(config).map_err(|error| broken(file, context, &error))
}

/// Returns the configuration that kubectl would use with these flags; inside a cluster and without flags that of the
/// service account.
pub(crate) async fn config(
    file: Option<&Path>,
    options: &KubeConfigOptions,
) -> Result<kube::Config, Failure> {
    let named = options.context.is_some() || options.cluster.is_some() || options.user.is_some();
    let failed = |error: &dyn std::error::Error| broken(file, options.context.as_deref(), error);
    match file {
        Some(path) => {
            // As the Go programs end.
            must_exist(path).map_err(|failure| Failure { exit: Exit::Failed, ..failure })?;
            let kubeconfig = Kubeconfig::read_from(path).map_err(|e| failed(&e))?;
            kube::Config::from_custom_kubeconfig(kubeconfig, options).await.map_err(|e| failed(&e))
        }
        None if named => kube::Config::from_kubeconfig(options).await.map_err(|e| failed(&e)),
        None => kube::Config::infer().await.map_err(|e| failed(&e)),
    }
}

/// The address of the server, as the kubeconfig spells it; `None` without a kubeconfig. Parsing would add or remove a slash at
/// its end, and digests of the address must be the same in all agents.
pub(crate) fn server(file: Option<&Path>, options: &KubeConfigOptions) -> Option<String> {
    let kubeconfig = match file {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    written_server(kubeconfig.ok()?, options)
}

fn written_server(kubeconfig: Kubeconfig, options: &KubeConfigOptions) -> Option<String> {
    let context = options.context.as_ref().or(kubeconfig.current_context.as_ref());
    let context =
        context.and_then(|name| kubeconfig.contexts.iter().find(|c| c.name == *name)?.context.as_ref());
    let cluster = options.cluster.as_ref().or(context.map(|context| &context.cluster))?;
    kubeconfig.clusters.into_iter().find(|c| c.name == *cluster)?.cluster?.server
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

#[cfg(test)]
mod tests {
    use super::*;

    /// OCM-071: a digest of the address is that of what the file says, with its slash.
    #[test]
    fn ocm_071_the_address_is_taken_as_it_is_written() {
        let text = "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters:\n- {name: one, cluster: {server: 'https://one:6443/'}}\n\
            - {name: two, cluster: {server: 'https://two:6443'}}\ncontexts:\n- {name: a, context: {cluster: one, user: u}}\n\
            - {name: b, context: {cluster: two, user: u}}\nusers:\n- {name: u, user: {token: t}}\n";
        let of = |context: Option<&str>, cluster: Option<&str>| {
            let options = KubeConfigOptions {
                context: context.map(str::to_owned),
                cluster: cluster.map(str::to_owned),
                user: None,
            };
            written_server(Kubeconfig::from_yaml(text).unwrap(), &options)
        };
        assert_eq!(of(None, None).as_deref(), Some("https://one:6443/"));
        assert_eq!(of(Some("b"), None).as_deref(), Some("https://two:6443"));
        assert_eq!(of(Some("b"), Some("one")).as_deref(), Some("https://one:6443/"));
        assert_eq!(of(Some("c"), None), None);
    }
}
