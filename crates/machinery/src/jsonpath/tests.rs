use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn pod() -> Value {
    json!({
        "metadata": {"name": "p", "labels": {"app.kubernetes.io/name": "x", "a": "b"}},
        "spec": {"containers": [{"name": "a", "ports": [{"n": 1}, {"n": 2}]}, {"name": "b"}, {"name": "c"}]},
        "status": {"conditions": [
            {"type": "Ready", "status": "True", "age": 3}, {"type": "Other", "status": "False", "age": 10}]}
    })
}

fn find(path: &str) -> Value {
    let doc = pod();
    match JsonPath::parse(path) {
        Ok(path) => Value::from(path.find(&doc).into_iter().cloned().collect::<Vec<_>>()),
        Err(error) => Value::from(error.to_string()),
    }
}

#[test]
fn as_046_paths_of_printer_columns() {
    for (path, wanted) in [
        (".metadata.name", json!(["p"])),
        ("{.metadata.name}", json!(["p"])),
        ("$.metadata.name", json!(["p"])),
        (".metadata.labels.app\\.kubernetes\\.io/name", json!(["x"])),
        (".metadata.labels['app\\.kubernetes\\.io/name']", json!(["x"])),
        (".metadata.labels['app.kubernetes.io/name']", json!(["x"])),
        (".spec.containers[*].name", json!(["a", "b", "c"])),
        (".spec.containers[0].name", json!(["a"])),
        (".spec.containers[-1].name", json!(["c"])),
        (".spec.containers[-9].name", json!([])),
        (".spec.containers[0:2].name", json!(["a", "b"])),
        (".spec.containers[-2:].name", json!(["b", "c"])),
        (".spec.containers[::2].name", json!(["a", "c"])),
        (".spec.containers[0,2].name", json!(["a", "c"])),
        (".metadata['name','labels'].a", json!(["b"])),
        (".status.conditions[?(@.type==\"Ready\")].status", json!(["True"])),
        (".status.conditions[?(@.type=='Ready')].status", json!(["True"])),
        (".status.conditions[?(@.type != 'Ready')].status", json!(["False"])),
        (".status.conditions[?(@.age>3)].type", json!(["Other"])),
        (".status.conditions[?(@.age <= 3.0)].type", json!(["Ready"])),
        (".spec.containers[?(@.ports)].name", json!(["a"])),
        ("..n", json!([1, 2])),
        (".spec..ports[0].n", json!([1])),
        (".metadata.labels.*", json!(["b", "x"])),
        (".missing.deeper[3]", json!([])),
    ] {
        assert_eq!(find(path), wanted, "{path}");
    }
}

#[test]
fn as_046_relaxed_paths() {
    let doc = pod();
    for path in ["metadata.name", ".metadata.name", "{metadata.name}", "{.metadata.name}"] {
        let found = JsonPath::relaxed(path).map(|p| p.first(&doc).cloned());
        assert_eq!(found, Ok(Some(json!("p"))), "{path}");
    }
    assert!(JsonPath::relaxed("").is_err() && JsonPath::relaxed("{a").is_err());
    assert_eq!(JsonPath::relaxed(".a.b").ok().as_ref().and_then(JsonPath::simple), Some(vec!["a", "b"]));
    assert_eq!(JsonPath::relaxed(".a[0]").ok().as_ref().and_then(JsonPath::simple), None);
}

#[test]
fn bad_paths_are_refused() {
    for path in [
        "{.a",
        ".a[",
        ".a[x]",
        ".a[1:2:3:4]",
        ".a[0:1:0]",
        ".a[?(@.b]",
        ".a[?(@.b=1)]",
        ".a[?(@.b==)]",
        "..",
        ".a b",
        ".a[1,]",
        ".a['b",
        ".a\\",
        "a..",
    ] {
        assert!(JsonPath::parse(path).is_err(), "{path}");
    }
    assert_eq!(find(".a[x]"), json!("invalid array index x"));
    let nested = format!("{}1{}", "[?(@".repeat(500), ")]".repeat(500));
    assert!(JsonPath::parse(&nested).is_err());
}

#[test]
fn removing_by_path() {
    let mut doc = pod();
    let remove = |path: &str, doc: &mut Value| JsonPath::parse(path).map(|p| p.remove(doc));
    assert_eq!(remove(".spec.containers[0,2]", &mut doc), Ok(2));
    assert_eq!(doc["spec"]["containers"], json!([{"name": "b"}]));
    assert_eq!(remove(".status.conditions[*].age", &mut doc), Ok(2));
    assert_eq!(remove("..labels", &mut doc), Ok(1));
    assert_eq!(remove(".nothing.here", &mut doc), Ok(0));
    assert_eq!(remove("$", &mut doc), Ok(0));
    assert_eq!(doc["metadata"], json!({"name": "p"}));
}

