//! A workaround for the CEL parser, which reads `!!x` as `!x` and `--x` as `-x`.

use std::borrow::Cow;

/// The text without pairs of equal unary operators, which cancel each other out. Spaces replace them, so that
/// positions in messages stay correct.
pub(super) fn without_pairs(source: &str) -> Cow<'_, str> {
    let text = source.as_bytes();
    let mut blanks = Vec::new();
    // Whether an operand begins next, so that a minus is unary.
    let mut opens = true;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let second = next_visible(text, at + 1);
        let doubled = second < text.len() && text.get(second) == Some(&byte);
        match byte {
            b'/' if text.get(at + 1) == Some(&b'/') => at = line_end(text, at),
            b'"' | b'\'' => {
                at = string_end(text, at);
                opens = false;
            }
            b'!' | b'-' if doubled && (byte == b'!' || opens) => {
                blanks.extend([at, second]);
                at = second + 1;
            }
            _ if byte.is_ascii_whitespace() => at += 1,
            _ if is_word(byte) => {
                let end = at + text.iter().skip(at).take_while(|byte| is_word(**byte)).count();
                opens = text.get(at..end) == Some(b"in");
                at = end;
            }
            _ => {
                opens = !matches!(byte, b')' | b']' | b'}');
                at += 1;
            }
        }
    }
    if blanks.is_empty() {
        return Cow::Borrowed(source);
    }
    let mut bytes = text.to_vec();
    for at in blanks {
        if let Some(byte) = bytes.get_mut(at) {
            *byte = b' ';
        }
    }
    String::from_utf8(bytes).map_or(Cow::Borrowed(source), Cow::Owned)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

fn next_visible(text: &[u8], from: usize) -> usize {
    from + text.iter().skip(from).take_while(|byte| byte.is_ascii_whitespace()).count()
}

fn line_end(text: &[u8], from: usize) -> usize {
    from + text.iter().skip(from).take_while(|byte| **byte != b'\n').count()
}

/// The position after the string literal that begins at `from`.
fn string_end(text: &[u8], from: usize) -> usize {
    let quote = text.get(from).copied().unwrap_or_default();
    let raw = from > 0 && matches!(text.get(from - 1), Some(b'r' | b'R'));
    let triple = [quote; 3];
    let long = text.get(from..from + 3) == Some(&triple);
    let end: &[u8] = if long { &triple } else { &triple[..1] };
    let mut at = from + end.len();
    while at < text.len() {
        if !raw && text.get(at) == Some(&b'\\') {
            at += 2;
        } else if text.get(at..at + end.len()) == Some(end) {
            return at + end.len();
        } else {
            at += 1;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_unary_operators_go() {
        let cases = [
            ("!x", "!x"),
            ("!!x", "  x"),
            ("! !x", "   x"),
            ("!!!x", "  !x"),
            ("!!!!x", "    x"),
            ("a != !b", "a != !b"),
            ("a && !!b", "a &&   b"),
            ("-x", "-x"),
            ("--x", "  x"),
            ("- - -x", "    -x"),
            ("a--b", "a--b"),
            ("a - -b", "a - -b"),
            ("a---b", "a-  b"),
            ("a[0]--b", "a[0]--b"),
            ("f(x)--b", "f(x)--b"),
            ("f(--b, !!c)", "f(  b,   c)"),
            ("x in --y", "x in   y"),
            ("min--y", "min--y"),
            ("'!!' == \"--\"", "'!!' == \"--\""),
            (r"'\'!!' + !!x", r"'\'!!' +   x"),
            (r"r'\' == (!!x)", r"r'\' == (  x)"),
            ("'''a'!!''' + !!x", "'''a'!!''' +   x"),
            ("a // !!b\n!!c", "a // !!b\n  c"),
            ("'ä' + !!x", "'ä' +   x"),
            ("!! 'ends", "   'ends"),
            ("", ""),
        ];
        for (source, wanted) in cases {
            assert_eq!(without_pairs(source), wanted, "{source}");
        }
    }
}
