//! One requirement of a label selector.

use std::{collections::BTreeSet, fmt};

/// The operator of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LabelOp {
    /// `k=v`
    Equals,
    /// `k==v`, the same as `k=v`
    DoubleEquals,
    /// `k!=v`; also matches without the label
    NotEquals,
    /// `k in (a,b)`
    In,
    /// `k notin (a,b)`; also matches without the label
    NotIn,
    /// `k`
    Exists,
    /// `!k`
    DoesNotExist,
    /// `k>5`
    GreaterThan,
    /// `k<5`
    LessThan,
}

/// One requirement about one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LabelRequirement {
    pub key: String,
    pub op: LabelOp,
    pub values: BTreeSet<String>,
}

impl LabelRequirement {
    /// Whether a label with this value, or without value, meets the requirement.
    pub fn matches(&self, value: Option<&str>) -> bool {
        match self.op {
            LabelOp::In | LabelOp::Equals | LabelOp::DoubleEquals => {
                value.is_some_and(|v| self.values.contains(v))
            }
            LabelOp::NotIn | LabelOp::NotEquals => !value.is_some_and(|v| self.values.contains(v)),
            LabelOp::Exists => value.is_some(),
            LabelOp::DoesNotExist => value.is_none(),
            LabelOp::GreaterThan => self.compares(value, |a, b| a > b),
            LabelOp::LessThan => self.compares(value, |a, b| a < b),
        }
    }

    fn compares(&self, value: Option<&str>, test: fn(i64, i64) -> bool) -> bool {
        let number = |t: &str| t.parse::<i64>().ok();
        let bound = self.values.first().and_then(|v| number(v));
        value.and_then(number).zip(bound).is_some_and(|(value, bound)| test(value, bound))
    }
}

impl fmt::Display for LabelRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = || self.values.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        let key = &self.key;
        match self.op {
            LabelOp::Equals => write!(f, "{key}={}", values()),
            LabelOp::DoubleEquals => write!(f, "{key}=={}", values()),
            LabelOp::NotEquals => write!(f, "{key}!={}", values()),
            LabelOp::In => write!(f, "{key} in ({})", values()),
            LabelOp::NotIn => write!(f, "{key} notin ({})", values()),
            LabelOp::Exists => f.write_str(key),
            LabelOp::DoesNotExist => write!(f, "!{key}"),
            LabelOp::GreaterThan => write!(f, "{key}>{}", values()),
            LabelOp::LessThan => write!(f, "{key}<{}", values()),
        }
    }
}
