//! CEL identifiers of fields. Characters and reserved words that CEL does not allow are escaped.

/// Reserved words. Fields with these names get underscores around them.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// The field name of an identifier; the inverse of [`escape`].
pub(super) fn unescape(identifier: &str) -> String {
    const SIGNS: [(&str, &str); 5] = [
        ("__underscores__", "__"),
        ("__dot__", "."),
        ("__dash__", "-"),
        ("__slash__", "/"),
        ("__dollar__", "$"),
    ];
    let word = identifier.strip_prefix("__").and_then(|rest| rest.strip_suffix("__"));
    if let Some(word) = word.filter(|word| RESERVED.contains(word)) {
        return word.to_owned();
    }
    let mut out = String::with_capacity(identifier.len());
    let mut rest = identifier;
    while let Some(first) = rest.chars().next() {
        let sign = SIGNS.iter().find_map(|(name, sign)| Some((*sign, rest.strip_prefix(name)?)));
        let (text, after) = match sign {
            Some(found) => found,
            None => rest.split_at(first.len_utf8()),
        };
        out.push_str(text);
        rest = after;
    }
    out
}

/// The identifier of a field; `None` if it cannot have one.
pub(super) fn escape(name: &str) -> Option<String> {
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || "_.-/$".contains(c);
    if !name.chars().all(fits) {
        return None;
    }
    let escaped = name.replace("__", "\u{0}").replace('.', "__dot__").replace('-', "__dash__");
    Some(escaped.replace('/', "__slash__").replace('$', "__dollar__").replace('\u{0}', "__underscores__"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AS-044: unescape is the inverse of escape.
    #[test]
    fn as_044_identifiers_lead_back_to_fields() {
        let names = [
            "a",
            "if",
            "true",
            "a.b",
            "a-b/c$",
            "__",
            "a__b",
            "a___b",
            "a_.b",
            "_._",
            "a.underscores.b",
            "x.dot.y",
            "__dot__",
            "____",
            "kubernetes.io/x",
            "__if__",
            "namespace",
        ];
        for name in names {
            let identifier = escape(name).unwrap_or_else(|| panic!("{name} can be an identifier"));
            assert_eq!(unescape(&identifier), name, "{identifier}");
        }
    }
}
