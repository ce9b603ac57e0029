//! Defaults of pods and pod templates (spec 2.4).

use serde_json::{Map, Value, json};

use super::value::{at, fill, fill_at, flag, has, list_mut, object_mut, text};

/// Sets the defaults of the pod spec at `place`, of a pod or a template.
pub(super) fn default_spec(object: &mut Value, place: &str) {
    let Some(spec) = object_mut(object, place) else { return };
    fill(spec, "restartPolicy", "Always");
    fill(spec, "terminationGracePeriodSeconds", 30);
    fill(spec, "dnsPolicy", "ClusterFirst");
    fill(spec, "schedulerName", "default-scheduler");
    fill(spec, "securityContext", Value::Object(Map::new()));
    mirror_account(spec);
    let Some(spec) = super::value::at_mut(object, place) else { return };
    for key in ["containers", "initContainers", "ephemeralContainers"] {
        list_mut(spec, key).for_each(default_container);
    }
    list_mut(spec, "volumes").for_each(default_volume);
}

/// Sets the defaults of the template at `place` (`spec.template`).
pub(super) fn default_template(object: &mut Value, place: &str) {
    object_mut(object, &format!("{place}.metadata"));
    default_spec(object, &format!("{place}.spec"));
}

/// Sets the defaults that pods have and templates do not.
pub(super) fn default_pod(pod: &mut Value) {
    default_spec(pod, "spec");
    fill_at(pod, "spec", "enableServiceLinks", true);
    let host_network = flag(pod, "spec.hostNetwork");
    for key in ["spec.containers", "spec.initContainers"] {
        for container in list_mut(pod, key) {
            requests_from_limits(container);
            if host_network {
                list_mut(container, "ports").for_each(host_port);
            }
        }
    }
}

fn host_port(port: &mut Value) {
    let number = at(port, "containerPort").clone();
    if let Some(map) = port.as_object_mut() {
        fill(map, "hostPort", number);
    }
}

fn requests_from_limits(container: &mut Value) {
    let limits = at(container, "resources.limits").clone();
    for (name, amount) in limits.as_object().into_iter().flatten() {
        fill_at(container, "resources.requests", name, amount.clone());
    }
}

/// Copies `serviceAccountName` to the deprecated `serviceAccount`.
fn mirror_account(spec: &mut Map<String, Value>) {
    let read = |key| spec.get(key).and_then(Value::as_str).filter(|s| !s.is_empty()).map(str::to_owned);
    match read("serviceAccountName").or_else(|| read("serviceAccount")) {
        Some(account) => {
            spec.insert("serviceAccountName".into(), account.clone().into());
            spec.insert("serviceAccount".into(), account.into());
        }
        None => {
            spec.remove("serviceAccountName");
            spec.remove("serviceAccount");
        }
    }
}

