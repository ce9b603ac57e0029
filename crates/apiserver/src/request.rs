//! Query parameters and the options of each verb, decoded and checked like in Kubernetes.

use machinery::field;
use percent_encoding::percent_decode_str;

use crate::error::{ApiError, Reason};

/// Decoded query parameters, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(query: &str) -> Self {
        Self(
            query
                .split('&')
                .filter(|pair| !pair.is_empty())
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(key), decode(value))
                })
                .collect(),
        )
    }

    /// The first value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// Whether a boolean parameter is present and neither `0` nor `false`.
    pub fn flag(&self, key: &str) -> bool {
        self.get(key).is_some_and(truthy)
    }

    pub fn optional_flag(&self, key: &str) -> Option<bool> {
        self.get(key).map(truthy)
    }

    /// An integer parameter.
    ///
    /// # Errors
    /// 400 with the text of Go's parser.
    pub fn integer(&self, key: &str) -> Result<Option<i64>, ApiError> {
        match self.get(key) {
            None | Some("") => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| {
                ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))
            }),
        }
    }
}

fn truthy(value: &str) -> bool {
    value != "0" && !value.eq_ignore_ascii_case("false")
}

fn decode(text: &str) -> String {
    let text = text.replace('+', " ");
    percent_decode_str(&text).decode_utf8_lossy().into_owned()
}

/// `fieldValidation` (AS-037).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// Options of create, update and patch.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub manager: String,
    pub manager_given: bool,
    pub validation: FieldValidation,
    pub force: Option<bool>,
}

impl WriteOptions {
    /// Parses and checks the options. `kind` is CreateOptions, UpdateOptions or PatchOptions.
    ///
    /// # Errors
    /// 422 for an option with an invalid value.
    pub fn parse(query: &Query, user_agent: &str, kind: &str, apply: bool) -> Result<Self, ApiError> {
        let mut errors = Vec::new();
        let dry_run = dry_run(query.all("dryRun").map(str::to_owned).collect(), &mut errors);
        let manager = query.get("fieldManager").unwrap_or_default();
        if kind == "PatchOptions" {
            check_apply(query, apply, manager, &mut errors);
        }
        check_manager(manager, &mut errors);
        let validation = match query.get("fieldValidation").unwrap_or_default() {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                errors.push(option_error(
                    "fieldValidation",
                    "FieldValueNotSupported",
                    format!(
                        "Unsupported value: {other:?}: supported values: \"\", \"Ignore\", \"Strict\", \"Warn\""
                    ),
                ));
                FieldValidation::Warn
            }
        };
        invalid_options(kind, &errors)?;
        Ok(Self {
            dry_run,
            manager: if manager.is_empty() { agent_manager(user_agent) } else { manager.to_owned() },
            manager_given: !manager.is_empty(),
            validation,
            force: query.optional_flag("force"),
        })
    }
}

fn check_apply(query: &Query, apply: bool, manager: &str, errors: &mut Vec<field::Error>) {
    if apply && manager.is_empty() {
        let body = "Required value: is required for apply patch";
        errors.push(option_error("fieldManager", "FieldValueRequired", body.into()));
    }
    if !apply && query.get("force").is_some() {
        let body = "Forbidden: may not be specified for non-apply patch";
        errors.push(option_error("force", "FieldValueForbidden", body.into()));
    }
}

fn check_manager(manager: &str, errors: &mut Vec<field::Error>) {
    if manager.len() > 128 {
        let body = "Too long: may not be more than 128 bytes";
        errors.push(option_error("fieldManager", "FieldValueTooLong", body.into()));
    }
    if let Some((at, c)) = manager.char_indices().find(|(_, c)| c.is_control()) {
        let body =
            format!("Invalid value: {manager:?}: invalid character {} (at position {at})", unicode_point(c));
        errors.push(option_error("fieldManager", "FieldValueInvalid", body));
    }
}

fn unicode_point(c: char) -> String {
    format!("U+{:04X}", u32::from(c))
}

/// The field manager of a request that names none: the user agent up to the first `/`, at most 128 bytes.
fn agent_manager(user_agent: &str) -> String {
    let name = user_agent.split('/').next().unwrap_or_default();
    let mut out = String::new();
    for c in name.chars().filter(|c| !c.is_control()) {
        if out.len() + c.len_utf8() > 128 {
            break;
        }
        out.push(c);
    }
    if out.is_empty() { "unknown".into() } else { out }
}

