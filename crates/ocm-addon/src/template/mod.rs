//! Add-ons without a program of their own on the hub: an AddOnTemplate specifies the objects, identities and
//! permissions of the agent, and this is the manager (OCM-113, OCM-116, OCM-118). Pure.
//!
//! A manager is created for each processing of an add-on in a cluster, from the template that its
//! configuration names: clusters may use different templates of one add-on.

use std::sync::Arc;

use apis::{
    constants::ADDON_GROUP,
    ocm::{
        AddOnDeploymentConfig, ClusterManagementAddOn, ManagedCluster, ManagedClusterAddOn,
        addon::{AddOnTemplateSpec, ConfigReference, ImageMirror, RegistrationConfig},
        work::FeedbackValue,
    },
};
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::framework::{Addon, Health, Reading, SigningCa, Target};

pub(super) mod pods;
pub(super) mod registration;
mod render;
mod variables;

use registration::Registration;
use render::workload;
use variables::RenderTarget;

/// Plural of AddOnTemplates.
pub(super) const TEMPLATES: &str = "addontemplates";
/// Annotation of a cluster with its image registries.
const IMAGE_REGISTRIES: &str = "open-cluster-management.io/image-registries";

/// Returns whether an add-on may be deployed from templates.
pub(super) fn is_supported(owner: &ClusterManagementAddOn) -> bool {
    owner.spec.supported_configs.iter().any(|kind| kind.group == ADDON_GROUP && kind.resource == TEMPLATES)
}

/// The manager of an add-on in one cluster.
pub(super) struct Templated {
    addon: Arc<ManagedClusterAddOn>,
    /// The parsed template, or why it cannot be used.
    read: Result<Read, String>,
}

struct Read {
    manifests: Vec<Value>,
    configs: Vec<Value>,
    registrations: Vec<Registration>,
}

impl Read {
    fn of(template: &DynamicObject) -> Result<Self, String> {
        let name = template.metadata.name.as_deref().unwrap_or_default();
        let spec = template.data.get("spec").cloned().unwrap_or_default();
        let spec: AddOnTemplateSpec =
            serde_json::from_value(spec).map_err(|error| format!("template {name}: {error}"))?;
        let list = |pointer: &str| {
            spec.agent_spec.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default()
        };
        let registrations: Vec<Registration> = serde_json::from_value(spec.registration.clone().into())
            .map_err(|error| format!("registration of template {name}: {error}"))?;
        registrations
            .iter()
            .try_for_each(Registration::check)
            .map_err(|why| format!("registration of template {name}: {why}"))?;
        Ok(Self { manifests: list("/workload/manifests"), configs: list("/manifestConfigs"), registrations })
    }
}

impl Templated {
    /// Creates the manager of an add-on whose status has these references; `find` returns templates by name.
    pub(super) fn new(
        addon: Arc<ManagedClusterAddOn>,
        references: &[ConfigReference],
        find: impl Fn(&str) -> Option<Arc<DynamicObject>>,
    ) -> Self {
        let name = addon.metadata.name.as_deref().unwrap_or_default();
        let reference = references.iter().find(|r| r.group == ADDON_GROUP && r.resource == TEMPLATES);
        let read = match reference.and_then(|r| r.desired_config.as_ref()) {
            None => {
                let cluster = addon.metadata.namespace.as_deref().unwrap_or_default();
                Err(format!("addon {cluster}/{name} template not found in status"))
            }
            Some(desired) if desired.spec_hash.is_empty() => {
                Err(format!("addon {name} template desired spec hash is empty"))
            }
            Some(desired) => match find(&desired.name) {
                Some(template) => Read::of(&template),
                None => Err(format!("addontemplates.{ADDON_GROUP} {:?} not found", desired.name)),
            },
        };
        Self { addon, read }
    }

    fn read(&self) -> Option<&Read> {
        self.read.as_ref().ok()
    }
}

impl Addon for Templated {
    fn name(&self) -> &str {
        self.addon.metadata.name.as_deref().unwrap_or_default()
    }

    fn obstacle(&self) -> Option<String> {
        self.read.as_ref().err().cloned()
    }

    fn waits_for_configuration(&self) -> bool {
        true
    }

    fn rights(&self, cluster: &str) -> Vec<Value> {
        let of = |read: &Read| registration::rights(&read.registrations, cluster, &self.addon);
        self.read().map(of).unwrap_or_default()
    }

    fn identities(&self, cluster: &str, old: &[RegistrationConfig]) -> Vec<RegistrationConfig> {
        let of = |read: &Read| registration::identities(&read.registrations, cluster, self.name(), old);
        self.read().map(of).unwrap_or_default()
    }

    fn signing_ca(&self, signer: &str) -> Option<SigningCa> {
        let customs = self.read()?.registrations.iter().filter(|r| r.signer() == Some(signer));
        customs.filter_map(Registration::custom).map(|custom| custom.signing_ca.clone()).next()
    }

