//! Finds a space by its ControlPlane in the hosting cluster (KS-214).

use std::time::Duration;

use apis::tenancy::ControlPlane;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ListParams;
use kube::config::Kubeconfig;
use kube::{Api, Client, ResourceExt as _};

use crate::exit::{Exit, Failure};

/// Label with the role of a ControlPlane.
const TYPE_LABEL: &str = "kflex.kubestellar.io/cptype";
/// Pause between two reads, and longest wait. The kind may not be defined yet, so it cannot be watched.
const EVERY: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(300);

/// The role of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Wds,
    Its,
}

impl Role {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Wds => "wds",
            Self::Its => "its",
        }
    }
}

/// A space that was found.
pub(super) struct Found {
    pub(super) name: String,
    pub(super) kubeconfig: Kubeconfig,
}

/// Why a space cannot be used. All reasons but [`Missing::Several`] may pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Missing {
    #[error("more than one control plane of type {0} was found and no name was specified")]
    Several(&'static str),
    #[error(
        "no control plane found. At least one control plane labeled with {TYPE_LABEL}={0} must be present"
    )]
    None(&'static str),
    #[error("control plane with type {0} and name {1} was not found")]
    NotNamed(&'static str, String),
    #[error("access secret reference doesn't exist for {0}")]
    NoReference(String),
    #[error("{0}")]
    NoKubeconfig(String),
    #[error("asking the hosting cluster: {0}")]
    Refused(String),
}

/// Returns the space `name`, or without a name the only one of its role. Waits up to five minutes for the space and its
/// credentials, and logs what is missing when that changes. `in_cluster` chooses one of its two kubeconfigs.
pub(super) async fn find(
    hosting: &Client,
    role: Role,
    name: &str,
    in_cluster: bool,
) -> Result<Found, Failure> {
    let what = match name {
        "" => format!("finding the {}", role.as_str()),
        name => format!("finding the {} {name}", role.as_str()),
    };
    tracing::info!(role = role.as_str(), name, "waiting for the control plane");
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut said = None;
    loop {
        let missing = match look(hosting, role, name, in_cluster).await {
            Ok(found) => {
                tracing::info!(role = role.as_str(), name = found.name, "found the control plane");
                return Ok(found);
            }
            Err(missing) => missing,
        };
        if matches!(missing, Missing::Several(_)) || tokio::time::Instant::now() >= deadline {
            return Err(Failure::new(Exit::Failed, what, &missing).hint(format!(
                "name it with --{0}-name, or give --{0}-kubeconfig to do without control planes",
                role.as_str()
            )));
        }
        if said.as_ref() != Some(&missing) {
            tracing::info!(role = role.as_str(), name, %missing, "still waiting for the control plane");
            said = Some(missing);
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn look(hosting: &Client, role: Role, name: &str, in_cluster: bool) -> Result<Found, Missing> {
    let refused = |error: kube::Error| Missing::Refused(error.to_string());
    let planes: Api<ControlPlane> = Api::all(hosting.clone());
    let all = match name {
        "" => {
            let labelled = ListParams::default().labels(&format!("{TYPE_LABEL}={}", role.as_str()));
            planes.list(&labelled).await.map_err(refused)?.items
        }
        name => planes.get_opt(name).await.map_err(refused)?.into_iter().collect(),
    };
    let plane = choose(role, name, all)?;
    let text = credentials(hosting, &plane, in_cluster).await?;
    let kubeconfig =
        Kubeconfig::from_yaml(&text).map_err(|error| Missing::NoKubeconfig(error.to_string()))?;
    Ok(Found { name: plane.name_any(), kubeconfig })
}

/// Reads the kubeconfig to which a ControlPlane refers.
pub(super) async fn credentials(
    hosting: &Client,
    plane: &ControlPlane,
    in_cluster: bool,
) -> Result<String, Missing> {
    let reference = plane.status.as_ref().and_then(|status| status.secret_ref.as_ref());
    let reference = reference.ok_or_else(|| Missing::NoReference(plane.name_any()))?;
    let secrets: Api<Secret> = Api::namespaced(hosting.clone(), &reference.namespace);
    let secret = secrets.get_opt(&reference.name).await;
    let secret = secret.map_err(|error| Missing::Refused(error.to_string()))?;
    let key = if in_cluster { &reference.in_cluster_key } else { &reference.key };
    read(secret.as_ref(), key).map_err(|why| {
        let (namespace, name) = (&reference.namespace, &reference.name);
        Missing::NoKubeconfig(format!("Secret {namespace}/{name} of {}: {why}", plane.name_any()))
    })
}

fn choose(role: Role, name: &str, mut all: Vec<ControlPlane>) -> Result<ControlPlane, Missing> {
    match (all.pop(), all.is_empty()) {
        (Some(only), true) => Ok(only),
        (Some(_), false) => Err(Missing::Several(role.as_str())),
        (None, _) if name.is_empty() => Err(Missing::None(role.as_str())),
        (None, _) => Err(Missing::NotNamed(role.as_str(), name.to_owned())),
    }
}

fn read(secret: Option<&Secret>, key: &str) -> Result<String, String> {
    let data = secret.ok_or("it does not exist")?.data.as_ref();
    let value = data.and_then(|data| data.get(key)).filter(|value| !value.0.is_empty());
    let value = value.ok_or_else(|| format!("it has no key {key:?}"))?;
    let text = std::str::from_utf8(&value.0).map_err(|_| format!("its key {key:?} is no text"))?;
    match Kubeconfig::from_yaml(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("its key {key:?} is no kubeconfig: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    fn plane(name: &str) -> ControlPlane {
        serde_json::from_value(serde_json::json!({"metadata": {"name": name}, "spec": {"type": "k8s"}}))
            .unwrap()
    }

    /// KS-214: the only one; several without a name are an error; texts as users of the original know them.
    #[test]
    fn ks_214_choice_and_texts() {
        assert_eq!(choose(Role::Wds, "", vec![plane("w")]).unwrap().name_any(), "w");
        let cases = [
            (
                choose(Role::Its, "", vec![plane("a"), plane("b")]),
                "more than one control plane of type its was found and no name was specified",
            ),
            (
                choose(Role::Wds, "", vec![]),
                "no control plane found. At least one control plane labeled with kflex.kubestellar.io/cptype=wds must be present",
            ),
            (choose(Role::Wds, "w", vec![]), "control plane with type wds and name w was not found"),
        ];
        for (choice, text) in cases {
            assert_eq!(choice.unwrap_err().to_string(), text);
        }
    }

    /// KS-214: a Secret that does not hold what it should is named with what is wrong, and crashes nothing.
    #[test]
    fn ks_214_unusable_secrets() {
        let with = |value: &[u8]| Secret {
            data: Some([("kubeconfig".to_owned(), ByteString(value.to_vec()))].into()),
            ..Secret::default()
        };
        let cases: [(Option<Secret>, &str); 4] = [
            (None, "does not exist"),
            (Some(Secret::default()), "has no key"),
            (Some(with(b"")), "has no key"),
            (Some(with(b"{ not: [yaml")), "no kubeconfig"),
        ];
        for (secret, text) in cases {
            let error = read(secret.as_ref(), "kubeconfig").unwrap_err();
            assert!(error.contains(text), "{error}");
        }
        assert!(read(Some(&with(b"apiVersion: v1\nkind: Config\n")), "kubeconfig").is_ok());
    }
}
