//! An index of selectors: finds the selectors that may match the labels of an object (MC-038, MC-117,
//! MC-147). Pure.

use std::{
    borrow::Borrow,
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

use machinery::selector::LabelSelector;
use serde_json::Value;

use crate::{cache::required_label, object::Text};

/// The index key of a selector: a namespace (empty for any), and a label with a value that every match has,
/// if the selector requires one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SelectorKey {
    namespace: Text,
    label: Option<(Box<str>, Box<str>)>,
}

impl SelectorKey {
    /// Returns the index key of a selector.
    pub fn of(namespace: &str, selector: &LabelSelector) -> Self {
        Self { namespace: namespace.into(), label: required_label(selector) }
    }

    /// Returns the index keys of all selectors that may match an object with these labels in a namespace.
    pub fn looked_at(namespace: &str, labels: &Value) -> impl Iterator<Item = Self> {
        let namespace: Text = namespace.into();
        let pairs = labels.as_object().into_iter().flatten();
        let pairs = pairs
            .map(|(label, value)| Some((label.as_str().into(), value.as_str().unwrap_or_default().into())));
        pairs.chain([None]).map(move |label| Self { namespace: namespace.clone(), label })
    }
}

/// Selectors by the item they belong to, and by index key.
#[derive(Debug)]
pub struct SelectorIndex<K> {
    selectors: HashMap<K, (SelectorKey, LabelSelector)>,
    places: HashMap<SelectorKey, BTreeSet<K>>,
}

impl<K> Default for SelectorIndex<K> {
    fn default() -> Self {
        Self { selectors: HashMap::new(), places: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash + Ord> SelectorIndex<K> {
    /// Sets the selector of `who` in a namespace (empty for any). O(log n).
    pub fn put(&mut self, who: K, namespace: &str, selector: LabelSelector) {
        self.remove(&who);
        let place = SelectorKey::of(namespace, &selector);
        self.places.entry(place.clone()).or_default().insert(who.clone());
        self.selectors.insert(who, (place, selector));
    }

    /// Removes the selector of `who`. O(log n).
    pub fn remove(&mut self, who: &K) {
        let Some((place, _)) = self.selectors.remove(who) else { return };
        if let Some(all) = self.places.get_mut(&place) {
            all.remove(who);
            if all.is_empty() {
                self.places.remove(&place);
            }
        }
    }

    /// Returns the selector of `who`; `None` if it has none.
    pub fn selector<Q: Eq + Hash + ?Sized>(&self, who: &Q) -> Option<&LabelSelector>
    where
        K: Borrow<Q>,
    {
        self.selectors.get(who).map(|(_, selector)| selector)
    }

    /// Returns the namespaces that have selectors.
    pub fn namespaces(&self) -> BTreeSet<Text> {
        self.places.keys().map(|place| place.namespace.clone()).collect()
    }

    /// Returns the items of a namespace whose selectors match these labels. O(labels + selectors of the
    /// namespace that require one of the labels, or none).
    pub fn selecting(&self, namespace: &str, labels: &Value) -> Vec<K> {
        let at =
            SelectorKey::looked_at(namespace, labels).filter_map(|place| self.places.get(&place)).flatten();
        let selects = |who: &&K| self.selectors.get(*who).is_some_and(|(_, by)| by.matches_labels(labels));
        at.filter(selects).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const SELECTORS: [&str; 7] = ["a=1", "a=2", "b=1", "a=1,b=2", "a", "!a", "a in (1,2)"];

    proptest! {
        /// MC-147: after any history, the result has exactly the items whose selectors match, each once.
        #[test]
        fn mc_147_found_are_those_who_select(
            steps in prop::collection::vec((0..5_u8, 0..3_usize, 0..7_usize, any::<bool>()), 0..40),
            labels in prop::collection::btree_map("[ab]", "[12]", 0..3),
        ) {
            let (mut index, mut plain) = (SelectorIndex::default(), HashMap::new());
            for (who, namespace, selector, stays) in steps {
                let (namespace, selector) = (["m", "n", ""][namespace], LabelSelector::parse(SELECTORS[selector]).unwrap());
                if stays {
                    index.put(who, namespace, selector.clone());
                    plain.insert(who, (namespace, selector));
                } else {
                    index.remove(&who);
                    plain.remove(&who);
                }
            }
            let labels = json!(labels);
            for namespace in ["m", "n", ""] {
                let mut found = index.selecting(namespace, &labels);
                found.sort_unstable();
                let selects = |(_, (at, by)): &(&u8, &(&str, LabelSelector))| *at == namespace && by.matches_labels(&labels);
                let mut expected: Vec<u8> = plain.iter().filter(selects).map(|(who, _)| *who).collect();
                expected.sort_unstable();
                prop_assert_eq!(found, expected);
            }
            let namespaces: BTreeSet<Text> = plain.values().map(|(at, _)| (*at).into()).collect();
            prop_assert_eq!(index.namespaces(), namespaces);
            for who in 0..5 {
                prop_assert_eq!(index.selector(&who), plain.get(&who).map(|(_, by)| by));
                index.remove(&who);
            }
            prop_assert!(index.places.is_empty() && index.selectors.is_empty());
        }
    }
}
