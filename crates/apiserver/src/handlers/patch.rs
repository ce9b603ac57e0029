//! PATCH: JSON, merge and strategic merge patches, server-side apply (spec 5.3 to 5.6).

use http::Response;
use machinery::managed::{self, ApplyError};
use machinery::patch::{self as patches, PatchError};
use machinery::schema::Schema;
use machinery::{field, json, yaml};
use serde_json::Value;

use super::create::{Tracking, writer};
use super::object::meta_str;
use super::update::{Mode, Update, run};
use super::{RequestContext, metadata, output};
use crate::codec::decode::{Decoder, content_type, unsupported};
use crate::encode;
use crate::error::{ApiError, Cause, Details, Reason};
use crate::request::{FieldValidation, WriteOptions};
use crate::response::Body;

const CUSTOM_TYPES: &str = "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml, application/apply-patch+yaml";
const JSON_PATCH_MEMBERS: [&str; 4] = ["op", "path", "from", "value"];

/// The patch formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchFormat {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchFormat {
    pub(crate) fn of(cx: &RequestContext<'_>) -> Result<Self, ApiError> {
        let custom = cx.descriptor.is_custom();
        match content_type(cx.headers).as_str() {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" if !custom => Ok(Self::Strategic),
            "application/apply-patch+yaml" => Ok(Self::Apply),
            _ if custom => Err(unsupported(CUSTOM_TYPES)),
            _ => Err(ApiError::unsupported_media_type()),
        }
    }
}

/// A parsed patch. It is parsed once and applied at each attempt.
pub(crate) struct ParsedPatch {
    pub value: Value,
    /// Warnings or errors about the patch itself (duplicate keys, unknown members).
    pub problems: Vec<String>,
}

/// PATCH of an object or through a subresource.
pub(crate) async fn patch(
    cx: &mut RequestContext<'_>,
    body: &[u8],
    subresource: Option<&str>,
) -> Result<Response<Body>, ApiError> {
    let media = cx.media_of(false)?;
    let language = PatchFormat::of(cx)?;
    let apply = language == PatchFormat::Apply;
    let options = WriteOptions::parse(cx.query, cx.user_agent, "PatchOptions", apply)?;
    let name = cx.info.path_name().to_owned();
    let (status, text) = if apply {
        let applied = parse_apply(cx, body, &name, &options)?;
        let produce = |cx: &mut RequestContext<'_>, live: Option<&Value>| {
            apply_to(cx, live, &applied, &options, subresource)
        };
        let update = Update {
            name: &name,
            subresource,
            options: &options,
            mode: Mode::Apply,
            tracking: Tracking::Applied,
            produce: &produce,
        };
        run(cx, &update).await?
    } else {
        let parsed = parse(body, language)?;
        let produce = |cx: &mut RequestContext<'_>, live: Option<&Value>| {
            let live = live.ok_or_else(|| cx.not_found(cx.info.path_name()))?;
            patched(cx, live, &parsed, language, &options)
        };
        let update = Update {
            name: &name,
            subresource,
            options: &options,
            mode: Mode::Patch,
            tracking: Tracking::Update,
            produce: &produce,
        };
        run(cx, &update).await?
    };
    output::object(cx, status, media, text)
}

/// Parses a JSON, merge or strategic merge patch.
pub(crate) fn parse(body: &[u8], language: PatchFormat) -> Result<ParsedPatch, ApiError> {
    let (value, duplicates) = json::parse_strict(body)
        .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))?;
    let fits = if language == PatchFormat::Json { value.is_array() } else { value.is_object() };
    if !fits {
        let wanted = match language {
            PatchFormat::Json => "[]handlers.jsonPatchOp",
            _ => "map[string]interface {}",
        };
        return Err(ApiError::bad_request(format!(
            "error decoding patch: json: cannot unmarshal {} into Go value of type {wanted}",
            json::type_name(&value)
        )));
    }
    let mut problems: Vec<String> =
        duplicates.into_iter().map(|path| format!("duplicate field \"{path}\"")).collect();
    if language == PatchFormat::Json {
        problems = problems.into_iter().map(|text| format!("json patch {text}")).collect();
        problems.extend(unknown_members(&value));
    }
    Ok(ParsedPatch { value, problems })
}

