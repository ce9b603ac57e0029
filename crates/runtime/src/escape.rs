//! Escapes for URLs.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The characters of a query value that need no escape.
const PLAIN_IN_QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The characters of a path segment that need no escape.
const PLAIN_IN_PATH: &AsciiSet = &PLAIN_IN_QUERY.remove(b':').remove(b'@');

/// Escapes a text that is to be one segment of a path.
pub(crate) fn path_segment(text: &str) -> Cow<'_, str> {
    utf8_percent_encode(text, PLAIN_IN_PATH).into()
}

/// Appends a query to a path, with its values escaped.
pub(crate) fn with_query(mut path: String, query: &[(&str, String)]) -> String {
    for (index, (name, value)) in query.iter().enumerate() {
        path.push(if index == 0 { '?' } else { '&' });
        path.push_str(name);
        path.push('=');
        path.extend(utf8_percent_encode(value, PLAIN_IN_QUERY));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_stay_one_part_of_a_url() {
        assert_eq!(path_segment("system:node@a/b?c d"), "system:node@a%2Fb%3Fc%20d");
        let query = [("labelSelector", "a in (b,ü),!c".to_owned()), ("limit", "5".to_owned())];
        let path = with_query("/api/v1/pods".into(), &query);
        assert_eq!(path, "/api/v1/pods?labelSelector=a%20in%20%28b%2C%C3%BC%29%2C%21c&limit=5");
        assert_eq!(with_query("/api".into(), &[]), "/api");
    }
}
