//! The names of AppliedManifestWorks (OCM-071). Pure.
//!
//! A name begins with a digest of the hub's address, as the kubeconfig spells it. Earlier versions of this agent dropped a
//! slash at the end; OCM's agent keeps it. Both spellings name the same hub, so what is found under either is continued under
//! its own name.

use sha2::{Digest as _, Sha256};

use super::merge::hex;

/// Lower-case hexadecimal SHA-256 of the hub's URL (OCM-015).
pub fn hub_hash(url: &str) -> String {
    hex(&Sha256::digest(url.as_bytes()))
}

/// The digests of a hub's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubNames {
    hash: String,
    /// With a slash at the end if `hash` is without, and the other way round.
    other: String,
}

impl HubNames {
    /// For the address exactly as in the agent's kubeconfig.
    pub fn new(url: &str) -> Self {
        let other = url.strip_suffix('/').map_or_else(|| format!("{url}/"), str::to_owned);
        Self { hash: hub_hash(url), other: hub_hash(&other) }
    }

    /// The digest of the address.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Returns whether this is the digest of the address in either spelling.
    pub fn is_of_hub(&self, hash: &str) -> bool {
        hash == self.hash || hash == self.other
    }

    /// The name for a work: the one that exists, the proper one if both or none do.
    pub fn of_work(&self, work: &str, exists: impl Fn(&str) -> bool) -> String {
        let (proper, other) = (format!("{}-{work}", self.hash), format!("{}-{work}", self.other));
        if !exists(&proper) && exists(&other) { other } else { proper }
    }

    /// The name under the other spelling, if both exist: it is left over, and is evicted like that of a former hub.
    pub fn superseded(&self, work: &str, exists: impl Fn(&str) -> bool) -> Option<String> {
        let (proper, other) = (format!("{}-{work}", self.hash), format!("{}-{work}", self.other));
        (exists(&proper) && exists(&other)).then_some(other)
    }

    /// The digest in a name of [`HubNames::of_work`].
    pub fn hash_of<'a>(&'a self, name: &str) -> &'a str {
        if name.starts_with(&self.other) { &self.other } else { &self.hash }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OCM-071: an address keeps its slash as in Go; what exists under the other spelling keeps its name.
    #[test]
    fn ocm_071_either_spelling_of_the_address() {
        let (with, without) = ("https://hub:6443/", "https://hub:6443");
        for (mine, other) in [(with, without), (without, with)] {
            let names = HubNames::new(mine);
            assert_eq!(names.hash(), hub_hash(mine));
            assert!(names.is_of_hub(&hub_hash(with)) && names.is_of_hub(&hub_hash(without)));
            assert!(!names.is_of_hub(&hub_hash("https://hub")));
            let (proper, older) = (format!("{}-w", hub_hash(mine)), format!("{}-w", hub_hash(other)));
            assert_eq!(names.of_work("w", |_| false), proper, "a new one");
            assert_eq!(names.of_work("w", |name| name == older), older, "it exists");
            assert_eq!(names.of_work("w", |_| true), proper, "the older one is left over");
            assert_eq!(names.superseded("w", |_| true), Some(older.clone()));
            assert_eq!(names.superseded("w", |name| name == older), None);
            assert_eq!(names.hash_of(&older), hub_hash(other));
            assert_eq!(names.hash_of(&proper), hub_hash(mine));
        }
    }
}
