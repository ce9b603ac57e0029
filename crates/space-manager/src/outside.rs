//! Type `external`: a cluster that was adopted (SP-038 to SP-040).

use std::time::Duration;

use apis::tenancy::ControlPlane;
use jiff::Timestamp;
use runtime::failure::is_not_found;
use runtime::rest::{Gvr, Removal};
use runtime::{Next, backoff};
use serde_json::Value;

use crate::adoption::{self, Context};
use crate::credentials;
use crate::external::{self, Health};
use crate::host::sooner;
use crate::manager::Manager;
use crate::names::{Type, namespace_of};
use crate::pass::Found;
use crate::status::SpaceState;

/// How often a cluster is asked whether it answers.
const CHECK: Duration = Duration::from_secs(15);

impl Manager {
    pub(crate) async fn external(&self, plane: &ControlPlane) -> Result<Found, kube::Error> {
        let name = plane.metadata.name.as_deref().unwrap_or_default();
        let failed = |why: String| Ok(Found::only(SpaceState::Failed(why), Next::Retry));
        if let Some(why) = self.namespace(plane).await? {
            return Ok(Found::only(SpaceState::Incomplete(why), Next::Retry));
        }
        let context = match self.adopted(name).await? {
            Some(context) => context,
            None => match self.adopt(plane).await? {
                Ok(context) => context,
                Err(why) => return failed(why),
            },
        };
        let client = match external::client(&context.kubeconfig(), self.config.reach).await {
            Ok(client) => client,
            Err(error) => return failed(error.to_string()),
        };
        let mut health = external::health(&client).await;
        let (due, mut term) = external::due(&context, Timestamp::now());
        let mut trouble = None;
        if due || health == Health::Unauthorized {
            match external::new_token(&client, plane).await {
                Ok(token) => {
                    let renewed = context.adopted(name, &token);
                    self.write_adopted(plane, &renewed).await?;
                    term = adoption::Term::of(&token);
                    health = match external::client(&renewed, self.config.reach).await {
                        Ok(client) => external::health(&client).await,
                        Err(error) => Health::Bad(error.to_string()),
                    };
                }
                Err(error) => {
                    let until = term.map(|term| format!("; it ends at {}", term.until)).unwrap_or_default();
                    trouble = Some(format!("the token could not be renewed: {error}{until}"));
                }
            }
        }
        self.judge(plane.clone(), &health, trouble, term).await
    }

    async fn judge(
        &self,
        plane: ControlPlane,
        health: &Health,
        trouble: Option<String>,
        term: Option<adoption::Term>,
    ) -> Result<Found, kube::Error> {
        let name = plane.metadata.name.clone().unwrap_or_default();
        let silent = match health {
            Health::Good => None,
            Health::Unauthorized => Some("401: the cluster refuses the token".to_owned()),
            Health::Bad(why) => Some(why.clone()),
        };
        let misses = self.remember(&name, |one| {
            one.misses = if silent.is_some() { one.misses.saturating_add(1) } else { 0 };
            one.misses
        });
        let was_ready =
            plane.status.as_ref().is_some_and(|status| crate::condition::is_available(&status.conditions));
        let check = Next::After(backoff::jittered(CHECK));
        let mut found = match (silent, trouble) {
            (Some(_), _) if !adoption::is_silent(was_ready, misses) => {
                self.with_hooks(plane, Type::External).await?
            }
            (Some(why), _) => Found::only(SpaceState::Silent(why), check),
            (None, Some(trouble)) => Found::only(SpaceState::Incomplete(trouble), check),
            (None, None) => self.with_hooks(plane, Type::External).await?,
        };
        found.observed.secret_ref = Some(credentials::reference(&name, Type::External));
        if found.next == Next::OnChange {
            found.next = check;
        }
        if let Some(term) = term.filter(|term| term.renewal() > Timestamp::now()) {
            found.next = sooner(found.next, term.renewal());
        }
        Ok(found)
    }

    /// The kubeconfig of a cluster that is adopted already. A Secret that holds none is as good as none.
    async fn adopted(&self, name: &str) -> Result<Option<Context>, kube::Error> {
        let secrets = Gvr::new("", "v1", "secrets");
        let (secret, _, key) = Type::External.secret();
        let found = self.rest.find::<Value>(&secrets, &namespace_of(name), secret).await?;
        let text = found.and_then(|found| credentials::value(&found, key));
        Ok(text.and_then(|text| adoption::context(&text).ok()))
    }

    /// Adopts the cluster of the bootstrap Secret, and deletes that Secret once the new credential has been used. The inner
    /// error is a sentence for users.
    async fn adopt(&self, plane: &ControlPlane) -> Result<Result<Context, String>, kube::Error> {
        let Some(at) = &plane.spec.bootstrap_secret_ref else {
            return Ok(Err("bootstrapSecretRef must be present in the control plane".into()));
        };
        let name = plane.metadata.name.as_deref().unwrap_or_default();
        let secrets = Gvr::new("", "v1", "secrets");
        let Some(found) = self.rest.find::<Value>(&secrets, &at.namespace, &at.name).await? else {
            return Ok(Err(format!("secrets \"{}\" not found in namespace {}", at.name, at.namespace)));
        };
        let key = if at.in_cluster_key.is_empty() { "kubeconfig-incluster" } else { &at.in_cluster_key };
        let Some(text) = credentials::value(&found, key) else {
            return Ok(Err(format!("kubeconfig not found in bootstrap secret for key {key}")));
        };
        let bootstrap = match adoption::context(&text) {
            Ok(context) => context,
            Err(error) => return Ok(Err(format!("bootstrap secret {}/{}: {error}", at.namespace, at.name))),
        };
        let token = match external::enter(&bootstrap, plane, self.config.reach).await {
            Ok(token) => token,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let kubeconfig = bootstrap.adopted(name, &token);
        self.write_adopted(plane, &kubeconfig).await?;
        let uid = found.pointer("/metadata/uid").and_then(Value::as_str).map(str::to_owned);
        let removal = Removal { uid, ..Removal::default() };
        match self.rest.delete(&secrets, &at.namespace, &at.name, &removal).await {
            Err(error) if !is_not_found(&error) => return Err(error),
            _ => {}
        }
        Ok(adoption::context(kubeconfig.to_string().as_bytes()).map_err(|error| error.to_string()))
    }

    async fn write_adopted(&self, plane: &ControlPlane, kubeconfig: &Value) -> Result<(), kube::Error> {
        let (secret, key, in_cluster_key) = Type::External.secret();
        let text = credentials::text(kubeconfig);
        let data = [(key, text.as_bytes()), (in_cluster_key, text.as_bytes())];
        self.secret(plane, credentials::secret(plane, secret, &data)).await
    }
}
