//! CustomResourceDefinitions, generated from the types of this crate.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion,
};
use kube::Resource;
use serde_json::{Map, Value, json};

use crate::{
    constants::BUILT_IN_CONVERSION_ANNOTATION, control, kind::Root, metacontroller, ocm, schema, tenancy,
};

/// The parts of a CRD that the type does not determine.
#[derive(Clone, Copy, Default)]
struct Extras {
    singular: &'static str,
    short: &'static [&'static str],
    categories: &'static [&'static str],
    /// Name, type, JSONPath, priority.
    columns: &'static [(&'static str, &'static str, &'static str, i32)],
    namespaced: bool,
    status: bool,
    /// CEL rules at the root: rule and message.
    rules: &'static [(&'static str, &'static str)],
}

/// Without this annotation, API servers refuse CRDs in a *.k8s.io group.
const APPROVAL: &str = "api-approved.kubernetes.io";

const AGE: (&str, &str, &str, i32) = ("Age", "date", ".metadata.creationTimestamp", 0);
const AGE_UPPER: (&str, &str, &str, i32) = ("AGE", "date", ".metadata.creationTimestamp", 0);
const SYNCED: (&str, &str, &str, i32) =
    ("SYNCED", "string", ".status.conditions[?(@.type==\"Synced\")].status", 0);
const READY: (&str, &str, &str, i32) =
    ("READY", "string", ".status.conditions[?(@.type==\"Ready\")].status", 0);
const TYPE: (&str, &str, &str, i32) = ("TYPE", "string", ".spec.type", 0);
/// SP-003.
const CONTROL_PLANE_RULES: &[(&str, &str)] = &[
    ("size(self.metadata.name) <= 56", "the name must not be longer than 56 characters"),
    ("self.metadata.name != 'kubeflex'", "the name kubeflex is reserved"),
];

/// The five kinds that the controller-manager installs in a WDS (KS-002).
pub fn control() -> Vec<CustomResourceDefinition> {
    vec![
        crd::<control::Binding>(Extras {
            singular: "binding",
            short: &["bdg"],
            status: true,
            ..Extras::default()
        }),
        crd::<control::BindingPolicy>(Extras {
            singular: "bindingpolicy",
            short: &["bp"],
            status: true,
            columns: &[SYNCED, READY, TYPE, AGE_UPPER],
            ..Extras::default()
        }),
        crd::<control::CombinedStatus>(Extras {
            singular: "combinedstatus",
            short: &["cs"],
            namespaced: true,
            columns: &[
                ("SUBJECT_GROUP", "string", ".metadata.labels['status\\.kubestellar\\.io/api-group']", 0),
                ("SUBJECT_RSC", "string", ".metadata.labels['status\\.kubestellar\\.io/resource']", 0),
                ("SUBJECT_NS", "string", ".metadata.labels['status\\.kubestellar\\.io/namespace']", 0),
                ("SUBJECT_NAME", "string", ".metadata.labels['status\\.kubestellar\\.io/name']", 0),
                (
                    "BINDINGPOLICY",
                    "string",
                    ".metadata.labels['status\\.kubestellar\\.io/binding-policy']",
                    0,
                ),
            ],
            ..Extras::default()
        }),
        crd::<control::CustomTransform>(Extras {
            singular: "customtransform",
            short: &["ct"],
            categories: &["all"],
            status: true,
            columns: &[
                ("SUBJECT_GROUP", "string", ".spec.apiGroup", 0),
                ("SUBJECT_RESOURCE", "string", ".spec.resource", 0),
            ],
            ..Extras::default()
        }),
        crd::<control::StatusCollector>(Extras {
            singular: "statuscollector",
            short: &["sc"],
            status: true,
            ..Extras::default()
        }),
    ]
}

/// WorkStatus, for an ITS (KS-200).
pub fn work_status() -> Vec<CustomResourceDefinition> {
    vec![crd::<control::WorkStatus>(Extras {
        singular: "workstatus",
        short: &["ws", "wss"],
        namespaced: true,
        status: true,
        ..Extras::default()
    })]
}

/// OCM's kinds on a hub.
pub fn ocm_hub() -> Vec<CustomResourceDefinition> {
    [cluster_kinds(), placement_kinds(), work_kinds(), addon_kinds()].concat()
}

