//! The cluster that a template is rendered for, and the variables that it fills in. Pure.

use std::collections::BTreeMap;

use apis::ocm::{AddOnDeploymentConfig, addon::ImageMirror};
use serde_json::{Value, json};

/// Path of the agents' kubeconfig for the hub.
const HUB_KUBECONFIG: &str = "/managed/hub-kubeconfig/kubeconfig";

/// The add-on and the cluster that a template is rendered for.
pub(super) struct RenderTarget<'a> {
    /// Name of the add-on.
    pub(super) addon: &'a str,
    /// Name of the cluster.
    pub(super) cluster: &'a str,
    /// Image registries from the cluster's annotation.
    pub(super) registries: &'a [ImageMirror],
    /// Namespace of the agent.
    pub(super) namespace: &'a str,
    /// The AddOnDeploymentConfig in use.
    pub(super) config: Option<&'a AddOnDeploymentConfig>,
}

impl RenderTarget<'_> {
    /// Returns the namespace that the configuration sets for all objects.
    pub(super) fn asked_namespace(&self) -> Option<&str> {
        let asked = self.config.map(|config| config.spec.agent_install_namespace.as_str());
        asked.filter(|namespace| !namespace.is_empty())
    }

    pub(super) fn registries(&self) -> &[ImageMirror] {
        match self.config.map(|config| config.spec.registries.as_slice()) {
            Some(own) if !own.is_empty() => own,
            _ => self.registries,
        }
    }
}

/// The variables by name, and those that containers get as environment variables, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Variables {
    all: BTreeMap<String, String>,
    environment: Vec<&'static str>,
}

impl Variables {
    /// Collects the variables. The configuration may override `HUB_KUBECONFIG`, but not `CLUSTER_NAME` and
    /// `INSTALL_NAMESPACE`.
    pub(super) fn of(place: &RenderTarget<'_>, registered: bool) -> Self {
        let mut all = BTreeMap::new();
        let mut environment = Vec::new();
        if registered {
            all.insert("HUB_KUBECONFIG".to_owned(), HUB_KUBECONFIG.to_owned());
            environment.push("HUB_KUBECONFIG");
        }
        for variable in place.config.iter().flat_map(|config| &config.spec.customized_variables) {
            all.insert(variable.name.clone(), variable.value.clone());
        }
        all.insert("CLUSTER_NAME".to_owned(), place.cluster.to_owned());
        all.insert("INSTALL_NAMESPACE".to_owned(), place.namespace.to_owned());
        environment.extend(["CLUSTER_NAME", "INSTALL_NAMESPACE"]);
        Self { all, environment }
    }

    /// Returns the environment variables of containers.
    pub(super) fn environment(&self) -> Vec<Value> {
        let value = |name: &&'static str| json!({"name": name, "value": self.all.get(*name)});
        self.environment.iter().map(value).collect()
    }

    /// Replaces `{{NAME}}` in all texts of a manifest, including keys. An unknown variable is replaced by
    /// nothing.
    pub(super) fn fill(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.fill_text(text).into(),
            Value::Array(list) => list.iter().map(|item| self.fill(item)).collect(),
            Value::Object(map) => {
                map.iter().map(|(key, item)| (self.fill_text(key), self.fill(item))).collect()
            }
            other => other.clone(),
        }
    }

    pub(super) fn fill_text(&self, text: &str) -> String {
        let (mut filled, mut rest) = (String::with_capacity(text.len()), text);
        while let Some((before, after)) = rest.split_once("{{") {
            let Some((name, after)) = after.split_once("}}") else { break };
            filled.push_str(before);
            filled.push_str(self.all.get(name.trim()).map(String::as_str).unwrap_or_default());
            rest = after;
        }
        filled.push_str(rest);
        filled
    }
}
