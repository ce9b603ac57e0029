//! Impersonation (spec 8.2).

use std::collections::BTreeMap;

use http::HeaderMap;
use machinery::field::quote;
use percent_encoding::percent_decode_str;

use super::{AUTHENTICATED, UNAUTHENTICATED};
use crate::authz::{Attributes, Authorizer, forbidden};
use crate::error::ApiError;
use crate::identity::UserInfo;

const EXTRA: &str = "impersonate-extra-";

struct ImpersonatedIdentity {
    user: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// Applies the impersonation headers; `None` without such headers. `attributes` are those of the request. The user
/// needs the verb `impersonate` on every part of the identity, or the two rights of newer servers:
/// `impersonate-on:{mode}:{verb}` on the request's resource and `impersonate:{mode}` on the identity (AS-062).
///
/// # Errors
/// 403 if the user may not impersonate, 400 if the headers contradict each other.
pub fn impersonate(
    headers: &HeaderMap,
    user: &UserInfo,
    attributes: &Attributes<'_>,
    authorizer: &Authorizer,
) -> Result<Option<UserInfo>, ApiError> {
    let Some(identity) = parse(headers)? else { return Ok(None) };
    if !may(user, &identity, "impersonate", "", authorizer) {
        let mode = if service_account(&identity.user).is_some() { "serviceaccount" } else { "user-info" };
        let on = format!("impersonate-on:{mode}:{}", attributes.verb);
        let target = Attributes { verb: &on, ..*attributes };
        let verb = format!("impersonate:{mode}");
        if !authorizer.allows(user, &target)
            || !may(user, &identity, &verb, "authentication.k8s.io", authorizer)
        {
            return Err(forbidden(user, &target, ""));
        }
    }
    Ok(Some(result(identity)))
}

fn parse(headers: &HeaderMap) -> Result<Option<ImpersonatedIdentity>, ApiError> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let one = |name: &str| headers.get(name).map(text).unwrap_or_default();
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(EXTRA) {
            // Header names arrive in lower case; an escape may hide an upper-case letter.
            let key = percent_decode_str(key).decode_utf8_lossy().to_lowercase();
            extra.entry(key).or_default().push(text(value));
        }
    }
    let groups: Vec<String> = headers.get_all("impersonate-group").iter().map(text).collect();
    let identity =
        ImpersonatedIdentity { user: one("impersonate-user"), uid: one("impersonate-uid"), groups, extra };
    if !identity.user.is_empty() {
        return Ok(Some(identity));
    }
    if identity.groups.is_empty() && identity.uid.is_empty() && identity.extra.is_empty() {
        return Ok(None);
    }
    let groups: Vec<String> = identity.groups.iter().map(|g| quote(g)).collect();
    let extra: Vec<String> = identity
        .extra
        .iter()
        .map(|(k, v)| {
            let values: Vec<String> = v.iter().map(|v| quote(v)).collect();
            format!("{}:[]string{{{}}}", quote(k), values.join(", "))
        })
        .collect();
    let list = |kind: &str, items: Vec<String>, open: &str, close: &str| match items.as_slice() {
        [] => format!("{kind}(nil)"),
        some => format!("{kind}{open}{}{close}", some.join(", ")),
    };
    Err(ApiError::bad_request(format!(
        "requested &user.DefaultInfo{{Name:\"\", UID:{}, Groups:{}, Extra:{}}} without impersonating a user name",
        quote(&identity.uid),
        list("[]string", groups, "{", "}"),
        list("map[string][]string", extra, "{", "}"),
    )))
}

/// Namespace and name in `system:serviceaccount:ns:name`.
fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

/// Whether `user` has `verb` on every part of the identity. Users, groups and service accounts belong to `group`.
fn may(
    user: &UserInfo,
    identity: &ImpersonatedIdentity,
    verb: &str,
    group: &str,
    authorizer: &Authorizer,
) -> bool {
    let base = Attributes { verb, group, version: "v1", resource_request: true, ..Attributes::default() };
    let authentication = Attributes { group: "authentication.k8s.io", ..base };
    let mut asked = vec![match service_account(&identity.user) {
        Some((namespace, name)) => Attributes { resource: "serviceaccounts", namespace, name, ..base },
        None => Attributes { resource: "users", name: &identity.user, ..base },
    }];
    asked.extend(identity.groups.iter().map(|name| Attributes { resource: "groups", name, ..base }));
    if !identity.uid.is_empty() {
        asked.push(Attributes { resource: "uids", name: &identity.uid, ..authentication });
    }
    for (key, values) in &identity.extra {
        asked.extend(values.iter().map(|name| Attributes {
            resource: "userextras",
            subresource: key,
            name,
            ..authentication
        }));
    }
    asked.iter().all(|a| authorizer.allows(user, a))
}

fn result(identity: ImpersonatedIdentity) -> UserInfo {
    let mut groups = identity.groups;
    if groups.is_empty()
        && let Some((namespace, _)) = service_account(&identity.user)
    {
        groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
    }
    let has = |group: &str| groups.iter().any(|g| g == group);
    if identity.user == "system:anonymous" {
        if !has(UNAUTHENTICATED) {
            groups.push(UNAUTHENTICATED.into());
        }
    } else if !has(AUTHENTICATED) && !has(UNAUTHENTICATED) {
        groups.push(AUTHENTICATED.into());
    }
    UserInfo { name: identity.user, uid: identity.uid, groups, extra: identity.extra }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(headers: &[(&'static str, &'static str)]) -> Result<Option<UserInfo>, ApiError> {
        let headers: HeaderMap = headers
            .iter()
            .map(|(k, v)| (http::HeaderName::from_static(k), http::HeaderValue::from_static(v)))
            .collect();
        let attributes = Attributes {
            verb: "list",
            resource: "configmaps",
            resource_request: true,
            ..Attributes::default()
        };
        let admin = UserInfo::internal("admin", &["system:masters"]);
        impersonate(&headers, &admin, &attributes, &Authorizer::always_allow())
    }

    #[test]
    fn as_062_an_identity_is_taken_over_whole() {
        let user = ask(&[
            ("impersonate-user", "alice"),
            ("impersonate-group", "g1"),
            ("impersonate-uid", "u-1"),
            ("impersonate-extra-foo%2fbar", "s1"),
        ]);
        let user = user.unwrap().unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("alice", "u-1"));
        assert_eq!(user.groups, ["g1", "system:authenticated"]);
        assert_eq!(user.extra["foo/bar"], ["s1"]);
        assert_eq!(ask(&[]).unwrap(), None);
    }

    #[test]
    fn as_062_service_accounts_get_their_groups() {
        let user = ask(&[("impersonate-user", "system:serviceaccount:ns:robot")]).unwrap().unwrap();
        assert_eq!(
            user.groups,
            ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"]
        );
        let anonymous = ask(&[("impersonate-user", "system:anonymous")]).unwrap().unwrap();
        assert_eq!(anonymous.groups, ["system:unauthenticated"]);
    }

    #[test]
    fn as_062_parts_without_a_user_are_refused() {
        let error = ask(&[("impersonate-group", "g")]).unwrap_err();
        assert_eq!(error.code, 400);
        assert_eq!(
            error.message,
            "requested &user.DefaultInfo{Name:\"\", UID:\"\", Groups:[]string{\"g\"}, Extra:map[string][]string(nil)} \
             without impersonating a user name"
        );
    }
}
