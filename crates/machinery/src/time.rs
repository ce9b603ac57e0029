//! Timestamps of Kubernetes: UTC with seconds (`Time`) or with six decimal places (`MicroTime`) (AS-016).

use jiff::{
    Timestamp,
    civil::{Date, DateTime, Time},
    tz::Offset,
};

/// Text that is not a timestamp. The text is Go's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    #[error(
        "parsing time {} as \"{layout}\": cannot parse {} as \"{element}\"",
        crate::field::quote(text),
        crate::field::quote(rest)
    )]
    Syntax { text: String, layout: &'static str, rest: String, element: &'static str },
    #[error("parsing time {}: {what} out of range", crate::field::quote(text))]
    Range { text: String, what: &'static str },
}

const SECONDS: &str = "2006-01-02T15:04:05Z07:00";
const MICROS: &str = "2006-01-02T15:04:05.000000Z07:00";

/// The current time, as `Time`.
pub fn now() -> String {
    format(Timestamp::now())
}

/// The current time, as `MicroTime`.
pub fn now_micro() -> String {
    format_micro(Timestamp::now())
}

/// `2026-11-21T07:00:28Z`.
pub fn format(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `2026-11-21T07:00:28.123456Z`.
pub fn format_micro(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// Parses a `Time`: RFC 3339, with or without fractions of seconds.
///
/// # Errors
/// The text of Go's parser.
pub fn parse(text: &str) -> Result<Timestamp, TimeError> {
    Reader { text, rest: text, layout: SECONDS }.timestamp(false)
}

/// Parses a `MicroTime`: RFC 3339 with exactly six decimal places.
///
/// # Errors
/// The text of Go's parser.
pub fn parse_micro(text: &str) -> Result<Timestamp, TimeError> {
    Reader { text, rest: text, layout: MICROS }.timestamp(true)
}

/// A `Time` in its stored form.
///
/// # Errors
/// The text of Go's parser.
pub fn canonical(text: &str) -> Result<String, TimeError> {
    parse(text).map(format)
}

/// A `MicroTime` in its stored form.
///
/// # Errors
/// The text of Go's parser.
pub fn canonical_micro(text: &str) -> Result<String, TimeError> {
    parse_micro(text).map(format_micro)
}

struct Reader<'a> {
    text: &'a str,
    rest: &'a str,
    layout: &'static str,
}

impl Reader<'_> {
    fn timestamp(mut self, micros: bool) -> Result<Timestamp, TimeError> {
        let year = self.digits(4, "2006")?;
        self.literal("-")?;
        let month = self.digits(2, "01")?;
        if !(1..=12).contains(&month) {
            return Err(self.range("month"));
        }
        self.literal("-")?;
        let day = self.digits(2, "02")?;
        self.literal("T")?;
        let hour = self.digits(2, "15")?;
        self.at_most(hour, 23, "hour")?;
        self.literal(":")?;
        let minute = self.digits(2, "04")?;
        self.at_most(minute, 59, "minute")?;
        self.literal(":")?;
        let second = self.digits(2, "05")?;
        self.at_most(second, 59, "second")?;
        let nanos = if micros { self.six_digits()? } else { self.fraction() };
        let offset = self.offset()?;
        if !self.rest.is_empty() {
            return Err(self.syntax(""));
        }
        let date = Date::new(narrow(year)?, narrow(month)?, narrow(day)?);
        let time = Time::new(narrow(hour)?, narrow(minute)?, narrow(second)?, nanos);
        let (Ok(date), Ok(time)) = (date, time) else { return Err(self.range("day")) };
        let out_of_range = |_| self.range("day");
        Offset::from_seconds(offset)
            .and_then(|offset| offset.to_timestamp(DateTime::from_parts(date, time)))
            .map_err(out_of_range)
    }

    fn syntax(&self, element: &'static str) -> TimeError {
        TimeError::Syntax {
            text: self.text.to_owned(),
            layout: self.layout,
            rest: self.rest.to_owned(),
            element,
        }
    }

    fn range(&self, what: &'static str) -> TimeError {
        TimeError::Range { text: self.text.to_owned(), what }
    }

    fn at_most(&self, value: i32, max: i32, what: &'static str) -> Result<(), TimeError> {
        if value > max { Err(self.range(what)) } else { Ok(()) }
    }

    fn take_digits(&mut self, count: usize) -> Option<i32> {
        let digits = self.rest.get(..count).filter(|d| d.bytes().all(|b| b.is_ascii_digit()))?;
        let value = digits.parse().ok()?;
        self.rest = self.rest.get(count..).unwrap_or_default();
        Some(value)
    }

    fn digits(&mut self, count: usize, element: &'static str) -> Result<i32, TimeError> {
        self.take_digits(count).ok_or_else(|| self.syntax(element))
    }

    fn literal(&mut self, literal: &'static str) -> Result<(), TimeError> {
        self.rest = self.rest.strip_prefix(literal).ok_or_else(|| self.syntax(literal))?;
        Ok(())
    }

    fn six_digits(&mut self) -> Result<i32, TimeError> {
        let before = self.rest;
        let micros = self.rest.strip_prefix('.').and_then(|rest| {
            self.rest = rest;
            self.take_digits(6)
        });
        micros.map(|m| m * 1_000).ok_or_else(|| {
            self.rest = before;
            self.syntax(".000000")
        })
    }

    /// Parses a fraction of any length. Drops digits beyond nanoseconds.
    fn fraction(&mut self) -> i32 {
        let Some(rest) = self.rest.strip_prefix(['.', ',']) else { return 0 };
        let count = rest.bytes().take_while(u8::is_ascii_digit).count();
        if count == 0 {
            return 0;
        }
        let (digits, rest) = rest.split_at(count);
        self.rest = rest;
        digits.bytes().chain(std::iter::repeat(b'0')).take(9).fold(0, |n, b| n * 10 + i32::from(b - b'0'))
    }

    /// Seconds east of UTC.
    fn offset(&mut self) -> Result<i32, TimeError> {
        let at = self.rest;
        if let Some(rest) = at.strip_prefix('Z') {
            self.rest = rest;
            return Ok(0);
        }
        let parsed = at.strip_prefix(['+', '-']).and_then(|rest| {
            self.rest = rest;
            let hours = self.take_digits(2)?;
            self.rest = self.rest.strip_prefix(':')?;
            Some((hours, self.take_digits(2)?))
        });
        let Some((hours, minutes)) = parsed else {
            self.rest = at;
            return Err(self.syntax("Z07:00"));
        };
        self.at_most(hours, 24, "time zone offset hour")?;
        self.at_most(minutes, 60, "time zone offset minute")?;
        let seconds = (hours * 60 + minutes) * 60;
        Ok(if at.starts_with('-') { -seconds } else { seconds })
    }
}

