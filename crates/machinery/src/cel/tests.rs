use serde_json::{Value as Json, json};

use super::*;

const OBJ: Variable = Variable::map("obj");

fn run(source: &str, variables: &Json) -> Result<Value, String> {
    let mut scope = Scope::root();
    let variables = variables.as_object().cloned().unwrap_or_default();
    for (name, value) in &variables {
        scope.bind(name, value);
    }
    let names: Vec<Variable> = variables.keys().map(|name| Variable::map(name)).collect();
    let expression = Expression::compile(source, &names).map_err(|error| format!("compile: {error}"))?;
    expression.evaluate(&scope).map_err(|error| error.to_string())
}

fn yes(source: &str, variables: &Json) {
    assert_eq!(run(source, variables), Ok(Value::Bool(true)), "{source}");
}

#[test]
fn ks_176_expressions_see_json_with_standard_macros_and_functions() {
    let vars = json!({"obj": {"spec": {"replicas": 3, "ratio": 0.5, "big": 3.0, "tags": ["a", "b"]}, "m": {"k": null}}});
    for source in [
        "obj.spec.replicas == 3",
        "obj.spec.replicas == obj.spec.big",
        "obj.spec.big == 3",
        "obj.spec.replicas != 3.5 && obj.spec.replicas < 3.5 && obj.spec.replicas >= 3.0",
        "has(obj.spec.replicas) && !has(obj.spec.other)",
        "!!has(obj.spec.replicas) && ! ! !has(obj.spec.other) && !!!false",
        "3 - --1 == 2 && --obj.spec.replicas == 3 && 3--1 == 4",
        "obj.spec.tags.exists(t, t == 'a') && obj.spec.tags.all(t, t.size() == 1)",
        "obj.spec.tags.exists_one(t, t == 'b') && obj.spec.tags.map(t, t + t) == ['aa', 'bb']",
        "obj.spec.tags.filter(t, t > 'a') == ['b'] && 'a' in obj.spec.tags && 'spec' in obj",
        "obj.m.k == null && obj['spec']['ratio'] == 0.5",
        "int('7') + 1 == 8 && double(1) == 1.0 && string(4) == '4' && 'abc'.matches('^a.c$')",
        "quantity('1Gi').isGreaterThan(quantity('1Mi')) && obj.spec.tags.join('-') == 'a-b'",
        "'a-b'.replace('-', '') == 'ab' && 'a,b'.split(',').size() == 2 && math.abs(-2) == 2",
        "timestamp('2026-01-01T00:00:00Z') < timestamp('2026-01-02T00:00:00Z')",
    ] {
        yes(source, &vars);
    }
    assert_eq!(run("obj.spec.none", &vars), Err("no such key: none".into()));
    assert_eq!(run("obj.spec + 1", &vars).unwrap_err(), "no such overload");
}

/// The errors of an expression, as text.
fn fault(source: &str) -> String {
    let known = [OBJ, Variable::texts("inventory")];
    Expression::compile(source, &known).map_or_else(|error| error.to_string(), |_| "nothing".to_owned())
}

/// The text of an error in a one-line `source`, at `column`.
fn shown(source: &str, column: usize, fault: &str) -> String {
    format!("ERROR: <input>:1:{}: {fault}\n | {source}\n | {}^", column + 1, ".".repeat(column))
}

