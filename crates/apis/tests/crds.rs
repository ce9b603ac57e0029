//! The checked-in CRDs, and rules for every CRD.
//!
//! `BLESS=1 cargo test -p kubestellar-apis --test crds` rewrites the files.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{fs, path::PathBuf};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kubestellar_apis::crds;
use serde_json::{Value, json};

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("crds")
}

fn name(crd: &CustomResourceDefinition) -> String {
    crd.metadata.name.clone().unwrap()
}

#[test]
fn files_are_what_the_types_say() {
    let bless = std::env::var_os("BLESS").is_some();
    let mut files: Vec<_> =
        fs::read_dir(directory()).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    for crd in crds::all() {
        let file = format!("{}.yaml", name(&crd));
        let text = serde_saphyr::to_string(&serde_json::to_value(&crd).unwrap()).unwrap();
        let path = directory().join(&file);
        if bless {
            fs::write(&path, &text).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap_or_default(), text, "{file}: run with BLESS=1");
        files.retain(|other| *other != file);
    }
    assert_eq!(files, Vec::<String>::new(), "files of no CRD");
}

fn schemas(crd: &CustomResourceDefinition) -> Vec<Value> {
    let versions = crd.spec.versions.iter();
    versions
        .map(|v| serde_json::to_value(v.schema.as_ref().unwrap()).unwrap()["openAPIV3Schema"].clone())
        .collect()
}

/// Every node of a structural schema has a type.
fn check(path: &str, schema: &Value) {
    let open = schema["x-kubernetes-preserve-unknown-fields"] == json!(true);
    let either = schema["x-kubernetes-int-or-string"] == json!(true);
    assert!(schema["type"].is_string() || open || either, "{path} has no type: {schema}");
    for key in ["$ref", "nullable", "oneOf", "title", "const"] {
        assert!(
            schema.get(key).is_none() || (key == "nullable" && path.ends_with("timeAdded")),
            "{path}: {key}"
        );
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        check(&format!("{path}.{name}"), property);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(nested) = schema.get(key) {
            check(&format!("{path}[]"), nested);
        }
    }
    if schema["x-kubernetes-list-type"] == json!("map") {
        for key in schema["x-kubernetes-list-map-keys"].as_array().unwrap() {
            let key = key.as_str().unwrap();
            let item = &schema["items"];
            let required = item["required"].as_array().is_some_and(|r| r.contains(&json!(key)));
            let defaulted = item["properties"][key].get("default").is_some();
            assert!(required || defaulted, "{path}: list key {key} must be required or have a default");
        }
    }
}

#[test]
fn schemas_are_structural() {
    for crd in crds::all() {
        assert!(!crd.spec.versions.is_empty(), "{} was not built", name(&crd));
        for schema in schemas(&crd) {
            check(&name(&crd), &schema);
        }
    }
}

#[test]
fn ks_002_five_kinds_are_installed_in_a_wds() {
    let names: Vec<_> = crds::control().iter().map(name).collect();
    assert_eq!(
        names,
        ["bindings", "bindingpolicies", "combinedstatuses", "customtransforms", "statuscollectors"]
            .map(|plural| format!("{plural}.control.kubestellar.io"))
    );
}

