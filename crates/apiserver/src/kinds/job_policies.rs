//! Validation of what a Job says about indexes, failures and success.

use std::collections::BTreeSet;

use machinery::field::{Error, Path};
use machinery::names;
use serde_json::Value;

use super::check::Errs;
use super::value::{at, has, int, list, text};

const INDEXED_MAX: i64 = 100_000;
const FAILED_INDEXES_MAX: i64 = 10_000;
const RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;
const SUCCEEDED_INDEXES_MAX: usize = 64 * 1024;
const ACTIONS: &[&str] = &["Count", "FailIndex", "FailJob", "Ignore"];
const OPERATORS: &[&str] = &["In", "NotIn"];
const STATUSES: &[&str] = &["False", "True", "Unknown"];
const NEEDS_INDEXES: &str = "requires indexed completion mode";

/// Validates completion mode and limits by index.
pub(super) fn indexes(spec: &Value, place: &Path, errs: &mut Errs) {
    let (per_index, failed) = (int(spec, "backoffLimitPerIndex"), int(spec, "maxFailedIndexes"));
    if failed.is_some() && per_index.is_none() {
        errs.required(&place.child("backoffLimitPerIndex"), "when maxFailedIndexes is specified");
    }
    let mode = text(spec, "completionMode");
    if has(spec, "completionMode") {
        errs.one_of(&place.child("completionMode"), mode, &["NonIndexed", "Indexed"]);
    }
    match mode {
        "Indexed" => indexed(spec, place, errs),
        "NonIndexed" | "" => {
            for (key, value) in [("backoffLimitPerIndex", per_index), ("maxFailedIndexes", failed)] {
                if let Some(n) = value {
                    errs.invalid(&place.child(key), &Value::from(n), NEEDS_INDEXES);
                }
            }
        }
        _ => {}
    }
}

fn indexed(spec: &Value, place: &Path, errs: &mut Errs) {
    let completions = int(spec, "completions");
    let (parallelism, failed) = (int(spec, "parallelism"), int(spec, "maxFailedIndexes"));
    let mut at_most = |key: &str, value: Option<i64>, max: i64, why: &str| {
        if let Some(n) = value.filter(|n| *n > max) {
            let detail = format!("must be less than or equal to {why}");
            errs.invalid(&place.child(key), &Value::from(n), &detail);
        }
    };
    at_most("parallelism", parallelism, INDEXED_MAX, "100000 when completion mode is Indexed");
    if let Some(completions) = completions {
        at_most("maxFailedIndexes", failed, completions, "completions");
    }
    at_most("maxFailedIndexes", failed, INDEXED_MAX, "100000");
    let many = completions.is_some_and(|n| n > INDEXED_MAX) && has(spec, "backoffLimitPerIndex");
    if many {
        let why = "10000 when completions are above 100000 and used with backoff limit per index";
        at_most("parallelism", parallelism, FAILED_INDEXES_MAX, why);
        at_most("maxFailedIndexes", failed, FAILED_INDEXES_MAX, why);
    }
    if completions.is_none() {
        errs.required(&place.child("completions"), "when completion mode is Indexed");
    }
    if many && failed.is_none() {
        errs.required(&place.child("maxFailedIndexes"), "must be specified when completions is above 100000");
    }
}

/// Validates `managedBy`, `podFailurePolicy` and `successPolicy`.
pub(super) fn policies(spec: &Value, place: &Path, errs: &mut Errs) {
    if has(spec, "managedBy") {
        managed_by(text(spec, "managedBy"), &place.child("managedBy"), errs);
    }
    if has(spec, "podFailurePolicy") {
        failure_policy(spec, &place.child("podFailurePolicy").child("rules"), errs);
    }
    if has(spec, "successPolicy") {
        let here = place.child("successPolicy");
        if text(spec, "completionMode") == "Indexed" {
            success_policy(spec, &here.child("rules"), errs);
        } else {
            errs.invalid(&here, at(spec, "successPolicy"), NEEDS_INDEXES);
        }
    }
}

