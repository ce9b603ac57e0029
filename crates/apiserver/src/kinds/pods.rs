//! Pods: defaults of admission and storage, and which fields may change.

use std::collections::{HashMap, HashSet};

use machinery::field::Path;
use serde_json::{Value, json};
use uuid::Uuid;

use super::check::{Errs, name};
use super::pod;
use super::pod_validation;
use super::spec::{GenerationRule, Spec, StatusMeta, WITH_STATUS};
use super::value::{at, fill_at, has, int, list, list_mut, object_mut, put, set_at, text};
use crate::error::ApiError;
use crate::strategy::WriteContext;

const TOKEN_MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

pub(super) const POD: Spec = Spec {
    status: Some(|| Value::Object(serde_json::Map::new())),
    status_meta: StatusMeta::Nothing,
    generation: GenerationRule::Spec,
    returns_deleted: true,
    own_labels: true,
    fields: &[
        ("spec.nodeName", "spec.nodeName", ""),
        ("spec.host", "spec.nodeName", ""),
        ("spec.restartPolicy", "spec.restartPolicy", ""),
        ("spec.schedulerName", "spec.schedulerName", ""),
        ("spec.serviceAccountName", "spec.serviceAccountName", ""),
        ("spec.hostNetwork", "spec.hostNetwork", "false"),
        ("status.phase", "status.phase", ""),
        ("status.podIP", "status.podIP", ""),
        ("status.podIPs", "status.podIP", ""),
        ("status.nominatedNodeName", "status.nominatedNodeName", ""),
    ],
    default: pod::default_pod,
    admit,
    update: readmit,
    subresource: separate,
    validate: |_, obj, errs| pod_validation::pod(obj, errs),
    validate_create: |_, obj, errs| pod_validation::new_pod(obj, errs),
    validate_update: |_, obj, old, errs| fixed(obj, old, errs),
    validate_subresource: |_, sub, obj, _, errs| {
        if sub == "ephemeralcontainers" || sub == "resize" {
            pod_validation::pod(obj, errs);
        }
    },
    warnings: super::pod_warnings::pod,
    graceful: |obj, requested| Some(grace(obj, requested)),
    disruption_budgets: Some(&("policy", "v1", "poddisruptionbudgets")),
    ..WITH_STATUS
};

/// The grace period in seconds: 0 for a pod without node or a terminated pod.
fn grace(obj: &Value, requested: Option<i64>) -> i64 {
    if text(obj, "spec.nodeName").is_empty() || matches!(text(obj, "status.phase"), "Failed" | "Succeeded") {
        return 0;
    }
    let seconds = requested.or_else(|| int(obj, "spec.terminationGracePeriodSeconds")).unwrap_or(30);
    if seconds < 0 { 1 } else { seconds }
}

fn admit(cx: &WriteContext<'_>, obj: &mut Value) -> Result<(), ApiError> {
    super::limits::pod(cx, obj)?;
    if cx.settings.pod_accounts {
        account(cx, obj)?;
    }
    default_tolerations(obj);
    priority(cx, obj)?;
    let mut status = pod::initial_status();
    put(&mut status, "qosClass", &pod::qos_class(at(obj, "spec")).into());
    put(obj, "status", &status);
    Ok(())
}

/// What admission fills in on updates, too.
fn readmit(_: &WriteContext<'_>, obj: &mut Value, old: &Value) {
    default_tolerations(obj);
    for key in ["priority", "preemptionPolicy"] {
        if !has(at(obj, "spec"), key) && has(at(old, "spec"), key) {
            set_at(obj, "spec", key, at(at(old, "spec"), key).clone());
        }
    }
}

/// Checks that the pod's service account exists, and mounts its token unless pod or account opt out.
fn account(cx: &WriteContext<'_>, obj: &mut Value) -> Result<(), ApiError> {
    fill_at(obj, "spec", "serviceAccountName", "default");
    let account = text(obj, "spec.serviceAccountName").to_owned();
    set_at(obj, "spec", "serviceAccount", account.clone());
    let Some(found) = cx.lookup.get("", "serviceaccounts", cx.namespace, &account) else {
        let why = format!(
            "error looking up service account {}/{account}: serviceaccount \"{account}\" not found",
            cx.namespace
        );
        return Err(ApiError::forbidden("", "pods", name(obj), &why));
    };
    if list(obj, "spec.imagePullSecrets").is_empty() && !list(&found, "imagePullSecrets").is_empty() {
        set_at(obj, "spec", "imagePullSecrets", at(&found, "imagePullSecrets").clone());
    }
    let automount = at(obj, "spec.automountServiceAccountToken")
        .as_bool()
        .or_else(|| at(&found, "automountServiceAccountToken").as_bool())
        .unwrap_or(true);
    if automount {
        mount_token(obj);
    }
    Ok(())
}

