//! Names that other programs see: labels, annotations, finalizers, field managers, namespaces
//! (KS-019 and the OCM counterparts).

/// API group of KubeStellar's own kinds.
pub const CONTROL_GROUP: &str = "control.kubestellar.io";
/// API group of the OCM inventory.
pub const CLUSTER_GROUP: &str = "cluster.open-cluster-management.io";
/// API group of the Multicluster SIG's inventory.
pub const MULTICLUSTER_GROUP: &str = "multicluster.x-k8s.io";
/// API group of the Multicluster SIG's properties of clusters.
pub const ABOUT_GROUP: &str = "about.k8s.io";
/// API group of ManifestWork and AppliedManifestWork.
pub const WORK_GROUP: &str = "work.open-cluster-management.io";
/// API group of OCM add-ons.
pub const ADDON_GROUP: &str = "addon.open-cluster-management.io";
/// API group of Metacontroller.
pub const METACONTROLLER_GROUP: &str = "metacontroller.k8s.io";
/// API group of KubeFlex control planes.
pub const TENANCY_GROUP: &str = "tenancy.kflex.kubestellar.org";

/// Finalizer of the binding controller on a BindingPolicy (KS-009).
pub const POLICY_FINALIZER: &str = "bindingpolicy.kubestellar.io/kscontroller";
/// Finalizer of the transport controller on a Binding (KS-012).
pub const BINDING_FINALIZER: &str = "transport.kubestellar.io/object-cleanup";

/// Label on wrapped objects and WorkStatus objects: name of the Binding they come from.
pub const ORIGIN_BINDING_LABEL: &str = "transport.kubestellar.io/originOwnerReferenceBindingKey";
/// Label on wrapped objects and WorkStatus objects: name of the WDS they come from.
pub const ORIGIN_WDS_LABEL: &str = "transport.kubestellar.io/originWdsName";
/// Annotation on wrapped objects: generation of the Binding they were made of, decimal.
pub const ORIGIN_GENERATION_ANNOTATION: &str =
    "transport.kubestellar.io/originOwnerReferenceBindingGeneration";
/// Annotation on wrapped objects, if the transport controller writes it: the generations of the contained
/// objects in the WDS, as a JSON object whose keys are those of [`crate::control::generation_key`] (OCM-139).
pub const ORIGIN_OBJECT_GENERATIONS_ANNOTATION: &str = "transport.kubestellar.io/originObjectGenerations";
/// Prefix of the transport's labels; the status agent recognises managed works by it.
pub const TRANSPORT_LABEL_PREFIX: &str = "transport.kubestellar.io";
/// Prefix of the older generation's labels, still recognised by the status agent.
pub const MANAGED_BY_LABEL_PREFIX: &str = "managed-by.kubestellar.io";

/// Annotation on a workload object: `"true"` asks for template expansion.
pub const EXPAND_TEMPLATES_ANNOTATION: &str = "control.kubestellar.io/expand-templates";
/// Annotation on a Service: [`PRESERVE_NODE_PORT`] keeps node ports.
pub const PRESERVE_ANNOTATION: &str = "control.kubestellar.io/preserve";
/// Value of [`PRESERVE_ANNOTATION`].
pub const PRESERVE_NODE_PORT: &str = "nodeport";

/// Label on a workload object in the WDS: number of clusters in its qualified set (KS-150).
pub const EXECUTING_COUNT_LABEL: &str = "kubestellar.io/executing-count";
/// Label on a workload object: its status was copied from one WEC.
pub const SINGLETON_STATUS_LABEL: &str = "managed-by.kubestellar.io/singletonstatus";
/// Label on a workload object: its status was aggregated over WECs.
pub const MULTI_WEC_STATUS_LABEL: &str = "managed-by.kubestellar.io/multiwecstatus";

/// Labels of a CombinedStatus.
pub const STATUS_API_GROUP_LABEL: &str = "status.kubestellar.io/api-group";
/// Plural resource name of a CombinedStatus' subject.
pub const STATUS_RESOURCE_LABEL: &str = "status.kubestellar.io/resource";
/// Namespace of a CombinedStatus' subject; empty for cluster-scoped ones.
pub const STATUS_NAMESPACE_LABEL: &str = "status.kubestellar.io/namespace";
/// Name of a CombinedStatus' subject.
pub const STATUS_NAME_LABEL: &str = "status.kubestellar.io/name";
/// BindingPolicy of a CombinedStatus.
pub const STATUS_BINDING_POLICY_LABEL: &str = "status.kubestellar.io/binding-policy";

/// Label on a KubeFlex ControlPlane: [`CP_TYPE_ITS`] or [`CP_TYPE_WDS`].
pub const CP_TYPE_LABEL: &str = "kflex.kubestellar.io/cptype";
/// Value of [`CP_TYPE_LABEL`] for an inventory and transport space.
pub const CP_TYPE_ITS: &str = "its";
/// Value of [`CP_TYPE_LABEL`] for a workload description space.
pub const CP_TYPE_WDS: &str = "wds";

/// Namespace in the WDS for CombinedStatus objects of cluster-scoped objects.
pub const REPORT_NAMESPACE: &str = "kubestellar-report";
/// Namespace in the ITS for property ConfigMaps.
pub const PROPERTIES_NAMESPACE: &str = "customization-properties";

