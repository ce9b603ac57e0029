//! What a work's status says (OCM-087 … OCM-091). Pure; the time comes as an argument.

use apis::ocm::work::{ManifestCondition, ManifestResourceMeta};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Applied condition of one manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Done.
    Complete,
    /// Not done, and why.
    Failed(String),
    /// The fields to ignore could not be computed.
    IgnoreFields(String),
}

/// Available condition of one manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Available {
    /// It exists.
    Yes,
    /// It does not exist.
    No,
    /// The cluster could not be asked.
    Unknown(String),
    /// Nobody knows what resource it is.
    Incomplete,
}

/// Outcome of reading feedback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Feedback {
    /// No rules.
    None,
    /// All values were read.
    Synced,
    /// Some could not be read.
    Failed(String),
}

fn condition(
    type_: &str,
    status: &str,
    reason: &str,
    message: String,
    generation: Option<i64>,
    now: &Time,
) -> Condition {
    Condition {
        type_: type_.into(),
        status: status.into(),
        reason: reason.into(),
        message,
        observed_generation: generation,
        last_transition_time: now.clone(),
    }
}

/// Puts `new` into the list: the time moves only with the status, or with the generation when `renew` (OCM-087).
pub fn set(list: &mut Vec<Condition>, mut new: Condition, renew: bool) {
    match list.iter_mut().find(|old| old.type_ == new.type_) {
        Some(old) => {
            let keep =
                old.status == new.status && !(renew && old.observed_generation != new.observed_generation);
            if keep {
                new.last_transition_time = old.last_transition_time.clone();
            }
            *old = new;
        }
        None => list.push(new),
    }
}

impl Applied {
    /// The condition of the manifest.
    pub fn condition(&self, generation: i64, now: &Time) -> Condition {
        let (status, reason, message) = match self {
            Self::Complete => ("True", "AppliedManifestComplete", "Apply manifest complete".to_owned()),
            Self::Failed(e) => ("False", "AppliedManifestFailed", format!("Failed to apply manifest: {e}")),
            Self::IgnoreFields(e) => (
                "False",
                "AppliedManifestSSAIgnoreFieldError",
                format!("Failed to process ignoreFields: {e}"),
            ),
        };
        condition("Applied", status, reason, message, Some(generation), now)
    }
}

impl Available {
    /// The condition of the manifest.
    pub fn condition(&self, now: &Time) -> Condition {
        let (status, reason, message) = match self {
            Self::Yes => ("True", "ResourceAvailable", "Resource is available".to_owned()),
            Self::No => ("False", "ResourceNotAvailable", "Resource is not available".to_owned()),
            Self::Unknown(e) => {
                ("Unknown", "FetchingResourceFailed", format!("Failed to fetch resource: {e}"))
            }
            Self::Incomplete => {
                ("Unknown", "IncompleteResourceMeta", "Resource meta is incomplete".to_owned())
            }
        };
        condition("Available", status, reason, message, None, now)
    }
}

impl Feedback {
    /// The condition of the manifest.
    pub fn condition(&self, now: &Time) -> Condition {
        let (status, reason, message) = match self {
            Self::None => ("True", "NoStatusFeedbackSynced", String::new()),
            Self::Synced => ("True", "StatusFeedbackSynced", String::new()),
            Self::Failed(e) => {
                ("False", "StatusFeedbackSyncFailed", format!("Sync status feedback failed with error {e}"))
            }
        };
        condition("StatusFeedbackSynced", status, reason, message, None, now)
    }
}

fn count(manifests: &[ManifestCondition], type_: &str, status: &str) -> usize {
    manifests.iter().filter(|m| m.conditions.iter().any(|c| c.type_ == type_ && c.status == status)).count()
}

/// Work-level Applied: False as soon as one manifest is.
pub fn work_applied(manifests: &[ManifestCondition], generation: i64, now: &Time) -> Condition {
    let (status, reason, message) = if count(manifests, "Applied", "False") > 0 {
        ("False", "AppliedManifestWorkFailed", "Failed to apply manifest work")
    } else {
        ("True", "AppliedManifestWorkComplete", "Apply manifest work complete")
    };
    condition("Applied", status, reason, message.into(), Some(generation), now)
}

/// Work-level Available (OCM-089).
pub fn work_available(manifests: &[ManifestCondition], generation: i64, now: &Time) -> Condition {
    let total = manifests.len();
    let (missing, unknown) =
        (count(manifests, "Available", "False"), count(manifests, "Available", "Unknown"));
    let (status, reason, message) = if missing > 0 {
        ("False", "ResourcesNotAvailable", format!("{missing} of {total} resources are not available"))
    } else if unknown > 0 {
        ("Unknown", "ResourcesStatusUnknown", format!("{unknown} of {total} resources have unknown status"))
    } else if count(manifests, "Available", "True") == 0 {
        // The blank at the end is part of the wire text.
        ("Unknown", "ResourcesStatusUnknown", "cannot get any available resource ".to_owned())
    } else {
        ("True", "ResourcesAvailable", "All resources are available".to_owned())
    };
    condition("Available", status, reason, message, Some(generation), now)
}