/// KS-170: all errors of an expression are known before it runs, and printed as by cel-go.
#[test]
fn ks_170_expressions_that_are_none() {
    let operand = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, \
                   BYTES, IDENTIFIER}";
    let ends = format!("Syntax error: mismatched input '<EOF>' expecting {operand}");
    assert_eq!(fault("obj.a =="), shown("obj.a ==", 8, &ends));
    let odd = shown("obj. ==", 5, "Syntax error: no viable alternative at input '. =='");
    assert_eq!(fault("obj. =="), format!("{odd}\n{}", shown("obj. ==", 7, &ends)));
    assert_eq!(fault("has(obj)"), shown("has(obj)", 4, "invalid argument to has() macro"));
    let undeclared = |name: &str| format!("undeclared reference to '{name}' (in container '')");
    for (source, column, name) in [
        ("other.a", 0, "other"),
        ("obj.a.twist()", 11, "twist"),
        ("twist(obj)", 5, "twist"),
        ("obj.a.all(x, y)", 13, "y"),
        ("Thing{a: 1}", 5, "Thing"),
        ("[1, {'a': other}]", 10, "other"),
        ("!!other", 2, "other"),
        ("size(other) // of all", 5, "other"),
    ] {
        assert_eq!(fault(source), shown(source, column, &undeclared(name)));
    }
    let both = "one.f(two)";
    let all = [(0, "one"), (5, "f"), (6, "two")].map(|(column, name)| shown(both, column, &undeclared(name)));
    assert_eq!(fault(both), all.join("\n"));
    let lines = "ERROR: <input>:2:9: undeclared reference to 'other' (in container '')\n |  'é' == other\n | ..．.....^";
    assert_eq!(fault("true &&\n 'é' == other"), lines);
    assert!(fault(&"a".repeat(20_000)).contains("longer than"));
    let mentions =
        Expression::compile("obj.x.exists(returned, returned == 1)", &[OBJ, Variable::map("returned")])
            .unwrap();
    assert!(mentions.mentions("obj") && !mentions.mentions("returned"), "bound by the loop");
}

/// KS-170: operand types are checked as far as they are known.
#[test]
fn ks_170_operands_that_no_operator_takes() {
    let overload = |function: &str, types: &str| {
        format!("found no matching overload for '{function}' applied to '({types})'")
    };
    for (source, column, fault_is) in [
        ("1 + 'a'", 2, overload("_+_", "int, string")),
        ("inventory.name > 3", 15, overload("_>_", "string, int")),
        ("inventory['name'] == 3", 18, overload("_==_", "string, int")),
        ("obj.a && 'yes'", 9, "expected type 'bool' but found 'string'".into()),
        ("!1", 0, overload("!_", "int")),
        ("1 ? 2 : 3", 2, overload("_?_:_", "int, int, int")),
        ("'a' in 'abc'", 4, overload("@in", "string, string")),
        ("obj.l.all(x, 1)", 13, "expected type 'bool' but found 'int'".into()),
        ("size(obj) == 'a'", 10, overload("_==_", "int, string")),
        ("-'a' == ''", 0, overload("-_", "string")),
        ("inventory.name.first", 14, "type 'string' does not support field selection".into()),
        ("true ? 1 : 'a'", 5, overload("_?_:_", "bool, int, string")),
        ("obj.a ? 1 : 'a'", 6, overload("_?_:_", "dyn, int, string")),
        ("1 == 1.0", 2, overload("_==_", "int, double")),
        ("1 < 2.5", 2, overload("_<_", "int, double")),
        ("3u == 3", 3, overload("_==_", "uint, int")),
        ("[1] == ['a']", 4, overload("_==_", "list(int), list(string)")),
        ("1.0 in [1]", 4, overload("@in", "double, list(int)")),
        ("[1]['a']", 3, overload("_[_]", "list(int), string")),
        ("obj.all(k, k == 1)", 13, overload("_==_", "string, int")),
        ("int(obj)", 3, overload("int", "map(string, dyn)")),
        ("type(1) == 1", 8, overload("_==_", "type(int), int")),
        (
            "'a'.all(x, x)",
            0,
            "expression of type 'string' cannot be range of a comprehension (must be list, map, or \
                              dynamic)"
                .into(),
        ),
    ] {
        assert_eq!(fault(source), shown(source, column, &fault_is));
    }
    for fine in [
        "obj.a + 1 > inventory.name.size()",
        "dyn(1) < 2.5 && dyn(1) == 1.0",
        "obj.a == 'x' || obj.a == 3",
        "obj.a ? 1 : obj.b",
        "obj.l.exists_one(x, x == 1) == true",
        "obj.l.map(x, x + 1) + [1] == [2]",
        "[1].map(x, 'a') + ['b'] == ['a', 'b']",
        "[1, 'a'] == [2.0] && [] == [1]",
        "inventory.name == null",
        "has(obj.a.b) && !has(inventory.name)",
        "timestamp('2026-01-01T00:00:00Z') + duration('1h') > obj.t",
        "inventory == {'name': 'a'}",
        "-obj.n < 0 && -1 < 0",
        "'a' in inventory && 'a' in obj.l && 1 in [1]",
        "type(obj.a) == google.protobuf.Timestamp || type(obj.a) == int",
    ] {
        assert_eq!(fault(fine), "nothing", "{fine}");
    }
}

