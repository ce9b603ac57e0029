use serde_json::{Value, json};

use super::*;

fn widget(spec: Value) -> Schema {
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    Schema::structural(&schema, "golden.test", "v1", "Widget").unwrap()
}

fn object(spec: Value) -> Value {
    json!({"apiVersion": "golden.test/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": spec})
}

fn run(schema: &Schema, new: Value, old: Option<Value>) -> String {
    let old = old.map(object);
    let found: Vec<String> =
        validate(schema, &object(new), old.as_ref()).iter().map(ToString::to_string).collect();
    found.join(", ")
}

#[test]
fn schemas_go_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<Schema>();
}

#[test]
fn as_044_rules() {
    let schema = widget(
        json!({"type": "object", "properties": {"min": {"type": "integer"}, "max": {"type": "integer"},
        "names": {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 10}},
        "m": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 9}, "maxProperties": 4}},
        "x-kubernetes-validations": [
            {"rule": "self.min <= self.max", "message": "min is above max"},
            {"rule": "!has(self.names) || self.names.all(n, n.startsWith('n'))",
                "messageExpression": "'bad names: ' + self.names.join('/')"},
            {"rule": "!has(self.m) || 'k' in self.m", "reason": "FieldValueRequired", "fieldPath": ".m"}]}),
    );
    let one = |spec: Value| run(&schema, spec, None);
    assert_eq!(one(json!({"min": 1, "max": 2})), "");
    assert_eq!(one(json!({"min": 3, "max": 2})), "spec: Invalid value: min is above max");
    assert_eq!(
        one(json!({"min": 1, "max": 2, "names": ["n1", "x", "y"]})),
        "spec: Invalid value: bad names: n1/x/y"
    );
    assert_eq!(
        one(json!({"min": 1, "max": 1, "m": {"z": ""}})),
        "spec.m: Required value: failed rule: !has(self.m) || 'k' in self.m"
    );
    assert_eq!(
        one(json!({"min": 1})),
        "spec: Invalid value: \"object\": no such key: max evaluating rule: min is above max"
    );
    assert_eq!(
        one(json!({"min": 5, "max": 1, "names": ["q"]})),
        "spec: Invalid value: min is above max, spec: Invalid value: bad names: q"
    );
}

/// AS-044, AS-045: `oldSelf`, also if it is optional.
#[test]
fn as_044_rules_about_changes() {
    let schema = widget(json!({"type": "object", "properties": {
        "fixed": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed for ever"}]},
        "up": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf"}]},
        "opt": {"type": "string", "x-kubernetes-validations": [
            {"rule": "!oldSelf.hasValue() || self != 'again'", "optionalOldSelf": true, "message": "not again"}]}}}));
    let first = json!({"fixed": "x", "up": 3, "opt": "again"});
    let again = "spec.opt: Invalid value: \"again\": not again";
    assert_eq!(run(&schema, first.clone(), None), "");
    let change = |new: Value| run(&schema, new, Some(first.clone()));
    assert_eq!(
        change(json!({"fixed": "y", "up": 3, "opt": "again"})),
        format!("spec.fixed: Invalid value: \"y\": fixed for ever, {again}")
    );
    assert_eq!(
        change(json!({"fixed": "x", "up": 2, "opt": "again"})),
        format!("{again}, spec.up: Invalid value: 2: failed rule: self >= oldSelf")
    );
    assert_eq!(change(json!({"up": 3, "opt": "again"})), again);
    assert_eq!(change(json!({"fixed": "x", "up": 4, "opt": "other"})), "");
}

#[test]
fn as_044_the_root_sees_the_name() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object"}}, "x-kubernetes-validations": [
        {"rule": "self.metadata.name.startsWith('w-')", "message": "the name starts with w-"}]});
    let schema = Schema::structural(&schema, "golden.test", "v1", "Widget").unwrap();
    assert_eq!(run(&schema, json!({}), None), "<nil>: Invalid value: the name starts with w-");
}

#[test]
fn as_044_escaped_names() {
    let rule = "self.a__dash__b < 5 && self.__namespace__ < 5 && self.x__underscores__y < 5 && self.p_q < 5";
    let int = json!({"type": "integer"});
    let schema = widget(json!({"type": "object", "x-kubernetes-validations": [{"rule": rule}],
        "properties": {"a-b": int, "namespace": int, "x__y": int, "p_q": int}}));
    assert_eq!(run(&schema, json!({"a-b": 1, "namespace": 1, "x__y": 1, "p_q": 1}), None), "");
    assert_eq!(
        run(&schema, json!({"a-b": 9, "namespace": 1, "x__y": 1, "p_q": 1}), None),
        format!("spec: Invalid value: failed rule: {rule}")
    );
}

