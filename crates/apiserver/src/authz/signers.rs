//! Rights to signers (spec 7.4): approving or signing a CertificateSigningRequest needs a right to its signer, in
//! addition to the right to the subresource. Elsewhere the admission plug-ins `CertificateApproval` and
//! `CertificateSigning` check this.

use serde_json::Value;

use super::{Attributes, Authorizer};
use crate::error::ApiError;
use crate::identity::UserInfo;

/// The API group of signing requests and of the virtual resource `signers`.
const GROUP: &str = "certificates.k8s.io";

/// Refuses a write of a CertificateSigningRequest's subresource if the user lacks the verb for its signer: `approve`
/// for `/approval`, `sign` for changes of certificate or conditions through `/status` (AS-054). Must be called with
/// the object as it would be stored.
///
/// # Errors
/// 403 without the right.
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

/// The parts of the status that a signer writes. Absent and empty are equal.
fn signed(request: &Value) -> (&str, &[Value]) {
    let certificate = request.pointer("/status/certificate").and_then(Value::as_str).unwrap_or_default();
    let conditions = request.pointer("/status/conditions").and_then(Value::as_array);
    (certificate, conditions.map(Vec::as_slice).unwrap_or_default())
}

/// Whether the user has the verb for the signer, or for all signers of its domain.
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
