//! The workload objects of a Binding, read from the WDS, cleaned and encoded once.
//!
//! The Binding names the resourceVersion of each object, so what is known at that version (or later) is not read
//! again: one changed object costs one GET. Many unknown objects of one kind and namespace cost a LIST of them, by pages.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use apis::control::{BindingEntry, BindingSpec};
use futures::{StreamExt, TryStreamExt, stream};
use runtime::{
    Page,
    failure::{is_gone, message_of},
    rest::{Gvr, Rest},
};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    clean,
    content::{Content, Original, Wrapee},
    customize::{
        expand::Templated,
        transforms::{GroupResource, Instructions},
    },
    wrapped::older,
};

/// From how many unknown objects on a collection is listed instead of asked for one by one.
const LIST_FROM: usize = 48;
/// Objects of a page.
const PAGE: u32 = 500;
/// GETs at a time.
const CONCURRENT: usize = 32;

/// One entry of a Binding's workload.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reference {
    pub(crate) gvr: Gvr,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

struct Entry {
    reference: Reference,
    resource_version: String,
    create_only: bool,
}

/// Contents known from earlier, by reference.
pub(crate) type Known = HashMap<Reference, Held>;

/// A content, and what it was made of.
#[derive(Clone)]
pub(crate) struct Held {
    rule: Arc<Instructions>,
    content: Arc<Content>,
    /// The version that the Binding listed when it was last used.
    listed: String,
}

impl Held {
    /// What is known is the listed version or a later one (KS-089). Where the Binding lists an earlier version than it did,
    /// the WDS was restored from a backup, and what was later is no more.
    fn is_recent(&self, listed: &str) -> bool {
        let known = self.content.original.resource_version.as_str();
        known == listed || (older(listed, known) && !older(listed, &self.listed))
    }
}

/// Why the workload could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {}", message_of(source))]
pub(crate) struct Unread {
    /// Resource, namespace and name of what was asked for; a list has no name.
    what: String,
    pub(crate) source: kube::Error,
}

impl Unread {
    fn new(gvr: &Gvr, namespace: &str, name: &str, source: kube::Error) -> Self {
        let mut what = gvr.plural.clone();
        if !gvr.group.is_empty() {
            what = format!("{what}.{}", gvr.group);
        }
        for (between, part) in [(" in ", namespace), (" ", name)] {
            if !part.is_empty() {
                what = format!("{what}{between}{part}");
            }
        }
        Self { what, source }
    }
}

/// Instructions of CustomTransforms, for each resource of a Binding.
pub(crate) type Rules = BTreeMap<GroupResource, Arc<Instructions>>;

/// The resources whose objects a Binding lists.
pub(crate) fn resources(spec: &BindingSpec) -> BTreeSet<GroupResource> {
    let distinct: BTreeSet<_> = spec.entries().map(|entry| (entry.group, entry.resource)).collect();
    distinct.into_iter().map(|(group, resource)| GroupResource::new(group, resource)).collect()
}

/// The objects of a Binding in order; those that no longer exist are left out (KS-088).
pub(crate) async fn collect(
    wds: &Rest,
    spec: &BindingSpec,
    rules: &Rules,
    known: &mut Known,
) -> Result<Vec<Wrapee>, Unread> {
    let entries: Vec<Entry> = spec.entries().map(Entry::from).collect();
    let none = Arc::new(Instructions::new());
    let rules: BTreeMap<(&str, &str), &Arc<Instructions>> =
        rules.iter().map(|(of, rule)| ((of.group.as_str(), of.resource.as_str()), rule)).collect();
    let rule = |gvr: &Gvr| rules.get(&(gvr.group.as_str(), gvr.plural.as_str())).copied().unwrap_or(&none);
    let mut unknown: BTreeMap<(Gvr, String), Vec<&Entry>> = BTreeMap::new();
    let mut fresh = Known::with_capacity(entries.len());
    for entry in &entries {
        let gvr = &entry.reference.gvr;
        let rule = rule(gvr);
        match known.get(&entry.reference) {
            Some(held)
                if (Arc::ptr_eq(&held.rule, rule) || held.rule == *rule)
                    && held.is_recent(&entry.resource_version) =>
            {
                let listed = entry.resource_version.clone();
                let held = Held { rule: rule.clone(), content: held.content.clone(), listed };
                fresh.insert(entry.reference.clone(), held);
            }
            _ => unknown.entry((gvr.clone(), entry.reference.namespace.clone())).or_default().push(entry),
        }
    }
    let (mut single, mut got) = (Vec::new(), Vec::new());
    for ((gvr, namespace), wanted) in unknown {
        if wanted.len() < LIST_FROM {
            single.extend(wanted);
            continue;
        }
        let names = wanted.iter().map(|entry| entry.reference.name.as_str()).collect();
        let listed = list(wds, &gvr, &namespace, &names).await;
        let mut listed = listed.map_err(|source| Unread::new(&gvr, &namespace, "", source))?;
        got.extend(wanted.into_iter().map(|entry| (entry, listed.remove(&entry.reference.name))));
    }
    let looks = single.into_iter().map(|entry| async move {
        let Reference { gvr, namespace, name } = &entry.reference;
        let object = wds.find(gvr, namespace, name).await;
        object.map(|object| (entry, object)).map_err(|source| Unread::new(gvr, namespace, name, source))
    });
    let looks: Vec<_> = looks.collect();
    let looked: Vec<(&Entry, Option<Value>)> =
        stream::iter(looks).buffer_unordered(CONCURRENT).try_collect().await?;
    got.extend(looked);
    for (entry, object) in got {
        let gvr = &entry.reference.gvr;
        let rule = rule(gvr).clone();
        if let Some(content) = object.and_then(|object| make(gvr, object, &rule)) {
            let listed = entry.resource_version.clone();
            fresh.insert(entry.reference.clone(), Held { rule, content, listed });
        }
    }
    *known = fresh;
    Ok(entries
        .into_iter()
        .filter_map(|entry| {
            let content = known.get(&entry.reference)?.content.clone();
            Some(Wrapee { content, create_only: entry.create_only })
        })
        .collect())
}

