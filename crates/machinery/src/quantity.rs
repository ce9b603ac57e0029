//! Resource quantities such as `500m`, `1.5Gi` or `12e6`.

use std::{cmp::Ordering, fmt};

/// An amount: `digits × 10^scale`, with the family of suffixes of its text, which the canonical form keeps. Binary
/// suffixes are multiplied out. Equality, order and hash use the amount only.
#[derive(Clone, Debug)]
pub struct Quantity {
    /// Has no trailing decimal zeros.
    digits: i128,
    scale: i32,
    format: Format,
    /// The text, if it is canonical except for its spelling (`+1`, `5.`, `1E3`). Kubernetes returns such texts
    /// unchanged.
    spelling: Option<Box<str>>,
}

/// The family of suffixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `n u m k M G T P E`
    DecimalSI,
    /// `Ki Mi Gi Ti Pi Ei`
    BinarySI,
    /// `e3`
    DecimalExponent,
}

/// Text that is not a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// Smallest amount: 10^-9.
const NANO: i32 = -9;
const MILLI: i32 = -3;
/// Largest exponent. Sums must stay computable, and no real amount is larger.
const EXPONENT_MAX: i64 = 1_000;
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// The parts of a quantity's text.
struct Parts<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

impl Quantity {
    /// Nothing.
    pub const ZERO: Self = Self { digits: 0, scale: 0, format: Format::DecimalSI, spelling: None };