/// Clusters and their sets.
fn cluster_kinds() -> Vec<CustomResourceDefinition> {
    vec![
        crd::<ocm::ManagedCluster>(Extras {
            singular: "managedcluster",
            short: &["mcl", "mcls"],
            status: true,
            columns: &[
                ("Hub Accepted", "boolean", ".spec.hubAcceptsClient", 0),
                ("Managed Cluster URLs", "string", ".spec.managedClusterClientConfigs[*].url", 0),
                ("Joined", "string", ".status.conditions[?(@.type==\"ManagedClusterJoined\")].status", 0),
                (
                    "Available",
                    "string",
                    ".status.conditions[?(@.type==\"ManagedClusterConditionAvailable\")].status",
                    0,
                ),
                AGE,
            ],
            ..Extras::default()
        }),
        crd::<ocm::ManagedClusterSet>(Extras {
            singular: "managedclusterset",
            short: &["mclset", "mclsets"],
            status: true,
            columns: &[
                ("Empty", "string", ".status.conditions[?(@.type==\"ClusterSetEmpty\")].status", 0),
                AGE,
            ],
            ..Extras::default()
        }),
        crd::<ocm::ManagedClusterSetBinding>(Extras {
            singular: "managedclustersetbinding",
            short: &["mclsetbinding", "mclsetbindings"],
            namespaced: true,
            status: true,
            ..Extras::default()
        }),
    ]
}

/// Placements, what they decide, and what they can decide by.
fn placement_kinds() -> Vec<CustomResourceDefinition> {
    vec![
        crd::<ocm::Placement>(Extras {
            singular: "placement",
            namespaced: true,
            status: true,
            columns: &[
                ("Succeeded", "string", ".status.conditions[?(@.type==\"PlacementSatisfied\")].status", 0),
                ("Reason", "string", ".status.conditions[?(@.type==\"PlacementSatisfied\")].reason", 0),
                ("SelectedClusters", "integer", ".status.numberOfSelectedClusters", 0),
            ],
            ..Extras::default()
        }),
        crd::<ocm::PlacementDecision>(Extras {
            singular: "placementdecision",
            namespaced: true,
            status: true,
            ..Extras::default()
        }),
        crd::<ocm::AddOnPlacementScore>(Extras {
            singular: "addonplacementscore",
            namespaced: true,
            status: true,
            ..Extras::default()
        }),
    ]
}

/// What is delivered to clusters.
fn work_kinds() -> Vec<CustomResourceDefinition> {
    vec![crd::<ocm::ManifestWork>(Extras {
        singular: "manifestwork",
        namespaced: true,
        status: true,
        ..Extras::default()
    })]
}

/// Add-ons, their configuration and their templates.
fn addon_kinds() -> Vec<CustomResourceDefinition> {
    vec![
        crd::<ocm::ClusterManagementAddOn>(Extras {
            singular: "clustermanagementaddon",
            short: &["cma", "cmas"],
            status: true,
            columns: &[
                ("DISPLAY NAME", "string", ".spec.addOnMeta.displayName", 0),
                ("CRD NAME", "string", ".spec.addOnConfiguration.crdName", 0),
            ],
            ..Extras::default()
        }),
        crd::<ocm::ManagedClusterAddOn>(Extras {
            singular: "managedclusteraddon",
            short: &["mca", "mcas"],
            namespaced: true,
            status: true,
            columns: &[
                ("Available", "string", ".status.conditions[?(@.type==\"Available\")].status", 0),
                ("Degraded", "string", ".status.conditions[?(@.type==\"Degraded\")].status", 0),
                ("Progressing", "string", ".status.conditions[?(@.type==\"Progressing\")].status", 0),
            ],
            ..Extras::default()
        }),
        crd::<ocm::AddOnDeploymentConfig>(Extras {
            singular: "addondeploymentconfig",
            namespaced: true,
            ..Extras::default()
        }),
        crd::<ocm::AddOnTemplate>(Extras {
            singular: "addontemplate",
            columns: &[("ADDON NAME", "string", ".spec.addonName", 0)],
            ..Extras::default()
        }),
    ]
}

/// The kind that a hub writes with the gate ClusterProfile (OCM-165).
pub fn cluster_profiles() -> Vec<CustomResourceDefinition> {
    vec![crd::<ocm::ClusterProfile>(Extras {
        singular: "clusterprofile",
        namespaced: true,
        status: true,
        ..Extras::default()
    })]
}