impl From<BindingEntry<'_>> for Entry {
    fn from(entry: BindingEntry<'_>) -> Self {
        Self {
            reference: Reference {
                gvr: Gvr::new(entry.group, entry.version, entry.resource),
                namespace: entry.namespace.to_owned(),
                name: entry.name.to_owned(),
            },
            resource_version: entry.resource_version.to_owned(),
            create_only: entry.create_only,
        }
    }
}

/// Objects of a collection by name, those that are wanted; of the others only the name is read, and a page is all that is
/// held at a time.
async fn list(
    wds: &Rest,
    gvr: &Gvr,
    namespace: &str,
    wanted: &HashSet<&str>,
) -> Result<HashMap<String, Value>, kube::Error> {
    let (mut found, mut more, mut limit) = (HashMap::new(), String::new(), Some(PAGE));
    loop {
        let page = match wds.page(gvr, namespace, limit, &more).await {
            Err(error) if is_gone(&error) && limit.is_some() => {
                // It took longer than the server remembers: all in one piece then.
                (more, limit) = (String::new(), None);
                continue;
            }
            page => page?,
        };
        take(&page, gvr, wanted, &mut found).map_err(kube::Error::SerdeError)?;
        more = page.more;
        if more.is_empty() || found.len() == wanted.len() {
            return Ok(found);
        }
    }
}

/// Items of a list of built-in kinds come without their types.
fn take(
    page: &Page,
    gvr: &Gvr,
    wanted: &HashSet<&str>,
    found: &mut HashMap<String, Value>,
) -> Result<(), serde_json::Error> {
    #[derive(Deserialize)]
    struct Named {
        metadata: Name,
    }
    #[derive(Deserialize)]
    struct Name {
        name: String,
    }
    let kind = page.kind.as_ref().and_then(|kind| kind.strip_suffix("List"));
    for item in &page.items {
        let Named { metadata: Name { name } } = serde_json::from_str(item.get())?;
        if !wanted.contains(name.as_str()) {
            continue;
        }
        let mut object: Value = serde_json::from_str(item.get())?;
        if let Some(top) = object.as_object_mut() {
            top.entry("apiVersion").or_insert_with(|| gvr.api_version().into());
            if let Some(kind) = kind {
                top.entry("kind").or_insert_with(|| kind.into());
            }
        }
        found.insert(name, object);
    }
    Ok(())
}

