//! The requests of the binding controller.

use apis::{
    constants::{BINDING_MANAGER, CONTROL_GROUP, POLICY_FINALIZER},
    control::{Binding, BindingPolicy, BindingPolicyStatus, BindingSpec},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Client, ResourceExt, api::PropagationPolicy};
use runtime::{
    Light,
    events::Recorder,
    failure,
    rest::{Gvr, Removal, Rest},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    events::{EVENTS, News},
    facts::{BindingFacts, BindingMeta},
};

/// Why something could not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The server said no, or nothing.
    #[error("{what}: {source}")]
    Kube { what: &'static str, source: kube::Error },
    /// The object is more than the server takes.
    #[error("larger than {limit} bytes")]
    TooLarge { limit: u64 },
}

impl WriteError {
    fn of(what: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Kube { what, source }
    }

    /// The server understood and said no; it will say so again.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Kube { source, .. } if failure::is_invalid(source) || failure::is_forbidden(source))
    }

    /// It isn't there.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Kube { source, .. } if failure::is_not_found(source))
    }
}

/// What etcd takes by default.
const USUAL_LIMIT: u64 = 1_572_864;

/// Says yes to what is gone already.
fn unless_gone(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(error) if failure::is_not_found(&error) => Ok(()),
        other => other,
    }
}

fn binding_error(what: &'static str) -> impl FnOnce(kube::Error) -> WriteError {
    move |source| match &source {
        kube::Error::Api(status) if status.code == 413 || status.message.contains("too large") => {
            let said = status.message.rsplit(' ').find_map(|word| word.trim_matches('.').parse().ok());
            WriteError::TooLarge { limit: said.unwrap_or(USUAL_LIMIT) }
        }
        _ => WriteError::Kube { what, source },
    }
}

/// A client that writes policies and Bindings.
pub(super) struct Writes {
    rest: Rest,
    policies: Gvr,
    bindings: Gvr,
    events: Recorder,
}

/// A merge patch that makes a Binding's spec what it should be. An absent list is removed, hence the nulls.
#[derive(Serialize)]
struct BindingPatch<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<OwnerPatch<'a>>,
    spec: SpecPatch<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OwnerPatch<'a> {
    owner_references: [&'a OwnerReference; 1],
}

#[derive(Serialize)]
struct SpecPatch<'a> {
    workload: WorkloadPatch<'a>,
    destinations: Option<&'a [apis::control::Destination]>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkloadPatch<'a> {
    cluster_scope: Option<&'a [apis::control::ClusterScopeDownsyncClause]>,
    namespace_scope: Option<&'a [apis::control::NamespaceScopeDownsyncClause]>,
}

fn unless_empty<T>(list: &[T]) -> Option<&[T]> {
    (!list.is_empty()).then_some(list)
}

impl Writes {
    pub(super) fn new(client: Client) -> Self {
        let rest = Rest::with_manager(client, BINDING_MANAGER);
        Self {
            policies: Gvr::new(CONTROL_GROUP, "v1alpha1", "bindingpolicies"),
            bindings: Gvr::new(CONTROL_GROUP, "v1alpha1", "bindings"),
            events: Recorder::new(rest.clone(), BINDING_MANAGER, EVENTS),
            rest,
        }
    }

    /// Creates a Binding.
    pub(super) async fn create_binding(
        &self,
        name: &str,
        owner: &OwnerReference,
        spec: &BindingSpec,
    ) -> Result<BindingFacts, WriteError> {
        let mut binding = Binding::named(name);
        binding.metadata.owner_references = Some(vec![owner.clone()]);
        binding.spec = spec.clone();
        let error = binding_error("creating the Binding");
        let body = match serde_json::to_vec(&binding) {
            Ok(body) => body,
            Err(source) => return Err(error(kube::Error::SerdeError(source))),
        };
        self.rest.create(&self.bindings, "", body).await.map_err(error)
    }

