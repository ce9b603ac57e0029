//! The order in which the content of a leaving cluster's mailbox is deleted (OCM-059). Pure.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time},
    jiff::Timestamp,
};

/// Annotation with a number from 0 to 100; lower numbers are deleted first.
pub const PRIORITY: &str = "open-cluster-management.io/cleanup-priority";

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Delete these objects of the resource with this index, of which as many remain, then look again.
    Delete { resource: usize, names: Vec<String>, remaining: usize },
    /// Wait until the remaining objects of a resource are gone; `pending` of them have finalizers.
    Wait { resource: usize, remaining: usize, pending: usize },
    /// Nothing is left.
    Done,
}

/// Returns the next step for the remaining objects, given by resource in order of deletion. A resource is
/// deleted when nothing of the previous ones is left, and within it the objects of the lowest priority first.
pub fn next(resources: &[Vec<&ObjectMeta>]) -> Step {
    let Some((resource, left)) = resources.iter().enumerate().find(|(_, left)| !left.is_empty()) else {
        return Step::Done;
    };
    let first = left.iter().map(|object| priority(object)).min().unwrap_or_default();
    let doomed: Vec<String> = left
        .iter()
        .filter(|object| priority(object) == first && object.deletion_timestamp.is_none())
        .filter_map(|object| object.name.clone())
        .collect();
    if !doomed.is_empty() {
        return Step::Delete { resource, names: doomed, remaining: left.len() };
    }
    let pending = left.iter().filter(|o| o.deletion_timestamp.is_some()).count();
    Step::Wait { resource, remaining: left.len(), pending }
}

fn priority(object: &ObjectMeta) -> u8 {
    let said = object.annotations.as_ref().and_then(|all| all.get(PRIORITY));
    said.and_then(|text| text.parse::<u8>().ok()).filter(|n| *n <= 100).unwrap_or(0)
}

/// The condition `Deleting`; `left` is plural name, remaining and pending objects.
pub fn deleting(left: Option<(&str, usize, usize)>, now: Timestamp) -> Condition {
    let (status, reason, message) = match left {
        Some((plural, remaining, pending)) => (
            "False",
            "ResourceRemaining",
            // OCM's text has this spelling.
            format!(
                "The resource {plural} is remaning, the remaining count is {remaining}, the finalizer pending count is {pending}"
            ),
        ),
        None => ("True", "NoResource", "No cleaned resource in cluster ns.".to_owned()),
    };
    Condition {
        type_: "Deleting".into(),
        status: status.into(),
        reason: reason.into(),
        message,
        observed_generation: None,
        last_transition_time: Time(now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, priority: &str, going: bool) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.into()),
            annotations: (!priority.is_empty()).then(|| [(PRIORITY.to_owned(), priority.to_owned())].into()),
            deletion_timestamp: going.then_some(Time(Timestamp::UNIX_EPOCH)),
            ..ObjectMeta::default()
        }
    }

    /// OCM-A-27: add-ons first, then works by priority; an invalid priority counts as 0.
    #[test]
    fn ocm_059_the_order_of_deletion() {
        let addon = |going| object("addon1", "", going);
        let works = |a, b, c| [object("w1", "", a), object("w2", "100", c), object("w3", "20", b)];
        let delete =
            |resource, name: &str, remaining| Step::Delete { resource, names: vec![name.into()], remaining };
        let all = works(false, false, false);
        assert_eq!(next(&[vec![&addon(false)], all.iter().collect()]), delete(0, "addon1", 1));
        assert_eq!(
            next(&[vec![&addon(true)], all.iter().collect()]),
            Step::Wait { resource: 0, remaining: 1, pending: 1 }
        );
        assert_eq!(next(&[vec![], all.iter().collect()]), delete(1, "w1", 3));
        let going = works(true, false, false);
        assert_eq!(
            next(&[vec![], going.iter().collect()]),
            Step::Wait { resource: 1, remaining: 3, pending: 1 }
        );
        assert_eq!(next(&[vec![], going[1..].iter().collect()]), delete(1, "w3", 2));
        assert_eq!(next(&[vec![], vec![&going[1]]]), delete(1, "w2", 1));
        assert_eq!(next(&[vec![], vec![]]), Step::Done);
        for odd in ["-1", "101", "x", "1.5"] {
            assert_eq!(priority(&object("w", odd, false)), 0);
        }
    }

    #[test]
    fn ocm_059_what_remains_is_said() {
        assert_eq!(
            deleting(Some(("manifestworks", 2, 1)), Timestamp::UNIX_EPOCH).message,
            "The resource manifestworks is remaning, the remaining count is 2, the finalizer pending count is 1"
        );
        assert_eq!(deleting(None, Timestamp::UNIX_EPOCH).reason, "NoResource");
    }
}
