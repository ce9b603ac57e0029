//! Services, config maps, secrets, namespaces.

use serde_json::{Value, json};

use super::*;

fn service(spec: Value) -> Value {
    json!({"metadata": {"name": "s"}, "spec": spec})
}

#[test]
fn as_016_service_defaults() {
    let pipeline = Pipeline::new("", "v1", "services");
    let made =
        pipeline.create(service(json!({"selector": {"a": "b"}, "ports": [{"port": 80}]}))).expect("created");
    let ip = text(&made, "spec.clusterIP").to_owned();
    assert!(ip.starts_with("10."), "{ip}");
    assert_eq!(
        at(&made, "spec"),
        &json!({"clusterIP": ip, "clusterIPs": [ip], "internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
            "selector": {"a": "b"}, "sessionAffinity": "None", "type": "ClusterIP"})
    );
    assert_eq!(at(&made, "status"), &json!({"loadBalancer": {}}));
    let patched = pipeline
        .patch(None, json!({"spec": {"ports": [{"port": 80, "targetPort": "http"}]}}), &made)
        .expect("patched");
    assert_eq!(list(&patched, "spec.ports"), [json!({"port": 80, "protocol": "TCP", "targetPort": "http"})]);
    assert_eq!(
        pipeline.patch(None, json!({"spec": {"clusterIP": "10.0.0.77"}}), &made).expect_err("refused"),
        "Service \"s\" is invalid: spec.clusterIPs[0]: Invalid value: [\"10.0.0.77\"]: may not change once set"
    );
}

/// AS-016: the network of the addresses is the administrator's choice.
#[test]
fn as_016_services_get_addresses_of_the_configured_network() {
    let mut pipeline = Pipeline::new("", "v1", "services");
    pipeline.settings.service_network = "10.7.0.0/24".parse().unwrap();
    let made = pipeline.create(service(json!({"ports": [{"port": 80}]}))).expect("created");
    assert!(text(&made, "spec.clusterIP").starts_with("10.7.0."), "{made}");
    assert_eq!(
        pipeline
            .create(service(json!({"clusterIP": "10.96.0.9", "ports": [{"port": 80}]})))
            .expect_err("refused"),
        "Service \"s\" is invalid: spec.clusterIPs: Invalid value: [\"10.96.0.9\"]: failed to allocate IP 10.96.0.9: the \
         provided IP (10.96.0.9) is not in the valid range. The range of valid IPs is 10.7.0.0/24"
    );
}

