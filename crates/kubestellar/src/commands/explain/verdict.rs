//! Explains why an object is, or is not, in clusters. Pure: turns policies, labels and cells into text.

use std::collections::{BTreeMap, BTreeSet};

use apis::control::BindingPolicy;
use apis::ocm::ManagedCluster;
use controller_manager::binding::matching::{Labels, Mismatch, first_mismatch, selects};
use controller_manager::binding::policy::{Clause, Policy};
use controller_manager::identity::ObjectId;
use kube::core::PartialObjectMeta;
use kube::{Resource, ResourceExt};
use serde::Serialize;

use crate::commands::get::matrix::columns;
use crate::commands::get::picture::{Cell, Object, State};
use crate::printer::table;

/// The object as it is in its space.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Subject {
    #[serde(flatten)]
    pub(crate) object: Object,
    pub(crate) labels: BTreeMap<String, String>,
    /// Why no object of its kind is ever delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) excluded: Option<String>,
    pub(crate) deleting: bool,
}

/// The relation of one policy to the object.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Opinion {
    pub(crate) policy: String,
    pub(crate) matches: bool,
    /// One for each clause.
    pub(crate) clauses: Vec<ClauseOpinion>,
    /// Errors in the policy's status.
    pub(crate) errors: Vec<String>,
    /// Whether the policy's Binding lists the object.
    pub(crate) bound: bool,
    /// Whether the transport has acted on the Binding in its present form.
    pub(crate) current: bool,
    /// Clusters that the policy selects.
    pub(crate) clusters: Vec<String>,
    /// Clusters that it does not select.
    pub(crate) other_clusters: Vec<String>,
    pub(crate) deliveries: Vec<Cell>,
}

/// What one clause says about the object.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClauseOpinion {
    pub(crate) clause: String,
    pub(crate) matches: bool,
    /// The first criterion that is not met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// The explanation of one object.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    pub(crate) subject: Subject,
    pub(crate) policies: Vec<Opinion>,
}

/// Relates the policies to an object, matching policies first, without the states in clusters. Ignores policies and clusters that
/// are being deleted, as the controllers do.
pub(crate) fn opinions(
    policies: &[BindingPolicy],
    clusters: &[PartialObjectMeta<ManagedCluster>],
    id: &ObjectId,
    of_object: &Labels,
    of_namespace: Option<&Labels>,
) -> Vec<Opinion> {
    let clusters: BTreeMap<String, Labels> =
        staying(clusters).map(|it| (it.name_any(), labels(it.labels()))).collect();
    let opinion = |object: &BindingPolicy| {
        let policy = Policy::new(object);
        let clauses = judge_clauses(&policy, id, of_object, of_namespace);
        let (selected, other_clusters) = split_clusters(&policy, &clusters);
        Opinion {
            policy: object.name_any(),
            matches: clauses.iter().any(|it| it.matches),
            clauses,
            errors: object.status.as_ref().map(|it| it.errors.clone()).unwrap_or_default(),
            bound: false,
            current: false,
            clusters: selected,
            other_clusters,
            deliveries: Vec::new(),
        }
    };
    let mut opinions: Vec<_> = staying(policies).map(opinion).collect();
    opinions.sort_by(|a, b| (!a.matches, &a.policy).cmp(&(!b.matches, &b.policy)));
    opinions
}

fn staying<T: Resource>(all: &[T]) -> impl Iterator<Item = &T> {
    all.iter().filter(|it| it.meta().deletion_timestamp.is_none())
}

/// Reads labels, for comparison with policies.
pub(crate) fn labels(of: &BTreeMap<String, String>) -> Labels {
    of.iter().map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect()
}

/// Applies the clauses of a policy to an object.
fn judge_clauses(
    policy: &Policy,
    id: &ObjectId,
    labels: &Labels,
    namespace: Option<&Labels>,
) -> Vec<ClauseOpinion> {
    let judge = |(index, clause): (usize, &Clause)| {
        let miss = first_mismatch(clause, id, labels, &|_| namespace);
        ClauseOpinion {
            clause: format!("downsync[{index}]"),
            matches: miss.is_none(),
            reason: miss.map(|miss| reason(miss, clause, id)),
        }
    };
    policy.clauses.iter().enumerate().map(judge).collect()
}

/// Divides the clusters into those that a policy selects and those that it does not.
fn split_clusters(policy: &Policy, clusters: &BTreeMap<String, Labels>) -> (Vec<String>, Vec<String>) {
    let chosen = |labels: &Labels| policy.cluster_selectors.iter().any(|it| selects(it, labels));
    let (yes, no): (Vec<_>, Vec<_>) = clusters.iter().partition(|(_, labels)| chosen(labels));
    let names = |list: Vec<(&String, &Labels)>| list.into_iter().map(|(name, _)| name.clone()).collect();
    (names(yes), names(no))
}

