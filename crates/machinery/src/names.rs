//! Syntax of names, labels and keys (AS-019). Each check returns the error texts; none if the value is valid.

const LABEL_FMT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN_FMT: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const QUALIFIED_FMT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const QUALIFIED_MSG: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                             alphanumeric character";
const PORTS: std::ops::RangeInclusive<i64> = 1..=65_535;

/// Most bytes of a DNS label, label value or name part.
pub const LABEL_MAX: usize = 63;
/// Most bytes of a DNS subdomain or label prefix.
pub const SUBDOMAIN_MAX: usize = 253;
/// Characters of generated names: no vowels, and no characters that look like others.
const SUFFIX_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LEN: usize = 5;

/// The text for a value that is too long.
pub fn max_len_error(max: usize) -> String {
    format!("must be no more than {max} characters")
}

/// The text for a label key or value that is too long. Newer checks of Kubernetes count bytes, and say so.
fn max_bytes_error(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

/// The text for a value that does not match its pattern.
pub fn regex_error(message: &str, pattern: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    let examples =
        if examples.is_empty() { String::new() } else { format!("e.g. {}", examples.join(" or ")) };
    format!("{message} ({examples}regex used for validation is '{pattern}')")
}

fn lower_alnum(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

/// Whether a text starts and ends with `edge`, and every byte is `edge` or one of `inner`.
fn bounded_by(text: &str, edge: fn(u8) -> bool, inner: &[u8]) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|b| edge(*b))
        && bytes.last().is_some_and(|b| edge(*b))
        && bytes.iter().all(|b| edge(*b) || inner.contains(b))
}

fn is_label(text: &str) -> bool {
    bounded_by(text, lower_alnum, b"-")
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

fn is_qualified_part(text: &str) -> bool {
    bounded_by(text, |b| b.is_ascii_alphanumeric(), b"-_.")
}

fn checked(value: &str, max: usize, fits: bool, otherwise: impl FnOnce() -> String) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > max {
        errors.push(max_len_error(max));
    }
    if !fits {
        errors.push(otherwise());
    }
    errors
}

/// RFC 1123 label: names of namespaces, containers, volumes.
pub fn dns1123_label(value: &str) -> Vec<String> {
    checked(value, LABEL_MAX, is_label(value), || {
        if is_subdomain(value) {
            return "must not contain dots".to_owned();
        }
        regex_error(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
             end with an alphanumeric character",
            LABEL_FMT,
            &["my-name", "123-abc"],
        )
    })
}

/// RFC 1123 subdomain: names of most objects.
pub fn dns1123_subdomain(value: &str) -> Vec<String> {
    checked(value, SUBDOMAIN_MAX, is_subdomain(value), || {
        regex_error(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character",
            SUBDOMAIN_FMT,
            &["example.com"],
        )
    })
}

/// RFC 1123 subdomain that may have underscores: search paths of DNS.
pub fn dns1123_subdomain_with_underscore(value: &str) -> Vec<String> {
    let part = |text: &str| bounded_by(text.strip_prefix('_').unwrap_or(text), lower_alnum, b"-_");
    checked(value, SUBDOMAIN_MAX, value.split('.').all(part), || {
        let label = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
        regex_error(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and \
             must start and end with an alphanumeric character",
            &format!(r"{label}(\.{label})*"),
            &["example.com"],
        )
    })
}

/// `*.` and a subdomain.
pub fn dns1123_wildcard(value: &str) -> Vec<String> {
    let fits = value.strip_prefix("*.").is_some_and(is_subdomain);
    checked(value, SUBDOMAIN_MAX, fits, || {
        regex_error(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must \
             consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character",
            &format!(r"\*\.{SUBDOMAIN_FMT}"),
            &["*.example.com"],
        )
    })
}

/// RFC 1035 label: plural, singular and version of a custom resource.
pub fn dns1035_label(value: &str) -> Vec<String> {
    let fits = is_label(value) && value.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
    checked(value, LABEL_MAX, fits, || {
        regex_error(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character",
            "[a-z]([-a-z0-9]*[a-z0-9])?",
            &["my-name", "abc-123"],
        )
    })
}