    fn namespace(&self, _: &ManagedClusterAddOn, config: Option<&AddOnDeploymentConfig>) -> String {
        let asked = config.map(|config| config.spec.agent_install_namespace.as_str());
        let home = self.read().map_or_else(|| render::home(&[]), |read| render::home(&read.manifests));
        asked.filter(|name| !name.is_empty()).unwrap_or(home).to_owned()
    }

    fn manifests(&self, target: &Target<'_>) -> Result<Vec<Value>, String> {
        let read = self.read.as_ref().map_err(Clone::clone)?;
        let registries = registries(target.cluster)?;
        let place = RenderTarget {
            addon: self.name(),
            cluster: target.cluster_name(),
            registries: &registries,
            namespace: target.namespace,
            config: target.config,
        };
        render::render(&read.manifests, &read.registrations, &place)
    }

    fn health(&self, _namespace: &str, objects: &[Value]) -> Option<Health> {
        let mut health = Health { configs: Vec::new(), objects: Vec::new(), check: are_available };
        for object in objects {
            let Some((plural, (namespace, name))) = workload(object) else { continue };
            health.configs.push(json!({"resourceIdentifier":
                    {"group": "apps", "resource": plural, "namespace": namespace, "name": name},
                "feedbackRules": [{"type": "WellKnownStatus"}]}));
            // An object without replicas has no ready ones.
            if plural != "deployments" || object.pointer("/spec/replicas") != Some(&json!(0)) {
                health.objects.push(["apps", plural, namespace, name].map(str::to_owned));
            }
        }
        for own in self.read().map(|read| read.configs.as_slice()).unwrap_or_default() {
            merge_config(&mut health.configs, own);
        }
        Some(health)
    }
}

/// Adds an entry of `manifestConfigs`; an entry for the same object gets its rules and strategy.
fn merge_config(all: &mut Vec<Value>, own: &Value) {
    let same = |have: &&mut Value| have.get("resourceIdentifier") == own.get("resourceIdentifier");
    let Some(have) = all.iter_mut().find(same).and_then(Value::as_object_mut) else {
        all.push(own.clone());
        return;
    };
    for (key, value) in own.as_object().into_iter().flatten() {
        match (have.get_mut(key).and_then(Value::as_array_mut), value.as_array()) {
            (Some(rules), Some(more)) if key == "feedbackRules" => {
                let new: Vec<Value> = more.iter().filter(|rule| !rules.contains(rule)).cloned().collect();
                rules.extend(new);
            }
            _ => drop(have.insert(key.clone(), value.clone())),
        }
    }
}

/// Returns the image registries of a cluster.
fn registries(cluster: &ManagedCluster) -> Result<Vec<ImageMirror>, String> {
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct Registries {
        registries: Vec<ImageMirror>,
    }
    let text = cluster.metadata.annotations.as_ref().and_then(|all| all.get(IMAGE_REGISTRIES));
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(Vec::new()) };
    let read: Registries = serde_json::from_str(text)
        .map_err(|error| format!("annotation {IMAGE_REGISTRIES} of the cluster: {error}"))?;
    Ok(read.registries)
}