fn reason(miss: Mismatch, clause: &Clause, id: &ObjectId) -> String {
    let namespace = id.namespace();
    match miss {
        Mismatch::Group => {
            let wanted = clause.group.as_deref().unwrap_or_default();
            format!("apiGroup is {wanted:?}, the object's is {:?}", &*id.resource().group)
        }
        Mismatch::Resource => format!("resources does not list {:?}", &*id.resource().plural),
        Mismatch::Namespace if namespace.is_empty() => {
            "namespaces is given, and the object is in no namespace".to_owned()
        }
        Mismatch::Namespace => format!("namespaces does not list {namespace:?}"),
        Mismatch::Name => format!("objectNames does not list {:?}", id.name()),
        Mismatch::Labels => "no member of objectSelectors matches its labels".to_owned(),
        Mismatch::NamespaceLabels => {
            format!("no member of namespaceSelectors matches the labels of Namespace {namespace}")
        }
        Mismatch::NoNamespace if namespace.is_empty() => {
            "namespaceSelectors is given, and the object is in no namespace".to_owned()
        }
        Mismatch::NoNamespace => {
            format!("namespaceSelectors is given, and there is no Namespace {namespace}")
        }
    }
}

impl Explanation {
    /// Returns whether it is applied in every cluster for which a policy selects it.
    pub(crate) fn is_delivered(&self) -> bool {
        let mut matching = self.policies.iter().filter(|it| it.matches);
        matching.all(|it| {
            it.bound
                && it.current
                && it.deliveries.iter().all(|cell| cell.state == State::Applied && !cell.held_back)
        })
    }

    /// The answer in one sentence.
    pub(crate) fn verdict(&self) -> String {
        let matching: Vec<_> = self.policies.iter().filter(|it| it.matches).collect();
        let clusters: Vec<_> = matching.iter().flat_map(|it| &it.deliveries).collect();
        if let Some(why) = &self.subject.excluded {
            return format!("It is delivered nowhere: {why}.");
        }
        if self.policies.is_empty() {
            return "It is delivered nowhere: there is no BindingPolicy.".to_owned();
        }
        if matching.is_empty() {
            return "It is delivered nowhere: no policy matches it.".to_owned();
        }
        if let Some(unbound) = matching.iter().find(|it| !it.bound) {
            return format!("The Binding of policy {} does not list it yet.", unbound.policy);
        }
        if let Some(late) = matching.iter().find(|it| !it.current) {
            return format!(
                "The transport has not acted on the Binding of policy {} in its present form.",
                late.policy
            );
        }
        if clusters.is_empty() {
            return "It is delivered nowhere: the policies that match it select no cluster.".to_owned();
        }
        let of = |wanted: &dyn Fn(State) -> bool| {
            let names = clusters.iter().filter(|cell| wanted(cell.state)).map(|cell| cell.cluster.as_str());
            names.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
        };
        let absent = of(&|state| !matches!(state, State::Applied | State::Behind));
        let behind = of(&|state| state == State::Behind);
        let mut sentences = Vec::new();
        if !absent.is_empty() {
            sentences.push(format!("It is not applied in {absent}."));
        }
        if !behind.is_empty() {
            sentences.push(format!("It is there in an older form in {behind}."));
        }
        if sentences.is_empty() {
            sentences.push(format!("It is applied in {}.", of(&|state| state == State::Applied)));
        }
        let held = clusters.iter().any(|cell| cell.state == State::Applied && cell.held_back);
        if held {
            sentences.push(
                "Nothing new is delivered at the moment: what is there may be an older form.".to_owned(),
            );
        }
        sentences.join(" ")
    }

    /// Formats it for people; `now` in seconds since 1970.
    pub(crate) fn text(&self, now: i64) -> String {
        let mut parts = vec![self.head(), self.opinions()];
        let rows: Vec<Vec<String>> = self
            .policies
            .iter()
            .flat_map(|it| {
                it.deliveries.iter().map(|cell| {
                    let mut line = columns(cell, now);
                    line.insert(1, it.policy.clone());
                    line
                })
            })
            .collect();
        if !rows.is_empty() {
            let header = ["CLUSTER", "POLICY", "APPLIED", "AVAILABLE", "REPORTED", "AGE", "MESSAGE"];
            parts.push(table(&header, &rows));
        }
        parts.push(self.verdict());
        parts.retain(|part| !part.is_empty());
        parts.join("\n\n")
    }

