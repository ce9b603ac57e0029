//! The last distribution of a Binding's objects over envelopes, so that the cost of a change follows the
//! change. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use crate::{content::Digest, identity::Identity};

/// A distribution that is the same for all destinations.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// Fingerprints of the envelopes, by name.
    pub(super) prints: BTreeMap<String, Digest>,
    /// Number of the shard of each object.
    pub(super) placement: BTreeMap<Arc<Identity>, usize>,
    /// Mailboxes that were brought into this form, with the count of foreign changes at that time.
    pub(super) settled: HashMap<String, u64>,
}

/// The envelopes to look at in one mailbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Nothing,
    /// These envelopes.
    Only(Arc<BTreeSet<String>>),
    Everything,
}

impl Scope {
    pub(super) fn covers(&self, name: &str) -> bool {
        match self {
            Self::Nothing => false,
            Self::Only(names) => names.contains(name),
            Self::Everything => true,
        }
    }
}

impl Layout {
    /// Returns the envelopes that were added, removed or changed since `self`.
    pub(super) fn changed(&self, now: &BTreeMap<String, Digest>) -> BTreeSet<String> {
        let fresh = now.iter().filter(|(name, print)| self.prints.get(*name) != Some(print));
        let gone = self.prints.keys().filter(|name| !now.contains_key(*name));
        fresh.map(|(name, _)| name).chain(gone).cloned().collect()
    }

    /// In a mailbox that was in order and that no other client has changed, only the changed envelopes need a
    /// look.
    pub(super) fn scope(&self, mailbox: &str, foreign_change: u64, changed: &Arc<BTreeSet<String>>) -> Scope {
        if self.settled.get(mailbox) != Some(&foreign_change) {
            Scope::Everything
        } else if changed.is_empty() {
            Scope::Nothing
        } else {
            Scope::Only(changed.clone())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prints(list: &[(&str, u8)]) -> BTreeMap<String, Digest> {
        list.iter().map(|(name, print)| ((*name).to_owned(), [*print; 32])).collect()
    }

    #[test]
    fn a_settled_mailbox_needs_only_what_changed() {
        let layout = Layout {
            prints: prints(&[("a", 1), ("b", 1), ("c", 1)]),
            settled: HashMap::from([("atlas".to_owned(), 0), ("boreas".to_owned(), 4)]),
            ..Layout::default()
        };
        let changed = Arc::new(layout.changed(&prints(&[("a", 1), ("b", 2), ("d", 1)])));
        assert_eq!(changed.iter().map(String::as_str).collect::<Vec<_>>(), ["b", "c", "d"]);
        let none = Arc::new(layout.changed(&layout.prints));
        for (mailbox, foreign_change, changed, scope) in [
            ("atlas", 0, &changed, Scope::Only(changed.clone())),
            ("atlas", 0, &none, Scope::Nothing),
            ("atlas", 5, &none, Scope::Everything),
            ("boreas", 0, &none, Scope::Everything),
            ("cygnus", 0, &none, Scope::Everything),
        ] {
            assert_eq!(layout.scope(mailbox, foreign_change, changed), scope, "{mailbox} {foreign_change}");
        }
    }
}
