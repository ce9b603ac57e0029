//! The last write of one object by this process, until its watch has reported it (a mutation cache of one object).

use crate::ResourceVersion;

/// What this process wrote of one object and has not seen come back: its last write, with a value that its caller keeps
/// for it, and the last version that the watch reported.
///
/// The response to a write and the watch's report of it arrive in either order, and between them the watch may report
/// earlier states. The rules, which one table test states:
///
/// * A write is *pending* until the watch reports it, a later state, a state that cannot be compared, or a deletion.
/// * What the watch reports while an own write is pending is [`Report::Older`] if it precedes that write. Its reader
///   ignores it, and uses the written state instead.
/// * A write is not pending if the watch reported it, or a later state, before the response arrived.
/// * An object that the watch has never reported, and that is missing when the watch lists again, is deleted
///   ([`OwnWrite::is_of_unreported_object`]).
/// * Versions that cannot be compared ([`ResourceVersion`]): only the watch counts.
///
/// The order of the watch itself is always right, also if the server was restored from a backup and counts versions from
/// an earlier one. So the watch's last version counts here, and not its highest.
///
/// Two mechanisms of other components look alike and answer other questions. Metacontroller's `Cache::caught_up` waits
/// until the watch of a whole resource has passed a version, whatever object that is of, because a hook must be shown
/// its own results. The work agent's `Tracker` moves the records of several works along with each write of an object
/// that they share; what it asks of versions is their order alone.
#[derive(Clone, Debug)]
pub struct OwnWrite<T = ()> {
    /// The last version that the watch reported, including that of a deletion; empty for none.
    seen: ResourceVersion,
    pending: Option<(ResourceVersion, T)>,
}

/// What a state that the watch reports is, beside the pending write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The state before the pending write.
    Older,
    /// The pending write.
    Own,
    /// Anything else: a later state, or no write was pending.
    News,
}

impl<T> Default for OwnWrite<T> {
    fn default() -> Self {
        Self::since(ResourceVersion::default())
    }
}

impl<T> OwnWrite<T> {
    /// Nothing is written yet. The watch has reported `seen`; empty for nothing.
    pub fn since(seen: ResourceVersion) -> Self {
        Self { seen, pending: None }
    }

    /// The server answered a write with this version. Returns false if that is not the latest known state any more,
    /// because the watch has reported a later one, or because a later write was answered first.
    pub fn record(&mut self, written: ResourceVersion<&str>, value: T) -> bool {
        if written < self.seen || self.pending.as_ref().is_some_and(|(pending, _)| written < *pending) {
            return false;
        }
        let unseen = written > self.seen || self.seen.as_str().is_empty();
        self.pending = (unseen && written.is_comparable()).then(|| (written.to_owned(), value));
        true
    }

    /// The watch reports the object in this version.
    pub fn observe(&mut self, version: ResourceVersion<&str>) -> Report {
        self.seen = version.to_owned();
        let report = match &self.pending {
            Some((pending, _)) if version < *pending => return Report::Older,
            Some((pending, _)) if version == *pending => Report::Own,
            _ => Report::News,
        };
        self.pending = None;
        report
    }

    /// The watch reports that the object is deleted; `version` is that of the deletion.
    pub fn observe_deletion(&mut self, version: ResourceVersion<&str>) {
        self.seen = version.to_owned();
        self.pending = None;
    }

    /// Forgets the pending write, because a later write failed.
    pub fn forget(&mut self) {
        self.pending = None;
    }

    /// Returns whether the watch has not reported the last write yet.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Returns whether the write is pending and the watch has never reported the object. If the watch lists the
    /// collection again, and the object is not in the list, then it was deleted meanwhile, and no event will say so:
    /// the caller must treat it as deleted.
    pub fn is_of_unreported_object(&self) -> bool {
        self.is_pending() && self.seen.as_str().is_empty()
    }

