use super::*;
use proptest::prelude::*;
use serde::Deserialize;

/// The result of Go's `text/template` for a template over [`data`].
#[derive(Deserialize)]
struct Case {
    template: String,
    out: Option<String>,
    #[serde(default)]
    error: String,
}

fn data() -> Arc<BTreeMap<String, String>> {
    let pairs = [("clusterName", "atlas"), ("siteId", "a17"), ("empty", ""), ("été", "summer")];
    Arc::new(pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

fn expand(source: &str) -> Result<String, String> {
    let limits = Limits::default();
    Template::new(source, &limits).expand("T", &data(), &limits).map_err(|error| error.to_string())
}

/// KS-121, KS-122: the same output as Go, and an error wherever Go has one. Go generated the table.
#[test]
fn ks_122_expands_as_go_does() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("cases.json")).expect("a table");
    let total = cases.len();
    let (mut wrong, mut alike) = (Vec::new(), 0);
    for Case { template, out, error } in cases {
        match (expand(&template), out) {
            (Ok(ours), Some(gos)) if ours == gos => {}
            (Err(ours), None) => alike += usize::from(ours == error),
            (ours, gos) => wrong.push(format!("{template:?}: {ours:?}, Go: {gos:?} {error}")),
        }
    }
    assert!(wrong.is_empty(), "{} of {total} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(alike > 125, "most errors read as Go's do, not only {alike}");
}

/// KS-126: name, position, template and cause in one line, in Go's words.
#[test]
fn ks_126_errors_name_place_and_cause() {
    let cases = [
        (
            "a\n{{ .siteld }}",
            r#"template: T:2:3: executing "T" at <.siteld>: map has no entry for key "siteld""#,
        ),
        ("{{ if }}", "template: T:1: missing value for if"),
        ("{{ printf `a\nb` .x }}", r#"template: T:2:3: executing "T" at <.x>: map has no entry for key "x""#),
        (
            "{{ define \"inner\" }}{{ len 1 }}{{ end }}{{ template \"inner\" }}",
            r#"template: T:1:23: executing "inner" at <len 1>: error calling len: len of type int"#,
        ),
        (
            "{{ template `t` 017 }}",
            r#"template: T:1:12: executing "T" at <{{template "t" 017}}>: template "t" not defined"#,
        ),
        ("{{ $x = 1 }}", r#"template: T:1:8: executing "T" at <1>: undefined variable: $x"#),
        ("{{ printf 1 }}", r#"template: T:1:10: executing "T" at <1>: expected string; found 1"#),
        (
            "{{ printf . }}",
            r#"template: T:1:10: executing "T" at <.>: wrong type for value; expected string; got map[string]string"#,
        ),
        (
            "{{ 1 | printf }}",
            r#"template: T:1:7: executing "T" at <printf>: wrong type for value; expected string; got int"#,
        ),
        (
            "{{ call 0 }}",
            r#"template: T:1:3: executing "T" at <call 0>: error calling call: non-function 0 of type int"#,
        ),
        (
            "{{ range $i, $j := 3 }}{{ end }}",
            r#"template: T:1:19: executing "T" at <3>: can't use 3 to iterate over more than one variable"#,
        ),
        (
            "{{ (print .siteId).x }}",
            r#"template: T:1:10: executing "T" at <.siteId>: can't evaluate field x in type string"#,
        ),
        (
            "{{ define `t` }}a{{ end }}{{ define `t` }}b{{ end }}",
            r#"template: T:1: template: multiple definition of template "t""#,
        ),
        ("{{ 1\n| nosuch }}", r#"template: T:2: function "nosuch" not defined"#),
        ("{{ nosuch\n1 }}", r#"template: T:1: function "nosuch" not defined"#),
        ("{{ .siteId\n", "template: T:2: unclosed action started at T:1"),
        (
            "{{ if true }}\n{{/* c */ x}}",
            "template: T:2: comment ends before closing delimiter in action started at T:1",
        ),
        ("{{ .a..b }}", "template: T:1: unexpected <.> in operand"),
        ("{{ end'a' }}", "template: T:1: bad character U+0027 '''"),
    ];
    for (template, error) in cases {
        assert_eq!(expand(template), Err(error.to_owned()), "{template}");
    }
    assert!(!expand("{{ len `\n` 1 }}").expect_err("too many arguments").contains('\n'));
}

/// KS-123: whatever a template does, it ends with an error soon, and with little memory.
#[test]
fn ks_123_every_limit_holds() {
    let doubling = format!("{{{{ $x := `ab` }}}}{}", "{{ $x = print $x $x }}".repeat(60));
    let many = format!("{}{{{{ printf `%d` 1 }}}}", "x".repeat(64 * 1024));
    let tree: String = (0..40)
        .map(|n| {
            let call = format!("{{{{ template `t{}` }}}}", n + 1);
            format!("{{{{ define `t{n}` }}}}{call}{call}{{{{ end }}}}")
        })
        .chain(["{{ define `t40` }}{{ end }}{{ template `t0` }}".to_owned()])
        .collect();
    let cases = [
        (
            "recursion",
            "{{ define `t` }}{{ template `t` . }}{{ end }}{{ template `t` . }}".into(),
            "depth (100)",
        ),
        ("recursion of the body", "{{ template `T` . }}".into(), "depth (100)"),
        ("a long loop", "{{ range 1000000000 }}{{ end }}".into(), "steps"),
        (
            "loops in loops",
            "{{ range 10000 }}{{ range 10000 }}{{ range 10000 }}{{ end }}{{ end }}{{ end }}".into(),
            "steps",
        ),
        ("templates that branch", tree, "steps"),
        ("texts that double", doubling, "exceeds 1048576 bytes"),
        ("long output", format!("{{{{ range 1000 }}}}{}{{{{ end }}}}", "y".repeat(2000)), "output exceeds"),
        ("a wide field", "{{ printf `%9999999d` 1 }}".into(), "exceeds 1048576 bytes"),
        (
            "wide fields",
            format!("{{{{ printf `{}` 1 }}}}", "%900000[1]d".repeat(1000)),
            "exceeds 1048576 bytes",
        ),
        ("a long source", many, "at most 65536"),
        ("deep parentheses", format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000)), "nesting"),
        ("deep blocks", format!("{}{}", "{{ if true }}".repeat(200), "{{ end }}".repeat(200)), "nesting"),
        (
            "deep else-ifs",
            format!("{{{{ if false }}}}{}{{{{ end }}}}", "{{ else if false }}".repeat(3000)),
            "nesting",
        ),
        (
            "deep blocks in recursion",
            format!(
                "{{{{ define `t` }}}}{}{{{{ template `t` }}}}{}{{{{ end }}}}{{{{ template `t` }}}}",
                "{{ if true }}".repeat(90),
                "{{ end }}".repeat(90)
            ),
            "nesting (250)",
        ),
    ];
    for (why, template, expected) in cases {
        let error = expand(&template).map(|out| out.len()).expect_err(why);
        assert!(error.contains(expected), "{why}: {error}");
    }
}

/// KS-123: templates within the limits expand.
#[test]
fn ks_123_limits_leave_room() {
    let nested = format!("{}x{}", "{{ if true }}".repeat(95), "{{ end }}".repeat(95));
    assert_eq!(expand(&nested).as_deref(), Ok("x"));
    let recursive =
        "{{ define `t` }}{{ . }}{{ if lt . 9 }}{{ end }}{{ end }}{{ range 10 }}{{ template `t` . }}{{ end }}";
    assert_eq!(expand(recursive).as_deref(), Ok("0123456789"));
    assert_eq!(expand("{{ range 9999 }}x{{ end }}").map(|out| out.len()), Ok(9999));
}

proptest! {
    /// KS-123: no content of an action panics.
    #[test]
    fn ks_123_no_input_panics(parts in proptest::collection::vec(
        prop_oneof![
            Just("{{"), Just("}}"), Just("{{- "), Just(" -}}"), Just("/*"), Just("*/"), Just("if"), Just("range"), Just("end"),
            Just("else"), Just("with"), Just("define"), Just("template"), Just("block"), Just("break"), Just(" "),
            Just("$x"), Just(":="), Just("="), Just("|"), Just("("), Just(")"), Just(".clusterName"), Just("."), Just(","),
            Just("\"t\""), Just("`a"), Just("'é'"), Just("1"), Just("-0x1p-3"), Just("1e9"), Just("nil"), Just("true"),
            Just("printf"), Just("index"), Just("slice"), Just("len"), Just("eq"), Just("and"), Just("or"), Just("html"),
            Just("\n"), Just("é"), Just("\\"),
        ], 0..40)
    ) {
        let _ = expand(&parts.concat());
    }

    /// KS-123: no format panics.
    #[test]
    fn ks_123_no_format_panics(format in "(%[#0+ -]{0,3}(\\[[0-9x]{0,2}\\])?[0-9*]{0,7}(\\.[0-9*]{0,7})?[a-zA-Z%]){1,3}") {
        for args in ["", "1 -5", "1.5 2", "\"é\\n\" 3", ". nil", "(index \"a\" 0) true"] {
            let _ = expand(&format!("{{{{ printf `{format}` {args} }}}}"));
        }
    }
}