/// The kind that a registration agent reads with the gate ClusterProperty (OCM-055).
pub fn cluster_properties() -> Vec<CustomResourceDefinition> {
    let mut crd = crd::<ocm::ClusterProperty>(Extras {
        singular: "clusterproperty",
        columns: &[("value", "string", ".spec.value", 0), ("age", "date", ".metadata.creationTimestamp", 0)],
        ..Extras::default()
    });
    let approval = "https://github.com/kubernetes/enhancements/pull/3084";
    crd.metadata.annotations.get_or_insert_default().insert(APPROVAL.into(), approval.into());
    vec![crd]
}

/// OCM's kinds on a hub, and the one that the agents of the status add-on write (KS-200).
pub fn ocm_hub_with_reports() -> Vec<CustomResourceDefinition> {
    [ocm_hub(), work_status()].concat()
}

/// OCM's CRDs on a hub whose API server converts between the versions of the add-on API (OCM-001): both are
/// served, and an annotation says that. Other servers need a conversion webhook for that, and get v1alpha1 only.
pub fn ocm_hub_converting() -> Vec<CustomResourceDefinition> {
    let mut all = ocm_hub();
    also::<ocm::addon_v1beta1::ClusterManagementAddOn>(&mut all);
    also::<ocm::addon_v1beta1::ManagedClusterAddOn>(&mut all);
    also::<ocm::addon_v1beta1::AddOnDeploymentConfig>(&mut all);
    also::<ocm::addon_v1beta1::AddOnTemplate>(&mut all);
    all
}

/// The same, and the kind that the agents of the status add-on write (KS-200).
pub fn ocm_hub_converting_with_reports() -> Vec<CustomResourceDefinition> {
    [ocm_hub_converting(), work_status()].concat()
}

/// Adds a version that is served and not stored, with the printer columns and subresources of the stored one.
fn also<K: Resource<DynamicType = ()> + Root>(all: &mut [CustomResourceDefinition]) {
    let plural = K::plural(&());
    let same = |crd: &&mut CustomResourceDefinition| crd.spec.names.plural == plural;
    let Some(crd) = all.iter_mut().find(same) else { return };
    let added = version::<K>(&Extras::default(), false);
    // Both come from literals and from schemars, as in `crd`.
    let Ok(mut added) = serde_json::from_value::<CustomResourceDefinitionVersion>(added) else { return };
    if let Some(stored) = crd.spec.versions.first() {
        added.additional_printer_columns.clone_from(&stored.additional_printer_columns);
        if K::kind(&()) == "ClusterManagementAddOn" {
            // It has no field for the name of a CRD any more.
            added.additional_printer_columns.iter_mut().for_each(|columns| columns.truncate(1));
        }
        added.subresources.clone_from(&stored.subresources);
    }
    crd.spec.versions.push(added);
    let annotations = crd.metadata.annotations.get_or_insert_default();
    annotations.insert(BUILT_IN_CONVERSION_ANNOTATION.into(), "true".into());
}

/// OCM's kinds in a managed cluster.
pub fn ocm_spoke() -> Vec<CustomResourceDefinition> {
    vec![
        crd::<ocm::AppliedManifestWork>(Extras {
            singular: "appliedmanifestwork",
            status: true,
            ..Extras::default()
        }),
        crd::<ocm::ClusterClaim>(Extras { singular: "clusterclaim", ..Extras::default() }),
    ]
}

/// KubeFlex' kinds (SP-001).
pub fn tenancy() -> Vec<CustomResourceDefinition> {
    vec![
        crd::<tenancy::ControlPlane>(Extras {
            singular: "controlplane",
            short: &["cp", "cps"],
            status: true,
            columns: &[
                SYNCED,
                READY,
                TYPE,
                AGE_UPPER,
                ("ROLE", "string", ".metadata.labels['kflex\\.kubestellar\\.io/cptype']", 1),
                ("URL", "string", ".metadata.annotations['space\\.kubestellar\\.io/url']", 1),
                ("HOOKS", "boolean", ".status.postCreateHookCompleted", 1),
            ],
            rules: CONTROL_PLANE_RULES,
            ..Extras::default()
        }),
        crd::<tenancy::PostCreateHook>(Extras {
            singular: "postcreatehook",
            short: &["pch", "pchs"],
            status: true,
            columns: &[SYNCED, READY, TYPE, AGE_UPPER],
            ..Extras::default()
        }),
    ]
}

