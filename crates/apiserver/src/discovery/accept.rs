//! Accept headers of document endpoints.

use http::HeaderMap;
use http::header::ACCEPT;

use crate::error::{ApiError, Reason};

/// One clause: media type in lower case, and its parameters except `q`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clause {
    pub(crate) media: String,
    pub(crate) params: Vec<(String, String)>,
}

impl Clause {
    pub(crate) fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn is_json(&self) -> bool {
        matches!(self.media.as_str(), "application/json" | "application/*" | "*/*")
    }
}

/// The clauses in order of preference: by `q`, then as written. A missing header accepts anything.
pub(crate) fn clauses(headers: &HeaderMap) -> Vec<Clause> {
    let mut out: Vec<(u32, Clause)> = Vec::new();
    let texts = headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok());
    for text in texts.flat_map(|t| t.split(',')) {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default().to_ascii_lowercase();
        if media.is_empty() {
            continue;
        }
        let mut quality = 1000;
        let mut params = Vec::new();
        for (key, value) in parts.filter_map(|p| p.split_once('=')) {
            let value = value.trim_matches('"');
            if key == "q" {
                quality = value.parse::<f64>().map_or(1000, |q| (q.clamp(0.0, 1.0) * 1000.0) as u32);
            } else {
                params.push((key.to_ascii_lowercase(), value.to_owned()));
            }
        }
        if quality > 0 {
            out.push((quality, Clause { media, params }));
        }
    }
    if out.is_empty() && !headers.contains_key(ACCEPT) {
        return vec![Clause { media: "*/*".into(), params: Vec::new() }];
    }
    out.sort_by_key(|(quality, _)| std::cmp::Reverse(*quality));
    out.into_iter().map(|(_, clause)| clause).collect()
}

/// The 406 of Kubernetes' serializers.
pub(crate) fn not_acceptable() -> ApiError {
    ApiError::new(
        406,
        Reason::NotAcceptable,
        "only the following media types are accepted: application/json, application/yaml, \
         application/vnd.kubernetes.protobuf",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_029_clauses_are_ordered_by_quality() {
        let mut headers = HeaderMap::new();
        assert!(clauses(&headers)[0].is_json());
        let text = "text/html;q=0.1, application/json;g=a;v=v2 , */*;q=0.5, x/y;q=0";
        headers.insert(ACCEPT, http::HeaderValue::from_static(text));
        let media: Vec<String> = clauses(&headers).into_iter().map(|c| c.media).collect();
        assert_eq!(media, ["application/json", "*/*", "text/html"]);
        assert_eq!(clauses(&headers)[0].param("v"), Some("v2"));
    }
}
