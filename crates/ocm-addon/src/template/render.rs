//! Renders a template for one cluster: fills in variables, then applies the configuration of pods. Pure.

use apis::constants::OCM_ADDON_NAMESPACE;
use base64::Engine as _;
use serde_json::{Value, json};

use super::{
    pods,
    registration::Registration,
    variables::{RenderTarget, Variables},
};

/// Returns the objects of an agent in one cluster.
///
/// # Errors
///
/// What in the template or in the configuration is invalid.
pub(super) fn render(
    manifests: &[Value],
    registrations: &[Registration],
    place: &RenderTarget<'_>,
) -> Result<Vec<Value>, String> {
    let variables = Variables::of(place, !registrations.is_empty());
    let overrides = pods::PodOverrides::of(place, registrations, &variables)?;
    let mut objects = Vec::with_capacity(manifests.len());
    for (at, manifest) in manifests.iter().enumerate() {
        let mut object = variables.fill(manifest);
        if !object.is_object() {
            return Err(format!("manifest {at} of the template is not an object"));
        }
        if let Some((plural, _)) = workload(&object) {
            overrides.apply(plural, &mut object)?;
        }
        objects.push(object);
    }
    objects.extend(proxy_certificates(place)?);
    if let Some(namespace) = place.asked_namespace() {
        for object in &mut objects {
            settle_in(object, namespace);
        }
    }
    Ok(objects)
}

/// Returns plural and identity (namespace, name) of a Deployment or DaemonSet.
pub(super) fn workload(object: &Value) -> Option<(&'static str, (&str, &str))> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    if !text("/apiVersion").starts_with("apps/") {
        return None;
    }
    let plural = match text("/kind") {
        "Deployment" => "deployments",
        "DaemonSet" => "daemonsets",
        _ => return None,
    };
    Some((plural, (text("/metadata/namespace"), text("/metadata/name"))))
}

/// Returns the namespace of the agent: that of the template's first Deployment, else of its first DaemonSet.
pub(super) fn home(manifests: &[Value]) -> &str {
    let of = |wanted: &str| {
        manifests.iter().filter_map(workload).find(|(plural, _)| *plural == wanted).map(|(_, (home, _))| home)
    };
    let found = of("deployments").or_else(|| of("daemonsets"));
    // If the namespace is a variable, the configuration determines it.
    found.filter(|name| !name.is_empty() && !name.contains("{{")).unwrap_or(OCM_ADDON_NAMESPACE)
}

/// Moves an object, and the namespaces that it names, to the configured namespace. An object without
/// namespace is cluster-scoped.
fn settle_in(object: &mut Value, namespace: &str) {
    if let Some(own) = object.pointer_mut("/metadata/namespace")
        && own.as_str().is_some_and(|own| !own.is_empty())
    {
        *own = namespace.into();
    }
    match object.get("kind").and_then(Value::as_str) {
        Some("ClusterRoleBinding" | "RoleBinding") => {
            for subject in object.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
                if let Some(subject) = subject.as_object_mut() {
                    subject.insert("namespace".into(), namespace.into());
                }
            }
        }
        Some("Namespace") => {
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.insert("name".into(), namespace.into());
            }
        }
        _ => {}
    }
}

/// Returns the ConfigMap with the CA certificates of a proxy, if the configuration has some.
fn proxy_certificates(place: &RenderTarget<'_>) -> Result<Option<Value>, String> {
    let Some(bundle) = pods::proxy(place, "caBundle") else { return Ok(None) };
    let bytes = base64::engine::general_purpose::STANDARD.decode(bundle);
    let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let text = text.ok_or("proxyConfig.caBundle of the AddOnDeploymentConfig is not base64 of text")?;
    Ok(Some(json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": pods::proxy_map(place.addon), "namespace": OCM_ADDON_NAMESPACE},
        "data": {pods::PROXY_KEY: text}})))
}

#[cfg(test)]
mod tests {
    use super::*;
    use apis::ocm::{AddOnDeploymentConfig, addon::ImageMirror};
    use proptest::prelude::*;

    fn config(spec: Value) -> AddOnDeploymentConfig {
        serde_json::from_value(json!({"metadata": {"name": "x"}, "spec": spec})).unwrap()
    }

