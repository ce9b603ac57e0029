//! Amounts of resources. Kubernetes keeps at most three decimal places.

use serde_json::Value;

use super::value::at_mut;

/// Rounds the amounts of the resource list at `place` up to thousandths.
pub(super) fn round(object: &mut Value, place: &str) {
    let Some(amounts) = at_mut(object, place).and_then(Value::as_object_mut) else { return };
    for amount in amounts.values_mut() {
        if let Some(rounded) = amount.as_str().and_then(rounded) {
            *amount = rounded.into();
        }
    }
}

/// The rounded form of an amount in billionths or millionths; `None` for coarser amounts.
fn rounded(text: &str) -> Option<String> {
    let (digits, parts) = match text.strip_suffix('n') {
        Some(digits) => (digits, 1_000_000),
        None => (text.strip_suffix('u')?, 1_000),
    };
    let number: i128 = digits.parse().ok()?;
    // Rounds away from zero, as Kubernetes does.
    let thousandths = if number < 0 { -(-number).div_euclid(parts) } else { number.div_euclid(parts) };
    let thousandths = if number % parts == 0 { thousandths } else { thousandths + number.signum() };
    Some(if thousandths % 1000 == 0 { (thousandths / 1000).to_string() } else { format!("{thousandths}m") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_016_amounts_are_rounded_up_to_thousandths() {
        for (given, kept) in
            [("100n", "1m"), ("1u", "1m"), ("999001u", "1"), ("1500u", "2m"), ("-1u", "-1m"), ("2000u", "2m")]
        {
            assert_eq!(rounded(given).as_deref(), Some(kept), "{given}");
        }
        assert_eq!(rounded("1m"), None);
        assert_eq!(rounded("1Gi"), None);
    }
}
