//! The hub's side of KubeStellar's status add-on (5.1, 5.2): the objects of its agent, its permissions, and
//! its health.

use std::collections::BTreeMap;

use apis::{
    constants::{
        ADDON_GROUP, ADDON_LIFECYCLE_ANNOTATION, ADDON_NAME_LABEL, CLUSTER_GROUP, OCM_NAMESPACE, STATUS_ADDON,
    },
    ocm::AddOnDeploymentConfig,
};
use serde_json::{Value, json};

use super::{
    framework::{Addon, Health, Reading, Target},
    placement,
    template::pods::mirrored,
};
use ocm_shared::rbac;

/// Name of the Deployment and of its ClusterRoleBinding.
const AGENT: &str = "status-agent";
/// Flags of the agent that the controller passes on, with the names that the agent uses.
pub const AGENT_FLAGS: [&str; 10] = [
    "metrics-bind-addr",
    "pprof-bind-addr",
    "hub-qps",
    "hub-burst",
    "local-qps",
    "local-burst",
    "v",
    "vmodule",
    "logging-format",
    "log-flush-frequency",
];

/// The add-on.
#[derive(Clone, Debug, Default)]
pub struct StatusAddon {
    /// Image of the agent. Without it, the add-on is installed only where a klusterlet runs the agent itself.
    pub image: Option<String>,
    /// Flags for the agents, by name (`--agent-<name>` of the controller).
    pub flags: BTreeMap<String, String>,
    /// Whether the agent may only read in its cluster; otherwise it has all permissions there.
    pub read_only: bool,
}

impl Addon for StatusAddon {
    fn name(&self) -> &str {
        STATUS_ADDON
    }

    fn rights(&self, cluster: &str) -> Vec<Value> {
        let mut all = rbac::status_addon_on_hub(cluster);
        for object in &mut all {
            object["metadata"]["labels"][ADDON_NAME_LABEL] = STATUS_ADDON.into();
        }
        all
    }

    fn manifests(&self, target: &Target<'_>) -> Result<Vec<Value>, String> {
        let Some(image) = &self.image else {
            return Err("no image of the status agent is known (STATUS_ADDDON_IMAGE_NAME)".into());
        };
        Ok(self.objects(image, target))
    }

    fn health(&self, namespace: &str, _objects: &[Value]) -> Option<Health> {
        Some(Health {
            configs: vec![json!({"resourceIdentifier":
                    {"group": "apps", "resource": "deployments", "namespace": namespace, "name": AGENT},
                "feedbackRules": [{"type": "WellKnownStatus"}]})],
            objects: vec![["apps", "deployments", namespace, AGENT].map(str::to_owned)],
            check: is_ready,
        })
    }
}

