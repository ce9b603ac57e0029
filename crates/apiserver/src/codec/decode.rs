//! Decoding of request bodies (spec 0.6, 5.8).

use std::collections::HashSet;
use std::fmt::Write as _;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use machinery::schema::DefaultsError;
use machinery::{json, yaml};
use serde_json::Value;

use super::protobuf::{self, Envelope};
use crate::catalog::Catalog;
use crate::descriptor::Descriptor;
use crate::error::{ApiError, Reason};
use crate::request::{FieldValidation, option_error};

/// Text format of a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFormat {
    Json,
    Yaml,
    Protobuf,
}

const ACCEPTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
const ACCEPTED_CUSTOM: &str = "application/json, application/yaml";

/// The media type of the body, without parameters, in lower case. The whole text if its parameters are malformed, which
/// no endpoint accepts.
pub fn content_type(headers: &HeaderMap) -> String {
    let text = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let mut parts = text.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default();
    let well_formed = parts.all(|parameter| parameter.is_empty() || parameter.contains('='));
    if well_formed { media } else { text }.to_ascii_lowercase()
}

/// The format of an object in a request body. A missing Content-Type means JSON.
///
/// # Errors
/// 415 for a type that the endpoint does not accept.
pub fn body_format(headers: &HeaderMap, custom: bool) -> Result<BodyFormat, ApiError> {
    match content_type(headers).as_str() {
        "" | "application/json" => Ok(BodyFormat::Json),
        "application/yaml" => Ok(BodyFormat::Yaml),
        protobuf::MEDIA_TYPE if !custom => Ok(BodyFormat::Protobuf),
        _ => Err(unsupported(if custom { ACCEPTED_CUSTOM } else { ACCEPTED })),
    }
}

/// 415 with the list of accepted types.
pub fn unsupported(accepted: &str) -> ApiError {
    ApiError::new(
        415,
        Reason::UnsupportedMediaType,
        format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        ),
    )
}

/// A parsed body, and its duplicate keys.
pub struct Parsed {
    pub value: Value,
    /// Texts for warnings: `duplicate field "data.a"`.
    pub duplicates: Vec<String>,
}

/// Parses a body. A protobuf body that names no kind is taken for DeleteOptions.
///
/// # Errors
/// The text of the parser.
pub fn parse(body: &[u8], format: BodyFormat) -> Result<Parsed, String> {
    match format {
        BodyFormat::Json => match json::parse_strict(body) {
            Ok((value, paths)) => {
                let duplicates = paths.into_iter().map(|p| format!("duplicate field \"{p}\"")).collect();
                Ok(Parsed { value, duplicates })
            }
            Err(error) => Err(format!("couldn't get version/kind; json parse error: {error}")),
        },
        BodyFormat::Yaml => {
            let text = String::from_utf8_lossy(body);
            match yaml::parse_one(&text) {
                Ok(value) => Ok(Parsed { value, duplicates: yaml_duplicates(&text) }),
                Err(error) => Err(format!("error converting YAML to JSON: {error}")),
            }
        }
        BodyFormat::Protobuf => {
            let value = Envelope::open(body).and_then(|envelope| envelope.decode("v1", "DeleteOptions"));
            value.map(|value| Parsed { value, duplicates: Vec::new() }).map_err(|fault| fault.to_string())
        }
    }
}

/// Parses a body that is not an object of the endpoint's resource: options, or the input of a subresource.
///
/// # Errors
/// 415 for a wrong format, 400 if the body does not parse as `kind`.
pub(crate) fn parse_as(headers: &HeaderMap, body: &[u8], kind: &str) -> Result<Value, ApiError> {
    let format = body_format(headers, false)?;
    let parsed = parse(body, format).map_err(|error| {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): {error}"
        ))
    })?;
    Ok(parsed.value)
}

