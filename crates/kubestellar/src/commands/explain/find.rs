//! Finds the resource that a user means by `deploy/web`.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use kube::Client;

use crate::exit::{Exit, Failure, from_kube};

/// One served resource, in its preferred version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) kind: String,
    pub(crate) short: Vec<String>,
    pub(crate) namespaced: bool,
    pub(crate) verbs: Vec<String>,
}

/// `KIND/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// Kind, plural, singular or short name, perhaps with `.group`.
    pub(crate) kind: String,
    pub(crate) name: String,
}

impl Named {
    /// From `deploy/web`, or `deploy web`, as kubectl takes both.
    pub(crate) fn of(words: &[String]) -> Result<Self, String> {
        let parts = match words {
            [one] => one.split_once('/'),
            [kind, name] if !kind.contains('/') => Some((kind.as_str(), name.as_str())),
            _ => None,
        };
        match parts {
            Some((kind, name)) if !kind.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self { kind: kind.to_owned(), name: name.to_owned() })
            }
            _ => Err("give KIND/NAME, for example deploy/web, or KIND NAME".to_owned()),
        }
    }
}

/// Finds the resource by kubectl's rules: the core group first, then groups in the order of discovery.
pub(crate) fn choose<'a>(all: &'a [Served], kind: &str) -> Option<&'a Served> {
    let kind = kind.to_lowercase();
    let is = |it: &Served, name: &str| {
        it.plural == name
            || it.singular == name
            || it.kind.to_lowercase() == name
            || it.short.iter().any(|short| short == name)
    };
    all.iter().find(|it| is(it, &kind)).or_else(|| {
        let (name, group) = kind.split_once('.')?;
        all.iter().find(|it| is(it, name) && it.group == group).or_else(|| {
            // deployments.v1.apps
            let (version, group) = group.split_once('.')?;
            all.iter().find(|it| is(it, name) && it.version == version && it.group == group)
        })
    })
}

/// Discovers all resources of the space, with one request and one more for each API group.
pub(crate) async fn served(client: &Client) -> Result<Vec<Served>, Failure> {
    let failed = |error: kube::Error| from_kube("discovering resources", &error);
    let core = client.list_core_api_resources("v1").await.map_err(failed)?;
    let groups = client.list_api_groups().await.map_err(failed)?.groups;
    let mut versions: Vec<(String, String)> = Vec::new();
    for group in &groups {
        let preferred = group.preferred_version.as_ref().map(|it| it.version.clone());
        let mut all: Vec<_> = group.versions.iter().map(|it| it.version.clone()).collect();
        all.sort_by_key(|version| Some(version) != preferred.as_ref());
        versions.extend(all.into_iter().map(|version| (group.name.clone(), version)));
    }
    let lists = versions.iter().map(|(group, version)| async move {
        let list = client.list_api_group_resources(&format!("{group}/{version}")).await;
        // A group that does not answer does not affect the others.
        Ok::<_, Failure>((
            group.as_str(),
            version.as_str(),
            list.map(|list| list.resources).unwrap_or_default(),
        ))
    });
    let lists = try_join_all(lists).await?;
    let (mut found, mut known) = (Vec::new(), BTreeSet::new());
    for (group, version, resources) in std::iter::once(("", "v1", core.resources)).chain(lists) {
        for it in resources.into_iter().filter(|it| !it.name.contains('/')) {
            if known.insert((group.to_owned(), it.name.clone())) {
                found.push(Served {
                    group: group.to_owned(),
                    version: version.to_owned(),
                    plural: it.name,
                    singular: it.singular_name,
                    kind: it.kind,
                    short: it.short_names.unwrap_or_default(),
                    namespaced: it.namespaced,
                    verbs: it.verbs,
                });
            }
        }
    }
    Ok(found)
}

/// The failure for a kind that the space does not serve.
pub(crate) fn unknown(kind: &str, context: &str) -> Failure {
    Failure::new(
        Exit::NotFound,
        format!("finding {kind:?}"),
        format!("{context} has no such kind of resource"),
    )
    .hint(format!("kubectl --context {context} api-resources"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-120: names as kubectl takes them.
    #[test]
    fn sp_120_kinds_by_any_name() {
        let resource = |group: &str, plural: &str, singular: &str, kind: &str, short: &str| Served {
            group: group.into(),
            version: "v1".into(),
            plural: plural.into(),
            singular: singular.into(),
            kind: kind.into(),
            short: vec![short.into()],
            ..Served::default()
        };
        let all = [
            resource("", "bindings", "binding", "Binding", "-"),
            resource("apps", "deployments", "deployment", "Deployment", "deploy"),
            resource("control.kubestellar.io", "bindings", "binding", "Binding", "bdg"),
        ];
        for (asked, found) in [
            ("deploy", Some("apps")),
            ("Deployment", Some("apps")),
            ("deployments.apps", Some("apps")),
            ("deployments.v1.apps", Some("apps")),
            ("binding", Some("")),
            ("bdg", Some("control.kubestellar.io")),
            ("bindings.control.kubestellar.io", Some("control.kubestellar.io")),
            ("rocket", None),
        ] {
            assert_eq!(choose(&all, asked).map(|it| it.group.as_str()), found, "{asked}");
        }
        let named = |words: &str| Named::of(&words.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for bad in ["deploy", "a/b/c", "a/b c", "a ", "a b c"] {
            assert!(named(bad).is_err(), "{bad:?}");
        }
        for good in ["ns/shop", "ns shop"] {
            assert_eq!(named(good), Ok(Named { kind: "ns".into(), name: "shop".into() }));
        }
    }
}