fn default_container(container: &mut Value) {
    let policy = pull_policy(text(container, "image"));
    let Some(map) = container.as_object_mut() else { return };
    fill(map, "imagePullPolicy", policy);
    fill(map, "terminationMessagePath", "/dev/termination-log");
    fill(map, "terminationMessagePolicy", "File");
    fill(map, "resources", Value::Object(Map::new()));
    for place in ["resources.limits", "resources.requests"] {
        super::amounts::round(container, place);
    }
    for port in list_mut(container, "ports").filter_map(Value::as_object_mut) {
        fill(port, "protocol", "TCP");
    }
    for entry in list_mut(container, "env") {
        if has(entry, "valueFrom.fieldRef") {
            fill_at(entry, "valueFrom.fieldRef", "apiVersion", "v1");
        }
        if has(entry, "valueFrom.fileKeyRef") {
            fill_at(entry, "valueFrom.fileKeyRef", "optional", false);
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        default_probe(container, probe);
    }
    for hook in ["lifecycle.postStart", "lifecycle.preStop"] {
        default_http_get(container, hook);
    }
}

fn default_probe(container: &mut Value, probe: &str) {
    if !has(container, probe) {
        return;
    }
    for (key, default) in
        [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
    {
        fill_zero(container, probe, key, default);
    }
    if has(container, &format!("{probe}.grpc")) {
        fill_at(container, &format!("{probe}.grpc"), "service", "");
    }
    default_http_get(container, probe);
}

/// Sets a number that is absent or 0.
pub(super) fn fill_zero(object: &mut Value, place: &str, key: &str, default: i64) {
    if let Some(map) = object_mut(object, place)
        && map.get(key).and_then(Value::as_i64).unwrap_or_default() == 0
    {
        map.insert(key.to_owned(), default.into());
    }
}

fn default_http_get(container: &mut Value, handler: &str) {
    let place = format!("{handler}.httpGet");
    if has(container, &place) {
        fill_at(container, &place, "path", "/");
        fill_at(container, &place, "scheme", "HTTP");
    }
}

/// `Always` for images with the tag `latest` or without a tag.
fn pull_policy(image: &str) -> &'static str {
    if image.is_empty() || image.contains('@') {
        return "IfNotPresent";
    }
    let last = image.rsplit('/').next().unwrap_or_default();
    match last.split_once(':') {
        None | Some((_, "latest")) => "Always",
        Some(_) => "IfNotPresent",
    }
}

fn default_volume(volume: &mut Value) {
    let Some(map) = volume.as_object_mut() else { return };
    if map.iter().all(|(key, value)| key == "name" || value.is_null()) {
        map.insert("emptyDir".into(), Value::Object(Map::new()));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if has(volume, source) {
            fill_at(volume, source, "defaultMode", 420);
        }
    }
    if has(volume, "hostPath") {
        fill_at(volume, "hostPath", "type", "");
    }
    if has(volume, "iscsi") {
        fill_at(volume, "iscsi", "iscsiInterface", "default");
    }
    if has(volume, "ephemeral.volumeClaimTemplate") {
        object_mut(volume, "ephemeral.volumeClaimTemplate.metadata");
        object_mut(volume, "ephemeral.volumeClaimTemplate.spec.resources");
        fill_at(volume, "ephemeral.volumeClaimTemplate.spec", "volumeMode", "Filesystem");
    }
    downward_items(volume, "downwardAPI.items");
    for source in list_mut(volume, "projected.sources") {
        if has(source, "serviceAccountToken") {
            fill_at(source, "serviceAccountToken", "expirationSeconds", 3600);
        }
        downward_items(source, "downwardAPI.items");
    }
}

fn downward_items(object: &mut Value, place: &str) {
    for item in list_mut(object, place) {
        if has(item, "fieldRef") {
            fill_at(item, "fieldRef", "apiVersion", "v1");
        }
    }
}

/// The quality-of-service class of a pod spec.
pub(super) fn qos_class(spec: &Value) -> &'static str {
    let (mut any, mut guaranteed) = (false, true);
    for key in ["containers", "initContainers"] {
        for container in super::value::list(spec, key) {
            for resource in ["cpu", "memory"] {
                let limit = at(container, "resources.limits").get(resource).unwrap_or(&Value::Null);
                let request = at(container, "resources.requests").get(resource).unwrap_or(limit);
                any |= !limit.is_null() || !request.is_null();
                guaranteed &= !limit.is_null() && limit == request;
            }
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// The status of a new pod.
pub(super) fn initial_status() -> Value {
    json!({"phase": "Pending"})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_016_pull_policy_follows_the_tag() {
        for (image, policy) in [
            ("app", "Always"),
            ("registry.example:5000/app", "Always"),
            ("app:latest", "Always"),
            ("registry.example/app:1", "IfNotPresent"),
            ("app@sha256:0123", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), policy, "{image}");
        }
    }

    #[test]
    fn as_016_template_defaults() {
        let mut object = json!({"spec": {"template": {"spec": {
            "containers": [{"name": "app", "image": "registry.example/app:1",
                "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "ports": [{"containerPort": 1}], "livenessProbe": {"httpGet": {"port": 1}}}],
            "volumes": [{"name": "e"}, {"name": "s", "secret": {"secretName": "x"}},
                {"name": "h", "hostPath": {"path": "/x"}}]}}}});
        default_template(&mut object, "spec.template");
        let wanted = json!({"metadata": {}, "spec": {
            "containers": [{"image": "registry.example/app:1", "imagePullPolicy": "IfNotPresent", "name": "app",
                "env": [{"name": "N", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}],
                "ports": [{"containerPort": 1, "protocol": "TCP"}],
                "livenessProbe": {"httpGet": {"port": 1, "path": "/", "scheme": "HTTP"}, "timeoutSeconds": 1,
                    "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
                "resources": {}, "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}],
            "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
            "securityContext": {}, "terminationGracePeriodSeconds": 30,
            "volumes": [{"name": "e", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "x", "defaultMode": 420}},
                {"name": "h", "hostPath": {"path": "/x", "type": ""}}]}});
        assert_eq!(at(&object, "spec.template"), &wanted);
    }
}