/// Duplicate keys of block mappings, as the YAML reader of Kubernetes reports them. The YAML parser does not report
/// them, so this looks at lines and indentation, which is enough for manifests.
fn yaml_duplicates(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Vec<(usize, HashSet<&str>)> = Vec::new();
    let mut literal: Option<usize> = None;
    for (number, line) in text.lines().enumerate() {
        let content = line.trim_start();
        let mut indent = line.len() - content.len();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        if literal.is_some_and(|outer| indent > outer) {
            continue;
        }
        literal = None;
        if content.starts_with("---") {
            // Only the first document is decoded.
            if !open.is_empty() {
                break;
            }
            continue;
        }
        let mut content = content;
        while let Some(rest) = content.strip_prefix("- ") {
            close(&mut open, indent + 1);
            let inner = rest.trim_start();
            indent += content.len() - inner.len();
            close(&mut open, indent);
            content = inner;
        }
        let Some((key, value)) = split_key(content) else { continue };
        close(&mut open, indent + 1);
        if open.last().is_none_or(|(at, _)| *at < indent) {
            open.push((indent, HashSet::new()));
        }
        let fresh = open.last_mut().is_none_or(|(_, keys)| keys.insert(key));
        if !fresh {
            found.push(format!("line {}: key {key:?} already set in map", number + 1));
        }
        if value.starts_with(['|', '>']) {
            literal = Some(indent);
        }
    }
    found
}

/// Closes the mappings that begin at `indent` or further right. Open mappings are sorted by indentation, so each is
/// closed once.
fn close(open: &mut Vec<(usize, HashSet<&str>)>, indent: usize) {
    while open.last().is_some_and(|(at, _)| *at >= indent) {
        open.pop();
    }
}

/// Splits `key: value` at the beginning of a line.
fn split_key(line: &str) -> Option<(&str, &str)> {
    if line.starts_with(['{', '[', '&', '*', '!', '%', '@', '`']) {
        return None;
    }
    let quote = line.chars().next().filter(|c| matches!(c, '"' | '\''));
    if let Some(quote) = quote {
        let (key, rest) = line.get(1..)?.split_once(quote)?;
        return Some((key, rest.strip_prefix(':')?.trim_start()));
    }
    if let Some(key) = line.strip_suffix(':') {
        return Some((key, ""));
    }
    line.split_once(": ").map(|(key, value)| (key, value.trim_start()))
}

/// Decodes the bodies of one endpoint.
pub struct Decoder<'a> {
    pub catalog: &'a Catalog,
    pub descriptor: &'a Descriptor,
    pub validation: FieldValidation,
}

