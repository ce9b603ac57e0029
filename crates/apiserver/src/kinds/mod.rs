//! Behaviour of each built-in kind that differs from the generic one (spec 2.2 to 2.5).
//!
//! A kind is a row (`spec::Spec`) that one strategy interprets. Rows refer to functions for what a value cannot
//! express.

mod admission;
mod amounts;
mod autoscaling;
mod batch;
mod check;
mod claim_validation;
mod conditions;
mod core;
mod cron;
mod csr;
mod events;
mod godiff;
mod hpa_validation;
mod inner_paths;
mod job_policies;
mod limits;
mod misc;
mod namespaces;
mod network;
mod pod;
mod pod_containers;
mod pod_env;
mod pod_handlers;
mod pod_mounts;
mod pod_placement;
mod pod_security;
mod pod_validation;
mod pod_volumes;
mod pod_warnings;
mod pods;
mod rbac;
mod service;
mod service_validation;
pub(crate) mod spec;
mod storage;
mod subresources;
#[cfg(test)]
mod tests;
mod unenforced;
pub(crate) mod value;
mod volume_validation;
mod warnings;
mod workloads;

use std::sync::Arc;

pub use self::subresources::{bind, budget_after_eviction, check_eviction, covering_budget};
pub(crate) use self::{
    admission::client_config,
    check::Errs,
    namespaces::{check_new_content, namespace_key},
    spec::content_changed,
};

use self::spec::{BASE, KindStrategy, Spec};
use crate::descriptor::SubresourceAction;
use crate::strategy::{Review, Strategy};

/// The strategy of a built-in resource.
pub fn strategy(group: &str, version: &str, plural: &str) -> Arc<dyn Strategy> {
    Arc::new(KindStrategy::new(spec(group, version, plural)))
}

/// What requests to a subresource of a built-in resource do.
pub(crate) fn subresource_action(group: &str, plural: &str, subresource: &str) -> SubresourceAction {
    match (group, plural, subresource) {
        (_, _, "scale") => SubresourceAction::Scale,
        ("", "serviceaccounts", "token") => SubresourceAction::Token,
        ("", "pods", "eviction") => SubresourceAction::Eviction,
        ("", "pods", "binding") => SubresourceAction::Binding,
        ("", "pods", "log") => SubresourceAction::PodLog,
        ("", "pods", "exec" | "attach" | "portforward") => SubresourceAction::PodConnection,
        ("", "pods", "proxy") => SubresourceAction::PodProxy,
        ("", _, "proxy") => SubresourceAction::Proxy,
        _ => SubresourceAction::Object,
    }
}

/// Which checks of metadata a kind repeats on updates, after the generic ones. The causes of an error show it.
#[derive(Clone, Copy)]
pub(crate) struct MetadataChecks {
    pub(crate) update: bool,
    pub(crate) create: bool,
}

/// The checks of metadata that updates of a built-in kind repeat.
pub(crate) fn metadata_checks(group: &str, plural: &str) -> MetadataChecks {
    let (update, create) = match (group, plural) {
        ("", "events") | ("policy", "poddisruptionbudgets") => (false, false),
        ("", "limitranges" | "persistentvolumes")
        | ("admissionregistration.k8s.io" | "flowcontrol.apiserver.k8s.io", _)
        | ("storage.k8s.io", "csinodes" | "volumeattachments") => (false, true),
        (
            "",
            "services"
            | "resourcequotas"
            | "podtemplates"
            | "namespaces"
            | "nodes"
            | "replicationcontrollers",
        )
        | (
            "apps"
            | "batch"
            | "autoscaling"
            | "discovery.k8s.io"
            | "scheduling.k8s.io"
            | "events.k8s.io"
            | "coordination.k8s.io"
            | "resource.k8s.io",
            _,
        )
        | ("networking.k8s.io", "networkpolicies" | "servicecidrs" | "ingressclasses" | "ipaddresses")
        | ("storage.k8s.io", "csidrivers") => (true, false),
        _ => (true, true),
    };
    MetadataChecks { update, create }
}

/// The row of a review kind.
const fn review(review: Review) -> Spec {
    Spec { review: Some(review), ..BASE }
}

