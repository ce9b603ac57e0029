//! Evaluation of roles and bindings of one space.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use machinery::field::quote;
use parking_lot::RwLock;
use serde::Deserialize;
use store::{Collection, Revision, Snapshot, SpaceStore, View};

use super::attributes::{Attributes, Decision, RBAC_GROUP};
use super::index::{Binding, Grant, Index, RoleKind};
use super::rules::Rule;
use super::rules::nullable;
use crate::identity::UserInfo;

/// How many cached roles may be left over from deleted ones before the cache drops them.
const SPARE_ROLES: usize = 64;

/// The parsed rules of a role.
struct CachedRole {
    revision: Revision,
    rules: Arc<[Rule]>,
}

type RoleId = (RoleKind, Arc<str>, Arc<str>);

struct Collections {
    cluster_roles: Collection,
    roles: Collection,
    cluster_role_bindings: Collection,
    role_bindings: Collection,
}

/// The index of bindings, and the collections that it was built from: ClusterRoleBindings, RoleBindings, ClusterRoles,
/// Roles.
#[derive(Default)]
struct IndexState {
    views: Option<[View; 4]>,
    bindings: Index,
}

/// Evaluates RBAC. Parses nothing before the first request that needs roles: in most spaces the only user is the
/// admin, who needs none. A decision costs one lookup per group of the user; a change of a binding costs a parse of
/// that binding at the next decision.
pub(super) struct Rbac {
    store: SpaceStore,
    collections: Collections,
    index: RwLock<IndexState>,
    /// Revision of the space at which `index` was last known to be current. Written with `index` locked.
    checked: AtomicU64,
    /// Counts observed changes of roles and bindings. Written with `index` locked.
    changes: AtomicU64,
    roles: RwLock<HashMap<RoleId, CachedRole>>,
}

#[derive(Deserialize)]
struct RoleObject {
    #[serde(default, deserialize_with = "nullable")]
    rules: Vec<Rule>,
}

impl Rbac {
    pub(super) fn new(store: SpaceStore) -> Self {
        let collection = |plural| Collection::new(RBAC_GROUP, plural);
        Self {
            store,
            collections: Collections {
                cluster_roles: collection("clusterroles"),
                roles: collection("roles"),
                cluster_role_bindings: collection("clusterrolebindings"),
                role_bindings: collection("rolebindings"),
            },
            index: RwLock::default(),
            checked: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            roles: RwLock::default(),
        }
    }

