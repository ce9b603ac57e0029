//! Decides which object goes into which envelope (KS-098, KS-139 … KS-146). Pure.
//!
//! Objects keep their shard: an object leaves its envelope only when it no longer fits. New objects go into
//! the first shard with room. Besides the hard limits of the command line there is a lower target: a shard
//! that has reached it takes no new object, so that one changed object rewrites some tens of KiB and not half
//! a MiB.
//!
//! Cost: O(N log N) for N objects.

use std::{collections::BTreeMap, sync::Arc};

use crate::identity::Identity;

/// Limits of one envelope.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `--max-num-wrapped`: most objects in one envelope.
    pub max_num: usize,
    /// `--max-size-wrapped`: most bytes of one envelope.
    pub max_size: usize,
    /// Number of objects from which on an envelope takes no new ones.
    pub target_num: usize,
    /// Number of bytes from which on an envelope takes no new objects.
    pub target_size: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_num: 512_000, max_size: 512_000, target_num: 64, target_size: 65_536 }
    }
}

impl Limits {
    /// The hard limits without a lower target: shards as large as the original makes them.
    pub fn hard(max_num: usize, max_size: usize) -> Self {
        Self { max_num, max_size, target_num: max_num, target_size: max_size }
    }
}

/// An object, as sharding sees it.
#[derive(Clone, Debug)]
pub struct ShardItem {
    /// Identity of the object.
    pub identity: Arc<Identity>,
    /// UID of the original.
    pub uid: String,
    /// Bytes in an envelope.
    pub size: usize,
}

/// The names of the envelopes of one Binding (KS-098).
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// Name of the Binding.
    pub binding: &'a str,
    /// UID of the Binding.
    pub binding_uid: &'a str,
    /// Name of the WDS.
    pub wds: &'a str,
}

impl Names<'_> {
    /// Name of the envelope that holds only the object with this UID.
    pub fn single(&self, uid: &str) -> String {
        format!("{}-{}-{uid}", self.binding_uid, self.wds)
    }

    /// Name of shard `number`.
    pub fn numbered(&self, number: usize) -> String {
        format!("{}-{}-{number}", self.binding, self.wds)
    }

    /// The number in a name made by [`Names::numbered`].
    pub fn number(&self, name: &str) -> Option<usize> {
        let digits =
            name.strip_prefix(self.binding)?.strip_prefix('-')?.strip_prefix(self.wds)?.strip_prefix('-')?;
        let number: usize = digits.parse().ok()?;
        (number.to_string() == digits).then_some(number)
    }

    /// Returns why no envelope with these names or labels can exist (KS-099).
    pub fn problem(&self, limits: &Limits) -> Option<String> {
        for (what, value) in [("name of the Binding", self.binding), ("name of the WDS", self.wds)] {
            if value.len() > 63 {
                return Some(format!(
                    "{what} is {} characters long; as a label value at most 63 are possible",
                    value.len()
                ));
            }
        }
        let longest = if limits.max_num <= 1 {
            self.single("00000000-0000-0000-0000-000000000000").len()
        } else {
            self.numbered(9999).len()
        };
        (longest > 253).then(|| {
            format!("names of wrapped objects would have {longest} characters; at most 253 are possible")
        })
    }
}

/// One envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its name.
    pub name: String,
    /// Indexes of its objects, in Binding order.
    pub members: Vec<usize>,
}

#[derive(Default)]
struct Load {
    members: Vec<usize>,
    size: usize,
    released: bool,
}

/// Distributes `shard_items` (none larger than `max_size`) over shards. `current` returns the number of the
/// shard that holds an object now; `base` is the size of an empty envelope.
pub fn assign(
    shard_items: &[ShardItem],
    current: &BTreeMap<Arc<Identity>, usize>,
    names: &Names<'_>,
    limits: &Limits,
    base: usize,
) -> Vec<Shard> {
    if limits.max_num <= 1 {
        return shard_items
            .iter()
            .enumerate()
            .map(|(index, piece)| Shard { name: names.single(&piece.uid), members: vec![index] })
            .collect();
    }
    let mut loads: BTreeMap<usize, Load> = BTreeMap::new();
    let mut homeless = Vec::new();
    for (index, piece) in shard_items.iter().enumerate() {
        match current.get(&piece.identity) {
            Some(number) => {
                let load = loads.entry(*number).or_default();
                if fits(load, piece, base, limits.max_num, limits.max_size) {
                    put(load, index, piece);
                } else {
                    // A shard that an object leaves must not receive others, so that the receivers can be
                    // written before it (KS-142).
                    load.released = true;
                    homeless.push((index, true));
                }
            }
            None => homeless.push((index, false)),
        }
    }
    let (num, size) = (limits.target_num.min(limits.max_num), limits.target_size.min(limits.max_size));
    let mut first = 0;
    for (index, moved) in homeless {
        let Some(piece) = shard_items.get(index) else { continue };
        let mut number = if moved { 0 } else { first };
        loop {
            let load = loads.entry(number).or_default();
            if fits(load, piece, base, num, size) && !(moved && load.released) {
                put(load, index, piece);
                break;
            }
            // The first shards that cannot take even a tiny object need not be tried again.
            if number == first && (load.members.len() >= num || base + load.size + TINY >= size) {
                first += 1;
            }
            number += 1;
        }
    }
    loads
        .into_iter()
        .filter(|(_, load)| !load.members.is_empty())
        .map(|(number, mut load)| {
            load.members.sort_unstable();
            Shard { name: names.numbered(number), members: load.members }
        })
        .collect()
}

