//! Type `host`: the hosting cluster itself, seen as a space (SP-037).

use std::time::Duration;

use apis::tenancy::ControlPlane;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use runtime::Next;
use runtime::rest::Gvr;
use serde_json::{Value, json};

use crate::adoption::{self, Term};
use crate::credentials::{self, owner};
use crate::manager::{Manager, OWNED};
use crate::names::{SYSTEM_LABEL, Type, namespace_of};
use crate::pass::Found;
use crate::status::SpaceState;

/// Pause before the token of a new Secret is looked for again.
const TOKEN_COMES: Duration = Duration::from_millis(500);
/// Lifetime of a token where the cluster puts none into Secrets, in seconds.
const LIFETIME: i64 = 365 * 86400;

/// Name of the binding that makes the account an administrator.
pub(crate) fn binding_name(control_plane: &str) -> String {
    format!("{control_plane}-binding")
}

pub(crate) fn bindings() -> Gvr {
    Gvr::new("rbac.authorization.k8s.io", "v1", "clusterrolebindings")
}

impl Manager {
    pub(crate) async fn host(&self, plane: &ControlPlane) -> Result<Found, kube::Error> {
        let name = plane.metadata.name.as_deref().unwrap_or_default();
        let namespace = namespace_of(name);
        if let Some(why) = self.namespace(plane).await? {
            return Ok(Found::only(SpaceState::Incomplete(why), Next::Retry));
        }
        let labels = json!({SYSTEM_LABEL: "true", OWNED: name});
        let meta =
            json!({"name": name, "namespace": namespace, "labels": labels, "ownerReferences": owner(plane)});
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta});
        self.rest.ensure(&Gvr::new("", "v1", "serviceaccounts"), &namespace, name, &account).await?;
        let mut secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": meta,
            "type": "kubernetes.io/service-account-token"});
        secret["metadata"]["annotations"] = json!({"kubernetes.io/service-account.name": name});
        self.rest.ensure(&Gvr::new("", "v1", "secrets"), &namespace, name, &secret).await?;
        let binding = binding_name(name);
        let object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": binding, "labels": labels, "ownerReferences": owner(plane)},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]});
        self.rest.ensure(&bindings(), "", &binding, &object).await?;
        let Some((ca, token)) = self.host_token(plane).await? else {
            let why = format!("token not ready yet for service account secret {name}, requeing");
            return Ok(Found::only(SpaceState::Incomplete(why), Next::After(TOKEN_COMES)));
        };
        let (_, key, in_cluster_key) = Type::Host.secret();
        let text = |server: &str| credentials::text(&credentials::of_host(name, server, &ca, &token));
        let (outside, inside) = (text(&self.config.host.outside), text(&self.config.host.inside));
        let data = [(key, outside.as_bytes()), (in_cluster_key, inside.as_bytes())];
        self.secret(plane, credentials::secret(plane, Type::Host.secret().0, &data)).await?;
        let mut found = self.with_hooks(plane.clone(), Type::Host).await?;
        if let Some(term) = Term::of(&token) {
            found.next = sooner(found.next, term.renewal());
        }
        Ok(found)
    }

    /// CA and token: those in the Secret of the account. An embedded host puts none there: then the token of the kubeconfig
    /// until that is due, and then a new one. `None` while the cluster has not filled in the Secret.
    async fn host_token(&self, plane: &ControlPlane) -> Result<Option<(Vec<u8>, String)>, kube::Error> {
        let name = plane.metadata.name.as_deref().unwrap_or_default();
        let (namespace, secrets) = (namespace_of(name), Gvr::new("", "v1", "secrets"));
        let secret = self.rest.find::<Value>(&secrets, &namespace, name).await?.unwrap_or_default();
        let ca = self.config.host.ca_pem.clone().map(String::into_bytes);
        let ca = ca.or_else(|| credentials::value(&secret, "ca.crt"));
        if let (Some(ca), Some(token)) = (ca.clone(), credentials::value(&secret, "token")) {
            return Ok(Some((ca, String::from_utf8_lossy(&token).into_owned())));
        }
        let (Some(ca), true) = (ca, self.config.spaces.is_some()) else { return Ok(None) };
        let (at, key, _) = Type::Host.secret();
        if let Some(known) = self.rest.find::<Value>(&secrets, &namespace, at).await?
            && let Some(context) =
                credentials::value(&known, key).and_then(|text| adoption::context(&text).ok())
            && let Some(token) = context.token()
            && Term::of(token).is_some_and(|term| term.renewal() > Timestamp::now())
        {
            return Ok(Some((ca, token.to_owned())));
        }
        let request = TokenRequest {
            spec: TokenRequestSpec { expiration_seconds: Some(LIFETIME), ..TokenRequestSpec::default() },
            ..TokenRequest::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.rest.client().clone(), &namespace);
        let answer = accounts.create_token_request(name, &PostParams::default(), &request).await?;
        Ok(answer.status.map(|status| (ca, status.token)))
    }
}

/// The next pass at `when`, unless another one comes earlier.
pub(crate) fn sooner(next: Next, when: Timestamp) -> Next {
    let pause = Duration::try_from(when.duration_since(Timestamp::now())).unwrap_or_default();
    match next {
        Next::OnChange => Next::After(pause),
        Next::After(known) => Next::After(known.min(pause)),
        Next::Retry | Next::RetryWithin(_) => next,
    }
}
