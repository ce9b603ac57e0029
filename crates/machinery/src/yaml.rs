//! YAML parsing and printing, through JSON values (AS-029).
//!
//! Plain scalars are parsed as in YAML 1.1 (`yes`, `off` and `y` are booleans), as in Kubernetes.

use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use crate::json::DEPTH_MAX;

/// Text that is not YAML.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct YamlError {
    message: String,
}

/// Stack for a document of [`DEPTH_MAX`] levels without optimisation.
const STACK: usize = 32 << 20;

/// Runs the recursive parser where [`DEPTH_MAX`] levels fit. Optimised, they fit on any stack; without optimisation a level
/// takes ten times as much, and the parser gets a stack of its own.
fn on_enough_stack<T: Send>(parse: impl FnOnce() -> T + Send) -> T {
    if !cfg!(debug_assertions) {
        return parse();
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, parse);
        match thread.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(parsed)) => parsed,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(error) => std::panic::panic_any(format!("no thread for the parser: {error}")),
        }
    })
}

fn options(duplicate_keys: DuplicateKeyPolicy) -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: DEPTH_MAX },
        duplicate_keys: duplicate_keys,
        legacy_octal_numbers: true,
        with_snippet: false,
    }
}

/// Parses the first document; empty text is `null`. Of duplicate keys the last wins.
///
/// # Errors
/// The text is not YAML.
pub fn parse_one(text: &str) -> Result<Value, YamlError> {
    first(text, DuplicateKeyPolicy::LastWins)
}

/// [`parse_one`], but duplicate keys are an error.
///
/// # Errors
/// The text is not YAML, or has duplicate keys.
pub fn parse_one_strict(text: &str) -> Result<Value, YamlError> {
    first(text, DuplicateKeyPolicy::Error)
}

fn first(text: &str, duplicate_keys: DuplicateKeyPolicy) -> Result<Value, YamlError> {
    on_enough_stack(|| {
        let mut bytes = text.as_bytes();
        let mut documents = serde_saphyr::read_with_options::<_, Value>(&mut bytes, options(duplicate_keys));
        documents.next().transpose().map(Option::unwrap_or_default).map_err(|e| refused(&e, text))
    })
}

/// Parses every document of a stream. Skips empty ones.
///
/// # Errors
/// A document is not YAML.
pub fn parse_all(text: &str) -> Result<Vec<Value>, YamlError> {
    let parse = || serde_saphyr::from_multiple_with_options(text, options(DuplicateKeyPolicy::LastWins));
    let documents: Vec<Value> = on_enough_stack(parse).map_err(|e| refused(&e, text))?;
    Ok(documents.into_iter().filter(|d| !d.is_null()).collect())
}

/// Prints one document.
///
/// # Errors
/// The value cannot be printed as YAML.
pub fn to_string(value: &Value) -> Result<String, YamlError> {
    let options = serde_saphyr::ser_options! { yaml_12: false };
    serde_saphyr::to_string_with_options(value, options).map_err(|e| YamlError { message: e.to_string() })
}

fn refused(error: &serde_saphyr::Error, text: &str) -> YamlError {
    let error = error.without_snippet();
    let line = error.location().map_or(1, |l| l.line().max(1));
    let message = error.to_string();
    // The most frequent error that clients see: the text ends inside `[` or `{`.
    let open = text.trim_end().ends_with(['[', '{', ',']);
    let what = if open { "did not find expected node content" } else { message.as_str() };
    YamlError { message: format!("yaml: line {line}: {what}") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn as_029_yaml_reads_like_yaml_1_1() {
        let text = "metadata: {name: y}\nn: 5\ns: \"1\"\nb: |\n  two\n  lines\nt: ~\no: 0755\nq: 'no'\n";
        let wanted = json!({"metadata": {"name": true}, "n": 5, "s": "1", "b": "two\nlines\n", "t": null, "o": 493, "q": "no"});
        assert_eq!(parse_one(text), Ok(wanted));
        assert_eq!(parse_one(""), Ok(Value::Null));
        assert_eq!(parse_one("{\"a\": [1, 2.5]}"), Ok(json!({"a": [1, 2.5]})));
        assert_eq!(
            parse_one("a: [").map_err(|e| e.to_string()),
            Err("yaml: line 1: did not find expected node content".into())
        );
    }

    #[test]
    fn as_029_yaml_streams_and_duplicates() {
        let two = "---\nmetadata: {name: d1}\n---\n---\nmetadata: {name: d2}\n";
        assert_eq!(parse_one(two), Ok(json!({"metadata": {"name": "d1"}})));
        assert_eq!(parse_all(two).map(|d| d.len()), Ok(2));
        assert_eq!(parse_one("a: 1\na: 2\n"), Ok(json!({"a": 2})));
        assert!(parse_one_strict("a: 1\na: 2\n").is_err());
        assert!(parse_one(&"[".repeat(10_000)).is_err());
    }

    /// CVE-2019-11254: deeply nested and very long texts are parsed or refused.
    #[test]
    fn cve_2019_11254_hostile_texts_are_read_or_refused() {
        for text in [
            "? ".repeat(50_000),
            "k: [\n".repeat(20_000),
            format!("a:\n{}", "- ".repeat(50_000)),
            format!("a: '{}", "''".repeat(50_000)),
            "{a: ".repeat(50_000),
            format!("a: {}", "!a ".repeat(50_000)),
            format!("a: {}", "&a ".repeat(50_000)),
            (0..1_500).flat_map(|n| [" ".repeat(n), "k:\n".to_owned()]).collect::<String>(),
        ] {
            let _ = (parse_one(&text), parse_all(&text));
        }
    }

    /// AS-029: the deepest documents that are permitted fit on the stack of any thread, also without optimisation.
    #[test]
    fn as_029_the_deepest_documents_are_read() {
        let block = |indicator: &str| -> String {
            (0..DEPTH_MAX - 2).flat_map(|n| [" ".repeat(n), format!("{indicator}\n")]).collect()
        };
        let (flow, maps) = (DEPTH_MAX - 2, DEPTH_MAX - 2);
        for text in [
            "[".repeat(flow) + &"]".repeat(flow),
            "{a: ".repeat(maps) + "1" + &"}".repeat(maps),
            block("-"),
            block("k:"),
            "- ".repeat(DEPTH_MAX - 2),
        ] {
            assert!(parse_one(&text).is_ok_and(|value| crate::json::depth(&value) > 100), "{text}");
            assert!(parse_all(&text).is_ok());
        }
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[ -~äß\\n]{0,12}".prop_map(Value::from),
            prop::sample::select(vec![
                "y",
                "no",
                "on",
                "null",
                "~",
                "1e3",
                "0755",
                "0x1f",
                "1_000",
                "12:30:00",
                ".inf",
                "- a",
                "a: b",
                "#",
                "",
                " x",
                "2020-01-01"
            ])
            .prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z./\\-]{1,8}|y|no|1|~", inner, 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn yaml_round_trips(value in json_value()) {
            let text = to_string(&value).map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(parse_one(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?, value, "{}", text);
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in ".*|[a-z:\\-\\[\\]{},&*!|>'\"#% \n]{0,40}") {
            let _ = (parse_one(&text), parse_all(&text));
        }
    }
}
