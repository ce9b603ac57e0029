//! Bindings by subject, kept up to date with the store.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;
use store::{Entry, Revision, View};

use super::rules::nullable;

/// What a binding refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RoleKind {
    Cluster,
    Namespaced,
}

/// A RoleBinding or ClusterRoleBinding without its subjects.
#[derive(Debug)]
pub(crate) struct Binding {
    /// Empty for a ClusterRoleBinding.
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) role_kind: RoleKind,
    pub(crate) role: String,
}

/// A binding as it applies to one subject.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) binding: Arc<Binding>,
    /// `User "bob"`, for reasons.
    pub(crate) subject: Arc<str>,
}

#[derive(Debug, Default)]
pub(crate) struct BySubject {
    /// By user name; service accounts under theirs.
    users: HashMap<String, Vec<Grant>>,
    groups: HashMap<String, Vec<Grant>>,
}

impl BySubject {
    pub(crate) fn grants<'a>(
        &'a self,
        user: &'a str,
        groups: &'a [String],
    ) -> impl Iterator<Item = &'a Grant> {
        let of_user = self.users.get(user).into_iter().flatten();
        of_user.chain(groups.iter().filter_map(|g| self.groups.get(g)).flatten())
    }

    fn add(&mut self, binding: &Arc<Binding>, subject: &Subject) {
        let name = &subject.name;
        let text: Arc<str> = match subject.kind.as_str() {
            "ServiceAccount" => {
                let namespace =
                    if subject.namespace.is_empty() { &*binding.namespace } else { &subject.namespace };
                if namespace.is_empty() {
                    return;
                }
                let text =
                    format!("ServiceAccount {}", machinery::field::quote(&format!("{name}/{namespace}")));
                let user = format!("system:serviceaccount:{namespace}:{name}");
                let grant = Grant { binding: binding.clone(), subject: text.into() };
                self.users.entry(user).or_default().push(grant);
                return;
            }
            kind => format!("{kind} {}", machinery::field::quote(name)).into(),
        };
        let grant = Grant { binding: binding.clone(), subject: text };
        match subject.kind.as_str() {
            "User" => self.users.entry(name.clone()).or_default().push(grant),
            "Group" => self.groups.entry(name.clone()).or_default().push(grant),
            _ => {}
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BindingObject {
    role_ref: RoleRef,
    #[serde(default, deserialize_with = "nullable")]
    subjects: Vec<Subject>,
}

#[derive(Deserialize)]
struct RoleRef {
    kind: String,
    name: String,
}

#[derive(Clone, Deserialize)]
struct Subject {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
}

/// A binding parsed once per stored version.
#[derive(Clone)]
struct Parsed {
    revision: Revision,
    binding: Arc<Binding>,
    subjects: Arc<[Subject]>,
}

type ParsedBindings = HashMap<(Arc<str>, Arc<str>), Parsed>;

/// All bindings of a space at one state of the two binding collections.
pub(crate) struct Index {
    cluster_view: View,
    namespaced_view: View,
    parsed_cluster: ParsedBindings,
    parsed_namespaced: ParsedBindings,
    pub(crate) cluster: BySubject,
    pub(crate) namespaced: HashMap<Arc<str>, BySubject>,
}

impl Index {
    /// The index of these views, reusing what `old` has parsed. Cost: a look at each binding, a parse of changed ones.
    pub(crate) fn build(old: Option<&Self>, cluster_view: View, namespaced_view: View) -> Self {
        let parsed_cluster = parse(old.map(|o| &o.parsed_cluster), &cluster_view);
        let parsed_namespaced = parse(old.map(|o| &o.parsed_namespaced), &namespaced_view);
        let mut cluster = BySubject::default();
        for entry in cluster_view.iter(None, None) {
            if let Some(parsed) = parsed_cluster.get(&id(entry)) {
                parsed.subjects.iter().for_each(|s| cluster.add(&parsed.binding, s));
            }
        }
        let mut namespaced: HashMap<Arc<str>, BySubject> = HashMap::new();
        for entry in namespaced_view.iter(None, None) {
            if let Some(parsed) = parsed_namespaced.get(&id(entry)) {
                let of_namespace = namespaced.entry(entry.key.namespace.clone()).or_default();
                parsed.subjects.iter().for_each(|s| of_namespace.add(&parsed.binding, s));
            }
        }
        Self { cluster_view, namespaced_view, parsed_cluster, parsed_namespaced, cluster, namespaced }
    }

    pub(crate) fn is_current(&self, cluster: &View, namespaced: &View) -> bool {
        self.cluster_view.same(cluster) && self.namespaced_view.same(namespaced)
    }
}

fn id(entry: &Entry) -> (Arc<str>, Arc<str>) {
    (entry.key.namespace.clone(), entry.key.name.clone())
}

fn parse(old: Option<&ParsedBindings>, view: &View) -> ParsedBindings {
    view.iter(None, None)
        .filter_map(|entry| {
            let id = id(entry);
            let known = old.and_then(|o| o.get(&id)).filter(|p| p.revision == entry.revision);
            let parsed = known.cloned().or_else(|| parse_one(entry))?;
            Some((id, parsed))
        })
        .collect()
}

fn parse_one(entry: &Entry) -> Option<Parsed> {
    // Stored objects passed validation; one that does not parse grants nothing.
    let object: BindingObject = serde_json::from_slice(&entry.value).ok()?;
    let role_kind = match object.role_ref.kind.as_str() {
        "ClusterRole" => RoleKind::Cluster,
        "Role" if !entry.key.namespace.is_empty() => RoleKind::Namespaced,
        _ => return None,
    };
    let binding = Binding {
        namespace: entry.key.namespace.clone(),
        name: entry.key.name.clone(),
        role_kind,
        role: object.role_ref.name,
    };
    Some(Parsed { revision: entry.revision, binding: Arc::new(binding), subjects: object.subjects.into() })
}
