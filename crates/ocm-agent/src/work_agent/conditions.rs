//! The conditions of a work's status (OCM-087 … OCM-091). Pure; the time is an argument.

use apis::ocm::work::{AppliedResource, ManifestCondition, ManifestResourceMeta};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::removal::Leftovers;

/// The Applied condition of one manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Applied {
    /// Applied.
    #[default]
    Complete,
    /// Not applied, with the reason.
    Failed(String),
    /// The fields to ignore could not be computed.
    IgnoreFields(String),
}

/// The Available condition of one manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Available {
    /// The object exists.
    Yes,
    /// The object does not exist.
    #[default]
    No,
    /// The cluster could not be asked.
    Unknown(String),
    /// The resource of the manifest is not known.
    Incomplete,
}

/// The result of reading feedback.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Feedback {
    /// No rules.
    #[default]
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

impl Applied {
    /// Why it was not applied; empty if it was.
    pub fn message(&self) -> &str {
        match self {
            Self::Complete => "",
            Self::Failed(message) | Self::IgnoreFields(message) => message,
        }
    }

    /// The condition on the manifest.
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
    /// The condition on the manifest.
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
    /// The condition on the manifest.
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

/// The work's Applied condition: False if one manifest is False. `forbidden` is the first resource that the
/// agent may not write.
pub fn work_applied(
    manifests: &[ManifestCondition],
    forbidden: Option<&str>,
    generation: i64,
    now: &Time,
) -> Condition {
    let failed = count(manifests, "Applied", "False") > 0;
    let (status, reason, message) = match (failed, forbidden) {
        (true, None) => ("False", "AppliedManifestWorkFailed", "Failed to apply manifest work".to_owned()),
        (true, Some(resource)) => (
            "False",
            "AppliedManifestWorkFailed",
            format!("Failed to apply manifest work: the work agent may not write {resource}"),
        ),
        (false, _) => ("True", "AppliedManifestWorkComplete", "Apply manifest work complete".to_owned()),
    };
    condition("Applied", status, reason, message, Some(generation), now)
}

/// The work's Applied condition if nothing could be applied.
pub fn work_failed(message: &str, generation: i64, now: &Time) -> Condition {
    let message = format!("Failed to apply manifest work: {message}");
    condition("Applied", "False", "AppliedManifestWorkFailed", message, Some(generation), now)
}

/// The work's Available condition (OCM-089).
pub fn work_available(manifests: &[ManifestCondition], generation: i64, now: &Time) -> Condition {
    let total = manifests.len();
    let (missing, unknown) =
        (count(manifests, "Available", "False"), count(manifests, "Available", "Unknown"));
    let (status, reason, message) = if missing > 0 {
        ("False", "ResourcesNotAvailable", format!("{missing} of {total} resources are not available"))
    } else if unknown > 0 {
        ("Unknown", "ResourcesStatusUnknown", format!("{unknown} of {total} resources have unknown status"))
    } else if count(manifests, "Available", "True") == 0 {
        // The trailing space is part of the text in OCM.
        ("Unknown", "ResourcesStatusUnknown", "cannot get any available resource ".to_owned())
    } else {
        ("True", "ResourcesAvailable", "All resources are available".to_owned())
    };
    condition("Available", status, reason, message, Some(generation), now)
}

/// The work's Deleting condition (OCM-095). It names up to five objects that delay the deletion, first those
/// that the cluster refuses to delete.
pub fn work_deleting(leftovers: &Leftovers, generation: i64, now: &Time) -> Condition {
    let mut message = "ManifestWork is being deleted".to_owned();
    let refused = leftovers.refused.iter().map(|(resource, why)| format!("{} ({why})", place(resource)));
    let names = some(refused.chain(leftovers.going.iter().map(place)));
    if !names.is_empty() {
        message += &format!("; waiting for {names}");
    }
    condition("Deleting", "True", "WorkDeleting", message, Some(generation), now)
}

/// Type of the condition of a work that released objects which the cluster refuses to delete (OCM-094).
pub const REFUSED: &str = "RemovalRefused";

/// Objects that the work no longer holds stay, because the cluster refuses to delete them.
pub fn removal_refused(leftovers: &Leftovers, generation: i64, now: &Time) -> Condition {
    let said = leftovers.refused.iter().map(|(resource, why)| format!("{}: {why}", place(resource)));
    let message = format!("Failed to remove {}", some(said));
    condition(REFUSED, "True", "AppliedResourceNotRemoved", message, Some(generation), now)
}

/// The first five names, and the number of the others.
fn some(mut names: impl Iterator<Item = String>) -> String {
    let mut shown: Vec<String> = names.by_ref().take(5).collect();
    let more = names.count();
    if more > 0 {
        shown.push(format!("and {more} more"));
    }
    shown.join(", ")
}

fn place(resource: &AppliedResource) -> String {
    let dot = if resource.group.is_empty() { "" } else { "." };
    let slash = if resource.namespace.is_empty() { "" } else { "/" };
    format!("{}{dot}{} {}{slash}{}", resource.resource, resource.group, resource.namespace, resource.name)
}

/// Type of the condition of a manifest whose object another work holds with different content (OCM-085).
pub const CONFLICTED: &str = "Conflicted";

/// Other works hold the manifest's object with different content (OCM-085).
pub fn conflicted(rivals: &[String], now: &Time) -> Condition {
    let message =
        format!("other ManifestWorks hold a different content for this object: {}", rivals.join(", "));
    condition(CONFLICTED, "True", "DifferentContent", message, None, now)
}

/// The feedback exceeded the size of a status.
pub fn truncated(now: &Time) -> Condition {
    let message = "the status was too large; the values of status feedback were left out".to_owned();
    condition(TRUNCATED, "True", "StatusTooLarge", message, None, now)
}

/// Type of the condition of a work whose status was truncated.
pub const TRUNCATED: &str = "StatusTruncated";

/// OCM-088: returns the entry of an earlier status for the same manifest.
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
    use ocm_shared::conditions::set;

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
        assert_eq!(
            work_applied(&of(&[Applied::Complete]), None, 3, &at(1)).reason,
            "AppliedManifestWorkComplete"
        );
        let mixed = work_applied(&of(&[Applied::Complete, failed]), None, 3, &at(1));
        assert_eq!((&*mixed.status, &*mixed.message), ("False", "Failed to apply manifest work"));
    }

    #[test]
    fn ocm_095_what_holds_up_a_deletion_is_named() {
        let resource = |group: &str, namespace: &str, name: &str| AppliedResource {
            group: group.into(),
            resource: "things".into(),
            namespace: namespace.into(),
            name: name.into(),
            ..AppliedResource::default()
        };
        let going = |all: &[AppliedResource]| Leftovers { going: all.to_vec(), refused: vec![] };
        assert_eq!(work_deleting(&going(&[]), 7, &at(1)).observed_generation, Some(7));
        assert_eq!(work_deleting(&going(&[]), 7, &at(1)).message, "ManifestWork is being deleted");
        let two = [resource("", "n", "a"), resource("sea.example", "", "b")];
        assert_eq!(
            work_deleting(&going(&two), 7, &at(1)).message,
            "ManifestWork is being deleted; waiting for things n/a, things.sea.example b"
        );
        let seven: Vec<_> = (0..7).map(|_| resource("", "", "c")).collect();
        assert!(work_deleting(&going(&seven), 7, &at(1)).message.ends_with("things c, and 2 more"));
        let refused = Leftovers { refused: vec![(two[1].clone(), "no".into())], going: vec![two[0].clone()] };
        assert_eq!(
            work_deleting(&refused, 7, &at(1)).message,
            "ManifestWork is being deleted; waiting for things.sea.example b (no), things n/a"
        );
        let said = removal_refused(&refused, 3, &at(1));
        assert_eq!((&*said.type_, &*said.status), ("RemovalRefused", "True"));
        assert_eq!(said.message, "Failed to remove things.sea.example b: no");
    }

    #[test]
    fn ocm_087_times_move_with_the_status_only() {
        let mut list = vec![];
        set(&mut list, Applied::Complete.condition(1, &at(1)));
        set(&mut list, Applied::Complete.condition(2, &at(3)));
        assert_eq!((list[0].last_transition_time.clone(), list[0].observed_generation), (at(1), Some(2)));
        set(&mut list, Applied::Failed(String::new()).condition(2, &at(5)));
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
