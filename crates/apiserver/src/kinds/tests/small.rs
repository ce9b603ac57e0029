//! All other kinds, and rules that all kinds share.

use serde_json::{Value, json};

use super::*;

#[test]
fn as_016_small_kinds_print_as_recorded() {
    for (group, plural, body, expected) in [
        (
            "",
            "persistentvolumeclaims",
            json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1024Mi"}}}}),
            json!({"metadata": {"finalizers": ["kubernetes.io/pvc-protection"]}, "spec": {"accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}, "volumeMode": "Filesystem"}, "status": {"phase": "Pending"}}),
        ),
        (
            "",
            "persistentvolumes",
            json!({"spec": {"capacity": {"storage": "5G"}, "accessModes": ["ReadWriteMany"], "nfs": {"server": "x", "path": "/y"}}}),
            json!({"metadata": {"finalizers": ["kubernetes.io/pv-protection"]}, "spec": {"accessModes": ["ReadWriteMany"],
                "capacity": {"storage": "5G"}, "nfs": {"path": "/y", "server": "x"}, "persistentVolumeReclaimPolicy": "Retain",
                "volumeMode": "Filesystem"},
                "status": {"lastPhaseTransitionTime": "2026-01-01T00:00:00Z", "phase": "Pending"}}),
        ),
        (
            "",
            "limitranges",
            json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, "default": {"memory": "64Mi"}}]}}),
            json!({"spec": {"limits": [{"default": {"cpu": "2", "memory": "64Mi"},
                "defaultRequest": {"cpu": "2", "memory": "64Mi"}, "max": {"cpu": "2"}, "type": "Container"}]}}),
        ),
        (
            "",
            "endpoints",
            json!({"subsets": [{"addresses": [{"ip": "10.1.2.4"}], "ports": [{"port": 80}]}]}),
            json!({"subsets": [{"addresses": [{"ip": "10.1.2.4"}], "ports": [{"port": 80, "protocol": "TCP"}]}]}),
        ),
        (
            "discovery.k8s.io",
            "endpointslices",
            json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.2.3"]}], "ports": [{"port": 80}]}),
            json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.2.3"], "conditions": {}}],
                "ports": [{"name": "", "port": 80, "protocol": "TCP"}]}),
        ),
        (
            "networking.k8s.io",
            "ingresses",
            json!({"spec": {"rules": [{"host": "*.golden.test"}]}}),
            json!({"spec": {"rules": [{"host": "*.golden.test"}]}, "status": {"loadBalancer": {}}}),
        ),
        (
            "networking.k8s.io",
            "networkpolicies",
            json!({"spec": {"egress": [{"ports": [{"port": 1}]}]}}),
            json!({"spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
                "egress": [{"ports": [{"port": 1, "protocol": "TCP"}]}]}}),
        ),
        (
            "policy",
            "poddisruptionbudgets",
            json!({"spec": {"minAvailable": "30%", "selector": {"matchLabels": {"a": "b"}}}}),
            json!({"spec": {"minAvailable": "30%", "selector": {"matchLabels": {"a": "b"}}},
                "status": {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}}),
        ),
        ("coordination.k8s.io", "leases", json!({}), json!({"spec": {}})),
        ("node.k8s.io", "runtimeclasses", json!({"handler": "h"}), json!({"handler": "h"})),
        (
            "storage.k8s.io",
            "csidrivers",
            json!({"spec": {}}),
            json!({"spec": {"attachRequired": true, "fsGroupPolicy": "ReadWriteOnceWithFSType", "podInfoOnMount": false,
                "requiresRepublish": false, "seLinuxMount": false, "storageCapacity": false,
                "volumeLifecycleModes": ["Persistent"]}}),
        ),
        (
            "flowcontrol.apiserver.k8s.io",
            "flowschemas",
            json!({"spec": {"priorityLevelConfiguration": {"name": "global-default"}}}),
            json!({"spec": {"matchingPrecedence": 1000, "priorityLevelConfiguration": {"name": "global-default"}}, "status": {}}),
        ),
        ("rbac.authorization.k8s.io", "roles", json!({"rules": []}), json!({"rules": null})),
        (
            "rbac.authorization.k8s.io",
            "rolebindings",
            json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s", "namespace": "n"}]}),
            json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s", "namespace": "n"}]}),
        ),
        (
            "admissionregistration.k8s.io",
            "validatingadmissionpolicybindings",
            json!({"spec": {"policyName": "p", "validationActions": ["Deny"], "matchResources": {"namespaceSelector": {"matchLabels": {"a": "b"}}}}}),
            json!({"spec": {"matchResources": {"matchPolicy": "Equivalent", "namespaceSelector": {"matchLabels": {"a": "b"}}, "objectSelector": {}},
                "policyName": "p", "validationActions": ["Deny"]}}),
        ),
    ] {
        let pipeline = Pipeline::new(group, "v1", plural);
        let mut body = body;
        set_at(&mut body, "metadata", "name", "x");
        let made = pipeline.create(body).unwrap_or_else(|e| panic!("{plural}: {e}"));
        let mut wanted = expected;
        merge(
            &mut wanted,
            &json!({"metadata": {"name": "x"}, "kind": pipeline.kind.kind, "apiVersion": pipeline.kind.api_version()}),
        );
        // The merge above drops nulls that are printed.
        if plural == "roles" {
            wanted["rules"] = Value::Null;
        }
        if pipeline.kind.namespaced {
            set_at(&mut wanted, "metadata", "namespace", "ns");
        }
        assert_eq!(made, wanted, "{plural}");
    }
}