#[test]
fn as_016_headless_and_external_services() {
    let pipeline = Pipeline::new("", "v1", "services");
    let spec = json!({"clusterIP": "None", "ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2, "protocol": "UDP"}]});
    assert_eq!(
        at(&pipeline.create(service(spec)).expect("created"), "spec"),
        &json!({"clusterIP": "None", "clusterIPs": ["None"], "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack",
            "ports": [{"name": "a", "port": 1, "protocol": "TCP", "targetPort": 1}, {"name": "b", "port": 2, "protocol": "UDP", "targetPort": 2}],
            "sessionAffinity": "None", "type": "ClusterIP"})
    );
    assert_eq!(
        at(
            &pipeline
                .create(service(json!({"type": "ExternalName", "externalName": "golden.test"})))
                .expect("created"),
            "spec"
        ),
        &json!({"externalName": "golden.test", "sessionAffinity": "None", "type": "ExternalName"})
    );
    assert_eq!(
        pipeline.create(service(json!({"type": "ExternalName"}))).expect_err("refused"),
        "Service \"s\" is invalid: spec.externalName: Required value"
    );
    assert_eq!(
        pipeline.create(service(json!({}))).expect_err("refused"),
        "Service \"s\" is invalid: spec.ports: Required value"
    );
}

#[test]
fn as_017_node_ports_are_given_out() {
    let mut pipeline = Pipeline::new("", "v1", "services");
    let made =
        pipeline.create(service(json!({"type": "NodePort", "ports": [{"port": 80}]}))).expect("created");
    let port = list(&made, "spec.ports")[0]["nodePort"].as_i64().expect("a node port");
    assert!((30000..=32767).contains(&port));
    assert_eq!(text(&made, "spec.externalTrafficPolicy"), "Cluster");
    assert_eq!(
        pipeline
            .create(service(json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]})))
            .expect_err("refused"),
        "Service \"s\" is invalid: spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767"
    );
    let patched = pipeline.patch(None, json!({"spec": {"type": "ClusterIP"}}), &made).expect("patched");
    assert_eq!(list(&patched, "spec.ports"), [json!({"port": 80, "protocol": "TCP", "targetPort": 80})]);
    assert!(at(&patched, "spec.externalTrafficPolicy").is_null());
    assert_eq!(text(&patched, "spec.clusterIP"), text(&made, "spec.clusterIP"));
    let mut other = made.clone();
    set_at(&mut other, "metadata", "name", "other");
    set_at(&mut other, "metadata", "namespace", "elsewhere");
    pipeline.objects = Objects::default().with("", "services", "elsewhere", other);
    assert_eq!(
        pipeline
            .create(service(json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": port}]})))
            .expect_err("refused"),
        format!(
            "Service \"s\" is invalid: spec.ports[0].nodePort: Invalid value: {port}: provided port is already allocated"
        )
    );
    let taken = text(&made, "spec.clusterIP");
    assert_eq!(
        pipeline.create(service(json!({"clusterIP": taken, "ports": [{"port": 1}]}))).expect_err("refused"),
        format!(
            "Service \"s\" is invalid: spec.clusterIPs: Invalid value: [\"{taken}\"]: failed to allocate IP {taken}: provided IP is already allocated"
        )
    );
}

#[test]
fn as_016_load_balancers_and_affinity() {
    let pipeline = Pipeline::new("", "v1", "services");
    let made = pipeline
        .create(service(json!({"type": "LoadBalancer", "ports": [{"port": 443, "name": "https"}]})))
        .expect("created");
    assert_eq!(at(&made, "spec.allocateLoadBalancerNodePorts"), &json!(true));
    let made = pipeline
        .create(service(json!({"sessionAffinity": "ClientIP", "ports": [{"port": 1}]})))
        .expect("created");
    assert_eq!(at(&made, "spec.sessionAffinityConfig"), &json!({"clientIP": {"timeoutSeconds": 10800}}));
    let patched = pipeline.patch(None, json!({"spec": {"sessionAffinity": "None"}}), &made).expect("patched");
    assert!(at(&patched, "spec.sessionAffinityConfig").is_null());
}

#[test]
fn as_017_config_maps() {
    let pipeline = Pipeline::new("", "v1", "configmaps");
    let key = |key: &str| json!({"metadata": {"name": "k"}, "data": {key: "x"}});
    const RULE: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
    for bad in ["bad key", "a/b", ""] {
        assert_eq!(
            pipeline.create(key(bad)).expect_err("refused"),
            format!("ConfigMap \"k\" is invalid: data[{bad}]: Invalid value: \"{bad}\": {RULE}")
        );
    }
    assert_eq!(
        pipeline.create(key("..")).expect_err("refused"),
        "ConfigMap \"k\" is invalid: data[..]: Invalid value: \"..\": must not be '..'"
    );
    let big = json!({"metadata": {"name": "k"}, "data": {"x": "x".repeat(1024 * 1024 + 1)}});
    assert_eq!(
        pipeline.create(big).expect_err("refused"),
        "ConfigMap \"k\" is invalid: []: Too long: may not be more than 1048576 bytes"
    );
    let fixed = pipeline
        .create(json!({"metadata": {"name": "i"}, "data": {"a": "1"}, "immutable": true}))
        .expect("created");
    assert_eq!(
        pipeline.patch(None, json!({"data": {"a": "2"}}), &fixed).expect_err("refused"),
        "ConfigMap \"i\" is invalid: data: Forbidden: field is immutable when `immutable` is set"
    );
    assert_eq!(
        pipeline.patch(None, json!({"immutable": false}), &fixed).expect_err("refused"),
        "ConfigMap \"i\" is invalid: immutable: Forbidden: field is immutable when `immutable` is set"
    );
    assert!(pipeline.patch(None, json!({"metadata": {"labels": {"ok": "yes"}}}), &fixed).is_ok());
}

#[test]
fn as_017_secrets() {
    let pipeline = Pipeline::new("", "v1", "secrets");
    let made = pipeline
        .create(json!({"metadata": {"name": "s"}, "stringData": {"a": "text"}, "data": {"b": "eA=="}}))
        .expect("created");
    assert_eq!(at(&made, "data"), &json!({"a": "dGV4dA==", "b": "eA=="}));
    assert_eq!(text(&made, "type"), "Opaque");
    assert!(made.get("stringData").is_none());
    assert_eq!(
        pipeline.patch(None, json!({"type": "foo"}), &made).expect_err("refused"),
        "Secret \"s\" is invalid: type: Invalid value: \"foo\": field is immutable"
    );
    assert_eq!(
        pipeline
            .create(json!({"metadata": {"name": "s2"}, "type": "kubernetes.io/tls"}))
            .expect_err("refused"),
        "Secret \"s2\" is invalid: [data[tls.crt]: Required value, data[tls.key]: Required value]"
    );
    assert_eq!(
        pipeline
            .create(json!({"metadata": {"name": "s3"}, "type": "kubernetes.io/service-account-token"}))
            .expect_err("refused"),
        "Secret \"s3\" is invalid: metadata.annotations[kubernetes.io/service-account.name]: Required value"
    );
}

#[test]
fn as_050_namespaces() {
    let pipeline = Pipeline::new("", "v1", "namespaces");
    let made = pipeline.create(json!({"metadata": {"name": "n"}})).expect("created");
    assert_eq!(
        made,
        json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"labels": {"kubernetes.io/metadata.name": "n"}, "name": "n"},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}})
    );
    let patched = pipeline.patch(None, json!({"spec": {"finalizers": []}}), &made).expect("patched");
    assert_eq!(at(&patched, "spec.finalizers"), &json!(["kubernetes"]));
    let finalized =
        pipeline.patch(Some("finalize"), json!({"spec": {"finalizers": null}}), &made).expect("finalized");
    assert_eq!(at(&finalized, "spec"), &json!({}));
    assert_eq!(
        pipeline
            .patch(Some("status"), json!({"status": {"phase": "Terminating"}}), &made)
            .expect_err("refused"),
        "Namespace \"n\" is invalid: status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"
    );
    assert_eq!(
        pipeline
            .patch(
                None,
                json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "nonsense"}}}),
                &made
            )
            .expect_err("refused"),
        "Namespace \"n\" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"nonsense\": must be one of privileged, baseline, restricted"
    );
}