/// Whether the `dryRun` directives ask for a dry run; adds errors for unknown directives.
pub fn dry_run(values: Vec<String>, errors: &mut Vec<field::Error>) -> bool {
    if values.iter().any(|v| v != "All") {
        let shown = serde_json::to_string(&values).unwrap_or_default();
        errors.push(option_error(
            "dryRun",
            "FieldValueNotSupported",
            format!("Unsupported value: {shown}: supported values: \"All\""),
        ));
    }
    !values.is_empty()
}

/// An error about a field of an options object.
pub fn option_error(field: &str, reason: &'static str, body: String) -> field::Error {
    field::Error { field: field.to_owned(), body, reason }
}

/// Refuses a request with errors in its options.
///
/// # Errors
/// 422 if `errors` has any.
pub fn invalid_options(kind: &str, errors: &[field::Error]) -> Result<(), ApiError> {
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid("meta.k8s.io", kind, "", errors)) }
}

/// `resourceVersionMatch`: how old the answer of a list or watch may be (AS-022).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    Unset,
    Exact,
    NotOlderThan,
}

/// Options of list, watch and deletecollection. Selectors are not parsed yet.
#[derive(Clone, Debug)]
pub struct ListOptions {
    pub resource_version: String,
    pub version_match: VersionMatch,
    /// Most objects of a page; 0: no limit.
    pub limit: usize,
    pub continue_token: String,
    /// Life time of a watch in seconds (`timeoutSeconds`).
    pub timeout_seconds: Option<u64>,
    pub bookmarks: bool,
    pub send_initial_events: Option<bool>,
}

impl ListOptions {
    /// Parses and checks the options; `watch` as for a watch.
    ///
    /// # Errors
    /// 400 for a malformed number, 422 for options that do not go together.
    pub fn parse(query: &Query, watch: bool) -> Result<Self, ApiError> {
        let text = |key: &str| query.get(key).unwrap_or_default().to_owned();
        let limit = query.integer("limit")?.unwrap_or(0);
        let timeout = query.integer("timeoutSeconds")?;
        let options = Self {
            resource_version: text("resourceVersion"),
            version_match: match query.get("resourceVersionMatch").unwrap_or_default() {
                "Exact" => VersionMatch::Exact,
                "NotOlderThan" => VersionMatch::NotOlderThan,
                _ => VersionMatch::Unset,
            },
            limit: usize::try_from(limit).unwrap_or(0),
            continue_token: text("continue"),
            timeout_seconds: timeout.and_then(|t| u64::try_from(t).ok()).filter(|t| *t > 0),
            bookmarks: query.flag("allowWatchBookmarks"),
            send_initial_events: query.optional_flag("sendInitialEvents"),
        };
        options.check(query.get("resourceVersionMatch").unwrap_or_default(), watch)?;
        Ok(options)
    }

    /// The `resourceVersion` of a GET: the answer must not be older.
    ///
    /// # Errors
    /// 400 if it is not a number.
    pub fn parse_get(query: &Query) -> Result<Option<u64>, ApiError> {
        if query.flag("export") {
            return Err(ApiError::bad_request(
                "the export parameter, deprecated since v1.14, is no longer supported",
            ));
        }
        match query.get("resourceVersion") {
            None | Some("" | "0") => Ok(None),
            Some(text) => stored_revision(text).map(Some),
        }
    }

    /// The number in `resourceVersion`; `None` if it is not set.
    ///
    /// # Errors
    /// 400 if it is not a number.
    pub fn revision(&self) -> Result<Option<u64>, ApiError> {
        if self.resource_version.is_empty() {
            return Ok(None);
        }
        parse_revision(&self.resource_version).map(Some)
    }

    /// [`Self::revision`] of a watch, which the store reads.
    ///
    /// # Errors
    /// 500 if it is not a number, as in Kubernetes.
    pub fn watch_revision(&self) -> Result<Option<u64>, ApiError> {
        if self.resource_version.is_empty() {
            return Ok(None);
        }
        stored_revision(&self.resource_version).map(Some)
    }

    fn check(&self, matching: &str, watch: bool) -> Result<(), ApiError> {
        let mut errors = Vec::new();
        if watch {
            self.check_watch(matching, &mut errors);
        } else {
            self.check_list(matching, &mut errors);
        }
        invalid_options("ListOptions", &errors)
    }