#[test]
fn as_013_autoscaler_defaults() {
    let pipeline = Pipeline::new("autoscaling", "v2", "horizontalpodautoscalers");
    let made = pipeline
        .create(json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 5,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}}))
        .expect("created");
    assert_eq!(
        at(&made, "spec"),
        &json!({"maxReplicas": 5, "minReplicas": 1,
            "metrics": [{"resource": {"name": "cpu", "target": {"averageUtilization": 80, "type": "Utilization"}}, "type": "Resource"}],
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}})
    );
    assert_eq!(at(&made, "status"), &json!({"currentMetrics": null, "desiredReplicas": 0}));
    assert_eq!(
        pipeline
            .create(json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 5, "scaleTargetRef": {"kind": "Deployment", "name": "d"}}}))
            .expect_err("refused"),
        "HorizontalPodAutoscaler.autoscaling \"h\" is invalid: spec.scaleTargetRef.apiVersion: Invalid value: \"\": apiVersion must specify API group"
    );
}

#[test]
fn as_017_small_kinds_refuse_as_recorded() {
    let refused = |group: &str, plural: &str, name: &str, mut body: Value| {
        set_at(&mut body, "metadata", "name", name);
        Pipeline::new(group, "v1", plural).create(body).expect_err("refused")
    };
    let hook = |extra: Value| {
        let mut hook = json!({"name": "a.golden.test", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": "https://golden.test"}});
        merge(&mut hook, &extra);
        json!({"webhooks": [hook]})
    };
    const HOOKS: &str = "validatingwebhookconfigurations";
    const ADMISSION: &str = "admissionregistration.k8s.io";
    for (group, plural, body, message) in [
        (
            "coordination.k8s.io",
            "leases",
            json!({"spec": {"leaseDurationSeconds": 0}}),
            "Lease.coordination.k8s.io \"x\" is invalid: spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
        ),
        (
            "coordination.k8s.io",
            "leases",
            json!({"spec": {"leaseTransitions": -1}}),
            "Lease.coordination.k8s.io \"x\" is invalid: spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            ADMISSION,
            HOOKS,
            hook(json!({"name": "short"})),
            "ValidatingWebhookConfiguration.admissionregistration.k8s.io \"x\" is invalid: webhooks[0].name: Invalid value: \"short\": should be a domain with at least three segments separated by dots",
        ),
        (
            ADMISSION,
            HOOKS,
            hook(json!({"sideEffects": "Some", "clientConfig": {"url": "http://golden.test"}})),
            "ValidatingWebhookConfiguration.admissionregistration.k8s.io \"x\" is invalid: [webhooks[0].sideEffects: Unsupported value: \"Some\": supported values: \"None\", \"NoneOnDryRun\", webhooks[0].clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]]",
        ),
        (
            ADMISSION,
            HOOKS,
            hook(
                json!({"admissionReviewVersions": ["v9"], "clientConfig": {"url": null}, "timeoutSeconds": 60}),
            ),
            "ValidatingWebhookConfiguration.admissionregistration.k8s.io \"x\" is invalid: [webhooks[0].timeoutSeconds: Invalid value: 60: the timeout value must be between 1 and 30 seconds, webhooks[0].clientConfig: Required value: exactly one of url or service is required, webhooks[0].admissionReviewVersions: Invalid value: [\"v9\"]: must include at least one of v1, v1beta1]",
        ),
        (
            "flowcontrol.apiserver.k8s.io",
            "flowschemas",
            json!({"spec": {"matchingPrecedence": 0, "priorityLevelConfiguration": {"name": ""}}}),
            "FlowSchema.flowcontrol.apiserver.k8s.io \"x\" is invalid: spec.priorityLevelConfiguration.name: Required value: must reference a priority level",
        ),
        (
            "apiregistration.k8s.io",
            "apiservices",
            json!({"spec": {"group": "golden.test", "version": "v1", "groupPriorityMinimum": 0, "versionPriority": 0, "service": {"namespace": "x", "name": "y"}}}),
            "APIService.apiregistration.k8s.io \"x\" is invalid: [metadata.name: Invalid value: \"x\": must be `spec.version+\".\"+spec.group`: \"v1.golden.test\", spec.groupPriorityMinimum: Invalid value: 0: must be positive and less than 20000, spec.versionPriority: Invalid value: 0: must be positive and less than 1000]",
        ),
        (
            "rbac.authorization.k8s.io",
            "roles",
            json!({"rules": [{"verbs": [], "apiGroups": [""]}, {"verbs": ["get"], "nonResourceURLs": ["/x"]}]}),
            "Role.rbac.authorization.k8s.io \"x\" is invalid: [rules[0].verbs: Required value: verbs must contain at least one value, rules[0].resources: Required value: resource rules must supply at least one resource, rules[1].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs]",
        ),
        (
            "networking.k8s.io",
            "ingresses",
            json!({"spec": {"rules": [{"http": {"paths": [{"path": "/", "backend": {"service": {"name": "s"}}}]}}]}}),
            "Ingress.networking.k8s.io \"x\" is invalid: [spec.rules[0].http.paths[0].pathType: Required value: pathType must be specified, spec.rules[0].http.paths[0].backend: Required value: port name or number is required]",
        ),
        (
            "certificates.k8s.io",
            "certificatesigningrequests",
            json!({"spec": {"request": "eA==", "signerName": "short", "expirationSeconds": 5}}),
            "CertificateSigningRequest.certificates.k8s.io \"x\" is invalid: [spec.request: Invalid value: \"eA==\": PEM block type must be CERTIFICATE REQUEST, spec.usages: Required value, spec.signerName: Invalid value: \"short\": must be a fully qualified domain and path of the form 'example.com/signer-name', spec.expirationSeconds: Invalid value: 5: may not specify a duration less than 600 seconds (10 minutes)]",
        ),
    ] {
        assert_eq!(refused(group, plural, "x", body), message);
    }
}

#[test]
fn as_017_fixed_fields() {
    let changed = |group: &str, plural: &str, mut body: Value, patch: Value| {
        set_at(&mut body, "metadata", "name", "x");
        let pipeline = Pipeline::new(group, "v1", plural);
        let made = pipeline.create(body).expect("created");
        pipeline.patch(None, patch, &made).expect_err("refused")
    };
    assert_eq!(
        changed("node.k8s.io", "runtimeclasses", json!({"handler": "h"}), json!({"handler": "i"})),
        "RuntimeClass.node.k8s.io \"x\" is invalid: handler: Invalid value: \"i\": field is immutable"
    );
    assert_eq!(
        changed(
            "discovery.k8s.io",
            "endpointslices",
            json!({"addressType": "IPv4", "endpoints": []}),
            json!({"addressType": "IPv6"})
        ),
        "EndpointSlice.discovery.k8s.io \"x\" is invalid: addressType: Invalid value: \"IPv6\": field is immutable"
    );
    assert_eq!(
        changed(
            "policy",
            "poddisruptionbudgets",
            json!({"spec": {"minAvailable": "30%", "selector": {"matchLabels": {"a": "b"}}}}),
            json!({"spec": {"maxUnavailable": 1}})
        ),
        "PodDisruptionBudget.policy \"x\" is invalid: spec: Invalid value: {\"MinAvailable\":\"30%\",\"Selector\":{\"matchLabels\":{\"a\":\"b\"}},\"MaxUnavailable\":1,\"UnhealthyPodEvictionPolicy\":null}: minAvailable and maxUnavailable cannot be both set"
    );
    assert_eq!(
        changed(
            "rbac.authorization.k8s.io",
            "rolebindings",
            json!({"roleRef": {"kind": "Role", "name": "r"}}),
            json!({"roleRef": {"name": "other"}})
        ),
        "RoleBinding.rbac.authorization.k8s.io \"x\" is invalid: roleRef: Invalid value: {\"APIGroup\":\"rbac.authorization.k8s.io\",\"Kind\":\"Role\",\"Name\":\"other\"}: cannot change roleRef"
    );
    assert_eq!(
        changed(
            "",
            "persistentvolumeclaims",
            json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
            json!({"spec": {"accessModes": ["ReadOnlyMany"]}})
        ),
        "PersistentVolumeClaim \"x\" is invalid: spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n@@ -1,6 +1,6 @@\n {\n  \"AccessModes\": [\n-  \"ReadWriteOnce\"\n+  \"ReadOnlyMany\"\n  ],\n  \"Selector\": null,\n  \"Resources\": {\n"
    );
}

#[test]
fn as_054_certificate_requests_say_who_asked() {
    let pipeline = Pipeline::new("certificates.k8s.io", "v1", "certificatesigningrequests");
    let cx = pipeline.context();
    let mut object = pipeline
        .decoded(json!({"metadata": {"name": "c"}, "spec": {"request": "eA==", "username": "faker",
        "groups": ["x"], "signerName": "golden.test/signer", "usages": ["client auth"]}}));
    pipeline.kind.strategy.prepare_create(&cx, &mut object).expect("prepared");
    assert_eq!(
        at(&object, "spec"),
        &json!({"groups": ["system:masters", "system:authenticated"], "request": "eA==", "uid": "uid-golden-admin",
            "signerName": "golden.test/signer", "usages": ["client auth"], "username": "golden-admin"})
    );
    assert_eq!(
        pipeline
            .patch(
                Some("approval"),
                json!({"status": {"conditions": [{"type": "Denied", "status": "False"}]}}),
                &object
            )
            .expect_err("refused"),
        "CertificateSigningRequest.certificates.k8s.io \"c\" is invalid: status.conditions[0].status: Unsupported value: \"False\": supported values: \"True\""
    );
    let denial = json!({"status": {"conditions": [{"type": "Denied", "status": "True", "reason": "No"}]}, "spec": {"usages": ["any"]}});
    let denied = pipeline.patch(Some("approval"), denial, &object).expect("denied");
    let now = "2026-01-01T00:00:00Z";
    assert_eq!(
        at(&denied, "status"),
        &json!({"conditions": [{"lastTransitionTime": now, "lastUpdateTime": now, "reason": "No", "status": "True", "type": "Denied"}]})
    );
    assert_eq!(at(&denied, "spec"), at(&object, "spec"));
    let failed = pipeline
        .patch(
            Some("status"),
            json!({"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "F"}]}}),
            &denied,
        )
        .expect("failed");
    let kinds: Vec<&str> = list(&failed, "status.conditions").iter().map(|c| text(c, "type")).collect();
    assert_eq!(kinds, ["Denied", "Failed"]);
    let since = "2025-01-01T00:00:00Z";
    let mut old = denied;
    old["status"]["conditions"] = json!([{"type": "Extra", "status": "True", "lastTransitionTime": since}]);
    for (status, expected) in [("True", since), ("False", now)] {
        let patch = json!({"status": {"conditions": [{"type": "Extra", "status": status, "reason": "R"}]}});
        let new = pipeline.patch(Some("status"), patch, &old).expect("written");
        assert_eq!(new["status"]["conditions"][0]["lastTransitionTime"], expected, "{status}");
    }
}

#[test]
fn as_014_field_labels() {
    let pods = builtin::catalog().resource("", "v1", "pods").cloned().expect("pods");
    let pod = json!({"spec": {"nodeName": "n"}, "status": {"phase": "Running"}});
    assert_eq!(pods.strategy.field_value(&pod, "spec.host").as_deref(), Some("n"));
    assert_eq!(pods.strategy.field_value(&pod, "spec.hostNetwork").as_deref(), Some("false"));
    assert_eq!(pods.strategy.field_value(&pod, "spec.nothing"), None);
    assert!(pods.strategy.field_labels().contains(&"status.phase"));
    let config_maps = builtin::catalog().resource("", "v1", "configmaps").cloned().expect("config maps");
    assert!(config_maps.strategy.field_labels().is_empty());
}

#[test]
fn as_015_which_kinds_put_creates_and_which_need_a_version() {
    let catalog = builtin::catalog();
    let named = |wanted: fn(&Descriptor) -> bool| -> Vec<String> {
        catalog.all().filter(|d| d.has_verb("update") && wanted(d)).map(|d| d.plural.clone()).collect()
    };
    assert_eq!(
        named(|d| d.strategy.facts().create_on_update),
        [
            "endpoints",
            "events",
            "limitranges",
            "services",
            "leases",
            "events",
            "runtimeclasses",
            "clusterrolebindings",
            "clusterroles",
            "rolebindings",
            "roles"
        ]
    );
    assert_eq!(
        named(|d| !d.strategy.facts().unconditional_update),
        [
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
            "mutatingwebhookconfigurations",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
            "validatingwebhookconfigurations",
            "customresourcedefinitions",
            "leases",
            "runtimeclasses",
            "poddisruptionbudgets",
            "csidrivers",
            "csinodes",
            "csistoragecapacities",
            "volumeattachments"
        ]
    );
}

/// AS-073: whoever creates an object that nothing enforces here is told so, and once.
#[test]
fn as_073_what_is_not_enforced_is_said() {
    let warned = |group: &str, plural: &str, object: Value, old: Option<&Value>| {
        let pipeline = Pipeline::new(group, "v1", plural);
        assert!(
            pipeline.kind.strategy.warnings(&object, old).is_empty(),
            "{plural}: a real API server is silent"
        );
        pipeline.kind.strategy.unenforced(&object, old).is_some()
    };
    let (empty, labelled) = (
        json!({}),
        |level: &str| json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}}),
    );
    for (group, plural, object) in [
        ("", "resourcequotas", empty.clone()),
        ("", "namespaces", labelled("restricted")),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations", empty.clone()),
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", empty.clone()),
        ("admissionregistration.k8s.io", "validatingadmissionpolicies", empty.clone()),
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings", empty.clone()),
        ("flowcontrol.apiserver.k8s.io", "flowschemas", empty.clone()),
        ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations", empty.clone()),
        ("apiregistration.k8s.io", "apiservices", json!({"spec": {"service": {"name": "a"}}})),
    ] {
        assert!(warned(group, plural, object.clone(), None), "{plural}");
        assert!(!warned(group, plural, object.clone(), Some(&object)), "{plural}, unchanged");
    }
    for (group, plural, object) in [
        ("", "limitranges", empty.clone()),
        ("", "namespaces", empty.clone()),
        ("", "namespaces", labelled("privileged")),
        ("apiregistration.k8s.io", "apiservices", empty.clone()),
    ] {
        assert!(!warned(group, plural, object, None), "{plural}");
    }
    assert!(warned("", "namespaces", labelled("restricted"), Some(&empty)), "with an update");
}

#[test]
fn as_073_doubtful_objects_are_warned_about() {
    let warned = |group: &str, plural: &str, object: Value| {
        let pipeline = Pipeline::new(group, "v1", plural);
        let object = pipeline.decoded(object);
        pipeline.kind.strategy.warnings(&object, None)
    };
    let pod = json!({"spec": {"nodeSelector": {"beta.kubernetes.io/os": "linux"}, "containers": [{"name": "app",
        "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}]}});
    let expected = |prefix: &str| {
        [
            format!(
                "{prefix}.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead"
            ),
            format!(
                "{prefix}.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply"
            ),
        ]
    };
    assert_eq!(warned("", "pods", pod.clone()), expected("spec"));
    assert_eq!(
        warned("apps", "deployments", json!({"spec": {"template": pod}})),
        expected("spec.template.spec")
    );
    assert_eq!(
        warned("", "services", json!({"spec": {"externalIPs": ["1.2.3.4"]}})),
        ["spec.externalIPs is deprecated and may no longer be implemented in some clusters"]
    );
    assert_eq!(
        warned(
            "",
            "persistentvolumeclaims",
            json!({"spec": {"resources": {"requests": {"storage": "1500m"}}}})
        ),
        ["spec.resources.requests[storage]: fractional byte value \"1500m\" is invalid, must be an integer"]
    );
}

#[test]
fn as_034_what_no_writer_owns() {
    let resets = |group: &str, plural: &str, sub: Option<&str>| {
        Pipeline::new(group, "v1", plural).kind.strategy.reset_fields(sub)
    };
    assert_eq!(resets("apps", "deployments", None), ["status"]);
    assert_eq!(resets("apps", "deployments", Some("status")), ["spec", "metadata.labels"]);
    assert_eq!(resets("", "namespaces", Some("finalize")), ["status"]);
    assert_eq!(resets("certificates.k8s.io", "certificatesigningrequests", None), ["spec", "status"]);
    assert!(resets("", "configmaps", None).is_empty());
}
