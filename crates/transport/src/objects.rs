//! The workload objects of a Binding, read from the WDS, cleaned and encoded once.
//!
//! The Binding names the resourceVersion of each object, so what is known at that version (or later) is not read
//! again: one changed object costs one GET. Many unknown objects of one kind and namespace cost one LIST.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, OnceLock},
};

use apis::control::BindingSpec;
use futures::{StreamExt, TryStreamExt, stream};
use runtime::rest::{Gvr, Rest, items};
use serde_json::Value;

use crate::{
    clean,
    content::{self, Content, Identity, Wrapee},
    customize::{
        expand::Templated,
        transforms::{GroupResource, Instructions},
    },
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

/// Contents known from earlier, by reference, with the instructions they were made under.
pub(crate) type Known = HashMap<Reference, (Arc<Instructions>, Arc<Content>)>;

/// Instructions of CustomTransforms, for each resource of a Binding.
pub(crate) type Rules = BTreeMap<GroupResource, Arc<Instructions>>;

/// The resources whose objects a Binding lists.
pub(crate) fn resources(spec: &BindingSpec) -> BTreeSet<GroupResource> {
    let cluster = spec.workload.cluster_scope.iter().map(|c| (c.group.as_str(), c.resource.as_str()));
    let namespaced = spec.workload.namespace_scope.iter().map(|c| (c.group.as_str(), c.resource.as_str()));
    let distinct: BTreeSet<(&str, &str)> = cluster.chain(namespaced).collect();
    distinct.into_iter().map(|(group, resource)| GroupResource::new(group, resource)).collect()
}

/// The objects of a Binding in order; those that no longer exist are left out (KS-088).
pub(crate) async fn collect(
    wds: &Rest,
    spec: &BindingSpec,
    rules: &Rules,
    known: &mut Known,
) -> Result<Vec<Wrapee>, kube::Error> {
    let entries = entries(spec);
    let none = Arc::new(Instructions::new());
    let rules: BTreeMap<(&str, &str), &Arc<Instructions>> =
        rules.iter().map(|(of, rule)| ((of.group.as_str(), of.resource.as_str()), rule)).collect();
    let rule = |gvr: &Gvr| rules.get(&(gvr.group.as_str(), gvr.plural.as_str())).copied().unwrap_or(&none);
    let mut unknown: BTreeMap<(Gvr, String), Vec<&Reference>> = BTreeMap::new();
    let mut fresh = Known::with_capacity(entries.len());
    for entry in &entries {
        let gvr = &entry.reference.gvr;
        let rule = rule(gvr);
        match known.get(&entry.reference) {
            Some((made_under, content))
                if (Arc::ptr_eq(made_under, rule) || made_under == rule)
                    && recent(&content.resource_version, &entry.resource_version) =>
            {
                fresh.insert(entry.reference.clone(), (rule.clone(), content.clone()));
            }
            _ => unknown
                .entry((gvr.clone(), entry.reference.namespace.clone()))
                .or_default()
                .push(&entry.reference),
        }
    }
    let mut single = Vec::new();
    for ((gvr, namespace), wanted) in unknown {
        if wanted.len() < LIST_FROM {
            single.extend(wanted.into_iter().cloned());
            continue;
        }
        let rule = rule(&gvr);
        let mut listed = list(wds, &gvr, &namespace).await?;
        for reference in wanted {
            let object = listed.remove(&reference.name);
            if let Some(content) = object.and_then(|object| make(&gvr, object, rule)) {
                fresh.insert(reference.clone(), (rule.clone(), content));
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
        let rule = rule(&reference.gvr).clone();
        if let Some(content) = object.and_then(|object| make(&reference.gvr, object, &rule)) {
            fresh.insert(reference, (rule, content));
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
    let items = items(&mut list, gvr)?;
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
fn make(gvr: &Gvr, mut object: Value, rule: &Instructions) -> Option<Arc<Content>> {
    let text = |key: &str| object.get("metadata")?.get(key)?.as_str().map(str::to_owned);
    let (uid, resource_version) =
        (text("uid").unwrap_or_default(), text("resourceVersion").unwrap_or_default());
    let generation = object.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or_default();
    clean::clean(&mut object);
    for path in rule {
        path.remove_from(&mut object);
    }
    Some(Arc::new(Content {
        identity: Arc::new(Identity::of(&object)?),
        resource: gvr.plural.clone(),
        uid,
        resource_version,
        generation,
        json: object.to_string().into(),
        digest: content::digest(&object),
        templated: Templated::of(&object).map(Arc::new),
        quoted: OnceLock::new(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::customize::path::Path;
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
        assert_eq!((plain.uid.as_str(), plain.resource_version.as_str()), ("u", "7"));
        let annotation = r#"$.metadata.annotations["control.kubestellar.io/expand-templates"]"#;
        assert!(make(&gvr, object, &rule(&[annotation])).expect("complete").templated.is_none());
    }
}