/// Keys of labels and annotations, finalizers, conditions: an optional domain, `/`, and a name.
pub fn qualified_name(value: &str) -> Vec<String> {
    let pattern = || regex_error(QUALIFIED_MSG, QUALIFIED_FMT, &["MyName", "my.name", "123-abc"]);
    let mut errors = Vec::new();
    let name = match value.split_once('/') {
        None => value,
        Some((_, rest)) if rest.contains('/') => {
            return vec![format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                pattern()
            )];
        }
        Some(("", name)) => {
            errors.push("prefix part must be non-empty".to_owned());
            name
        }
        Some((prefix, name)) => {
            let bytes = max_bytes_error(SUBDOMAIN_MAX);
            let mut faults = dns1123_subdomain(prefix);
            faults
                .iter_mut()
                .filter(|f| **f == max_len_error(SUBDOMAIN_MAX))
                .for_each(|f| f.clone_from(&bytes));
            errors.extend(faults.into_iter().map(|e| format!("prefix part {e}")));
            name
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        errors.push(format!("name part {}", max_bytes_error(LABEL_MAX)));
    }
    if !is_qualified_part(name) {
        errors.push(format!("name part {}", pattern()));
    }
    errors
}

/// Values of labels.
pub fn label_value(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > LABEL_MAX {
        errors.push(max_bytes_error(LABEL_MAX));
    }
    if !value.is_empty() && !is_qualified_part(value) {
        errors.push(regex_error(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character",
            "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
            &["MyValue", "my_value", "12345"],
        ));
    }
    errors
}

/// The rule for every name, because names occur in URLs. The only rule for RBAC objects.
pub fn path_segment(value: &str) -> Vec<String> {
    if matches!(value, "." | "..") {
        return vec![format!("may not be '{value}'")];
    }
    ["/", "%"].into_iter().filter(|c| value.contains(c)).map(|c| format!("may not contain '{c}'")).collect()
}

/// Keys of ConfigMap and Secret data.
pub fn config_key(value: &str) -> Vec<String> {
    let fits = !value.is_empty()
        && value.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'));
    let mut errors = checked(value, SUBDOMAIN_MAX, fits, || {
        regex_error(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        )
    });
    errors.extend(directory_escape(value));
    errors
}

fn directory_escape(value: &str) -> Option<String> {
    match value {
        "." | ".." => Some(format!("must not be '{value}'")),
        _ if value.starts_with("..") => Some("must not start with '..'".to_owned()),
        _ => None,
    }
}

/// Names of environment variables: any printable ASCII but `=`.
pub fn env_var_name(value: &str) -> Vec<String> {
    if value.is_empty() {
        return vec!["environment variable name must be non-empty".to_owned()];
    }
    if value.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=') {
        return Vec::new();
    }
    vec![
        "a valid environment variable name must consist only of printable ASCII characters other than '='"
            .to_owned(),
    ]
}

/// Names of environment variables that shells accept.
pub fn env_var_name_strict(value: &str) -> Vec<String> {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    let fits = value.as_bytes().first().is_some_and(|b| inner(*b) && !b.is_ascii_digit())
        && value.bytes().all(inner);
    let mut errors = checked(value, usize::MAX, fits, || {
        regex_error(
            "a valid environment variable name must consist of alphabetic characters, digits, '_', '-', or '.', and \
             must not start with a digit",
            "[-._a-zA-Z][-._a-zA-Z0-9]*",
            &["my.env-name", "MY_ENV.NAME", "MyEnvName1"],
        )
    });
    errors.extend(directory_escape(value));
    errors
}

/// Names of container ports.
pub fn port_name(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 15 {
        errors.push(max_len_error(15));
    }
    if value.is_empty() || !value.bytes().all(|b| lower_alnum(b) || b == b'-') {
        errors.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !value.bytes().any(|b| b.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".to_owned());
    }
    if value.contains("--") {
        errors.push("must not contain consecutive hyphens".to_owned());
    }
    if value.starts_with('-') || value.ends_with('-') {
        errors.push("must not begin or end with a hyphen".to_owned());
    }
    errors
}

/// Numbers of ports.
pub fn port_number(value: i64) -> Vec<String> {
    if PORTS.contains(&value) {
        return Vec::new();
    }
    vec!["must be between 1 and 65535, inclusive".to_owned()]
}

/// An IPv4 or IPv6 address.
pub fn ip_address(value: &str) -> Vec<String> {
    if value.parse::<std::net::IpAddr>().is_ok() {
        return Vec::new();
    }
    vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()]
}