/// Metacontroller's kinds (MC-001).
pub fn metacontroller() -> Vec<CustomResourceDefinition> {
    let mut crds = vec![
        crd::<metacontroller::CompositeController>(Extras {
            singular: "compositecontroller",
            short: &["cc", "cctl"],
            status: true,
            ..Extras::default()
        }),
        crd::<metacontroller::ControllerRevision>(Extras {
            singular: "controllerrevision",
            namespaced: true,
            status: true,
            ..Extras::default()
        }),
        crd::<metacontroller::DecoratorController>(Extras {
            singular: "decoratorcontroller",
            short: &["dec", "decorators"],
            status: true,
            ..Extras::default()
        }),
        crd::<metacontroller::MapController>(Extras {
            singular: "mapcontroller",
            short: &["mapc", "mctl"],
            status: true,
            columns: &[
                ("Parent", "string", ".spec.parentResource.resource", 0),
                ("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status", 0),
                AGE,
            ],
            ..Extras::default()
        }),
    ];
    for crd in &mut crds {
        let approval = "unapproved, request not yet submitted";
        let annotations = crd.metadata.annotations.get_or_insert_default();
        annotations.insert(APPROVAL.into(), approval.into());
    }
    crds
}

/// Every CRD of this crate.
pub fn all() -> Vec<CustomResourceDefinition> {
    let ocm = [ocm_hub(), cluster_profiles(), ocm_spoke(), cluster_properties()].concat();
    [control(), work_status(), ocm, tenancy(), metacontroller()].concat()
}

fn crd<K: Resource<DynamicType = ()> + Root>(extras: Extras) -> CustomResourceDefinition {
    let (group, plural) = (K::group(&()), K::plural(&()));
    let mut names = json!({
        "kind": K::kind(&()),
        "listKind": format!("{}List", K::kind(&())),
        "plural": plural,
        "singular": extras.singular,
    });
    set(&mut names, "shortNames", !extras.short.is_empty(), json!(extras.short));
    set(&mut names, "categories", !extras.categories.is_empty(), json!(extras.categories));
    let version = version::<K>(&extras, true);
    let whole = json!({
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group,
            "names": names,
            "scope": if extras.namespaced { "Namespaced" } else { "Cluster" },
            "versions": [version],
        },
    });
    // The input consists of the literals above and schemars' output; the tests of this module cover all CRDs.
    serde_json::from_value(whole).unwrap_or_default()
}

fn version<K: Resource<DynamicType = ()> + Root>(extras: &Extras, storage: bool) -> Value {
    let columns: Vec<Value> = extras.columns.iter().map(column).collect();
    let mut version = json!({
        "name": K::version(&()),
        "served": true,
        "storage": storage,
        "schema": {"openAPIV3Schema": root::<K>(extras.rules)},
    });
    set(&mut version, "additionalPrinterColumns", !columns.is_empty(), columns.into());
    set(&mut version, "subresources", extras.status, json!({"status": {}}));
    version
}

fn set(object: &mut Value, key: &str, present: bool, value: Value) {
    if let (true, Value::Object(map)) = (present, object) {
        map.insert(key.into(), value);
    }
}

fn column(&(name, type_, path, priority): &(&str, &str, &str, i32)) -> Value {
    let mut column = json!({"name": name, "type": type_, "jsonPath": path});
    set(&mut column, "priority", priority != 0, priority.into());
    column
}

fn root<K: Root>(rules: &[(&str, &str)]) -> Value {
    let mut generator = schema::generator();
    let mut properties = Map::new();
    properties.insert("apiVersion".into(), json!({"type": "string"}));
    properties.insert("kind".into(), json!({"type": "string"}));
    properties.insert("metadata".into(), json!({"type": "object"}));
    let mut required = Vec::new();
    for (name, property, needed) in K::properties(&mut generator) {
        properties.insert(name.into(), schema::structural(property.to_value()));
        if needed {
            required.push(Value::from(name));
        }
    }
    let mut root = json!({"type": "object", "description": K::DOC.trim(), "properties": properties});
    set(&mut root, "required", !required.is_empty(), required.into());
    let rules: Vec<_> =
        rules.iter().map(|(rule, message)| json!({"rule": rule, "message": message})).collect();
    set(&mut root, "x-kubernetes-validations", !rules.is_empty(), rules.into());
    root
}
