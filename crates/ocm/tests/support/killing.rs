//! What the tests share in which agents are killed: sizes, seeds, and what may be said of objects while all is moving.

use serde_json::Value;

/// A number from the environment.
pub(crate) fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Numbers that come again with the same seed (xorshift).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// Whether an object read twice was the same one with the same owners all the while. What was listed between the two
/// readings can be compared with it; an object that went meanwhile may have taken its owner along.
pub(crate) fn standing(before: &Value, after: &Value) -> bool {
    ["name", "uid", "ownerReferences"]
        .iter()
        .all(|field| before["metadata"][field] == after["metadata"][field])
}