    /// Makes a Binding's spec, and if given its owner, what it should be. Whatever else others wrote there stays,
    /// and doesn't get in the way: nobody else has a say in the spec.
    ///
    /// Gives the Binding's metadata afterwards. Of entries there may be thousands: they are not sent back only to say what was
    /// sent. A server that stores something else shows that to the informer.
    pub(super) async fn update_binding(
        &self,
        name: &str,
        owner: Option<&OwnerReference>,
        spec: &BindingSpec,
    ) -> Result<BindingMeta, WriteError> {
        #[derive(Deserialize)]
        struct Answer {
            metadata: BindingMeta,
        }
        let patch = BindingPatch {
            metadata: owner.map(|owner| OwnerPatch { owner_references: [owner] }),
            spec: SpecPatch {
                workload: WorkloadPatch {
                    cluster_scope: unless_empty(&spec.workload.cluster_scope),
                    namespace_scope: unless_empty(&spec.workload.namespace_scope),
                },
                destinations: unless_empty(&spec.destinations),
            },
        };
        let answer = self.rest.merge_metadata::<Answer>(&self.bindings, "", name, &patch).await;
        Ok(answer.map_err(binding_error("updating the Binding"))?.metadata)
    }

    /// The spec of a Binding as it is.
    pub(super) async fn binding_spec(&self, name: &str) -> Result<BindingSpec, WriteError> {
        let binding: Binding =
            self.rest.get(&self.bindings, "", name).await.map_err(WriteError::of("reading the Binding"))?;
        Ok(binding.spec)
    }

    /// Deletes this incarnation of a Binding.
    pub(super) async fn delete_binding(&self, name: &str, uid: &str) -> Result<(), WriteError> {
        let removal = Removal { uid: Some(uid.to_owned()), propagation: Some(PropagationPolicy::Background) };
        match self.rest.delete(&self.bindings, "", name, &removal).await {
            // Another incarnation is not this one: it is gone.
            Err(error) if failure::is_conflict(&error) => Ok(()),
            other => unless_gone(other).map_err(WriteError::of("deleting the Binding")),
        }
    }

    /// Puts our finalizer on a policy. Gives the version of the policy that has it.
    pub(super) async fn add_finalizer(&self, policy: &BindingPolicy) -> Result<Box<str>, WriteError> {
        let mut finalizers = policy.finalizers().to_vec();
        finalizers.push(POLICY_FINALIZER.into());
        let written = self.set_finalizers(policy, finalizers).await;
        written.map_err(WriteError::of("adding the finalizer to the policy"))
    }

    /// Takes our finalizer from a policy.
    pub(super) async fn remove_finalizer(&self, policy: &BindingPolicy) -> Result<(), WriteError> {
        let finalizers = policy.finalizers().iter().filter(|it| *it != POLICY_FINALIZER).cloned();
        unless_gone(self.set_finalizers(policy, finalizers.collect()).await.map(|_| ()))
            .map_err(WriteError::of("removing the finalizer from the policy"))
    }

    async fn set_finalizers(
        &self,
        policy: &BindingPolicy,
        list: Vec<String>,
    ) -> Result<Box<str>, kube::Error> {
        let patch = json!({"metadata": {
            "uid": policy.metadata.uid,
            "resourceVersion": policy.metadata.resource_version,
            "finalizers": list,
        }});
        let name = policy.metadata.name.as_deref().unwrap_or_default();
        let written: Light = self.rest.merge(&self.policies, "", name, &patch).await?;
        Ok(written.metadata.resource_version)
    }

    /// Writes an Event about a policy.
    pub(super) async fn event(&self, policy: &BindingPolicy, news: News) -> Result<(), WriteError> {
        self.events.record(&news.about(policy)).await.map_err(WriteError::of("writing an Event"))
    }

    /// Writes a policy's status.
    pub(super) async fn policy_status(
        &self,
        name: &str,
        status: &BindingPolicyStatus,
    ) -> Result<(), WriteError> {
        let list = |empty: bool, value: Value| if empty { Value::Null } else { value };
        let patch = json!({"status": {
            "observedGeneration": status.observed_generation,
            "conditions": list(status.conditions.is_empty(), json!(status.conditions)),
            "errors": list(status.errors.is_empty(), json!(status.errors)),
        }});
        let write = self.rest.merge_status::<serde::de::IgnoredAny>(&self.policies, "", name, &patch);
        unless_gone(write.await.map(|_| ())).map_err(WriteError::of("writing the policy's status"))
    }
}
