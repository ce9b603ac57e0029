//! Life cycle of namespaces: the standard ones exist, and a deleted one is emptied (AS-050).

use std::collections::BTreeMap;

use serde_json::{Value, json};
use store::{Collection, Entry, Snapshot};

use crate::kinds::{Kinds, Resource};

/// Namespaces that are created again if they are missing.
pub(crate) const STANDARD: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

pub(crate) fn collection() -> Collection {
    Collection::new("", "namespaces")
}

/// The remaining content of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    /// Number of objects by `resource.group`.
    pub(crate) objects: BTreeMap<String, usize>,
    /// Number of objects by finalizer.
    pub(crate) finalizers: BTreeMap<String, usize>,
}

/// Whether the namespace is being deleted and waits for this controller.
pub(crate) fn is_terminating(namespace: &Value) -> bool {
    namespace.pointer("/metadata/deletionTimestamp").is_some()
        && finalizers(namespace).iter().any(|f| f == "kubernetes")
}

fn finalizers(namespace: &Value) -> Vec<Value> {
    namespace.pointer("/spec/finalizers").and_then(Value::as_array).cloned().unwrap_or_default()
}

/// The body of the `finalize` request that removes our finalizer.
pub(crate) fn finalized(mut namespace: Value) -> Value {
    let kept: Vec<Value> = finalizers(&namespace).into_iter().filter(|f| f != "kubernetes").collect();
    if let Some(spec) = namespace.get_mut("spec") {
        *spec = json!({"finalizers": kept});
    }
    namespace
}

/// The resources with objects in the namespace. Costs one range search per collection of the space.
pub(crate) fn resources(all: &Snapshot, kinds: &Kinds, namespace: &str) -> Vec<std::sync::Arc<Resource>> {
    let filled = all.collections().filter(|collection| all.view(collection).len(Some(namespace)) > 0);
    filled
        .filter_map(|collection| kinds.of_collection(collection))
        .filter(|resource| resource.namespaced)
        .collect()
}

/// Counts the remaining objects. Reads each of them.
pub(crate) fn content(all: &Snapshot, kinds: &Kinds, namespace: &str) -> Content {
    let mut content = Content::default();
    for resource in resources(all, kinds, namespace) {
        let view = all.view(&resource.collection);
        content.objects.insert(resource.full_name(), view.len(Some(namespace)));
        for entry in view.iter(Some(namespace), None) {
            for finalizer in super::gc::list(entry, "finalizers") {
                let finalizer = finalizer.as_str().unwrap_or_default().to_owned();
                *content.finalizers.entry(finalizer).or_default() += 1;
            }
        }
    }
    content
}

/// The conditions that describe the progress of the deletion, in the order of Kubernetes. Conditions with an unchanged
/// status keep their times.
pub(crate) fn conditions(content: &Content, failures: &[String], before: &[Value], now: &str) -> Vec<Value> {
    let failed = !failures.is_empty();
    let counted = |counts: &BTreeMap<String, usize>, what: fn(&str, usize) -> String| {
        counts.iter().map(|(name, count)| what(name, *count)).collect::<Vec<_>>().join(", ")
    };
    let remaining = counted(&content.objects, |name, count| format!("{name} has {count} resource instances"));
    let finalizing =
        counted(&content.finalizers, |name, count| format!("{name} in {count} resource instances"));
    let rows = [
        (
            "NamespaceDeletionDiscoveryFailure",
            false,
            "ResourcesDiscovered",
            "All resources successfully discovered".to_owned(),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed".to_owned(),
        ),
        if failed {
            let text = format!(
                "Failed to delete all resource types, {} remaining: {}",
                failures.len(),
                failures.join(", ")
            );
            ("NamespaceDeletionContentFailure", true, "ContentDeletionFailed", text)
        } else {
            let text = "All content successfully deleted, may be waiting on finalization".to_owned();
            ("NamespaceDeletionContentFailure", false, "ContentDeleted", text)
        },
        if content.objects.is_empty() {
            (
                "NamespaceContentRemaining",
                false,
                "ContentRemoved",
                "All content successfully removed".to_owned(),
            )
        } else {
            (
                "NamespaceContentRemaining",
                true,
                "SomeResourcesRemain",
                format!("Some resources are remaining: {remaining}"),
            )
        },
        if content.finalizers.is_empty() {
            let text = "All content-preserving finalizers finished".to_owned();
            ("NamespaceFinalizersRemaining", false, "ContentHasNoFinalizers", text)
        } else {
            let text = format!("Some content in the namespace has finalizers remaining: {finalizing}");
            ("NamespaceFinalizersRemaining", true, "SomeFinalizersRemain", text)
        },
    ];
    rows.into_iter()
        .map(|(kind, status, reason, message)| {
            let status = if status { "True" } else { "False" };
            let since = machinery::conditions::since(before, kind, status, now);
            json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since})
        })
        .collect()
}

/// A standard namespace.
pub(crate) fn standard(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

pub(crate) fn parse(entry: &Entry) -> Value {
    serde_json::from_slice(&entry.value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_050_conditions_say_what_remains_in_the_words_of_kubernetes() {
        let content = Content {
            objects: BTreeMap::from([("configmaps.".to_owned(), 1)]),
            finalizers: BTreeMap::from([("x/y".to_owned(), 1)]),
        };
        let before =
            [json!({"type": "NamespaceContentRemaining", "status": "True", "lastTransitionTime": "then"})];
        let shown: Vec<String> = conditions(&content, &[], &before, "now")
            .iter()
            .map(|c| {
                ["type", "status", "reason", "message", "lastTransitionTime"]
                    .map(|f| c[f].as_str().unwrap())
                    .join("|")
            })
            .collect();
        assert_eq!(
            shown,
            [
                "NamespaceDeletionDiscoveryFailure|False|ResourcesDiscovered|All resources successfully discovered|now",
                "NamespaceDeletionGroupVersionParsingFailure|False|ParsedGroupVersions|All legacy kube types successfully parsed|now",
                "NamespaceDeletionContentFailure|False|ContentDeleted|All content successfully deleted, may be waiting on finalization|now",
                "NamespaceContentRemaining|True|SomeResourcesRemain|Some resources are remaining: configmaps. has 1 resource instances|then",
                "NamespaceFinalizersRemaining|True|SomeFinalizersRemain|Some content in the namespace has finalizers remaining: x/y in 1 resource instances|now",
            ]
        );
        let done = conditions(&Content::default(), &[], &[], "now");
        assert!(done.iter().all(|condition| condition["status"] == "False"));
    }

    #[test]
    fn as_050_only_our_finalizer_is_dropped() {
        let namespace =
            json!({"metadata": {"deletionTimestamp": "t"}, "spec": {"finalizers": ["kubernetes", "mine"]}});
        assert!(is_terminating(&namespace));
        let after = finalized(namespace);
        assert_eq!(after["spec"]["finalizers"], json!(["mine"]));
        assert!(!is_terminating(&after));
        assert!(!is_terminating(&json!({"metadata": {}, "spec": {"finalizers": ["kubernetes"]}})));
    }
}
