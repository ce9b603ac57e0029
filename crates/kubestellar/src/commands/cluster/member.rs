//! The cluster that a command beside a cluster acts on.

use std::fmt;
use std::path::Path;

use kube::config::Kubeconfig;

use crate::clients;
use crate::contexts::must_exist;
use crate::exit::Failure;

/// How the cluster is found, for messages to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Member {
    /// By a context that the user named.
    Named(String),
    /// By the current context of the kubeconfig.
    Current(String),
    /// By the service account of the pod.
    Here,
}

impl Member {
    /// Finds out on which cluster a command with these flags acts.
    ///
    /// # Errors
    /// The file does not exist or cannot be read.
    pub(super) fn find(file: Option<&Path>, context: Option<&str>) -> Result<Self, Failure> {
        if let Some(file) = file {
            must_exist(file)?;
        }
        if let Some(context) = context {
            return Ok(Self::Named(context.to_owned()));
        }
        let read = match file {
            Some(file) => {
                Kubeconfig::read_from(file).map_err(|error| clients::broken(Some(file), None, &error))?
            }
            // Without a kubeconfig this is a pod, or the connection says what is missing.
            None => Kubeconfig::read().unwrap_or_default(),
        };
        Ok(read.current_context.filter(|name| !name.is_empty()).map_or(Self::Here, Self::Current))
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(context) => write!(f, "context {context}"),
            Self::Current(context) => write!(f, "context {context}, the current one"),
            Self::Here => f.write_str("the cluster that this runs in"),
        }
    }
}
