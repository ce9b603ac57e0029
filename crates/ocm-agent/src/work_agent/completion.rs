//! Conditions that users' rules derive from objects, and the resulting conditions of the work (OCM-091,
//! OCM-092). Pure, except for the thread that [`Rules::judge`] uses.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use apis::ocm::work::{COMPLETE, ConditionRule, ManifestCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use machinery::rules::{Answer, Query, QueryError};
use parking_lot::Mutex;
use serde_json::Value;

use super::merge::text;

/// Most steps that the rules of one manifest may take together: about a second at the worst.
const BUDGET: u64 = 1_000_000;
/// Most compiled expressions that are kept as recently used, and as many again that were not used recently.
const KEPT: usize = 512;
const KEPT_BYTES: usize = 256 << 10;
/// Longer expressions are not cached: they are rejected anyway.
const LONGEST: usize = 16 << 10;
const EVALUATED: &str = "ConditionRuleEvaluated";
const EXPRESSION_ERROR: &str = "ConditionRuleExpressionError";
const INTERNAL_ERROR: &str = "ConditionRuleInternalError";
const INVALID: &str = "ConditionRuleInvalid";
const AGGREGATED: &str = "ConditionRulesAggregated";
/// Reasons of conditions that rules created start with this.
const RULE_MADE: &str = "ConditionRule";

/// The result of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruled {
    /// Type of the condition.
    pub type_: String,
    /// True, False or Unknown.
    pub status: &'static str,
    /// Reason.
    pub reason: &'static str,
    /// Message.
    pub message: String,
}

impl Ruled {
    /// The condition on the manifest.
    pub fn condition(&self, generation: i64, now: &Time) -> Condition {
        Condition {
            type_: self.type_.clone(),
            status: self.status.into(),
            reason: self.reason.into(),
            message: self.message.clone(),
            observed_generation: Some(generation),
            last_transition_time: now.clone(),
        }
    }
}

/// The rules are not evaluated, because the executor of the work may not read the object.
pub fn withheld(rules: &[ConditionRule], why: &str) -> Vec<Ruled> {
    let unknown = |rule: &ConditionRule| Ruled {
        type_: rule.condition.clone(),
        status: "Unknown",
        reason: INTERNAL_ERROR,
        message: why.to_owned(),
    };
    rules.iter().filter(|rule| !rule.condition.is_empty()).map(unknown).collect()
}

type Compiled = Result<Arc<Query>, QueryError>;

/// Compiled expressions by their text, with whether they use `result`. A text is compiled at its first use,
/// and again if hundreds of others were used since its last use.
#[derive(Default)]
pub struct Rules(Mutex<Cache>);

#[derive(Default)]
struct Cache {
    young: HashMap<(String, bool), Compiled>,
    old: HashMap<(String, bool), Compiled>,
    /// Bytes of the texts that were used recently.
    bytes: usize,
}

impl Rules {
    /// Evaluates the rules for a live object on a thread for blocking work, because it may take a second.
    /// Costs a copy of the object, if there are rules. If the future is dropped, the thread still runs to its
    /// end.
    pub async fn judge(self: &Arc<Self>, rules: &[ConditionRule], object: &Value) -> Vec<Ruled> {
        if rules.is_empty() {
            return Vec::new();
        }
        let (me, all, object) = (self.clone(), rules.to_vec(), object.clone());
        let judged = tokio::task::spawn_blocking(move || me.evaluate(&all, &object)).await;
        judged.unwrap_or_else(|error| {
            let failed = |rule: &ConditionRule| Ruled {
                type_: rule.condition.clone(),
                status: "False",
                reason: EXPRESSION_ERROR,
                message: format!("the rule can't be evaluated: {error}"),
            };
            rules.iter().filter(|rule| !rule.condition.is_empty()).map(failed).collect()
        })
    }

    /// Evaluates the rules for a live object. Blocks the thread.
    pub fn evaluate(&self, rules: &[ConditionRule], object: &Value) -> Vec<Ruled> {
        let mut budget = BUDGET;
        rules.iter().filter_map(|rule| self.one(rule, object, &mut budget)).collect()
    }