/// Identifiers of programming languages.
pub fn c_identifier(value: &str) -> Vec<String> {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let fits = value.as_bytes().first().is_some_and(|b| inner(*b) && !b.is_ascii_digit())
        && value.bytes().all(inner);
    checked(value, usize::MAX, fits, || {
        regex_error(
            "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric \
             characters or '_'",
            "[A-Za-z_][A-Za-z0-9_]*",
            &["my_name", "MY_NAME", "MyName"],
        )
    })
}

/// Names of HTTP headers.
pub fn http_header_name(value: &str) -> Vec<String> {
    let fits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    checked(value, usize::MAX, fits, || {
        regex_error(
            "a valid HTTP header must consist of alphanumeric characters or '-'",
            "[-A-Za-z0-9]+",
            &["X-Header-Name"],
        )
    })
}

/// A domain of at least three segments, as names of webhooks are.
pub fn fully_qualified_name(value: &str) -> Vec<String> {
    let errors = dns1123_subdomain(value);
    if !errors.is_empty() || value.split('.').count() >= 3 {
        return errors;
    }
    vec!["should be a domain with at least three segments separated by dots".to_owned()]
}

/// A domain of at least two segments.
pub fn fully_qualified_domain_name(value: &str) -> Vec<String> {
    let bare = value.strip_suffix('.').unwrap_or(value);
    let errors = dns1123_subdomain(bare);
    if !errors.is_empty() {
        return errors;
    }
    if bare.split('.').count() < 2 {
        return vec!["should be a domain with at least two segments separated by dots".to_owned()];
    }
    bare.split('.').filter(|l| l.len() > LABEL_MAX).flat_map(dns1123_label).collect()
}

/// The errors of a name prefix (`generateName`): checked as if a character followed.
pub fn as_prefix(rule: fn(&str) -> Vec<String>, prefix: &str) -> Vec<String> {
    match prefix.strip_suffix('-') {
        // The character before the dash is replaced as well, because it may be a dash, and a name cannot end with one.
        Some(rest) if !rest.is_empty() => {
            let mut masked: String = rest.to_owned();
            masked.pop();
            masked.push('a');
            rule(&masked)
        }
        _ => rule(prefix),
    }
}

/// The random part of a generated name, from at least 24 random bits.
pub fn random_suffix(mut entropy: u64) -> String {
    let base = SUFFIX_ALPHABET.len() as u64;
    (0..SUFFIX_LEN)
        .map(|_| {
            let at = usize::try_from(entropy % base).unwrap_or_default();
            entropy /= base;
            char::from(SUFFIX_ALPHABET.get(at).copied().unwrap_or(b'x'))
        })
        .collect()
}

