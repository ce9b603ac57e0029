//! Bootstrap tokens: `id.secret`, stored in Secrets of kube-system.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::identity::UserInfo;
use crate::strategy::Lookup;

const GROUP: &str = "system:bootstrappers";

/// The user of a valid bootstrap token.
pub(super) fn verify(token: &str, lookup: &dyn Lookup) -> Option<UserInfo> {
    let (id, secret) = token.split_once('.')?;
    let well_formed = |text: &str, len: usize| {
        text.len() == len && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    if !well_formed(id, 6) || !well_formed(secret, 16) {
        return None;
    }
    let object = lookup.get("", "secrets", "kube-system", &format!("bootstrap-token-{id}"))?;
    if object.get("type").and_then(Value::as_str) != Some("bootstrap.kubernetes.io/token")
        || object.pointer("/metadata/deletionTimestamp").is_some()
    {
        return None;
    }
    let data = |key: &str| -> Option<String> {
        let text = object.get("data")?.get(key)?.as_str()?;
        String::from_utf8(STANDARD.decode(text).ok()?).ok()
    };
    if data("token-id")? != id || !constant_time_eq(&data("token-secret")?, secret) {
        return None;
    }
    if data("usage-bootstrap-authentication")? != "true" {
        return None;
    }
    if let Some(expiration) = data("expiration")
        && expiration.parse::<jiff::Timestamp>().ok()? <= jiff::Timestamp::now()
    {
        return None;
    }
    let mut groups = vec![GROUP.to_owned()];
    if let Some(extra) = data("auth-extra-groups") {
        let prefix = format!("{GROUP}:");
        groups.extend(extra.split(',').filter(|g| g.starts_with(&prefix)).map(Into::into));
    }
    Some(UserInfo { name: format!("system:bootstrap:{id}"), groups, ..UserInfo::default() })
}

/// Whether two texts are equal, in constant time.
fn constant_time_eq(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    struct One(Value);

    impl Lookup for One {
        fn get(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
            let asked = (group, plural, namespace, name);
            (asked == ("", "secrets", "kube-system", "bootstrap-token-abcdef")).then(|| self.0.clone())
        }
        fn list(&self, _: &str, _: &str, _: Option<&str>) -> Vec<Value> {
            Vec::new()
        }
    }

    fn secret(expiration: &str) -> One {
        let encode = |text: &str| STANDARD.encode(text);
        One(json!({"type": "bootstrap.kubernetes.io/token", "data": {
            "token-id": encode("abcdef"), "token-secret": encode("0123456789abcdef"),
            "usage-bootstrap-authentication": encode("true"), "expiration": encode(expiration),
            "auth-extra-groups": encode("system:bootstrappers:hub,system:masters"),
        }}))
    }

    #[test]
    fn as_066_bootstrap_tokens_live_in_secrets_and_expire() {
        let user = verify("abcdef.0123456789abcdef", &secret("2999-01-01T00:00:00Z")).unwrap();
        assert_eq!(user.name, "system:bootstrap:abcdef");
        assert_eq!(user.groups, ["system:bootstrappers", "system:bootstrappers:hub"]);
        assert_eq!(verify("abcdef.0123456789abcdef", &secret("2000-01-01T00:00:00Z")), None);
        assert_eq!(verify("abcdef.0123456789abcdeX", &secret("2999-01-01T00:00:00Z")), None);
        assert_eq!(verify("abcdef.0123456789abcde0", &secret("2999-01-01T00:00:00Z")), None);
    }
}