    fn one(&self, rule: &ConditionRule, object: &Value, budget: &mut u64) -> Option<Ruled> {
        match rule.type_.as_str() {
            "CEL" => Some(self.by_expressions(rule, object, budget)),
            "WellKnownConditions" => {
                let (expression, message) = well_known(object, &rule.condition)?;
                let own = !rule.message.is_empty() || !rule.message_expression.is_empty();
                let rule = ConditionRule {
                    condition: rule.condition.clone(),
                    type_: "CEL".into(),
                    cel_expressions: vec![expression.into()],
                    message: rule.message.clone(),
                    message_expression: if own { rule.message_expression.clone() } else { message.into() },
                };
                Some(self.by_expressions(&rule, object, budget))
            }
            other => Some(Ruled {
                type_: rule.condition.clone(),
                status: "Unknown",
                reason: INVALID,
                message: format!("unrecognized condition rule type {other}"),
            }),
        }
    }

    fn compiled(&self, source: &str, knows_result: bool) -> Compiled {
        let key = (source.to_owned(), knows_result);
        {
            let mut cache = self.0.lock();
            if let Some(known) = cache.young.get(&key) {
                return known.clone();
            }
            if let Some(known) = cache.old.remove(&key) {
                return cache.keep(key, known);
            }
        }
        let variables: &[&str] = if knows_result { &["object", "result"] } else { &["object"] };
        let compiled = Query::compile(source, variables).map(Arc::new);
        if source.len() > LONGEST {
            return compiled;
        }
        self.0.lock().keep(key, compiled)
    }

    fn by_expressions(&self, rule: &ConditionRule, object: &Value, budget: &mut u64) -> Ruled {
        let made = |status, reason, message| Ruled { type_: rule.condition.clone(), status, reason, message };
        let mut result = true;
        for expression in &rule.cel_expressions {
            let answer = self
                .compiled(expression, false)
                .and_then(|query| query.evaluate(&[("object", object)], budget));
            match answer {
                Ok(Answer::Bool(true)) => {}
                Ok(Answer::Bool(false)) => {
                    result = false;
                    break;
                }
                Ok(Answer::Text(_)) => return made("False", EXPRESSION_ERROR, not_bool("string")),
                Ok(Answer::Other(name)) => return made("False", EXPRESSION_ERROR, not_bool(name)),
                Err(error) => return made("False", EXPRESSION_ERROR, error.to_string()),
            }
        }
        let status = if result { "True" } else { "False" };
        made(status, EVALUATED, self.message(rule, object, result, budget))
    }

    fn message(&self, rule: &ConditionRule, object: &Value, result: bool, budget: &mut u64) -> String {
        if !rule.message_expression.is_empty() {
            let flag = Value::Bool(result);
            let answer = self
                .compiled(&rule.message_expression, true)
                .and_then(|query| query.evaluate(&[("object", object), ("result", &flag)], budget));
            match answer {
                Ok(Answer::Text(text)) if text.is_empty() => {}
                Ok(Answer::Text(text)) => return text,
                Ok(Answer::Bool(_)) => return not_text("bool"),
                Ok(Answer::Other(name)) => return not_text(name),
                Err(error) => return error.to_string(),
            }
        }
        match (rule.message.is_empty(), result) {
            (false, _) => rule.message.clone(),
            (true, true) => format!("Manifest is {}", rule.condition),
            (true, false) => format!("Manifest is not {}", rule.condition),
        }
    }
}