fn report() -> Json {
    json!({"s": {"n": 1, "l": [1, 2], "text": "Green", "flag": true, "off": false, "nothing": null, "m": {"a": "b"},
        "conditions": [{"type": "A"}, {"type": "B", "reason": "X"}]}})
}

/// KS-176: a deciding operand absorbs errors in any order; of several errors the first is reported.
#[test]
fn ks_176_macros_and_operators_absorb_errors() {
    let vars = report();
    for (source, found) in [
        ("s.conditions.exists(c, c.reason == 'X')", Ok(true)),
        ("s.conditions.all(c, c.reason == 'Y')", Ok(false)),
        ("s.conditions.all(c, c.reason == 'X')", Err("no such key: reason")),
        ("s.conditions.exists(c, c.reason == 'Y')", Err("no such key: reason")),
        ("s.conditions.exists_one(c, c.reason == 'X')", Err("no such key: reason")),
        ("[7, 8].exists(x, [1][x] == 1)", Err("index out of bounds: 7")),
        ("s.l.all(x, x)", Err("no such overload")),
        ("s.m.exists(k, k == 'a')", Ok(true)),
        ("[].exists(x, x) || [].all(x, x)", Ok(true)),
        ("s.text.all(x, true)", Err("got 'types.String', expected iterable type")),
        ("s.nothing.filter(x, true) == []", Err("got 'types.Null', expected iterable type")),
        ("s.none || s.other", Err("no such key: none")),
        ("s.none && s.other", Err("no such key: none")),
        ("s.none || true", Ok(true)),
        ("s.none && false", Ok(false)),
        ("s.text || s.flag", Ok(true)),
        ("s.text || s.none", Err("no such overload")),
        ("s.flag && s.n", Err("no such overload")),
    ] {
        assert_eq!(run(source, &vars), found.map(Value::Bool).map_err(Into::into), "{source}");
    }
    let keys = || run("{'c': 1, 'a': 2, 'b': 3}.map(k, k)", &json!({}));
    assert_eq!(keys(), Ok(Value::List(json!(["a", "b", "c"]))), "in order, whatever the map");
}

/// KS-176, KS-178: selecting a field of a value that is not a map is an error, not false.
#[test]
fn ks_178_fields_of_what_is_no_map() {
    let vars = report();
    for (source, error) in [
        ("s.text.x", "no such key: x"),
        ("s.text.x.y", "no such key: x"),
        ("s.nothing.x", "no such key: x"),
        ("s.flag.x", "no such key: x"),
        ("s.off.x", "no such key: x"),
        ("s.none.x", "no such key: none"),
        ("s.conditions.type", "unsupported index type 'string' in list"),
        ("has(s.conditions.type)", "unsupported index type 'string' in list"),
        ("has(s.text.x.y)", "no such key: x"),
        ("s.l['a']", "unsupported index type 'string' in list"),
        ("s.l[s.flag]", "unsupported index type 'bool' in list"),
        ("s.l[1.5]", "unsupported index value 1.5 in list"),
        ("s.l[2]", "index out of bounds: 2"),
        ("s.l[-1]", "index out of bounds: -1"),
        ("s.m['c']", "no such key: c"),
        ("s.m[1]", "no such key: 1"),
        ("s.text['a']", "no such key: a"),
        ("s.n[0]", "no such key: 0"),
        ("[s.conditions][0][1].other", "no such key: other"),
    ] {
        assert_eq!(run(source, &vars), Err(error.into()), "{source}");
    }
    for source in [
        "!s.off && s.m.a == 'b' && s.l[1.0] == 2 && s.l[0u] == 1 && [s.m][0].a == 'b'",
        "!has(s.text.x) && !has(s.nothing.x) && has(s.conditions[1].reason) && s.m[s.m.a == 'b' ? 'a' : 'c'] == 'b'",
    ] {
        yes(source, &vars);
    }
}

