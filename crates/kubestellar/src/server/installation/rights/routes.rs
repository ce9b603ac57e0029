//! The routes of a space, and one request for each verb of a route.

use std::sync::Arc;

use apiserver::descriptor::Descriptor;

use super::people::Person;

/// The verbs by their letters.
pub(super) const VERBS: [(char, &str); 8] = [
    ('g', "get"),
    ('l', "list"),
    ('w', "watch"),
    ('c', "create"),
    ('u', "update"),
    ('p', "patch"),
    ('d', "delete"),
    ('x', "deletecollection"),
];
/// The namespace, and the name of cluster-scoped objects, that belong to nobody.
pub(super) const FOREIGN: &str = "foreign";
/// The name of an object in every namespace.
pub(super) const VICTIM: &str = "victim";

/// Where a request acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the person's own namespace, or on the cluster-scoped object of the same name.
    Own,
    /// In another namespace, or on another cluster-scoped object, or on all of them.
    Elsewhere,
    /// In all namespaces.
    Everywhere,
}

/// A resource in one version, or a subresource of it.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) d: Arc<Descriptor>,
    pub(super) subresource: Option<String>,
}

impl Route {
    /// A resource and its subresources.
    pub(super) fn of(d: &Arc<Descriptor>) -> impl Iterator<Item = Self> {
        let subs: Vec<_> = std::iter::once(None).chain(d.subresources.keys().cloned().map(Some)).collect();
        let d = d.clone();
        subs.into_iter().map(move |subresource| Self { d: d.clone(), subresource })
    }

    /// `apps/v1 deployments/scale`.
    pub(super) fn key(&self) -> String {
        let sub = self.subresource.as_ref().map(|sub| format!("/{sub}")).unwrap_or_default();
        format!("{} {}{sub}", self.d.api_version(), self.d.plural)
    }

    /// The letters of the served verbs.
    pub(super) fn verbs(&self) -> Vec<char> {
        let served = match &self.subresource {
            Some(sub) => &self.d.subresources[sub].verbs,
            None => &self.d.verbs,
        };
        VERBS.iter().filter(|(_, verb)| served.iter().any(|v| v == verb)).map(|(letter, _)| *letter).collect()
    }

    /// Scope and verbs, as the table shows them.
    pub(super) fn served(&self) -> String {
        let scope = if self.d.namespaced { "namespaced" } else { "cluster" };
        format!("{scope}:{}", self.verbs().into_iter().collect::<String>())
    }

    /// The verbs that are asked for by every way of writing the path. The others are parsed alike.
    pub(super) fn verbs_of_paths(&self) -> Vec<char> {
        let all = self.verbs();
        if self.subresource.is_some() {
            all
        } else {
            all.into_iter().filter(|verb| "glcd".contains(*verb)).collect()
        }
    }

    /// The places where a verb can be asked for.
    pub(super) fn places(&self, verb: char) -> &'static [Place] {
        match verb {
            'l' | 'w' if self.d.namespaced => &[Place::Own, Place::Elsewhere, Place::Everywhere],
            // A new cluster-scoped object has no name that a role could name.
            'c' if !self.d.namespaced && self.subresource.is_none() => &[Place::Elsewhere],
            _ => &[Place::Own, Place::Elsewhere],
        }
    }

    fn prefix(&self) -> String {
        let d = &self.d;
        if d.group.is_empty() {
            format!("/api/{}", d.version)
        } else {
            format!("/apis/{}/{}", d.group, d.version)
        }
    }

    /// Path of the collection, or of the object if `named`.
    pub(super) fn path(&self, own: &str, place: Place, named: bool) -> String {
        let at = if place == Place::Own { own } else { FOREIGN };
        let mut path = self.prefix();
        if self.d.namespaced && place != Place::Everywhere {
            path += &format!("/namespaces/{at}");
        }
        path += &format!("/{}", self.d.plural);
        if named || self.subresource.is_some() {
            path += &format!("/{}", if self.d.namespaced { VICTIM } else { at });
        }
        self.subresource.iter().for_each(|sub| path += &format!("/{sub}"));
        path
    }
}

/// A request to a space.
pub(super) struct Ask {
    pub(super) method: &'static str,
    pub(super) uri: String,
    pub(super) body: String,
}

/// The request for one verb of a route.
pub(super) fn ask(person: &Person, route: &Route, verb: char, place: Place, dry: bool) -> Ask {
    let named = matches!(verb, 'g' | 'u' | 'p' | 'd');
    let path = route.path(&person.own, place, named);
    let mut query = Vec::new();
    if verb == 'w' {
        query.push("watch=1".to_owned());
    }
    if matches!(verb, 'l' | 'w' | 'x') && !route.d.namespaced && place == Place::Own {
        query.push(format!("fieldSelector=metadata.name%3D{}", person.own));
    }
    if dry && !matches!(verb, 'g' | 'l' | 'w') {
        query.push("dryRun=All".to_owned());
    }
    let uri = if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) };
    Ask { method: method(verb), uri, body: body(route, verb, &person.own, place) }
}

pub(super) fn method(verb: char) -> &'static str {
    match verb {
        'c' => "POST",
        'u' => "PUT",
        'p' => "PATCH",
        'd' | 'x' => "DELETE",
        _ => "GET",
    }
}

fn body(route: &Route, verb: char, own: &str, place: Place) -> String {
    let (mut api_version, mut kind) = (route.d.api_version(), route.d.kind.clone());
    if let Some(sub) = route.subresource.as_ref().and_then(|sub| route.d.subresources.get(sub)) {
        api_version = apiserver::descriptor::api_version(&sub.group, &sub.version);
        kind.clone_from(&sub.kind);
    }
    let name = match (route.d.namespaced, place) {
        (true, _) => VICTIM,
        (false, Place::Own) => own,
        (false, _) => FOREIGN,
    };
    let by = serde_json::json!({"by": "intruder"});
    match verb {
        'c' if route.subresource.is_none() => {
            serde_json::json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "made", "labels": by}})
                .to_string()
        }
        'c' | 'u' => {
            serde_json::json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "labels": by}})
                .to_string()
        }
        'p' => serde_json::json!({"metadata": {"labels": by}}).to_string(),
        _ => String::new(),
    }
}