fn spec(group: &str, version: &str, plural: &str) -> Spec {
    match (group, plural) {
        ("authentication.k8s.io", "selfsubjectreviews") => review(Review::SelfSubject),
        ("authentication.k8s.io", "tokenreviews") => review(Review::Token),
        ("authorization.k8s.io", "localsubjectaccessreviews") => review(Review::LocalSubjectAccess),
        ("authorization.k8s.io", "selfsubjectaccessreviews") => review(Review::SelfSubjectAccess),
        ("authorization.k8s.io", "selfsubjectrulesreviews") => review(Review::SelfSubjectRules),
        ("authorization.k8s.io", "subjectaccessreviews") => review(Review::SubjectAccess),
        ("", "componentstatuses") => core::COMPONENT_STATUS,
        ("", "namespaces") => namespaces::NAMESPACE,
        ("", "configmaps") => core::CONFIG_MAP,
        ("", "secrets") => core::SECRET,
        ("", "serviceaccounts") => core::SERVICE_ACCOUNT,
        ("", "events") => events::CORE_EVENT,
        ("events.k8s.io", "events") => events::NAMED_EVENT,
        ("", "services") => service::SERVICE,
        ("", "pods") => pods::POD,
        ("", "nodes") => core::NODE,
        ("", "persistentvolumeclaims") => storage::CLAIM,
        ("", "persistentvolumes") => storage::VOLUME,
        ("", "endpoints") => core::ENDPOINTS,
        ("", "replicationcontrollers") => workloads::REPLICATION_CONTROLLER,
        ("", "podtemplates") => workloads::POD_TEMPLATE,
        ("", "limitranges") => core::LIMIT_RANGE,
        ("", "resourcequotas") => core::RESOURCE_QUOTA,
        ("apps", "deployments") => workloads::DEPLOYMENT,
        ("apps", "replicasets") => workloads::REPLICA_SET,
        ("apps", "statefulsets") => workloads::STATEFUL_SET,
        ("apps", "daemonsets") => workloads::DAEMON_SET,
        ("apps", "controllerrevisions") => workloads::CONTROLLER_REVISION,
        ("batch", "jobs") => batch::JOB,
        ("batch", "cronjobs") => batch::CRON_JOB,
        ("autoscaling", "horizontalpodautoscalers") if version == "v1" => autoscaling::HPA_V1,
        ("autoscaling", "horizontalpodautoscalers") => autoscaling::HPA_V2,
        ("networking.k8s.io", "ingresses") => network::INGRESS,
        ("networking.k8s.io", "ingressclasses") => network::INGRESS_CLASS,
        ("networking.k8s.io", "networkpolicies") => network::NETWORK_POLICY,
        ("networking.k8s.io", "servicecidrs") => network::SERVICE_CIDR,
        ("networking.k8s.io", "ipaddresses") => network::IP_ADDRESS,
        ("policy", "poddisruptionbudgets") => misc::DISRUPTION_BUDGET,
        ("rbac.authorization.k8s.io", "roles") => rbac::ROLE,
        ("rbac.authorization.k8s.io", "clusterroles") => rbac::CLUSTER_ROLE,
        ("rbac.authorization.k8s.io", "rolebindings") => rbac::ROLE_BINDING,
        ("rbac.authorization.k8s.io", "clusterrolebindings") => rbac::CLUSTER_ROLE_BINDING,
        ("coordination.k8s.io", "leases") => misc::LEASE,
        ("certificates.k8s.io", "certificatesigningrequests") => csr::CSR,
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations") => admission::VALIDATING_WEBHOOKS,
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations") => admission::MUTATING_WEBHOOKS,
        ("admissionregistration.k8s.io", "validatingadmissionpolicies") => admission::VALIDATING_POLICY,
        ("admissionregistration.k8s.io", "mutatingadmissionpolicies") => admission::MUTATING_POLICY,
        (
            "admissionregistration.k8s.io",
            "validatingadmissionpolicybindings" | "mutatingadmissionpolicybindings",
        ) => admission::POLICY_BINDING,
        (crate::crd::GROUP, crate::crd::PLURAL) => crate::crd::DEFINITION,
        ("apiregistration.k8s.io", "apiservices") => misc::API_SERVICE,
        ("discovery.k8s.io", "endpointslices") => network::ENDPOINT_SLICE,
        ("storage.k8s.io", "storageclasses") => storage::STORAGE_CLASS,
        ("storage.k8s.io", "csidrivers") => storage::CSI_DRIVER,
        ("storage.k8s.io", "csinodes") => storage::CSI_NODE,
        ("storage.k8s.io", "csistoragecapacities") => storage::CSI_CAPACITY,
        ("storage.k8s.io", "volumeattachments") => storage::ATTACHMENT,
        ("storage.k8s.io", "volumeattributesclasses") => storage::ATTRIBUTES_CLASS,
        ("scheduling.k8s.io", "priorityclasses") => misc::PRIORITY_CLASS,
        ("node.k8s.io", "runtimeclasses") => misc::RUNTIME_CLASS,
        ("flowcontrol.apiserver.k8s.io", "flowschemas") => misc::FLOW_SCHEMA,
        ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations") => misc::PRIORITY_LEVEL,
        ("resource.k8s.io", "resourceclaims") => misc::RESOURCE_CLAIM,
        ("resource.k8s.io", "resourceclaimtemplates") => misc::RESOURCE_CLAIM_TEMPLATE,
        ("resource.k8s.io", _) => misc::RESOURCE_SPEC,
        _ => BASE,
    }
}
