//! CertificateSigningRequests. The server records the requester; approval and signing have their own subresources.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use machinery::field::Path;
use machinery::names;
use serde_json::{Map, Value, json};

use super::check::Errs;
use super::spec::{GenerationRule, Spec, WITH_STATUS};
use super::value::{at, ensure, has, int, list, object_mut, path, put, text};
use crate::authz::{MASTERS, check_signer};
use crate::error::ApiError;
use crate::strategy::{NameRule, WriteContext};

pub(super) const CSR: Spec = Spec {
    generation: GenerationRule::FromClient,
    name: NameRule::PathSegment,
    own_labels: true,
    fields: &[("spec.signerName", "spec.signerName", "")],
    default: |obj| ensure(obj, "spec"),
    create,
    admit: |_, obj| restrict_subject(obj),
    // The server copies the spec from the request, so no manager owns it.
    resets: |sub| sub.is_none().then_some(&["spec", "status"]),
    update: |_, obj, old| {
        put(obj, "spec", at(old, "spec"));
    },
    subresource,
    validate_create: |_, obj, errs| request(obj, errs),
    validate_subresource: |_, _, obj, old, errs| {
        conditions(at(obj, "status"), errs);
        verdicts_kept(obj, old, errs);
        certificate(obj, errs);
    },
    authorize_update: check_signer,
    ..WITH_STATUS
};

const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

fn create(cx: &WriteContext<'_>, obj: &mut Value) {
    let Some(spec) = object_mut(obj, "spec") else { return };
    for key in ["username", "uid", "groups", "extra"] {
        spec.remove(key);
    }
    spec.insert("username".into(), cx.user.name.clone().into());
    if !cx.user.uid.is_empty() {
        spec.insert("uid".into(), cx.user.uid.clone().into());
    }
    if !cx.user.groups.is_empty() {
        spec.insert("groups".into(), cx.user.groups.clone().into());
    }
    if !cx.user.extra.is_empty() {
        spec.insert("extra".into(), json!(cx.user.extra));
    }
}

/// Refuses requests for the group `system:masters`, as the admission plug-in `CertificateSubjectRestriction` does.
/// Validation reports requests that do not parse.
fn restrict_subject(obj: &Value) -> Result<(), ApiError> {
    const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
    if text(at(obj, "spec"), "signerName") != SIGNER
        || !organizations(text(at(obj, "spec"), "request")).iter().any(|o| o == MASTERS)
    {
        return Ok(());
    }
    let why = format!("use of {SIGNER} signer with {MASTERS} group is not allowed");
    let name = text(at(obj, "metadata"), "name");
    Err(ApiError::forbidden("certificates.k8s.io", "certificatesigningrequests", name, &why))
}

fn organizations(encoded: &str) -> Vec<String> {
    use x509_parser::prelude::FromDer as _;
    let pem = BASE64.decode(encoded).unwrap_or_default();
    let Ok((_, block)) = x509_parser::pem::parse_x509_pem(&pem) else { return Vec::new() };
    let parsed = x509_parser::certification_request::X509CertificationRequest::from_der(&block.contents);
    let Ok((_, request)) = parsed else { return Vec::new() };
    let subject = &request.certification_request_info.subject;
    subject.iter_organization().filter_map(|one| one.as_str().ok().map(str::to_owned)).collect()
}

fn is_verdict(condition: &Value) -> bool {
    matches!(text(condition, "type"), "Approved" | "Denied")
}

/// Restores the fields that a subresource cannot change: `/approval` changes conditions only, `/status` everything in
/// the status except verdicts (Approved, Denied).
fn subresource(cx: &WriteContext<'_>, sub: &str, obj: &mut Value, old: &Value) {
    match sub {
        "approval" => {
            let wanted = at(obj, "status.conditions").clone();
            put(obj, "spec", at(old, "spec"));
            put(obj, "status", &some_object(at(old, "status")));
            set_conditions(obj, wanted);
        }
        "status" => {
            let mut merged: Vec<Value> =
                list(obj, "status.conditions").iter().filter(|c| !is_verdict(c)).cloned().collect();
            // Verdicts keep their positions, because a writer of `/status` cannot change them.
            for (i, verdict) in
                list(old, "status.conditions").iter().enumerate().filter(|(_, c)| is_verdict(c))
            {
                merged.insert(i.min(merged.len()), verdict.clone());
            }
            let merged = if merged.is_empty() { Value::Null } else { Value::Array(merged) };
            let status = some_object(at(obj, "status"));
            put(obj, "status", &status);
            set_conditions(obj, merged);
        }
        _ => return,
    }
    stamp(cx.now, obj, old);
}

fn some_object(value: &Value) -> Value {
    if value.is_object() { value.clone() } else { Value::Object(Map::new()) }
}

fn set_conditions(obj: &mut Value, conditions: Value) {
    if let Some(status) = super::value::at_mut(obj, "status") {
        put(status, "conditions", &conditions);
    }
}

/// Sets the times of conditions: last update and last transition.
fn stamp(now: &str, obj: &mut Value, old: &Value) {
    let mut olds = HashMap::new();
    for condition in list(old, "status.conditions") {
        olds.entry(text(condition, "type")).or_insert(condition);
    }
    for condition in super::value::list_mut(obj, "status.conditions") {
        if !has(condition, "lastUpdateTime") {
            put(condition, "lastUpdateTime", &now.into());
        }
        if !has(condition, "lastTransitionTime") {
            let old = olds.get(text(condition, "type"));
            let old = old.map(|old| (text(old, "status"), text(old, "lastTransitionTime")));
            let old = old.filter(|(_, since)| !since.is_empty());
            let since = machinery::conditions::transition(old, text(condition, "status"), now);
            put(condition, "lastTransitionTime", &since.into());
        }
    }
}

