//! The workload objects of a Binding, read from the WDS, cleaned and encoded once.
//!
//! The Binding names the resourceVersion of each object, so what is known at that version (or later) is not read
//! again: one changed object costs one GET. Many unknown objects of one kind and namespace cost one LIST.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use apis::control::BindingSpec;
use futures::{StreamExt, TryStreamExt, stream};
use runtime::rest::{Gvr, Rest};
use serde_json::Value;

use crate::{
    clean,
    content::{self, Content, Identity, Wrapee},
    customize::Customizer,
    wrapped::older,
};

/// From how many unknown objects on a collection is listed instead of asked for one by one.
const LIST_FROM: usize = 48;
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

/// Contents known from earlier, by reference, with the customiser's revision they were made under.
pub(crate) type Known = HashMap<Reference, (u64, Arc<Content>)>;

/// The objects of a Binding in order; those that no longer exist are left out (KS-088).
pub(crate) async fn collect(
    wds: &Rest,
    binding: &str,
    spec: &BindingSpec,
    customizer: &dyn Customizer,
    known: &mut Known,
) -> Result<Vec<Wrapee>, kube::Error> {
    let entries = entries(spec);
    let mut unknown: BTreeMap<(Gvr, String), Vec<&Reference>> = BTreeMap::new();
    let mut fresh = Known::with_capacity(entries.len());
    for entry in &entries {
        let gvr = &entry.reference.gvr;
        let revision = customizer.revision(binding, &gvr.group, &gvr.plural);
        match known.get(&entry.reference) {
            Some((made_under, content))
                if *made_under == revision && recent(&content.resource_version, &entry.resource_version) =>
            {
                fresh.insert(entry.reference.clone(), (revision, content.clone()));
            }
            _ => unknown
                .entry((gvr.clone(), entry.reference.namespace.clone()))
                .or_default()
                .push(&entry.reference),
        }
    }
    let mut single = Vec::new();
    for ((gvr, namespace), wanted) in unknown {
        let revision = customizer.revision(binding, &gvr.group, &gvr.plural);
        let make = |object: Value| make(binding, &gvr, object, customizer);
        if wanted.len() < LIST_FROM {
            single.extend(wanted.into_iter().cloned());
            continue;
        }
        let mut listed = list(wds, &gvr, &namespace).await?;
        for reference in wanted {
            if let Some(content) = listed.remove(&reference.name).and_then(make) {
                fresh.insert(reference.clone(), (revision, content));
            }
        }
    }
    let got: Vec<(Reference, Option<Value>)> = stream::iter(single)
        .map(|reference| async move {
            let object = wds.find(&reference.gvr, &reference.namespace, &reference.name).await?;
            Ok::<_, kube::Error>((reference, object))
        })
        .buffer_unordered(CONCURRENT)
        .try_collect()
        .await?;
    for (reference, object) in got {
        let gvr = reference.gvr.clone();
        let revision = customizer.revision(binding, &gvr.group, &gvr.plural);
        if let Some(content) = object.and_then(|object| make(binding, &gvr, object, customizer)) {
            fresh.insert(reference, (revision, content));
        }
    }
    *known = fresh;
    Ok(entries
        .into_iter()
        .filter_map(|entry| {
            let (_, content) = known.get(&entry.reference)?;
            Some(Wrapee { content: content.clone(), create_only: entry.create_only })
        })
        .collect())
}

/// What is known is the listed version or a later one (KS-089).
fn recent(known: &str, listed: &str) -> bool {
    known == listed || older(listed, known)
}

fn entries(spec: &BindingSpec) -> Vec<Entry> {
    let cluster = spec.workload.cluster_scope.iter().map(|c| Entry {
        reference: Reference {
            gvr: Gvr::new(&c.group, &c.version, &c.resource),
            namespace: String::new(),
            name: c.name.clone(),
        },
        resource_version: c.resource_version.clone(),
        create_only: c.create_only,
    });
    let namespaced = spec.workload.namespace_scope.iter().map(|c| Entry {
        reference: Reference {
            gvr: Gvr::new(&c.group, &c.version, &c.resource),
            namespace: c.namespace.clone(),
            name: c.name.clone(),
        },
        resource_version: c.resource_version.clone(),
        create_only: c.create_only,
    });
    cluster.chain(namespaced).collect()
}

/// Objects of a collection by name. Items of a list of built-in kinds come without their types.
async fn list(wds: &Rest, gvr: &Gvr, namespace: &str) -> Result<HashMap<String, Value>, kube::Error> {
    let mut list: Value = wds.list(gvr, namespace, "").await?;
    let kind =
        list.get("kind").and_then(Value::as_str).and_then(|k| k.strip_suffix("List")).map(str::to_owned);
    let items = list.get_mut("items").map(Value::take);
    let Some(Value::Array(items)) = items else { return Ok(HashMap::new()) };
    let named = items.into_iter().filter_map(|mut item| {
        let top = item.as_object_mut()?;
        top.entry("apiVersion").or_insert_with(|| gvr.api_version().into());
        if let Some(kind) = &kind {
            top.entry("kind").or_insert_with(|| kind.as_str().into());
        }
        let name = item.get("metadata")?.get("name")?.as_str()?.to_owned();
        Some((name, item))
    });
    Ok(named.collect())
}

/// Cleans, transforms and encodes (KS-100 … KS-107); the object read is ours, nothing in the WDS changes.
fn make(binding: &str, gvr: &Gvr, mut object: Value, customizer: &dyn Customizer) -> Option<Arc<Content>> {
    let text = |key: &str| object.get("metadata")?.get(key)?.as_str().map(str::to_owned);
    let (uid, resource_version) =
        (text("uid").unwrap_or_default(), text("resourceVersion").unwrap_or_default());
    clean::clean(&mut object);
    customizer.transform(binding, &gvr.group, &gvr.plural, &mut object);
    Some(Arc::new(Content {
        identity: Arc::new(Identity::of(&object)?),
        resource: gvr.plural.clone(),
        uid,
        resource_version,
        json: object.to_string().into(),
        digest: content::digest(&object),
        wants_expansion: clean::wants_expansion(&object) && holds_template(&object),
    }))
}

/// KS-124: without a string that holds `{{` there is nothing to expand.
fn holds_template(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains("{{"),
        Value::Array(items) => items.iter().any(holds_template),
        Value::Object(members) => members.values().any(holds_template),
        _ => false,
    }
}