    /// Returns whether a state of this version precedes the pending write.
    pub fn is_older(&self, version: ResourceVersion<&str>) -> bool {
        self.pending.as_ref().is_some_and(|(pending, _)| version < *pending)
    }

    /// Returns the value of the pending write.
    pub fn pending(&self) -> Option<&T> {
        self.pending.as_ref().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> ResourceVersion<&str> {
        ResourceVersion::new(text)
    }

    /// The rules of own writes, for all their users: KS-071 (Bindings and CombinedStatuses), KS-084 (wrapped objects),
    /// KS-055 (finalizers of policies), WorkStatuses.
    #[test]
    fn a_write_is_pending_until_the_watch_has_caught_up() {
        use Report::{News, Older, Own};
        // Seen before the write, written, then reported or deleted: what the report is, and whether the write is still
        // pending.
        for (seen, written, reported, report, pending) in [
            ("5", "7", "6", Some(Older), true),
            ("5", "7", "7", Some(Own), false),
            ("5", "7", "8", Some(News), false),
            ("5", "7", "odd", Some(News), false),
            ("5", "7", "", Some(News), false),
            ("5", "7", "6", None, false),
            ("5", "7", "9", None, false),
            // The watch was first.
            ("7", "7", "8", Some(News), false),
            ("8", "7", "8", Some(News), false),
            // The object is new to the watch.
            ("", "7", "7", Some(Own), false),
            ("", "7", "6", Some(Older), true),
            // Versions without an order.
            ("5", "odd", "odd", Some(News), false),
            ("odd", "7", "7", Some(News), false),
            ("", "odd", "even", Some(News), false),
            ("5", "0", "6", Some(News), false),
        ] {
            let case = format!("{seen:?}, {written:?}, {reported:?} {report:?}");
            let mut write = OwnWrite::since(version(seen).to_owned());
            write.record(version(written), ());
            match report {
                Some(report) => assert_eq!(write.observe(version(reported)), report, "{case}"),
                None => write.observe_deletion(version(reported)),
            }
            assert_eq!(write.is_pending(), pending, "{case}");
        }
    }

    /// Whether the answer to a write is the latest known state.
    #[test]
    fn an_answer_may_come_too_late() {
        for (seen, earlier, answered, latest, pending) in [
            ("5", None, "7", true, Some("7")),
            ("7", None, "7", true, None),
            ("8", None, "7", false, None),
            ("5", Some("7"), "9", true, Some("9")),
            ("5", Some("9"), "7", false, Some("9")),
            ("odd", None, "7", true, None),
            ("5", None, "odd", true, None),
            ("", None, "7", true, Some("7")),
        ] {
            let mut write = OwnWrite::since(version(seen).to_owned());
            if let Some(earlier) = earlier {
                write.record(version(earlier), earlier);
            }
            assert_eq!(write.record(version(answered), answered), latest, "{seen:?}, {answered:?}");
            assert_eq!(write.pending().copied(), pending, "{seen:?}, {answered:?}");
        }
    }

    /// An object that was made and deleted while the watch was interrupted is never reported.
    #[test]
    fn an_object_that_was_never_reported_is_known_as_such() {
        let mut write = OwnWrite::default();
        assert!(!write.is_of_unreported_object(), "nothing was written");
        write.record(version("7"), ());
        write.record(version("9"), ());
        assert!(write.is_of_unreported_object());
        write.observe(version("7"));
        assert!(write.is_pending() && !write.is_of_unreported_object());
    }

    /// After a restore from a backup the server counts from an earlier version: the next write counts as any other.
    #[test]
    fn a_restored_server_counts_from_an_earlier_version() {
        let mut write = OwnWrite::default();
        assert!(write.record(version("90"), ()));
        assert_eq!(write.observe(version("90")), Report::Own);
        assert_eq!(write.observe(version("40")), Report::News);
        assert!(write.record(version("41"), ()) && write.is_pending());
        assert_eq!(write.observe(version("41")), Report::Own);
    }
}
