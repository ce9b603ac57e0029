//! Who decides about a signing request must have the right to its signer, beside that to the subresource (spec 7.4):
//! what elsewhere the admission plug-ins `CertificateApproval` and `CertificateSigning` do.

use serde_json::Value;

use super::{Attributes, Authorizer};
use crate::error::ApiError;
use crate::identity::UserInfo;

/// The API group of signing requests and of the virtual resource `signers`.
const GROUP: &str = "certificates.k8s.io";

/// Refuses a write of a CertificateSigningRequest's subresource by someone without the verb for its signer: `approve`
/// for `/approval`, `sign` for what `/status` says of certificate and conditions (AS-054). To be called with the object as it would be
/// stored.
pub(crate) fn check_signer(
    authorizer: &Authorizer,
    user: &UserInfo,
    subresource: Option<&str>,
    new: &Value,
    old: &Value,
) -> Result<(), ApiError> {
    let verb = match subresource {
        Some("approval") => "approve",
        Some("status") if signed(new) != signed(old) => "sign",
        _ => return Ok(()),
    };
    let signer = old.pointer("/spec/signerName").and_then(Value::as_str).unwrap_or_default();
    if may(authorizer, user, verb, signer) {
        return Ok(());
    }
    let name = old.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let why = format!("user not permitted to {verb} requests with signerName \"{signer}\"");
    Err(ApiError::forbidden(GROUP, "certificatesigningrequests", name, &why))
}

/// What of the status is the signer's; absent and empty are the same.
fn signed(request: &Value) -> (&str, &[Value]) {
    let certificate = request.pointer("/status/certificate").and_then(Value::as_str).unwrap_or_default();
    let conditions = request.pointer("/status/conditions").and_then(Value::as_array);
    (certificate, conditions.map(Vec::as_slice).unwrap_or_default())
}

/// For the signer itself or for all of its domain.
fn may(authorizer: &Authorizer, user: &UserInfo, verb: &str, signer: &str) -> bool {
    let domain = signer.split_once('/').map_or(signer, |(domain, _)| domain);
    [signer, &format!("{domain}/*")].into_iter().any(|name| {
        let attributes = Attributes {
            verb,
            group: GROUP,
            version: "*",
            resource: "signers",
            name,
            resource_request: true,
            ..Attributes::default()
        };
        authorizer.allows(user, &attributes)
    })
}
