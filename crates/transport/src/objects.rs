//! Reads the workload objects of a Binding from the WDS, cleans them and encodes them once.
//!
//! The Binding lists the resourceVersion of each object, so an object that is cached at that version or a
//! later one is not read again: one changed object costs one GET. Many uncached objects of one kind and
//! namespace cost one paged LIST.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use apis::control::{BindingEntry, BindingSpec};
use futures::{StreamExt, TryStreamExt, stream};
use runtime::{
    Page, Paging, ResourceVersion,
    failure::message_of,
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
};

/// From this number of uncached objects on, the collection is listed instead of reading the objects one by
/// one.
const LIST_FROM: usize = 48;
/// Objects per page.
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

/// The cached contents, by reference.
pub(crate) type Known = HashMap<Reference, CachedContent>;

/// A content, and what it was made from.
#[derive(Clone)]
pub(crate) struct CachedContent {
    rule: Arc<Instructions>,
    content: Arc<Content>,
    /// The version that the Binding listed when this content was last used.
    listed: ResourceVersion,
}

impl CachedContent {
    /// Returns whether the cached content is the listed version or a later one (KS-089). If the Binding lists
    /// an earlier version than before, the WDS was restored from a backup and the later version no longer
    /// exists.
    fn is_recent(&self, listed: &str) -> bool {
        let (known, listed) =
            (ResourceVersion::new(&self.content.original.resource_version), ResourceVersion::new(listed));
        known == listed || (listed.is_before(&known) && !listed.is_before(&self.listed))
    }
}

/// Why the workload could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {}", message_of(source))]
pub(crate) struct ReadError {
    /// Resource, namespace and name of the request; a list has no name.
    what: String,
    pub(crate) source: kube::Error,
}

impl ReadError {
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

/// Returns the resources whose objects a Binding lists.
pub(crate) fn resources(spec: &BindingSpec) -> BTreeSet<GroupResource> {
    let distinct: BTreeSet<_> = spec.entries().map(|entry| (entry.group, entry.resource)).collect();
    distinct.into_iter().map(|(group, resource)| GroupResource::new(group, resource)).collect()
}

/// Returns the objects of a Binding in order, without those that no longer exist (KS-088).
pub(crate) async fn collect(
    wds: &Rest,
    spec: &BindingSpec,
    rules: &Rules,
    known: &mut Known,
) -> Result<Vec<Wrapee>, ReadError> {
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
            Some(cached)
                if (Arc::ptr_eq(&cached.rule, rule) || cached.rule == *rule)
                    && cached.is_recent(&entry.resource_version) =>
            {
                let listed = ResourceVersion::from(entry.resource_version.as_str());
                let cached = CachedContent { rule: rule.clone(), content: cached.content.clone(), listed };
                fresh.insert(entry.reference.clone(), cached);
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
        let mut listed = listed.map_err(|source| ReadError::new(&gvr, &namespace, "", source))?;
        got.extend(wanted.into_iter().map(|entry| (entry, listed.remove(&entry.reference.name))));
    }
    let looks = single.into_iter().map(|entry| async move {
        let Reference { gvr, namespace, name } = &entry.reference;
        let object = wds.find(gvr, namespace, name).await;
        object.map(|object| (entry, object)).map_err(|source| ReadError::new(gvr, namespace, name, source))
    });
    let looks: Vec<_> = looks.collect();
    let looked: Vec<(&Entry, Option<Value>)> =
        stream::iter(looks).buffer_unordered(CONCURRENT).try_collect().await?;
    got.extend(looked);
    for (entry, object) in got {
        let gvr = &entry.reference.gvr;
        let rule = rule(gvr).clone();
        if let Some(content) = object.and_then(|object| make(gvr, object, &rule)) {
            let listed = ResourceVersion::from(entry.resource_version.as_str());
            fresh.insert(entry.reference.clone(), CachedContent { rule, content, listed });
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

/// Lists a collection and returns the wanted objects by name. Of the other objects only the name is decoded,
/// and only one page is in memory at a time.
async fn list(
    wds: &Rest,
    gvr: &Gvr,
    namespace: &str,
    wanted: &HashSet<&str>,
) -> Result<HashMap<String, Value>, kube::Error> {
    let (mut found, mut paging) = (HashMap::new(), Paging::new(PAGE));
    loop {
        let page = match wds.page(gvr, namespace, &paging).await {
            Err(error) if paging.begins_anew(&error) => continue,
            page => page?,
        };
        take(&page, gvr, wanted, &mut found).map_err(kube::Error::SerdeError)?;
        if !paging.goes_on(&page.more) || found.len() == wanted.len() {
            return Ok(found);
        }
    }
}

/// Items in a list of a built-in kind come without apiVersion and kind.
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

/// Cleans, transforms and encodes an object (KS-100 … KS-107). It changes its own copy, not the object in the
/// WDS.
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

    /// KS-104: the built-in removals come first, then those of CustomTransforms; templates are expanded in
    /// what is left.
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

    /// A WDS with ConfigMaps of these names in pages of two, and the requests it received. It forgets old
    /// versions after `forgets_after` pages.
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

    /// KS-085: a large collection is read by pages until every wanted object is found, and other objects are
    /// not decoded.
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
        let reported = ReadError::new(&Gvr::new("apps", "v1", "deployments"), "n", "deep", error).to_string();
        assert!(reported.starts_with("deployments.apps in n deep: "), "{reported}");
    }

    /// KS-089: a cached content is used while the Binding catches up with it, and not after the Binding went
    /// back.
    #[test]
    fn ks_089_what_is_held_is_not_believed_after_the_versions_went_back() {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "m", "namespace": "n", "uid": "u", "resourceVersion": "10"}});
        let rule = Arc::new(Instructions::new());
        let content = make(&Gvr::new("", "v1", "configmaps"), object, &rule).expect("complete");
        let cached = |listed: &str| CachedContent {
            rule: rule.clone(),
            content: content.clone(),
            listed: listed.into(),
        };
        for (used_for, listed, recent) in [
            ("10", "10", true),
            ("8", "8", true),
            ("8", "9", true),
            ("8", "10", true),
            ("8", "11", false),
            ("8", "7", false),
            ("10", "9", false),
        ] {
            assert_eq!(cached(used_for).is_recent(listed), recent, "{used_for} {listed}");
        }
    }
}
