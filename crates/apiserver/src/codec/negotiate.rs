//! Content negotiation (spec 4.6).

use http::HeaderMap;
use http::header::{ACCEPT, ACCEPT_ENCODING, USER_AGENT};

use super::media::{MEDIA_TYPE, SERIALIZERS};
use crate::error::{ApiError, Details, Reason};
use crate::request::Query;

/// Text format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    Yaml,
    /// Only for clients that accept nothing else, because objects are stored as JSON.
    Protobuf,
}

/// Which form of the objects is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Object,
    /// `as=Table`; the version is `v1` or `v1beta1`.
    Table {
        version: &'static str,
    },
    /// `as=PartialObjectMetadata`.
    Metadata {
        version: &'static str,
    },
    /// `as=PartialObjectMetadataList`.
    MetadataList {
        version: &'static str,
    },
}

/// The negotiated representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Media {
    pub format: Format,
    pub shape: Shape,
    pub pretty: bool,
    pub gzip: bool,
}

impl Media {
    /// Compact JSON of whole objects.
    pub const JSON: Self = Self { format: Format::Json, shape: Shape::Object, pretty: false, gzip: false };

    pub fn content_type(self) -> &'static str {
        match self.format {
            Format::Json => "application/json",
            Format::Yaml => "application/yaml",
            Format::Protobuf => MEDIA_TYPE,
        }
    }
}

/// Which shapes an endpoint can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Item,
    List,
    /// Table and metadata of single events.
    Watch,
    /// Whole objects only (Status, reviews).
    Plain,
}

const ROUTES: &str = "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf";
const STREAMS: &str = ", application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";

/// Chooses among the clauses of `Accept`, in the client's order of preference. `custom` changes the error, because
/// custom resources have no routes of their own.
///
/// # Errors
/// 406 if no clause can be answered.
pub fn negotiate(
    headers: &HeaderMap,
    query: &Query,
    endpoint: Endpoint,
    custom: bool,
) -> Result<Media, ApiError> {
    let pretty = pretty(headers, query);
    let gzip = headers
        .get_all(ACCEPT_ENCODING)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .any(|v| v.split(',').any(|e| e.trim().eq_ignore_ascii_case("gzip")));
    let with = |format, shape| Media { format, shape, pretty, gzip };
    let accept = headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok()).collect::<Vec<_>>().join(",");
    if accept.trim().is_empty() {
        return Ok(with(Format::Json, Shape::Object));
    }
    let clauses = clauses(&accept);
    let routed = custom || clauses.iter().any(Clause::routable);
    let mut accepted =
        clauses.iter().filter(|_| routed).filter_map(|clause| clause.accepted(endpoint, custom));
    if let Some((format, shape)) = accepted.next() {
        // JSON is stored and protobuf must be encoded, so protobuf is only for clients that accept no other form.
        let json = format == Format::Protobuf && accepted.any(|other| other == (Format::Json, shape));
        return Ok(with(if json { Format::Json } else { format }, shape));
    }
    if routed {
        Err(ApiError::new(406, Reason::NotAcceptable, SERIALIZERS))
    } else {
        let streams = if matches!(endpoint, Endpoint::List | Endpoint::Watch) { STREAMS } else { "" };
        Err(ApiError::new(406, Reason::NotAcceptable, format!("{ROUTES}{streams}"))
            .with_details(Details::default()))
    }
}

/// Whether the client accepts errors in protobuf only.
pub fn protobuf_only(headers: &HeaderMap) -> bool {
    let accept = headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok()).collect::<Vec<_>>().join(",");
    let clauses = clauses(&accept);
    !clauses.is_empty() && clauses.iter().all(|clause| clause.media == MEDIA_TYPE)
}

/// Whether JSON is indented: the client asks for it, or is a program for humans (curl, browsers).
pub fn pretty(headers: &HeaderMap, query: &Query) -> bool {
    match query.get("pretty") {
        Some("") | None => headers
            .get(USER_AGENT)
            .and_then(|v| v.to_str().ok())
            .is_some_and(|a| ["curl", "Wget", "Mozilla/5.0"].iter().any(|p| a.starts_with(p))),
        Some(_) => query.flag("pretty"),
    }
}

struct Clause<'a> {
    media: String,
    quality: u32,
    parameters: Vec<(&'a str, &'a str)>,
}

fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let mut all: Vec<Clause<'_>> = accept
        .split(',')
        .filter(|text| !text.trim().is_empty())
        .map(|text| {
            let mut parts = text.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default().to_ascii_lowercase();
            let parameters: Vec<_> = parts.filter_map(|p| p.split_once('=')).collect();
            let quality = parameters
                .iter()
                .find(|(key, _)| *key == "q")
                .and_then(|(_, q)| q.parse::<f32>().ok())
                .map_or(1000, |q| (q.clamp(0.0, 1.0) * 1000.0) as u32);
            Clause { media, quality, parameters }
        })
        .collect();
    // The sort is stable: equal preferences keep the client's order.
    all.sort_by_key(|clause| std::cmp::Reverse(clause.quality));
    all
}

