//! Durations in Go's format (`time.ParseDuration`): flags, timeouts of requests and hooks, schemas.

use std::time::Duration;

const UNITS: [(&str, f64); 8] =
    [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("μs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9)];

/// Parses a duration (`-1.5h`, `300ms`, `1h2m3s`, `0`) into nanoseconds. `None` for other texts and, as in Go, beyond
/// 292 years.
pub fn nanos(text: &str) -> Option<i64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
        total += number.parse::<f64>().ok()? * factor;
        rest = next;
    }
    (total < 9.2e18).then_some((sign * total) as i64)
}

/// Go's words for a text that [`nanos`] refuses.
pub fn fault(text: &str) -> String {
    let shown = crate::field::quote(text);
    let invalid = || format!("time: invalid duration {shown}");
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest.is_empty() {
        return invalid();
    }
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
        let (number, after) = rest.split_at(digits);
        if number.trim_matches('.').is_empty() || number.matches('.').count() > 1 {
            return invalid();
        }
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        if unit.is_empty() {
            return format!("time: missing unit in duration {shown}");
        }
        if UNITS.iter().all(|(name, _)| *name != unit) {
            return format!("time: unknown unit {} in duration {shown}", crate::field::quote(unit));
        }
        rest = next;
    }
    invalid()
}

/// Parses a duration that is not negative.
pub fn parse(text: &str) -> Option<Duration> {
    nanos(text).and_then(|nanos| u64::try_from(nanos).ok()).map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_in_the_words_of_go() {
        for (text, wanted) in [
            ("", "time: invalid duration \"\""),
            ("ten", "time: invalid duration \"ten\""),
            ("5", "time: missing unit in duration \"5\""),
            ("1h1x", "time: unknown unit \"x\" in duration \"1h1x\""),
        ] {
            assert_eq!(fault(text), wanted);
        }
    }

    #[test]
    fn as_go_reads_them() {
        for (text, millis) in [
            ("0", 0),
            ("+0", 0),
            ("500ms", 500),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            (".5s", 500),
            ("1.s", 1000),
            ("+2s", 2000),
            ("1h2m3s4ms", 3_723_004),
            ("1500us", 1),
        ] {
            assert_eq!(parse(text).map(|it| it.as_millis()), Some(millis), "{text}");
        }
        assert_eq!((nanos("-1.5s"), nanos("3ns"), nanos("2µs")), (Some(-1_500_000_000), Some(3), Some(2000)));
        let bad = "|-|+|5|1d|s|.s|1..s|1s | 1s|1 s|--1s|1e3s|3000000h|ten";
        for text in bad.split('|') {
            assert_eq!(nanos(text), None, "{text:?}");
        }
        assert_eq!(parse("-1s"), None);
    }
}
