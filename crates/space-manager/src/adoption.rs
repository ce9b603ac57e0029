//! What is decided about a cluster that is adopted: its bootstrap kubeconfig, its token (SP-038, SP-039). Pure.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// Why a kubeconfig cannot be used to adopt a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AdoptionError {
    #[error("it is no kubeconfig: {0}")]
    Unreadable(String),
    #[error("it has no {0}")]
    Lacks(String),
    #[error(
        "it needs {0}, which is on another machine or would run there; use a kubeconfig with certificates or a token inside \
         (kubectl config view --flatten --minify --raw)"
    )]
    NeedsFiles(&'static str),
    #[error("its server {0:?} is no https URL")]
    Server(String),
    #[error("its token has characters that no HTTP header can have")]
    Token,
}

/// The current context of a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    cluster_name: String,
    cluster: Value,
    user: Value,
    /// Namespace and extensions of the context.
    more: Value,
}

/// Largest kubeconfig that is read, in bytes.
const LARGEST: usize = 1024 * 1024;
/// Fields of a user that name files or programs. Whoever may write a Secret must not make this process read a file or
/// start a program.
const FILES_OF_USERS: [&str; 5] = ["exec", "auth-provider", "tokenFile", "client-certificate", "client-key"];

/// Reads the current context of a kubeconfig.
pub(crate) fn context(kubeconfig: &[u8]) -> Result<Context, AdoptionError> {
    let unreadable = |why: &dyn std::fmt::Display| AdoptionError::Unreadable(why.to_string());
    if kubeconfig.len() > LARGEST {
        return Err(unreadable(&format!("it has more than {LARGEST} bytes")));
    }
    let text = std::str::from_utf8(kubeconfig).map_err(|error| unreadable(&error))?;
    let config = machinery::yaml::parse_one(text).map_err(|error| unreadable(&error))?;
    let current = config.get("current-context").and_then(Value::as_str).unwrap_or_default();
    let context = entry(&config, "contexts", current, "context")?;
    let name = |field: &str| context.get(field).and_then(Value::as_str).unwrap_or_default();
    let cluster = entry(&config, "clusters", name("cluster"), "cluster")?;
    let user = entry(&config, "users", name("user"), "user")?;
    if let Some(field) = FILES_OF_USERS.into_iter().find(|field| is_set(user, field)) {
        return Err(AdoptionError::NeedsFiles(field));
    }
    if is_set(cluster, "certificate-authority") {
        return Err(AdoptionError::NeedsFiles("certificate-authority"));
    }
    let server = cluster.get("server").and_then(Value::as_str).unwrap_or_default();
    if !server.starts_with("https://") || server.len() <= "https://".len() {
        return Err(AdoptionError::Server(server.to_owned()));
    }
    let token = user.get("token").and_then(Value::as_str).unwrap_or_default();
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(AdoptionError::Token);
    }
    let mut more = context.clone();
    if let Some(fields) = more.as_object_mut() {
        fields.retain(|key, _| key == "namespace" || key == "extensions");
    }
    Ok(Context {
        cluster_name: name("cluster").to_owned(),
        cluster: cluster.clone(),
        user: user.clone(),
        more,
    })
}

fn is_set(entry: &Value, field: &str) -> bool {
    entry.get(field).is_some_and(|value| !value.is_null() && value != "")
}

fn entry<'a>(config: &'a Value, list: &str, name: &str, kind: &str) -> Result<&'a Value, AdoptionError> {
    let entries = config.get(list).and_then(Value::as_array);
    let found = entries.into_iter().flatten().find(|one| one.get("name").is_some_and(|n| n == name));
    found
        .and_then(|one| one.get(kind))
        .filter(|one| one.is_object())
        .ok_or_else(|| AdoptionError::Lacks(format!("{kind} {name:?}")))
}

impl Context {
    /// The address of the cluster.
    pub(crate) fn server(&self) -> &str {
        self.cluster.get("server").and_then(Value::as_str).unwrap_or_default()
    }

    /// A kubeconfig with this context alone.
    pub(crate) fn kubeconfig(&self) -> Value {
        self.for_user("bootstrap", &self.user)
    }

    /// The kubeconfig of the adopted cluster: cluster kept, context and user with the name of the ControlPlane.
    pub(crate) fn adopted(&self, control_plane: &str, token: &str) -> Value {
        self.for_user(control_plane, &json!({"token": token}))
    }

    /// The token, if the user has one.
    pub(crate) fn token(&self) -> Option<&str> {
        self.user.get("token").and_then(Value::as_str)
    }

    fn for_user(&self, name: &str, user: &Value) -> Value {
        let mut context = self.more.clone();
        context["cluster"] = self.cluster_name.as_str().into();
        context["user"] = name.into();
        json!({
            "apiVersion": "v1", "kind": "Config", "preferences": {},
            "clusters": [{"name": self.cluster_name, "cluster": self.cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": context}],
            "current-context": name,
        })
    }
}

/// Checks that must fail in a row before a cluster that was ready counts as silent.
const MISSES: u32 = 3;

/// Whether a cluster that failed `misses` checks in a row counts as silent (SP-040).
pub(crate) fn is_silent(was_ready: bool, misses: u32) -> bool {
    misses >= if was_ready { MISSES } else { 1 }
}

/// The lifetime of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    from: Timestamp,
    pub(crate) until: Timestamp,
}

impl Term {
    /// Reads the lifetime from the token itself: the server may have shortened it. `None` for a token that does not say.
    pub(crate) fn of(token: &str) -> Option<Self> {
        let payload = token.split('.').nth(1)?;
        let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
        let time = |claim: &str| Timestamp::from_second(claims.get(claim)?.as_i64()?).ok();
        let (from, until) = (time("iat")?, time("exp")?);
        (from < until).then_some(Self { from, until })
    }

