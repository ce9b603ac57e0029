//! What the pods of a template get in addition to their spec: the Secrets of their identities, and the
//! configured node placement, images, proxies and resources. Pure.

use apis::ocm::addon::ImageMirror;
use serde_json::{Map, Value, json};

use super::{
    registration::{Registration, kubeconfig_secret, signed_secret},
    variables::{RenderTarget, Variables},
};

/// Key of a proxy's CA certificates in their ConfigMap.
pub(super) const PROXY_KEY: &str = "ca-bundle.crt";
const PROXY_MOUNT: &str = "/managed/proxy-ca";

/// Name of the ConfigMap with a proxy's CA certificates.
pub(super) fn proxy_map(addon: &str) -> String {
    format!("{addon}-proxy-ca")
}

/// Returns a part of the proxy's configuration, unless empty.
pub(super) fn proxy<'a>(place: &RenderTarget<'a>, key: &str) -> Option<&'a str> {
    let found = place.config?.spec.proxy_config.as_ref()?.get(key)?.as_str()?;
    (!found.is_empty()).then_some(found)
}

/// Resource requirements, and the containers that get them.
struct ContainerResources {
    /// Plural, name of the object and of the container; `*` is any.
    of: [String; 3],
    resources: Value,
}

/// The additions for one cluster, which are applied to each pod template.
pub(super) struct PodOverrides<'a> {
    environment: Vec<Value>,
    mounts: Vec<Value>,
    volumes: Vec<Value>,
    selector: Option<&'a Value>,
    tolerations: Option<&'a Value>,
    registries: &'a [ImageMirror],
    shares: Vec<ContainerResources>,
}

impl<'a> PodOverrides<'a> {
    pub(super) fn of(
        place: &'a RenderTarget<'_>,
        registrations: &[Registration],
        variables: &Variables,
    ) -> Result<Self, String> {
        let nodes = place.config.and_then(|config| config.spec.node_placement.as_ref());
        let asked = |key: &str| nodes.and_then(|nodes| nodes.get(key)).filter(|value| !value.is_null());
        let mut overrides = Self {
            environment: variables.environment(),
            mounts: Vec::new(),
            volumes: Vec::new(),
            selector: asked("nodeSelector"),
            tolerations: asked("tolerations"),
            registries: place.registries(),
            shares: shares(place)?,
        };
        for registration in registrations {
            overrides.add_secret(place.addon, registration);
        }
        overrides.add_proxy(place);
        Ok(overrides)
    }

    fn add_secret(&mut self, addon: &str, registration: &Registration) {
        let (name, mount, secret) = if registration.is_kube_client() {
            ("hub-kubeconfig".to_owned(), "/managed/hub-kubeconfig".to_owned(), kubeconfig_secret(addon))
        } else if let Some(signer) = registration.signer() {
            let flat = signer.replace('/', "-");
            (
                format!("cert-{}", flat.replace('.', "-")),
                format!("/managed/{flat}"),
                signed_secret(addon, signer),
            )
        } else {
            return;
        };
        self.mounts.push(json!({"name": name, "mountPath": mount}));
        self.volumes.push(json!({"name": name, "secret": {"secretName": secret}}));
    }

    fn add_proxy(&mut self, place: &RenderTarget<'_>) {
        let mut any = false;
        for (key, name) in
            [("httpProxy", "HTTP_PROXY"), ("httpsProxy", "HTTPS_PROXY"), ("noProxy", "NO_PROXY")]
        {
            if let Some(value) = proxy(place, key) {
                any = true;
                for name in [name.to_owned(), name.to_lowercase()] {
                    self.environment.push(json!({"name": name, "value": value}));
                }
            }
        }
        if any && proxy(place, "caBundle").is_some() {
            let path = format!("{PROXY_MOUNT}/{PROXY_KEY}");
            self.environment.push(json!({"name": "CA_BUNDLE_FILE_PATH", "value": path}));
            self.mounts.push(json!({"name": "proxy-ca-bundle", "mountPath": PROXY_MOUNT}));
            self.volumes
                .push(json!({"name": "proxy-ca-bundle", "configMap": {"name": proxy_map(place.addon)}}));
        }
    }