/// KS-176: the standard functions return what cel-go's return.
#[test]
fn ks_176_standard_functions() {
    let vars = report();
    for source in [
        "bool('true') && bool('T') && !bool('0') && bool(s.flag) && dyn(1) == 1.0",
        "type(s.n) == int && type(s.nothing) == null_type && type(s.l) == list && type(type(1)) == type",
        "type(timestamp('2026-01-01T00:00:00Z')) == google.protobuf.Timestamp && type(s.text) != type(s.m)",
        "string(true) == 'true' && string(s.off) == 'false' && string(1234567.5) == '1.2345675e+06'",
        "string(1e20) == '1e+20' && string(b'abc') == 'abc' && string(3u) == '3' && string(-0.0) == '-0'",
        "string(timestamp('2026-01-02T03:04:05Z')) == '2026-01-02T03:04:05Z'",
        "string(timestamp('2026-01-02T03:04:05.120+01:00')) == '2026-01-02T03:04:05.12+01:00'",
        "string(duration('90m')) == '5400s' && string(duration('-1.5s')) == '-1.5s'",
        "size('né') == 2 && 'né'.size() == 2 && size(b'né') == 3 && size(s.m) == 1",
        "int(timestamp('2026-01-02T03:04:05.9Z')) == 1767323045 && int(duration('1s')) == 1000000000",
        "int('+1') == 1 && int(-1.9) == -1 && uint(1.9) == 1u && double('1e5') == 100000.0 && bytes(b'a') == b'a'",
        "timestamp(1) == timestamp('1970-01-01T00:00:01Z') && duration(duration('1s')) == duration('1s')",
        "timestamp('2026-01-02T03:04:05Z').getHours('+02:00') == 5",
        "timestamp('2026-01-02T03:04:05+05:00').getHours() == 22",
        "timestamp('2026-01-02T03:04:05Z').getMinutes('-02:30') == 34",
        "timestamp('2026-12-31T23:04:05Z').getFullYear('2:00') == 2027",
        "timestamp('2026-12-31T23:04:05Z').getDayOfYear() == 364",
        "timestamp('2026-01-02T23:04:05Z').getDayOfWeek('+02:00') == 6",
        "duration('-90s').getMinutes() == -1 && duration('5400.123s').getMilliseconds() == 5400123",
    ] {
        yes(source, &vars);
    }
    for (source, error) in [
        ("int('x')", "type conversion error from 'string' to 'int'"),
        ("int(s.flag)", "no such overload: int(bool)"),
        ("int(1e30)", "integer overflow"),
        ("int(9223372036854775807.0)", "integer overflow"),
        ("uint('+1')", "type conversion error from 'string' to 'uint'"),
        ("uint(-1)", "unsigned integer overflow"),
        ("bool('yes')", "type conversion error from 'string' to 'bool'"),
        ("bool(s.n)", "no such overload: bool(int)"),
        ("string(s.l)", "no such overload: string(list)"),
        ("string(b'\\xff')", "invalid UTF-8 in bytes, cannot convert to string"),
        ("size(s.n)", "no such overload: size"),
        ("timestamp('x')", "type conversion error from 'string' to 'google.protobuf.Timestamp'"),
        ("duration('1d')", "type conversion error from 'string' to 'google.protobuf.Duration'"),
        ("timestamp('2026-01-02T03:04:05Z').getHours('Nowhere')", "unknown time zone Nowhere"),
        ("s.n.getHours()", "no such overload: getHours(int)"),
        ("s.text.contains(s.n)", "no such overload"),
    ] {
        assert_eq!(run(source, &vars), Err(error.into()), "{source}");
    }
    assert_eq!(run("type(s.n)", &vars), Ok(Value::String("int".into())));
}