impl Decoder<'_> {
    /// Decodes a body into a typed object with defaults. Adds texts about unknown and duplicate fields to `warnings`.
    ///
    /// # Errors
    /// 400 if the body does not decode, also for unknown fields with strict validation; 415 for a wrong format.
    pub fn object(
        &self,
        body: &[u8],
        format: BodyFormat,
        warnings: &mut Vec<String>,
    ) -> Result<Value, ApiError> {
        let parsed = if format == BodyFormat::Protobuf {
            self.protobuf(body)?
        } else {
            parse(body, format).map_err(|error| self.unrecognized(&error, body))?
        };
        let mut value = parsed.value;
        if !value.is_object() {
            let what = "json: cannot unmarshal value into Go value of type struct { APIVersion string; Kind string }";
            let error = format!("couldn't get version/kind; json parse error: {what}");
            return Err(self.unrecognized(&error, body));
        }
        self.check_kind(&mut value, body)?;
        let unknown = self.fit(&mut value).map_err(|error| self.cannot_handle(&error))?;
        self.report(parsed.duplicates, unknown, format, warnings)?;
        Ok(value)
    }

    /// Decodes a protobuf body. The endpoint's kind replaces what the envelope leaves out (AS-030).
    fn protobuf(&self, body: &[u8]) -> Result<Parsed, ApiError> {
        let d = self.descriptor;
        let envelope = Envelope::open(body).map_err(|fault| self.unrecognized(&fault.to_string(), body))?;
        let value = envelope
            .decode(&d.api_version(), &d.kind)
            .map_err(|fault| self.cannot_handle(&fault.to_string()))?;
        Ok(Parsed { value, duplicates: Vec::new() })
    }

    /// Checks types, drops unknown fields (returned as texts) and fills in defaults.
    ///
    /// # Errors
    /// The text of the first type error.
    pub fn fit(&self, value: &mut Value) -> Result<Vec<String>, String> {
        let unknown = if self.descriptor.is_custom() {
            self.descriptor.schema.prune(value)
        } else {
            self.descriptor.schema.decode(value).map_err(|error| error.to_string())?
        };
        self.default(value).map_err(|error| error.to_string())?;
        Ok(unknown.iter().map(ToString::to_string).collect())
    }

    /// Fills in the defaults of the schema and of the kind, and brings the object into canonical form.
    ///
    /// # Errors
    /// The defaults are larger than one object may have.
    pub fn default(&self, value: &mut Value) -> Result<(), DefaultsError> {
        self.descriptor.schema.default(value)?;
        self.descriptor.strategy.default(value);
        if !self.descriptor.is_custom() {
            self.descriptor.schema.normalise(value);
        }
        Ok(())
    }

    fn report(
        &self,
        duplicates: Vec<String>,
        unknown: Vec<String>,
        format: BodyFormat,
        warnings: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        match self.validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => {
                warnings.extend(duplicates);
                warnings.extend(unknown);
            }
            FieldValidation::Strict => {
                if duplicates.is_empty() && unknown.is_empty() {
                    return Ok(());
                }
                let mut problems = duplicates;
                if format == BodyFormat::Yaml && !problems.is_empty() {
                    problems = vec![format!("yaml: unmarshal errors:\n  {}", problems.join("\n  "))];
                }
                problems.extend(unknown);
                return Err(self.cannot_handle(&format!("strict decoding error: {}", problems.join(", "))));
            }
        }
        Ok(())
    }

    /// `Kind in version "v" cannot be handled as a Kind: why`.
    fn cannot_handle(&self, why: &str) -> ApiError {
        let d = self.descriptor;
        ApiError::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: {why}",
            d.kind, d.version, d.kind
        ))
    }

    fn unrecognized(&self, why: &str, body: &[u8]) -> ApiError {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {why} ({})",
            self.descriptor.kind,
            summary(body)
        ))
    }

    /// Compares apiVersion and kind with those of the endpoint. For built-in kinds the URL replaces missing ones.
    fn check_kind(&self, value: &mut Value, body: &[u8]) -> Result<(), ApiError> {
        let d = self.descriptor;
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        if d.is_custom() {
            if kind.is_empty() {
                let shown = String::from_utf8_lossy(body);
                return Err(
                    self.unrecognized(&format!("Object 'Kind' is missing in '{}'", shown.trim_end()), body)
                );
            }
            return check_custom(d, &api_version, &kind, value);
        }
        let served = d.api_version();
        let kind = if kind.is_empty() { d.kind.clone() } else { kind };
        let api_version = if api_version.is_empty() { served.clone() } else { api_version };
        if kind != d.kind || api_version != served {
            return Err(self.wrong_kind(&api_version, &kind));
        }
        if let Some(map) = value.as_object_mut() {
            map.insert("apiVersion".into(), served.into());
            map.insert("kind".into(), d.kind.clone().into());
        }
        Ok(())
    }

    fn wrong_kind(&self, api_version: &str, kind: &str) -> ApiError {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let own = self.descriptor;
        let why = if self.catalog.kind(group, version, kind).is_some_and(|d| !d.is_custom()) {
            let package =
                if own.group.is_empty() { "core" } else { own.group.split('.').next().unwrap_or_default() };
            format!("converting ({version}.{kind}) to ({package}.{}): unknown conversion", own.kind)
        } else {
            format!(
                "no kind {kind:?} is registered for version {api_version:?} in scheme \"pkg/runtime/scheme.go:111\""
            )
        };
        ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {}: {why}",
            own.kind
        ))
    }
}

/// Checks that the body of a custom resource names exactly the endpoint's version and kind.
///
/// # Errors
/// 400 if it does not.
pub fn check_custom(d: &Descriptor, api_version: &str, kind: &str, value: &Value) -> Result<(), ApiError> {
    let served = d.api_version();
    if api_version != served {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({served})"
        )));
    }
    if kind != d.kind {
        let name = value.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let body = format!("Invalid value: {kind:?}: must be {}", d.kind);
        return Err(ApiError::invalid(
            &d.group,
            kind,
            name,
            &[option_error("kind", "FieldValueInvalid", body)],
        ));
    }
    Ok(())
}

/// The beginning of a body, for error messages.
fn summary(body: &[u8]) -> String {
    const SHOWN: usize = 30;
    let (part, more) = match body.get(..SHOWN) {
        Some(part) if body.len() > SHOWN => (part, " ..."),
        _ => (body, ""),
    };
    match body.first() {
        None => "<empty>".into(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(part)),
        Some(_) => {
            let mut hex = String::with_capacity(part.len() * 2 + 4);
            for byte in part {
                // Writing to a String cannot fail.
                let _ = write!(hex, "{byte:02x}");
            }
            hex + more
        }
    }
}
