//! The existing CustomTransforms, by name and by resource.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use apis::control::{CustomTransform, CustomTransformStatus};

use super::transforms::{GroupResource, Spec, Verdict, verdict};

/// The relevant part of a CustomTransform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its spec.
    pub spec: Spec,
    /// Its UID.
    pub uid: String,
    generation: i64,
    status: CustomTransformStatus,
}

impl Entry {
    /// Takes the relevant part of the object.
    pub fn new(transform: CustomTransform) -> Self {
        let CustomTransform { metadata, spec, status } = transform;
        Self {
            spec: Spec { of: GroupResource::new(&spec.api_group, &spec.resource), remove: spec.remove },
            uid: metadata.uid.unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            status: status.unwrap_or_default(),
        }
    }
}

/// All CustomTransforms.
#[derive(Debug, Default)]
pub struct Catalogue {
    entries: BTreeMap<String, Entry>,
    by_resource: HashMap<GroupResource, BTreeSet<String>>,
}

impl Catalogue {
    /// Stores the present state of one CustomTransform, `None` if it was deleted. Returns the names of those
    /// whose status may change: itself, and those that share a resource with it now or before (KS-115).
    pub fn put(&mut self, name: &str, now: Option<Entry>) -> BTreeSet<String> {
        let mut concerned = BTreeSet::new();
        let before = self.entries.remove(name);
        let same_resource =
            before.as_ref().zip(now.as_ref()).is_some_and(|(old, new)| old.spec.of == new.spec.of);
        if let Some(old) = before.filter(|_| !same_resource)
            && let Some(names) = self.by_resource.get_mut(&old.spec.of)
        {
            names.remove(name);
            concerned.extend(names.iter().cloned());
            if names.is_empty() {
                self.by_resource.remove(&old.spec.of);
            }
        }
        if let Some(now) = now {
            let names = self.by_resource.entry(now.spec.of.clone()).or_default();
            names.insert(name.to_owned());
            if same_resource {
                concerned.insert(name.to_owned());
            } else {
                concerned.extend(names.iter().cloned());
            }
            self.entries.insert(name.to_owned(), now);
        }
        concerned
    }

    /// Returns those for one resource, by name.
    pub fn of(&self, resource: &GroupResource) -> BTreeMap<&str, &Spec> {
        let names = self.by_resource.get(resource).into_iter().flatten();
        names.filter_map(|name| Some((name.as_str(), &self.entries.get(name)?.spec))).collect()
    }

    /// Returns the UID of a CustomTransform and the status it should have, if that differs from its present
    /// status (KS-116).
    pub fn status_due(&self, name: &str) -> Option<(String, CustomTransformStatus)> {
        let entry = self.entries.get(name)?;
        let Verdict { errors, warnings } = verdict(&entry.spec, &self.of(&entry.spec.of));
        let wanted = CustomTransformStatus { observed_generation: entry.generation, errors, warnings };
        (entry.status != wanted).then(|| (entry.uid.clone(), wanted))
    }

    /// Number of CustomTransforms.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(resource: &str, remove: &[&str], generation: i64) -> Entry {
        let remove = remove.iter().map(|text| (*text).to_owned()).collect();
        Entry {
            spec: Spec { of: GroupResource::new("", resource), remove },
            uid: "u".into(),
            generation,
            status: CustomTransformStatus::default(),
        }
    }

    fn names(concerned: &BTreeSet<String>) -> Vec<&str> {
        concerned.iter().map(String::as_str).collect()
    }

    /// KS-115: the warning appears on both and disappears from both.
    #[test]
    fn ks_115_whoever_shares_a_resource_is_concerned() {
        let mut all = Catalogue::default();
        assert_eq!(names(&all.put("a", Some(entry("configmaps", &[], 1)))), ["a"]);
        assert_eq!(names(&all.put("b", Some(entry("configmaps", &[], 1)))), ["a", "b"]);
        assert_eq!(names(&all.put("b", Some(entry("configmaps", &["$.x"], 2)))), ["b"]);
        assert!(all.status_due("a").is_some_and(|(_, status)| status.warnings.len() == 1));
        assert_eq!(names(&all.put("b", Some(entry("secrets", &["$.x"], 3)))), ["a", "b"]);
        assert!(all.status_due("a").is_some_and(|(_, status)| status.warnings.is_empty()));
        assert_eq!(names(&all.put("b", Some(entry("configmaps", &["$.x"], 4)))), ["a", "b"]);
        assert_eq!(names(&all.put("b", None)), ["a"]);
        assert!(all.of(&GroupResource::new("", "secrets")).is_empty());
    }

    #[test]
    fn ks_116_status_is_due_only_while_it_differs() {
        let mut all = Catalogue::default();
        all.put("a", Some(entry("configmaps", &["$"], 3)));
        let (uid, status) = all.status_due("a").expect("the first");
        assert_eq!((uid.as_str(), status.observed_generation, status.errors.len()), ("u", 3, 1));
        let written = Entry { status, ..entry("configmaps", &["$"], 3) };
        all.put("a", Some(written.clone()));
        assert_eq!(all.status_due("a"), None);
        all.put("a", Some(Entry { generation: 4, ..written }));
        assert!(all.status_due("a").is_some(), "another generation");
        assert_eq!(all.status_due("b"), None);
    }
}
