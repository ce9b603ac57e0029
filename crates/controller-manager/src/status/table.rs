//! The rows of one workload object and policy, kept between events. Pure.
//!
//! A row is valid as long as its inputs are the very same values in memory: the report, the query, and the
//! object if the query uses it. So nothing has to be invalidated, and no invalidation can be missed. Cost of
//! a changed report: evaluating one row for each StatusCollector of the pair, a look at the report of each
//! WEC, and combining the answers whose row changed.

use std::{collections::BTreeMap, sync::Arc};

use apis::control::NamedStatusCombination;
use serde_json::Value;

use super::{
    combine::combine,
    query::{Query, Row, bind_report, subject_scope},
    sight::Sight,
};
use crate::identity::ClusterName;

/// The report of a WEC about an object, extracted from its WorkStatus.
#[derive(Debug, PartialEq)]
pub struct Report {
    /// The status; `None` if there is none.
    pub status: Option<Arc<Value>>,
    /// Time of its last change, in RFC 3339 format.
    pub updated: Option<String>,
}

/// All inputs of the results.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// The valid StatusCollectors that are requested, by name.
    pub queries: BTreeMap<Box<str>, Arc<Query>>,
    /// The destinations, with their reports.
    pub reports: BTreeMap<ClusterName, Option<Arc<Report>>>,
    /// The object without its status. Needed only if a query uses it.
    pub object: Option<Arc<Value>>,
    /// How much of the object the queries may see. Always the same for one pair.
    pub sight: Sight,
}

/// The cached rows and answers of one pair.
#[derive(Debug, Default)]
pub struct Table {
    answers: BTreeMap<Box<str>, Answer>,
}

#[derive(Debug)]
struct Answer {
    query: Arc<Query>,
    object: Option<Arc<Value>>,
    rows: BTreeMap<ClusterName, (Option<Arc<Report>>, Row)>,
    result: NamedStatusCombination,
}

fn is_same<T>(left: Option<&Arc<T>>, right: Option<&Arc<T>>) -> bool {
    match (left, right) {
        (Some(left), Some(right)) => Arc::ptr_eq(left, right),
        (None, None) => true,
        _ => false,
    }
}

impl Answer {
    fn is_for(&self, query: &Arc<Query>, inputs: &Inputs) -> bool {
        Arc::ptr_eq(&self.query, query)
            && (!query.uses_object() || is_same(self.object.as_ref(), inputs.object.as_ref()))
    }

    fn knows(&self, wec: &ClusterName, report: Option<&Arc<Report>>) -> bool {
        self.rows.get(wec).is_some_and(|(of, _)| is_same(of.as_ref(), report))
    }
}

impl Table {
    /// Returns whether [`refresh`](Self::refresh) has nothing to evaluate.
    pub fn is_fresh(&self, inputs: &Inputs) -> bool {
        inputs.queries.iter().all(|(name, query)| {
            self.answers.get(name).is_some_and(|answer| {
                let known = |(wec, report): (_, &Option<Arc<Report>>)| answer.knows(wec, report.as_ref());
                answer.is_for(query, inputs) && inputs.reports.iter().all(known)
            })
        })
    }

    /// Updates the rows and answers. Returns the number of rows that had to be evaluated.
    pub fn refresh(&mut self, inputs: &Inputs) -> usize {
        self.answers.retain(|name, _| inputs.queries.contains_key(name));
        let mut subject = None;
        let mut evaluated = 0;
        for (name, query) in &inputs.queries {
            let old = self.answers.remove(name).filter(|answer| answer.is_for(query, inputs));
            let (mut rows, result) = old.map(|old| (old.rows, old.result)).unzip();
            let before = rows.as_ref().map_or(0, BTreeMap::len);
            let rows_now = rows.get_or_insert_default();
            rows_now.retain(|wec, _| inputs.reports.contains_key(wec));
            let mut changed = result.is_none() || rows_now.len() != before;
            for (wec, report) in &inputs.reports {
                if rows_now.get(wec).is_some_and(|(of, _)| is_same(of.as_ref(), report.as_ref())) {
                    continue;
                }
                let subject = subject.get_or_insert_with(|| subject_scope(inputs.object.as_deref()));
                let row = evaluate(query, subject, wec, report.as_deref(), inputs.sight);
                evaluated += 1;
                changed |= rows_now.get(wec).is_none_or(|(_, old)| *old != row);
                rows_now.insert(wec.clone(), (report.clone(), row));
            }
            let result = match result.filter(|_| !changed) {
                Some(result) => result,
                None => combine(name, query, rows_now.iter().map(|(wec, (_, row))| (wec, row))),
            };
            let answer = Answer {
                query: query.clone(),
                object: inputs.object.clone(),
                rows: std::mem::take(rows_now),
                result,
            };
            self.answers.insert(name.clone(), answer);
        }
        evaluated
    }

    /// Returns the results of the last [`refresh`](Self::refresh), by name (KS-184).
    pub fn results(&self) -> Vec<NamedStatusCombination> {
        self.answers.values().map(|answer| answer.result.clone()).collect()
    }
}

fn evaluate(
    query: &Query,
    subject: &machinery::cel::Scope,
    wec: &ClusterName,
    report: Option<&Report>,
    sight: Sight,
) -> Row {
    let mut scope = subject.inner();
    let status = report.and_then(|report| report.status.as_deref());
    bind_report(&mut scope, wec, status, report.and_then(|report| report.updated.as_deref()));
    query.row(&scope, sight)
}
