//! Literals of Go.

use super::tree::Number;

/// The value of a quoted or raw string literal.
pub(super) fn text(literal: &str) -> Option<String> {
    if let Some(raw) = literal.strip_prefix('`') {
        return Some(raw.strip_suffix('`')?.replace('\r', ""));
    }
    let mut rest = literal.strip_prefix('"')?.strip_suffix('"')?;
    let mut bytes = Vec::with_capacity(rest.len());
    while !rest.is_empty() {
        let (unit, after) = unescape(rest, '"')?;
        match unit {
            Unit::Char(c) => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            Unit::Byte(b) => bytes.push(b),
        }
        rest = after;
    }
    // Go strings may hold any bytes; objects hold text.
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The value of a character literal.
pub(super) fn character(literal: &str) -> Option<char> {
    let inner = literal.strip_prefix('\'')?.strip_suffix('\'')?;
    let (unit, rest) = unescape(inner, '\'')?;
    let value = match unit {
        Unit::Char(c) => c,
        Unit::Byte(b) => char::from(b),
    };
    rest.is_empty().then_some(value)
}

enum Unit {
    Char(char),
    Byte(u8),
}

fn unescape(text: &str, quote: char) -> Option<(Unit, &str)> {
    let mut chars = text.chars();
    let first = chars.next()?;
    if first == quote {
        return None;
    }
    if first != '\\' {
        return Some((Unit::Char(first), chars.as_str()));
    }
    let kind = chars.next()?;
    let rest = chars.as_str();
    let digits = |rest: &str, count: usize, radix: u32| -> Option<u32> {
        let digits = rest.get(..count)?;
        let plain = digits.chars().all(|c| c.is_digit(radix));
        plain.then(|| u32::from_str_radix(digits, radix).ok())?
    };
    let simple = |c: char| Some((Unit::Char(c), rest));
    match kind {
        'a' => simple('\u{7}'),
        'b' => simple('\u{8}'),
        'f' => simple('\u{c}'),
        'n' => simple('\n'),
        'r' => simple('\r'),
        't' => simple('\t'),
        'v' => simple('\u{b}'),
        '\\' => simple('\\'),
        '\'' | '"' if kind == quote => simple(kind),
        'x' => Some((Unit::Byte(u8::try_from(digits(rest, 2, 16)?).ok()?), rest.get(2..)?)),
        'u' => Some((Unit::Char(char::from_u32(digits(rest, 4, 16)?)?), rest.get(4..)?)),
        'U' => Some((Unit::Char(char::from_u32(digits(rest, 8, 16)?)?), rest.get(8..)?)),
        '0'..='7' => {
            let all = text.get(1..)?;
            Some((Unit::Byte(u8::try_from(digits(all, 3, 8)?).ok()?), all.get(3..)?))
        }
        _ => None,
    }
}

/// The value of a number literal without an imaginary part.
pub(super) fn number(literal: &str) -> Option<Number> {
    let (negative, unsigned) = match literal.strip_prefix(['+', '-']) {
        Some(rest) => (literal.starts_with('-'), rest),
        None => (false, literal),
    };
    let lower = unsigned.to_ascii_lowercase();
    let (radix, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, lower.get(2..)?),
        [b'0', b'o', ..] => (8, lower.get(2..)?),
        [b'0', b'b', ..] => (2, lower.get(2..)?),
        [b'0', _, ..] if lower.chars().all(|c| c.is_ascii_digit() || c == '_') => (8, lower.get(1..)?),
        _ => (10, lower.as_str()),
    };
    let based = radix != 10;
    let decimal = lower.contains(['.', 'p']) || (radix == 10 && lower.contains('e'));
    let digits = without_underscores(digits, based)?;
    if decimal {
        let value = if radix == 16 { hex_float(&digits)? } else { digits.parse::<f64>().ok()? };
        if value.is_infinite() {
            return None;
        }
        return Some(Number::Float(if negative { -value } else { value }));
    }
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    let Ok(magnitude) = u64::from_str_radix(&digits, radix) else { return None };
    let value = if negative { -i128::from(magnitude) } else { i128::from(magnitude) };
    match i64::try_from(value) {
        Ok(value) => Some(Number::Int(value)),
        Err(_) if negative => None,
        Err(_) => Some(Number::TooLarge),
    }
}

/// Removes underscores, which may stand between digits or after a base prefix.
fn without_underscores(digits: &str, based: bool) -> Option<String> {
    if !digits.contains('_') {
        return Some(digits.to_owned());
    }
    let bytes = digits.as_bytes();
    let is_digit = |byte: &u8| if based { byte.is_ascii_hexdigit() } else { byte.is_ascii_digit() };
    for (index, _) in bytes.iter().enumerate().filter(|(_, b)| **b == b'_') {
        let before = if index == 0 { based } else { bytes.get(index - 1).is_some_and(is_digit) };
        if !before || !bytes.get(index + 1).is_some_and(is_digit) {
            return None;
        }
    }
    Some(digits.replace('_', ""))
}

/// `1.8p3` with hexadecimal digits and a binary exponent.
fn hex_float(digits: &str) -> Option<f64> {
    let (mantissa, exponent) = digits.split_once('p')?;
    let exponent: i32 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut value = 0.0_f64;
    for c in whole.chars().chain(fraction.chars()) {
        value = value.mul_add(16.0, f64::from(c.to_digit(16)?));
    }
    let shift = exponent.checked_sub(4 * i32::try_from(fraction.len()).ok()?)?;
    Some(value * 2.0_f64.powi(shift))
}
