//! Properties of WECs for template expansion (KS-128 … KS-134).
//!
//! Sources: the inventory object and the property ConfigMap of the WEC. Cached: the merged properties of each
//! requested destination, and which Bindings depend on which destinations.
//!
//! Cost of one change: the properties of one WEC and the Bindings that depend on it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// Properties by name.
pub type Properties = Arc<BTreeMap<String, String>>;

/// The relevant part of an inventory object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// The object is being deleted.
    pub terminating: bool,
}

/// The cache and its sources.
#[derive(Debug, Default)]
pub struct Cache {
    inventory: HashMap<String, Inventory>,
    maps: HashMap<String, BTreeMap<String, String>>,
    /// `destinationProperties`.
    known: HashMap<String, Properties>,
    /// `bindingSensitiveDestinations`, and the reverse map.
    sensitive: HashMap<String, BTreeSet<String>>,
    dependents: HashMap<String, BTreeSet<String>>,
}

impl Cache {
    /// Sets the inventory object of a WEC, `None` if it was deleted. Returns the Bindings that must be
    /// processed again.
    pub fn put_inventory(&mut self, wec: &str, now: Option<Inventory>) -> BTreeSet<String> {
        match now {
            Some(now) => self.inventory.insert(wec.to_owned(), now),
            None => self.inventory.remove(wec),
        };
        self.recollect(wec)
    }

    /// Sets the property ConfigMap of a WEC (`data` and `binaryData` merged), `None` if it was deleted.
    /// Returns the Bindings that must be processed again.
    pub fn put_map(&mut self, wec: &str, now: Option<BTreeMap<String, String>>) -> BTreeSet<String> {
        match now {
            Some(now) => self.maps.insert(wec.to_owned(), now),
            None => self.maps.remove(wec),
        };
        self.recollect(wec)
    }

    /// Returns true if the inventory object is being deleted; then nothing new may be written into that
    /// mailbox.
    pub fn is_terminating(&self, wec: &str) -> bool {
        self.inventory.get(wec).is_some_and(|facts| facts.terminating)
    }

    /// Number of inventory objects.
    pub fn wecs(&self) -> usize {
        self.inventory.len()
    }

    /// Number of property ConfigMaps.
    pub fn maps(&self) -> usize {
        self.maps.len()
    }

    /// Returns the properties of one WEC; computed on the first call (KS-130).
    pub fn of(&mut self, wec: &str) -> Properties {
        if let Some(known) = self.known.get(wec) {
            return known.clone();
        }
        let fresh = Arc::new(self.collect(wec));
        self.known.insert(wec.to_owned(), fresh.clone());
        fresh
    }

    /// Sets the destinations whose properties matter to `binding`: all of its destinations if an object
    /// requests customisation, otherwise none (KS-131). Forgets destinations that matter to no Binding
    /// (KS-134).
    pub fn set_sensitive(&mut self, binding: &str, now: BTreeSet<String>) {
        let before = self.sensitive.remove(binding).unwrap_or_default();
        for gone in before.difference(&now) {
            let Some(dependents) = self.dependents.get_mut(gone) else { continue };
            dependents.remove(binding);
            if dependents.is_empty() {
                self.dependents.remove(gone);
                self.known.remove(gone);
            }
        }
        for new in &now {
            self.dependents.entry(new.clone()).or_default().insert(binding.to_owned());
        }
        if !now.is_empty() {
            self.sensitive.insert(binding.to_owned(), now);
        }
    }

    /// `recollectProperties` (KS-132, KS-133).
    fn recollect(&mut self, wec: &str) -> BTreeSet<String> {
        let Some(known) = self.known.get(wec) else { return BTreeSet::new() };
        let fresh = self.collect(wec);
        if **known == fresh {
            return BTreeSet::new();
        }
        self.known.insert(wec.to_owned(), Arc::new(fresh));
        self.dependents.get(wec).cloned().unwrap_or_default()
    }

    /// KS-128: later sources win.
    fn collect(&self, wec: &str) -> BTreeMap<String, String> {
        let mut all = BTreeMap::from([("clusterName".to_owned(), wec.to_owned())]);
        let inventory = self.inventory.get(wec);
        let labels = inventory.into_iter().flat_map(|facts| &facts.labels);
        let annotations = inventory.into_iter().flat_map(|facts| &facts.annotations);
        let map = self.maps.get(wec).into_iter().flatten();
        let qualified = labels.chain(annotations).chain(map).filter(|(key, _)| is_identifier(key));
        all.extend(qualified.map(|(key, value)| (key.clone(), value.clone())));
        all
    }
}

const KEYWORDS: [&str; 25] = [
    "break",
    "case",
    "chan",
    "const",
    "continue",
    "default",
    "defer",
    "else",
    "fallthrough",
    "for",
    "func",
    "go",
    "goto",
    "if",
    "import",
    "interface",
    "map",
    "package",
    "range",
    "return",
    "select",
    "struct",
    "switch",
    "type",
    "var",
];

