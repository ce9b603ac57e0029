//! The requests that the binding controller sends.

use apis::{
    constants::{BINDING_MANAGER, POLICY_FINALIZER},
    control::{Binding, BindingPolicy, BindingPolicyStatus, BindingSpec},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Client, ResourceExt, api::PropagationPolicy};
use runtime::{
    PartialObject,
    events::Recorder,
    failure,
    rest::{Gvr, Removal, Rest},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    events::{EVENTS, PolicyEvent},
    facts::{BindingFacts, BindingMeta},
};

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The server refused the request or did not answer.
    #[error("{what}: {source}")]
    Kube { what: &'static str, source: kube::Error },
    /// The object exceeds the size that the server accepts.
    #[error("larger than {limit} bytes")]
    TooLarge { limit: u64 },
}

impl WriteError {
    fn of(what: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Kube { what, source }
    }

    /// Returns whether the server understood and refused the request, and would refuse it again.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Kube { source, .. } if failure::is_invalid(source) || failure::is_forbidden(source))
    }

    /// Returns whether the object does not exist.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Kube { source, .. } if failure::is_not_found(source))
    }
}

/// etcd's default limit for an object, in bytes.
const USUAL_LIMIT: u64 = 1_572_864;

/// Treats an object that is gone already as success.
fn unless_gone(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(error) if failure::is_not_found(&error) => Ok(()),
        other => other,
    }
}

fn binding_error(what: &'static str) -> impl FnOnce(kube::Error) -> WriteError {
    move |source| match &source {
        kube::Error::Api(status) if status.code == 413 || status.message.contains("too large") => {
            let announced = status.message.rsplit(' ').find_map(|word| word.trim_matches('.').parse().ok());
            WriteError::TooLarge { limit: announced.unwrap_or(USUAL_LIMIT) }
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

/// A merge patch that sets a Binding's spec. An absent list must be removed, hence the nulls.
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
            policies: Gvr::of::<BindingPolicy>(),
            bindings: Gvr::of::<Binding>(),
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

    /// Sets a Binding's spec and, if given, its owner. Fields of other writers stay and cause no conflict,
    /// since no other client may set the spec.
    ///
    /// Returns the Binding's metadata after the write. There may be thousands of entries, so the server is
    /// not asked to send them back. If the server stores something else, the informer reports that.
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

    /// Reads the present spec of a Binding.
    pub(super) async fn binding_spec(&self, name: &str) -> Result<BindingSpec, WriteError> {
        let binding: Binding =
            self.rest.get(&self.bindings, "", name).await.map_err(WriteError::of("reading the Binding"))?;
        Ok(binding.spec)
    }

    /// Deletes the Binding with this UID.
    pub(super) async fn delete_binding(&self, name: &str, uid: &str) -> Result<(), WriteError> {
        let removal = Removal { uid: Some(uid.to_owned()), propagation: Some(PropagationPolicy::Background) };
        match self.rest.delete(&self.bindings, "", name, &removal).await {
            // A Binding with another UID has taken the name, so this one is gone.
            Err(error) if failure::is_conflict(&error) => Ok(()),
            other => unless_gone(other).map_err(WriteError::of("deleting the Binding")),
        }
    }

    /// Adds our finalizer to a policy. Returns the version of the policy that has it.
    pub(super) async fn add_finalizer(&self, policy: &BindingPolicy) -> Result<Box<str>, WriteError> {
        let mut finalizers = policy.finalizers().to_vec();
        finalizers.push(POLICY_FINALIZER.into());
        let written = self.set_finalizers(policy, finalizers).await;
        written.map_err(WriteError::of("adding the finalizer to the policy"))
    }

    /// Removes our finalizer from a policy.
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
        let written: PartialObject = self.rest.merge(&self.policies, "", name, &patch).await?;
        Ok(written.metadata.resource_version)
    }

    /// Writes an Event about a policy.
    pub(super) async fn event(&self, policy: &BindingPolicy, event: PolicyEvent) -> Result<(), WriteError> {
        self.events.record(&event.about(policy)).await.map_err(WriteError::of("writing an Event"))
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