impl Clause<'_> {
    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    fn accepted(&self, endpoint: Endpoint, custom: bool) -> Option<(Format, Shape)> {
        let format = match self.media.as_str() {
            "*/*" | "application/*" | "application/json" => Format::Json,
            "application/yaml" => Format::Yaml,
            MEDIA_TYPE => Format::Protobuf,
            _ => return None,
        };
        let protobuf = format == Format::Protobuf;
        let Some(kind) = self.parameter("as") else {
            // Custom resources have no protobuf messages; only their metadata has.
            if protobuf && custom {
                return None;
            }
            return Some((format, Shape::Object));
        };
        if self.parameter("g") != Some("meta.k8s.io") {
            return None;
        }
        let version = match self.parameter("v") {
            Some("v1") => "v1",
            Some("v1beta1") => "v1beta1",
            _ => return None,
        };
        let shape = match (kind, endpoint) {
            (_, Endpoint::Plain) => return None,
            ("Table", _) if protobuf => return None,
            ("Table", _) => Shape::Table { version },
            ("PartialObjectMetadata", _) => Shape::Metadata { version },
            ("PartialObjectMetadataList", Endpoint::List | Endpoint::Item) => Shape::MetadataList { version },
            _ => return None,
        };
        Some((format, shape))
    }

    /// Whether any route of built-in kinds produces this type: routing does not know `application/*`. What routing
    /// lets through, the serializer may refuse, with another text.
    fn routable(&self) -> bool {
        matches!(self.media.as_str(), "*/*" | "application/json" | "application/yaml" | MEDIA_TYPE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(accept: &str, endpoint: Endpoint) -> Result<(Format, Shape), String> {
        let mut headers = HeaderMap::new();
        if let Ok(value) = accept.parse() {
            headers.insert(ACCEPT, value);
        }
        negotiate(&headers, &Query::default(), endpoint, false)
            .map(|m| (m.format, m.shape))
            .map_err(|e| e.message)
    }

    /// AS-028, AS-029: JSON, YAML, Table and PartialObjectMetadata by the first Accept clause that can be answered.
    #[test]
    fn as_029_accept_clauses_are_tried_in_order() {
        let json = Ok((Format::Json, Shape::Object));
        assert_eq!(choose("", Endpoint::Item), json);
        assert_eq!(choose("*/*", Endpoint::Item), json);
        assert_eq!(choose("application/vnd.kubernetes.protobuf,application/json", Endpoint::List), json);
        assert_eq!(
            choose("application/json;q=0.1,application/yaml", Endpoint::Item),
            Ok((Format::Yaml, Shape::Object))
        );
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        assert_eq!(choose(table, Endpoint::List), Ok((Format::Json, Shape::Table { version: "v1" })));
        let partial = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
        assert_eq!(choose(partial, Endpoint::Watch), Ok((Format::Json, Shape::Metadata { version: "v1" })));
        assert_eq!(choose(partial, Endpoint::Plain), Err(SERIALIZERS.to_owned()));
    }

    #[test]
    fn as_030_protobuf_is_for_those_who_take_nothing_else() {
        let only = "application/vnd.kubernetes.protobuf";
        assert_eq!(choose(only, Endpoint::Item), Ok((Format::Protobuf, Shape::Object)));
        let either = "application/vnd.kubernetes.protobuf, application/json;q=0.1";
        assert_eq!(choose(either, Endpoint::Item), Ok((Format::Json, Shape::Object)));
        let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        let shape = Shape::Metadata { version: "v1" };
        assert_eq!(choose(metadata, Endpoint::Watch), Ok((Format::Protobuf, shape)));
        // The client prefers another form than JSON of the whole object.
        assert_eq!(
            choose(&format!("{metadata},application/json"), Endpoint::Watch),
            Ok((Format::Protobuf, shape))
        );
        let json = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        assert_eq!(choose(&format!("{metadata},{json}"), Endpoint::Watch), Ok((Format::Json, shape)));
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, http::HeaderValue::from_static("application/vnd.kubernetes.protobuf"));
        assert!(negotiate(&headers, &Query::default(), Endpoint::Item, true).is_err_and(|e| e.code == 406));
    }

    /// AS-029: the text of a 406 depends on whether routing or the serializer refuses the type.
    #[test]
    fn as_a_017_unknown_types_are_refused_by_routing() {
        assert_eq!(choose("text/html", Endpoint::Item), Err(ROUTES.to_owned()));
        assert_eq!(
            choose("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io", Endpoint::Item),
            Err(SERIALIZERS.to_owned())
        );
    }
}