/// AS-044, AS-045: formats of strings, quantities.
#[test]
fn as_044_types_of_strings() {
    let schema = widget(json!({"type": "object", "properties": {
        "t": {"type": "string", "format": "date-time"}, "d": {"type": "string", "format": "duration"},
        "b": {"type": "string", "format": "byte"}, "q": {"type": "string"}, "n": {"type": "number"}},
        "x-kubernetes-validations": [
            {"rule": "self.t > timestamp('2020-01-01T00:00:00Z')"}, {"rule": "self.d < duration('1h')"},
            {"rule": "size(self.b) == 2"}, {"rule": "quantity(self.q).isGreaterThan(quantity('1Gi'))"},
            {"rule": "self.n < 2.5"}]}));
    let good = json!({"t": "2021-01-01T00:00:00Z", "d": "30m", "b": "aGk=", "q": "2Gi", "n": 2});
    assert_eq!(run(&schema, good, None), "");
    let bad = json!({"t": "2019-01-01T00:00:00Z", "d": "2h", "b": "aGkh", "q": "1Mi", "n": 3});
    assert_eq!(run(&schema, bad, None).matches("failed rule").count(), 5);
}

#[test]
fn as_045_unchanged_values_keep_their_faults() {
    let schema = widget(json!({"type": "object", "properties": {"n": {"type": "integer",
        "x-kubernetes-validations": [{"rule": "self < 5"}]}, "o": {"type": "integer"}}}));
    assert_eq!(run(&schema, json!({"n": 9, "o": 2}), Some(json!({"n": 9, "o": 1}))), "");
    assert_ne!(run(&schema, json!({"n": 8, "o": 2}), Some(json!({"n": 9, "o": 1}))), "");
}

#[test]
fn as_044_costs_are_bounded() {
    let schema = widget(
        json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "integer"}}},
        "x-kubernetes-validations": [{"rule": "self.l.all(a, self.l.all(b, self.l.all(c, a + b + c >= 0)))"}]}),
    );
    assert_eq!(run(&schema, json!({"l": [1, 2, 3]}), None), "");
    let long: Vec<u32> = (0..10_000).collect();
    let text = run(&schema, json!({"l": long}), None);
    assert!(text.contains("actual cost limit exceeded"), "{text}");
}

/// AS-044: the actual work counts, not the worst case: a loop that ends at its first element costs one step. All rules
/// of an object share its budget; when it is spent, the remaining rules do not run.
#[test]
fn as_044_costs_are_those_of_the_run() {
    let numbers = |rules: Value| {
        widget(json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "integer"}}},
            "x-kubernetes-validations": rules}))
    };
    let long: Vec<u32> = (0..100_000).collect();
    let early = "self.l.exists(a, self.l.exists(b, self.l.exists(c, a + b + c == 0)))";
    let cheap = numbers(json!([{"rule": early}]));
    assert_eq!(run(&cheap, json!({"l": long}), None), "");

    let pass = json!({"rule": "self.l == self.l"});
    let many = numbers(json!(vec![pass.clone(); 150]));
    assert_eq!(run(&numbers(json!(vec![pass; 3])), json!({"l": long}), None), "");
    assert_eq!(
        run(&many, json!({"l": long}), None),
        "spec: Invalid value: \"object\": validation failed due to running out of cost budget, no further validation \
         rules will be run"
    );
    let few: Vec<u32> = (0..2_000).collect();
    let dear = numbers(json!([{"rule": "self.l.all(a, self.l.all(b, a + b >= 0))"}, {"rule": "false"}]));
    assert_eq!(
        run(&dear, json!({"l": few}), None),
        "spec: Invalid value: \"object\": 'operation cancelled: actual cost limit exceeded': no further validation \
         rules will be run due to call cost exceeds limit for rule: self.l.all(a, self.l.all(b, a + b >= 0))"
    );
}

/// AS-044: messages cost as well; a message that is too expensive is replaced.
#[test]
fn as_044_messages_pay() {
    let schema = widget(
        json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "integer"}}},
        "x-kubernetes-validations": [{"rule": "size(self.l) < 2", "message": "too many",
            "messageExpression": "string(self.l.filter(a, self.l.all(b, a + b >= 0)).size())"}]}),
    );
    assert_eq!(run(&schema, json!({"l": [1, 2]}), None), "spec: Invalid value: 2");
    let long: Vec<u32> = (0..10_000).collect();
    assert_eq!(run(&schema, json!({"l": long}), None), "spec: Invalid value: too many");
}