/// Never fails, because every field is range-checked or has few digits.
fn narrow<T: TryFrom<i32>>(value: i32) -> Result<T, TimeError> {
    T::try_from(value).map_err(|_| TimeError::Range { text: value.to_string(), what: "day" })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn as_016_times_are_canonical() {
        let ok = |t: &str| canonical(t).unwrap_or_else(|e| e.to_string());
        assert_eq!(ok("2026-11-21T07:00:28Z"), "2026-11-21T07:00:28Z");
        assert_eq!(ok("2026-11-21T07:00:28.999+02:00"), "2026-11-21T05:00:28Z");
        assert_eq!(
            ok("now"),
            r#"parsing time "now" as "2006-01-02T15:04:05Z07:00": cannot parse "now" as "2006""#
        );
        assert_eq!(ok("2026-13-01T00:00:00Z"), r#"parsing time "2026-13-01T00:00:00Z": month out of range"#);
        assert_eq!(ok("2026-02-30T00:00:00Z"), r#"parsing time "2026-02-30T00:00:00Z": day out of range"#);
    }

    #[test]
    fn as_016_micro_times_have_six_digits() {
        let ok = |t: &str| canonical_micro(t).unwrap_or_else(|e| e.to_string());
        let failed = |t: &str, rest: &str| {
            format!("parsing time \"{t}\" as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse {rest}")
        };
        assert_eq!(ok("2020-01-02T03:04:05.123456Z"), "2020-01-02T03:04:05.123456Z");
        assert_eq!(ok("2020-01-02T03:04:05.000000+02:00"), "2020-01-02T01:04:05.000000Z");
        for (text, rest) in [
            ("2020-01-02T03:04:05Z", "\"Z\" as \".000000\""),
            ("2020-01-02T03:04:05.1Z", "\".1Z\" as \".000000\""),
            ("2020-01-02T03:04:05.123456789Z", "\"789Z\" as \"Z07:00\""),
            ("2020-01-02", "\"\" as \"T\""),
        ] {
            assert_eq!(ok(text), failed(text, rest));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in ".*|[0-9TZ:.+-]{0,40}") {
            let _ = (parse(&text), parse_micro(&text));
        }

        #[test]
        fn formatted_times_read_back(seconds in -60_000_000_000_i64..250_000_000_000, micros in 0..1_000_000_i32) {
            let at = Timestamp::new(seconds, micros * 1_000).map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(parse_micro(&format_micro(at)), Ok(at));
            prop_assert_eq!(canonical(&format_micro(at)), Ok(format(at)));
        }
    }
}