    fn check_watch(&self, matching: &str, errors: &mut Vec<field::Error>) {
        let forbid = |body: &str| {
            option_error("resourceVersionMatch", "FieldValueForbidden", format!("Forbidden: {body}"))
        };
        match (self.send_initial_events, matching) {
            (None, "") | (Some(_), "NotOlderThan") => {}
            (None, other) => {
                errors.push(forbid(
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ));
                if other != "NotOlderThan" {
                    errors.push(unsupported_match(other, "\"NotOlderThan\""));
                }
            }
            (Some(_), other) => {
                errors
                    .push(forbid("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
                if !other.is_empty() {
                    errors.push(unsupported_match(other, "\"NotOlderThan\""));
                }
            }
        }
        if !self.continue_token.is_empty() && self.send_initial_events.is_some() {
            errors.push(forbid("resourceVersionMatch is forbidden when continue is provided"));
        }
    }

    fn check_list(&self, matching: &str, errors: &mut Vec<field::Error>) {
        let forbid = |field: &str, body: &str| {
            option_error(field, "FieldValueForbidden", format!("Forbidden: {body}"))
        };
        if !matching.is_empty() {
            if self.resource_version.is_empty() {
                errors.push(forbid(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                ));
            }
            if !self.continue_token.is_empty() {
                errors.push(forbid(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden when continue is provided",
                ));
            }
            if !matches!(matching, "Exact" | "NotOlderThan") {
                errors.push(unsupported_match(matching, "\"Exact\", \"NotOlderThan\", \"\""));
            }
            if matching == "Exact" && self.resource_version == "0" {
                errors.push(forbid(
                    "resourceVersionMatch",
                    "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                ));
            }
        }
        if self.send_initial_events.is_some() {
            errors.push(forbid("sendInitialEvents", "sendInitialEvents is forbidden for list"));
        }
    }
}

/// Parses a resourceVersion where Kubernetes parses it in the store; the error differs from that of options.
fn stored_revision(text: &str) -> Result<u64, ApiError> {
    text.parse().map_err(|_| {
        let text = field::quote(text);
        let fault = format!("Invalid value: {text}: strconv.ParseUint: parsing {text}: invalid syntax");
        ApiError::new(500, Reason::Unknown, format!("resourceVersion: {fault}"))
    })
}

fn parse_revision(text: &str) -> Result<u64, ApiError> {
    text.parse().map_err(|_| {
        ApiError::bad_request(format!(
            "invalid resource version: resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: \
             invalid syntax"
        ))
    })
}

fn unsupported_match(value: &str, supported: &str) -> field::Error {
    option_error(
        "resourceVersionMatch",
        "FieldValueNotSupported",
        format!("Unsupported value: {value:?}: supported values: {supported}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AS-022, AS-027: which options of lists and streaming lists go together.
    #[test]
    fn as_022_options_are_checked() {
        let message = |query: &str, watch| {
            ListOptions::parse(&Query::parse(query), watch).err().map(|e| e.message).unwrap_or_default()
        };
        assert_eq!(message("limit=2&continue=x", false), "");
        assert!(message("resourceVersionMatch=Exact", false).contains("unless resourceVersion is provided"));
        assert!(
            message("sendInitialEvents=true&resourceVersionMatch=Exact", true)
                .contains("[resourceVersionMatch")
        );
        assert_eq!(message("limit=abc", false), "strconv.ParseInt: parsing \"abc\": invalid syntax");
    }

    #[test]
    fn as_034_manager_comes_from_the_user_agent() {
        let parse = |query: &str, agent: &str| {
            WriteOptions::parse(&Query::parse(query), agent, "CreateOptions", false)
        };
        assert_eq!(parse("", "curl/8.1").map(|o| o.manager), Ok("curl".to_owned()));
        assert_eq!(parse("fieldManager=x", "curl/8.1").map(|o| o.manager), Ok("x".to_owned()));
        let long = parse(&format!("fieldManager={}", "x".repeat(130)), "").err().map(|e| e.message);
        assert!(long.is_some_and(|m| m.contains("Too long: may not be more than 128 bytes")));
        let newline = parse("fieldManager=a%0Ab", "").err().map(|e| e.message);
        assert!(newline.is_some_and(|m| m.contains("invalid character U+000A (at position 1)")));
    }
}
