//! Finds the two spaces that a command reads, by the contexts of a kubeconfig.

use kube::Client;

use crate::contexts::{self, Contexts, Sources};
use crate::exit::Failure;

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
    /// Finds the contexts.
    pub(crate) async fn open(args: &SpaceArgs, sources: &Sources) -> Result<Self, Failure> {
        let contexts = Contexts::read(sources)?;
        let wds = contexts.find(&args.wds, "--wds")?;
        let its = contexts.find(&args.its, "--its")?;
        let wds_name = args.wds_name.clone().unwrap_or_else(|| contexts::space_of(wds, &args.wds));
        Ok(Self {
            wds: contexts::client(wds, &args.wds).await?,
            its: contexts::client(its, &args.its).await?,
            wds_name,
            wds_context: args.wds.clone(),
        })
    }
}