/// A name from `generateName` (AS-019): the prefix, truncated to 63 bytes in total, and the suffix.
pub fn generate_name(prefix: &str, suffix: &str) -> String {
    let cut = prefix.floor_char_boundary((LABEL_MAX - SUFFIX_LEN).min(prefix.len()));
    format!("{}{suffix}", prefix.get(..cut).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' \
                             or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex \
                             used for validation is \
                             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    const NAME_PART: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and \
                             end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex \
                             used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

    #[test]
    fn as_019_subdomains() {
        for bad in ["Upper", "under_score", "-dash", "dot.", "a..b", "sp ace", "ünï", ""] {
            assert_eq!(dns1123_subdomain(bad), [SUBDOMAIN], "{bad}");
        }
        assert_eq!(dns1123_subdomain(&"x".repeat(254)), ["must be no more than 253 characters"]);
        assert!(dns1123_subdomain("a.b-c.d").is_empty());
        assert!(dns1123_subdomain(&"x".repeat(253)).is_empty());
    }

    #[test]
    fn as_019_labels() {
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
        assert_eq!(
            dns1123_label("UPPER"),
            [
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
              and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
              '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
        assert_eq!(
            dns1035_label("V1"),
            [
                "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
              character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
              validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
        assert!(!dns1035_label("1a").is_empty() && dns1035_label("a1").is_empty());
    }

    #[test]
    fn as_019_keys_and_values() {
        assert_eq!(qualified_name("til~de"), [NAME_PART]);
        assert_eq!(qualified_name("a b"), [NAME_PART]);
        assert_eq!(qualified_name("/x"), ["prefix part must be non-empty"]);
        assert_eq!(qualified_name("A/x"), [format!("prefix part {SUBDOMAIN}")]);
        assert_eq!(qualified_name("a/"), ["name part must be non-empty".to_owned(), NAME_PART.to_owned()]);
        assert_eq!(qualified_name(&"x".repeat(64)), ["name part must be no more than 63 bytes"]);
        assert_eq!(
            qualified_name("a/b/c"),
            [
                "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end \
              with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation \
              is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. \
              'example.com/MyName')"
            ]
        );
        assert!(qualified_name("example.com/My_Name.x").is_empty());
        assert_eq!(
            label_value("a b"),
            [
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
              start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
              for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            ]
        );
        assert!(label_value("").is_empty());
    }

    #[test]
    fn as_019_other_rules() {
        assert_eq!(path_segment(".."), ["may not be '..'"]);
        assert_eq!(path_segment("a/b"), ["may not contain '/'"]);
        assert_eq!(path_segment("a%b"), ["may not contain '%'"]);
        assert!(path_segment("with:colon and space").is_empty());
        assert_eq!(config_key(".."), ["must not be '..'"]);
        assert_eq!(config_key("..a"), ["must not start with '..'"]);
        let bad_key = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  \
                       or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
        for bad in ["bad key", "a/b", ""] {
            assert_eq!(config_key(bad), [bad_key]);
        }
        assert_eq!(port_name("sixteen-chars-ab"), ["must be no more than 15 characters"]);
        assert_eq!(port_name("1"), ["must contain at least one letter (a-z)"]);
        assert_eq!(
            fully_qualified_name("short"),
            ["should be a domain with at least three segments separated by dots"]
        );
        assert!(env_var_name("A b").is_empty() && !env_var_name("a=b").is_empty());
        assert!(ip_address("::1").is_empty() && !ip_address("1.2.3").is_empty());
    }

    #[test]
    fn as_019_generated_names() {
        assert_eq!(generate_name("pre-", "bcdfg"), "pre-bcdfg");
        assert_eq!(generate_name(&"x".repeat(100), "bcdfg").len(), 63);
        assert_eq!(generate_name(&"ü".repeat(40), "bcdfg"), format!("{}bcdfg", "ü".repeat(29)));
        let suffix = random_suffix(0x1234_5678_9abc_def0);
        assert_eq!(suffix.len(), 5);
        assert!(suffix.bytes().all(|b| SUFFIX_ALPHABET.contains(&b)));
        assert_ne!(random_suffix(1), random_suffix(2));
        assert!(as_prefix(dns1123_subdomain, "pre-").is_empty());
        assert!(as_prefix(dns1123_subdomain, "pre--").is_empty());
        assert!(!as_prefix(dns1123_subdomain, "Pre-").is_empty());
    }

    proptest! {
        #[test]
        fn any_text_is_judged(text in ".{0,80}|[a-zA-Z0-9._/*%-]{0,70}") {
            let rules: [fn(&str) -> Vec<String>; 14] = [
                dns1123_label, dns1123_subdomain, dns1123_wildcard, dns1035_label, qualified_name, label_value,
                path_segment, config_key, env_var_name, env_var_name_strict, port_name, c_identifier,
                fully_qualified_name, fully_qualified_domain_name,
            ];
            for rule in rules {
                let _ = (rule(&text), as_prefix(rule, &text));
            }
            let generated = generate_name(&text, "bcdfg");
            prop_assert!(generated.len() <= LABEL_MAX && generated.ends_with("bcdfg"));
            // A stricter rule implies the laxer one.
            prop_assert!(!dns1035_label(&text).is_empty() || dns1123_label(&text).is_empty());
            prop_assert!(!dns1123_label(&text).is_empty() || dns1123_subdomain(&text).is_empty());
            prop_assert!(!dns1123_label(&text).is_empty() || label_value(&text).is_empty());
        }
    }
}