fn mount_token(obj: &mut Value) {
    const PREFIX: &str = "kube-api-access-";
    let existing = list(obj, "spec.volumes").iter().map(|v| text(v, "name")).find(|n| n.starts_with(PREFIX));
    let (volume, present) = match existing {
        Some(volume) => (volume.to_owned(), true),
        None => (format!("{PREFIX}{}", suffix()), false),
    };
    let mut used = false;
    for key in ["spec.containers", "spec.initContainers"] {
        for container in list_mut(obj, key) {
            if list(container, "volumeMounts").iter().any(|m| text(m, "mountPath") == TOKEN_MOUNT) {
                continue;
            }
            used = true;
            append(
                container,
                "volumeMounts",
                json!({"name": volume, "readOnly": true, "mountPath": TOKEN_MOUNT}),
            );
        }
    }
    if used
        && !present
        && let Some(spec) = super::value::at_mut(obj, "spec")
    {
        append(spec, "volumes", token_volume(&volume));
    }
}

fn token_volume(name: &str) -> Value {
    json!({"name": name, "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace",
            "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]}})
}

/// Five random characters, as in generated names.
fn suffix() -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    Uuid::new_v4()
        .into_bytes()
        .iter()
        .take(5)
        .map(|b| ALPHABET.get(usize::from(*b) % ALPHABET.len()).copied().map_or('b', char::from))
        .collect()
}

/// Appends to a list; creates it if it is absent.
pub(super) fn append(object: &mut Value, key: &str, item: Value) {
    let Some(map) = object.as_object_mut() else { return };
    let slot = map.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = Value::Array(Vec::new());
    }
    if let Value::Array(items) = slot {
        items.push(item);
    }
}

/// Adds the default tolerations: a pod stays on an unreachable node for five minutes.
fn default_tolerations(obj: &mut Value) {
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = list(obj, "spec.tolerations").iter().any(|t| {
            (text(t, "key") == key || text(t, "key").is_empty())
                && matches!(text(t, "effect"), "" | "NoExecute")
        });
        if !tolerated && let Some(spec) = super::value::at_mut(obj, "spec") {
            let toleration =
                json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
            append(spec, "tolerations", toleration);
        }
    }
}

fn priority(cx: &WriteContext<'_>, obj: &mut Value) -> Result<(), ApiError> {
    const GROUP: &str = "scheduling.k8s.io";
    let named = text(obj, "spec.priorityClassName").to_owned();
    let class = if named.is_empty() {
        cx.lookup
            .list(GROUP, "priorityclasses", None)
            .into_iter()
            .filter(|class| super::value::flag(class, "globalDefault"))
            .min_by_key(|class| int(class, "value"))
    } else {
        let builtin = match named.as_str() {
            "system-cluster-critical" => Some(json!({"value": 2_000_000_000})),
            "system-node-critical" => Some(json!({"value": 2_000_001_000})),
            _ => None,
        };
        let found = cx.lookup.get(GROUP, "priorityclasses", "", &named).or(builtin);
        if found.is_none() {
            let why = format!("no PriorityClass with name {named} was found");
            return Err(ApiError::forbidden("", "pods", name(obj), &why));
        }
        found
    };
    let class = class.unwrap_or_default();
    let preemption = match text(&class, "preemptionPolicy") {
        "" => "PreemptLowerPriority".to_owned(),
        policy => policy.to_owned(),
    };
    if named.is_empty() && has(&class, "metadata.name") {
        set_at(obj, "spec", "priorityClassName", text(&class, "metadata.name"));
    }
    set_at(obj, "spec", "priority", int(&class, "value").unwrap_or_default());
    set_at(obj, "spec", "preemptionPolicy", preemption);
    Ok(())
}