/// Work-level Deleting (OCM-095).
pub fn work_deleting(now: &Time) -> Condition {
    condition("Deleting", "True", "WorkDeleting", "ManifestWork is being deleted".into(), None, now)
}

/// OCM-088: the entry of an earlier status that speaks of the same manifest.
pub fn earlier<'a>(
    old: &'a [ManifestCondition],
    meta: &ManifestResourceMeta,
) -> Option<&'a ManifestCondition> {
    old.iter().find(|entry| entry.resource_meta == *meta).or_else(|| {
        let same = |entry: &&ManifestCondition| {
            ManifestResourceMeta { ordinal: meta.ordinal, ..entry.resource_meta.clone() } == *meta
        };
        let mut found = old.iter().filter(same);
        let first = found.next()?;
        found.next().is_none().then_some(first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::Timestamp;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).expect("in range"))
    }

    fn manifests(available: &[&str]) -> Vec<ManifestCondition> {
        let one = |word: &&str| {
            let state = match *word {
                "yes" => Available::Yes,
                "no" => Available::No,
                "unknown" => Available::Unknown("boom".into()),
                _ => Available::Incomplete,
            };
            ManifestCondition { conditions: vec![state.condition(&at(1))], ..ManifestCondition::default() }
        };
        available.iter().map(one).collect()
    }

    #[test]
    fn ocm_089_aggregation_of_availability() {
        let cases: [(&[&str], &str, &str, &str); 6] = [
            (&["yes", "yes"], "True", "ResourcesAvailable", "All resources are available"),
            (&["yes", "no", "no"], "False", "ResourcesNotAvailable", "2 of 3 resources are not available"),
            (&["no", "unknown"], "False", "ResourcesNotAvailable", "1 of 2 resources are not available"),
            (
                &["yes", "unknown", "?"],
                "Unknown",
                "ResourcesStatusUnknown",
                "2 of 3 resources have unknown status",
            ),
            (&["?"], "Unknown", "ResourcesStatusUnknown", "1 of 1 resources have unknown status"),
            (&[], "Unknown", "ResourcesStatusUnknown", "cannot get any available resource "),
        ];
        for (states, status, reason, message) in cases {
            let c = work_available(&manifests(states), 7, &at(1));
            assert_eq!(
                (&*c.status, &*c.reason, &*c.message, c.observed_generation),
                (status, reason, message, Some(7))
            );
        }
    }

    #[test]
    fn ocm_087_applied_texts_and_aggregation() {
        let of = |list: &[Applied]| -> Vec<ManifestCondition> {
            list.iter()
                .map(|a| ManifestCondition { conditions: vec![a.condition(3, &at(1))], ..Default::default() })
                .collect()
        };
        let failed = Applied::Failed("the server doesn't have a resource type \"Nothing\"".into());
        assert_eq!(
            failed.condition(3, &at(1)).message,
            "Failed to apply manifest: the server doesn't have a resource type \"Nothing\""
        );
        assert_eq!(work_applied(&of(&[Applied::Complete]), 3, &at(1)).reason, "AppliedManifestWorkComplete");
        let mixed = work_applied(&of(&[Applied::Complete, failed]), 3, &at(1));
        assert_eq!((&*mixed.status, &*mixed.message), ("False", "Failed to apply manifest work"));
    }

    #[test]
    fn ocm_087_times_move_with_status_or_with_the_generation_of_a_manifest() {
        let mut list = vec![];
        set(&mut list, Applied::Complete.condition(1, &at(1)), true);
        set(&mut list, Applied::Complete.condition(1, &at(2)), true);
        assert_eq!(list[0].last_transition_time, at(1), "nothing changed");
        set(&mut list, Applied::Complete.condition(2, &at(3)), true);
        assert_eq!(list[0].last_transition_time, at(3), "a new generation renews");
        set(&mut list, Applied::Complete.condition(3, &at(4)), false);
        assert_eq!((list[0].last_transition_time.clone(), list[0].observed_generation), (at(3), Some(3)));
        set(&mut list, Applied::Failed(String::new()).condition(3, &at(5)), false);
        assert_eq!(list[0].last_transition_time, at(5), "a new status");
    }

    #[test]
    fn ocm_088_entries_are_recognised_with_or_without_their_place() {
        let meta =
            |ordinal, name: &str| ManifestResourceMeta { ordinal, name: name.into(), ..Default::default() };
        let entry = |ordinal, name: &str| ManifestCondition {
            resource_meta: meta(ordinal, name),
            ..Default::default()
        };
        let old = [entry(0, "a"), entry(1, "b"), entry(2, "b")];
        assert_eq!(earlier(&old, &meta(0, "a")), Some(&old[0]));
        assert_eq!(earlier(&old, &meta(5, "a")), Some(&old[0]), "moved");
        assert_eq!(earlier(&old, &meta(1, "b")), Some(&old[1]));
        assert_eq!(earlier(&old, &meta(5, "b")), None, "ambiguous");
        assert_eq!(earlier(&old, &meta(0, "c")), None);
    }
}