/// Field manager of the binding controller.
pub const BINDING_MANAGER: &str = "Binding";
/// Field manager of the status controller.
pub const STATUS_MANAGER: &str = "Status";
/// Field manager and user agent of the transport controller.
pub const TRANSPORT_MANAGER: &str = "transport-controller";

/// OCM: finalizer of the work agent on a ManifestWork (OCM-014).
pub const MANIFEST_WORK_FINALIZER: &str = "cluster.open-cluster-management.io/manifest-work-cleanup";
/// OCM: finalizer on an AppliedManifestWork (OCM-015).
pub const APPLIED_WORK_FINALIZER: &str = "cluster.open-cluster-management.io/applied-manifest-work-cleanup";
/// OCM: finalizer added to an accepted ManagedCluster.
pub const CLUSTER_API_FINALIZER: &str = "cluster.open-cluster-management.io/api-resource-cleanup";
/// OCM: finalizer of the resource-cleanup gate on a ManagedCluster.
pub const CLUSTER_CLEANUP_FINALIZER: &str = "cluster.open-cluster-management.io/resource-cleanup";
/// OCM: label with the set a ManagedCluster belongs to.
pub const CLUSTER_SET_LABEL: &str = "cluster.open-cluster-management.io/clusterset";
/// Label on a ClusterProfile: the cluster manager that it belongs to.
pub const PROFILE_MANAGER_LABEL: &str = "x-k8s.io/cluster-manager";
/// Label on a ClusterProfile: the set that the cluster belongs to.
pub const PROFILE_SET_LABEL: &str = "multicluster.x-k8s.io/clusterset";
/// OCM: label on a mailbox namespace and other objects that belong to one cluster.
pub const CLUSTER_NAME_LABEL: &str = "open-cluster-management.io/cluster-name";
/// OCM: prefix of the add-on feature labels on a ManagedCluster.
pub const ADDON_FEATURE_LABEL_PREFIX: &str = "feature.open-cluster-management.io/addon-";
/// OCM: annotation with the time of an automatic acceptance.
pub const AUTO_ACCEPTED_ANNOTATION: &str = "open-cluster-management.io/automatically-accepted-on";
/// OCM: annotation of add-on works, configuration to hash.
pub const CONFIG_SPEC_HASH_ANNOTATION: &str = "open-cluster-management.io/config-spec-hash";
/// OCM: label naming the add-on an object belongs to.
pub const ADDON_NAME_LABEL: &str = "open-cluster-management.io/addon-name";
/// OCM: label naming the namespace of the add-on an object belongs to.
pub const ADDON_NAMESPACE_LABEL: &str = "open-cluster-management.io/addon-namespace";
/// OCM: who installs an add-on.
pub const ADDON_LIFECYCLE_ANNOTATION: &str = "addon.open-cluster-management.io/lifecycle";
/// OCM: namespace of operators and the bootstrap service account on the hub.
pub const OCM_NAMESPACE: &str = "open-cluster-management";
/// OCM: namespace of the hub controllers.
pub const OCM_HUB_NAMESPACE: &str = "open-cluster-management-hub";
/// OCM: namespace of the klusterlet in a managed cluster.
pub const OCM_AGENT_NAMESPACE: &str = "open-cluster-management-agent";
/// OCM: namespace of add-on agents in a managed cluster.
pub const OCM_ADDON_NAMESPACE: &str = "open-cluster-management-agent-addon";
/// OCM: lease of a managed cluster in its mailbox namespace.
pub const CLUSTER_LEASE: &str = "managed-cluster-lease";
/// Name of KubeStellar's status add-on.
pub const STATUS_ADDON: &str = "addon-status";
/// OCM: prefix of the annotations that belong to add-ons.
pub const ADDON_ANNOTATION_PREFIX: &str = "addon.open-cluster-management.io";
/// OCM: finalizer of an add-on whose hooks have to run before it goes; also what marks an object as a hook.
pub const ADDON_PRE_DELETE: &str = "addon.open-cluster-management.io/addon-pre-delete";
/// OCM: marks an object of an add-on that stays when the add-on goes.
pub const ADDON_ORPHAN: &str = "addon.open-cluster-management.io/deletion-orphan";
/// OCM: the cluster whose klusterlet hosts an add-on's agent.
pub const ADDON_HOSTING_ANNOTATION: &str = "addon.open-cluster-management.io/hosting-cluster-name";
/// OCM: label of a PlacementDecision, the Placement.
pub const PLACEMENT_LABEL: &str = "cluster.open-cluster-management.io/placement";
/// Annotation on a ManagedCluster: add-ons whose agents its klusterlet runs itself, with commas between them. An
/// extension of ours, under a prefix that an agent may set.
pub const BUILT_IN_ADDONS_ANNOTATION: &str = "agent.open-cluster-management.io/built-in-addons";
/// Annotation on a CustomResourceDefinition: `"true"` if its API server converts between its versions without a webhook,
/// as those of KubeStellar do for the add-on API. An extension of ours.
pub const BUILT_IN_CONVERSION_ANNOTATION: &str = "conversion.kubestellar.io/built-in";