/// Returns true if the key is a Go identifier (KS-129); only such keys can be used in a template.
pub fn is_identifier(key: &str) -> bool {
    let mut chars = key.chars();
    let starts = |c: char| c == '_' || c.is_alphabetic();
    chars.next().is_some_and(starts)
        && chars.all(|c| starts(c) || (c.is_numeric() && !c.is_alphabetic()))
        && !KEYWORDS.contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn names(list: &[&str]) -> BTreeSet<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn ks_128_precedence() {
        let inventory = Inventory {
            labels: pairs(&[("label", "1"), ("two", "label"), ("all", "label"), ("a.b/c", "x")]),
            annotations: pairs(&[("annotation", "2"), ("two", "annotation"), ("all", "annotation")]),
            terminating: false,
        };
        let mut cache = Cache::default();
        assert_eq!(*cache.of("atlas"), pairs(&[("clusterName", "atlas")]), "nothing is there");
        cache.put_inventory("atlas", Some(inventory));
        cache.put_map("atlas", Some(pairs(&[("site", "3"), ("all", "map"), ("not-me", "x"), ("type", "x")])));
        assert_eq!(
            *cache.of("atlas"),
            pairs(&[
                ("clusterName", "atlas"),
                ("label", "1"),
                ("annotation", "2"),
                ("site", "3"),
                ("two", "annotation"),
                ("all", "map")
            ])
        );
        cache.put_map("atlas", Some(pairs(&[("clusterName", "mine")])));
        assert_eq!(cache.of("atlas").get("clusterName").map(String::as_str), Some("mine"));
        cache.put_map("atlas", None);
        cache.put_inventory("atlas", None);
        assert_eq!(*cache.of("atlas"), pairs(&[("clusterName", "atlas")]));
    }

    #[test]
    fn ks_129_identifiers() {
        for (key, is) in [
            ("a", true),
            ("_", true),
            ("siteId2", true),
            ("été", true),
            ("x٣", true),
            ("", false),
            ("2a", false),
            ("a-b", false),
            ("a.b", false),
            ("a/b", false),
            ("a b", false),
            ("func", false),
            ("Func", true),
            ("type", false),
            ("nil", true),
        ] {
            assert_eq!(is_identifier(key), is, "{key:?}");
        }
    }

    #[test]
    fn ks_132_only_a_change_of_what_is_known_matters() {
        let mut cache = Cache::default();
        cache.set_sensitive("b", names(&["atlas", "boreas"]));
        let site = |value: &str| Some(pairs(&[("site", value)]));
        assert!(cache.put_map("atlas", site("1")).is_empty(), "nobody asked for it yet");
        cache.of("atlas");
        assert!(cache.put_map("atlas", site("1")).is_empty(), "equal");
        let same = Some(Inventory { labels: pairs(&[("no-identifier", "x")]), ..Inventory::default() });
        assert!(cache.put_inventory("atlas", same).is_empty(), "nothing that a template can see");
        assert_eq!(cache.put_map("atlas", site("2")), names(&["b"]));
        assert_eq!(cache.put_map("atlas", None), names(&["b"]));
    }

    #[test]
    fn ks_133_exactly_the_sensitive_bindings_are_told() {
        let mut cache = Cache::default();
        cache.set_sensitive("one", names(&["atlas"]));
        cache.set_sensitive("both", names(&["atlas", "boreas"]));
        cache.set_sensitive("none", names(&[]));
        cache.of("atlas");
        cache.of("boreas");
        assert_eq!(cache.put_map("boreas", Some(pairs(&[("x", "1")]))), names(&["both"]));
        assert_eq!(cache.put_map("atlas", Some(pairs(&[("x", "1")]))), names(&["both", "one"]));
        cache.set_sensitive("both", names(&[]));
        assert_eq!(cache.put_map("atlas", Some(pairs(&[("x", "2")]))), names(&["one"]));
    }

    #[test]
    fn ks_134_what_matters_to_nobody_is_forgotten() {
        let mut cache = Cache::default();
        for binding in ["one", "two"] {
            cache.set_sensitive(binding, names(&["atlas"]));
        }
        cache.of("atlas");
        cache.set_sensitive("one", names(&[]));
        assert!(cache.known.contains_key("atlas"));
        cache.set_sensitive("two", names(&[]));
        assert!(cache.known.is_empty() && cache.dependents.is_empty() && cache.sensitive.is_empty());
    }

    proptest! {
        /// KS-130 … KS-134, compared with a model without a cache: after any history every Binding that
        /// depends on a WEC has its present properties or was enqueued because they changed.
        #[test]
        fn ks_133_nobody_is_left_with_old_properties(
            acts in proptest::collection::vec((0..4u8, 0..2usize, 0..3usize, "[ab]"), 0..60)
        ) {
            let (wecs, bindings) = (["atlas", "boreas"], ["b0", "b1", "b2"]);
            let (mut cache, mut reported) = (Cache::default(), BTreeSet::new());
            let mut seen: BTreeMap<(usize, usize), Properties> = BTreeMap::new();
            for (act, wec, binding, value) in acts {
                let name = wecs[wec];
                match act {
                    0 => {
                        let map = pairs(&[("site", value.as_str())]);
                        reported.extend(cache.put_map(name, (value != "b" || binding > 0).then_some(map)));
                    }
                    1 => {
                        let inventory = Inventory { labels: pairs(&[("l", &value)]), ..Inventory::default() };
                        reported.extend(cache.put_inventory(name, (binding > 0).then_some(inventory)));
                    }
                    2 => {
                        // A Binding is processed; it has one destination or both.
                        reported.remove(bindings[binding]);
                        let destinations = if value == "a" { vec![wec] } else { vec![0, 1] };
                        seen.retain(|(of, _), _| *of != binding);
                        for wec in &destinations {
                            seen.insert((binding, *wec), cache.of(wecs[*wec]));
                        }
                        let all: Vec<&str> = destinations.iter().map(|wec| wecs[*wec]).collect();
                        cache.set_sensitive(bindings[binding], names(&all));
                    }
                    _ => {
                        reported.remove(bindings[binding]);
                        seen.retain(|(of, _), _| *of != binding);
                        cache.set_sensitive(bindings[binding], names(&[]));
                    }
                }
                for ((binding, wec), properties) in &seen {
                    let right = **properties == cache.collect(wecs[*wec]);
                    prop_assert!(right || reported.contains(bindings[*binding]));
                }
                prop_assert!(cache.known.keys().all(|wec| cache.dependents.contains_key(wec)));
            }
        }
    }
}