fn managed_by(value: &str, place: &Path, errs: &mut Errs) {
    if value.is_empty() {
        errs.required(place, "");
        return;
    }
    match value.split_once('/').filter(|(host, path)| !host.is_empty() && !path.is_empty()) {
        None => {
            errs.invalid_str(place, value, "must be a domain-prefixed path (such as \"acme.io/foo\")");
        }
        Some((host, path)) => {
            errs.names(place, host, names::dns1123_subdomain(host));
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
            if !path.bytes().all(allowed) {
                errs.invalid_str(
                    place,
                    path,
                    "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')",
                );
            }
        }
    }
    if value.len() > names::LABEL_MAX {
        errs.too_long(place, names::LABEL_MAX);
    }
}

/// A required value with its alternatives, as Go prints a list.
fn one_of(value: &str, supported: &[&str], place: &Path, errs: &mut Errs) {
    if value.is_empty() {
        let listed: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        errs.required(place, &format!("valid values: [{}]", listed.join(" ")));
    } else {
        errs.one_of(place, value, supported);
    }
}

fn failure_policy(spec: &Value, place: &Path, errs: &mut Errs) {
    let rules = list(spec, "podFailurePolicy.rules");
    if rules.len() > RULES_MAX {
        errs.0.push(Error::too_many(place, rules.len(), RULES_MAX));
    }
    let containers: BTreeSet<&str> = ["template.spec.containers", "template.spec.initContainers"]
        .into_iter()
        .flat_map(|key| list(spec, key))
        .map(|c| text(c, "name"))
        .collect();
    for (i, rule) in rules.iter().enumerate() {
        let here = place.index(i);
        let action = text(rule, "action");
        if action == "FailIndex" && !has(spec, "backoffLimitPerIndex") {
            errs.invalid_str(&here.child("action"), action, "requires the backoffLimitPerIndex to be set");
        }
        one_of(action, ACTIONS, &here.child("action"), errs);
        let (codes, conditions) = (at(rule, "onExitCodes"), list(rule, "onPodConditions"));
        if !codes.is_null() {
            exit_codes(codes, &containers, &here.child("onExitCodes"), errs);
        }
        pod_conditions(conditions, &here.child("onPodConditions"), errs);
        match (codes.is_null(), conditions.is_empty()) {
            (false, false) => errs.0.push(Error::invalid_omitted(
                &here,
                "specifying both OnExitCodes and OnPodConditions is not supported",
            )),
            (true, true) => errs.0.push(Error::invalid_omitted(
                &here,
                "specifying one of OnExitCodes and OnPodConditions is required",
            )),
            _ => {}
        }
    }
}

fn exit_codes(codes: &Value, containers: &BTreeSet<&str>, place: &Path, errs: &mut Errs) {
    let operator = text(codes, "operator");
    one_of(operator, OPERATORS, &place.child("operator"), errs);
    if has(codes, "containerName") && !containers.contains(text(codes, "containerName")) {
        errs.invalid(
            &place.child("containerName"),
            at(codes, "containerName"),
            "must be one of the container or initContainer names in the pod template",
        );
    }
    let here = place.child("values");
    let values: Vec<i64> = list(codes, "values").iter().filter_map(Value::as_i64).collect();
    if values.is_empty() {
        errs.invalid(&here, at(codes, "values"), "at least one value is required");
    } else if values.len() > EXIT_CODES_MAX {
        errs.0.push(Error::too_many(&here, values.len(), EXIT_CODES_MAX));
    }
    let mut seen = BTreeSet::new();
    for (i, value) in values.iter().enumerate() {
        if operator == "In" && *value == 0 {
            errs.invalid(&here.index(i), &Value::from(*value), "must not be 0 for the In operator");
        }
        if !seen.insert(value) {
            errs.duplicate(&here.index(i), &Value::from(*value));
        }
    }
    if !values.is_sorted() {
        errs.invalid(&here, at(codes, "values"), "must be ordered");
    }
}