    /// Parses a quantity.
    ///
    /// # Errors
    /// The text is not a quantity, or has more than 38 significant digits.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let parts = split(text)?;
        let (format, exponent) = suffix(parts.suffix)?;
        let digits = number(parts.whole, parts.fraction)?;
        let digits = if parts.negative { -digits } else { digits };
        let fraction = i32::try_from(parts.fraction.len()).map_err(|_| QuantityError::Numeric)?;
        let mut quantity = match format {
            Format::BinarySI => {
                let factor = 1_i128 << exponent;
                Self::new(digits.checked_mul(factor).unwrap_or_else(|| saturated(digits)), -fraction, format)
            }
            _ => Self::new(digits, exponent - fraction, format),
        };
        quantity = quantity.bounded();
        if fraction == 0 && quantity.is_spelt(digits, exponent) {
            quantity.spelling = Some(text.into());
        }
        Ok(quantity)
    }

    /// Parses the JSON number or string of a quantity.
    ///
    /// # Errors
    /// As for [`Quantity::parse`].
    pub fn from_json(value: &serde_json::Value) -> Result<Self, QuantityError> {
        match value {
            serde_json::Value::String(text) => Self::parse(text.trim()),
            serde_json::Value::Number(number) => Self::parse(&number.to_string()),
            _ => Err(QuantityError::Format),
        }
    }

    /// A whole number.
    pub fn from_integer(value: i64) -> Self {
        Self::new(value.into(), 0, Format::DecimalSI)
    }

    fn new(mut digits: i128, mut scale: i32, format: Format) -> Self {
        while digits != 0 && digits % 10 == 0 {
            digits /= 10;
            scale += 1;
        }
        if digits == 0 {
            scale = 0;
        }
        Self { digits, scale, format, spelling: None }
    }

    /// Rounds amounts below a nano and caps binary amounts.
    fn bounded(self) -> Self {
        let mut out = self.round_up(NANO);
        if out.format == Format::BinarySI {
            let max = Self::new(i64::MAX.into(), 0, Format::BinarySI);
            let min = Self::new((-i64::MAX).into(), 0, Format::BinarySI);
            out = if out > max {
                max
            } else if out < min {
                min
            } else {
                out
            };
            if out.digits != 0 && out.scale < 0 && out.abs_below(1) {
                out.format = Format::DecimalSI;
            }
        }
        out
    }

    fn abs_below(&self, limit: i64) -> bool {
        let limit = Self::from_integer(limit);
        let amount = Self::new(self.digits.saturating_abs(), self.scale, self.format);
        amount < limit
    }

    /// Rounds away from zero to a multiple of `10^scale`.
    #[must_use]
    pub fn round_up(self, scale: i32) -> Self {
        if self.scale >= scale || self.digits == 0 {
            return self;
        }
        let format = self.format;
        let drop = scale.saturating_sub(self.scale).unsigned_abs();
        let rounded = match 10_i128.checked_pow(drop) {
            Some(unit) => {
                let whole = self.digits / unit;
                if self.digits % unit == 0 { whole } else { whole + self.digits.signum() }
            }
            None => self.digits.signum(),
        };
        Self::new(rounded, scale, format)
    }

    /// Rounds to thousandths, as in lists of resources (`limits`, `hard`, `capacity`).
    #[must_use]
    pub fn round_up_milli(self) -> Self {
        self.round_up(MILLI)
    }

    /// The family of suffixes of the canonical form.
    pub fn format(&self) -> Format {
        self.format
    }

    pub fn is_zero(&self) -> bool {
        self.digits == 0
    }

    pub fn is_negative(&self) -> bool {
        self.digits < 0
    }

    /// The amount rounded away from zero to an integer, capped to the range.
    pub fn value(&self) -> i64 {
        self.scaled(0)
    }

    /// The amount in thousandths, rounded away from zero and capped to the range.
    pub fn milli_value(&self) -> i64 {
        self.scaled(MILLI)
    }

    fn scaled(&self, scale: i32) -> i64 {
        let rounded = self.clone().round_up(scale);
        let shift = rounded.scale.saturating_sub(scale).max(0).unsigned_abs();
        let amount = pow10(shift).and_then(|f| rounded.digits.checked_mul(f));
        let capped = amount.unwrap_or_else(|| saturated(rounded.digits));
        capped.clamp(i64::MIN.into(), i64::MAX.into()).try_into().unwrap_or(i64::MAX)
    }

    /// The sum, in the format of `self` unless that is zero. `None` if it has too many digits.
    #[must_use]
    pub fn checked_add(&self, other: &Self) -> Option<Self> {
        if other.digits == 0 {
            return Some(Self { spelling: None, ..self.clone() });
        }
        let format = if self.digits == 0 { other.format } else { self.format };
        if self.digits == 0 {
            return Some(Self { format, spelling: None, ..other.clone() });
        }
        let scale = self.scale.min(other.scale);
        let aligned = |q: &Self| pow10((q.scale - scale).unsigned_abs())?.checked_mul(q.digits);
        Some(Self::new(aligned(self)?.checked_add(aligned(other)?)?, scale, format))
    }

    /// The difference; see [`Quantity::checked_add`].
    #[must_use]
    pub fn checked_sub(&self, other: &Self) -> Option<Self> {
        self.checked_add(&Self::new(other.digits.checked_neg()?, other.scale, other.format))
    }

    /// The canonical form, whatever the text was.
    pub fn canonical(&self) -> String {
        if self.digits == 0 {
            return "0".to_owned();
        }
        match self.format {
            Format::BinarySI if !self.abs_below(1024) => self.print_binary(),
            Format::DecimalExponent => {
                let (number, exponent) = self.by_thousands(i32::MAX);
                if exponent == 0 { number.to_string() } else { format!("{number}e{exponent}") }
            }
            _ => {
                let (number, exponent) = self.by_thousands(18);
                let zeros = usize::try_from(exponent - exponent.min(18)).unwrap_or_default();
                let suffix = DECIMAL.iter().find(|(_, e)| *e == exponent.min(18)).map_or("", |(s, _)| s);
                format!("{number}{}{suffix}", "0".repeat(zeros))
            }
        }
    }

    /// Digits, and the greatest exponent that is a multiple of three and leaves no fraction. An exponent above `cap`
    /// is returned as it is, and the caller pads.
    fn by_thousands(&self, cap: i32) -> (i128, i32) {
        let exponent = self.scale.div_euclid(3) * 3;
        let exponent = if exponent > cap { self.scale } else { exponent };
        let shift = (self.scale - exponent).unsigned_abs();
        (pow10(shift).and_then(|f| self.digits.checked_mul(f)).unwrap_or(self.digits), exponent)
    }

    fn print_binary(&self) -> String {
        let mut number = i128::from(self.value());
        let mut power = 0;
        while power + 1 < BINARY.len() && number != 0 && number % 1024 == 0 {
            number /= 1024;
            power += 1;
        }
        format!("{number}{}", BINARY.get(power).copied().unwrap_or_default())
    }

    /// Whether the canonical form has these digits before this exponent, so that only the spelling can differ.
    fn is_spelt(&self, digits: i128, exponent: i32) -> bool {
        if self.digits == 0 {
            return false;
        }
        match self.format {
            Format::BinarySI => {
                let suffix = usize::try_from(exponent / 10).ok().and_then(|i| BINARY.get(i)).copied();
                suffix.is_some_and(|s| self.canonical() == format!("{digits}{s}"))
            }
            _ => self.by_thousands(i32::MAX) == (digits, exponent),
        }
    }
}