    /// Brings the index up to date, at least to the state of `snapshot`.
    fn follow(&self, snapshot: &Snapshot) {
        if self.checked.load(Ordering::Acquire) >= snapshot.revision().0 {
            return;
        }
        let mut index = self.index.write();
        // Another thread may have updated the index meanwhile; the newest snapshot keeps it from going back.
        let snapshot = self.store.snapshot();
        let checked = Revision(self.checked.load(Ordering::Acquire));
        let c = &self.collections;
        let bindings = [&c.cluster_role_bindings, &c.role_bindings];
        let views = [bindings[0], bindings[1], &c.cluster_roles, &c.roles].map(|of| snapshot.view(of));
        let same = |part: std::ops::Range<usize>| {
            index.views.as_ref().is_some_and(|old| {
                old.iter().zip(&views).skip(part.start).take(part.len()).all(|(old, new)| old.same(new))
            })
        };
        let (same_bindings, same_roles) = (same(0..2), same(2..4));
        if !(same_bindings && same_roles) {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
        if same_bindings {
            index.views = Some(views);
            self.checked.store(snapshot.revision().0, Ordering::Release);
            return;
        }
        let changes =
            index.views.is_some().then(|| self.store.changes(&bindings, checked, snapshot.revision()));
        match changes {
            Some(Ok(events)) => events.iter().for_each(|event| index.bindings.apply(event)),
            // The first time, and when the ring no longer has all changes since the last time.
            None | Some(Err(_)) => {
                let read = views.iter().take(bindings.len());
                index.bindings = Index::build(read.flat_map(|view| view.iter(None, None)));
            }
        }
        index.views = Some(views);
        self.checked.store(snapshot.revision().0, Ordering::Release);
    }

    /// A counter that changes when a role or binding has changed. Costs a comparison if nothing was written.
    pub(super) fn changes(&self) -> u64 {
        self.follow(&self.store.snapshot());
        self.changes.load(Ordering::Acquire)
    }

    fn rules(&self, snapshot: &Snapshot, binding: &Binding) -> Option<Arc<[Rule]>> {
        self.role(snapshot, binding.role_kind, &binding.namespace, &binding.role)
    }

    fn role(&self, snapshot: &Snapshot, kind: RoleKind, namespace: &str, name: &str) -> Option<Arc<[Rule]>> {
        let (collection, namespace) = match kind {
            RoleKind::Cluster => (&self.collections.cluster_roles, ""),
            RoleKind::Namespaced => (&self.collections.roles, namespace),
        };
        let view = snapshot.view(collection);
        let entry = view.get(namespace, name)?;
        let id = (kind, entry.key.namespace.clone(), entry.key.name.clone());
        if let Some(cached) = self.roles.read().get(&id)
            && cached.revision == entry.revision
        {
            return Some(cached.rules.clone());
        }
        // Stored objects are valid; an object that does not parse grants nothing.
        let object: RoleObject = serde_json::from_slice(&entry.value).ok()?;
        let rules: Arc<[Rule]> = object.rules.into();
        let mut roles = self.roles.write();
        if roles.len() >= self.stored_roles(snapshot) + SPARE_ROLES {
            roles.retain(|id, cached| self.is_stored(snapshot, id, cached));
        }
        roles.insert(id, CachedRole { revision: entry.revision, rules: rules.clone() });
        Some(rules)
    }

    fn stored_roles(&self, snapshot: &Snapshot) -> usize {
        [&self.collections.cluster_roles, &self.collections.roles]
            .iter()
            .map(|c| snapshot.view(c).len(None))
            .sum()
    }

    fn is_stored(&self, snapshot: &Snapshot, (kind, namespace, name): &RoleId, cached: &CachedRole) -> bool {
        let collection = match kind {
            RoleKind::Cluster => &self.collections.cluster_roles,
            RoleKind::Namespaced => &self.collections.roles,
        };
        snapshot.view(collection).get(namespace, name).is_some_and(|entry| entry.revision == cached.revision)
    }

    /// Calls `visit` with each grant that applies and the rules of its role, until it returns true.
    fn walk(
        &self,
        user: &UserInfo,
        namespace: &str,
        missing: &mut dyn FnMut(&Binding),
        visit: &mut dyn FnMut(&Grant, &[Rule]) -> bool,
    ) {
        let snapshot = self.store.snapshot();
        self.follow(&snapshot);
        let index = self.index.read();
        let of_namespace = index.bindings.namespaced(namespace);
        let grants = index
            .bindings
            .cluster()
            .grants(&user.name, &user.groups)
            .chain(of_namespace.into_iter().flat_map(|n| n.grants(&user.name, &user.groups)));
        for grant in grants {
            match self.rules(&snapshot, &grant.binding) {
                Some(rules) if visit(grant, &rules) => return,
                Some(_) => {}
                None => missing(&grant.binding),
            }
        }
    }

    pub(super) fn allows(&self, user: &UserInfo, a: &Attributes<'_>) -> bool {
        let mut allowed = false;
        self.walk(user, scope(a), &mut |_| {}, &mut |_, rules| {
            allowed = rules.iter().any(|r| r.allows(a));
            allowed
        });
        allowed
    }

    pub(super) fn decide(&self, user: &UserInfo, a: &Attributes<'_>) -> Decision {
        let mut reason = None;
        let mut errors = Vec::new();
        self.walk(user, scope(a), &mut |b| errors.push(not_found(b)), &mut |grant, rules| {
            if rules.iter().any(|r| r.allows(a)) {
                reason = Some(describe(grant));
            }
            reason.is_some()
        });
        match reason {
            Some(by) => Decision::Allow { reason: format!("RBAC: allowed by {by}") },
            None => Decision::NoOpinion { reason: errors_text(&errors) },
        }
    }

    pub(super) fn rules_for(&self, user: &UserInfo, namespace: &str) -> (Vec<Rule>, Vec<String>) {
        let mut out = Vec::new();
        let mut errors = Vec::new();
        self.walk(user, namespace, &mut |b| errors.push(not_found(b)), &mut |grant, rules| {
            // Rules about paths apply in ClusterRoleBindings only.
            let cluster = grant.binding.namespace.is_empty();
            out.extend(rules.iter().filter(|r| cluster || r.non_resource_urls.is_empty()).cloned());
            false
        });
        (out, errors)
    }

    pub(super) fn role_rules(&self, cluster: bool, namespace: &str, name: &str) -> Option<Vec<Rule>> {
        let kind = if cluster { RoleKind::Cluster } else { RoleKind::Namespaced };
        self.role(&self.store.snapshot(), kind, namespace, name).map(|rules| rules.to_vec())
    }
}

/// The namespace whose RoleBindings apply. RoleBindings do not apply to paths.
fn scope<'a>(a: &Attributes<'a>) -> &'a str {
    if a.resource_request { a.namespace } else { "" }
}

fn not_found(binding: &Binding) -> String {
    let resource = match binding.role_kind {
        RoleKind::Cluster => "clusterrole",
        RoleKind::Namespaced => "role",
    };
    format!("{resource}.{RBAC_GROUP} {} not found", quote(&binding.role))
}

fn errors_text(errors: &[String]) -> String {
    let mut seen = HashSet::new();
    let unique: Vec<&str> = errors.iter().map(String::as_str).filter(|error| seen.insert(*error)).collect();
    match unique.as_slice() {
        [] => String::new(),
        [one] => format!("RBAC: {one}"),
        many => format!("RBAC: [{}]", many.join(", ")),
    }
}

