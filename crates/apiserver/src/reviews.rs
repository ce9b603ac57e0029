//! Answers of review kinds: access reviews, rules reviews, token reviews, SelfSubjectReview (spec 8.4).

use std::collections::HashSet;
use std::fmt::Write as _;

use machinery::field::{self, Path};
use serde_json::{Map, Value, json};

use crate::authn::Authenticator;
use crate::authz::{Attributes, Authorizer, Decision, Rule};
use crate::error::ApiError;
use crate::identity::UserInfo;
use crate::strategy::{Lookup, Review};

const AUTHZ: &str = "authorization.k8s.io";

/// What the answer to a review depends on.
pub struct ReviewContext<'a> {
    pub user: &'a UserInfo,
    pub authorizer: &'a Authorizer,
    pub authenticator: &'a Authenticator,
    pub lookup: &'a dyn Lookup,
    /// Namespace of the path; empty if there is none.
    pub namespace: &'a str,
    /// RFC 3339, seconds, `Z`.
    pub now: &'a str,
}

/// Fills in the status of a review. `object` is decoded and has apiVersion, kind, metadata.namespace where the kind is
/// namespaced, and managedFields of the writer, as on any create (AS-065).
///
/// # Errors
/// 400 or 422 for a review that asks for nothing or contradicts itself.
pub fn answer(cx: &ReviewContext<'_>, review: Review, mut object: Value) -> Result<Value, ApiError> {
    let status = match review {
        Review::SelfSubjectAccess | Review::SubjectAccess | Review::LocalSubjectAccess => {
            cx.access(review, &object)?
        }
        Review::SelfSubjectRules => cx.rules(&object)?,
        Review::Token => cx.token(&object)?,
        Review::SelfSubject => {
            if !object["metadata"].is_object() {
                object["metadata"] = json!({});
            }
            object["metadata"]["creationTimestamp"] = cx.now.into();
            json!({"userInfo": user_info(cx.user)})
        }
    };
    if let Some(object) = object.as_object_mut() {
        object.insert("status".into(), status);
        if !object.get("metadata").is_some_and(Value::is_object) {
            object.insert("metadata".into(), json!({}));
        }
    }
    Ok(object)
}

/// A user as `status.userInfo` and `spec` of review kinds print it.
pub fn user_info(user: &UserInfo) -> Value {
    let mut out = Map::new();
    if !user.name.is_empty() {
        out.insert("username".into(), user.name.clone().into());
    }
    if !user.uid.is_empty() {
        out.insert("uid".into(), user.uid.clone().into());
    }
    if !user.groups.is_empty() {
        out.insert("groups".into(), user.groups.clone().into());
    }
    if !user.extra.is_empty() {
        let extra = user.extra.iter().map(|(k, v)| (k.clone(), Value::from(v.clone()))).collect();
        out.insert("extra".into(), extra);
    }
    Value::Object(out)
}

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn texts(object: &Value, key: &str) -> Vec<String> {
    let list = object.get(key).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(Into::into).collect()
}

/// A field that is present and not null.
fn given<'a>(object: &'a Value, key: &str) -> Option<&'a Value> {
    object.get(key).filter(|v| !v.is_null())
}