/// No object is smaller: apiVersion, kind and a name.
const TINY: usize = 48;

/// KS-139: a shard stays strictly below the size limit unless it holds a single object.
fn fits(load: &Load, piece: &ShardItem, base: usize, num: usize, size: usize) -> bool {
    load.members.is_empty() || (base + load.size + piece.size < size && load.members.len() < num)
}

fn put(load: &mut Load, index: usize, piece: &ShardItem) {
    load.members.push(index);
    load.size += piece.size;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: Names<'static> = Names { binding: "b", binding_uid: "uid-b", wds: "wds1" };

    fn piece(name: &str, size: usize) -> ShardItem {
        let identity =
            Identity { group: String::new(), kind: "X".into(), namespace: String::new(), name: name.into() };
        ShardItem { identity: Arc::new(identity), uid: format!("uid-{name}"), size }
    }

    fn shard_items(list: &[(&str, usize)]) -> Vec<ShardItem> {
        list.iter().map(|(name, size)| piece(name, *size)).collect()
    }

    /// `0:a,b 1:c`
    fn render(shards: &[Shard], shard_items: &[ShardItem]) -> String {
        let one = |shard: &Shard| {
            let members: Vec<_> =
                shard.members.iter().map(|i| shard_items[*i].identity.name.as_str()).collect();
            format!("{}:{}", shard.name.rsplit('-').next().unwrap_or_default(), members.join(","))
        };
        shards.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    fn current(text: &str) -> BTreeMap<Arc<Identity>, usize> {
        text.split_whitespace()
            .flat_map(|shard| {
                let (number, members) = shard.split_once(':').expect("n:members");
                let number = number.parse().expect("a number");
                members.split(',').map(move |name| (piece(name, 0).identity, number)).collect::<Vec<_>>()
            })
            .collect()
    }

    #[test]
    fn ks_139_and_ks_142_packing_and_stickiness() {
        let cases = [
            ("all fit", "", vec![("a", 10), ("b", 10)], 9, 100, "0:a,b"),
            ("the number bounds", "", vec![("a", 1), ("b", 1), ("c", 1)], 2, 100, "0:a,b 1:c"),
            ("payload stays strictly below the size", "", vec![("a", 50), ("b", 50)], 9, 100, "0:a 1:b"),
            ("one byte less fits", "", vec![("a", 50), ("b", 49)], 9, 100, "0:a,b"),
            ("a single object may have exactly the size", "", vec![("a", 100), ("b", 1)], 9, 100, "0:a 1:b"),
            (
                "a small one fills a gap in front",
                "",
                vec![("a", 600), ("b", 600), ("c", 200)],
                9,
                1000,
                "0:a,c 1:b",
            ),
            ("objects keep their shard", "0:a 1:b", vec![("a", 1), ("b", 1)], 9, 100, "0:a 1:b"),
            (
                "an insertion shifts nobody",
                "0:b,c 1:d",
                vec![("a", 1), ("b", 1), ("c", 1), ("d", 1)],
                2,
                100,
                "0:b,c 1:a,d",
            ),
            (
                "a removal shifts nobody",
                "0:a,b 1:c,d",
                vec![("b", 1), ("c", 1), ("d", 1)],
                2,
                100,
                "0:b 1:c,d",
            ),
            ("an emptied shard vanishes", "0:a 1:b", vec![("b", 1)], 2, 100, "1:b"),
            (
                "the lowest free number comes first",
                "1:b",
                vec![("b", 1), ("c", 1), ("d", 1)],
                1 + 1,
                100,
                "0:c,d 1:b",
            ),
            ("what grew out of its shard moves", "0:a,b", vec![("a", 60), ("b", 60)], 9, 100, "0:a 1:b"),
            (
                "a smaller number of objects splits",
                "0:a,b,c",
                vec![("a", 1), ("b", 1), ("c", 1)],
                2,
                100,
                "0:a,b 1:c",
            ),
        ];
        for (why, now, list, num, size, expected) in cases {
            let shard_items = shard_items(&list);
            let shards = assign(&shard_items, &current(now), &NAMES, &Limits::hard(num, size), 0);
            assert_eq!(render(&shards, &shard_items), expected, "{why}");
        }
    }

    #[test]
    fn ks_140_counts_of_the_examples() {
        let ten: Vec<ShardItem> = (0..10).map(|i| piece(&format!("d{i}"), 600)).collect();
        let count = |num, size| assign(&ten, &BTreeMap::new(), &NAMES, &Limits::hard(num, size), 0).len();
        assert_eq!(count(2, 512_000), 5);
        assert_eq!(count(512_000, 1000), 10);
        assert_eq!(count(1, 512_000), 10);
    }

    #[test]
    fn ks_098_names_of_both_kinds() {
        let two = shard_items(&[("a", 1), ("b", 1)]);
        let names = |num| -> Vec<String> {
            assign(&two, &BTreeMap::new(), &NAMES, &Limits::hard(num, 100), 0)
                .into_iter()
                .map(|s| s.name)
                .collect()
        };
        assert_eq!(names(1), ["uid-b-wds1-uid-a", "uid-b-wds1-uid-b"]);
        assert_eq!(names(2), ["b-wds1-0"]);
        for (name, number) in [
            ("b-wds1-12", Some(12)),
            ("b-wds1-012", None),
            ("b-wds1-", None),
            ("c-wds1-1", None),
            ("b-wds1-1-2", None),
        ] {
            assert_eq!(NAMES.number(name), number, "{name}");
        }
    }

    #[test]
    fn ks_099_names_that_cannot_be_are_reported() {
        let long = "x".repeat(64);
        let limits = Limits::default();
        assert_eq!(NAMES.problem(&limits), None);
        assert!(Names { binding: &long, ..NAMES }.problem(&limits).is_some_and(|p| p.contains("63")));
        assert!(Names { wds: &long, ..NAMES }.problem(&limits).is_some_and(|p| p.contains("63")));
    }

    #[test]
    fn the_soft_target_bounds_new_objects_only() {
        let many: Vec<ShardItem> = (0..1000).map(|i| piece(&format!("c{i}"), 1200)).collect();
        let limits = Limits::default();
        let shards = assign(&many, &BTreeMap::new(), &NAMES, &limits, 50);
        assert!(shards.iter().all(|s| s.members.len() * 1200 < limits.target_size), "small rewrites");
        assert!((15..40).contains(&shards.len()), "few envelopes: {}", shards.len());
        let all_in_one: BTreeMap<_, _> = many.iter().take(300).map(|p| (p.identity.clone(), 0)).collect();
        let kept = assign(&many[..300], &all_in_one, &NAMES, &limits, 50);
        assert_eq!(kept.len(), 1, "a large shard from elsewhere is not torn apart");
    }

    fn any_now() -> impl Strategy<Value = (Vec<ShardItem>, BTreeMap<Arc<Identity>, usize>, Limits)> {
        let object = (0..40usize, 1..120usize, proptest::option::of(0..6usize));
        (proptest::collection::vec(object, 0..40), 2..6usize, 100..300usize).prop_map(|(list, num, size)| {
            let mut seen = std::collections::BTreeSet::new();
            let (mut all, mut now) = (Vec::new(), BTreeMap::new());
            for (name, bytes, shard) in list {
                let piece = piece(&name.to_string(), bytes.min(size));
                if seen.insert(name) {
                    shard.map(|shard| now.insert(piece.identity.clone(), shard));
                    all.push(piece);
                }
            }
            (all, now, Limits::hard(num, size))
        })
    }

    proptest! {
        /// KS-076, KS-139: every object exactly once, limits kept, no empty envelope.
        #[test]
        fn ks_139_partition((all, now, limits) in any_now()) {
            let shards = assign(&all, &now, &NAMES, &limits, 0);
            let mut members: Vec<usize> = shards.iter().flat_map(|s| s.members.clone()).collect();
            members.sort_unstable();
            prop_assert_eq!(members, (0..all.len()).collect::<Vec<_>>());
            for shard in &shards {
                let size: usize = shard.members.iter().map(|i| all[*i].size).sum();
                prop_assert!(!shard.members.is_empty());
                prop_assert!(shard.members.len() <= limits.max_num);
                prop_assert!(size < limits.max_size || shard.members.len() == 1);
            }
        }

        /// KS-142, KS-078: a second run moves nothing, nor does an added or a removed object.
        #[test]
        fn ks_142_sticky((mut all, now, limits) in any_now(), gone in 0..40usize) {
            let shards = assign(&all, &now, &NAMES, &limits, 0);
            let home = |shards: &[Shard], all: &[ShardItem]| -> BTreeMap<Arc<Identity>, usize> {
                shards.iter().flat_map(|s| s.members.iter().map(|i| {
                    (all[*i].identity.clone(), NAMES.number(&s.name).expect("numbered"))
                }).collect::<Vec<_>>()).collect()
            };
            let settled = home(&shards, &all);
            prop_assert_eq!(&assign(&all, &settled, &NAMES, &limits, 0), &shards);
            if gone < all.len() { all.remove(gone); }
            all.insert(0, piece("new", 1));
            let after = home(&assign(&all, &settled, &NAMES, &limits, 0), &all);
            for (identity, number) in &after {
                prop_assert!(settled.get(identity).is_none_or(|old| old == number));
            }
        }
    }
}