impl Cache {
    fn keep(&mut self, key: (String, bool), compiled: Compiled) -> Compiled {
        if self.young.len() >= KEPT || self.bytes >= KEPT_BYTES {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
        self.bytes += key.0.len();
        self.young.insert(key, compiled.clone());
        compiled
    }
}

/// Returns the expression and the message expression of a well-known condition of a kind; `None` if the kind has
/// no well-known condition of this type.
fn well_known(object: &Value, condition: &str) -> Option<(&'static str, &'static str)> {
    if condition != COMPLETE {
        return None;
    }
    match (text(object, "apiVersion"), text(object, "kind")) {
        ("batch/v1", "Job") => Some((
            "has(object.status) && hasConditions(object.status) && object.status.conditions.exists(c, \
             (c.type == 'Complete' || c.type == 'Failed') && c.status == 'True')",
            "result ? 'Job is finished' : 'Job is not finished'",
        )),
        ("v1", "Pod") => Some((
            "has(object.status) && has(object.status.phase) && object.status.phase in ['Succeeded', 'Failed']",
            "'Pod is in phase ' + (has(object.status) && has(object.status.phase) ? object.status.phase : '')",
        )),
        _ => None,
    }
}

fn not_bool(type_: &str) -> String {
    format!("expected bool result, got {type_}")
}

fn not_text(type_: &str) -> String {
    format!("expected message expression to have a string result, got {type_}")
}

/// Returns whether a rule created this condition.
pub fn is_rule_made(condition: &Condition) -> bool {
    condition.reason.starts_with(RULE_MADE)
}

/// Returns whether the manifest or work is complete; it is not applied any more then (OCM-092).
pub fn is_complete(conditions: &[Condition]) -> bool {
    conditions.iter().any(|c| c.type_ == COMPLETE && c.status == "True")
}

/// Aggregates the rule-made conditions of the manifests for the work: False wins over Unknown over True, but
/// a single manifest that is `Progressing` is enough.
pub fn aggregate(manifests: &[ManifestCondition], generation: i64, now: &Time) -> Vec<Condition> {
    let mut by_type: BTreeMap<&str, Vec<&Condition>> = BTreeMap::new();
    for condition in manifests.iter().flat_map(|m| &m.conditions).filter(|c| is_rule_made(c)) {
        by_type.entry(&condition.type_).or_default().push(condition);
    }
    let one = |(type_, all): (&str, Vec<&Condition>)| {
        let any = |status: &str| all.iter().any(|c| c.status == status);
        let status = match type_ {
            "Progressing" if any("True") => "True",
            _ if any("False") => "False",
            _ if any("Unknown") => "Unknown",
            _ => "True",
        };
        let message = match all.as_slice() {
            [single] => single.message.clone(),
            _ => format!("Aggregated from {} manifest conditions", all.len()),
        };
        Condition {
            type_: type_.into(),
            status: status.into(),
            reason: AGGREGATED.into(),
            message,
            observed_generation: Some(generation),
            last_transition_time: now.clone(),
        }
    };
    by_type.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    fn rules(value: Value) -> Vec<ConditionRule> {
        serde_json::from_value(value).expect("rules")
    }

    fn evaluated(rule: Value, object: &Value) -> Ruled {
        Rules::default().evaluate(&rules(json!([rule])), object).remove(0)
    }

    fn ruled(type_: &str, status: &'static str, reason: &'static str, message: &str) -> Ruled {
        Ruled { type_: type_.into(), status, reason, message: message.into() }
    }

    #[test]
    fn ocm_091_expressions_are_anded_and_named() {
        let object = json!({"spec": {"replicas": 1}});
        let cel = |expressions: &[&str]| json!({"type": "CEL", "condition": "Ready", "celExpressions": expressions});
        for (expressions, expected) in [
            (vec!["object.spec.replicas == 1"], ruled("Ready", "True", EVALUATED, "Manifest is Ready")),
            (
                vec!["object.spec.replicas == 1", "object.spec.replicas > 1", "object.x == 1"],
                ruled("Ready", "False", EVALUATED, "Manifest is not Ready"),
            ),
            (vec!["object.x == 1"], ruled("Ready", "False", EXPRESSION_ERROR, "no such key: x")),
            (
                vec!["object.spec.replicas"],
                ruled("Ready", "False", EXPRESSION_ERROR, "expected bool result, got int64"),
            ),
        ] {
            assert_eq!(evaluated(cel(&expressions), &object), expected, "{expressions:?}");
        }
        assert_eq!(evaluated(cel(&["object.spec. =="]), &object).reason, EXPRESSION_ERROR);
        let mut said = cel(&["object.spec.replicas == 2"]);
        said["message"] = json!("fixed");
        assert_eq!(evaluated(said.clone(), &object).message, "fixed");
        said["messageExpression"] = json!("result ? 'yes' : 'no, ' + string(object.spec.replicas)");
        assert_eq!(evaluated(said, &object).message, "no, 1");
        assert_eq!(evaluated(json!({"type": "Odd", "condition": "A"}), &object).reason, INVALID);
    }

    #[test]
    fn ocm_091_well_known_conditions() {
        let known = json!({"type": "WellKnownConditions", "condition": "Complete"});
        let job = |conditions: Value| json!({"apiVersion": "batch/v1", "kind": "Job", "status": {"conditions": conditions}});
        let pod = |phase: &str| json!({"apiVersion": "v1", "kind": "Pod", "status": {"phase": phase}});
        for (object, status, message) in [
            (job(json!([{"type": "Failed", "status": "True"}])), "True", "Job is finished"),
            (job(json!([{"type": "Complete", "status": "True"}])), "True", "Job is finished"),
            (job(json!([{"type": "Suspended", "status": "True"}])), "False", "Job is not finished"),
            (json!({"apiVersion": "batch/v1", "kind": "Job"}), "False", "Job is not finished"),
            (pod("Succeeded"), "True", "Pod is in phase Succeeded"),
            (pod("Running"), "False", "Pod is in phase Running"),
        ] {
            assert_eq!(
                evaluated(known.clone(), &object),
                ruled(COMPLETE, status, EVALUATED, message),
                "{object}"
            );
        }
        let other = json!({"apiVersion": "v1", "kind": "ConfigMap"});
        assert!(Rules::default().evaluate(&rules(json!([known])), &other).is_empty(), "silently none");
        for unknown in ["Ready", "complete", ""] {
            let rule = json!([{"type": "WellKnownConditions", "condition": unknown}]);
            assert!(Rules::default().evaluate(&rules(rule), &pod("Running")).is_empty(), "no {unknown:?}");
        }
    }

    /// An expression is compiled once for all objects; the cache keeps every expression in use, and no more
    /// than its limit.
    #[test]
    fn ocm_091_expressions_are_compiled_once() {
        let all = Rules::default();
        let first = all.compiled("object.a == 1", false).expect("an expression");
        let again = |knows_result| all.compiled("object.a == 1", knows_result).expect("an expression");
        assert!(Arc::ptr_eq(&first, &again(false)));
        assert!(!Arc::ptr_eq(&first, &again(true)), "with other variables it is another");
        let wrong = all.compiled("object. ==", false).expect_err("no expression");
        assert_eq!(all.compiled("object. ==", false).err(), Some(wrong));
        for number in 0..3 * KEPT {
            drop(all.compiled(&format!("object.a == {number}"), false));
            assert!(Arc::ptr_eq(&first, &again(false)), "in use: {number}");
        }
        let cache = all.0.lock();
        assert!(cache.young.len() + cache.old.len() <= 2 * KEPT);
    }

    /// A rule that does not end delays no other evaluation, and ends with an error.
    #[tokio::test]
    async fn ocm_091_a_runaway_rule_delays_nobody() {
        let all = Arc::new(Rules::default());
        let object = json!({"l": vec![0; 2000]});
        let endless = "object.l.all(a, object.l.all(b, object.l.all(c, a == b && b == c)))";
        let rule = |expression: &str| {
            rules(json!([{"type": "CEL", "condition": "Ready", "celExpressions": [expression]}]))
        };
        let (slow, quick) = (rule(endless), rule("size(object.l) == 2000"));
        let mut running = std::pin::pin!(all.judge(&slow, &object));
        // The test has one thread: if the rule were evaluated on it, the test would hang here.
        assert!(futures::poll!(running.as_mut()).is_pending());
        assert_eq!(
            all.judge(&quick, &object).await,
            [ruled("Ready", "True", EVALUATED, "Manifest is Ready")]
        );
        let ended = running.await;
        assert_eq!((ended[0].status, ended[0].reason), ("False", EXPRESSION_ERROR));
        assert!(ended[0].message.contains("cost limit exceeded"), "{}", ended[0].message);
        assert_eq!(all.judge(&[], &object).await, []);
    }

    #[test]
    fn ocm_091_aggregation() {
        let now = Time(Timestamp::UNIX_EPOCH);
        let manifest = |type_: &str, status: &'static str| ManifestCondition {
            conditions: vec![ruled(type_, status, EVALUATED, "m").condition(1, &now)],
            ..ManifestCondition::default()
        };
        for (type_, statuses, expected) in [
            ("Ready", vec!["True", "Unknown", "False"], "False"),
            ("Ready", vec!["True", "Unknown"], "Unknown"),
            ("Ready", vec!["True", "True"], "True"),
            ("Progressing", vec!["False", "True"], "True"),
        ] {
            let manifests: Vec<_> = statuses.iter().map(|s| manifest(type_, s)).collect();
            let all = aggregate(&manifests, 3, &now);
            assert_eq!((all.len(), all[0].status.as_str()), (1, expected), "{statuses:?}");
            assert_eq!(all[0].message, format!("Aggregated from {} manifest conditions", statuses.len()));
        }
        assert_eq!(aggregate(&[manifest("Ready", "True")], 3, &now)[0].message, "m");
    }
}