fn unknown_members(operations: &Value) -> Vec<String> {
    let operations = operations.as_array().into_iter().flatten().enumerate();
    operations
        .flat_map(|(at, operation)| {
            let members = operation.as_object().into_iter().flatten().map(|(key, _)| key);
            members
                .filter(|key| !JSON_PATCH_MEMBERS.contains(&key.as_str()))
                .map(move |key| format!("json patch unknown field \"[{at}].{key}\""))
        })
        .collect()
}

/// Applies a patch other than an apply patch, without type checks.
pub(crate) fn apply_patch(
    schema: &Schema,
    live: &Value,
    parsed: &ParsedPatch,
    language: PatchFormat,
) -> Result<Value, ApiError> {
    match language {
        PatchFormat::Json => patches::json(live, &parsed.value).map_err(refused),
        PatchFormat::Strategic => patches::strategic(live, &parsed.value, schema).map_err(refused),
        PatchFormat::Merge | PatchFormat::Apply => {
            let mut doc = live.clone();
            patches::merge(&mut doc, &parsed.value);
            Ok(doc)
        }
    }
}

fn refused(error: PatchError) -> ApiError {
    match error {
        PatchError::Malformed(text) => ApiError::bad_request(text),
        PatchError::Failed(_) => ApiError::new(
            422,
            Reason::Invalid,
            "the server rejected our request due to an error in our request",
        )
        .with_details(Details::default()),
        PatchError::Directive(text) => ApiError::new(500, Reason::Unknown, text),
        PatchError::TooLarge(text) => ApiError::new(413, Reason::RequestEntityTooLarge, text),
    }
}

/// The patched object, with types checked and defaults filled in.
fn patched(
    cx: &mut RequestContext<'_>,
    live: &Value,
    parsed: &ParsedPatch,
    language: PatchFormat,
    options: &WriteOptions,
) -> Result<Value, ApiError> {
    let mut doc = apply_patch(&cx.descriptor.schema, live, parsed, language)?;
    let typed = language == PatchFormat::Strategic && !cx.descriptor.is_custom();
    if typed && let Some(map) = doc.as_object_mut() {
        // A strategic merge patch is merged into a typed object, which has no other kind.
        map.insert("apiVersion".into(), cx.descriptor.api_version().into());
        map.insert("kind".into(), cx.descriptor.kind.clone().into());
    }
    // Only errors show the patched object, so it is computed again for them.
    let shown = |cx: &RequestContext<'_>| {
        let doc = apply_patch(&cx.descriptor.schema, live, parsed, language).unwrap_or_default();
        String::from_utf8_lossy(&encode::value_bytes(&doc)).into_owned()
    };
    let decoder = Decoder { catalog: cx.catalog, descriptor: cx.descriptor, validation: options.validation };
    let unknown = decoder.fit(&mut doc).map_err(|error| match conversion_fault(&error) {
        Some(fault) if typed => invalid_patch(&patches::printed(&parsed.value), &fault),
        _ => invalid_patch(&shown(cx), &error),
    })?;
    let problems: Vec<String> = parsed.problems.iter().cloned().chain(unknown).collect();
    match options.validation {
        FieldValidation::Strict if !problems.is_empty() => {
            let error = format!("strict decoding error: {}", problems.join(", "));
            return Err(invalid_patch(&shown(cx), &error));
        }
        FieldValidation::Warn => cx.warnings.extend(problems),
        _ => {}
    }
    same_kind(cx, &doc)?;
    Ok(doc)
}

/// What Kubernetes' converter of patches says where a JSON decoder would report a wrong type. `None` for errors that it
/// reports otherwise.
fn conversion_fault(error: &str) -> Option<String> {
    let (given, rest) =
        error.strip_prefix("json: cannot unmarshal ")?.split_once(" into Go struct field ")?;
    let (_, wanted) = rest.rsplit_once(" of type ")?;
    let number = if given.contains('.') { "float64" } else { "int64" };
    let is_number = given.starts_with("number");
    match wanted {
        "string" if is_number => Some(format!("cannot convert {number} to string")),
        "string" | "bool" | "int32" | "int64" => Some(format!("unrecognized type: {wanted}")),
        _ => None,
    }
}

