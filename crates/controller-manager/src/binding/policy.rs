//! A BindingPolicy, parsed for matching.

use std::collections::BTreeSet;

use apis::control::{BindingPolicy, DownsyncPolicyClause};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector as SelectorObject;
use machinery::selector::{LabelOp, LabelSelector};

use super::modulation::Modulation;
use crate::identity::PolicyName;

/// A parsed policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Its name.
    pub name: PolicyName,
    /// Its UID. A policy of the same name with another UID is another policy (KS-058).
    pub uid: Box<str>,
    /// Its clauses.
    pub clauses: Vec<Clause>,
    /// A cluster is a destination if one of these matches its labels.
    pub cluster_selectors: Vec<LabelSelector>,
    /// Errors in the spec (KS-007, KS-047).
    pub errors: Vec<String>,
}

/// One clause, with parsed selectors.
#[derive(Clone, Debug, PartialEq)]
pub struct Clause {
    /// The API group; `None` for any (KS-041).
    pub group: Option<Box<str>>,
    /// Plural names.
    pub resources: Names,
    /// Namespaces.
    pub namespaces: Names,
    /// Object names.
    pub names: Names,
    /// Selectors on the object's labels.
    pub objects: Selectors,
    /// Selectors on the labels of the object's Namespace.
    pub namespace_labels: Selectors,
    /// How matched objects are delivered.
    pub modulation: Modulation,
}

/// A list of names in a clause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Names {
    /// The list is absent or contains `*` (KS-043).
    Any,
    /// Exactly these names.
    Of(BTreeSet<Box<str>>),
}

impl Names {
    fn new(list: Option<&[String]>) -> Self {
        match list {
            None | Some([]) => Self::Any,
            Some(names) if names.iter().any(|name| name == "*") => Self::Any,
            Some(names) => Self::Of(names.iter().map(|name| name.as_str().into()).collect()),
        }
    }

    /// Returns whether the list admits this name.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Of(names) => names.contains(name),
        }
    }
}

/// A list of selectors, one of which must match.
#[derive(Clone, Debug, PartialEq)]
pub enum Selectors {
    /// The list is absent or contains an empty selector.
    Any,
    /// One of these must match. Selectors that cannot be parsed are left out; they match nothing (KS-047).
    Of(Vec<LabelSelector>),
}

impl Selectors {
    fn new(list: Option<&[SelectorObject]>, path: &str, errors: &mut Vec<String>) -> Self {
        let list = list.unwrap_or_default();
        let read = read_all(list, path, errors);
        if list.is_empty() || read.iter().any(LabelSelector::is_everything) {
            Self::Any
        } else {
            Self::Of(read)
        }
    }

    /// Returns labels with values such that every match has one of them; `None` if there are no such labels.
    pub fn required_labels(&self) -> Option<Vec<(&str, &str)>> {
        let Self::Of(selectors) = self else { return None };
        let mut labels = Vec::new();
        for selector in selectors {
            let exact = |op| matches!(op, LabelOp::Equals | LabelOp::DoubleEquals | LabelOp::In);
            let requirement = selector.requirements().iter().find(|r| exact(r.op))?;
            labels.extend(requirement.values.iter().map(|value| (requirement.key.as_str(), value.as_str())));
        }
        Some(labels)
    }
}

fn read_all(list: &[SelectorObject], path: &str, errors: &mut Vec<String>) -> Vec<LabelSelector> {
    let mut read = Vec::new();
    for (index, object) in list.iter().enumerate() {
        let object = serde_json::to_value(object).unwrap_or_default();
        match LabelSelector::from_object(&object) {
            Ok(selector) => read.push(selector),
            Err(found) => {
                let text: Vec<_> = found.iter().map(ToString::to_string).collect();
                errors.push(format!("{path}[{index}]: {}", text.join(", ")));
            }
        }
    }
    read
}

impl Policy {
    /// Parses a policy. Parts that cannot be parsed are left out and reported in `errors`.
    pub fn new(object: &BindingPolicy) -> Self {
        let mut errors = Vec::new();
        let cluster_selectors = read_all(&object.spec.cluster_selectors, "clusterSelectors", &mut errors);
        let clauses: Vec<_> = object
            .spec
            .downsync
            .iter()
            .enumerate()
            .map(|(index, clause)| Clause::new(clause, index, &mut errors))
            .collect();
        for (index, _) in clauses.iter().enumerate().filter(|(_, clause)| clause.is_vacuous()) {
            errors.push(format!("downsync[{index}]: every criterion matches all objects"));
        }
        Self {
            name: object.metadata.name.as_deref().unwrap_or_default().into(),
            uid: object.metadata.uid.as_deref().unwrap_or_default().into(),
            clauses,
            cluster_selectors,
            errors,
        }
    }

    /// Returns whether any clause selects by labels of Namespaces.
    pub fn looks_at_namespaces(&self) -> bool {
        self.clauses.iter().any(|clause| clause.namespace_labels != Selectors::Any)
    }
}

impl Clause {
    fn new(clause: &DownsyncPolicyClause, index: usize, errors: &mut Vec<String>) -> Self {
        let at = |field: &str| format!("downsync[{index}].{field}");
        Self {
            group: clause.api_group.as_deref().map(Into::into),
            resources: Names::new(clause.resources.as_deref()),
            namespaces: Names::new(clause.namespaces.as_deref()),
            names: Names::new(clause.object_names.as_deref()),
            objects: Selectors::new(clause.object_selectors.as_deref(), &at("objectSelectors"), errors),
            namespace_labels: Selectors::new(
                clause.namespace_selectors.as_deref(),
                &at("namespaceSelectors"),
                errors,
            ),
            modulation: Modulation {
                create_only: clause.create_only,
                singleton: clause.want_singleton_reported_state,
                multi: clause.want_multi_wec_reported_state,
                collectors: clause.status_collectors.iter().map(|name| name.as_str().into()).collect(),
            },
        }
    }

    /// Returns whether the clause matches everything (KS-007).
    pub fn is_vacuous(&self) -> bool {
        self.group.is_none()
            && [&self.resources, &self.namespaces, &self.names].iter().all(|names| **names == Names::Any)
            && [&self.objects, &self.namespace_labels].iter().all(|list| **list == Selectors::Any)
    }
}