#[test]
fn ks_005_a_policy_has_the_documented_shape() {
    let crd = &crds::control()[1];
    assert_eq!(crd.spec.names.short_names, Some(vec!["bp".into()]));
    let schema = &schemas(crd)[0];
    let clause = &schema["properties"]["spec"]["properties"]["downsync"]["items"];
    let keys: Vec<_> = clause["properties"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(
        keys,
        [
            "apiGroup",
            "createOnly",
            "namespaceSelectors",
            "namespaces",
            "objectNames",
            "objectSelectors",
            "resources",
            "statusCollectors",
            "wantMultiWECReportedState",
            "wantSingletonReportedState"
        ]
    );
    let selector = &schema["properties"]["spec"]["properties"]["clusterSelectors"]["items"]["properties"];
    assert_eq!(
        selector["matchLabels"]["additionalProperties"]["pattern"],
        json!("^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
    );
    assert_eq!(
        selector["matchExpressions"]["items"]["properties"]["operator"]["pattern"],
        json!("^(In|NotIn|Exists|DoesNotExist)$")
    );
    let status = &schema["properties"]["status"];
    assert_eq!(status["required"], json!(["observedGeneration"]));
    assert_eq!(
        status["properties"]["conditions"]["items"]["required"],
        json!(["lastTransitionTime", "message", "reason", "status", "type"])
    );
    assert!(schema.get("required").is_none(), "a policy needs no spec");
}

#[test]
fn ks_006_a_clause_needs_a_criterion() {
    let schema = &schemas(&crds::control()[1])[0];
    let clause = &schema["properties"]["spec"]["properties"]["downsync"]["items"];
    let any: Vec<_> =
        clause["anyOf"].as_array().unwrap().iter().map(|one| one["required"][0].clone()).collect();
    assert_eq!(
        json!(any),
        json!([
            "apiGroup",
            "resources",
            "namespaces",
            "namespaceSelectors",
            "objectSelectors",
            "objectNames"
        ])
    );
}

#[test]
fn ks_010_a_binding_lists_objects_by_identity() {
    let schema = &schemas(&crds::control()[0])[0];
    let workload = &schema["properties"]["spec"]["properties"]["workload"]["properties"];
    assert_eq!(workload["clusterScope"]["x-kubernetes-list-map-keys"], json!(["group", "resource", "name"]));
    assert_eq!(
        workload["namespaceScope"]["x-kubernetes-list-map-keys"],
        json!(["group", "resource", "namespace", "name"])
    );
    assert_eq!(
        workload["clusterScope"]["items"]["required"],
        json!(["group", "name", "resource", "resourceVersion", "version"])
    );
    assert_eq!(
        schema["properties"]["spec"]["properties"]["destinations"]["x-kubernetes-list-map-keys"],
        json!(["clusterId"])
    );
}

#[test]
fn ks_014_a_collector_needs_a_limit_only() {
    let schema = &schemas(&crds::control()[4])[0];
    assert_eq!(schema["properties"]["spec"]["required"], json!(["limit"]));
}

#[test]
fn ks_016_numbers_are_text_under_float() {
    let schema = &schemas(&crds::control()[2])[0];
    let results = &schema["properties"]["results"]["items"];
    assert_eq!(results["required"], json!(["columnNames", "name"]));
    let value = &results["properties"]["rows"]["items"]["properties"]["columns"]["items"];
    assert_eq!(value["required"], json!(["type"]));
    assert_eq!(value["properties"]["float"]["type"], json!("string"));
    assert_eq!(
        value["properties"]["type"]["enum"],
        json!(["String", "Number", "Bool", "Null", "Object", "Array"])
    );
}

#[test]
fn ks_200_a_work_status_keeps_any_status() {
    let crd = &crds::work_status()[0];
    assert_eq!(crd.spec.names.short_names, Some(vec!["ws".into(), "wss".into()]));
    let schema = &schemas(crd)[0];
    assert_eq!(schema["properties"]["status"]["x-kubernetes-map-type"], json!("atomic"));
    assert_eq!(
        schema["properties"]["statusDetails"]["required"],
        json!(["lastCurrencyUpdateTime", "lastGeneration", "lastGenerationIsApplied"])
    );
    assert_eq!(
        schema["properties"]["spec"]["properties"]["sourceRef"]["required"],
        json!(["group", "namespace"])
    );
}

/// MC-001, MC-002, MC-006: names, what the schema rejects, and that unknown fields are dropped.
#[test]
fn mc_001_a_map_controller_has_the_documented_shape() {
    let crds = crds::metacontroller();
    let crd = &crds[3];
    assert_eq!(name(crd), "mapcontrollers.metacontroller.k8s.io");
    assert_eq!(crd.spec.scope, "Cluster");
    assert_eq!(crd.spec.names.short_names, Some(vec!["mapc".into(), "mctl".into()]));
    for crd in &crds {
        assert!(crd.metadata.annotations.as_ref().unwrap().contains_key("api-approved.kubernetes.io"));
        assert!(crd.spec.versions[0].subresources.as_ref().unwrap().status.is_some());
    }
    let schema = &schemas(crd)[0];
    let spec = &schema["properties"]["spec"];
    assert_eq!(spec["required"], json!(["hooks", "inputResources", "outputResources", "parentResource"]));
    assert_eq!(spec["properties"]["hooks"]["required"], json!(["map"]));
    let outputs = &spec["properties"]["outputResources"];
    assert_eq!((&outputs["minItems"], &outputs["maxItems"]), (&json!(1), &json!(64)));
    let strategy = &outputs["items"]["properties"]["updateStrategy"]["properties"]["method"];
    assert_eq!(strategy["enum"], json!(["OnDelete", "Recreate", "InPlace"]));
    assert!(!spec.to_string().contains("preserve-unknown-fields"), "MC-006");
}

#[test]
fn ocm_017_objects_keep_their_kind_when_written_and_read() {
    use kubestellar_apis::{control::Binding, ocm::ManifestWork};
    let work: ManifestWork = serde_json::from_value(json!({
        "apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork",
        "metadata": {"name": "a", "namespace": "c"},
        "spec": {"workload": {"manifests": [{"kind": "ConfigMap"}]}},
    }))
    .unwrap();
    let back = serde_json::to_value(&work).unwrap();
    assert_eq!(back["apiVersion"], json!("work.open-cluster-management.io/v1"));
    assert_eq!(back["kind"], json!("ManifestWork"));
    assert_eq!(back["spec"], json!({"workload": {"manifests": [{"kind": "ConfigMap"}]}}));
    assert!(back.get("status").is_none());
    let binding = serde_json::to_value(Binding::named("b")).unwrap();
    assert_eq!(binding["spec"], json!({"workload": {}}), "empty lists are omitted");
}

/// KS-004, KS-005, KS-010, KS-014, KS-015, KS-018: scope, names and columns, as in the spec's overview.
#[test]
fn ks_005_overview_of_the_kinds() {
    let condition = |type_: &str| format!(".status.conditions[?(@.type==\"{type_}\")].status");
    let label = |key: &str| format!(".metadata.labels['status\\.kubestellar\\.io/{key}']");
    /// Kind, short name, scope, category, whether there is a status subresource, columns.
    type Facts = (&'static str, &'static str, &'static str, &'static str, bool, Vec<(&'static str, String)>);
    let expected: [Facts; 5] = [
        ("Binding", "bdg", "Cluster", "", true, vec![]),
        (
            "BindingPolicy",
            "bp",
            "Cluster",
            "",
            true,
            vec![
                ("SYNCED", condition("Synced")),
                ("READY", condition("Ready")),
                ("TYPE", ".spec.type".into()),
                ("AGE", ".metadata.creationTimestamp".into()),
            ],
        ),
        (
            "CombinedStatus",
            "cs",
            "Namespaced",
            "",
            false,
            vec![
                ("SUBJECT_GROUP", label("api-group")),
                ("SUBJECT_RSC", label("resource")),
                ("SUBJECT_NS", label("namespace")),
                ("SUBJECT_NAME", label("name")),
                ("BINDINGPOLICY", label("binding-policy")),
            ],
        ),
        (
            "CustomTransform",
            "ct",
            "Cluster",
            "all",
            true,
            vec![("SUBJECT_GROUP", ".spec.apiGroup".into()), ("SUBJECT_RESOURCE", ".spec.resource".into())],
        ),
        ("StatusCollector", "sc", "Cluster", "", true, vec![]),
    ];
    for (crd, (kind, short, scope, category, status, columns)) in crds::control().iter().zip(expected) {
        let names = &crd.spec.names;
        assert_eq!((names.kind.as_str(), crd.spec.scope.as_str()), (kind, scope));
        assert_eq!(names.short_names, Some(vec![short.to_owned()]), "{kind}");
        assert_eq!(
            names.categories.iter().flatten().map(String::as_str).collect::<String>(),
            category,
            "{kind}"
        );
        let [version] = crd.spec.versions.as_slice() else { panic!("{kind} has one version") };
        assert!(version.name == "v1alpha1" && version.served && version.storage, "{kind}");
        assert_eq!(version.subresources.as_ref().is_some_and(|it| it.status.is_some()), status, "{kind}");
        let shown: Vec<_> = version
            .additional_printer_columns
            .iter()
            .flatten()
            .map(|it| (it.name.as_str(), it.json_path.clone()))
            .collect();
        assert_eq!(shown, columns, "{kind}");
    }
}

/// KS-003, KS-005: obsolete fields are unknown. KS-018: a transform needs group and resource.
#[test]
fn ks_003_obsolete_fields_are_unknown() {
    let policy = &schemas(&crds::control()[1])[0]["properties"]["spec"]["properties"];
    let keys: Vec<_> = policy.as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["clusterSelectors", "downsync"]);
    let transform = &schemas(&crds::control()[3])[0]["properties"]["spec"];
    assert_eq!(transform["required"], json!(["apiGroup", "resource"]));
}

/// KS-019, KS-008: names that other programs see.
#[test]
fn ks_019_names_are_exact() {
    use kubestellar_apis::{condition, constants};
    let same = [
        (constants::POLICY_FINALIZER, "bindingpolicy.kubestellar.io/kscontroller"),
        (constants::BINDING_FINALIZER, "transport.kubestellar.io/object-cleanup"),
        (constants::ORIGIN_BINDING_LABEL, "transport.kubestellar.io/originOwnerReferenceBindingKey"),
        (constants::ORIGIN_WDS_LABEL, "transport.kubestellar.io/originWdsName"),
        (
            constants::ORIGIN_GENERATION_ANNOTATION,
            "transport.kubestellar.io/originOwnerReferenceBindingGeneration",
        ),
        (constants::EXPAND_TEMPLATES_ANNOTATION, "control.kubestellar.io/expand-templates"),
        (constants::PRESERVE_ANNOTATION, "control.kubestellar.io/preserve"),
        (constants::PRESERVE_NODE_PORT, "nodeport"),
        (constants::EXECUTING_COUNT_LABEL, "kubestellar.io/executing-count"),
        (constants::SINGLETON_STATUS_LABEL, "managed-by.kubestellar.io/singletonstatus"),
        (constants::MULTI_WEC_STATUS_LABEL, "managed-by.kubestellar.io/multiwecstatus"),
        (constants::STATUS_API_GROUP_LABEL, "status.kubestellar.io/api-group"),
        (constants::STATUS_RESOURCE_LABEL, "status.kubestellar.io/resource"),
        (constants::STATUS_NAMESPACE_LABEL, "status.kubestellar.io/namespace"),
        (constants::STATUS_NAME_LABEL, "status.kubestellar.io/name"),
        (constants::STATUS_BINDING_POLICY_LABEL, "status.kubestellar.io/binding-policy"),
        (constants::CP_TYPE_LABEL, "kflex.kubestellar.io/cptype"),
        (constants::REPORT_NAMESPACE, "kubestellar-report"),
        (constants::PROPERTIES_NAMESPACE, "customization-properties"),
        (constants::BINDING_MANAGER, "Binding"),
        (constants::STATUS_MANAGER, "Status"),
        (constants::TRANSPORT_MANAGER, "transport-controller"),
        (condition::SYNCED, "Synced"),
        (condition::READY, "Ready"),
        (condition::STATUS_COLLECTORS_AVAILABLE, "StatusCollectorsAvailable"),
        (condition::REASON_AVAILABLE, "Available"),
        (condition::REASON_UNAVAILABLE, "Unavailable"),
        (condition::REASON_CREATING, "Creating"),
        (condition::REASON_DELETING, "Deleting"),
        (condition::REASON_SUCCESS, "ReconcileSuccess"),
        (condition::REASON_ERROR, "ReconcileError"),
        (condition::REASON_PAUSED, "ReconcilePaused"),
    ];
    for (ours, theirs) in same {
        assert_eq!(ours, theirs);
    }
}

/// KS-020: no kind of the Placement generation is installed.
#[test]
fn ks_020_old_kinds_are_not_installed() {
    let old = ["Placement", "PlacementDecision", "EdgePlacement", "Location"];
    for crd in crds::control() {
        assert!(!old.contains(&crd.spec.names.kind.as_str()) && crd.spec.group == "control.kubestellar.io");
    }
}

/// OCM-001: a hub that can convert serves the add-on API in both versions, and stores the older one.
#[test]
fn ocm_001_both_versions_of_the_addon_api() {
    let mut found = 0;
    for crd in crds::ocm_hub_converting() {
        let versions: Vec<_> =
            crd.spec.versions.iter().map(|v| (v.name.as_str(), v.served, v.storage)).collect();
        if crd.spec.group == "addon.open-cluster-management.io" {
            assert_eq!(versions, [("v1alpha1", true, true), ("v1beta1", true, false)], "{}", name(&crd));
            let status = |index: usize| crd.spec.versions[index].subresources.is_some();
            assert_eq!(status(0), status(1));
            let annotations = crd.metadata.annotations.clone().unwrap_or_default();
            assert_eq!(annotations["conversion.kubestellar.io/built-in"], "true");
            found += 1;
        } else {
            assert_eq!(versions.len(), 1, "{}", name(&crd));
        }
        for schema in schemas(&crd) {
            check(&name(&crd), &schema);
        }
    }
    assert_eq!(found, 4);
}
