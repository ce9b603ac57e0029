//! Numbers as text, like Go prints and parses them.

/// The shortest decimal digits that parse to the same number. An exponent below 1e-4 and from 1e6 on, with a sign and
/// at least two digits.
pub fn text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.into();
    }
    let shortest = format!("{value:e}");
    let Some((digits, exponent)) = shortest.split_once('e') else { return shortest };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

/// Parses a number.
///
/// # Errors
/// The text of Go's parser.
pub fn parse(text: &str) -> Result<f64, String> {
    let refused = |why: &str| Err(format!("strconv.ParseFloat: parsing {text:?}: {why}"));
    match text.parse::<f64>() {
        Ok(value) if value.is_infinite() && text.contains(|c: char| c.is_ascii_digit()) => {
            refused("value out of range")
        }
        Ok(value) => Ok(value),
        Err(_) => refused("invalid syntax"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ks_181_numbers_as_texts() {
        for (value, expected) in [
            (2.0, "2"),
            (2.5, "2.5"),
            (-0.0, "-0"),
            (0.0, "0"),
            (100_000.0, "100000"),
            (1_000_000.0, "1e+06"),
            (999_999.0, "999999"),
            (1_234_567.0, "1.234567e+06"),
            (123_456.7, "123456.7"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e100, "1e+100"),
            (-1.5e-7, "-1.5e-07"),
            (7.0 / 3.0, "2.3333333333333335"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(text(value), expected);
        }
    }

    #[test]
    fn ks_180_texts_as_numbers() {
        for (text, expected) in [("7", 7.0), ("-1.5e3", -1500.0), ("+Inf", f64::INFINITY), (".5", 0.5)] {
            assert_eq!(parse(text), Ok(expected));
        }
        let refused = |why: &str| Err(format!("strconv.ParseFloat: parsing {why}"));
        assert_eq!(parse("Green"), refused("\"Green\": invalid syntax"));
        assert_eq!(parse("1e999"), refused("\"1e999\": value out of range"));
        assert!(parse(" 1").is_err() && parse("").is_err());
    }
}