fn pow10(exponent: u32) -> Option<i128> {
    10_i128.checked_pow(exponent)
}

fn saturated(sign: i128) -> i128 {
    if sign < 0 { i128::MIN + 1 } else { i128::MAX }
}

fn split(text: &str) -> Result<Parts<'_>, QuantityError> {
    if text.is_empty() {
        return Err(QuantityError::Format);
    }
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = |t: &str| t.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, rest) = rest.split_at(digits(rest));
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits(rest)),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(QuantityError::Format);
    }
    let letters = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let signless = letters.strip_prefix(['-', '+']).unwrap_or(letters);
    if !signless.bytes().all(|b| b.is_ascii_digit()) {
        return Err(QuantityError::Format);
    }
    Ok(Parts { negative, whole, fraction, suffix })
}

/// Format and exponent of a suffix: an exponent of 2 or of 10.
fn suffix(text: &str) -> Result<(Format, i32), QuantityError> {
    if let Some((_, exponent)) = DECIMAL.iter().find(|(s, _)| *s == text) {
        return Ok((Format::DecimalSI, *exponent));
    }
    if let Some(power) = BINARY.iter().position(|s| *s == text) {
        return Ok((Format::BinarySI, i32::try_from(power * 10).map_err(|_| QuantityError::Suffix)?));
    }
    let digits = text.strip_prefix(['e', 'E']).filter(|t| !t.is_empty()).ok_or(QuantityError::Suffix)?;
    let exponent: i64 = digits.parse().map_err(|_| QuantityError::Suffix)?;
    if exponent.abs() > EXPONENT_MAX {
        return Err(QuantityError::Suffix);
    }
    Ok((Format::DecimalExponent, i32::try_from(exponent).map_err(|_| QuantityError::Suffix)?))
}

fn number(whole: &str, fraction: &str) -> Result<i128, QuantityError> {
    whole.bytes().chain(fraction.bytes()).try_fold(0_i128, |sum, b| {
        sum.checked_mul(10).and_then(|s| s.checked_add(i128::from(b - b'0'))).ok_or(QuantityError::Numeric)
    })
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.spelling {
            Some(text) => f.write_str(text),
            None => f.write_str(&self.canonical()),
        }
    }
}

impl std::str::FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        (self.digits, self.scale) == (other.digits, other.scale)
    }
}

impl Eq for Quantity {}