fn is_ready(readings: &[Reading<'_>]) -> Result<(), String> {
    let ready = readings.iter().flat_map(|r| r.values).find(|value| value.name == "ReadyReplicas");
    let count = ready.and_then(|v| serde_json::to_value(&v.value).ok()).and_then(|v| v["integer"].as_i64());
    match count {
        Some(count) if count >= 1 => Ok(()),
        Some(count) => Err(format!("readyReplica is {count} for deployment {AGENT}")),
        None => Err(format!("readyReplica is not reported for deployment {AGENT}")),
    }
}

impl StatusAddon {
    fn objects(&self, image: &str, target: &Target<'_>) -> Vec<Value> {
        let namespace = target.namespace;
        let account = rbac::STATUS_AGENT_ACCOUNT;
        let role = if self.read_only { rbac::STATUS_AGENT_ROLE } else { "cluster-admin" };
        let subjects = json!([{"kind": "ServiceAccount", "name": account, "namespace": namespace}]);
        let mut objects = vec![json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": account, "namespace": namespace}})];
        if self.read_only {
            let reading = json!([rbac::rule("*", &["*"], &["get", "list", "watch"])]);
            objects.push(bare(rbac::role("", rbac::STATUS_AGENT_ROLE, json!({}), reading)));
        }
        objects.push(bare(rbac::binding("", AGENT, json!({}), ("ClusterRole", role), subjects)));
        objects.push(self.deployment(image, target));
        objects
    }

    fn deployment(&self, image: &str, target: &Target<'_>) -> Value {
        let namespace = target.namespace;
        let spec = target.config.map(|config| &config.spec);
        let mut args = vec![
            "agent".to_owned(),
            "--hub-kubeconfig=/var/run/hub/kubeconfig".to_owned(),
            format!("--cluster-name={}", target.cluster_name()),
            format!("--addon-namespace={namespace}"),
        ];
        // A map by name, so the flags are sorted.
        args.extend(self.flags.iter().map(|(name, value)| format!("--{name}={value}")));
        let registries = spec.map(|spec| spec.registries.as_slice()).unwrap_or_default();
        let mut container = json!({"name": AGENT, "image": mirrored(image, registries), "imagePullPolicy": "IfNotPresent",
            "args": args,
            "ports": [{"containerPort": 8080, "name": "metrics"}, {"containerPort": 8082, "name": "debug-pprof"}],
            "volumeMounts": [{"name": "hub-config", "mountPath": "/var/run/hub"}]});
        let env = proxy(target.config);
        if !env.is_empty() {
            container["env"] = env.into();
        }
        let mut pod = json!({"serviceAccountName": rbac::STATUS_AGENT_ACCOUNT, "containers": [container],
            "volumes": [{"name": "hub-config", "secret": {"secretName": format!("{STATUS_ADDON}-hub-kubeconfig")}}]});
        for key in ["nodeSelector", "tolerations"] {
            let asked = spec.and_then(|s| s.node_placement.as_ref()).and_then(|p| p.get(key));
            if let Some(asked) = asked.filter(|value| !value.is_null()) {
                pod[key] = asked.clone();
            }
        }
        let profiles: BTreeMap<String, &str> = ["cpu", "memory", "goroutine"]
            .into_iter()
            .flat_map(|kind| {
                let key = |what: &str| format!("profiles.grafana.com/{kind}.{what}");
                [(key("port"), "8082"), (key("scrape"), "true")]
            })
            .collect();
        let labels = json!({"app": AGENT});
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": AGENT, "namespace": namespace, "labels": labels},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels, "annotations": profiles}, "spec": pod}}})
    }
}

/// Returns the object without empty labels.
fn bare(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|_, value| !value.as_object().is_some_and(serde_json::Map::is_empty));
    }
    object
}

fn proxy(config: Option<&AddOnDeploymentConfig>) -> Vec<Value> {
    let Some(proxy) = config.and_then(|config| config.spec.proxy_config.as_ref()) else { return Vec::new() };
    [("HTTP_PROXY", "httpProxy"), ("HTTPS_PROXY", "httpsProxy"), ("NO_PROXY", "noProxy")]
        .into_iter()
        .filter_map(|(name, key)| {
            let value = proxy.get(key)?.as_str().filter(|value| !value.is_empty())?;
            Some(json!({"name": name, "value": value}))
        })
        .collect()
}