    fn head(&self) -> String {
        let subject = &self.subject;
        let pairs: Vec<_> = subject.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let labels = if pairs.is_empty() { "<none>".to_owned() } else { pairs.join(", ") };
        let mut head = format!("Object:   {}\nLabels:   {labels}", subject.object.label());
        if subject.deleting {
            head.push_str("\nDeleting: yes; it stays in the clusters until it is gone here");
        }
        head
    }

    fn opinions(&self) -> String {
        let mut lines = Vec::new();
        for it in &self.policies {
            let name = &it.policy;
            if !it.matches {
                lines.push(format!("Policy {name} does not match it:"));
                let whys = it.clauses.iter().map(|clause| {
                    format!("  {}: {}", clause.clause, clause.reason.as_deref().unwrap_or_default())
                });
                lines.extend(whys);
                if it.clauses.is_empty() {
                    lines.push("  spec.downsync is empty".to_owned());
                }
                continue;
            }
            let by: Vec<_> = it
                .clauses
                .iter()
                .filter(|clause| clause.matches)
                .map(|clause| clause.clause.as_str())
                .collect();
            lines.push(format!("Policy {name} matches it by {}:", by.join(", ")));
            lines.push(format!("  clusters selected: {}", list(&it.clusters)));
            if !it.other_clusters.is_empty() {
                lines.push(format!("  not selected: {}", list(&it.other_clusters)));
            }
            if !it.bound {
                lines.push("  its Binding does not list the object yet".to_owned());
            }
            lines.extend(it.errors.iter().map(|error| format!("  error: {error}")));
        }
        lines.join("\n")
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "<none>".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use controller_manager::identity::GroupResource;
    use serde_json::{Value, json};

    use super::*;

    fn policy(spec: Value) -> Policy {
        let object: BindingPolicy =
            serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
        Policy::new(&object)
    }

    fn pairs(of: &[(&str, &str)]) -> Labels {
        of.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    /// SP-120: the first test that fails, for each clause.
    #[test]
    fn sp_120_why_a_clause_does_not_match() {
        let id = ObjectId::new(Arc::new(GroupResource::new("apps", "deployments")), "shop", "web");
        let cases = [
            (json!({"apiGroup": ""}), Some("apiGroup is \"\", the object's is \"apps\"")),
            (json!({"resources": ["deployment"]}), Some("resources does not list \"deployments\"")),
            (json!({"namespaces": ["other"]}), Some("namespaces does not list \"shop\"")),
            (json!({"objectNames": ["w*"]}), Some("objectNames does not list \"web\"")),
            (
                json!({"objectSelectors": [{"matchLabels": {"app": "b"}}]}),
                Some("no member of objectSelectors matches its labels"),
            ),
            (
                json!({"namespaceSelectors": [{"matchLabels": {"team": "b"}}]}),
                Some("no member of namespaceSelectors matches the labels of Namespace shop"),
            ),
            (json!({"objectSelectors": [{"matchLabels": {"app": "a"}}]}), None),
        ];
        for (clause, expected) in cases {
            let policy = policy(json!({"downsync": [clause]}));
            let team = pairs(&[("team", "a")]);
            let said = judge_clauses(&policy, &id, &pairs(&[("app", "a")]), Some(&team));
            assert_eq!(said[0].reason.as_deref(), expected, "{clause}");
            assert_eq!(said[0].matches, expected.is_none());
        }
        let outside = policy(json!({"downsync": [{"namespaceSelectors": [{"matchLabels": {"a": "b"}}]}]}));
        let said = judge_clauses(&outside, &id, &Labels::new(), None);
        assert_eq!(
            said[0].reason.as_deref(),
            Some("namespaceSelectors is given, and there is no Namespace shop")
        );
    }

    #[test]
    fn sp_120_which_clusters() {
        let policy = policy(json!({"clusterSelectors": [{"matchLabels": {"site": "a"}}]}));
        let clusters = BTreeMap::from([
            ("atlas".to_owned(), pairs(&[("site", "a")])),
            ("boreas".to_owned(), pairs(&[("site", "b")])),
        ]);
        assert_eq!(split_clusters(&policy, &clusters), (vec!["atlas".to_owned()], vec!["boreas".to_owned()]));
    }

    /// SP-120: nothing new goes by a policy or to a cluster that is being deleted.
    #[test]
    fn sp_120_what_is_on_its_way_out_selects_nothing() {
        let id = ObjectId::new(Arc::new(GroupResource::new("apps", "deployments")), "shop", "web");
        let going = |name: &str, going: bool| json!({"name": name, "deletionTimestamp": going.then_some("2026-01-01T00:00:00Z")});
        let spec = json!({"clusterSelectors": [{}], "downsync": [{"apiGroup": "apps"}]});
        let policies: Vec<BindingPolicy> = [("other", false), ("old", true), ("new", false)]
            .map(|(name, out)| {
                let spec = if name == "other" { json!({"downsync": []}) } else { spec.clone() };
                serde_json::from_value(json!({"metadata": going(name, out), "spec": spec})).unwrap()
            })
            .into();
        let clusters: Vec<PartialObjectMeta<ManagedCluster>> = [("atlas", false), ("boreas", true)]
            .map(|(name, out)| serde_json::from_value(json!({"metadata": going(name, out)})).unwrap())
            .into();
        let told = opinions(&policies, &clusters, &id, &Labels::new(), None);
        let told: Vec<_> =
            told.iter().map(|it| (it.policy.as_str(), it.matches, it.clusters.len())).collect();
        assert_eq!(told, [("new", true, 1), ("other", false, 0)]);
    }

    fn opinion(matches: bool) -> Opinion {
        let reason = (!matches).then(|| "objectNames does not list \"web\"".to_owned());
        Opinion {
            policy: "shop".into(),
            matches,
            clauses: vec![ClauseOpinion { clause: "downsync[0]".into(), matches, reason }],
            errors: Vec::new(),
            bound: matches,
            current: matches,
            clusters: vec!["atlas".into()],
            other_clusters: vec!["boreas".into()],
            deliveries: Vec::new(),
        }
    }

    fn explanation(policies: Vec<Opinion>) -> Explanation {
        let object = Object {
            kind: "Deployment".into(),
            namespace: "shop".into(),
            name: "web".into(),
            ..Object::default()
        };
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        Explanation { subject: Subject { object, labels, excluded: None, deleting: false }, policies }
    }

    fn cell(state: State) -> Cell {
        Cell {
            cluster: "atlas".into(),
            state,
            manifest_work: None,
            held_back: false,
            available: None,
            reported: None,
            message: "forbidden".into(),
            since: None,
        }
    }

    /// SP-120: the whole text, and the verdicts.
    #[test]
    fn sp_120_text_and_verdict() {
        let mut yes = opinion(true);
        yes.deliveries.push(cell(State::Failed));
        let mut no = opinion(false);
        no.policy = "other".into();
        let told = explanation(vec![no, yes]);
        assert!(!told.is_delivered());
        let expected = "\
Object:   Deployment shop/web
Labels:   app=web

Policy other does not match it:
  downsync[0]: objectNames does not list \"web\"
Policy shop matches it by downsync[0]:
  clusters selected: atlas
  not selected: boreas

CLUSTER   POLICY   APPLIED   AVAILABLE   REPORTED   AGE      MESSAGE
atlas     shop     Failed    <none>      <none>     <none>   forbidden

It is not applied in atlas.";
        assert_eq!(told.text(0), expected);

        let mut done = opinion(true);
        done.deliveries.push(cell(State::Applied));
        let mut behind = opinion(true);
        behind.deliveries.push(cell(State::Behind));
        let mut held = opinion(true);
        held.deliveries.push(Cell { held_back: true, ..cell(State::Applied) });
        let mut both = opinion(true);
        both.deliveries =
            vec![cell(State::Waiting), Cell { cluster: "boreas".into(), ..cell(State::Behind) }];
        let mut unbound = opinion(true);
        unbound.bound = false;
        let mut late = opinion(true);
        late.deliveries.push(cell(State::Applied));
        late.current = false;
        let cases = [
            (vec![], "It is delivered nowhere: there is no BindingPolicy.", true),
            (vec![opinion(false)], "It is delivered nowhere: no policy matches it.", true),
            (
                vec![opinion(true)],
                "It is delivered nowhere: the policies that match it select no cluster.",
                true,
            ),
            (vec![unbound], "The Binding of policy shop does not list it yet.", false),
            (
                vec![late],
                "The transport has not acted on the Binding of policy shop in its present form.",
                false,
            ),
            (vec![done], "It is applied in atlas.", true),
            (vec![behind], "It is there in an older form in atlas.", false),
            (
                vec![held],
                "It is applied in atlas. Nothing new is delivered at the moment: what is there may be an older form.",
                false,
            ),
            (vec![both], "It is not applied in atlas. It is there in an older form in boreas.", false),
        ];
        for (policies, verdict, delivered) in cases {
            let told = explanation(policies);
            assert_eq!((told.verdict().as_str(), told.is_delivered()), (verdict, delivered));
        }
        let mut never = explanation(vec![]);
        never.subject.excluded = Some("objects of leases.coordination.k8s.io are never matched".into());
        assert!(never.verdict().contains("never matched") && never.is_delivered());
    }
}