impl std::hash::Hash for Quantity {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.digits, self.scale).hash(state);
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        let signs = self.digits.signum().cmp(&other.digits.signum());
        if signs != Ordering::Equal || self.digits == 0 {
            return signs;
        }
        let scale = self.scale.min(other.scale);
        let aligned =
            |q: &Self| pow10((q.scale - scale).unsigned_abs()).and_then(|f| f.checked_mul(q.digits));
        match (aligned(self), aligned(other)) {
            (Some(a), Some(b)) => a.cmp(&b),
            // Only the side with the greater scale can overflow, and then its amount is the greater one.
            (None, _) if self.digits > 0 => Ordering::Greater,
            (None, _) => Ordering::Less,
            (_, None) if self.digits > 0 => Ordering::Less,
            (_, None) => Ordering::Greater,
        }
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> String {
        Quantity::parse(text).map_or_else(|e| e.to_string(), |q| q.to_string())
    }

    /// Answers recorded from a real server (AS-016).
    #[test]
    fn as_016_quantities_print_as_recorded() {
        let recorded = [
            ("1", "1"),
            ("1000m", "1"),
            ("0.5", "500m"),
            ("0.5Gi", "512Mi"),
            ("1024Mi", "1Gi"),
            ("1e3", "1e3"),
            ("1E3", "1E3"),
            ("1.5", "1500m"),
            ("1500m", "1500m"),
            ("12e6", "12e6"),
            ("1Ki", "1Ki"),
            ("1k", "1k"),
            ("1000k", "1M"),
            ("1024Ki", "1Mi"),
            ("+1", "+1"),
            (".5", "500m"),
            ("5.", "5."),
            ("0", "0"),
            ("00.10", "100m"),
            ("1e-3", "1e-3"),
            ("1Ei", "1Ei"),
            ("1500Mi", "1500Mi"),
        ];
        for (given, wanted) in recorded {
            assert_eq!(shown(given), wanted, "{given}");
        }
        for (given, wanted) in
            [("100n", "1m"), ("0.1m", "1m"), ("1u", "1m"), ("1500Mi", "1500Mi"), ("+1", "+1")]
        {
            let rounded = Quantity::parse(given).unwrap_or(Quantity::ZERO).round_up_milli();
            assert_eq!(rounded.to_string(), wanted, "{given}");
        }
    }

    #[test]
    fn as_016_quantities_canonical() {
        let table = [
            ("1000", "1k"),
            ("1e4", "10e3"),
            ("0.1Ki", "102400m"),
            ("512", "512"),
            ("0.5Ki", "512"),
            ("-1024Ki", "-1Mi"),
            ("0Mi", "0"),
            ("1000E", "1000E"),
            ("1.5Ki", "1536"),
            ("1025Ki", "1025Ki"),
            ("9Ei", "9223372036854775807"),
            ("0.1n", "1n"),
            ("1.0", "1"),
        ];
        for (given, wanted) in table {
            assert_eq!(shown(given), wanted, "{given}");
        }
    }

    #[test]
    fn as_017_bad_quantities() {
        let format = QuantityError::Format.to_string();
        for bad in ["", "abc", "1 ", " 1", "1.2.3", "--1", "1i", "Mi", ".", "1Kii", "1e", "1ee3", "1mm"] {
            assert!(Quantity::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(shown("abc"), format);
        assert_eq!(shown("1Kii"), QuantityError::Suffix.to_string());
        assert_eq!(shown(&"9".repeat(50)), QuantityError::Numeric.to_string());
        assert!(Quantity::parse("1e1001").is_err());
    }

    #[test]
    fn quantities_compare_and_add() {
        let q = |t: &str| Quantity::parse(t).unwrap_or(Quantity::ZERO);
        assert_eq!(q("1000m"), q("1"));
        assert_eq!(q("1Gi"), q("1024Mi"));
        assert!(q("1G") < q("1Gi") && q("-1") < q("0") && q("1e900") > q("1Ei") && q("-1e900") < q("-1Ei"));
        assert_eq!(q("1").checked_add(&q("500m")).map(|s| s.to_string()).as_deref(), Some("1500m"));
        assert_eq!(q("1Gi").checked_sub(&q("512Mi")).map(|s| s.to_string()).as_deref(), Some("512Mi"));
        assert_eq!(q("0").checked_add(&q("1Gi")).map(|s| s.to_string()).as_deref(), Some("1Gi"));
        assert_eq!(q("1e900").checked_add(&q("1")), None);
        assert_eq!((q("1500m").value(), q("1500m").milli_value()), (2, 1500));
        assert_eq!(q("1e900").value(), i64::MAX);
    }

    proptest! {
        #[test]
        fn canonical_form_is_stable(text in "[+-]?[0-9]{1,6}(\\.[0-9]{0,6})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e-?[0-9]{1,2})?") {
            let quantity = Quantity::parse(&text).map_err(|e| TestCaseError::fail(e.to_string()))?;
            let again = Quantity::parse(&quantity.canonical()).map_err(|e| TestCaseError::fail(e.to_string()))?;
            // A binary amount below 1024 prints as a decimal one, a greater one as a whole number.
            if quantity.format() != Format::BinarySI || quantity.scale >= 0 {
                prop_assert_eq!(&again, &quantity);
            }
            prop_assert_eq!(again.canonical(), quantity.canonical());
            let shown = Quantity::parse(&quantity.to_string()).map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(shown.to_string(), quantity.to_string());
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in ".*") {
            if let Ok(quantity) = Quantity::parse(&text) {
                let _ = (quantity.canonical(), quantity.value(), quantity.milli_value());
            }
        }

        #[test]
        fn order_is_that_of_numbers(a in -1_000_000_i64..1_000_000, b in -1_000_000_i64..1_000_000) {
            let milli = |n: i64| Quantity::parse(&format!("{n}m"));
            prop_assert_eq!(milli(a).unwrap_or(Quantity::ZERO).cmp(&milli(b).unwrap_or(Quantity::ZERO)), a.cmp(&b));
        }
    }
}