/// 422 for a patched object that does not fit its type.
pub(crate) fn invalid_patch(shown: &str, error: &str) -> ApiError {
    let error = field::Error::invalid_str(&field::Path::field("patch"), shown, error);
    ApiError::invalid("", "", "", &[error])
}

/// Refuses a patch that changes apiVersion or kind.
fn same_kind(cx: &RequestContext<'_>, doc: &Value) -> Result<(), ApiError> {
    let d = cx.descriptor;
    let text = |key: &str| doc.get(key).and_then(Value::as_str).unwrap_or_default();
    if d.is_custom() {
        return crate::codec::decode::check_custom(d, text("apiVersion"), text("kind"), doc);
    }
    if text("kind") == d.kind && text("apiVersion") == d.api_version() {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "{} in version {:?} cannot be handled as a {}",
        text("kind"),
        text("apiVersion"),
        d.kind
    )))
}

/// Parses and checks an applied configuration.
fn parse_apply(
    cx: &RequestContext<'_>,
    body: &[u8],
    name: &str,
    options: &WriteOptions,
) -> Result<Value, ApiError> {
    let text = String::from_utf8_lossy(body);
    let mut value = yaml::parse_one(&text)
        .map_err(|error| ApiError::bad_request(format!("error decoding YAML: {error}")))?;
    if options.validation == FieldValidation::Strict
        && let Ok((_, duplicates)) = json::parse_strict(body)
        && let Some(path) = duplicates.first()
    {
        return Err(ApiError::bad_request(format!(
            "error strict decoding YAML: error converting YAML to JSON: yaml: duplicate field {path:?}"
        )));
    }
    let d = cx.descriptor;
    let member = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    if member("apiVersion") != d.api_version() || member("kind") != d.kind {
        let (group, version) = member("apiVersion").split_once('/').unwrap_or(("", member("apiVersion")));
        let shown = format!("{group}/{version}, Kind={}", member("kind"));
        return Err(ApiError::bad_request(format!("invalid object type: {shown}")));
    }
    if value
        .pointer("/metadata/managedFields")
        .is_some_and(|m| m.as_array().is_none_or(|m| !m.is_empty()) && !m.is_null())
    {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    metadata::match_name(&mut value, name, false)?;
    // The namespace is not filled in, because fields that the body does not have are not applied.
    let namespace = meta_str(&value, "namespace");
    if !namespace.is_empty() && namespace != cx.namespace() {
        metadata::match_namespace(cx, &mut value.clone())?;
    }
    Ok(value)
}

fn apply_to(
    cx: &mut RequestContext<'_>,
    live: Option<&Value>,
    applied: &Value,
    options: &WriteOptions,
    subresource: Option<&str>,
) -> Result<Value, ApiError> {
    let d = cx.descriptor.clone();
    let uid = meta_str(applied, "uid");
    if live.is_none() && !uid.is_empty() {
        return Err(ApiError::conflict_text(format!(
            "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        )));
    }
    let given = metadata::expected_revision(applied)?;
    if let (Some(given), Some(live)) = (given, live)
        && meta_str(live, "resourceVersion") != given.to_string()
    {
        return Err(cx.modified(cx.info.path_name()));
    }
    let mut who = writer(cx, options, subresource);
    who.operation = managed::Operation::Apply;
    let mut merged = managed::apply(&d.schema, live, applied, &who, options.force.unwrap_or(false))
        .map_err(apply_error)?;
    if live.is_some_and(|live| *live == merged) {
        return Ok(merged);
    }
    let decoder = Decoder { catalog: cx.catalog, descriptor: &d, validation: options.validation };
    decoder.fit(&mut merged).map_err(ApiError::bad_request)?;
    Ok(merged)
}

pub(crate) fn apply_error(error: ApplyError) -> ApiError {
    match error {
        ApplyError::Conflict { message, causes } => {
            let causes = causes
                .into_iter()
                .map(|c| Cause { reason: "FieldManagerConflict".into(), message: c.message, field: c.field })
                .collect();
            ApiError::new(409, Reason::Conflict, message)
                .with_details(Details { causes, ..Details::default() })
        }
        ApplyError::Type(text) => ApiError::new(500, Reason::Unknown, text),
    }
}