    fn place(config: Option<&AddOnDeploymentConfig>) -> RenderTarget<'_> {
        RenderTarget { addon: "hello", cluster: "c1", registries: &[], namespace: "agents", config }
    }

    fn deployment(namespace: &str) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "hello-agent", "namespace": namespace},
            "spec": {"template": {"spec": {"containers": [{"name": "agent", "image": "quay.io/ocm/hello:1",
                "args": ["--cluster={{CLUSTER_NAME}}", "--kubeconfig={{HUB_KUBECONFIG}}", "--log={{LOG}}"]}]}}}})
    }

    fn registered() -> Vec<Registration> {
        serde_json::from_value(json!([{"type": "KubeClient"},
            {"type": "CustomSigner", "customSigner": {"signerName": "example.com/my.signer"}}]))
        .unwrap()
    }

    fn rendered(manifests: &[Value], spec: Value) -> Vec<Value> {
        let config = config(spec);
        render(manifests, &registered(), &place(Some(&config))).unwrap()
    }

    /// OCM-116: variables are replaced by name; built-in ones cannot be overridden, defaults can.
    #[test]
    fn ocm_116_variables_are_filled_in() {
        let variables = json!([{"name": "LOG", "value": "4"}, {"name": "CLUSTER_NAME", "value": "mine"},
            {"name": "HUB_KUBECONFIG", "value": "/else/where"}]);
        let objects = rendered(&[deployment("a")], json!({"customizedVariables": variables}));
        let container = &objects[0]["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["args"], json!(["--cluster=c1", "--kubeconfig=/else/where", "--log=4"]));
        assert_eq!(
            container["env"],
            json!([{"name": "HUB_KUBECONFIG", "value": "/else/where"}, {"name": "CLUSTER_NAME", "value": "c1"},
                {"name": "INSTALL_NAMESPACE", "value": "agents"}])
        );
        let plain = render(&[deployment("a")], &[], &place(None)).unwrap();
        let container = &plain[0]["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(
            container["args"],
            json!(["--cluster=c1", "--kubeconfig=", "--log="]),
            "what nobody set is empty"
        );
        assert_eq!(container["env"][0]["name"], "CLUSTER_NAME");
        assert!(container.get("volumeMounts").is_none(), "no identity, no Secret");
    }

    /// A value stays text: it cannot become another part of the object.
    #[test]
    fn ocm_116_values_do_not_break_out() {
        let evil = r#"x", "namespace": "kube-system", "y": "{{CLUSTER_NAME}}"#;
        let manifest = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "n",
            "labels": {"{{ CLUSTER_NAME }}": "on"}}, "data": {"a": "{{LOG}}!", "b": "{{", "c": "}}{{"}});
        let objects = rendered(&[manifest], json!({"customizedVariables": [{"name": "LOG", "value": evil}]}));
        assert_eq!(objects[0]["data"], json!({"a": format!("{evil}!"), "b": "{{", "c": "}}{{"}));
        assert_eq!(objects[0]["metadata"]["namespace"], "n");
        assert_eq!(objects[0]["metadata"]["labels"], json!({"c1": "on"}));
    }

    proptest! {
        /// Text without variables is not changed, whatever the variables are.
        #[test]
        fn ocm_116_text_without_marks_stays(text in "[^{}]{0,40}", value in ".{0,20}") {
            let config = config(json!({"customizedVariables": [{"name": "LOG", "value": value}]}));
            let variables = Variables::of(&place(Some(&config)), true);
            prop_assert_eq!(variables.fill_text(&text), text.clone());
            prop_assert_eq!(variables.fill_text(&format!("{text}{{{{LOG}}}}{text}")), format!("{text}{value}{text}"));
        }
    }

    /// OCM-113: the agent's namespace is that of its workload, unless the configuration sets one for all
    /// objects.
    #[test]
    fn ocm_113_namespaces_of_a_template() {
        let daemons = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d", "namespace": "daemons"}});
        let other = json!({"apiVersion": "example.com/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "other"}});
        assert_eq!(home(&[daemons.clone(), deployment("work")]), "work");
        assert_eq!(home(&[other.clone(), daemons]), "daemons");
        assert_eq!(home(std::slice::from_ref(&other)), OCM_ADDON_NAMESPACE);
        assert_eq!(home(&[deployment("{{INSTALL_NAMESPACE}}")]), OCM_ADDON_NAMESPACE);
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "b"},
            "subjects": [{"kind": "ServiceAccount", "name": "s", "namespace": "work"}]});
        let own = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "work"}});
        let all = [deployment("work"), binding, own, other];
        let moved = rendered(&all, json!({"agentInstallNamespace": "asked"}));
        assert_eq!(moved[0]["metadata"]["namespace"], "asked");
        assert!(moved[1]["metadata"].get("namespace").is_none());
        assert_eq!(moved[1]["subjects"][0]["namespace"], "asked");
        assert_eq!(moved[2]["metadata"]["name"], "asked");
        assert_eq!(moved[3]["metadata"]["namespace"], "asked");
        assert_eq!(rendered(&all, json!({}))[0]["metadata"]["namespace"], "work");
    }

    /// Pods get nodes, images, proxy and resources from the configuration, and the Secrets of their
    /// identities.
    #[test]
    fn ocm_116_pods_follow_the_configuration() {
        let limits = |memory: &str| json!({"limits": {"memory": memory}});
        let spec = json!({
            "nodePlacement": {"nodeSelector": {"edge": "yes"}, "tolerations": [{"key": "k", "operator": "Exists"}]},
            "registries": [{"source": "quay.io", "mirror": "one.example"}, {"source": "quay.io/ocm", "mirror": "two.example/x/"},
                {"source": "quay.io/oc", "mirror": "never.example"}],
            "proxyConfig": {"httpProxy": "http://p:1", "noProxy": ".svc", "caBundle": "Q0E="},
            "resourceRequirements": [{"containerID": "*:*:*", "resources": limits("1Gi")},
                {"containerID": "deployments:hello-agent:agent", "resources": limits("2Gi")},
                {"containerID": "daemonsets:*:*", "resources": limits("3Gi")}]});
        let objects = rendered(&[deployment("work")], spec);
        let pod = &objects[0]["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        assert_eq!(
            (&pod["nodeSelector"], &pod["tolerations"][0]["key"]),
            (&json!({"edge": "yes"}), &json!("k"))
        );
        assert_eq!(container["image"], "two.example/x/hello:1");
        assert_eq!(container["resources"], limits("2Gi"));
        let environment = container["env"].as_array().unwrap();
        let names: Vec<&str> = environment.iter().skip(3).map(|e| e["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "CA_BUNDLE_FILE_PATH"]);
        let mounts: Vec<&str> = container["volumeMounts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|m| m["mountPath"].as_str().unwrap())
            .collect();
        assert_eq!(
            mounts,
            ["/managed/hub-kubeconfig", "/managed/example.com-my.signer", "/managed/proxy-ca"]
        );
        assert_eq!(
            pod["volumes"],
            json!([{"name": "hub-kubeconfig", "secret": {"secretName": "hello-hub-kubeconfig"}},
                {"name": "cert-example-com-my-signer", "secret": {"secretName": "hello-example.com-my.signer-client-cert"}},
                {"name": "proxy-ca-bundle", "configMap": {"name": "hello-proxy-ca"}}])
        );
        let map = objects.last().unwrap();
        assert_eq!(
            (&map["metadata"]["name"], &map["data"]),
            (&json!("hello-proxy-ca"), &json!({"ca-bundle.crt": "CA"}))
        );
    }

    /// The annotation of a cluster sets the image registries, unless the configuration does.
    #[test]
    fn ocm_116_registries_of_a_cluster() {
        let mirror =
            |source: &str, mirror: &str| ImageMirror { source: source.into(), mirror: mirror.into() };
        let of_cluster = [mirror("", "mirror.example")];
        let own = config(json!({"registries": [{"source": "quay.io/ocm", "mirror": "own.example"}]}));
        let image = |config: Option<&AddOnDeploymentConfig>| {
            let place = RenderTarget { registries: &of_cluster, ..place(config) };
            let all = render(&[deployment("a")], &[], &place).unwrap();
            all[0].pointer("/spec/template/spec/containers/0/image").cloned().unwrap()
        };
        assert_eq!(
            (image(None), image(Some(&own))),
            (json!("mirror.example/hello:1"), json!("own.example/hello:1"))
        );
        let empty = config(json!({}));
        assert_eq!(image(Some(&empty)), "mirror.example/hello:1");
    }

    #[test]
    fn ocm_116_what_cannot_be_rendered_is_told() {
        let refused = |manifest: Value, spec: Value| {
            let config = config(spec);
            render(&[manifest], &[], &place(Some(&config))).unwrap_err()
        };
        assert!(refused(json!("text"), json!({})).contains("manifest 0"));
        let broken = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
            "spec": {"template": {"spec": {"containers": "none"}}}});
        assert!(refused(broken, json!({})).contains("containers"));
        let wrong = json!({"resourceRequirements": [{"containerID": "a:b", "resources": {}}]});
        assert_eq!(refused(deployment("a"), wrong), "invalid ContainerID: a:b");
        assert!(
            refused(deployment("a"), json!({"proxyConfig": {"httpProxy": "p", "caBundle": "?"}}))
                .contains("caBundle")
        );
    }
}
