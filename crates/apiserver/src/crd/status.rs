//! Conditions and accepted names of CustomResourceDefinitions (spec 6.2), as pure functions.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::kinds::value::{at, has, list, put, set_at, text};

/// A condition, without its time.
pub(super) struct Condition {
    pub kind: &'static str,
    pub status: &'static str,
    pub reason: &'static str,
    pub message: &'static str,
}

pub(super) const PENDING: Condition = Condition {
    kind: "Terminating",
    status: "True",
    reason: "InstanceDeletionPending",
    message: "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
};

pub(super) const IN_PROGRESS: Condition = Condition {
    kind: "Terminating",
    status: "True",
    reason: "InstanceDeletionInProgress",
    message: "CustomResource deletion is in progress",
};

pub(super) const COMPLETED: Condition = Condition {
    kind: "Terminating",
    status: "False",
    reason: "InstanceDeletionCompleted",
    message: "removed all instances",
};

const ESTABLISHED: Condition = Condition {
    kind: "Established",
    status: "True",
    reason: "InitialNamesAccepted",
    message: "the initial names have been accepted",
};

const NOT_ACCEPTED: Condition = Condition {
    kind: "Established",
    status: "False",
    reason: "NotAccepted",
    message: "not all names are accepted",
};

/// Whether a condition has status `True`.
pub(super) fn is_true(crd: &Value, kind: &str) -> bool {
    list(crd, "status.conditions").iter().any(|c| text(c, "type") == kind && text(c, "status") == "True")
}

/// Sets a condition in place or appends it. The time changes only with the status.
pub(super) fn set(crd: &mut Value, now: &str, condition: &Condition) {
    set_with(crd, now, condition.kind, condition.status, condition.reason, condition.message);
}

fn set_with(crd: &mut Value, now: &str, kind: &str, status: &str, reason: &str, message: &str) {
    let mut conditions = list(crd, "status.conditions").to_vec();
    let since = machinery::conditions::since(&conditions, kind, status, now);
    let condition = json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since});
    machinery::conditions::put(&mut conditions, condition);
    set_at(crd, "status", "conditions", conditions);
}

/// Names that other definitions of the group have been granted.
#[derive(Default)]
pub(super) struct GrantedNames {
    resources: BTreeSet<String>,
    kinds: BTreeSet<String>,
}

impl GrantedNames {
    /// Adds the names that `crd` has been granted.
    pub(super) fn add(&mut self, crd: &Value) {
        let names = at(crd, "status.acceptedNames");
        let add = |set: &mut BTreeSet<String>, name: &str| {
            if !name.is_empty() {
                set.insert(name.to_owned());
            }
        };
        add(&mut self.resources, text(names, "plural"));
        add(&mut self.resources, text(names, "singular"));
        for short in list(names, "shortNames").iter().filter_map(Value::as_str) {
            add(&mut self.resources, short);
        }
        add(&mut self.kinds, text(names, "kind"));
        add(&mut self.kinds, text(names, "listKind"));
    }
}

/// Decides names and conditions of a definition that is not being deleted (AS-040). Granted names are kept; a name
/// that another definition has is not granted.
pub(super) fn decide(crd: &mut Value, taken: &GrantedNames, now: &str) {
    let wanted = at(crd, "spec.names").clone();
    let mut granted = at(crd, "status.acceptedNames").clone();
    let mut conflict: Option<(&'static str, String)> = None;
    let free = |name: &str, held: &str, used: &BTreeSet<String>| {
        if name == held || !used.contains(name) {
            Ok(())
        } else {
            Err(format!("\"{name}\" is already in use"))
        }
    };
    for (key, used, reason) in [
        ("plural", &taken.resources, "PluralConflict"),
        ("singular", &taken.resources, "SingularConflict"),
        ("kind", &taken.kinds, "KindConflict"),
        ("listKind", &taken.kinds, "ListKindConflict"),
    ] {
        match free(text(&wanted, key), text(&granted, key), used) {
            Ok(()) => put(&mut granted, key, at(&wanted, key)),
            Err(message) => conflict = Some((reason, message)),
        }
    }
    let held: BTreeSet<&str> = list(&granted, "shortNames").iter().filter_map(Value::as_str).collect();
    let clashes: Vec<String> = list(&wanted, "shortNames")
        .iter()
        .filter_map(Value::as_str)
        .filter(|name| !held.contains(name))
        .filter_map(|name| free(name, "", &taken.resources).err())
        .collect();
    if clashes.is_empty() {
        put(&mut granted, "shortNames", at(&wanted, "shortNames"));
    } else {
        let message = if clashes.len() == 1 { clashes.concat() } else { format!("[{}]", clashes.join(", ")) };
        conflict = Some(("ShortNamesConflict", message));
    }
    put(&mut granted, "categories", at(&wanted, "categories"));
    set_at(crd, "status", "acceptedNames", granted);
    let accepted = conflict.is_none();
    match conflict {
        None => set_with(crd, now, "NamesAccepted", "True", "NoConflicts", "no conflicts found"),
        Some((reason, message)) => set_with(crd, now, "NamesAccepted", "False", reason, &message),
    }
    // An established definition stays established.
    if !is_true(crd, "Established") {
        set(crd, now, if accepted { &ESTABLISHED } else { &NOT_ACCEPTED });
    }
    approval(crd, now);
}

const APPROVAL: &str = "api-approved.kubernetes.io";

/// Whether the group belongs to the Kubernetes project.
pub(super) fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"].iter().any(|owner| group == *owner || group.ends_with(&format!(".{owner}")))
}

/// The meaning of the approval annotation.
pub(super) enum Approval {
    Missing,
    Invalid(String),
    Bypassed(String),
    Approved(String),
}

pub(super) fn approval_of(crd: &Value) -> Approval {
    let note = at(crd, "metadata.annotations").get(APPROVAL).and_then(Value::as_str).unwrap_or_default();
    if note.is_empty() {
        Approval::Missing
    } else if note.starts_with("unapproved") {
        Approval::Bypassed(note.into())
    } else if note.split_once("://").is_some_and(|(scheme, host)| !scheme.is_empty() && !host.is_empty()) {
        Approval::Approved(note.into())
    } else {
        Approval::Invalid(note.into())
    }
}

fn approval(crd: &mut Value, now: &str) {
    if !is_protected(text(crd, "spec.group")) {
        return;
    }
    const EXPLAINED: &str = "protected groups must have approval annotation \"api-approved.kubernetes.io\"";
    let (status, reason, message) = match approval_of(crd) {
        Approval::Approved(url) => ("True", "ApprovedAnnotation", format!("approved in {url}")),
        Approval::Bypassed(why) => ("False", "UnapprovedAnnotation", format!("not approved: \"{why}\"")),
        Approval::Missing => (
            "False",
            "MissingAnnotation",
            format!("{EXPLAINED}, see https://github.com/kubernetes/enhancements/pull/1111"),
        ),
        Approval::Invalid(_) => (
            "False",
            "InvalidAnnotation",
            format!(
                "{EXPLAINED} with either a URL or a reason starting with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111"
            ),
        ),
    };
    set_with(crd, now, "KubernetesAPIApprovalPolicyConformant", status, reason, &message);
}

/// Whether the resource is served.
pub(super) fn is_served(crd: &Value) -> bool {
    is_true(crd, "Established") && has(crd, "status.acceptedNames.plural")
}
