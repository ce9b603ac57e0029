//! Adopts a cluster by a kubeconfig, renews its token, and asks whether it answers (SP-038 to SP-040).

use std::time::Duration;

use apis::tenancy::ControlPlane;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Error};
use runtime::connect::{self, Reach};
use runtime::failure::{code_of, is_forbidden, is_not_found, message_of};
use runtime::rest::{Gvr, Removal, Rest};
use serde_json::{Value, json};

use crate::adoption::{self, Context, Term};

const ACCOUNT: &str = "kubeflex";
const ACCOUNT_NAMESPACE: &str = "kube-system";
const BINDING: &str = "kubeflex-clusterrolebinding";
/// Lifetime that is asked for unless the ControlPlane says otherwise, in seconds.
const LIFETIME: i64 = 365 * 86400;
/// Longest wait for a connection and for an answer.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(10);
/// Longest time that the removal of account and binding may take (SP-052).
const FAREWELL: Duration = Duration::from_secs(10);

/// What could not be done with a cluster; a sentence for users.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExternalError {
    #[error("the kubeconfig of the cluster cannot be used: {0}")]
    Client(String),
    #[error("{what} on the adopted cluster: {}", cause(.source))]
    Request { what: &'static str, source: Box<Error> },
}

/// The error with its causes: "connection refused" is the innermost.
pub(crate) fn cause(error: &Error) -> String {
    let mut text = message_of(error);
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    text
}

/// A client of a kubeconfig that [`adoption::context`] has checked.
pub(crate) async fn client(kubeconfig: &Value, reach: Reach) -> Result<Client, ExternalError> {
    let unusable = |error: &dyn std::fmt::Display| ExternalError::Client(error.to_string());
    let parsed: Kubeconfig = serde_json::from_value(kubeconfig.clone()).map_err(|error| unusable(&error))?;
    let config = kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| unusable(&error))?;
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(ANSWER);
    connect::client_within(config, reach).map_err(|error| unusable(&error))
}

/// Creates binding and account as far as they are missing, and returns a token that has been used once.
pub(crate) async fn enter(
    context: &Context,
    plane: &ControlPlane,
    reach: Reach,
) -> Result<String, ExternalError> {
    let client = client(&context.kubeconfig(), reach).await?;
    let rest = Rest::new(client.clone());
    let failed = |what| move |source| ExternalError::Request { what, source: Box::new(source) };
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": BINDING},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": ACCOUNT_NAMESPACE}]});
    rest.ensure(&bindings(), "", BINDING, &binding)
        .await
        .map_err(failed("error creating ClusterRoleBinding"))?;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": ACCOUNT, "namespace": ACCOUNT_NAMESPACE}});
    rest.ensure(&accounts(), ACCOUNT_NAMESPACE, ACCOUNT, &account)
        .await
        .map_err(failed("error creating ServiceAccount"))?;
    let token = new_token(&client, plane).await?;
    // The bootstrap credential is deleted, so the new one must work.
    let used = self::client(&context.adopted("adopted", &token), reach).await?;
    Rest::new(used)
        .find::<Value>(&accounts(), ACCOUNT_NAMESPACE, ACCOUNT)
        .await
        .map_err(failed("error using the new token"))?;
    Ok(token)
}

/// Requests a token.
pub(crate) async fn new_token(client: &Client, plane: &ControlPlane) -> Result<String, ExternalError> {
    let seconds = plane.spec.token_expiration_seconds.unwrap_or(LIFETIME);
    let request = TokenRequest {
        spec: TokenRequestSpec { expiration_seconds: Some(seconds), ..TokenRequestSpec::default() },
        ..TokenRequest::default()
    };
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), ACCOUNT_NAMESPACE);
    let answer = accounts.create_token_request(ACCOUNT, &PostParams::default(), &request).await;
    let answer = answer.map_err(|source| ExternalError::Request {
        what: "error requesting token",
        source: Box::new(source),
    })?;
    Ok(answer.status.map(|status| status.token).unwrap_or_default())
}

/// Whether the token of a context is due, and when it will be.
pub(crate) fn due(context: &Context, now: Timestamp) -> (bool, Option<Term>) {
    let term = context.token().and_then(Term::of);
    (term.is_some_and(|term| term.renewal() <= now), term)
}

/// How a cluster answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Good,
    /// The credential is refused.
    Unauthorized,
    Bad(String),
}

/// Asks a cluster whether it is ready (SP-040).
pub(crate) async fn health(client: &Client) -> Health {
    match ask(client, "/readyz").await {
        Err(error) if is_forbidden(&error) || is_not_found(&error) => verdict(ask(client, "/version").await),
        answer => verdict(answer),
    }
}

async fn ask(client: &Client, path: &str) -> Result<String, Error> {
    let request = http::Request::get(path).body(Vec::new()).map_err(Error::HttpError)?;
    client.request_text(request).await
}

fn verdict(answer: Result<String, Error>) -> Health {
    match answer {
        Ok(_) => Health::Good,
        Err(error) if code_of(&error) == 401 => Health::Unauthorized,
        Err(error) => Health::Bad(cause(&error)),
    }
}

/// Removes account and binding, for a limited time. Returns what was left behind.
pub(crate) async fn leave(kubeconfig: &[u8], reach: Reach) -> Result<(), String> {
    let work = async {
        let context = adoption::context(kubeconfig).map_err(|error| error.to_string())?;
        let client = client(&context.kubeconfig(), reach).await.map_err(|error| error.to_string())?;
        let rest = Rest::new(client);
        // Without the binding this client may do nothing, and without the account it is nobody. So the account becomes a
        // dependent of the binding, and the cluster's garbage collector removes it.
        let failed = |error: Error| cause(&error);
        let Some(binding) = rest.find::<Value>(&bindings(), "", BINDING).await.map_err(failed)? else {
            return Ok(());
        };
        let owner = json!([{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "name": BINDING, "uid": binding["metadata"]["uid"]}]);
        let patch = json!({"metadata": {"ownerReferences": owner}});
        match rest.merge::<Value>(&accounts(), ACCOUNT_NAMESPACE, ACCOUNT, &patch).await {
            Err(error) if !is_not_found(&error) => return Err(cause(&error)),
            _ => {}
        }
        rest.remove(&bindings(), "", BINDING, &Removal::default()).await.map_err(failed)?;
        Ok(())
    };
    let left =
        format!("ServiceAccount {ACCOUNT_NAMESPACE}/{ACCOUNT} and ClusterRoleBinding {BINDING} may be left");
    match tokio::time::timeout(FAREWELL, work).await {
        Ok(outcome) => outcome.map_err(|why| format!("{left}: {why}")),
        Err(_) => Err(format!("{left}: the cluster did not answer in time")),
    }
}

fn bindings() -> Gvr {
    Gvr::new("rbac.authorization.k8s.io", "v1", "clusterrolebindings")
}

fn accounts() -> Gvr {
    Gvr::new("", "v1", "serviceaccounts")
}
