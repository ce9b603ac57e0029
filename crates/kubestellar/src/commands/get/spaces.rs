//! Finds the two spaces that a command reads, by the contexts of a kubeconfig.

use std::path::{Path, PathBuf};

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::exit::{Exit, Failure, chain, not_running};

/// The flags that name the contexts.
#[derive(Debug, clap::Args)]
pub(crate) struct SpaceArgs {
    /// Context of the workload description space
    #[arg(long, value_name = "CONTEXT", env = "KUBESTELLAR_WDS", default_value = "wds1")]
    wds: String,
    /// Context of the inventory and transport space
    #[arg(long, value_name = "CONTEXT", env = "KUBESTELLAR_ITS", default_value = "its1")]
    its: String,
    /// Name of the WDS as its transport knows it [default: the space that the context is marked with, or the context's name]
    #[arg(long, value_name = "NAME")]
    wds_name: Option<String>,
}

/// Clients of the two spaces.
pub(crate) struct Spaces {
    pub(crate) wds: Client,
    pub(crate) its: Client,
    /// The name of the WDS in the labels of wrapped objects.
    pub(crate) wds_name: String,
    /// The name of the WDS in messages.
    pub(crate) wds_context: String,
}

impl Spaces {
    /// Finds the contexts in the user's kubeconfig files, or else in the file of the installation.
    pub(crate) async fn open(
        args: &SpaceArgs,
        files: &[PathBuf],
        installation: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let configs = [merged(files)?, merged(installation.as_slice())?];
        let wds = find(&configs, &args.wds, "--wds")?;
        let its = find(&configs, &args.its, "--its")?;
        let wds_name = args.wds_name.clone().unwrap_or_else(|| marked(wds, &args.wds));
        Ok(Self {
            wds: client(wds, &args.wds).await?,
            its: client(its, &args.its).await?,
            wds_name,
            wds_context: args.wds.clone(),
        })
    }
}

/// Merges the existing files as kubectl does: the first file wins.
fn merged(files: &[PathBuf]) -> Result<Kubeconfig, Failure> {
    let mut all = Kubeconfig::default();
    for file in files.iter().filter(|file| file.exists()) {
        let broken = |error: &dyn std::error::Error| read_failure(file, error);
        let next = Kubeconfig::read_from(file).map_err(|error| broken(&error))?;
        all = all.merge(next).map_err(|error| broken(&error))?;
    }
    Ok(all)
}

fn read_failure(file: &Path, error: &dyn std::error::Error) -> Failure {
    Failure::new(Exit::Failed, format!("reading the kubeconfig {}", file.display()), chain(error))
}

fn find<'a>(configs: &'a [Kubeconfig], context: &str, flag: &str) -> Result<&'a Kubeconfig, Failure> {
    configs.iter().find(|config| config.contexts.iter().any(|it| it.name == context)).ok_or_else(|| {
        let mut known: Vec<_> =
            configs.iter().flat_map(|config| &config.contexts).map(|it| it.name.as_str()).collect();
        known.sort_unstable();
        known.dedup();
        if known.is_empty() {
            return not_running(format!("using context {context}"), "kubestellar up");
        }
        let hint = format!("name one with {flag}; there are {}", known.join(", "));
        Failure::new(Exit::NotFound, format!("using context {context}"), "no kubeconfig has it").hint(hint)
    })
}

async fn client(config: &Kubeconfig, context: &str) -> Result<Client, Failure> {
    let failed = |error: &dyn std::error::Error| {
        Failure::new(Exit::Failed, format!("using context {context}"), chain(error))
    };
    let options = KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
    let config = kube::Config::from_custom_kubeconfig(config.clone(), &options).await;
    runtime::connect::client(config.map_err(|e| failed(&e))?).map_err(|e| failed(&e))
}

/// Returns the space that the mark of the context names (SP-096).
fn marked(config: &Kubeconfig, context: &str) -> String {
    let named = config.contexts.iter().find(|it| it.name == context);
    let extensions = named.and_then(|it| it.context.as_ref()).and_then(|it| it.extensions.as_ref());
    let mark = extensions.into_iter().flatten().find(|it| it.name == "kubestellar.io");
    let space = mark.and_then(|it| it.extension.get("space")).and_then(serde_json::Value::as_str);
    space.unwrap_or(context).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Kubeconfig {
        Kubeconfig::from_yaml(text).unwrap()
    }

    /// SP-095, SP-096: a context that had to give way keeps its space in its mark.
    #[test]
    fn sp_096_the_mark_names_the_space() {
        let file = config(
            "contexts: [{name: wds1-kubestellar, context: {cluster: c, extensions: [{name: kubestellar.io, extension: {installation: i, space: wds1}}]}}, {name: plain, context: {cluster: c}}]",
        );
        assert_eq!(marked(&file, "wds1-kubestellar"), "wds1");
        assert_eq!(marked(&file, "plain"), "plain");
        let all = [Kubeconfig::default(), file];
        assert!(find(&all, "plain", "--wds").is_ok());
        let missing = find(&all, "wds1", "--wds").unwrap_err();
        assert_eq!(missing.exit, Exit::NotFound);
        assert!(missing.hint.unwrap().contains("plain, wds1-kubestellar"));
    }
}