fn pod_conditions(conditions: &[Value], place: &Path, errs: &mut Errs) {
    if conditions.len() > RULES_MAX {
        errs.0.push(Error::too_many(place, conditions.len(), RULES_MAX));
    }
    for (i, condition) in conditions.iter().enumerate() {
        let here = place.index(i);
        let kind = text(condition, "type");
        errs.names(&here.child("type"), kind, names::qualified_name(kind));
        one_of(text(condition, "status"), STATUSES, &here.child("status"), errs);
    }
}

fn success_policy(spec: &Value, place: &Path, errs: &mut Errs) {
    let rules = list(spec, "successPolicy.rules");
    if rules.is_empty() {
        errs.required(place, "at least one rules must be specified when the successPolicy is specified");
    }
    if rules.len() > RULES_MAX {
        errs.0.push(Error::too_many(place, rules.len(), RULES_MAX));
    }
    let completions = int(spec, "completions").unwrap_or_default();
    for (i, rule) in rules.iter().enumerate() {
        let here = place.index(i);
        let (count, given) = (int(rule, "succeededCount"), has(rule, "succeededIndexes"));
        if count.is_none() && !given {
            errs.required(&here, "at least one of succeededCount or succeededIndexes must be specified");
        }
        let mut total = 0;
        if given {
            let indexes = text(rule, "succeededIndexes");
            let here = here.child("succeededIndexes");
            if indexes.len() > SUCCEEDED_INDEXES_MAX {
                errs.too_long(&here, SUCCEEDED_INDEXES_MAX);
            }
            match count_indexes(indexes, completions) {
                Ok(n) => total = n,
                Err(fault) => {
                    let detail = format!("error parsing succeededIndexes: {fault}");
                    errs.invalid_str(&here, indexes, &detail);
                }
            }
        }
        let Some(count) = count else { continue };
        errs.non_negative(rule, &here, "succeededCount");
        let here = here.child("succeededCount");
        if count > completions {
            let detail =
                format!("must be less than or equal to {completions} (the number of specified completions)");
            errs.invalid(&here, &Value::from(count), &detail);
        }
        if given && count > total {
            let detail = format!(
                "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
            );
            errs.invalid(&here, &Value::from(count), &detail);
        }
    }
}

/// The number of indexes in a list like `1,3-5`.
fn count_indexes(text: &str, completions: i64) -> Result<i64, String> {
    if text.is_empty() {
        return Ok(0);
    }
    let number = |part: &str| {
        let n: i64 =
            part.parse().map_err(|_| format!("cannot convert string to integer for index: {part:?}"))?;
        if n >= completions { Err(format!("too large index: {part:?}")) } else { Ok(n) }
    };
    let order = |a: i64, b: i64| format!("non-increasing order, previous: {a}, current: {b}");
    let (mut total, mut last) = (0, None);
    for interval in text.split(',') {
        if interval.matches('-').count() > 1 {
            return Err(format!(
                "the fragment {interval:?} violates the requirement that an index interval can have at most two parts separated by '-'"
            ));
        }
        let (first, end) = match interval.split_once('-') {
            None => {
                let n = number(interval)?;
                (n, n)
            }
            Some((a, b)) => {
                let (a, b) = (number(a)?, number(b)?);
                if a >= b {
                    return Err(order(a, b));
                }
                (a, b)
            }
        };
        if let Some(last) = last.filter(|last| *last >= first) {
            return Err(order(last, first));
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AS-016: lists of indexes of a success policy.
    #[test]
    fn as_016_indexes_are_counted() {
        assert_eq!(count_indexes("", 5), Ok(0));
        assert_eq!(count_indexes("0,2-4", 5), Ok(4));
        for (text, fault) in [
            ("5", "too large index: \"5\""),
            ("x", "cannot convert string to integer for index: \"x\""),
            ("2,1", "non-increasing order, previous: 2, current: 1"),
            ("3-2", "non-increasing order, previous: 3, current: 2"),
        ] {
            assert_eq!(count_indexes(text, 5), Err(fault.to_owned()), "{text}");
        }
    }
}
