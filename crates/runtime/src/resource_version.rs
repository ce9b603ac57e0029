//! The resourceVersion of an object, and its order.

use std::cmp::Ordering;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

/// The resourceVersion of an object, as text: a `Box<str>` where it is kept, a `&str` where it is looked at.
///
/// Two versions are compared only if one API server counted both, for objects of one resource. They are then decimal
/// numbers without a leading zero, of any length, and the greater one is the later one. No order exists between versions
/// of which one is not such a number: an empty text (the object has no version), `"0"` (in requests: any version will
/// do), and whatever a server may choose that does not count. `<` and `>` are both false then, so a reader that drops
/// what is older than what it knows takes in what it cannot compare.
///
/// Equal texts are equal versions, whatever they are.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ResourceVersion<T = Box<str>>(T);

impl<'a> ResourceVersion<&'a str> {
    /// The version of this text.
    pub const fn new(text: &'a str) -> Self {
        Self(text)
    }

    /// The version of an object; empty if it has none.
    pub fn of(metadata: &'a ObjectMeta) -> Self {
        Self(metadata.resource_version.as_deref().unwrap_or_default())
    }

    /// A copy that can be kept.
    pub fn to_owned(self) -> ResourceVersion {
        ResourceVersion(self.0.into())
    }
}

impl<T: AsRef<str>> ResourceVersion<T> {
    /// The text.
    pub fn as_str(&self) -> &str {
        self.0.as_ref()
    }

    /// The same version, borrowed.
    pub fn as_ref(&self) -> ResourceVersion<&str> {
        ResourceVersion(self.as_str())
    }

    /// Returns whether this version is known to precede `other`: `self < other`, in a word that can be negated.
    pub fn is_before<U: AsRef<str>>(&self, other: &ResourceVersion<U>) -> bool {
        self < other
    }

    /// Returns whether an order between this and other versions can exist.
    pub fn is_comparable(&self) -> bool {
        let text = self.as_str();
        !text.is_empty() && !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit())
    }
}

impl ResourceVersion {
    /// Becomes the later one of this and `other`. A version that is not comparable counts as earlier than all others.
    pub fn raise(&mut self, other: ResourceVersion<&str>) {
        if other.is_comparable() && !(self.is_comparable() && *self >= other) {
            *self = other.to_owned();
        }
    }
}

impl From<&str> for ResourceVersion {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for ResourceVersion {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl<A: AsRef<str>, B: AsRef<str>> PartialEq<ResourceVersion<B>> for ResourceVersion<A> {
    fn eq(&self, other: &ResourceVersion<B>) -> bool {
        self.as_str() == other.as_str()
    }
}

impl<T: AsRef<str>> Eq for ResourceVersion<T> {}

impl<A: AsRef<str>, B: AsRef<str>> PartialOrd<ResourceVersion<B>> for ResourceVersion<A> {
    fn partial_cmp(&self, other: &ResourceVersion<B>) -> Option<Ordering> {
        let (left, right) = (self.as_str(), other.as_str());
        if left == right {
            return Some(Ordering::Equal);
        }
        let comparable = self.is_comparable() && other.is_comparable();
        // Without leading zeros the longer number is the greater one.
        comparable.then(|| (left.len(), left).cmp(&(right.len(), right)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order of versions, and what has none. KEP-5504: versions are decimal numbers of any length.
    #[test]
    fn versions_are_ordered_as_numbers_or_not_at_all() {
        use Ordering::{Equal, Less};
        for (left, right, order) in [
            ("5", "7", Some(Less)),
            ("7", "7", Some(Equal)),
            ("9", "10", Some(Less)),
            ("18446744073709551615", "18446744073709551616", Some(Less)),
            ("99999999999999999999", "100000000000000000000", Some(Less)),
            ("", "", Some(Equal)),
            ("0", "0", Some(Equal)),
            ("odd", "odd", Some(Equal)),
            ("", "7", None),
            ("0", "7", None),
            ("07", "7", None),
            ("odd", "7", None),
            ("-1", "7", None),
            ("+7", "8", None),
            ("1.5", "2", None),
            (" 7", "8", None),
            ("٧", "8", None),
            ("", "0", None),
            ("even", "odd", None),
        ] {
            let (a, b) = (ResourceVersion::new(left), ResourceVersion::from(right));
            assert_eq!(a.partial_cmp(&b), order, "{left:?} and {right:?}");
            assert_eq!(b.partial_cmp(&a), order.map(Ordering::reverse), "{right:?} and {left:?}");
            assert_eq!(a == b, order == Some(Equal), "{left:?} and {right:?}");
        }
    }

    #[test]
    fn the_later_version_is_kept() {
        for (known, other, then) in [
            ("5", "7", "7"),
            ("7", "5", "7"),
            ("7", "7", "7"),
            ("", "7", "7"),
            ("odd", "7", "7"),
            ("7", "odd", "7"),
            ("7", "", "7"),
            ("odd", "even", "odd"),
        ] {
            let mut version = ResourceVersion::from(known);
            version.raise(ResourceVersion::new(other));
            assert_eq!(version.as_str(), then, "{known:?}, {other:?}");
        }
    }
}
