//! Durations on the command line, in one syntax for all flags.

use std::time::Duration;

/// Parses `30s`, `5m`, `1h30m` or `250ms`, as Go programs do. A plain number counts as seconds.
pub(crate) fn parse(raw: &str) -> Result<Duration, String> {
    let wrong = || format!("{raw:?} is not a duration: write for example 30s, 5m or 1h30m");
    if !raw.is_empty() && raw.bytes().all(|b| b.is_ascii_digit()) {
        return raw.parse().map(Duration::from_secs).map_err(|_| wrong());
    }
    machinery::duration::parse(raw).ok_or_else(wrong)
}

/// Like [`parse`], for durations that must not be zero.
pub(crate) fn parse_positive(raw: &str) -> Result<Duration, String> {
    parse(raw).and_then(|it| if it.is_zero() { Err("it must be greater than 0".to_owned()) } else { Ok(it) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-090: units as Go has them, and seconds without one.
    #[test]
    fn sp_090_one_syntax_of_durations() {
        let cases = [
            ("0", 0),
            ("60", 60_000),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("250ms", 250),
        ];
        for (raw, millis) in cases {
            assert_eq!(parse(raw).map(|it| it.as_millis()), Ok(millis), "{raw}");
        }
        for bad in ["", "s", "-1", "1d", "1.5", "99999999999999999999", "5 m"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse_positive("0s").is_err() && parse_positive("1").is_ok());
    }
}