/// KS-199: expressions cannot exhaust time, memory or stack.
#[test]
fn ks_199_runaway_expressions_end_with_an_error() {
    let long: Vec<u32> = (0..2_000).collect();
    let vars = json!({"obj": {"l": long, "s": "x".repeat(10_000)}});
    let double = ".map(v, v + v)".repeat(60);
    let wide: String = (0..12).map(|_| ".map(a, obj.s).join('').split('')").collect();
    let runaway = [
        "obj.l.all(a, obj.l.all(b, obj.l.all(c, a + b + c >= 0)))".to_owned(),
        format!("['aaaaaaaa']{double}.size() > 0"),
        format!("obj.l{wide}.size() > 0"),
        "lists.range(2000000000).size() > 0".to_owned(),
        "lists.range(900000).map(x, x).size() > 0".to_owned(),
        "obj.s.replace('', obj.s).replace('', obj.s).replace('', obj.s) == ''".to_owned(),
        "'%.999999999f'.format([1.0]) == ''".to_owned(),
        "obj.l.map(a, obj.l).distinct().size() > 0".to_owned(),
        "obj.l.exists(a, 'x'.matches('(a{1,99}){1,99}'))".to_owned(),
    ];
    for source in runaway {
        let found = run(&source, &vars);
        assert_eq!(found, Err("operation cancelled: actual cost limit exceeded".into()), "{source}");
    }
    yes("obj.l.all(a, a >= 0) && obj.l.exists(a, a == 1999) && obj.s.size() == 10000", &vars);
}

/// KS-199: too deep expressions are refused, and the deepest allowed ones run within the stack of any thread.
#[test]
fn ks_199_the_stack_is_enough() {
    for deep in [
        format!("{}1{}", "(".repeat(5_000), ")".repeat(5_000)),
        format!("{}1{}", "[".repeat(5_000), "]".repeat(5_000)),
        format!("obj{}", ".a".repeat(5_000)),
        format!("1{}", " + 1".repeat(3_000)),
        format!("obj{}", ".map(a, a)".repeat(1_500)),
        format!("{}true", "!".repeat(9_000)),
        format!("obj{}", "[0]".repeat(5_000)),
        "1 ? ".repeat(3_000),
    ] {
        let _ = Expression::compile(&deep, &[OBJ]);
    }
    let last = |make: &dyn Fn(usize) -> String| {
        let fits = |n: &usize| Expression::compile(&make(*n), &[OBJ]).is_ok();
        make((1..130).rev().step_by(8).find(fits).expect("one level is fine"))
    };
    let deepest = [
        last(&|n| format!("obj{}", ".a".repeat(n))),
        last(&|n| format!("1{}", " + 1".repeat(n))),
        last(&|n| format!("obj{}", ".map(a, a)".repeat(n))),
        last(&|n| format!("{}1{}", "[".repeat(n), "]".repeat(n))),
        last(&|n| format!("{}true{}", "obj.all(a, ".repeat(n), ")".repeat(n))),
    ];
    let small = std::thread::Builder::new().stack_size(2 << 20);
    let ran = small.spawn(move || {
        let shallow = |n: usize| {
            [
                format!("obj{}.a", "['a']".repeat(n)),
                format!("1{}", " + 1".repeat(n)),
                format!("{}1{}", "[".repeat(n), "]".repeat(n)),
                format!("{}true{}", "obj.all(a, ".repeat(n), ")".repeat(n)),
                format!("{}true{}", "(obj.b || obj.a && ".repeat(n), ")".repeat(n)),
                format!("obj.a{}0{}", "[size(obj.a) + obj.a".repeat(n), "]".repeat(n)),
            ]
        };
        for source in deepest.into_iter().chain((1..=16).flat_map(shallow)) {
            let mut scope = Scope::root();
            scope.bind("obj", &json!({"a": [1]}));
            if let Ok(expression) = Expression::compile(&source, &[OBJ]) {
                let _ = expression.evaluate(&scope);
            }
        }
    });
    ran.unwrap().join().unwrap();
}

