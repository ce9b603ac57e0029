//! TokenRequests: which token a client gets (AS-052).

use machinery::field::{self, Path};
use serde_json::{Map, Value};

use super::{Claims, Issuer, KubernetesClaims, Reference, text};
use crate::error::ApiError;
use crate::strategy::Lookup;

/// Life time of a token, in seconds, if the request names none.
const DEFAULT_SECONDS: i64 = 3600;
/// Bounds of the requested life time, in seconds.
const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;

impl Issuer {
    /// Answers POST `serviceaccounts/{name}/token`. `object` is the decoded TokenRequest with managedFields; the
    /// answer is the same object with metadata and status (AS-052).
    ///
    /// # Errors
    /// 404 without the account, 4xx for an invalid request, 500 without a key.
    pub fn request(
        &self,
        lookup: &dyn Lookup,
        namespace: &str,
        name: &str,
        mut object: Value,
        now: jiff::Timestamp,
    ) -> Result<Value, ApiError> {
        check_identity(&object, namespace, name)?;
        let account = lookup
            .get("", "serviceaccounts", namespace, name)
            .ok_or_else(|| ApiError::not_found("", "serviceaccounts", name))?;
        let seconds = expiration_seconds(&object)?;
        let asked = object.pointer("/spec/audiences").and_then(Value::as_array).cloned().unwrap_or_default();
        let asked: Vec<String> = asked.iter().filter_map(Value::as_str).map(Into::into).collect();
        let audiences = if asked.is_empty() { self.audiences.clone() } else { asked };
        let bound = object.pointer("/spec/boundObjectRef").filter(|r| !r.is_null()).cloned();
        let uid = text(&account, "/metadata/uid");
        let mut private = KubernetesClaims {
            namespace: namespace.to_owned(),
            node: None,
            pod: None,
            secret: None,
            serviceaccount: Reference { name: name.to_owned(), uid: uid.clone() },
        };
        if let Some(bound) = &bound {
            bind(&mut private, bound, lookup)?;
        }
        let issued = now.as_second();
        let claims = Claims {
            aud: audiences.clone(),
            exp: issued.saturating_add(seconds),
            iat: issued,
            iss: self.url.clone(),
            jti: uuid::Uuid::new_v4().to_string(),
            sub: format!("system:serviceaccount:{namespace}:{name}"),
            nbf: issued,
            private,
        };
        let token = self.sign(&claims).map_err(ApiError::internal)?;
        let time = |second: i64| {
            jiff::Timestamp::from_second(second).map(|t| t.to_string()).map_err(ApiError::internal)
        };
        let (created, expires) = (time(issued)?, time(claims.exp)?);
        let metadata = [
            ("name", name.into()),
            ("namespace", namespace.into()),
            ("uid", uid.into()),
            ("creationTimestamp", created.into()),
        ];
        set(&mut object, "metadata", metadata);
        let spec = [
            ("audiences", audiences.into()),
            ("expirationSeconds", seconds.into()),
            ("boundObjectRef", bound.unwrap_or(Value::Null)),
        ];
        set(&mut object, "spec", spec);
        set(&mut object, "status", [("token", token.into()), ("expirationTimestamp", expires.into())]);
        Ok(object)
    }
}

fn invalid(name: &str, error: field::Error) -> ApiError {
    ApiError::invalid("authentication.k8s.io", "TokenRequest", name, &[error])
}

/// Checks that name and namespace of the request are those of the account, if it has any.
fn check_identity(object: &Value, namespace: &str, name: &str) -> Result<(), ApiError> {
    for (key, wanted, what) in [("name", name, "name"), ("namespace", namespace, "namespace")] {
        let given = object.pointer(&format!("/metadata/{key}")).and_then(Value::as_str).unwrap_or_default();
        if !given.is_empty() && given != wanted {
            let path = Path::field("metadata").child(key);
            let why = format!("must match the service account {what} if specified");
            return Err(invalid(name, field::Error::invalid_str(&path, given, &why)));
        }
    }
    Ok(())
}

/// The requested life time in seconds.
fn expiration_seconds(object: &Value) -> Result<i64, ApiError> {
    let seconds =
        object.pointer("/spec/expirationSeconds").and_then(Value::as_i64).unwrap_or(DEFAULT_SECONDS);
    let why = if seconds < MIN_SECONDS {
        "may not specify a duration less than 10 minutes"
    } else if seconds > MAX_SECONDS {
        "may not specify a duration larger than 2^32 seconds"
    } else {
        ""
    };
    if !why.is_empty() {
        let path = Path::field("spec").child("expirationSeconds");
        return Err(invalid("", field::Error::invalid(&path, &seconds.into(), why)));
    }
    Ok(seconds)
}

/// Sets fields of the object under `key`, which is created if it is missing.
fn set<const N: usize>(object: &mut Value, key: &str, fields: [(&str, Value); N]) {
    if let Value::Object(object) = object {
        let mut inner = match object.remove(key) {
            Some(Value::Object(inner)) => inner,
            _ => Map::new(),
        };
        inner.extend(fields.map(|(name, value)| (name.to_owned(), value)));
        object.insert(key.to_owned(), Value::Object(inner));
    }
}

/// Binds the token to the object that `spec.boundObjectRef` names.
fn bind(private: &mut KubernetesClaims, bound: &Value, lookup: &dyn Lookup) -> Result<(), ApiError> {
    let field = |key: &str| bound.get(key).and_then(Value::as_str).unwrap_or_default();
    let (kind, name, given_uid) = (field("kind"), field("name"), field("uid"));
    let (group, version) = field("apiVersion").split_once('/').unwrap_or(("", field("apiVersion")));
    let (plural, namespace) = match (group, kind) {
        ("", "Pod") => ("pods", private.namespace.as_str()),
        ("", "Secret") => ("secrets", private.namespace.as_str()),
        ("", "Node") => ("nodes", ""),
        _ => {
            let what = format!("{group}/{version}, Kind={kind}");
            return Err(ApiError::bad_request(format!("cannot bind token to object of type {what}")));
        }
    };
    let object =
        lookup.get("", plural, namespace, name).ok_or_else(|| ApiError::not_found("", plural, name))?;
    let uid = text(&object, "/metadata/uid");
    if kind == "Pod" {
        let account = &private.serviceaccount.name;
        if text(&object, "/spec/serviceAccountName") != *account {
            return Err(ApiError::bad_request(format!(
                "cannot bind token for serviceaccount {} to pod running with different serviceaccount name.",
                field::quote(account)
            )));
        }
        let node = text(&object, "/spec/nodeName");
        if !node.is_empty() {
            let uid =
                lookup.get("", "nodes", "", &node).map(|n| text(&n, "/metadata/uid")).unwrap_or_default();
            private.node = Some(Reference { name: node, uid });
        }
    }
    if !given_uid.is_empty() && given_uid != uid {
        let why = format!(
            "the UID in the bound object reference ({given_uid}) does not match the UID in record. The object might \
             have been deleted and then recreated"
        );
        return Err(ApiError::conflict(group, kind, name, &why));
    }
    let reference = Some(Reference { name: name.to_owned(), uid });
    match kind {
        "Pod" => private.pod = reference,
        "Secret" => private.secret = reference,
        _ => private.node = reference,
    }
    Ok(())
}
