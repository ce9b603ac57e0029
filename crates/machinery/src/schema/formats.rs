//! String formats that are validated (spec 6.3). Unknown formats are not.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

use base64::Engine as _;
use regex::Regex;

/// The name of a format in errors.
pub(super) fn print(format: &str) -> &str {
    match format {
        "datetime" => "date-time",
        other => other,
    }
}

pub(super) fn fits(format: &str, text: &str) -> bool {
    match format {
        "date-time" | "datetime" => date_time(text),
        "date" => text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10,
        "duration" => duration(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => cidr(text),
        "uri" => uri(text),
        "hostname" => hostname(text),
        "byte" => base64::engine::general_purpose::STANDARD.decode(text).is_ok() && !text.is_empty(),
        "creditcard" => card(text),
        "isbn" => isbn10(text) || isbn13(text),
        "isbn10" => isbn10(text),
        "isbn13" => isbn13(text),
        "k8s-short-name" => crate::names::dns1123_label(text).is_empty(),
        "k8s-long-name" => crate::names::dns1123_subdomain(text).is_empty(),
        other => pattern(other).is_none_or(|p| p.is_match(text)),
    }
}

const PATTERNS: [(&str, &str); 11] = [
    ("bsonobjectid", "^[0-9a-fA-F]{24}$"),
    ("email", r"^[^\s@<>()\[\],;:\x22]+@[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$"),
    (
        "mac",
        "^([0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5}|[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){7}|[0-9A-Fa-f]{4}([.][0-9A-Fa-f]{4}){2,3})$",
    ),
    ("uuid", "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
    ("uuid3", "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
    ("uuid4", "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
    ("uuid5", "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
    ("ssn", r"^\d{3}[- ]?\d{2}[- ]?\d{4}$"),
    ("hexcolor", "^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"),
    (
        "rgbcolor",
        r"^rgb\(\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*\)$",
    ),
    ("password", "(?s)^.*$"),
];

fn pattern(format: &str) -> Option<&'static Regex> {
    static COMPILED: OnceLock<Vec<(&'static str, Regex)>> = OnceLock::new();
    let compiled = COMPILED.get_or_init(|| {
        PATTERNS.iter().filter_map(|(name, source)| Regex::new(source).ok().map(|r| (*name, r))).collect()
    });
    compiled.iter().find(|(name, _)| *name == format).map(|(_, regex)| regex)
}

fn date_time(text: &str) -> bool {
    // RFC 3339 and its common variants: `T` or `t`, an offset or `Z`, any fraction.
    static SHAPE: OnceLock<Option<Regex>> = OnceLock::new();
    let shape = SHAPE.get_or_init(|| {
        Regex::new(r"^\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}([.]\d+)?([Zz]|[+-]\d{2}:?\d{2})$").ok()
    });
    shape.as_ref().is_some_and(|s| s.is_match(text)) && text.to_uppercase().parse::<jiff::Timestamp>().is_ok()
}

/// Whether this is a Go duration (`1h30m`) or a duration in words (`3 days`).
pub(crate) fn duration(text: &str) -> bool {
    if crate::duration::nanos(text).is_some() {
        return true;
    }
    let Some((number, unit)) = text.split_once(' ') else { return false };
    let units = ["ns", "us", "ms", "s", "m", "h", "d", "w", "second", "minute", "hour", "day", "week"];
    number.parse::<i64>().is_ok() && units.iter().any(|u| unit.trim() == *u || unit.trim() == format!("{u}s"))
}

fn cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let Ok(bits) = bits.parse::<u8>() else { return false };
    (address.parse::<Ipv4Addr>().is_ok() && bits <= 32)
        || (address.parse::<Ipv6Addr>().is_ok() && bits <= 128)
}

/// Whether this is an absolute reference that `url.ParseRequestURI` accepts.
fn uri(text: &str) -> bool {
    let scheme = text.split_once(':').is_some_and(|(scheme, rest)| {
        !rest.is_empty()
            && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    });
    (scheme || text.starts_with('/')) && !text.contains(|c: char| c.is_control() || c == ' ')
}

fn hostname(text: &str) -> bool {
    let label = |l: &str| {
        !l.is_empty()
            && l.len() <= 63
            && !l.starts_with('-')
            && !l.ends_with('-')
            && l.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_')
    };
    text.len() <= 255 && text.strip_suffix('.').unwrap_or(text).split('.').all(label)
}

fn digits(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, ' ' | '-')).collect()
}

fn card(text: &str) -> bool {
    let number = digits(text);
    if !(13..=19).contains(&number.len()) || !number.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    let sum: u32 = number
        .bytes()
        .rev()
        .enumerate()
        .map(|(at, b)| {
            let digit = u32::from(b - b'0') * if at % 2 == 1 { 2 } else { 1 };
            if digit > 9 { digit - 9 } else { digit }
        })
        .sum();
    sum.is_multiple_of(10)
}

fn isbn10(text: &str) -> bool {
    let number = digits(text);
    let mut sum = 0;
    for (at, c) in number.chars().enumerate() {
        let digit = match c {
            'X' if at == 9 => 10,
            c => match c.to_digit(10) {
                Some(digit) => digit,
                None => return false,
            },
        };
        sum += (at as u32 + 1) * digit;
    }
    number.len() == 10 && sum.is_multiple_of(11)
}

fn isbn13(text: &str) -> bool {
    let number = digits(text);
    if number.len() != 13 || !number.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    let sum: u32 =
        number.bytes().enumerate().map(|(at, b)| u32::from(b - b'0') * if at % 2 == 1 { 3 } else { 1 }).sum();
    sum.is_multiple_of(10)
}