fn request(obj: &Value, errs: &mut Errs) {
    let place = Path::field("spec");
    let spec = at(obj, "spec");
    let encoded = text(spec, "request");
    if let Err(why) = parse(encoded) {
        errs.invalid_str(&place.child("request"), encoded, &why);
    }
    let usages = list(spec, "usages");
    if usages.is_empty() {
        errs.required(&place.child("usages"), "");
    }
    for (i, usage) in usages.iter().enumerate() {
        let here = place.child("usages").index(i);
        errs.one_of(&here, usage.as_str().unwrap_or_default(), USAGES);
        if usages.iter().take(i).any(|u| u == usage) {
            errs.duplicate(&here, usage);
        }
    }
    signer(text(spec, "signerName"), &place.child("signerName"), errs);
    if let Some(seconds) = int(spec, "expirationSeconds").filter(|s| *s < 600) {
        errs.invalid(
            &place.child("expirationSeconds"),
            &Value::from(seconds),
            "may not specify a duration less than 600 seconds (10 minutes)",
        );
    }
}

fn parse(encoded: &str) -> Result<(), String> {
    const WRONG: &str = "PEM block type must be CERTIFICATE REQUEST";
    let pem = BASE64.decode(encoded).map_err(|_| WRONG.to_owned())?;
    let (_, block) = x509_parser::pem::parse_x509_pem(&pem).map_err(|_| WRONG.to_owned())?;
    if block.label != "CERTIFICATE REQUEST" {
        return Err(WRONG.into());
    }
    use x509_parser::prelude::FromDer as _;
    x509_parser::certification_request::X509CertificationRequest::from_der(&block.contents)
        .map(|_| ())
        .map_err(|fault| format!("asn1: structure error: {fault}"))
}

fn signer(name: &str, place: &Path, errs: &mut Errs) {
    const FORM: &str = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
    if name.is_empty() {
        errs.required(place, "");
        return;
    }
    if name == "kubernetes.io/legacy-unknown" {
        errs.invalid_str(place, name, "the legacy signerName is not allowed via this API version");
    }
    let Some((domain, rest)) =
        name.split_once('/').filter(|(d, p)| !d.is_empty() && !p.is_empty() && !p.contains('/'))
    else {
        errs.invalid_str(place, name, FORM);
        return;
    };
    let faults = names::dns1123_subdomain(domain);
    if faults.is_empty() && !domain.contains('.') {
        errs.invalid_str(place, domain, "should be a domain with at least two segments separated by dots");
    }
    for fault in faults {
        errs.invalid_str(place, domain, &format!("validating label \"{domain}\": {fault}"));
    }
    errs.names(place, rest, names::dns1123_subdomain(rest));
}

fn conditions(status: &Value, errs: &mut Errs) {
    let place = path("status.conditions");
    let all = list(status, "conditions");
    for (i, condition) in all.iter().enumerate() {
        let here = place.index(i);
        let kind = text(condition, "type");
        if kind.is_empty() {
            errs.required(&here.child("type"), "");
        }
        let value = text(condition, "status");
        if matches!(kind, "Approved" | "Denied" | "Failed") {
            errs.required_enum(&here.child("status"), value, &["True"]);
        } else {
            errs.required_enum(&here.child("status"), value, &["False", "True", "Unknown"]);
        }
        let earlier = |wanted: &str| all.iter().take(i).any(|c| text(c, "type") == wanted);
        if (kind == "Approved" && earlier("Denied")) || (kind == "Denied" && earlier("Approved")) {
            errs.invalid_str(
                &here.child("type"),
                kind,
                "Approved and Denied conditions are mutually exclusive",
            );
        }
        if earlier(kind) {
            errs.duplicate(&here.child("type"), at(condition, "type"));
        }
    }
}

/// Checks that verdicts and failures are not removed, and that only `/approval` adds verdicts.
fn verdicts_kept(obj: &Value, old: &Value, errs: &mut Errs) {
    let count = |o: &Value, kind: &str| {
        list(o, "status.conditions").iter().filter(|c| text(c, "type") == kind).count()
    };
    for kind in ["Approved", "Denied", "Failed"] {
        if count(obj, kind) < count(old, kind) {
            errs.forbidden(
                &path("status.conditions"),
                &format!("updates may not remove a condition of type \"{kind}\""),
            );
        }
    }
}

fn certificate(obj: &Value, errs: &mut Errs) {
    let encoded = text(obj, "status.certificate");
    if encoded.is_empty() {
        return;
    }
    let pem = BASE64.decode(encoded).unwrap_or_default();
    let blocks: Vec<_> = x509_parser::pem::Pem::iter_from_buffer(&pem).filter_map(Result::ok).collect();
    let here = path("status.certificate");
    let shown = "<certificate data>";
    if blocks.is_empty() {
        errs.invalid_str(&here, shown, "must contain at least one CERTIFICATE PEM block");
    }
    for block in blocks {
        if block.label != "CERTIFICATE" {
            let why = format!("only CERTIFICATE PEM blocks are allowed, found \"{}\"", block.label);
            errs.invalid_str(&here, shown, &why);
        } else if block.parse_x509().is_err() {
            errs.invalid_str(&here, shown, "failed to parse certificate");
        }
    }
}