    /// Changes the pod template of a Deployment or DaemonSet.
    pub(super) fn apply(&self, plural: &str, object: &mut Value) -> Result<(), String> {
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let unreadable = |what: &str| format!("{what} of {plural} {name} in the template cannot be read");
        let pod = object.pointer_mut("/spec/template/spec").and_then(Value::as_object_mut);
        let pod = pod.ok_or_else(|| unreadable("spec.template.spec"))?;
        for (key, asked) in [("nodeSelector", self.selector), ("tolerations", self.tolerations)] {
            if let Some(asked) = asked {
                pod.insert(key.into(), asked.clone());
            }
        }
        if !extend(pod, "volumes", &self.volumes) {
            return Err(unreadable("volumes"));
        }
        let containers = pod.get_mut("containers").and_then(Value::as_array_mut);
        for container in containers.ok_or_else(|| unreadable("containers"))? {
            let container = container.as_object_mut().ok_or_else(|| unreadable("containers"))?;
            if !extend(container, "env", &self.environment)
                || !extend(container, "volumeMounts", &self.mounts)
            {
                return Err(unreadable("containers"));
            }
            if let Some(image) = container.get_mut("image")
                && let Some(text) = image.as_str()
            {
                *image = mirrored(text, self.registries).into();
            }
            let of = container.get("name").and_then(Value::as_str).unwrap_or_default();
            // Later entries take precedence.
            let share = self.shares.iter().rev().find(|share| {
                share.of.iter().zip([plural, &name, of]).all(|(want, have)| want == "*" || want == have)
            });
            if let Some(share) = share {
                container.insert("resources".into(), share.resources.clone());
            }
        }
        Ok(())
    }
}

/// Appends to a list, created if it is missing; returns false if the field is not a list.
fn extend(object: &mut Map<String, Value>, key: &str, more: &[Value]) -> bool {
    if more.is_empty() {
        return true;
    }
    match object.entry(key).or_insert_with(|| json!([])) {
        Value::Array(list) => {
            list.extend_from_slice(more);
            true
        }
        null @ Value::Null => {
            *null = more.into();
            true
        }
        _ => false,
    }
}

fn shares(place: &RenderTarget<'_>) -> Result<Vec<ContainerResources>, String> {
    let all = place.config.and_then(|config| config.spec.resource_requirements.as_ref());
    let all = all.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let read = |item: &Value| {
        let id = item.get("containerID").and_then(Value::as_str).unwrap_or_default();
        let parts: Vec<String> = id.split(':').map(str::to_owned).collect();
        let of: [String; 3] = parts.try_into().map_err(|_| format!("invalid ContainerID: {id}"))?;
        Ok(ContainerResources { of, resources: item.get("resources").cloned().unwrap_or_else(|| json!({})) })
    };
    all.iter().map(read).collect()
}

/// Returns the image with its configured registry. The last matching source counts, and an empty source
/// matches every image.
pub(crate) fn mirrored(image: &str, registries: &[ImageMirror]) -> String {
    let from = |registry: &ImageMirror| {
        let (source, mirror) = (registry.source.trim_end_matches('/'), registry.mirror.trim_end_matches('/'));
        let rest = if source.is_empty() {
            format!("/{}", image.rsplit_once('/').map_or(image, |(_, name)| name))
        } else {
            // Sources match whole parts of the name: `quay.io/ocm` does not match `quay.io/ocm-extras`.
            image.strip_prefix(source).filter(|rest| rest.starts_with(['/', ':', '@']))?.to_owned()
        };
        Some(if mirror.is_empty() {
            rest.trim_start_matches('/').to_owned()
        } else {
            format!("{mirror}{rest}")
        })
    };
    registries.iter().rev().find_map(from).unwrap_or_else(|| image.to_owned())
}
