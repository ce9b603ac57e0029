//! Reads one file: gives its records, and what is damaged between them.

use super::damage::Damage;
use super::format::{
    FILE_HEADER, GROUP_HEADER, GroupHeader, RECORD_HEADER, RecordAt, RecordHeader, Seed, group_at,
    next_group, record_at,
};

pub(crate) enum Found<'a> {
    Record(RecordHeader, &'a [u8]),
    Damage(Damage),
}

/// Where the groups of a file end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// Behind the last group.
    pub(crate) offset: usize,
    /// Sequence of the group that would come next.
    pub(crate) next: u64,
    /// Something other than zeros follows.
    pub(crate) torn: bool,
}

pub(crate) struct Scanner<'a, F> {
    pub(crate) seed: Seed,
    pub(crate) file: &'a [u8],
    pub(crate) each: F,
}

impl<'a, F: FnMut(Found<'_>)> Scanner<'a, F> {
    /// Reads all groups from `next` on, up to the end of the file or the first place behind which no group follows.
    /// A group that is not whole although another follows it was acknowledged: the one that follows was begun only then.
    pub(crate) fn groups(&mut self, mut next: u64) -> End {
        let mut at = FILE_HEADER.min(self.file.len());
        let mut whole = Vec::new();
        loop {
            if let Some(end) = self.whole_group(at, next, &mut whole) {
                for (header, body) in whole.drain(..) {
                    (self.each)(Found::Record(header, body));
                }
                (at, next) = (end, next + 1);
                continue;
            }
            let Some((follower, group)) = self.follower(at, next) else {
                return End { offset: at, next, torn: !is_zero(self.file.get(at..).unwrap_or_default()) };
            };
            self.salvage(at, follower, next, group.sequence.saturating_sub(1));
            (at, next) = (follower, group.sequence);
        }
    }

    /// Gives the whole records between two places as those of groups with these sequences, the rest as damage.
    pub(crate) fn salvage(&mut self, from: usize, to: usize, first: u64, last: u64) {
        // A group's header is not lost data by itself; what follows it says what is.
        let known = group_at(self.seed, self.file, from).filter(|group| group.sequence == first);
        let start = match known {
            Some(_) => from + GROUP_HEADER,
            None => from,
        };
        let before = self.records(start, to.max(start), first, last);
        if before == 0 && start >= to {
            let what = if first == last { "a group".into() } else { format!("groups {first} to {last}") };
            self.damage(from, to.saturating_sub(from), None, format!("{what} is missing"));
        }
    }

    /// Gives records from `at` to `end`, those that are not whole as damage. Returns how many it gave.
    fn records(&mut self, mut at: usize, end: usize, first: u64, last: u64) -> usize {
        let mut sequence = first;
        let mut count = 0;
        while at < end {
            count += 1;
            match record_at(self.seed, self.file, at, end, sequence) {
                RecordAt::Whole(header, body) => {
                    (self.each)(Found::Record(header, body));
                    at += RECORD_HEADER + header.length;
                }
                RecordAt::Body(header) => {
                    let length = (RECORD_HEADER + header.length).min(end - at);
                    let record = Some((header.space, header.revision));
                    self.damage(at, length, record, "it does not match its checksum".into());
                    at += length;
                }
                RecordAt::Nothing => {
                    let (follower, its) =
                        self.next_record(at + 1, end, sequence, last).unwrap_or((end, last));
                    self.damage(at, follower - at, None, "the bytes make no sense".into());
                    (at, sequence) = (follower, its);
                }
            }
        }
        count
    }

    fn damage(&mut self, offset: usize, length: usize, record: Option<(u32, u64)>, what: String) {
        (self.each)(Found::Damage(Damage { offset, length, record, what }));
    }

    /// The records of the group with this sequence, and where it ends, if all of it is there.
    fn whole_group(
        &self,
        at: usize,
        sequence: u64,
        out: &mut Vec<(RecordHeader, &'a [u8])>,
    ) -> Option<usize> {
        out.clear();
        let group = group_at(self.seed, self.file, at).filter(|group| group.sequence == sequence)?;
        let end = (at + GROUP_HEADER).checked_add(group.length).filter(|end| *end <= self.file.len())?;
        let mut place = at + GROUP_HEADER;
        while place < end {
            let RecordAt::Whole(header, body) = record_at(self.seed, self.file, place, end, sequence) else {
                return None;
            };
            place += RECORD_HEADER + header.length;
            out.push((header, body));
        }
        (out.len() as u64 == u64::from(group.records)).then_some(end)
    }

    /// The next group that is none of before.
    fn follower(&self, at: usize, next: u64) -> Option<(usize, GroupHeader)> {
        let mut from = at;
        loop {
            let (found, group) = next_group(self.seed, self.file, from)?;
            // The group itself, when its records are not whole, is no follower of itself.
            if group.sequence > next {
                return Some((found, group));
            }
            from = found + 1;
        }
    }

    fn next_record(&self, from: usize, end: usize, first: u64, last: u64) -> Option<(usize, u64)> {
        (from..end.saturating_sub(RECORD_HEADER - 1)).find_map(|at| {
            // Cheap to see for nearly all places: a kind and three zeros.
            let plausible = matches!(self.file.get(at..at + 4), Some([1..=5, 0, 0, 0]));
            let found = |sequence: &u64| {
                !matches!(record_at(self.seed, self.file, at, end, *sequence), RecordAt::Nothing)
            };
            let sequence = plausible.then(|| (first..=last).find(found)).flatten()?;
            Some((at, sequence))
        })
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|chunk| ZEROS.starts_with(chunk))
}
