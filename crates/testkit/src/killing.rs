//! What the tests share in which agents are killed: sizes, seeds, and what may be said of objects while all is moving.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// A number from the environment.
pub fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Numbers that come again with the same seed (xorshift).
pub struct Rng(pub u64);

impl Rng {
    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// What the ConfigMaps of works are to hold, by name. Given are the works, with their ConfigMaps and the value of each.
pub fn contents(works: &BTreeMap<&str, BTreeMap<String, u64>>) -> BTreeMap<String, Value> {
    let all = works.values().flatten();
    all.map(|(name, value)| (name.clone(), json!({"a": value.to_string()}))).collect()
}

/// Whether an object read twice was the same one with the same owners all the while. What was listed between the two
/// readings can be compared with it; an object that went meanwhile may have taken its owner along.
pub fn standing(before: &Value, after: &Value) -> bool {
    ["name", "uid", "ownerReferences"]
        .iter()
        .all(|field| before["metadata"][field] == after["metadata"][field])
}