#[test]
fn ks_182_values_and_their_types() {
    let vars = json!({"obj": {"l": [1, 2.5, null], "m": {"a": "b"}}});
    for (source, value, type_name) in [
        ("null", Value::Null, "null_type"),
        ("1u", Value::Uint(1), "uint"),
        ("1.5", Value::Double(1.5), "double"),
        ("b'hi'", Value::Bytes("aGk=".into()), "bytes"),
        (
            "timestamp('2026-01-02T03:04:05+01:00')",
            Value::Timestamp("2026-01-02T02:04:05Z".into()),
            "google.protobuf.Timestamp",
        ),
        (
            "timestamp('0001-01-01T00:00:00Z')",
            Value::Timestamp("0001-01-01T00:00:00Z".into()),
            "google.protobuf.Timestamp",
        ),
        ("duration('90m')", Value::Duration("5400s".into()), "google.protobuf.Duration"),
        ("duration('-1.5s')", Value::Duration("-1.5s".into()), "google.protobuf.Duration"),
        ("obj.l", Value::List(json!([1, 2.5, null])), "list"),
        ("obj.m", Value::Map(json!({"a": "b"})), "map"),
    ] {
        let found = run(source, &vars).unwrap();
        assert_eq!((found.type_name(), &found), (type_name, &value), "{source}");
    }
    assert!(run("optional.of(1)", &vars).is_err());
}

/// The names of functions are exactly those of the environment.
#[test]
fn names_of_functions_are_those_of_the_environment() {
    for name in names::names() {
        let found = run(&format!("{name}()"), &json!({}));
        let missing = format!(
            "undeclared reference to '{}' (in container '')",
            name.rsplit('.').next().unwrap_or(name)
        );
        assert_ne!(found.err(), Some(missing), "{name}");
    }
}

/// OCM-013: methods of a caller are known in its scopes only; what they return is paid for.
#[test]
fn ocm_013_methods_of_a_caller() {
    let library = Library::default().method("twice", |this, args| match (this, args) {
        (Value::String(text), []) => Ok(json!([text, text])),
        _ => Err("not a text".into()),
    });
    let variables = [OBJ];
    let compile = |source: &str| Expression::compile_with(source, &variables, &library);
    let mut scope = Scope::of(&library);
    scope.bind("obj", &json!({"name": "x", "number": 1}));
    let run = |source: &str| compile(source).unwrap().evaluate(&scope).map_err(|error| error.to_string());
    assert_eq!(run("obj.name.twice() == ['x', 'x'] && 'y'.twice()[1] == 'y'"), Ok(Value::Bool(true)));
    assert!(run("obj.number.twice() == []").is_err_and(|why| why.contains("not a text")));
    assert!(
        compile("obj.name.thrice()")
            .is_err_and(|why| why.to_string().contains("undeclared reference to 'thrice'"))
    );
    assert!(Expression::compile("obj.name.twice()", &variables).is_err(), "unknown elsewhere");

    let expression = compile("[1, 2, 3].all(n, 'text'.twice().size() == 2)").unwrap();
    let mut budget = 1_000;
    expression.evaluate_within(&scope, &mut budget).unwrap();
    let cost = 1_000 - budget;
    assert!(cost > 9, "{cost}");
    let mut scarce = cost - 1;
    let broken = expression.evaluate_within(&scope, &mut scarce).unwrap_err().to_string();
    assert!(scarce == 0 && broken.contains("cost limit exceeded"), "{scarce} {broken}");
}
