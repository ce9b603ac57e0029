//! Hooks whose work a component of ours does (SP-025, SP-067, SP-069).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::names::{COMPONENT, SYSTEM_LABEL};
use crate::spaces::Role;

/// A component, as a hook asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    OcmHub,
    StatusAddon,
    ControllerManager,
    TransportController,
}

impl Wanted {
    /// What the space of such a component is for.
    pub(crate) fn role(self) -> Role {
        match self {
            Self::OcmHub | Self::StatusAddon => Role::Its,
            Self::ControllerManager | Self::TransportController => Role::Wds,
        }
    }

    fn named(name: &str) -> Option<Self> {
        let all = [Self::OcmHub, Self::StatusAddon, Self::ControllerManager, Self::TransportController];
        all.into_iter().find(|one| one.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::OcmHub => "ocm-hub",
            Self::StatusAddon => "status-addon",
            Self::ControllerManager => "controller-manager",
            Self::TransportController => "transport-controller",
        }
    }
}

/// A hook that asks for a component that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BuiltinError {
    #[error(
        "annotation {COMPONENT} names {0:?}; known are ocm-hub, status-addon, controller-manager and transport-controller"
    )]
    Unknown(String),
    #[error("{0} is not built in")]
    NotBuiltIn(&'static str),
}

use Wanted::{ControllerManager, OcmHub, StatusAddon, TransportController};

/// The hooks of KubeStellar's chart, with the names that they had in earlier versions.
const TABLE: &[(&str, &[Wanted])] = &[
    ("its-hub-init", &[OcmHub]),
    ("install-status-addon", &[StatusAddon]),
    ("kubestellar-controller", &[ControllerManager]),
    ("transport-controller", &[TransportController]),
    ("its", &[OcmHub, StatusAddon]),
    ("its-with-clusteradm", &[OcmHub, StatusAddon]),
    ("ocm", &[OcmHub, StatusAddon]),
    ("kubestellar", &[ControllerManager, TransportController]),
    ("wds", &[ControllerManager, TransportController]),
];

/// The components of a hook; `None` if its templates are applied. The annotation counts first, then the name if `by_name`.
pub(crate) fn of(
    annotations: Option<&BTreeMap<String, String>>,
    name: &str,
    by_name: bool,
) -> Result<Option<Vec<Wanted>>, BuiltinError> {
    if let Some(list) = annotations.and_then(|all| all.get(COMPONENT)) {
        let named = |one: &str| Wanted::named(one).ok_or_else(|| BuiltinError::Unknown(one.to_owned()));
        return list.split(',').map(|one| named(one.trim())).collect::<Result<_, _>>().map(Some);
    }
    if !by_name {
        return Ok(None);
    }
    if name == "openshift-crds" {
        return Err(BuiltinError::NotBuiltIn("openshift-crds"));
    }
    Ok(TABLE.iter().find(|(known, _)| *known == name).map(|(_, components)| components.to_vec()))
}

/// Label that a built-in hook without an object gives to its ControlPlanes.
pub(crate) fn labels(components: &[Wanted]) -> BTreeMap<String, String> {
    let role = match components.first().map(|one| one.role()) {
        Some(Role::Its) => "its",
        Some(Role::Wds) => "wds",
        Some(Role::Plain) | None => return BTreeMap::new(),
    };
    BTreeMap::from([(apis::constants::CP_TYPE_LABEL.to_owned(), role.to_owned())])
}

/// The PostCreateHooks that a fresh host space has (SP-069).
pub(crate) fn objects() -> Vec<Value> {
    let current = TABLE.iter().filter(|(_, components)| components.len() == 1);
    current
        .map(|(name, components)| {
            let mut labels = labels(components);
            labels.insert(SYSTEM_LABEL.to_owned(), "true".to_owned());
            let components: Vec<&str> = components.iter().map(|one| one.name()).collect();
            json!({"apiVersion": format!("{}/v1alpha1", apis::constants::TENANCY_GROUP), "kind": "PostCreateHook",
                "metadata": {"name": name, "labels": labels, "annotations": {COMPONENT: components.join(",")}},
                "spec": {}})
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-025: names of earlier versions mean the same components.
    #[test]
    fn sp_025_older_names_are_aliases() {
        for (name, components) in [
            ("its-hub-init", Some(vec![OcmHub])),
            ("its", Some(vec![OcmHub, StatusAddon])),
            ("its-with-clusteradm", Some(vec![OcmHub, StatusAddon])),
            ("ocm", Some(vec![OcmHub, StatusAddon])),
            ("kubestellar", Some(vec![ControllerManager, TransportController])),
            ("wds", Some(vec![ControllerManager, TransportController])),
            ("mine", None),
        ] {
            assert_eq!(of(None, name, true), Ok(components), "{name}");
            assert_eq!(of(None, name, false), Ok(None), "{name}: a hosting cluster runs its pods");
        }
        assert!(of(None, "openshift-crds", true).unwrap_err().to_string().contains("not built in"));
    }

    /// SP-067, SP-069: the hooks of a fresh host say what they are.
    #[test]
    fn sp_069_hooks_of_a_fresh_host() {
        let objects = objects();
        let names: Vec<&str> = objects.iter().filter_map(|o| o["metadata"]["name"].as_str()).collect();
        assert_eq!(
            names,
            ["its-hub-init", "install-status-addon", "kubestellar-controller", "transport-controller"]
        );
        assert_eq!(objects[0]["metadata"]["labels"]["kflex.kubestellar.io/cptype"], "its");
        assert_eq!(objects[2]["metadata"]["labels"]["kflex.kubestellar.io/cptype"], "wds");
        for object in &objects {
            let annotations = serde_json::from_value(object["metadata"]["annotations"].clone()).unwrap();
            assert!(of(Some(&annotations), "any", false).unwrap().is_some(), "{object}");
        }
    }
}