/// AS-044: deep expressions do not overflow the stack.
#[test]
fn as_044_deep_rules_run() {
    let nested = format!("{}self.n{} > 0", "(1 + ".repeat(40), ")".repeat(40));
    let schema = widget(json!({"type": "object", "properties": {"n": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": nested}]}));
    assert_eq!(run(&schema, json!({"n": 1}), None), "");
}

#[test]
fn as_044_malformed_objects_are_not_asked() {
    let schema = widget(json!({"type": "object", "properties": {"n": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.n < 5"}]}));
    let found = validate_object(&schema, &object(json!({"n": "x"})), None, None);
    assert_eq!(found.len(), 2);
    assert_eq!(
        found[1].to_string(),
        "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; \
         correct the existing errors to complete validation"
    );
    assert_eq!(validate_object(&schema, &object(json!({"n": 7})), None, None).len(), 1);
}

#[test]
fn as_044_rules_that_are_none() {
    let check = |rule: Value| -> String {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"},
            "l": {"type": "array", "items": {"type": "string"}}}, "x-kubernetes-validations": [rule]});
        let found: Vec<String> =
            compile(&schema, &Path::field("S")).iter().map(ToString::to_string).collect();
        found.join(", ")
    };
    assert_eq!(
        check(json!({"rule": "self.a > 1 && self.l.all(x, x != '') && self.l.exists(y, y.matches('a+'))"})),
        ""
    );
    assert_eq!(check(json!({"rule": "self.l.map(x, optional.of(x)).size() > math.abs(-1)"})), "");
    assert_eq!(check(json!({})), "S.x-kubernetes-validations[0].rule: Required value: rule is not specified");
    assert!(
        check(json!({"rule": "self.a >"}))
            .contains("rule: Invalid value: \"self.a >\": compilation failed: ERROR: <input>:1:")
    );
    assert!(
        check(json!({"rule": "other > 1"})).contains("undeclared reference to 'other' (in container '')")
    );
    assert!(check(json!({"rule": "self.zz > 1"})).contains("undefined field 'zz'"));
    assert!(check(json!({"rule": "true", "reason": "Because"})).contains(
        "reason: Unsupported value: \"Because\": supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\""
    ));
    assert!(check(json!({"rule": "true", "fieldPath": "x"})).contains("fieldPath must be a valid path"));
    let schema = json!({"type": "array", "items": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}});
    let found = compile(&schema, &Path::field("S"));
    assert!(
        found[0]
            .message()
            .ends_with("oldSelf cannot be used on the uncorrelatable portion of the schema within S.items")
    );
}

/// AS-045: the prediction whether any rule must run agrees with running the rules.
#[test]
fn as_045_rules_that_have_nothing_to_look_at() {
    let schema = widget(json!({"type": "object", "properties": {
        "plain": {"type": "string"},
        "ruled": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"], "items":
            {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}, "x-kubernetes-validations": [{"rule": "self.a > 1"}]}},
        "fixed": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}}));
    let applies =
        |new: Value, old: Option<Value>| any_applies(&schema, &object(new), old.map(object).as_ref());
    assert!(!applies(json!({"plain": "x"}), None), "nothing with a rule is there");
    assert!(!applies(json!({"ruled": []}), None));
    assert!(applies(json!({"ruled": [{"a": 2}]}), None));
    assert!(!applies(json!({"ruled": [{"a": 2}]}), Some(json!({"ruled": [{"a": 2}]}))), "unchanged");
    assert!(applies(json!({"ruled": [{"a": 2}, {"a": 0}]}), Some(json!({"ruled": [{"a": 2}]}))));
    assert!(!applies(json!({"fixed": "x"}), None), "no change to judge");
    assert!(applies(json!({"fixed": "x"}), Some(json!({"fixed": "x"}))));
    let plain = Schema::structural(&json!({"type": "object"}), "golden.test", "v1", "Widget").unwrap();
    assert!(!any_applies(&plain, &object(json!({"ruled": [1]})), None));
}

/// AS-045: a rule with thousands of operators in a row runs without overflowing the stack.
#[test]
fn as_045_long_rules_run() {
    let rule = format!("self.a{} == 3001", " + 1".repeat(3_000));
    let schema = widget(json!({"type": "object", "properties": {"a": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": rule, "message": "counts"}]}));
    assert_eq!(run(&schema, json!({"a": 1}), None), "");
    assert!(run(&schema, json!({"a": 2}), None).contains("counts"));
}
