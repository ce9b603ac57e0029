//! Decides whether an object matches a policy (KS-040 … KS-052).

use std::collections::BTreeMap;

use super::{
    modulation::Modulation,
    policy::{Clause, Selectors},
};
use crate::identity::ObjectId;

/// Labels of an object.
pub type Labels = BTreeMap<Box<str>, Box<str>>;

/// Returns the union of the modulations of all clauses that match the object; `None` if no clause matches.
///
/// `namespace` returns the labels of a Namespace, and `None` if there is no such Namespace (KS-048). Cost:
/// one look at each clause.
pub fn matching<'a>(
    clauses: &[Clause],
    id: &ObjectId,
    labels: &Labels,
    namespace: impl Fn(&str) -> Option<&'a Labels>,
) -> Option<Modulation> {
    let mut sum: Option<Modulation> = None;
    for clause in clauses.iter().filter(|clause| matches(clause, id, labels, &namespace)) {
        sum.get_or_insert_default().merge(&clause.modulation);
    }
    sum
}

fn matches<'a>(
    clause: &Clause,
    id: &ObjectId,
    labels: &Labels,
    namespace: &impl Fn(&str) -> Option<&'a Labels>,
) -> bool {
    first_mismatch(clause, id, labels, namespace).is_none()
}

/// A criterion of a clause that an object does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// `apiGroup`.
    Group,
    /// `resources`.
    Resource,
    /// `namespaces`.
    Namespace,
    /// `objectNames`.
    Name,
    /// `objectSelectors`.
    Labels,
    /// `namespaceSelectors`: the Namespace has other labels.
    NamespaceLabels,
    /// `namespaceSelectors`: the object is in no existing Namespace.
    NoNamespace,
}

/// Returns the first criterion of a clause that the object does not meet; `None` if the clause matches.
pub fn first_mismatch<'a>(
    clause: &Clause,
    id: &ObjectId,
    labels: &Labels,
    namespace: &impl Fn(&str) -> Option<&'a Labels>,
) -> Option<Mismatch> {
    let tests = [
        (Mismatch::Group, clause.group.as_ref().is_none_or(|group| *group == id.resource().group)),
        (Mismatch::Resource, clause.resources.has(&id.resource().plural)),
        (Mismatch::Namespace, clause.namespaces.has(id.namespace())),
        (Mismatch::Name, clause.names.has(id.name())),
        (Mismatch::Labels, any(&clause.objects, Some(labels))),
    ];
    if let Some((miss, _)) = tests.into_iter().find(|(_, met)| !met) {
        return Some(miss);
    }
    if clause.namespace_labels == Selectors::Any {
        return None;
    }
    match namespace(id.namespace()) {
        None => Some(Mismatch::NoNamespace),
        labels if any(&clause.namespace_labels, labels) => None,
        Some(_) => Some(Mismatch::NamespaceLabels),
    }
}

fn any(selectors: &Selectors, labels: Option<&Labels>) -> bool {
    match (selectors, labels) {
        (Selectors::Any, _) => true,
        (Selectors::Of(_), None) => false,
        (Selectors::Of(list), Some(labels)) => list.iter().any(|selector| selects(selector, labels)),
    }
}

/// Returns whether a selector matches these labels.
pub fn selects(selector: &machinery::selector::LabelSelector, labels: &Labels) -> bool {
    selector.matches(|key| labels.get(key).map(|value| &**value))
}
