//! An index of the manifests of all works by object. Pure. Cost of a change of a work: its manifests; of a
//! question: one look-up.

use std::collections::HashMap;

use apis::ocm::ManifestWork;

use super::rules::{Header, Target};

/// Group and name of an object.
type ObjectName = (String, String);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Holder {
    work: String,
    kind: String,
    namespace: String,
}

/// The manifests of all works that are not being deleted.
#[derive(Default)]
pub(crate) struct ManifestIndex {
    places: HashMap<ObjectName, Vec<Holder>>,
    by_work: HashMap<String, Vec<ObjectName>>,
}

impl ManifestIndex {
    /// Stores the present state of a work; a work that is being deleted holds nothing.
    pub(crate) fn put(&mut self, name: &str, work: &ManifestWork) {
        self.remove(name);
        if work.metadata.deletion_timestamp.is_some() {
            return;
        }
        let mut places = Vec::new();
        for header in work.spec.workload.manifests.iter().map(Header::of) {
            let place = (header.group, header.name);
            let holder = Holder { work: name.to_owned(), kind: header.kind, namespace: header.namespace };
            self.places.entry(place.clone()).or_default().push(holder);
            places.push(place);
        }
        self.by_work.insert(name.to_owned(), places);
    }

    /// Removes a work that is gone.
    pub(crate) fn remove(&mut self, name: &str) {
        for place in self.by_work.remove(name).unwrap_or_default() {
            if let Some(holders) = self.places.get_mut(&place) {
                holders.retain(|holder| holder.work != name);
                if holders.is_empty() {
                    self.places.remove(&place);
                }
            }
        }
    }

    /// Returns the works other than `except` that hold a manifest of this group, namespace and name, each
    /// with the manifest's kind. A namespace in the manifest of a cluster-scoped object is ignored.
    pub(crate) fn others(&self, except: &str, target: &Target) -> Vec<(String, String)> {
        let holders = self.places.get(&(target.group.clone(), target.name.clone()));
        let here = |h: &&Holder| {
            h.work != except && (target.namespace.is_empty() || h.namespace == target.namespace)
        };
        holders.into_iter().flatten().filter(here).map(|h| (h.work.clone(), h.kind.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn work(names: &[&str], deleting: bool) -> ManifestWork {
        let manifests: Vec<_> = names
            .iter()
            .map(|name| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "n"}}))
            .collect();
        let mut metadata = json!({"name": "w"});
        if deleting {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        serde_json::from_value(json!({"metadata": metadata, "spec": {"workload": {"manifests": manifests}}}))
            .expect("a work")
    }

    #[test]
    fn ocm_094_who_else_wants_an_object() {
        let target = |name: &str, namespace: &str| Target {
            resource: "configmaps".into(),
            namespace: namespace.into(),
            name: name.into(),
            ..Target::default()
        };
        let mut index = ManifestIndex::default();
        index.put("one", &work(&["a", "b"], false));
        index.put("two", &work(&["b"], false));
        assert_eq!(index.others("one", &target("b", "n")), [("two".to_owned(), "ConfigMap".to_owned())]);
        assert!(index.others("one", &target("a", "n")).is_empty(), "only itself");
        assert!(index.others("one", &target("b", "m")).is_empty(), "elsewhere");
        index.put("two", &work(&["b"], true));
        assert!(index.others("one", &target("b", "n")).is_empty(), "on its way out");
        index.remove("one");
        assert!(index.places.is_empty() && index.by_work.is_empty());
    }
}