/// Restores the fields that a subresource of pods cannot change.
fn separate(_: &WriteContext<'_>, sub: &str, obj: &mut Value, old: &Value) {
    match sub {
        "status" if has(old, "status.qosClass") => {
            set_at(obj, "status", "qosClass", at(old, "status.qosClass").clone());
        }
        "ephemeralcontainers" => {
            let added = at(obj, "spec.ephemeralContainers").clone();
            *obj = with_metadata_of(obj, old);
            set_at(obj, "spec", "ephemeralContainers", added);
        }
        "resize" => {
            let wanted = obj.clone();
            *obj = with_metadata_of(obj, old);
            for key in ["containers", "initContainers"] {
                let mut sources = HashMap::new();
                for source in list(at(&wanted, "spec"), key) {
                    sources.entry(text(source, "name")).or_insert(source);
                }
                for container in list_mut(obj, &format!("spec.{key}")) {
                    if let Some(source) = sources.get(text(container, "name")).copied() {
                        put(container, "resources", at(source, "resources"));
                        put(container, "resizePolicy", at(source, "resizePolicy"));
                    }
                }
            }
        }
        _ => {}
    }
}

/// `old` with the metadata of `obj` that the server maintains.
fn with_metadata_of(obj: &Value, old: &Value) -> Value {
    let mut out = old.clone();
    for key in ["managedFields", "resourceVersion"] {
        if let Some(metadata) = object_mut(&mut out, "metadata") {
            match at(obj, "metadata").get(key) {
                Some(value) => drop(metadata.insert(key.into(), value.clone())),
                None => drop(metadata.remove(key)),
            }
        }
    }
    out
}

/// Checks that only the mutable fields of a pod's spec have changed.
fn fixed(obj: &Value, old: &Value, errs: &mut Errs) {
    let mut wanted = at(obj, "spec").clone();
    let before = at(old, "spec");
    if list(&wanted, "containers").len() != list(before, "containers").len() {
        errs.forbidden(
            &super::value::path("spec.containers"),
            "pod updates may not add or remove containers",
        );
        return;
    }
    if list(&wanted, "initContainers").len() != list(before, "initContainers").len() {
        errs.forbidden(
            &super::value::path("spec.initContainers"),
            "pod updates may not add or remove containers",
        );
        return;
    }
    for key in ["containers", "initContainers"] {
        for (container, was) in list_mut(&mut wanted, key).zip(list(before, key)) {
            put(container, "image", at(was, "image"));
        }
    }
    deadline(at(obj, "spec"), before, errs);
    put(&mut wanted, "activeDeadlineSeconds", at(before, "activeDeadlineSeconds"));
    let (new, was) = (list(at(obj, "spec"), "tolerations"), list(before, "tolerations"));
    let new: HashSet<&Value> = new.iter().collect();
    if was.iter().any(|t| !new.contains(t)) {
        errs.forbidden(
            &super::value::path("spec.tolerations"),
            "existing toleration can not be modified except its tolerationSeconds",
        );
    }
    put(&mut wanted, "tolerations", at(before, "tolerations"));
    if int(before, "terminationGracePeriodSeconds").is_some_and(|n| n < 0)
        && int(&wanted, "terminationGracePeriodSeconds") == Some(1)
    {
        put(&mut wanted, "terminationGracePeriodSeconds", at(before, "terminationGracePeriodSeconds"));
    }
    let gates: HashSet<&Value> = list(before, "schedulingGates").iter().collect();
    if list(&wanted, "schedulingGates").iter().all(|g| gates.contains(g)) {
        put(&mut wanted, "schedulingGates", at(before, "schedulingGates"));
    }
    if &wanted != before {
        errs.forbidden(
            &Path::field("spec"),
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
        );
    }
}

fn deadline(new: &Value, old: &Value, errs: &mut Errs) {
    let here = super::value::path("spec.activeDeadlineSeconds");
    match (int(new, "activeDeadlineSeconds"), int(old, "activeDeadlineSeconds")) {
        (Some(new), Some(old)) if new > old => {
            errs.invalid(
                &here,
                &Value::from(new),
                &format!("must be less than or equal to previous value ({old})"),
            );
        }
        (None, Some(_)) => {
            errs.invalid_text(&here, "null", "must not update from a positive integer to nil value");
        }
        _ => {}
    }
}
