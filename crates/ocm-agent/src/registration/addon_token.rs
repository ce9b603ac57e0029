//! Identities of add-ons by token: the hub's add-on manager makes a service account in the cluster's mailbox, and the agent
//! asks for its tokens (OCM-167). Pure.

use std::time::Duration;

use apis::ocm::ManagedClusterAddOn;
use k8s_openapi::{ByteString, apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use ocm_shared::{addon::TOKEN_READY, conditions::condition};
use serde_json::Value;

use super::identity::{CERTIFICATE, Data, KEY, TOKEN};

/// Part of a token's lifetime that must be left.
const LEFT: f64 = 0.2;

/// What a token says about itself. Its signature is not verified: the hub does that.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claims {
    issued: Timestamp,
    expires: Timestamp,
    /// UID of the service account.
    account: String,
}

fn claims(token: &[u8]) -> Option<Claims> {
    use base64::Engine as _;
    let mut parts = std::str::from_utf8(token).ok()?.split('.');
    let (_, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
    let engine = base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let payload = engine.decode(payload.trim_end_matches('=')).ok()?;
    let claims: Value = serde_json::from_slice(&payload).ok()?;
    let time = |name: &str| Timestamp::from_second(claims.get(name)?.as_i64()?).ok();
    let account = claims.pointer("/kubernetes.io/serviceaccount/uid").and_then(Value::as_str);
    Some(Claims { issued: time("iat")?, expires: time("exp")?, account: account.unwrap_or_default().into() })
}

/// Returns the UID of the add-on's service account on the hub, once the hub says that it is ready.
pub(super) fn account(addon: &ManagedClusterAddOn) -> Option<&str> {
    let conditions = &addon.status.as_ref()?.conditions;
    let ready =
        conditions.iter().find(|condition| condition.type_ == TOKEN_READY && condition.status == "True")?;
    let (_, rest) = ready.message.split_once("UID: ")?;
    rest.split_once(')').map(|(uid, _)| uid).filter(|uid| !uid.is_empty())
}

/// Returns how long the token in the Secret is good for: of this service account, and with a fifth of its lifetime left. `None`
/// if another one is needed now.
pub(super) fn good_for(token: Option<&ByteString>, account: &str, now: Timestamp) -> Option<Duration> {
    let claims = claims(&token?.0).filter(|claims| claims.account == account)?;
    let seconds = |from: Timestamp| claims.expires.duration_since(from).as_secs_f64();
    let left = seconds(now) - seconds(claims.issued).max(0.0) * LEFT;
    Duration::try_from_secs_f64(left).ok().filter(|left| !left.is_zero())
}

/// The condition about a new token: that it is there, or why not.
pub(super) fn refreshed(outcome: Result<&ByteString, String>, now: Timestamp) -> Condition {
    let expires =
        outcome.map(|token| claims(&token.0).map(|claims| claims.expires.to_string()).unwrap_or_default());
    match expires {
        Ok(expires) => {
            let message = format!("Addon token refreshed, expires at {expires}");
            condition("TokenRefreshed", "True", "AddonTokenRefreshed", message, now)
        }
        Err(why) => {
            let message = format!("Failed to create token: {why}");
            condition("TokenRefreshed", "False", "TokenCreationFailed", message, now)
        }
    }
}

/// Returns the content of the Secret with a new token, and without the certificate of an agent that used one before.
pub(super) fn with_token(old: &Data, additional: Data, token: ByteString) -> Data {
    let mut new = old.clone();
    new.remove(CERTIFICATE);
    new.remove(KEY);
    new.extend(additional);
    new.insert(TOKEN.into(), token);
    new
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn token(account: &str, issued: i64, expires: i64) -> ByteString {
        use base64::Engine as _;
        let encode = |text: String| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
        let claims =
            json!({"iat": issued, "exp": expires, "kubernetes.io": {"serviceaccount": {"uid": account}}});
        ByteString(format!("{}.{}.x", encode("{}".into()), encode(claims.to_string())).into_bytes())
    }

    /// OCM-167: a token is renewed when a fifth of its life is left, or the service account is another.
    #[test]
    fn ocm_167_when_a_token_is_renewed() {
        let mine = token("u", 0, 1000);
        assert_eq!(good_for(Some(&mine), "u", at(0)), Some(Duration::from_secs(800)));
        assert_eq!(good_for(Some(&mine), "u", at(799)), Some(Duration::from_secs(1)));
        for (token, account, now) in [
            (Some(&mine), "u", 800),
            (Some(&mine), "u", 2000),
            (Some(&mine), "v", 0),
            (None, "u", 0),
            (Some(&ByteString(b"no token".to_vec())), "u", 0),
            (Some(&ByteString(b"a.b.c".to_vec())), "u", 0),
            (Some(&token("u", 10, 10)), "u", 10),
        ] {
            assert_eq!(good_for(token, account, at(now)), None, "{account} {now}");
        }
    }

    /// OCM-167: the hub names the service account in its condition.
    #[test]
    fn ocm_167_the_account_is_in_the_condition() {
        let said = |status: &str, message: &str| {
            let mut addon = ManagedClusterAddOn::namespaced("c1", "a");
            let ready = condition(TOKEN_READY, status, "x", message, at(0));
            addon.status.get_or_insert_default().conditions = vec![ready];
            account(&addon).map(str::to_owned)
        };
        assert_eq!(said("True", "ServiceAccount c1/a-agent (UID: u-1) is ready").as_deref(), Some("u-1"));
        for (status, message) in [
            ("False", "ServiceAccount c1/a-agent (UID: u-1) is ready"),
            ("True", "ready"),
            ("True", "UID: u-1"),
            ("True", "(UID: )"),
        ] {
            assert_eq!(said(status, message), None, "{status} {message}");
        }
        assert_eq!(account(&ManagedClusterAddOn::namespaced("c1", "a")), None);
    }

    /// OCM-167: the certificate of before goes, everything else stays.
    #[test]
    fn ocm_167_what_the_secret_has() {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let old = Data::from(["tls.crt", "tls.key", "theirs"].map(|key| (key.to_owned(), bytes("old"))));
        let new = with_token(&old, Data::from([("kubeconfig".to_owned(), bytes("k"))]), bytes("t"));
        assert_eq!(new.keys().collect::<Vec<_>>(), ["kubeconfig", "theirs", "token"]);
        let told = refreshed(Ok(&token("u", 0, 1000)), at(0));
        assert_eq!(told.message, "Addon token refreshed, expires at 1970-01-01T00:16:40Z");
        assert_eq!(refreshed(Err("no".into()), at(0)).message, "Failed to create token: no");
    }
}
