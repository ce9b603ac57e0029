//! The order of version names: stable before beta before alpha before others, newer before older.

use std::cmp::Ordering;

/// The maturity of a version, and its two numbers.
fn rank(version: &str) -> Option<(u8, u32, u32)> {
    let rest = version.strip_prefix('v')?;
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (major, rest) = rest.split_at_checked(digits)?;
    let major = positive(major)?;
    if rest.is_empty() {
        return Some((2, major, 0));
    }
    let (level, minor) = match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
        (Some(minor), _) => (1, minor),
        (_, Some(minor)) => (0, minor),
        _ => return None,
    };
    Some((level, major, positive(minor)?))
}

fn positive(text: &str) -> Option<u32> {
    if text.starts_with('0') { None } else { text.parse().ok() }
}

/// `Greater` if `a` is preferred over `b`.
pub(crate) fn compare(a: &str, b: &str) -> Ordering {
    match (rank(a), rank(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        (None, None) => b.cmp(a),
    }
}

/// Sorts names, preferred first.
pub(crate) fn sort(versions: &mut [String]) {
    versions.sort_by(|a, b| compare(b, a));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_047_version_order() {
        let mut versions: Vec<String> =
            ["v1", "v2beta1", "v2", "v10", "v11alpha1", "foo1"].map(str::to_owned).into();
        sort(&mut versions);
        assert_eq!(versions, ["v10", "v2", "v1", "v2beta1", "v11alpha1", "foo1"]);
        let mut odd: Vec<String> = ["foo10", "v01", "bar", "v1beta0", "v1alpha1"].map(str::to_owned).into();
        sort(&mut odd);
        assert_eq!(odd, ["v1alpha1", "bar", "foo10", "v01", "v1beta0"]);
    }
}
