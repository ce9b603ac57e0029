//! An index of bindings by subject that follows changes of the store.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use machinery::field::quote;
use serde::Deserialize;
use store::{Entry, Event, EventKind};

use super::rules::nullable;

/// The kind of role that a binding refers to.
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
    /// `User "bob"`, as reasons print it.
    pub(crate) subject: Arc<str>,
}

/// Sorted by the names of the bindings, which is the order of evaluation.
type Grants = BTreeMap<(Arc<str>, usize), Grant>;

/// Bindings of one namespace, or ClusterRoleBindings, by subject.
#[derive(Debug, Default)]
pub(crate) struct BySubject {
    /// By user name. Service accounts are users.
    users: HashMap<String, Grants>,
    groups: HashMap<String, Grants>,
}

/// The users that a subject means.
enum Principal {
    User(String),
    Group(String),
}

impl BySubject {
    pub(crate) fn grants<'a>(
        &'a self,
        user: &'a str,
        groups: &'a [String],
    ) -> impl Iterator<Item = &'a Grant> {
        let of_user = self.users.get(user).into_iter();
        of_user.chain(groups.iter().filter_map(|g| self.groups.get(g))).flat_map(BTreeMap::values)
    }

    fn add(&mut self, known: &IndexedBinding) {
        for (index, subject) in known.subjects.iter().enumerate() {
            let Some((principal, text)) = principal(&known.binding, subject) else { continue };
            let (map, principal) = self.place(principal);
            let grant = Grant { binding: known.binding.clone(), subject: text.into() };
            map.entry(principal).or_default().insert((known.binding.name.clone(), index), grant);
        }
    }

    fn remove(&mut self, known: &IndexedBinding) {
        for (index, subject) in known.subjects.iter().enumerate() {
            let Some((principal, _)) = principal(&known.binding, subject) else { continue };
            let (map, principal) = self.place(principal);
            if let Some(grants) = map.get_mut(&principal) {
                grants.remove(&(known.binding.name.clone(), index));
                if grants.is_empty() {
                    map.remove(&principal);
                }
            }
        }
    }

    fn place(&mut self, principal: Principal) -> (&mut HashMap<String, Grants>, String) {
        match principal {
            Principal::User(name) => (&mut self.users, name),
            Principal::Group(name) => (&mut self.groups, name),
        }
    }

    fn is_empty(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty()
    }
}

/// The users that a subject of a binding means, and its text in reasons.
fn principal(binding: &Binding, subject: &Subject) -> Option<(Principal, String)> {
    let Subject { kind, name, namespace } = subject;
    match kind.as_str() {
        "ServiceAccount" => {
            let namespace = if namespace.is_empty() { &*binding.namespace } else { namespace };
            if namespace.is_empty() {
                return None;
            }
            let text = format!("ServiceAccount {}", quote(&format!("{name}/{namespace}")));
            Some((Principal::User(format!("system:serviceaccount:{namespace}:{name}")), text))
        }
        "User" => Some((Principal::User(name.clone()), format!("User {}", quote(name)))),
        "Group" => Some((Principal::Group(name.clone()), format!("Group {}", quote(name)))),
        _ => None,
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

#[derive(Debug, Deserialize)]
struct Subject {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
}

/// A binding in the index.
#[derive(Debug)]
struct IndexedBinding {
    binding: Arc<Binding>,
    subjects: Vec<Subject>,
}

/// All bindings of a space.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// By namespace (empty for ClusterRoleBindings) and name.
    known: HashMap<(Arc<str>, Arc<str>), IndexedBinding>,
    cluster: BySubject,
    namespaced: HashMap<Arc<str>, BySubject>,
}

impl Index {
    /// Builds the index. Costs one parse per entry.
    pub(crate) fn build<'a>(entries: impl Iterator<Item = &'a Arc<Entry>>) -> Self {
        let mut index = Self::default();
        entries.for_each(|entry| index.put(entry));
        index
    }

    /// Applies a change of a binding. Costs a parse of that binding.
    pub(crate) fn apply(&mut self, event: &Event) {
        match event.kind {
            EventKind::Deleted => self.remove(&event.entry),
            EventKind::Created | EventKind::Updated => self.put(&event.entry),
        }
    }

    /// ClusterRoleBindings.
    pub(crate) fn cluster(&self) -> &BySubject {
        &self.cluster
    }

    /// RoleBindings of a namespace.
    pub(crate) fn namespaced(&self, namespace: &str) -> Option<&BySubject> {
        self.namespaced.get(namespace)
    }

    fn put(&mut self, entry: &Entry) {
        self.remove(entry);
        if let Some(known) = parse(entry) {
            self.part(&entry.key.namespace).add(&known);
            self.known.insert(id(entry), known);
        }
    }

    fn remove(&mut self, entry: &Entry) {
        let Some(known) = self.known.remove(&id(entry)) else { return };
        let namespace = &entry.key.namespace;
        let part = self.part(namespace);
        part.remove(&known);
        if part.is_empty() {
            self.namespaced.remove(namespace);
        }
    }

    fn part(&mut self, namespace: &Arc<str>) -> &mut BySubject {
        match &**namespace {
            "" => &mut self.cluster,
            _ => self.namespaced.entry(namespace.clone()).or_default(),
        }
    }
}

fn id(entry: &Entry) -> (Arc<str>, Arc<str>) {
    (entry.key.namespace.clone(), entry.key.name.clone())
}

fn parse(entry: &Entry) -> Option<IndexedBinding> {
    // Stored objects are valid; an object that does not parse grants nothing.
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
    Some(IndexedBinding { binding: Arc::new(binding), subjects: object.subjects })
}