/// Cleans, transforms and encodes (KS-100 … KS-107); the object read is ours, nothing in the WDS changes.
fn make(gvr: &Gvr, mut object: Value, rule: &Instructions) -> Option<Arc<Content>> {
    let text = |key: &str| object.get("metadata")?.get(key)?.as_str().map(str::to_owned);
    let original = Original {
        resource: gvr.plural.clone(),
        uid: text("uid").unwrap_or_default(),
        resource_version: text("resourceVersion").unwrap_or_default(),
        generation: object.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or_default(),
    };
    clean::clean(&mut object);
    for path in rule {
        path.remove_from(&mut object);
    }
    let content = Content::new(&object, original)?;
    Some(Arc::new(Content { templated: Templated::of(&object).map(Arc::new), ..content }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::customize::path::Path;
    use parking_lot::Mutex;
    use serde_json::json;

    /// KS-104: the built-in removals come first, then those of CustomTransforms, and what is expanded is what is left.
    #[test]
    fn ks_104_transforms_come_after_the_built_in_removals() {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "{{.x}}", "b": "1"},
            "metadata": {"name": "m", "namespace": "n", "uid": "u", "resourceVersion": "7",
                "annotations": {"control.kubestellar.io/expand-templates": "true", "x": "y"}}});
        let gvr = Gvr::new("", "v1", "configmaps");
        let rule = |texts: &[&str]| texts.iter().map(|text| Path::parse(text).expect(text)).collect();
        let plain = make(&gvr, object.clone(), &rule(&["$.data.b"])).expect("complete");
        assert_eq!(
            *plain.json,
            *json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "{{.x}}"}, "metadata": {"name": "m",
                "namespace": "n", "annotations": {"control.kubestellar.io/expand-templates": "true", "x": "y"}}})
            .to_string()
        );
        assert!(plain.templated.is_some());
        assert_eq!((plain.original.uid.as_str(), plain.original.resource_version.as_str()), ("u", "7"));
        let annotation = r#"$.metadata.annotations["control.kubestellar.io/expand-templates"]"#;
        assert!(make(&gvr, object, &rule(&[annotation])).expect("complete").templated.is_none());
    }

    /// A WDS with ConfigMaps of these names in pages of two, and what it was asked. It forgets the past after so many pages.
    fn paged(names: &[&str], forgets_after: usize) -> (Rest, Arc<Mutex<Vec<String>>>) {
        let deep = "[".repeat(200) + &"]".repeat(200);
        let one = |name: &str| {
            format!(
                r#"{{"metadata":{{"name":"{name}"}},"data":{}}}"#,
                if name == "deep" { &deep } else { "{}" }
            )
        };
        let all: Vec<String> = names.iter().map(|name| one(name)).collect();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let notes = asked.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let query = request.uri().query().unwrap_or_default().trim_start_matches('&').to_owned();
            let at: usize = query.split("continue=").nth(1).map_or(0, |at| at.parse().unwrap());
            let (code, text) = if at / 2 >= forgets_after {
                (
                    410,
                    r#"{"kind":"Status","status":"Failure","code":410,"message":"","reason":"Expired"}"#
                        .to_owned(),
                )
            } else {
                let end = if query.contains("limit=500") { all.len().min(at + 2) } else { all.len() };
                let more = if end < all.len() { end.to_string() } else { String::new() };
                let items = all[at..end].join(",");
                (
                    200,
                    format!(
                        r#"{{"kind":"ConfigMapList","metadata":{{"resourceVersion":"9","continue":"{more}"}},"items":[{items}]}}"#
                    ),
                )
            };
            notes.lock().push(query);
            let answer =
                http::Response::builder().status(code).body(kube::client::Body::from(text.into_bytes()));
            async move { Ok::<_, std::convert::Infallible>(answer.unwrap()) }
        });
        (Rest::new(kube::Client::new(service, "default")), asked)
    }

    /// KS-085: a large collection is read by pages, for as long as something is missing, and what is not wanted is not read.
    #[tokio::test]
    async fn ks_085_collections_are_read_by_pages() {
        let gvr = Gvr::new("", "v1", "configmaps");
        for (names, wanted, forgets_after, found, queries) in [
            (
                vec!["a", "deep", "b", "c"],
                vec!["a", "c"],
                9,
                vec!["a", "c"],
                vec!["limit=500", "limit=500&continue=2"],
            ),
            (vec!["a", "b", "c", "d"], vec!["b"], 9, vec!["b"], vec!["limit=500"]),
            (vec!["a", "b", "c"], vec!["b", "x"], 9, vec!["b"], vec!["limit=500", "limit=500&continue=2"]),
            (vec!["a", "b", "c"], vec!["c"], 1, vec!["c"], vec!["limit=500", "limit=500&continue=2", ""]),
        ] {
            let (wds, asked) = paged(&names, forgets_after);
            let listed = list(&wds, &gvr, "n", &wanted.into_iter().collect()).await.expect("listed");
            assert_eq!(
                listed.keys().map(String::as_str).collect::<BTreeSet<_>>(),
                found.into_iter().collect()
            );
            assert!(
                listed.values().all(|it| it["kind"] == "ConfigMap" && it["apiVersion"] == "v1"),
                "{listed:?}"
            );
            assert_eq!(*asked.lock(), queries);
        }
        let (wds, _) = paged(&["a", "deep"], 9);
        let error = list(&wds, &gvr, "n", &HashSet::from(["deep"])).await.expect_err("nobody can read it");
        assert!(runtime::failure::is_lasting(&error), "{error}");
        let told = Unread::new(&Gvr::new("apps", "v1", "deployments"), "n", "deep", error).to_string();
        assert!(told.starts_with("deployments.apps in n deep: "), "{told}");
    }

    /// KS-089: what is held is good while the Binding catches up with it, not once the Binding goes back.
    #[test]
    fn ks_089_what_is_held_is_not_believed_after_the_versions_went_back() {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "m", "namespace": "n", "uid": "u", "resourceVersion": "10"}});
        let rule = Arc::new(Instructions::new());
        let content = make(&Gvr::new("", "v1", "configmaps"), object, &rule).expect("complete");
        let held =
            |listed: &str| Held { rule: rule.clone(), content: content.clone(), listed: listed.into() };
        for (used_for, listed, recent) in [
            ("10", "10", true),
            ("8", "8", true),
            ("8", "9", true),
            ("8", "10", true),
            ("8", "11", false),
            ("8", "7", false),
            ("10", "9", false),
        ] {
            assert_eq!(held(used_for).is_recent(listed), recent, "{used_for} {listed}");
        }
    }
}