impl ReviewContext<'_> {
    fn access(&self, review: Review, object: &Value) -> Result<Value, ApiError> {
        let empty = json!({});
        let spec = given(object, "spec").unwrap_or(&empty);
        let is_self = review == Review::SelfSubjectAccess;
        let is_local = review == Review::LocalSubjectAccess;
        let errors = validate_access(spec, object, is_self, is_local);
        if !errors.is_empty() {
            // A stock server leaves the kind empty here.
            return Err(ApiError::invalid(AUTHZ, "", "", &errors));
        }
        let named = (!is_self).then(|| UserInfo {
            name: text(spec, "user").into(),
            uid: text(spec, "uid").into(),
            // Without duplicates, because the bindings of each group are looked up.
            groups: {
                let mut seen = HashSet::new();
                texts(spec, "groups").into_iter().filter(|group| seen.insert(group.clone())).collect()
            },
            extra: spec
                .get("extra")
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
                .map(|(key, _)| (key.clone(), texts(&spec["extra"], key)))
                .collect(),
        });
        let user = named.as_ref().unwrap_or(self.user);
        let decision = match given(spec, "resourceAttributes") {
            Some(a) => {
                let namespace = if is_local { self.namespace } else { text(a, "namespace") };
                self.authorizer.decide(
                    user,
                    &Attributes {
                        verb: text(a, "verb"),
                        group: text(a, "group"),
                        version: text(a, "version"),
                        resource: text(a, "resource"),
                        subresource: text(a, "subresource"),
                        namespace,
                        name: text(a, "name"),
                        path: "",
                        resource_request: true,
                    },
                )
            }
            None => {
                let a = &spec["nonResourceAttributes"];
                let attributes =
                    Attributes { verb: text(a, "verb"), path: text(a, "path"), ..Attributes::default() };
                self.authorizer.decide(user, &attributes)
            }
        };
        let (allowed, reason) = match decision {
            Decision::Allow { reason } => (true, reason),
            Decision::NoOpinion { reason } => (false, reason),
        };
        let mut status = json!({"allowed": allowed});
        if !reason.is_empty() {
            status["reason"] = reason.into();
        }
        Ok(status)
    }

    fn rules(&self, object: &Value) -> Result<Value, ApiError> {
        let namespace = object.get("spec").map(|s| text(s, "namespace")).unwrap_or_default();
        if namespace.is_empty() {
            return Err(ApiError::bad_request("no namespace on request"));
        }
        let (rules, errors) = self.authorizer.rules_for(self.user, namespace);
        let (paths, resources): (Vec<Rule>, Vec<Rule>) =
            rules.into_iter().partition(|r| !r.non_resource_urls.is_empty());
        let print = |rules: Vec<Rule>| -> Result<Vec<Value>, ApiError> {
            rules.iter().map(serde_json::to_value).collect::<Result<_, _>>().map_err(ApiError::internal)
        };
        let mut status = json!({
            "resourceRules": print(resources)?, "nonResourceRules": print(paths)?, "incomplete": !errors.is_empty(),
        });
        if !errors.is_empty() {
            status["evaluationError"] = errors.join(", ").into();
        }
        Ok(status)
    }

    fn token(&self, object: &Value) -> Result<Value, ApiError> {
        let empty = json!({});
        let spec = given(object, "spec").unwrap_or(&empty);
        let token = text(spec, "token");
        if token.is_empty() {
            return Err(ApiError::bad_request("token is required for TokenReview in authentication"));
        }
        let asked = texts(spec, "audiences");
        let Some(accepted) = self.authenticator.token(token, &asked, self.lookup) else {
            return Ok(json!({"user": {}, "error": "invalid bearer token"}));
        };
        let mut status = json!({"authenticated": true, "user": user_info(&accepted.user)});
        let audiences = match (accepted.audiences, self.authenticator.issuer()) {
            // A token without audiences is valid for this server.
            (none, Some(issuer)) if none.is_empty() => issuer.audiences().to_vec(),
            (some, _) => some,
        };
        if !audiences.is_empty() {
            status["audiences"] = audiences.into();
        }
        Ok(status)
    }
}