/// `ClusterRoleBinding "b" of ClusterRole "r" to User "u"`
fn describe(grant: &Grant) -> String {
    let b = &grant.binding;
    let binding = if b.namespace.is_empty() {
        format!("ClusterRoleBinding {}", quote(&b.name))
    } else {
        format!("RoleBinding {}", quote(&format!("{}/{}", b.name, b.namespace)))
    };
    let role = match b.role_kind {
        RoleKind::Cluster => "ClusterRole",
        RoleKind::Namespaced => "Role",
    };
    format!("{binding} of {role} {} to {}", quote(&b.role), grant.subject)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use store::{Action, Engine, Expect, Key, Write};

    use super::*;
    use crate::encode;

    /// AS-063: deleted roles leave the cache, and the existing ones keep their rules.
    #[tokio::test]
    async fn as_063_roles_that_are_gone_do_not_pile_up() {
        let store = Engine::in_memory().space("s").expect("a space");
        let rbac = Rbac::new(store.clone());
        let rules = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
        for n in 0..1000 {
            let name = format!("r{n}");
            let key = Key {
                collection: Collection::new(RBAC_GROUP, "roles"),
                namespace: "n".into(),
                name: name.as_str().into(),
            };
            let object = encode::encode(&json!({"metadata": {"name": name}, "rules": rules}), "v1", "Role");
            let made =
                Write { key: key.clone(), expect: Expect::Absent, action: Action::Put(object.clone()) };
            let made = store.commit(made).await.expect("stored");
            assert_eq!(rbac.role_rules(false, "n", &name).map(|rules| rules.len()), Some(1));
            if n > 0 {
                let gone = Write { key, expect: Expect::At(made.revision), action: Action::Delete(object) };
                store.commit(gone).await.expect("deleted");
            }
        }
        assert!(rbac.roles.read().len() <= SPARE_ROLES + 3, "{} are remembered", rbac.roles.read().len());
        assert_eq!(rbac.role_rules(false, "n", "r0").map(|rules| rules.len()), Some(1));
        assert_eq!(rbac.role_rules(false, "n", "r1"), None);
    }

    fn binding(namespace: &str, name: &str, role: &str, subjects: &[(&str, &str)]) -> (Key, store::Encoded) {
        let plural = if namespace.is_empty() { "clusterrolebindings" } else { "rolebindings" };
        let key = Key {
            collection: Collection::new(RBAC_GROUP, plural),
            namespace: namespace.into(),
            name: name.into(),
        };
        let subjects: Vec<_> = subjects
            .iter()
            .map(|(kind, name)| json!({"kind": kind, "name": name, "namespace": if *kind == "ServiceAccount" { "n" } else { "" }}))
            .collect();
        let object = json!({"metadata": {"name": name}, "roleRef": {"kind": "ClusterRole", "name": role},
            "subjects": subjects});
        (key, encode::encode(&object, "v1", "RoleBinding"))
    }

    /// AS-063: an index that has followed every change equals a new one, also after more changes than the ring holds.
    #[tokio::test]
    async fn as_063_an_index_that_followed_is_as_a_new_one() {
        let limits = store::Limits { events: 16, ..store::Limits::default() };
        let store = Engine::in_memory_with(limits).space("s").expect("a space");
        let rbac = Rbac::new(store.clone());
        let user = |name: &str, groups: &[&str]| UserInfo {
            name: name.to_owned(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            ..UserInfo::default()
        };
        let users = [user("a", &["g"]), user("b", &[]), user("system:serviceaccount:n:a", &["h"])];
        let everybody =
            [("User", "a"), ("User", "b"), ("Group", "g"), ("Group", "h"), ("ServiceAccount", "a")];
        let mut stored: HashMap<(usize, usize), Revision> = HashMap::new();
        let mut number = 7_usize;
        let mut next = move |below: usize| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (number >> 33) % below
        };
        for turn in 0..600 {
            let (namespace, name) = (next(3), next(4));
            let subjects: Vec<_> = everybody.iter().copied().filter(|_| next(2) == 0).collect();
            let role = format!("r{}", next(3));
            let (key, object) = binding(["", "m", "n"][namespace], &format!("b{name}"), &role, &subjects);
            let place = (namespace, name);
            let (expect, action) = match stored.remove(&place) {
                Some(at) if next(3) == 0 => (Expect::At(at), Action::Delete(object)),
                Some(at) => (Expect::At(at), Action::Put(object)),
                None => (Expect::Absent, Action::Put(object)),
            };
            let put = matches!(action, Action::Put(_));
            let done = store.commit(Write { key, expect, action }).await.expect("stored");
            if put {
                stored.insert(place, done.revision);
            }
            // Sometimes more happens between two decisions than the history holds.
            if turn % 50 > 25 && turn % 50 < 49 {
                continue;
            }
            let new = Rbac::new(store.clone());
            for user in &users {
                for namespace in ["", "m", "n", "o"] {
                    let asked = Attributes {
                        verb: "get",
                        resource: "pods",
                        namespace,
                        resource_request: true,
                        ..Attributes::default()
                    };
                    assert_eq!(
                        rbac.decide(user, &asked),
                        new.decide(user, &asked),
                        "turn {turn} {namespace:?}"
                    );
                }
            }
        }
    }
}
