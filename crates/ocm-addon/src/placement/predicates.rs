//! The predicates of a Placement: selectors by labels, claims and CEL expressions.

use std::sync::Arc;

use apis::ocm::{ManagedCluster, Placement, cluster::ClusterSelector};
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use machinery::{
    cel::{Expression, Library, Scope, Value as Cel, Variable},
    selector::LabelSelector,
};
use serde_json::{Value, json};

use super::candidates::{FindScores, Misconfigured};

/// Name of the plugin in messages.
const PLUGIN: &str = "Predicate";
/// The variable of expressions.
const CLUSTER: &str = "managedCluster";
/// Least cost limit of all expressions of a Placement over all clusters: Kubernetes' limit for the expressions on one
/// object, which OCM allows for each cluster.
const BUDGET: u64 = 10_000_000;
/// The cost limit for each cluster, where there are so many that this is more.
const BUDGET_PER_CLUSTER: u64 = 10_000;

/// Selects clusters by labels and claims.
pub struct Selector {
    labels: LabelSelector,
    claims: LabelSelector,
}

impl Selector {
    /// Parses the selectors. `claims` is a selector without `matchLabels`.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn parse(labels: &meta::LabelSelector, claims: Option<&Value>) -> Result<Self, String> {
        let read = |object: &Value| {
            LabelSelector::from_object(object)
                .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
        };
        let labels = serde_json::to_value(labels).map_err(|error| error.to_string())?;
        Ok(Self { labels: read(&labels)?, claims: read(claims.unwrap_or(&json!({})))? })
    }

    /// Returns whether a cluster matches.
    pub fn matches(&self, cluster: &ManagedCluster) -> bool {
        let labels = cluster.metadata.labels.as_ref();
        let claims = cluster.status.as_ref().map(|s| s.cluster_claims.as_slice()).unwrap_or_default();
        let label = |key: &str| labels.and_then(|all| all.get(key)).map(String::as_str);
        let claim = |key: &str| claims.iter().find(|c| c.name == key).map(|c| c.value.as_str());
        self.labels.matches(label) && self.claims.matches(claim)
    }
}

/// A predicate, compiled.
struct Predicate {
    selector: Selector,
    expressions: Vec<Expression>,
}

/// The predicates of a Placement, compiled once.
pub struct Predicates {
    all: Vec<Predicate>,
    /// The functions of expressions; `None` if there are no expressions.
    library: Option<Library>,
}

/// Returns whether a Placement has CEL expressions.
pub fn has_expressions(placement: &Placement) -> bool {
    placement.spec.predicates.iter().any(|p| !expressions_of(&p.required_cluster_selector).is_empty())
}

fn expressions_of(selector: &ClusterSelector) -> &[String] {
    selector.cel_selector.as_ref().map(|cel| cel.cel_expressions.as_slice()).unwrap_or_default()
}

impl Predicates {
    /// Parses and compiles the predicates.
    ///
    /// # Errors
    ///
    /// A selector cannot be parsed, or an expression does not compile.
    pub fn compile(placement: &Placement, scores: &FindScores) -> Result<Self, Misconfigured> {
        let library = has_expressions(placement).then(|| library(scores.clone()));
        let refused = |why: String| Misconfigured::new(PLUGIN, why);
        let mut all = Vec::new();
        for predicate in &placement.spec.predicates {
            let asked = &predicate.required_cluster_selector;
            let selector =
                Selector::parse(&asked.label_selector, asked.claim_selector.as_ref()).map_err(refused)?;
            let mut expressions = Vec::new();
            for source in expressions_of(asked) {
                let Some(library) = &library else { continue };
                let compiled = Expression::compile_with(source, &[Variable::map(CLUSTER)], library);
                expressions.push(compiled.map_err(|error| refused(format!("compilation failed: {error}")))?);
            }
            all.push(Predicate { selector, expressions });
        }
        Ok(Self { all, library })
    }

    /// Returns the clusters that one of the predicates matches; all of them if there are no predicates. A cluster on
    /// which an expression fails does not match.
    ///
    /// # Errors
    ///
    /// The expressions cost too much.
    pub fn filter(
        &self,
        clusters: Vec<Arc<ManagedCluster>>,
    ) -> Result<Vec<Arc<ManagedCluster>>, Misconfigured> {
        if self.all.is_empty() {
            return Ok(clusters);
        }
        let total = BUDGET.max((clusters.len() as u64).saturating_mul(BUDGET_PER_CLUSTER));
        let (mut left, mut matching) = (total, Vec::new());
        for cluster in clusters {
            let mut holds = false;
            for predicate in &self.all {
                holds = holds
                    || (predicate.selector.matches(&cluster) && self.agree(predicate, &cluster, &mut left));
            }
            if left == 0 {
                let why = format!("the expressions cost more than {total} on all clusters together");
                return Err(Misconfigured::new(PLUGIN, why));
            }
            if holds {
                matching.push(cluster);
            }
        }
        Ok(matching)
    }

    /// Returns whether all expressions of a predicate are true for a cluster.
    fn agree(&self, predicate: &Predicate, cluster: &ManagedCluster, left: &mut u64) -> bool {
        let Some(library) = self.library.as_ref().filter(|_| !predicate.expressions.is_empty()) else {
            return true;
        };
        let Ok(object) = serde_json::to_value(cluster) else { return false };
        let mut scope = Scope::of(library);
        scope.bind(CLUSTER, &object);
        predicate
            .expressions
            .iter()
            .all(|expression| matches!(expression.evaluate_within(&scope, left), Ok(Cel::Bool(true))))
    }
}

/// The methods that OCM adds to CEL: `cluster.scores(name)` and `text.parseJSON()`.
fn library(scores: FindScores) -> Library {
    Library::default()
        .method("scores", move |cluster, args| {
            let (Cel::Map(cluster), [Cel::String(name)]) = (cluster, args) else {
                return Err("no such overload".into());
            };
            let namespace = cluster.pointer("/metadata/name").and_then(Value::as_str);
            let namespace = namespace.ok_or("failed to get cluster name")?;
            let found = scores(namespace, name)
                .ok_or_else(|| format!("failed to get score: {namespace}/{name} not found"))?;
            let items = found.status.iter().flat_map(|status| &status.scores);
            Ok(items.map(|score| json!({"name": score.name, "value": score.value})).collect())
        })
        .method("parseJSON", |text, args| {
            let (Cel::String(text), []) = (text, args) else { return Err("no such overload".into()) };
            serde_json::from_str(&text).map_err(|error| format!("failed to parse json: {error}"))
        })
}
