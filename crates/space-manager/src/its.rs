//! Which ITS a WDS uses (SP-027, SP-028). Pure.

use apis::constants::CP_TYPE_LABEL;
use apis::tenancy::ControlPlane;

use crate::names::Type;

/// Variable of a hook with the name of the ITS; empty means the only one.
pub(crate) const ITS_NAME: &str = "ITSName";

/// Why there is no ITS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoIts {
    /// It may come.
    Missing(String),
    /// It cannot be used.
    Unusable(String),
}

/// What the choice needs of a ControlPlane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    name: String,
    type_: Option<Type>,
    is_its: bool,
    going: bool,
    /// Its credentials are there, so it has been started once.
    has_credentials: bool,
}

impl Candidate {
    pub(crate) fn of(plane: &ControlPlane) -> Self {
        let role = plane.metadata.labels.as_ref().and_then(|labels| labels.get(CP_TYPE_LABEL));
        Self {
            name: plane.metadata.name.clone().unwrap_or_default(),
            type_: Type::of(&plane.spec.type_),
            is_its: role.is_some_and(|role| role == "its"),
            going: plane.metadata.deletion_timestamp.is_some(),
            has_credentials: plane.status.as_ref().is_some_and(|status| status.secret_ref.is_some()),
        }
    }
}

/// The ITS of this name, or without a name the only one.
pub(crate) fn choose(asked: &str, all: &[Candidate]) -> Result<String, NoIts> {
    let alive: Vec<&Candidate> = all.iter().filter(|one| !one.going).collect();
    let chosen = if asked.is_empty() {
        let candidates: Vec<&Candidate> = alive.into_iter().filter(|one| one.is_its).collect();
        match candidates[..] {
            [] => return Err(NoIts::Missing("no ITS is there yet".into())),
            [only] => only,
            _ => {
                let names: Vec<&str> = candidates.iter().map(|one| one.name.as_str()).collect();
                let why = format!("there are several ITSes ({}); name one in {ITS_NAME}", names.join(", "));
                return Err(NoIts::Missing(why));
            }
        }
    } else {
        alive
            .into_iter()
            .find(|one| one.name == asked)
            .ok_or_else(|| NoIts::Missing(format!("the ITS {asked} is not there")))?
    };
    if !chosen.type_.is_some_and(Type::is_embedded) {
        return Err(NoIts::Unusable(format!(
            "the ITS {} is no space of this installation; run `kubestellar controller-manager` and `kubestellar transport-controller` for it",
            chosen.name
        )));
    }
    if !chosen.has_credentials {
        return Err(NoIts::Missing(format!("the ITS {} has not started yet", chosen.name)));
    }
    Ok(chosen.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn candidate(name: &str, type_: &str, role: &str, started: bool) -> Candidate {
        let mut plane =
            json!({"metadata": {"name": name, "labels": {CP_TYPE_LABEL: role}}, "spec": {"type": type_}});
        if started {
            plane["status"] = json!({"conditions": [], "observedGeneration": 1,
                "secretRef": {"name": "s", "namespace": "n", "inClusterKey": "k"}});
        }
        Candidate::of(&serde_json::from_value(plane).unwrap())
    }

    /// SP-027, SP-028: by name, or the only one; several are listed, and nothing fails for good.
    #[test]
    fn sp_028_choice_of_the_its() {
        let (its1, its2) =
            (candidate("its1", "k8s", "its", true), candidate("its2", "vcluster", "its", true));
        let wds = candidate("wds1", "k8s", "wds", true);
        let one = [its1.clone(), wds.clone()];
        assert_eq!(choose("", &one), Ok("its1".into()));
        assert_eq!(choose("its1", &one), Ok("its1".into()));
        assert_eq!(choose("its3", &one), Err(NoIts::Missing("the ITS its3 is not there".into())));
        assert_eq!(choose("", &[wds]), Err(NoIts::Missing("no ITS is there yet".into())));
        let two = [its1, its2.clone()];
        let several = "there are several ITSes (its1, its2); name one in ITSName";
        assert_eq!(choose("", &two), Err(NoIts::Missing(several.into())));
        assert_eq!(choose("its2", &two), Ok("its2".into()));
        let going = Candidate { going: true, ..two[0].clone() };
        assert_eq!(choose("", &[going.clone(), its2]), Ok("its2".into()), "one of them goes");
        assert!(matches!(choose("its1", &[going]), Err(NoIts::Missing(_))));
        assert!(matches!(choose("", &[candidate("a", "k8s", "its", false)]), Err(NoIts::Missing(_))));
        assert!(matches!(choose("", &[candidate("a", "external", "its", true)]), Err(NoIts::Unusable(_))));
    }
}