    /// When the token is renewed: at 80 % of its life.
    pub(crate) fn renewal(&self) -> Timestamp {
        let life = self.until.duration_since(self.from).as_secs();
        let used = SignedDuration::from_secs(life / 5 * 4 + life % 5 * 4 / 5);
        self.from.checked_add(used).unwrap_or(self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(cluster: Value, user: Value) -> Vec<u8> {
        json!({"current-context": "c", "contexts": [{"name": "c", "context":
                {"cluster": "k", "user": "u", "namespace": "n", "foreign": 1}}],
            "clusters": [{"name": "k", "cluster": cluster}, {"name": "other", "cluster": {}}],
            "users": [{"name": "u", "user": user}]})
        .to_string()
        .into_bytes()
    }

    /// SP-038: cluster and CA are kept, context and user have the name of the ControlPlane, only the token is in it.
    #[test]
    fn sp_038_kubeconfig_of_an_adopted_cluster() {
        let cluster = json!({"server": "https://edge:6443/", "certificate-authority-data": "Q0E="});
        let found = context(&config(cluster.clone(), json!({"token": "old"}))).unwrap();
        assert_eq!((found.server(), found.token()), ("https://edge:6443/", Some("old")));
        let adopted = found.adopted("edge1", "new");
        assert_eq!(adopted["clusters"], json!([{"name": "k", "cluster": cluster}]));
        assert_eq!(adopted["users"], json!([{"name": "edge1", "user": {"token": "new"}}]));
        let context_ =
            json!({"name": "edge1", "context": {"cluster": "k", "user": "edge1", "namespace": "n"}});
        assert_eq!(adopted["contexts"], json!([context_]));
        assert_eq!(adopted["current-context"], "edge1");
        let again = context(adopted.to_string().as_bytes()).unwrap();
        assert_eq!(again.token(), Some("new"));
    }

    /// SP-038: a broken or foreign kubeconfig is refused with the reason; none makes this process run a program or read a
    /// file.
    #[test]
    fn sp_038_unusable_kubeconfigs_are_refused() {
        let server = json!({"server": "https://edge:6443"});
        for (bytes, part) in [
            (b"{ not: [yaml".to_vec(), "no kubeconfig"),
            (vec![0xff, 0xfe], "no kubeconfig"),
            (vec![b'a'; LARGEST + 1], "more than"),
            (b"a: b".to_vec(), "has no context \"\""),
            (br#"{"current-context": "x", "contexts": 3}"#.to_vec(), "has no context \"x\""),
            (config(json!({"server": "http://edge"}), json!({"token": "t"})), "no https URL"),
            (config(json!({}), json!({"token": "t"})), "no https URL"),
            (config(server.clone(), json!({"exec": {"command": "sh"}})), "needs exec"),
            (config(server.clone(), json!({"auth-provider": {"name": "gcp"}})), "needs auth-provider"),
            (config(server.clone(), json!({"tokenFile": "/etc/shadow"})), "needs tokenFile"),
            (config(server.clone(), json!({"client-key": "/root/key"})), "needs client-key"),
            (config(server.clone(), json!({"token": "1\r\nX-Evil: 1"})), "no HTTP header"),
            (
                config(json!({"server": "https://e", "certificate-authority": "/ca"}), json!({})),
                "needs certificate-authority",
            ),
        ] {
            let error = context(&bytes).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        assert!(context(&config(server, json!({"token": "t", "exec": null}))).is_ok());
    }

    /// SP-040: a cluster that was ready may miss two checks; one that was not is silent at once, and one answer is enough.
    #[test]
    fn sp_040_three_misses_make_a_cluster_silent() {
        for (was_ready, misses, silent) in
            [(true, 0, false), (true, 2, false), (true, 3, true), (false, 0, false), (false, 1, true)]
        {
            assert_eq!(is_silent(was_ready, misses), silent, "{was_ready} {misses}");
        }
    }

    /// SP-039: renewal at 80 % of the real life, whatever was asked for.
    #[test]
    fn sp_039_a_token_is_renewed_at_four_fifths_of_its_life() {
        let token = |claims: Value| format!("e30.{}.sig", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let term = Term::of(&token(json!({"iat": 1000, "exp": 4600}))).unwrap();
        assert_eq!((term.renewal().as_second(), term.until.as_second()), (3880, 4600));
        for broken in
            ["", "a", "a.b.c", "a.!.c", &token(json!({"exp": 5})), &token(json!({"iat": 9, "exp": 5}))]
        {
            assert_eq!(Term::of(broken), None, "{broken}");
        }
    }
}