/// Checks that every Deployment has a ready replica or wants none, and that every DaemonSet has all.
fn are_available(readings: &[Reading<'_>]) -> Result<(), String> {
    readings.iter().try_for_each(is_available)
}

fn is_available(reading: &Reading<'_>) -> Result<(), String> {
    let [_, resource, namespace, name] = reading.object;
    let number = |names: [&str; 2]| {
        let value = |v: &&FeedbackValue| names.contains(&v.name.as_str());
        let found = reading.values.iter().rev().find(value)?;
        serde_json::to_value(&found.value).ok()?.get("integer")?.as_i64()
    };
    let ready = number(["ReadyReplicas", "NumberReady"]).ok_or("readyReplica is not probed")?;
    let wanted =
        number(["Replicas", "DesiredNumberScheduled"]).ok_or("desiredNumberReplicas is not probed")?;
    let well = if resource == "deployments" { wanted == 0 || ready >= 1 } else { ready == wanted };
    if well {
        return Ok(());
    }
    Err(format!(
        "desiredNumberReplicas is {wanted} but readyReplica is {ready} for {resource} {namespace}/{name}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(spec: &Value) -> Arc<DynamicObject> {
        let object = json!({"apiVersion": format!("{ADDON_GROUP}/v1alpha1"), "kind": "AddOnTemplate",
            "metadata": {"name": "hello-1"}, "spec": spec});
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn reference(hash: &str) -> ConfigReference {
        serde_json::from_value(json!({"group": ADDON_GROUP, "resource": TEMPLATES, "name": "hello-1",
            "desiredConfig": {"name": "hello-1", "specHash": hash}}))
        .unwrap()
    }

    fn templated(references: &[ConfigReference], spec: Option<&Value>) -> Templated {
        let addon = Arc::new(ManagedClusterAddOn::namespaced("c1", "hello"));
        Templated::new(addon, references, |name| spec.filter(|_| name == "hello-1").map(template))
    }

    fn spec() -> Value {
        json!({"addonName": "hello", "agentSpec": {"workload": {"manifests": [
                {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "agent", "namespace": "n"},
                    "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}},
                {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "off", "namespace": "n"},
                    "spec": {"replicas": 0, "template": {"spec": {"containers": []}}}}]},
            "manifestConfigs": [
                {"resourceIdentifier": {"group": "apps", "resource": "deployments", "namespace": "n", "name": "agent"},
                    "feedbackRules": [{"type": "WellKnownStatus"}, {"type": "JSONPaths", "jsonPaths": [{"name": "x", "path": ".spec.x"}]}],
                    "updateStrategy": {"type": "ServerSideApply"}},
                {"resourceIdentifier": {"resource": "secrets", "namespace": "n", "name": "s"}, "updateStrategy": {"type": "CreateOnly"}}]},
            "registration": [{"type": "KubeClient"}, {"type": "CustomSigner", "customSigner":
                {"signerName": "example.com/s", "signingCA": {"name": "ca", "namespace": "there"}}}]})
    }

    #[test]
    fn ocm_116_what_is_not_there_is_told() {
        let why = |addon: Templated| addon.obstacle();
        assert_eq!(why(templated(&[], None)).as_deref(), Some("addon c1/hello template not found in status"));
        assert_eq!(
            why(templated(&[reference("")], Some(&spec()))).as_deref(),
            Some("addon hello template desired spec hash is empty")
        );
        assert!(why(templated(&[reference("h")], None)).unwrap().contains("\"hello-1\" not found"));
        let mut wrong = spec();
        wrong["registration"][0]["type"] = "Other".into();
        assert!(why(templated(&[reference("h")], Some(&wrong))).unwrap().contains("not known"));
        assert_eq!(why(templated(&[reference("h")], Some(&spec()))), None);
    }

    /// OCM-118: which objects are probed, and how the probes are combined with the template's own feedback
    /// rules.
    #[test]
    fn ocm_118_probes_of_a_template() {
        let addon = templated(&[reference("h")], Some(&spec()));
        let (cluster, mca) = (ManagedCluster::named("c1"), ManagedClusterAddOn::namespaced("c1", "hello"));
        let target = Target { cluster: &cluster, addon: &mca, namespace: "n", config: None };
        let objects = addon.manifests(&target).unwrap();
        let health = addon.health("n", &objects).unwrap();
        assert_eq!(health.objects, [["apps", "deployments", "n", "agent"].map(str::to_owned)]);
        assert_eq!(health.configs.len(), 3);
        assert_eq!(health.configs[0]["feedbackRules"].as_array().map(Vec::len), Some(2));
        assert_eq!(health.configs[0]["updateStrategy"]["type"], "ServerSideApply");
        assert_eq!(health.configs[2]["updateStrategy"]["type"], "CreateOnly");
        assert_eq!(addon.namespace(&mca, None), "n");
        assert_eq!(addon.signing_ca("example.com/s").unwrap().namespace, "there");
        assert_eq!(addon.signing_ca("example.com/t"), None);
    }

    #[test]
    fn ocm_118_workloads_that_are_available() {
        let values = |all: &[(&str, i64)]| -> Vec<FeedbackValue> {
            let value = |(name, n): &(&str, i64)| json!({"name": name, "fieldValue": {"type": "Integer", "integer": n}});
            serde_json::from_value(all.iter().map(value).collect()).unwrap()
        };
        let say = |resource: &str, all: &[(&str, i64)]| {
            let object = ["apps", resource, "n", "a"].map(str::to_owned);
            are_available(&[Reading { object: &object, values: &values(all) }])
        };
        assert_eq!(say("deployments", &[("ReadyReplicas", 1), ("Replicas", 3)]), Ok(()));
        assert_eq!(say("deployments", &[("ReadyReplicas", 0), ("Replicas", 0)]), Ok(()));
        assert_eq!(
            say("deployments", &[("ReadyReplicas", 0), ("Replicas", 2)]).unwrap_err(),
            "desiredNumberReplicas is 2 but readyReplica is 0 for deployments n/a"
        );
        assert_eq!(say("deployments", &[("Replicas", 1)]).unwrap_err(), "readyReplica is not probed");
        assert_eq!(say("daemonsets", &[("NumberReady", 2), ("DesiredNumberScheduled", 2)]), Ok(()));
        assert!(say("daemonsets", &[("NumberReady", 1), ("DesiredNumberScheduled", 2)]).is_err());
        assert_eq!(are_available(&[]), Ok(()), "nothing to probe");
    }

    #[test]
    fn ocm_116_the_annotation_with_registries() {
        let mut cluster = ManagedCluster::named("c1");
        assert_eq!(registries(&cluster), Ok(vec![]));
        let mut say = |text: &str| {
            cluster.metadata.annotations = Some([(IMAGE_REGISTRIES.to_owned(), text.to_owned())].into());
            registries(&cluster)
        };
        assert_eq!(say(r#"{"registries": [{"mirror": "m", "source": "s"}]}"#).unwrap()[0].mirror, "m");
        assert!(say("{").unwrap_err().contains(IMAGE_REGISTRIES));
    }
}