fn validate_access(spec: &Value, object: &Value, is_self: bool, is_local: bool) -> Vec<field::Error> {
    let at = Path::field("spec");
    let (resource, other) = (given(spec, "resourceAttributes"), given(spec, "nonResourceAttributes"));
    let mut errors = Vec::new();
    let printed = |a: &Value| {
        format!("{{\"Path\":{},\"Verb\":{}}}", field::quote(text(a, "path")), field::quote(text(a, "verb")))
    };
    match (resource, other) {
        (Some(_), Some(other)) => errors.push(field::Error::invalid_text(
            &at.child("nonResourceAttributes"),
            &printed(other),
            "cannot be specified in combination with resourceAttributes",
        )),
        (None, None) => errors.push(field::Error::invalid_nil(
            &at.child("resourceAttributes"),
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )),
        _ => {}
    }
    if !is_self && text(spec, "user").is_empty() && texts(spec, "groups").is_empty() {
        let why = "at least one of user or group must be specified";
        errors.push(field::Error::invalid_str(&at.child("user"), "", why));
    }
    if let Some(resource) = resource {
        for selector in ["fieldSelector", "labelSelector"] {
            if let Some(value) = given(resource, selector) {
                validate_selector(value, &at.child("resourceAttributes").child(selector), &mut errors);
            }
        }
    }
    let metadata = object.get("metadata").cloned().unwrap_or_default();
    if is_local {
        let namespace = text(&metadata, "namespace");
        match (resource, other) {
            (Some(a), _) if text(a, "namespace") != namespace => errors.push(field::Error::invalid_str(
                &at.child("resourceAttributes").child("namespace"),
                text(a, "namespace"),
                "must match metadata.namespace",
            )),
            (_, Some(other)) => errors.push(field::Error::invalid_text(
                &at.child("nonResourceAttributes"),
                &printed(other),
                "disallowed on this kind of request",
            )),
            _ => {}
        }
    }
    let ignored = |key: &str, value: &Value| {
        key == "managedFields"
            || value.is_null()
            || value.as_str() == Some("")
            || (is_local && key == "namespace")
    };
    if metadata.as_object().into_iter().flatten().any(|(k, v)| !ignored(k, v)) {
        let printed = print_metadata(&metadata);
        errors.push(field::Error::invalid_text(&Path::field("metadata"), &printed, "must be empty"));
    }
    errors
}

fn validate_selector(selector: &Value, at: &Path, errors: &mut Vec<field::Error>) {
    let raw = text(selector, "rawSelector");
    let requirements = selector.get("requirements").and_then(Value::as_array).map_or(0, Vec::len);
    if !raw.is_empty() && requirements > 0 {
        let why = "may not specified at the same time as requirements";
        errors.push(field::Error::invalid_str(&at.child("rawSelector"), raw, why));
    }
    if raw.is_empty() && requirements == 0 {
        let why = format!("when {at} is specified, requirements or rawSelector is required");
        errors.push(field::Error::required(&at.child("requirements"), &why));
    }
}

/// Object metadata as Kubernetes prints it in messages: compact JSON, fields in order of declaration.
fn print_metadata(metadata: &Value) -> String {
    const META: [&str; 15] = [
        "name",
        "generateName",
        "namespace",
        "selfLink",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "labels",
        "annotations",
        "ownerReferences",
        "finalizers",
        "managedFields",
    ];
    const FIELDS: [&str; 7] =
        ["manager", "operation", "apiVersion", "time", "fieldsType", "fieldsV1", "subresource"];
    fn ordered(object: &Value, keys: &[&str], print: &dyn Fn(&str, &Value) -> String) -> String {
        let mut out = String::from("{");
        for key in keys {
            if let Some(value) = given(object, key) {
                let comma = if out.len() > 1 { "," } else { "" };
                // Writing to a string cannot fail.
                let _ = write!(out, "{comma}\"{key}\":{}", print(key, value));
            }
        }
        out.push('}');
        out
    }
    ordered(metadata, &META, &|key, value| match (key, value) {
        ("managedFields", Value::Array(entries)) => {
            let entries: Vec<String> =
                entries.iter().map(|e| ordered(e, &FIELDS, &|_, v| v.to_string())).collect();
            format!("[{}]", entries.join(","))
        }
        _ => value.to_string(),
    })
}

#[cfg(test)]
#[path = "reviews_tests.rs"]
mod tests;
