//! Deployments, ReplicaSets, StatefulSets, DaemonSets, ReplicationControllers and PodTemplates.

use machinery::field::Path;
use machinery::names;
use serde_json::{Map, Value, json};

use super::check::{Errs, selects, selects_all};
use super::pod::default_template;
use super::pod_validation;
use super::spec::{BASE, Facts, GenerationRule, Spec, StatusMeta, WITH_STATUS};
use super::value::{at, fill, fill_at, has, int, list, list_mut, object_mut, path, set_at, text};
use crate::strategy::WriteContext;

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

pub(super) const DEPLOYMENT: Spec = Spec {
    status_meta: StatusMeta::AllButLabels,
    generation: GenerationRule::SpecAndAnnotations,
    default: default_deployment,
    validate: validate_deployment,
    validate_update: selector_fixed,
    validate_subresource: |_, sub, obj, _, errs| {
        if sub == "status" {
            deployment_status(obj, errs);
        }
    },
    warnings: template_warnings,
    ..WITH_STATUS
};

pub(super) const REPLICA_SET: Spec = Spec {
    facts: Facts { own_labels: true, ..WITH_STATUS.facts },
    status: Some(|| json!({"replicas": 0})),
    fields: &[("status.replicas", "status.replicas", "0")],
    default: |obj| {
        fill_at(obj, "spec", "replicas", 1);
        default_template(obj, "spec.template");
    },
    validate: |_, obj, errs| {
        let place = Path::field("spec");
        let spec = at(obj, "spec");
        errs.non_negative(spec, &place, "replicas");
        errs.non_negative(spec, &place, "minReadySeconds");
        selector_and_template(spec, &place, errs);
    },
    validate_update: selector_fixed,
    validate_subresource: |_, sub, obj, _, errs| {
        if sub == "status" {
            replica_status(obj, &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"], errs);
        }
    },
    warnings: template_warnings,
    ..WITH_STATUS
};

pub(super) const REPLICATION_CONTROLLER: Spec = Spec {
    facts: Facts { own_labels: true, orphans: true, ..WITH_STATUS.facts },
    status: Some(|| json!({"replicas": 0})),
    fields: &[("status.replicas", "status.replicas", "0")],
    default: default_controller,
    validate: validate_controller,
    validate_subresource: |_, sub, obj, _, errs| {
        if sub == "status" {
            replica_status(obj, &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"], errs);
        }
    },
    warnings: template_warnings,
    ..WITH_STATUS
};

pub(super) const DAEMON_SET: Spec = Spec {
    status: Some(
        || json!({"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0}),
    ),
    default: default_daemon_set,
    create: |_, obj| {
        set_at(obj, "metadata.annotations", TEMPLATE_GENERATION, "1");
    },
    update: template_generation,
    subresource: keep_template_generation,
    validate: |_, obj, errs| {
        let place = Path::field("spec");
        let spec = at(obj, "spec");
        let selector = at(spec, "selector");
        errs.selector(&place.child("selector"), selector);
        if !selector.is_null() && selects_all(selector) {
            errs.invalid(&place.child("selector"), selector, "empty selector is invalid for daemonset");
        }
        running_template(spec, &place, "DaemonSet", errs);
        errs.non_negative(spec, &place, "minReadySeconds");
        daemon_strategy(at(spec, "updateStrategy"), &place.child("updateStrategy"), errs);
        errs.non_negative(spec, &place, "revisionHistoryLimit");
    },
    validate_update: selector_fixed,
    warnings: template_warnings,
    ..WITH_STATUS
};

pub(super) const STATEFUL_SET: Spec = Spec {
    status: Some(|| json!({"replicas": 0, "availableReplicas": 0})),
    default: default_stateful_set,
    create: |_, obj| drop_gated(obj),
    update: |_, obj, _| drop_gated(obj),
    validate: validate_stateful_set,
    validate_update: stateful_set_fixed,
    validate_subresource: |_, sub, obj, _, errs| {
        if sub == "status" {
            replica_status(
                obj,
                &["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"],
                errs,
            );
        }
    },
    warnings: template_warnings,
    ..WITH_STATUS
};

pub(super) const POD_TEMPLATE: Spec = Spec {
    facts: Facts { returns_deleted: true, ..BASE.facts },
    generation: GenerationRule::Content,
    default: |obj| default_template(obj, "template"),
    validate: |_, obj, errs| pod_validation::template(at(obj, "template"), &Path::field("template"), errs),
    warnings: |obj, old| super::pod_warnings::bare_template(obj, old),
    ..BASE
};

pub(super) const CONTROLLER_REVISION: Spec = Spec {
    validate: |_, obj, errs| {
        errs.non_negative(obj, &Path::root(), "revision");
    },
    validate_update: |_, obj, old, errs| errs.immutable("data", obj, old),
    ..BASE
};

fn template_warnings(obj: &Value, old: Option<&Value>) -> Vec<String> {
    super::pod_warnings::template(obj, old, "spec.template")
}

fn default_deployment(obj: &mut Value) {
    let Some(spec) = object_mut(obj, "spec") else { return };
    fill(spec, "replicas", 1);
    fill(spec, "revisionHistoryLimit", 10);
    fill(spec, "progressDeadlineSeconds", 600);
    fill_at(obj, "spec.strategy", "type", "RollingUpdate");
    if text(obj, "spec.strategy.type") == "RollingUpdate" {
        fill_at(obj, "spec.strategy.rollingUpdate", "maxUnavailable", "25%");
        fill_at(obj, "spec.strategy.rollingUpdate", "maxSurge", "25%");
    }
    default_template(obj, "spec.template");
}

fn default_daemon_set(obj: &mut Value) {
    fill_at(obj, "metadata.annotations", TEMPLATE_GENERATION, "0");
    fill_at(obj, "spec", "revisionHistoryLimit", 10);
    fill_at(obj, "spec.updateStrategy", "type", "RollingUpdate");
    if text(obj, "spec.updateStrategy.type") == "RollingUpdate" {
        fill_at(obj, "spec.updateStrategy.rollingUpdate", "maxUnavailable", 1);
        fill_at(obj, "spec.updateStrategy.rollingUpdate", "maxSurge", 0);
    }
    default_template(obj, "spec.template");
}

fn default_controller(obj: &mut Value) {
    fill_at(obj, "spec", "replicas", 1);
    if has(obj, "spec.template") {
        let labels = at(obj, "spec.template.metadata.labels").clone();
        if labels.as_object().is_some_and(|l| !l.is_empty()) {
            if at(obj, "spec.selector").as_object().is_none_or(Map::is_empty) {
                set_at(obj, "spec", "selector", labels.clone());
            }
            if at(obj, "metadata.labels").as_object().is_none_or(Map::is_empty) {
                set_at(obj, "metadata", "labels", labels);
            }
        }
        default_template(obj, "spec.template");
    }
}

/// Drops a field that is behind a feature gate that is off by default. Its writer owns it all the same.
fn drop_gated(obj: &mut Value) {
    drop(super::value::remove_at(obj, "spec.updateStrategy.rollingUpdate", "maxUnavailable"));
}

fn default_stateful_set(obj: &mut Value) {
    let Some(spec) = object_mut(obj, "spec") else { return };
    fill(spec, "replicas", 1);
    fill(spec, "podManagementPolicy", "OrderedReady");
    fill(spec, "revisionHistoryLimit", 10);
    // The schema requires the field, so it is always printed.
    fill_empty(spec, "serviceName");
    fill_at(obj, "spec.updateStrategy", "type", "RollingUpdate");
    if text(obj, "spec.updateStrategy.type") == "RollingUpdate" {
        fill_at(obj, "spec.updateStrategy.rollingUpdate", "partition", 0);
    }
    fill_at(obj, "spec.persistentVolumeClaimRetentionPolicy", "whenDeleted", "Retain");
    fill_at(obj, "spec.persistentVolumeClaimRetentionPolicy", "whenScaled", "Retain");
    default_template(obj, "spec.template");
    for claim in list_mut(obj, "spec.volumeClaimTemplates") {
        object_mut(claim, "metadata");
        object_mut(claim, "spec.resources");
        if let Some(map) = claim.as_object_mut() {
            fill(map, "apiVersion", "v1");
            fill(map, "kind", "PersistentVolumeClaim");
        }
        fill_at(claim, "spec", "volumeMode", "Filesystem");
        fill_at(claim, "status", "phase", "Pending");
    }
}

fn fill_empty(map: &mut Map<String, Value>, key: &str) {
    map.entry(key).or_insert_with(|| Value::from(""));
}

/// A write of the status keeps the count of template changes.
fn keep_template_generation(_: &WriteContext<'_>, sub: &str, obj: &mut Value, old: &Value) {
    if sub == "status"
        && let Some(count) = at(old, "metadata.annotations").get(TEMPLATE_GENERATION)
    {
        set_at(obj, "metadata.annotations", TEMPLATE_GENERATION, count.clone());
    }
}

/// Counts changes of the template in `spec.templateGeneration`.
fn template_generation(_: &WriteContext<'_>, obj: &mut Value, old: &Value) {
    let before: i64 = at(old, "metadata.annotations")
        .get(TEMPLATE_GENERATION)
        .and_then(Value::as_str)
        .and_then(|s| s.parse().ok())
        .unwrap_or_default();
    let step = i64::from(at(obj, "spec.template") != at(old, "spec.template"));
    set_at(obj, "metadata.annotations", TEMPLATE_GENERATION, (before + step).to_string());
}

/// Checks `spec.selector` of the apps group: required, valid, not empty. Returns whether it can be used; `unusable` is
/// what Kubernetes adds if it cannot.
fn required_selector(spec: &Value, place: &Path, kind: &str, unusable: &str, errs: &mut Errs) -> bool {
    let here = place.child("selector");
    let selector = at(spec, "selector");
    if selector.is_null() {
        errs.required(&here, "");
        return true;
    }
    let valid = errs.selector(&here, selector).is_some();
    if selects_all(selector) {
        errs.invalid(&here, selector, &format!("empty selector is invalid for {kind}"));
    }
    if !valid {
        errs.invalid(&here, selector, unusable);
    }
    valid
}

/// Checks the selector of a Deployment or ReplicaSet, and the template if the selector can be used: the selector selects
/// it, and its pods always restart.
fn selector_and_template(spec: &Value, place: &Path, errs: &mut Errs) {
    if !required_selector(spec, place, "deployment", "invalid label selector", errs) {
        return;
    }
    running_template(spec, place, "ReplicaSet", errs);
}

fn running_template(spec: &Value, place: &Path, kind: &str, errs: &mut Errs) {
    let here = place.child("template");
    let template = at(spec, "template");
    selected_template(spec, template, &here, errs);
    pod_validation::template(template, &here, errs);
    always_restarted(template, &here, kind, errs);
}

fn always_restarted(template: &Value, place: &Path, kind: &str, errs: &mut Errs) {
    let restart = text(template, "spec.restartPolicy");
    if restart != "Always" && !restart.is_empty() {
        errs.unsupported(&place.child("spec").child("restartPolicy"), restart, &["Always"]);
    }
    if has(template, "spec.activeDeadlineSeconds") {
        errs.forbidden(
            &place.child("spec").child("activeDeadlineSeconds"),
            &format!("activeDeadlineSeconds in {kind} is not Supported"),
        );
    }
}

/// Checks that the selector selects the labels of the template. An absent selector selects nothing.
pub(super) fn selected_template(spec: &Value, template: &Value, place: &Path, errs: &mut Errs) {
    let selector = at(spec, "selector");
    if !selector.is_null() && selects_all(selector) {
        return;
    }
    let labels = at(template, "metadata.labels");
    let selected = match machinery::selector::LabelSelector::from_object(selector) {
        Ok(parsed) => !selector.is_null() && selects(&parsed, labels),
        // The selector has been reported.
        Err(_) => return,
    };
    if !selected {
        errs.invalid(
            &place.child("metadata").child("labels"),
            labels,
            "`selector` does not match template `labels`",
        );
    }
}

fn validate_deployment(_: &WriteContext<'_>, obj: &Value, errs: &mut Errs) {
    let place = Path::field("spec");
    let spec = at(obj, "spec");
    errs.non_negative(spec, &place, "replicas");
    selector_and_template(spec, &place, errs);
    deployment_strategy(at(spec, "strategy"), &place.child("strategy"), errs);
    for key in ["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"] {
        errs.non_negative(spec, &place, key);
    }
    if let Some(deadline) = int(spec, "progressDeadlineSeconds")
        && deadline <= int(spec, "minReadySeconds").unwrap_or_default()
    {
        errs.invalid(
            &place.child("progressDeadlineSeconds"),
            &Value::from(deadline),
            "must be greater than minReadySeconds",
        );
    }
}

fn deployment_strategy(strategy: &Value, place: &Path, errs: &mut Errs) {
    match text(strategy, "type") {
        "Recreate" => {
            if has(strategy, "rollingUpdate") {
                errs.forbidden(
                    &place.child("rollingUpdate"),
                    "may not be specified when strategy `type` is 'Recreate'",
                );
            }
        }
        "RollingUpdate" => {
            let here = place.child("rollingUpdate");
            let (unavailable, surge) =
                (at(strategy, "rollingUpdate.maxUnavailable"), at(strategy, "rollingUpdate.maxSurge"));
            errs.int_or_percent(&here.child("maxUnavailable"), unavailable);
            errs.int_or_percent(&here.child("maxSurge"), surge);
            if is_zero(unavailable) && is_zero(surge) {
                errs.invalid(&here.child("maxUnavailable"), unavailable, "may not be 0 when `maxSurge` is 0");
            }
            at_most_all(&here.child("maxUnavailable"), unavailable, errs);
        }
        other => errs.unsupported(&place.child("type"), other, &["Recreate", "RollingUpdate"]),
    }
}

fn is_zero(count: &Value) -> bool {
    match count {
        Value::String(text) => text.trim_end_matches('%').parse() == Ok(0),
        other => other.as_i64() == Some(0),
    }
}

fn at_most_all(place: &Path, count: &Value, errs: &mut Errs) {
    let percent = count.as_str().and_then(|s| s.strip_suffix('%')).and_then(|s| s.parse::<i64>().ok());
    if percent.is_some_and(|n| n > 100) {
        errs.invalid(place, count, "must not be greater than 100%");
    }
}

fn daemon_strategy(strategy: &Value, place: &Path, errs: &mut Errs) {
    match text(strategy, "type") {
        "OnDelete" => {}
        "RollingUpdate" => {
            let here = place.child("rollingUpdate");
            let (unavailable, surge) =
                (at(strategy, "rollingUpdate.maxUnavailable"), at(strategy, "rollingUpdate.maxSurge"));
            errs.int_or_percent(&here.child("maxUnavailable"), unavailable);
            errs.int_or_percent(&here.child("maxSurge"), surge);
            if !is_zero(unavailable) && !is_zero(surge) {
                errs.invalid(
                    &here.child("maxSurge"),
                    surge,
                    "may not be set when maxUnavailable is non-zero",
                );
            } else if is_zero(unavailable) && is_zero(surge) {
                errs.required(&here.child("maxUnavailable"), "cannot be 0 when maxSurge is 0");
            }
        }
        other => errs.unsupported(&place.child("type"), other, &["OnDelete", "RollingUpdate"]),
    }
}

fn selector_fixed(_: &WriteContext<'_>, obj: &Value, old: &Value, errs: &mut Errs) {
    errs.immutable("spec.selector", obj, old);
}

fn deployment_status(obj: &Value, errs: &mut Errs) {
    let place = Path::field("status");
    let status = at(obj, "status");
    const COUNTS: &[&str] = &[
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "terminatingReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "collisionCount",
    ];
    for key in COUNTS {
        errs.non_negative(status, &place, key);
    }
    within(
        status,
        &["updatedReplicas", "readyReplicas", "availableReplicas"],
        "replicas",
        "status.replicas",
        errs,
    );
    within(status, &["availableReplicas"], "readyReplicas", "readyReplicas", errs);
}

fn replica_status(obj: &Value, parts: &[&str], errs: &mut Errs) {
    let place = Path::field("status");
    let status = at(obj, "status");
    errs.non_negative(status, &place, "replicas");
    for key in parts {
        errs.non_negative(status, &place, key);
    }
    errs.non_negative(status, &place, "observedGeneration");
    within(status, parts, "replicas", "status.replicas", errs);
    if parts.contains(&"readyReplicas") {
        within(status, &["availableReplicas"], "readyReplicas", "status.readyReplicas", errs);
    }
}

/// Checks that none of `parts` is greater than `whole`.
fn within(status: &Value, parts: &[&str], whole: &str, name: &str, errs: &mut Errs) {
    let bound = int(status, whole).unwrap_or_default();
    for key in parts {
        let count = int(status, key).unwrap_or_default();
        if count > bound {
            errs.invalid(
                &Path::field("status").child(key),
                &Value::from(count),
                &format!("cannot be greater than {name}"),
            );
        }
    }
}

fn validate_controller(_: &WriteContext<'_>, obj: &Value, errs: &mut Errs) {
    let place = Path::field("spec");
    let spec = at(obj, "spec");
    errs.non_negative(spec, &place, "minReadySeconds");
    if at(spec, "selector").as_object().is_none_or(Map::is_empty) {
        errs.required(&place.child("selector"), "");
    }
    errs.non_negative(spec, &place, "replicas");
    let here = place.child("template");
    let template = at(spec, "template");
    if template.is_null() {
        errs.required(&here, "");
        return;
    }
    let labels = at(template, "metadata.labels");
    let selected = super::value::entries(spec, "selector").all(|(key, value)| labels.get(key) == Some(value));
    if !selected {
        errs.invalid(
            &here.child("metadata").child("labels"),
            labels,
            "`selector` does not match template `labels`",
        );
    }
    pod_validation::template(template, &here, errs);
    always_restarted(template, &here, "ReplicationController", errs);
}

fn validate_stateful_set(_: &WriteContext<'_>, obj: &Value, errs: &mut Errs) {
    let place = Path::field("spec");
    let spec = at(obj, "spec");
    match text(spec, "podManagementPolicy") {
        "" => errs.required(&place.child("podManagementPolicy"), ""),
        "OrderedReady" | "Parallel" => {}
        other => errs.invalid_str(
            &place.child("podManagementPolicy"),
            other,
            "must be 'OrderedReady' or 'Parallel'",
        ),
    }
    let strategy = at(spec, "updateStrategy");
    let here = place.child("updateStrategy");
    match text(strategy, "type") {
        "" => errs.required(&here, ""),
        "OnDelete" => {
            if has(strategy, "rollingUpdate") {
                errs.invalid(
                    &here.child("rollingUpdate"),
                    at(strategy, "rollingUpdate"),
                    "only allowed for updateStrategy 'RollingUpdate'",
                );
            }
        }
        "RollingUpdate" => {
            errs.non_negative(at(strategy, "rollingUpdate"), &here.child("rollingUpdate"), "partition");
        }
        _ => errs.invalid(&here, strategy, "must be 'RollingUpdate' or 'OnDelete'"),
    }
    for key in ["whenDeleted", "whenScaled"] {
        let policy = text(at(spec, "persistentVolumeClaimRetentionPolicy"), key);
        errs.one_of(
            &place.child("persistentVolumeClaimRetentionPolicy").child(key),
            policy,
            &["Delete", "Retain"],
        );
    }
    errs.non_negative(spec, &place, "replicas");
    errs.non_negative(spec, &place, "minReadySeconds");
    if let Some(ordinals) = Some(at(spec, "ordinals")).filter(|o| !o.is_null()) {
        errs.non_negative(ordinals, &place.child("ordinals"), "start");
    }
    let service = text(spec, "serviceName");
    if !service.is_empty() {
        errs.names(&place.child("serviceName"), service, names::dns1123_label(service));
    }
    if !required_selector(spec, &place, "statefulset", "", errs) {
        return;
    }
    // Mounts may name the claims that each pod gets.
    let mut template = at(spec, "template").clone();
    for claim in list(spec, "volumeClaimTemplates") {
        let volume =
            json!({"name": text(claim, "metadata.name"), "persistentVolumeClaim": {"claimName": "claim"}});
        if let Some(map) = object_mut(&mut template, "spec") {
            match map.entry("volumes").or_insert_with(|| Value::Array(Vec::new())) {
                Value::Array(volumes) => volumes.push(volume),
                _ => break,
            }
        }
    }
    let here = place.child("template");
    selected_template(spec, at(spec, "template"), &here, errs);
    pod_validation::template(&template, &here, errs);
    always_restarted(&template, &here, "StatefulSet", errs);
}

fn stateful_set_fixed(_: &WriteContext<'_>, obj: &Value, old: &Value, errs: &mut Errs) {
    const MUTABLE: &[&str] = &[
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
        "revisionHistoryLimit",
    ];
    let mut new_spec = at(obj, "spec").clone();
    for key in MUTABLE {
        super::value::put(&mut new_spec, key, at(at(old, "spec"), key));
    }
    let mut old_spec = at(old, "spec").clone();
    // The status of a claim template has no effect.
    for claims in [&mut new_spec, &mut old_spec] {
        for claim in list_mut(claims, "volumeClaimTemplates") {
            drop(super::value::remove(claim, "status"));
        }
    }
    if new_spec != old_spec {
        errs.forbidden(
            &path("spec"),
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        );
    }
}
