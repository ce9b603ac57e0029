//! What the tests with killed agents share: sizes, seeds, and comparisons of objects while everything
//! changes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Reads a number from the environment.
pub fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Reproducible random numbers (xorshift).
pub struct Rng(pub u64);

impl Rng {
    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// Returns the expected content of the works' ConfigMaps, by name, from the works with their ConfigMaps and
/// the value of each.
pub fn contents(works: &BTreeMap<&str, BTreeMap<String, u64>>) -> BTreeMap<String, Value> {
    let all = works.values().flatten();
    all.map(|(name, value)| (name.clone(), json!({"a": value.to_string()}))).collect()
}

/// Returns whether an object that was read twice was the same one with the same owners all the time. Then it
/// can be compared with a list between the two reads; the owner of an object that is gone may be gone, too.
pub fn standing(before: &Value, after: &Value) -> bool {
    ["name", "uid", "ownerReferences"]
        .iter()
        .all(|field| before["metadata"][field] == after["metadata"][field])
}