/// The objects that define the add-on and install it in every cluster: namespace, plural, object.
pub fn definitions() -> Vec<(&'static str, &'static str, Value)> {
    let cma = json!({"apiVersion": format!("{ADDON_GROUP}/v1alpha1"), "kind": "ClusterManagementAddOn",
        "metadata": {"name": STATUS_ADDON, "annotations": {ADDON_LIFECYCLE_ANNOTATION: "addon-manager"}},
        "spec": {
            "addOnMeta": {"displayName": STATUS_ADDON,
                "description": "status addon provides full status on applied resources"},
            "supportedConfigs": [{"group": ADDON_GROUP, "resource": "addondeploymentconfigs"}],
            "installStrategy": {"type": "Placements", "placements": [{"name": "global", "namespace": OCM_NAMESPACE}]}}});
    let global = json!({"apiVersion": format!("{CLUSTER_GROUP}/v1beta1"), "kind": "Placement",
        "metadata": {"name": "global", "namespace": OCM_NAMESPACE}, "spec": placement::global_spec()});
    let bound = json!({"apiVersion": format!("{CLUSTER_GROUP}/v1beta2"), "kind": "ManagedClusterSetBinding",
        "metadata": {"name": "global", "namespace": OCM_NAMESPACE}, "spec": {"clusterSet": "global"}});
    vec![
        (OCM_NAMESPACE, "managedclustersetbindings", bound),
        (OCM_NAMESPACE, "placements", global),
        ("", "clustermanagementaddons", cma),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use apis::ocm::{ManagedCluster, ManagedClusterAddOn};

    fn made(addon: &StatusAddon, config: Option<Value>) -> Vec<Value> {
        let (cluster, mca) =
            (ManagedCluster::named("c1"), ManagedClusterAddOn::namespaced("c1", STATUS_ADDON));
        let config: Option<AddOnDeploymentConfig> = config
            .map(|spec| serde_json::from_value(json!({"metadata": {"name": "x"}, "spec": spec})).unwrap());
        let target = Target { cluster: &cluster, addon: &mca, namespace: "agents", config: config.as_ref() };
        addon.manifests(&target).unwrap()
    }

    fn addon() -> StatusAddon {
        StatusAddon { image: Some("registry.example/ks/agent:1".into()), ..StatusAddon::default() }
    }

    #[test]
    fn ocm_132_what_is_installed_in_a_cluster() {
        let objects = made(&addon(), None);
        let kinds: Vec<&str> = objects.iter().map(|o| o["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["ServiceAccount", "ClusterRoleBinding", "Deployment"]);
        assert_eq!(objects[1]["roleRef"]["name"], "cluster-admin");
        let pod = &objects[2]["spec"]["template"];
        let container = &pod["spec"]["containers"][0];
        assert_eq!(
            container["args"],
            json!([
                "agent",
                "--hub-kubeconfig=/var/run/hub/kubeconfig",
                "--cluster-name=c1",
                "--addon-namespace=agents"
            ])
        );
        assert_eq!(pod["spec"]["volumes"][0]["secret"]["secretName"], "addon-status-hub-kubeconfig");
        assert_eq!(pod["metadata"]["annotations"]["profiles.grafana.com/memory.port"], "8082");
        let reduced = made(&StatusAddon { read_only: true, ..addon() }, None);
        assert_eq!(reduced[1]["rules"][0]["verbs"], json!(["get", "list", "watch"]));
        assert_eq!(reduced[2]["roleRef"]["name"], "status-agent");
        let (cluster, mca) = (ManagedCluster::named("c1"), ManagedClusterAddOn::default());
        let target = Target { cluster: &cluster, addon: &mca, namespace: "agents", config: None };
        assert!(StatusAddon::default().manifests(&target).is_err(), "told, not made up");
    }

    #[test]
    fn ocm_132_deployment_follows_its_configuration() {
        let objects = made(
            &addon(),
            Some(json!({
            "nodePlacement": {"nodeSelector": {"edge": "yes"}, "tolerations": [{"key": "k", "operator": "Exists"}]},
            "proxyConfig": {"httpsProxy": "http://p:1", "noProxy": ".svc"},
            "registries": [{"mirror": "mirror.example", "source": "registry.example"}, {"mirror": "other.example/x", "source": "registry.example/ks"}]})),
        );
        let pod = &objects[2]["spec"]["template"]["spec"];
        assert_eq!(pod["nodeSelector"], json!({"edge": "yes"}));
        assert_eq!(pod["tolerations"][0]["key"], "k");
        assert_eq!(pod["containers"][0]["image"], "other.example/x/agent:1");
        assert_eq!(
            pod["containers"][0]["env"],
            json!([{"name": "HTTPS_PROXY", "value": "http://p:1"}, {"name": "NO_PROXY", "value": ".svc"}])
        );
    }

    /// OCM-A-101: the flags reach the Deployment, sorted by name.
    #[test]
    fn ocm_133_flags_reach_the_agents() {
        let flags = [("v", "4"), ("hub-qps", "7"), ("local-burst", "3")];
        let flags = flags.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let objects = made(&StatusAddon { flags, ..addon() }, None);
        let args = &objects[2]["spec"]["template"]["spec"]["containers"][0]["args"];
        assert_eq!(
            args.as_array().unwrap()[4..],
            [json!("--hub-qps=7"), json!("--local-burst=3"), json!("--v=4")]
        );
    }

    #[test]
    fn ocm_130_the_addon_is_known_by_these_names() {
        let all = definitions();
        let cma = &all[2].2;
        assert_eq!(
            cma["metadata"]["annotations"]["addon.open-cluster-management.io/lifecycle"],
            "addon-manager"
        );
        assert_eq!(
            cma["spec"]["installStrategy"]["placements"],
            json!([{"name": "global", "namespace": "open-cluster-management"}])
        );
        assert_eq!(cma["spec"]["addOnMeta"]["displayName"], "addon-status");
        assert_eq!(all[1].2["spec"]["clusterSets"], json!(["global"]));
        let rights = addon().rights("c1");
        assert_eq!(rights[0]["metadata"]["name"], "open-cluster-management:addon-status:agent");
        assert_eq!(
            rights[1]["subjects"][0]["name"],
            "system:open-cluster-management:cluster:c1:addon:addon-status"
        );
    }
}