#[test]
fn searches_are_bounded() {
    let wide = json!({"l": vec![json!({"l": [1, 2, 3]}); 2_000]});
    let path = JsonPath::parse("..*..*..*..*").unwrap_or(JsonPath { steps: Vec::new() });
    assert!(path.find(&wide).len() <= 100_000);
}

/// The test vectors of KS-105 and the error texts of KS-106.
#[test]
fn ks_105_ks_106_member_paths() {
    let segments =
        |text: &str| MemberPath::parse(text).map(|p| p.segments().to_vec()).map_err(|e| e.to_string());
    assert_eq!(segments("$.spec.suspend"), Ok(vec!["spec".into(), "suspend".into()]));
    assert_eq!(
        segments(r#"$["metadata"].labels["a.b/c"]"#),
        Ok(vec!["metadata".into(), "labels".into(), "a.b/c".into()])
    );
    assert_eq!(segments(r#"$["a\"]\u00e9"]"#), Ok(vec!["a\"]é".into()]));
    assert!(MemberPath::parse("$").is_ok_and(|p| p.is_whole_object()));
    for (text, error) in [
        ("", "syntax error at 0: missing root identifier (dollar sign)"),
        ("'x", "syntax error at 0: missing root identifier (dollar sign)"),
        ("$.", "syntax error at 2: expected member-name-shorthand, got ''"),
        ("$[", "syntax error at 2: expected open quote, got ''"),
        ("$[]", "syntax error at 2: expected open quote, got ']'"),
        ("$.a b", "syntax error at 3: extra junk ' ' after last segment"),
        ("$.a[0]", "syntax error at 4: expected open quote, got '0'"),
        ("$.a[*]", "syntax error at 4: expected open quote, got '*'"),
        ("$['a']", "syntax error at 2: expected open quote, got '''"),
        ("$..a", "syntax error at 2: expected member-name-shorthand, got '.'"),
        ("$.1", "syntax error at 2: expected member-name-shorthand, got '1'"),
        ("$[\"a\"", "syntax error at 5: missing close bracket, got ''"),
        ("$[\"a", "syntax error at 4: missing close quote"),
    ] {
        assert_eq!(segments(text), Err(error.to_owned()), "{text}");
    }
}

#[test]
fn ks_105_only_members_are_removed() {
    let mut doc = pod();
    let remove = |text: &str, doc: &mut Value| MemberPath::parse(text).is_ok_and(|p| p.remove(doc));
    assert!(remove(r#"$.metadata.labels["app.kubernetes.io/name"]"#, &mut doc));
    assert!(
        !remove("$.spec.containers.name", &mut doc) && !remove("$.x.y", &mut doc) && !remove("$", &mut doc)
    );
    assert_eq!(doc["metadata"]["labels"], json!({"a": "b"}));
}

proptest! {
    #[test]
    fn member_paths_round_trip(segments in prop::collection::vec(".{0,6}|[a-z_ü][a-z0-9]{0,5}", 0..4)) {
        let text = segments.iter().fold("$".to_owned(), |t, s| format!("{t}[{}]", Value::from(s.as_str())));
        let path = MemberPath::parse(&text).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(path.segments(), &segments[..]);
        prop_assert_eq!(MemberPath::parse(&path.to_string()), Ok(path));
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in ".*|[$@.a-c\\[\\]()?*:0-9,'\"\\\\=<>! -]{0,24}") {
        let mut doc = pod();
        let _ = MemberPath::parse(&text).map(|p| p.remove(&mut doc));
        for path in [JsonPath::parse(&text), JsonPath::relaxed(&text)].into_iter().flatten() {
            let _ = path.find(&doc).len();
            let _ = path.remove(&mut doc);
        }
    }

    #[test]
    fn what_is_removed_is_gone(text in "(\\.[a-c*]|\\[[0-2]\\]|\\[\\*\\]|\\.\\.[a-c]){1,3}", doc in documents()) {
        let path = JsonPath::parse(&text).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let mut left = doc.clone();
        let removed = path.remove(&mut left);
        prop_assert_eq!(removed == 0, left == doc);
        prop_assert!(removed <= path.find(&doc).len());
    }
}

fn documents() -> impl Strategy<Value = Value> {
    (0..3_i64).prop_map(Value::from).prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-c]", inner, 0..3)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}
